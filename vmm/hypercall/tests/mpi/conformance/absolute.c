/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Addresses in place of a buffer: MPI_BOTTOM. */
#include "conformance.h"
void absolute(void) {
    int a = rank, b[3], in[4], lengths[2] = {1, 3};
    double c[2] = {rank, 0.5};
    fill(b, 3, rank);
    MPI_Aint places[2];
    MPI_Datatype both, numbers;
    MPI_Get_address(&a, &places[0]);
    MPI_Get_address(b, &places[1]);
    MPI_Type_create_hindexed(2, lengths, places, MPI_INT, &both);
    MPI_Type_commit(&both);
    MPI_Sendrecv(MPI_BOTTOM, 1, both, right, 1, in, 4, MPI_INT, left, 1, WORLD, IGNORE);
    CHECK(in[0] == left && filled(in + 1, 3, left));
    MPI_Type_create_hindexed_block(1, 2, (MPI_Aint[1]){0}, MPI_DOUBLE, &numbers);
    MPI_Type_commit(&numbers);
    MPI_Bcast(c, 1, numbers, 1, WORLD);
    CHECK(c[0] == 1);
    MPI_Type_free(&both);
    MPI_Type_free(&numbers);
    expect("MPI_Sendrecv", 16, 16);
    expect("MPI_Bcast", rank == 1 ? 16 : 0, rank == 1 ? 0 : 16);
}
