/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An intercommunicator between even and odd ranks: messages, collectives, and both sides merged. */
#include "conformance.h"
void two_groups(void) {
    MPI_Comm own, other, merged;
    int value = rank, sum, inner, members;
    MPI_Comm_split(WORLD, rank % 2, rank, &own);
    MPI_Intercomm_create(own, 0, WORLD, 1 - rank % 2, 5, &other);
    MPI_Comm_rank(own, &inner);
    MPI_Sendrecv(&rank, 1, MPI_INT, inner, 1, &value, 1, MPI_INT, inner, 1, other, IGNORE);
    CHECK(value == (rank % 2 ? rank - 1 : rank + 1));
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, other);
    CHECK(sum == (rank % 2 ? 2 : 4));
    int root = rank == 0 ? MPI_ROOT : rank == 2 ? MPI_PROC_NULL : 0;
    MPI_Bcast(&value, 1, MPI_INT, root, other);
    MPI_Barrier(other);
    MPI_Intercomm_merge(other, rank % 2, &merged);
    MPI_Comm_size(merged, &members);
    MPI_Barrier(merged);
    CHECK(members == 4);
    MPI_Comm_free(&merged);
    MPI_Comm_free(&other);
    MPI_Comm_free(&own);
    expect("MPI_Sendrecv", 4, 4);
    expect("MPI_Allreduce", 4, 4);
    expect("MPI_Bcast", rank == 0 ? 4 : 0, rank % 2 ? 4 : 0);
}
