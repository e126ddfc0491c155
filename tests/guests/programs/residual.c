/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Solves a dense system by LU with partial pivoting, columns dealt out to ranks in turn, and checks the solution as HPL does:
   ||Ax-b|| / (eps * (||A|| * ||x|| + ||b||) * n) below 16, in norms of the largest value. */
#include <float.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static double entry(int row, int column) {
    unsigned long long z = (unsigned long long)row * 7919 + column + 1;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return (double)(z >> 11) / 9007199254740992.0 - 0.5;
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int n = argc > 1 ? atoi(argv[1]) : 64;
    /* Column j is on rank j % ranks; column n is the right-hand side, of which every rank has a copy. */
    double *a = malloc(sizeof *a * n * n), *b = malloc(sizeof *b * n);
    double *factors = malloc(sizeof *factors * (n + 1)), *x = calloc(n, sizeof *x);
    for (int i = 0; i < n; i++) {
        b[i] = entry(i, n);
        for (int j = 0; j < n; j++)
            a[j * n + i] = entry(i, j);
    }
    for (int k = 0; k < n; k++) {
        double *column = a + k * n;
        if (k % ranks == rank) {
            int pivot = k;
            for (int i = k + 1; i < n; i++)
                if (fabs(column[i]) > fabs(column[pivot]))
                    pivot = i;
            double swapped = column[k];
            column[k] = column[pivot];
            column[pivot] = swapped;
            for (int i = k + 1; i < n; i++)
                factors[i] = column[i] / column[k];
            factors[n] = pivot;
        }
        MPI_Bcast(factors, n + 1, MPI_DOUBLE, k % ranks, MPI_COMM_WORLD);
        int pivot = (int)factors[n];
        for (int j = k + 1; j <= n; j++) {
            double *other = j < n ? a + j * n : b;
            if (j < n && j % ranks != rank)
                continue;
            double swapped = other[k];
            other[k] = other[pivot];
            other[pivot] = swapped;
            for (int i = k + 1; i < n; i++)
                other[i] -= factors[i] * other[k];
        }
    }
    /* Back substitution, a column at a time. */
    for (int k = n - 1; k >= 0; k--) {
        double *column = a + k * n;
        if (k % ranks == rank) {
            x[k] = b[k] / column[k];
            for (int i = 0; i < k; i++)
                factors[i] = column[i] * x[k];
            factors[n] = x[k];
        }
        MPI_Bcast(factors, n + 1, MPI_DOUBLE, k % ranks, MPI_COMM_WORLD);
        x[k] = factors[n];
        for (int i = 0; i < k; i++)
            b[i] -= factors[i];
    }
    if (rank == 0) {
        double most = 0, largest_a = 0, largest_x = 0, largest_b = 0;
        for (int i = 0; i < n; i++) {
            double sum = -entry(i, n), row = 0;
            for (int j = 0; j < n; j++) {
                sum += entry(i, j) * x[j];
                row += fabs(entry(i, j));
            }
            most = fmax(most, fabs(sum));
            largest_a = fmax(largest_a, row);
            largest_x = fmax(largest_x, fabs(x[i]));
            largest_b = fmax(largest_b, fabs(entry(i, n)));
        }
        double residual = most / (DBL_EPSILON * (largest_a * largest_x + largest_b) * n);
        printf("residual of %d ranks: %.6e %s\n", ranks, residual, residual < 16 ? "PASSED" : "FAILED");
    }
    MPI_Finalize();
    return 0;
}
