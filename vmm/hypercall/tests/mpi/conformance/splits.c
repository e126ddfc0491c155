/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Communicators split by colour, with messages inside; one rank gets none. */
#include "conformance.h"
void splits(void) {
    MPI_Comm half, most, same;
    int inner, sum;
    MPI_Comm_split(WORLD, rank % 2, -rank, &half);
    MPI_Comm_rank(half, &inner);
    CHECK(inner == (rank < 2));
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, half);
    CHECK(sum == (rank % 2 ? 4 : 2));
    MPI_Sendrecv_replace(&inner, 1, MPI_INT, 1 - inner, 3, 1 - inner, 3, half, IGNORE);
    MPI_Comm_split(WORLD, rank == 0 ? MPI_UNDEFINED : 5, 0, &most);
    CHECK((most == MPI_COMM_NULL) == (rank == 0));
    if (most != MPI_COMM_NULL) {
        MPI_Bcast(&inner, 1, MPI_INT, 2, most);
        MPI_Comm_free(&most);
    }
    MPI_Comm_dup(half, &same);
    MPI_Barrier(same);
    MPI_Comm_free(&same);
    MPI_Comm_free(&half);
    expect("MPI_Allreduce", 4, 4);
    expect("MPI_Sendrecv_replace", 4, 4);
}
