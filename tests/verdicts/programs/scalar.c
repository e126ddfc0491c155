/* A loop over arrays in the first-level cache has no vector instructions, because it is compiled with -O2. */
#include "work.h"

enum { N = 1024, REPEATS = 1000 };

#ifdef REPAIRED
#define VECTORS _Pragma("omp simd")
#else
#define VECTORS
#endif

__attribute__((noipa)) static void relax(double *restrict a, const double *restrict b, double s, long n) {
    VECTORS
    for (long i = 0; i < n; i++) a[i] = a[i] * s + b[i] * b[i]; /* FAULT */
}

int main(int argc, char **argv) {
    start(&argc, &argv);
    static double a[N], b[N];
    double sum = 0;
    for (int i = 0; i < N; i++) b[i] = 1e-3 * (i + rank);
    for (int step = 0; step < STEPS / 2; step++) {
        for (int repeat = 0; repeat < REPEATS; repeat++) relax(a, b, 0.5, N);
        MPI_Allreduce(&a[step], &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    end(sum);
}
