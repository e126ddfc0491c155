// A small MPI job over all nodes of a cluster: ranks agree ten times on a sum.
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
    int rank, ranks, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 0; i < 10; i++) {
        int mine = rank + i;
        MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    }
    if (rank == 0)
        printf("scale: %d ranks agree on %d\n", ranks, sum);
    MPI_Finalize();
    return 0;
}
