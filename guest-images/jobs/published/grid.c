/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A grid computation: Poisson's equation on a square, relaxed by Jacobi sweeps. Ranks form a two-dimensional Cartesian grid,
   start the exchange of their four borders without blocking (columns as a derived datatype), relax the inner points
   meanwhile, and the outer ones when the borders have come. Every fifth sweep the residual is reduced. */
#include "programs.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int edge, width, height, place[2], shape[2], rank, ranks, near[4];
static size_t line;
static double *now, *next, *source;
static MPI_Comm cartesian;
static MPI_Datatype column;

static double relax(int top, int bottom, int left, int right)
{
    double residual = 0;
    for (int i = top; i < bottom; i++) {
        const double *row = now + i * line, *f = source + i * line;
        double *to = next + i * line;
        for (int j = left; j < right; j++) {
            double value = 0.25 * (row[j - line] + row[j + line] + row[j - 1] + row[j + 1] + f[j]);
            double d = value - row[j];
            residual += d * d;
            to[j] = value;
        }
    }
    return residual;
}

static double sweep(void)
{
    MPI_Request requests[8];
    /* up, down, left, right: what comes, then what goes. */
    double *from[4] = {now + 1, now + (height + 1) * line + 1, now + line, now + line + width + 1};
    double *to[4] = {now + line + 1, now + height * line + 1, now + line + 1, now + line + width};
    for (int way = 0; way < 4; way++)
        MPI_Irecv(from[way], way < 2 ? width : 1, way < 2 ? MPI_DOUBLE : column, near[way], way ^ 1, cartesian,
                  &requests[way]);
    for (int way = 0; way < 4; way++)
        MPI_Isend(to[way], way < 2 ? width : 1, way < 2 ? MPI_DOUBLE : column, near[way], way, cartesian,
                  &requests[4 + way]);
    double residual = relax(2, height, 2, width);
    MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);
    residual += relax(1, 2, 1, width + 1);
    if (height > 1)
        residual += relax(height, height + 1, 1, width + 1);
    residual += relax(2, height, 1, 2);
    if (width > 1)
        residual += relax(2, height, width, width + 1);
    double *other = now;
    now = next;
    next = other;
    return residual;
}

static double total(double own)
{
    double all;
    MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, cartesian);
    return all;
}

void grid(int size, int sweeps)
{
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int input[2] = {size, sweeps}, around[2] = {0, 0};
    /* As programs do that read their input on one rank. */
    MPI_Bcast(input, 2, MPI_INT, 0, MPI_COMM_WORLD);
    edge = input[0];
    sweeps = input[1];
    shape[0] = shape[1] = 0;
    MPI_Dims_create(ranks, 2, shape);
    MPI_Cart_create(MPI_COMM_WORLD, 2, shape, around, 0, &cartesian);
    MPI_Cart_coords(cartesian, rank, 2, place);
    MPI_Cart_shift(cartesian, 0, 1, &near[0], &near[1]);
    MPI_Cart_shift(cartesian, 1, 1, &near[2], &near[3]);
    height = (int)((long)edge * (place[0] + 1) / shape[0]) - (int)((long)edge * place[0] / shape[0]);
    width = (int)((long)edge * (place[1] + 1) / shape[1]) - (int)((long)edge * place[1] / shape[1]);
    line = (size_t)width + 2;
    MPI_Type_vector(height, 1, (int)line, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);
    size_t cells = (height + 2) * line;
    now = calloc(cells, sizeof *now);
    next = calloc(cells, sizeof *next);
    source = calloc(cells, sizeof *source);
    if (!now || !next || !source)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (int i = 1; i <= height; i++)
        for (int j = 1; j <= width; j++)
            source[i * line + j] = 1.0 / ((double)edge * edge);

    MPI_Barrier(cartesian);
    double residual = total(sweep());
    one_is_late();
    MPI_Barrier(cartesian);
    double start = MPI_Wtime();
    for (int s = 1; s <= sweeps; s++) {
        residual = sweep();
        if (s % 5 == 0)
            residual = total(residual);
    }
    MPI_Barrier(cartesian);
    double seconds = MPI_Wtime() - start;

    double sum = 0, all;
    for (int i = 1; i <= height; i++)
        for (int j = 1; j <= width; j++)
            sum += now[i * line + j];
    MPI_Reduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("grid %d %d on %d: sum %.9e residual %.9e, %.9f s\n", edge, sweeps, ranks, all, residual, seconds);
    MPI_Type_free(&column);
    MPI_Comm_free(&cartesian);
    free(now);
    free(next);
    free(source);
}
