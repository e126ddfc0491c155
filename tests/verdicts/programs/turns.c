/* In each step another rank computes three times as long as the others. */
#include "work.h"

int main(int argc, char **argv) {
    start(&argc, &argv);
    double x = rank, sum = 0;
    for (int step = 0; step < STEPS; step++) {
#ifdef REPAIRED
        long n = UNIT * (ranks + 2L) / ranks;
#else
        long n = rank == step % ranks ? 3 * UNIT : UNIT;
#endif
        x = compute(x, n); /* FAULT */
        MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    end(sum);
}
