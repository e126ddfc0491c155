/* Each thread first writes the data of the other one, so that they lie in the memory of the other's socket. Compiled with -fopenmp. */
#include "work.h"

enum { LINE = 8, LINES = 1 << 20 };

int main(int argc, char **argv) {
    start(&argc, &argv);
    double x = 0, sum = 0, *a = malloc(sizeof *a * LINE * LINES);
#ifdef REPAIRED
    long flip = 0;
#else
    long flip = LINE * LINES / 2;
#endif
#pragma omp parallel for schedule(static)
    for (long i = 0; i < (long)LINE * LINES; i++) a[i ^ flip] = i;
    MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int step = 0; step < STEPS / 10; step++) {
#pragma omp parallel for schedule(static) reduction(+ : x)
        for (long half = 0; half < 2; half++)
            for (unsigned i = 0, line = 0; i < LINES / 2; i++) {
                line = (line * 1664525 + 1013904223) % (LINES / 2);
                x += a[(half * (LINES / 2) + line) * LINE]; /* FAULT */
            }
        MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    end(sum);
}
