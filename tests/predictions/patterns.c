/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Programs whose predicted times are compared with emulated ones (`scripts/bench predictions`). `patterns NAME` runs one of them, between its
 * second and its third MPI_Barrier:
 *
 *     gradients   conjugate gradients on a 2-D grid: borders beside computation, two sums
 *     wavefront   a wave of pieces from the first rank to the last
 *     server      a server that answers requests from any source; ranks have different work
 *     uneven      an all-to-all of blocks of 16 to 48 kB, between ranks of different work
 *     tree        a reduction by hand along a binomial tree, and a broadcast
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOUBLES = 4096 };

static int rank, ranks;
static double *work, *data;

/* Some nanoseconds a step. */
static void compute(long steps) {
    for (long i = 0; i < steps; i++)
        work[i % DOUBLES] = work[i % DOUBLES] * 0.999 + 1e-3;
}

static void gradients(void) {
    int dims[2] = {0, 0}, periods[2] = {0, 0}, next[4];
    MPI_Comm grid;
    MPI_Dims_create(ranks, 2, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid);
    MPI_Cart_shift(grid, 0, 1, &next[0], &next[1]);
    MPI_Cart_shift(grid, 1, 1, &next[2], &next[3]);
    for (int step = 0; step < 60; step++) {
        MPI_Request requests[8];
        double one = 1, sum;
        for (int i = 0; i < 4; i++)
            MPI_Irecv(data + i * DOUBLES, 1024 / dims[1], MPI_DOUBLE, next[i], 0, grid, &requests[i]);
        for (int i = 0; i < 4; i++)
            MPI_Isend(data + (4 + i) * DOUBLES, 1024 / dims[1], MPI_DOUBLE, next[i], 0, grid, &requests[4 + i]);
        compute(100000 / ranks);
        MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);
        compute(300000 / ranks);
        MPI_Allreduce(&one, &sum, 1, MPI_DOUBLE, MPI_SUM, grid);
        compute(100000 / ranks);
        MPI_Allreduce(&one, &sum, 1, MPI_DOUBLE, MPI_SUM, grid);
    }
}

static void wavefront(void) {
    for (int piece = 0; piece < 144; piece++) {
        if (rank > 0)
            MPI_Recv(data, 500, MPI_DOUBLE, rank - 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        compute(40000);
        if (rank < ranks - 1)
            MPI_Send(data, 500, MPI_DOUBLE, rank + 1, 1, MPI_COMM_WORLD);
    }
}

static void server(void) {
    enum { TASKS = 60 };
    if (rank == 0)
        for (int task = 0; task < TASKS * (ranks - 1); task++) {
            MPI_Status status;
            MPI_Recv(data, 1000, MPI_DOUBLE, MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &status);
            compute(3000);
            MPI_Send(data, 1000, MPI_DOUBLE, status.MPI_SOURCE, 0, MPI_COMM_WORLD);
        }
    else
        for (int task = 0; task < TASKS; task++) {
            compute(30000 + 7000 * rank);
            MPI_Send(data, 1000, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD);
            MPI_Recv(data, 1000, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
}

static void uneven(void) {
    int *counts = calloc(ranks, sizeof *counts), *starts = calloc(ranks, sizeof *starts), all = 0;
    for (int i = 0; i < ranks; i++) {
        counts[i] = 2000 + 1000 * ((rank + i) % 5);
        starts[i] = all;
        all += counts[i];
    }
    double *out = calloc(all, sizeof *out), *in = calloc(all, sizeof *in);
    for (int step = 0; step < 20; step++) {
        compute(60000 + 10000 * (rank % 3));
        MPI_Alltoallv(out, counts, starts, MPI_DOUBLE, in, counts, starts, MPI_DOUBLE, MPI_COMM_WORLD);
    }
}

static void tree(void) {
    for (int step = 0; step < 60; step++) {
        compute(50000);
        for (int bit = 1; bit < ranks; bit *= 2)
            if (rank & bit) {
                MPI_Send(data, 3000, MPI_DOUBLE, rank - bit, 2, MPI_COMM_WORLD);
                break;
            } else if (rank + bit < ranks) {
                MPI_Recv(data, 3000, MPI_DOUBLE, rank + bit, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                compute(6000);
            }
        MPI_Bcast(data, 3000, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } programs[] = {{"gradients", gradients}, {"wavefront", wavefront}, {"server", server}, {"uneven", uneven}, {"tree", tree}};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    work = calloc(DOUBLES, sizeof *work);
    data = calloc(8 * DOUBLES, sizeof *data);
    double *from = calloc(ranks, sizeof *from), *to = calloc(ranks, sizeof *to);
    /* Connections open at their first use. */
    for (int i = 0; i < 5; i++)
        MPI_Alltoall(from, 1, MPI_DOUBLE, to, 1, MPI_DOUBLE, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    for (unsigned i = 0; i < sizeof programs / sizeof *programs; i++)
        if (argc > 1 && !strcmp(argv[1], programs[i].name))
            programs[i].run();
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
