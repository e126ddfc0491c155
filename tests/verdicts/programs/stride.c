/* Each rank sums its matrix by columns, so that each access goes to another line of memory. */
#include "work.h"

enum { N = 2500 };

int main(int argc, char **argv) {
    start(&argc, &argv);
    double x = 0, sum = 0, *a = calloc((size_t)N * N, sizeof *a);
    for (long i = 0; i < (long)N * N; i++) a[i] = i;
    for (int step = 0; step < STEPS / 10; step++) {
        for (long i = 0; i < N; i++)
            for (long j = 0; j < N; j++)
#ifdef REPAIRED
                x += a[i * N + j];
#else
                x += a[j * N + i]; /* FAULT */
#endif
        MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    end(sum);
}
