/* Neighbours exchange a row of numbers one by one. */
#include "work.h"

enum { N = 64 };

int main(int argc, char **argv) {
    start(&argc, &argv);
    double x = rank, mine[N] = { 0 }, theirs[N] = { 0 };
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
    for (int step = 0; step < STEPS; step++) {
        x = compute(x, UNIT);
        mine[step % N] = x;
#ifdef REPAIRED
        MPI_Sendrecv(mine, N, MPI_DOUBLE, right, 0, theirs, N, MPI_DOUBLE, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
#else
        for (int i = 0; i < N; i++)
            MPI_Send(mine + i, 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD); /* FAULT */
        for (int i = 0; i < N; i++)
            MPI_Recv(theirs + i, 1, MPI_DOUBLE, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
#endif
        x += theirs[0];
    }
    end(x);
}
