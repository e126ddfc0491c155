/* Ranks take turns in computing more, and wait for each other after each step although nothing depends on it. */
#include "work.h"

int main(int argc, char **argv) {
    start(&argc, &argv);
    double x = rank, sum = 0;
    for (int step = 0; step < STEPS; step++) {
        x = compute(x, step % ranks == rank ? 2 * UNIT : UNIT);
#ifndef REPAIRED
        MPI_Barrier(MPI_COMM_WORLD); /* FAULT */
#endif
    }
    MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    end(sum);
}
