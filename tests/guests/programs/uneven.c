/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Two ranks of which one works long before each sum over both ranks: the other rank waits. */
#include <mpi.h>

#define ROUNDS 40
#define WORK 1000000

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int round = 0; round < ROUNDS; round++) {
        double own = rank, sum = 0;
        if (rank == 1)
            for (volatile int i = 0; i < WORK; i++)
                own += 1;
        MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    MPI_Finalize();
    return 0;
}
