/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Communicators of groups: by all of the old one, and by the new one alone. */
#include "conformance.h"
void creates(void) {
    MPI_Group all, even, odd, both;
    MPI_Comm made;
    int evens[2] = {0, 2}, odds[2] = {3, 1}, value = rank, members;
    MPI_Comm_group(WORLD, &all);
    MPI_Group_incl(all, 2, evens, &even);
    MPI_Group_incl(all, 2, odds, &odd);
    MPI_Group_union(odd, even, &both);
    MPI_Group_size(both, &members);
    CHECK(members == 4);
    MPI_Comm_create(WORLD, even, &made);
    CHECK((made == MPI_COMM_NULL) == (rank % 2));
    if (made != MPI_COMM_NULL) {
        MPI_Bcast(&value, 1, MPI_INT, 1, made);
        CHECK(value == 2);
        MPI_Comm_free(&made);
    }
    if (rank % 2) {
        MPI_Comm_create_group(WORLD, odd, 17, &made);
        MPI_Bcast(&value, 1, MPI_INT, 0, made);
        CHECK(value == 3);
        MPI_Comm_free(&made);
    }
    MPI_Comm_create(WORLD, both, &made);
    MPI_Gather(&rank, 1, MPI_INT, (int[4]){0}, 1, MPI_INT, 0, made);
    MPI_Comm_free(&made);
    MPI_Group_free(&all);
    MPI_Group_free(&even);
    MPI_Group_free(&odd);
    MPI_Group_free(&both);
    int roots = rank == 2 || rank == 3;
    expect("MPI_Bcast", roots ? 4 : 0, roots ? 0 : 4);
    expect("MPI_Gather", 4, rank == 3 ? 16 : 0);
}
