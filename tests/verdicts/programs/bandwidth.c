/* All ranks exchange all of their data in double precision with all others; a tenth would do. */
#include "work.h"

enum { N = 20000 };

int main(int argc, char **argv) {
    start(&argc, &argv);
    double x = rank, *out = calloc((size_t)N * ranks, sizeof *out), *in = calloc((size_t)N * ranks, sizeof *in);
#ifdef REPAIRED
    int n = N / 10;
#else
    int n = N;
#endif
    for (int step = 0; step < STEPS; step++) {
        x = compute(x, UNIT);
        out[step] = x;
        MPI_Alltoall(out, n, MPI_DOUBLE, in, n, MPI_DOUBLE, MPI_COMM_WORLD); /* FAULT */
    }
    end(x + in[0]);
}
