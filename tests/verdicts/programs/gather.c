/* All ranks send all of their data to the first one in each step, which needs the data once, at the end. */
#include "work.h"

enum { N = 50000 };

int main(int argc, char **argv) {
    start(&argc, &argv);
    double x = rank, sum = 0, *mine = calloc(N, sizeof *mine), *all = calloc((size_t)N * ranks, sizeof *all);
    for (int step = 0; step < STEPS; step++) {
        x = compute(x, UNIT);
        mine[step] = x;
#ifndef REPAIRED
        MPI_Gather(mine, N, MPI_DOUBLE, all, N, MPI_DOUBLE, 0, MPI_COMM_WORLD); /* FAULT */
#endif
        MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    MPI_Gather(mine, N, MPI_DOUBLE, all, N, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    end(sum + all[0]);
}
