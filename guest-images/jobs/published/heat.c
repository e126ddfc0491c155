/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Two-dimensional heat equation on a square, explicit in time. Ranks own blocks of rows and exchange their border rows by
   MPI_Sendrecv; every tenth step the largest change is reduced. */
#include "programs.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int edge, rows, rank, ranks, above, below;
static double *now, *next;

/* Borders, then a step of all own rows; the largest change. */
static double step(void)
{
    size_t width = (size_t)edge + 2;
    MPI_Sendrecv(now + width, edge + 2, MPI_DOUBLE, above, 1, now + (rows + 1) * width, edge + 2, MPI_DOUBLE, below, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(now + rows * width, edge + 2, MPI_DOUBLE, below, 2, now, edge + 2, MPI_DOUBLE, above, 2, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    double most = 0;
    for (int i = 1; i <= rows; i++) {
        const double *up = now + (i - 1) * width, *row = now + i * width, *down = now + (i + 1) * width;
        double *to = next + i * width;
        for (int j = 1; j <= edge; j++) {
            double change = 0.2 * (up[j] + down[j] + row[j - 1] + row[j + 1] - 4 * row[j]);
            to[j] = row[j] + change;
            change = change < 0 ? -change : change;
            most = change > most ? change : most;
        }
    }
    double *other = now;
    now = next;
    next = other;
    return most;
}

static double largest(double own)
{
    double all;
    MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

void heat(int size, int steps)
{
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    edge = size;
    rows = (int)((long)edge * (rank + 1) / ranks) - (int)((long)edge * rank / ranks);
    above = rank > 0 ? rank - 1 : MPI_PROC_NULL;
    below = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
    size_t cells = (size_t)(rows + 2) * (edge + 2);
    now = calloc(cells, sizeof *now);
    next = calloc(cells, sizeof *next);
    if (!now || !next)
        MPI_Abort(MPI_COMM_WORLD, 1);
    /* The upper edge of the square is hot. */
    if (rank == 0)
        for (int j = 0; j < edge + 2; j++)
            now[j] = next[j] = 100;

    MPI_Barrier(MPI_COMM_WORLD);
    double change = largest(step());
    one_is_late();
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int s = 1; s <= steps; s++) {
        change = step();
        if (s % 10 == 0)
            change = largest(change);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double seconds = MPI_Wtime() - start;

    double own = 0, all;
    for (int i = 1; i <= rows; i++)
        for (int j = 1; j <= edge; j++)
            own += now[i * ((size_t)edge + 2) + j];
    MPI_Reduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("heat %d %d on %d: sum %.9e change %.9e, %.9f s\n", edge, steps, ranks, all, change, seconds);
    free(now);
    free(next);
}
