/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Messages of 4 MiB, which no library sends eagerly, and counts of types that have many elements. */
#include "conformance.h"
void large(void) {
    enum { MIB = 1 << 20 };
    char *out = calloc(4, MIB), *in = calloc(4, MIB);
    MPI_Datatype megabyte;
    MPI_Type_contiguous(MIB, MPI_BYTE, &megabyte);
    MPI_Type_commit(&megabyte);
    memset(out, rank, 4 * MIB);
    MPI_Sendrecv(out, 4 * MIB, MPI_BYTE, right, 1, in, 4, megabyte, left, 1, WORLD, IGNORE);
    CHECK(in[0] == left && in[4 * MIB - 1] == left);
    MPI_Bcast(in, 2, megabyte, 2, WORLD);
    CHECK(in[0] == 1);
    MPI_Type_free(&megabyte);
    expect("MPI_Sendrecv", 4 * MIB, 4 * MIB);
    expect("MPI_Bcast", rank == 2 ? 2 * MIB : 0, rank == 2 ? 0 : 2 * MIB);
#if MPI_VERSION >= 4
    MPI_Request request;
    MPI_Isend_c(out, MIB, MPI_BYTE, right, 2, WORLD, &request);
    MPI_Recv_c(in, 2 * MIB, MPI_BYTE, left, 2, WORLD, IGNORE);
    MPI_Wait(&request, IGNORE);
    MPI_Bcast_c(out, MIB, MPI_BYTE, 0, WORLD);
    expect("MPI_Isend_c", MIB, 0);
    expect("MPI_Recv_c", 0, MIB);
    expect("MPI_Bcast_c", rank == 0 ? MIB : 0, rank == 0 ? 0 : MIB);
#endif
    free(out);
    free(in);
}
