/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Everybody gathers, equal and different lengths, in place and not. */
#include "conformance.h"
void all_gathers(void) {
    int counts[4] = {4, 3, 2, 1}, places[4] = {0, 4, 7, 9}, one[4], all[16];
    fill(one, 4, rank);
    MPI_Allgather(one, 4, MPI_INT, all, 4, MPI_INT, WORLD);
    for (int i = 0; i < size; i++)
        CHECK(filled(all + 4 * i, 4, i));
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, 2, MPI_INT, WORLD);
    MPI_Allgatherv(one, counts[rank], MPI_INT, all, counts, places, MPI_INT, WORLD);
    for (int i = 0; i < size; i++)
        CHECK(filled(all + places[i], counts[i], i));
    MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, counts, places, MPI_INT, WORLD);
    expect("MPI_Allgather", 16 + 8, 64 + 32);
    expect("MPI_Allgatherv", 2 * 4 * counts[rank], 2 * 40);
}
