/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Jacobi's method for a dense, diagonally dominant system. Ranks own blocks of rows; every iteration they gather the whole
   vector by MPI_Allgatherv and reduce the squared residual. */
#include "programs.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int unknowns, first, rows, rank, ranks, *counts, *starts;
static double *matrix, *right, *x, *own;

/* One iteration; the squared change of all ranks. */
static double iterate(void)
{
    double changed = 0, all;
    for (int i = 0; i < rows; i++) {
        const double *row = matrix + (size_t)i * unknowns;
        double sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
        int j = 0;
        for (; j + 3 < unknowns; j += 4) {
            sum0 += row[j] * x[j];
            sum1 += row[j + 1] * x[j + 1];
            sum2 += row[j + 2] * x[j + 2];
            sum3 += row[j + 3] * x[j + 3];
        }
        for (; j < unknowns; j++)
            sum0 += row[j] * x[j];
        int me = first + i;
        double d = (right[i] - (sum0 + sum1 + sum2 + sum3)) / row[me];
        own[i] = x[me] + d;
        changed += d * d;
    }
    MPI_Allgatherv(own, rows, MPI_DOUBLE, x, counts, starts, MPI_DOUBLE, MPI_COMM_WORLD);
    MPI_Allreduce(&changed, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

void jacobi(int size, int iterations)
{
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    unknowns = size;
    counts = calloc(ranks, sizeof *counts);
    starts = calloc(ranks, sizeof *starts);
    if (!counts || !starts)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int r = 0; r < ranks; r++) {
        starts[r] = (int)((long)unknowns * r / ranks);
        counts[r] = (int)((long)unknowns * (r + 1) / ranks) - starts[r];
    }
    first = starts[rank];
    rows = counts[rank];
    matrix = calloc((size_t)rows * unknowns, sizeof *matrix);
    right = calloc(rows, sizeof *right);
    own = calloc(rows, sizeof *own);
    x = calloc(unknowns, sizeof *x);
    if (!matrix || !right || !own || !x)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 0; i < rows; i++) {
        int me = first + i;
        for (int j = 0; j < unknowns; j++)
            matrix[(size_t)i * unknowns + j] = j == me ? 2.0 * unknowns : 1.0 / (1 + (me + 3 * j) % 7);
        right[i] = me % 11;
    }

    MPI_Barrier(MPI_COMM_WORLD);
    double change = iterate();
    one_is_late();
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int s = 0; s < iterations; s++)
        change = iterate();
    MPI_Barrier(MPI_COMM_WORLD);
    double seconds = MPI_Wtime() - start;

    if (rank == 0) {
        double sum = 0;
        for (int j = 0; j < unknowns; j++)
            sum += x[j];
        printf("jacobi %d %d on %d: sum %.9e change %.9e, %.9f s\n", unknowns, iterations, ranks, sum, change, seconds);
    }
    free(counts);
    free(starts);
    free(matrix);
    free(right);
    free(own);
    free(x);
}
