/* Odd ranks wait for numbers of the rank before, and then compute what does not need them. */
#include "work.h"

enum { N = 1000 };

int main(int argc, char **argv) {
    start(&argc, &argv);
    double x = rank, sum = 0, numbers[N] = { 0 };
    for (int step = 0; step < STEPS; step++) {
        MPI_Request request;
        if (rank % 2 == 0) {
            x = compute(x, UNIT);
            MPI_Isend(numbers, N, MPI_DOUBLE, rank + 1, 0, MPI_COMM_WORLD, &request);
            x = compute(x, UNIT);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        } else {
            MPI_Irecv(numbers, N, MPI_DOUBLE, rank - 1, 0, MPI_COMM_WORLD, &request);
#ifdef REPAIRED
            x = compute(x, 2 * UNIT);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
#else
            MPI_Wait(&request, MPI_STATUS_IGNORE); /* FAULT */
            x = compute(x, 2 * UNIT);
#endif
        }
        MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    end(sum + numbers[0]);
}
