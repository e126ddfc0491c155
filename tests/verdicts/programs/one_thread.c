/* One thread computes what two could. Compiled with -fopenmp. */
#include "work.h"

enum { N = 64 };

int main(int argc, char **argv) {
    start(&argc, &argv);
    double sum = 0, x = rank;
    for (int step = 0; step < STEPS / 2; step++) {
#pragma omp parallel for schedule(static) reduction(+ : x)
        for (int i = 0; i < N; i++) x += compute(i, UNIT / N);
#ifdef REPAIRED
#pragma omp parallel for schedule(static) reduction(+ : x)
#endif
        for (int i = 0; i < N; i++) x += compute(i, UNIT / N); /* FAULT */
        MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    end(sum);
}
