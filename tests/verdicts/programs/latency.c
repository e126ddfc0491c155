/* A token of one number goes around all ranks 16 times in each step; once would do. */
#include "work.h"

int main(int argc, char **argv) {
    start(&argc, &argv);
    double x = rank, token = 0;
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
#ifdef REPAIRED
    int rounds = 1;
#else
    int rounds = 16;
#endif
    for (int step = 0; step < STEPS; step++) {
        x = compute(x, UNIT);
        for (int round = 0; round < rounds; round++) {
            if (rank > 0) MPI_Recv(&token, 1, MPI_DOUBLE, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE); /* FAULT */
            MPI_Send(&token, 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD);
            if (rank == 0) MPI_Recv(&token, 1, MPI_DOUBLE, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    }
    end(x + token);
}
