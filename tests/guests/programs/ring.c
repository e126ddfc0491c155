/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A small MPI program: each round passes a message round the ring, works on an array and reduces a sum. */
#include <mpi.h>
#include <stdio.h>

#define LENGTH 4096
#define ROUNDS 12

static double mine[LENGTH], theirs[LENGTH];

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < LENGTH; i++)
        mine[i] = rank + 1;
    double total = 0;
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Sendrecv(mine, LENGTH, MPI_DOUBLE, (rank + 1) % size, round, theirs, LENGTH, MPI_DOUBLE,
                     (rank + size - 1) % size, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        double sum = 0;
        for (int i = 0; i < LENGTH; i++) {
            mine[i] = theirs[i];
            sum += theirs[i];
        }
        MPI_Allreduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    if (rank == 0)
        printf("%d ranks: %.0f\n", size, total / LENGTH);
    MPI_Finalize();
    return 0;
}
