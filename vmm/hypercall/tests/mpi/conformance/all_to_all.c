/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Everybody to everybody: equal lengths, different lengths, different types, in place. */
#include "conformance.h"
void all_to_all(void) {
    int out[16], in[16], counts[4], places[4];
    fill(out, 16, rank);
    MPI_Alltoall(out, 4, MPI_INT, in, 4, MPI_INT, WORLD);
    for (int i = 0; i < size; i++)
        CHECK(in[4 * i] == 1000 * i + 4 * rank);
    MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, in, 1, MPI_INT, WORLD);
    /* Between two ranks, in both directions, as many as the sum of their numbers. */
    int total = 0;
    for (int i = 0; i < size; i++) {
        counts[i] = rank + i > 4 ? 4 : rank + i;
        places[i] = 4 * i;
        total += counts[i];
    }
    MPI_Alltoallv(out, counts, places, MPI_INT, in, counts, places, MPI_INT, WORLD);
    int byte_places[4] = {0, 16, 32, 48}, words[4] = {1, 1, 1, 1};
    MPI_Datatype types[4] = {MPI_INT, MPI_DOUBLE, MPI_DOUBLE, MPI_INT}, mine[4];
    for (int i = 0; i < size; i++)
        mine[i] = types[(rank + i) % 4];
    MPI_Alltoallw(out, words, byte_places, mine, in, words, byte_places, mine, WORLD);
    expect("MPI_Alltoall", 64 + 16, 64 + 16);
    expect("MPI_Alltoallv", 4 * total, 4 * total);
    expect("MPI_Alltoallw", 24, 24);
}
