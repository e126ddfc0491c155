/* A loop whose iterations grow is shared between threads in two equal pieces. Compiled with -fopenmp. */
#include "work.h"

enum { N = 64 };

int main(int argc, char **argv) {
    start(&argc, &argv);
    double sum = 0, x = rank;
    for (int step = 0; step < STEPS / 2; step++) {
#ifdef REPAIRED
#pragma omp parallel for schedule(dynamic, 1) reduction(+ : x)
#else
#pragma omp parallel for schedule(static) reduction(+ : x) /* FAULT */
#endif
        for (int i = 0; i < N; i++) x += compute(i, i * (UNIT / N));
        MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    end(sum);
}
