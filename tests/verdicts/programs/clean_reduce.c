/* Without a fault: iterations with a few reductions, as of a solver whose vectors fit into the caches. */
#include "work.h"

enum { N = 1000 };

int main(int argc, char **argv) {
    start(&argc, &argv);
    double a[N], b[N], dot, all = 0;
    for (int i = 0; i < N; i++) a[i] = b[i] = 1.0 / (i + 1 + rank);
    for (int step = 0; step < STEPS / 2; step++) {
        for (int repeat = 0; repeat < 20000; repeat++) {
            dot = 0;
            for (int i = 0; i < N; i++) dot += a[i] * b[i];
            a[repeat % N] += 1e-9 * dot;
        }
        MPI_Allreduce(&dot, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    end(all);
}
