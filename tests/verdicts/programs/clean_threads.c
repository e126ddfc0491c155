/* Without a fault: threads share equal work. Compiled with -fopenmp. */
#include "work.h"

enum { N = 64 };

int main(int argc, char **argv) {
    start(&argc, &argv);
    double sum = 0, x = rank;
    for (int step = 0; step < STEPS / 6; step++) {
#pragma omp parallel for schedule(static) reduction(+ : x)
        for (int i = 0; i < N; i++) x += compute(i, 40L * UNIT / N);
        MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    end(sum);
}
