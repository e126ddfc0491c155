/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A small MPI program: in each round every rank sends a part of its array to every other rank. */
#include <mpi.h>
#include <stdio.h>

#define PART 512
#define ROUNDS 12
#define MOST_RANKS 64

static double mine[PART * MOST_RANKS], theirs[PART * MOST_RANKS];

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size > MOST_RANKS)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 0; i < PART * size; i++)
        mine[i] = rank + 1;
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Alltoall(mine, PART, MPI_DOUBLE, theirs, PART, MPI_DOUBLE, MPI_COMM_WORLD);
        for (int i = 0; i < PART * size; i++)
            mine[i] += theirs[i] / size;
    }
    if (rank == 0)
        printf("%d ranks: %.0f\n", size, mine[0]);
    MPI_Finalize();
    return 0;
}
