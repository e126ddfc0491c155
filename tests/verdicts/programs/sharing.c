/* Threads count in numbers that lie in one line of memory. Compiled with -fopenmp. */
#include "work.h"

#ifdef REPAIRED
enum { APART = 16 };
#else
enum { APART = 1 };
#endif

static volatile long counts[64 * 16] __attribute__((aligned(4096)));

int main(int argc, char **argv) {
    start(&argc, &argv);
    double sum = 0, x = 0;
    for (int step = 0; step < STEPS / 10; step++) {
#pragma omp parallel for schedule(static, 1)
        for (int t = 0; t < 2; t++)
            for (int i = 0; i < UNIT / 8; i++) counts[t * APART]++; /* FAULT */
        x = counts[0];
        MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    end(sum);
}
