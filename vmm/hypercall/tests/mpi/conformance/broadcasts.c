/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Broadcasts and reductions to every root in turn, and barriers. */
#include "conformance.h"
void broadcasts(void) {
    int values[25], sums[25];
    for (int root = 0; root < size; root++) {
        fill(values, 25, rank);
        MPI_Bcast(values, 25, MPI_INT, root, WORLD);
        CHECK(filled(values, 25, root));
        MPI_Reduce(values, sums, 25, MPI_INT, MPI_SUM, root, WORLD);
        CHECK(rank != root || sums[1] == 4 * (1000 * root + 1));
        MPI_Reduce(rank == root ? MPI_IN_PLACE : values, rank == root ? values : NULL, 5, MPI_INT, MPI_MAX, root, WORLD);
        MPI_Barrier(WORLD);
    }
    expect("MPI_Bcast", 100, 300);
    expect("MPI_Reduce", 4 * 120, 120);
}
