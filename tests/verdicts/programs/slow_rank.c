/* The third rank takes 1.3 times as long as the others in each of ten computations, none of which is long. */
#include "work.h"

#ifdef REPAIRED
#define WORK (UNIT * (ranks + 0.3) / ranks)
#else
#define WORK (rank == 2 ? 1.3 * UNIT : 1.0 * UNIT)
#endif
#define PHASE                                  \
    x = compute(x, (long)WORK); /* FAULT */    \
    MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD)

int main(int argc, char **argv) {
    start(&argc, &argv);
    double x = rank, sum = 0;
    for (int step = 0; step < STEPS / 10; step++) {
        PHASE;
        PHASE;
        PHASE;
        PHASE;
        PHASE;
        PHASE;
        PHASE;
        PHASE;
        PHASE;
        PHASE;
    }
    end(sum);
}
