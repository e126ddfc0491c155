/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A pipeline whose ranks all make other calls: rank R receives R messages from its left, and sends R + 1 to its right. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
    int rank, size;
    double sum = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < rank; i++) {
        double value;
        MPI_Recv(&value, 1, MPI_DOUBLE, rank - 1, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        sum += value / (i + 1);
    }
    for (int i = 0; i < 20000 * (rank + 1); i++)
        sum = sum * 0.99999 + 1e-5 * i;
    for (int i = 0; rank + 1 < size && i <= rank; i++)
        MPI_Send(&sum, 1, MPI_DOUBLE, rank + 1, i, MPI_COMM_WORLD);
    printf("rank %d of %d: sum %.17g\n", rank, size, sum);
    MPI_Finalize();
    return 0;
}
