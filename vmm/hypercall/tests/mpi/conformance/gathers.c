/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Gathers and scatters of equal and of different lengths, in place and not. */
#include "conformance.h"
void gathers(void) {
    int counts[4] = {1, 2, 3, 4}, places[4] = {0, 1, 3, 6}, one[12], all[12];
    fill(one, 12, rank);
    MPI_Gather(one, 3, MPI_INT, all, 3, MPI_INT, 1, WORLD);
    CHECK(rank != 1 || filled(all + 6, 3, 2));
    MPI_Scatter(all, 3, MPI_INT, one, 3, MPI_INT, 1, WORLD);
    CHECK(filled(one, 3, rank));
    MPI_Gatherv(one, rank + 1, MPI_INT, all, counts, places, MPI_INT, 2, WORLD);
    CHECK(rank != 2 || (filled(all, 1, 0) && filled(all + 3, 3, 2)));
    MPI_Scatterv(all, counts, places, MPI_INT, rank == 2 ? MPI_IN_PLACE : one, rank + 1, MPI_INT, 2, WORLD);
    if (rank == 3)
        fill(all + 9, 3, 3);
    MPI_Gather(rank == 3 ? MPI_IN_PLACE : one, 3, MPI_INT, all, 3, MPI_INT, 3, WORLD);
    CHECK(rank != 3 || (filled(all + 9, 3, 3) && filled(all, 3, 0)));
    int own = 4 * (rank + 1);
    expect("MPI_Gather", 24, (rank == 1 ? 48 : 0) + (rank == 3 ? 48 : 0));
    expect("MPI_Scatter", rank == 1 ? 48 : 0, 12);
    expect("MPI_Gatherv", own, rank == 2 ? 40 : 0);
    expect("MPI_Scatterv", rank == 2 ? 40 : 0, own);
}
