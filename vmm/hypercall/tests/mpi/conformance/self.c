/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Messages to oneself, in the world and on MPI_COMM_SELF. */
#include "conformance.h"
void self(void) {
    int out[10], in[10];
    MPI_Request request;
    fill(out, 10, rank);
    MPI_Isend(out, 10, MPI_INT, rank, 1, WORLD, &request);
    MPI_Recv(in, 10, MPI_INT, rank, 1, WORLD, IGNORE);
    MPI_Wait(&request, IGNORE);
    CHECK(filled(in, 10, rank));
    MPI_Sendrecv(out, 5, MPI_INT, 0, 2, in, 5, MPI_INT, 0, 2, MPI_COMM_SELF, IGNORE);
    MPI_Allreduce(out, in, 10, MPI_INT, MPI_SUM, MPI_COMM_SELF);
    MPI_Barrier(MPI_COMM_SELF);
    CHECK(filled(in, 10, rank));
    expect("MPI_Isend", 40, 0);
    expect("MPI_Recv", 0, 40);
    expect("MPI_Sendrecv", 20, 20);
    expect("MPI_Allreduce", 40, 40);
}
