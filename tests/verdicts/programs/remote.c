/* One thread writes all data first, so that they lie in the memory of its socket; threads of both sockets read them. Compiled with -fopenmp. */
#include "work.h"

enum { N = 12 << 20, LINE = 8 };

static double *data;

int main(int argc, char **argv) {
    start(&argc, &argv);
    double sum = 0, x = 0;
    data = malloc(N * sizeof *data);
#ifdef REPAIRED
#pragma omp parallel for schedule(static)
#endif
    for (long i = 0; i < N; i++) data[i] = i % 5;
    for (int step = 0; step < STEPS / 20; step++) {
#pragma omp parallel for schedule(static) reduction(+ : x)
        for (int part = 0; part < 2; part++) {
            long at = 0, half = N / LINE / 2;
            for (long i = 0; i < half; i++) {
                x += data[(part * half + at) * LINE]; /* FAULT */
                at = (at * 13 + 12345 + (long)data[(part * half + at) * LINE] / 8) % half;
            }
        }
        MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    end(sum);
}
