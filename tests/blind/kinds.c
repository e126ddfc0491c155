/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Programs of the blind comparison of predicted with emulated times (`tests/blind/run`). `kinds NAME` runs one of them, between its second and
 * its third MPI_Barrier:
 *
 *     stencil3d   3-D heat equation: faces as subarray datatypes, persistent requests beside computation, a norm every fifth step
 *     transpose   3-D Fourier transforms: all-to-all of even blocks in the rows and columns of a process grid
 *     samplesort  sorts pseudo-random keys: gather of samples, broadcast of splitters, all-to-all of counts and of keys
 *     nbody       gravity of all pairs: blocks of particles go round a ring
 *     taskfarm    a master and workers; tasks and results of many sizes, received after MPI_Probe
 *     blocklu     LU factors of a matrix in blocks: broadcasts of shrinking panels in the rows and columns of a process grid
 *     multigrid   V-cycles of a 2-D Poisson equation: borders of halving length, the coarsest level gathered on one rank
 *     graph       breadth-first searches: messages to few ranks that do not know their senders, ended by MPI_Ibarrier
 *
 * A step of the program runs before the first barrier and opens connections. The variable START (0 to 4) chooses the rank that comes last to the
 * second barrier, and how late.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

/* Allocates zeros. */
static void *zeros(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        MPI_Abort(MPI_COMM_WORLD, 1);
    return memory;
}

/* A pseudo-random number that depends on its argument alone (splitmix64). */
static unsigned long mix(unsigned long value) {
    value += 0x9e3779b97f4a7c15;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
    value = (value ^ value >> 27) * 0x94d049bb133111eb;
    return value ^ value >> 31;
}

/* A process grid, and the communicators of this rank's row and column. */
static int grid_size[2], grid_place[2];
static MPI_Comm row, column;

static void make_grid(void) {
    grid_size[0] = grid_size[1] = 0;
    MPI_Dims_create(ranks, 2, grid_size);
    grid_place[0] = rank / grid_size[1];
    grid_place[1] = rank % grid_size[1];
    MPI_Comm_split(MPI_COMM_WORLD, grid_place[0], grid_place[1], &row);
    MPI_Comm_split(MPI_COMM_WORLD, grid_place[1], grid_place[0], &column);
}

/* stencil3d: 40 cells a side on each rank, and a layer of neighbours' cells around them. */
enum { SIDE = 40, FULL = SIDE + 2 };
static double (*cells[2])[FULL][FULL];
static MPI_Request faces[2][12];
static MPI_Comm space;

static void stencil3d_prepare(void) {
    int size[3] = {0, 0, 0}, periods[3] = {1, 0, 0}, full[3] = {FULL, FULL, FULL};
    MPI_Dims_create(ranks, 3, size);
    MPI_Cart_create(MPI_COMM_WORLD, 3, size, periods, 0, &space);
    for (int array = 0; array < 2; array++) {
        cells[array] = zeros(FULL, sizeof *cells[array]);
        for (int axis = 0, n = 0; axis < 3; axis++)
            for (int side = 0; side < 2; side++) {
                int part[3] = {SIDE, SIDE, SIDE}, inner[3] = {1, 1, 1}, outer[3] = {1, 1, 1}, low, high;
                MPI_Datatype mine, theirs;
                part[axis] = 1;
                inner[axis] = side ? SIDE : 1;
                outer[axis] = side ? SIDE + 1 : 0;
                MPI_Type_create_subarray(3, full, part, inner, MPI_ORDER_C, MPI_DOUBLE, &mine);
                MPI_Type_create_subarray(3, full, part, outer, MPI_ORDER_C, MPI_DOUBLE, &theirs);
                MPI_Type_commit(&mine);
                MPI_Type_commit(&theirs);
                MPI_Cart_shift(space, axis, 1, &low, &high);
                MPI_Recv_init(cells[array], 1, theirs, side ? high : low, 2 * axis + 1 - side, space, &faces[array][n++]);
                MPI_Send_init(cells[array], 1, mine, side ? high : low, 2 * axis + side, space, &faces[array][n++]);
                MPI_Type_free(&mine);
                MPI_Type_free(&theirs);
            }
    }
    for (int i = 1; i <= SIDE; i++)
        for (int j = 1; j <= SIDE; j++)
            for (int k = 1; k <= SIDE; k++)
                cells[0][i][j][k] = (double)(mix(((rank * SIDE + i) * SIDE + j) * SIDE + k) % 1000) / 1000;
}

/* New values of the planes from `first` to `last`; rows and columns from `low` to `high`. */
static double relax(double (*from)[FULL][FULL], double (*to)[FULL][FULL], int first, int last, int low, int high) {
    double change = 0;
    for (int i = first; i <= last; i++)
        for (int j = low; j <= high; j++)
            for (int k = low; k <= high; k++) {
                double sum = from[i - 1][j][k] + from[i + 1][j][k] + from[i][j - 1][k] + from[i][j + 1][k] + from[i][j][k - 1] + from[i][j][k + 1];
                double difference = sum / 6 - from[i][j][k];
                to[i][j][k] = from[i][j][k] + 0.8 * difference;
                change += difference * difference;
            }
    return change;
}

static void stencil3d(int steps) {
    for (int step = 0; step < steps; step++) {
        double(*from)[FULL][FULL] = cells[step % 2], (*to)[FULL][FULL] = cells[1 - step % 2];
        MPI_Startall(12, faces[step % 2]);
        double change = relax(from, to, 2, SIDE - 1, 2, SIDE - 1), all;
        MPI_Waitall(12, faces[step % 2], MPI_STATUSES_IGNORE);
        change += relax(from, to, 1, 1, 1, SIDE) + relax(from, to, SIDE, SIDE, 1, SIDE);
        for (int i = 2; i < SIDE; i++)
            for (int j = 1; j <= SIDE; j++)
                for (int k = 1; k <= SIDE; k += j == 1 || j == SIDE ? 1 : SIDE - 1) {
                    double sum = from[i - 1][j][k] + from[i + 1][j][k] + from[i][j - 1][k] + from[i][j + 1][k] + from[i][j][k - 1] + from[i][j][k + 1];
                    to[i][j][k] = from[i][j][k] + 0.8 * (sum / 6 - from[i][j][k]);
                }
        if (step % 5 == 4)
            MPI_Allreduce(&change, &all, 1, MPI_DOUBLE, MPI_SUM, space);
    }
}

/* transpose: lines of 64 complex numbers; each rank has 256 of them. */
enum { LINE = 64, LINES = 256 };
static double (*wave)[2], (*other)[2], turn[LINE][2];

static void transpose_prepare(void) {
    make_grid();
    wave = zeros(LINES * LINE, sizeof *wave);
    other = zeros(LINES * LINE, sizeof *other);
    for (int i = 0; i < LINE; i++) {
        turn[i][0] = cos(2 * M_PI * i / LINE);
        turn[i][1] = -sin(2 * M_PI * i / LINE);
    }
    for (int i = 0; i < LINES * LINE; i++)
        wave[i][0] = (double)(mix(rank * LINES * LINE + i) % 1000) / 1000;
}

/* Transforms each line (Stockham, without the order of the bits) and halves its norm, so that numbers stay small. */
static void transform(void) {
    for (int line = 0; line < LINES; line++) {
        double(*x)[2] = wave + line * LINE;
        for (int half = LINE / 2; half > 0; half /= 2)
            for (int start = 0; start < LINE; start += 2 * half)
                for (int i = start; i < start + half; i++) {
                    double *w = turn[(i - start) * (LINE / 2 / half)], *a = x[i], *b = x[i + half];
                    double re = a[0] - b[0], im = a[1] - b[1];
                    a[0] = 0.7 * (a[0] + b[0]);
                    a[1] = 0.7 * (a[1] + b[1]);
                    b[0] = 0.7 * (re * w[0] - im * w[1]);
                    b[1] = 0.7 * (re * w[1] + im * w[0]);
                }
    }
}

/* Each rank of a communicator gets a part of each line. */
static void turn_over(MPI_Comm comm) {
    int parts, part;
    MPI_Comm_size(comm, &parts);
    part = LINE / parts;
    for (int line = 0; line < LINES; line++)
        for (int to = 0; to < parts; to++)
            memcpy(other + (to * LINES + line) * part, wave + line * LINE + to * part, part * sizeof *wave);
    MPI_Alltoall(other, 2 * LINES * part, MPI_DOUBLE, wave, 2 * LINES * part, MPI_DOUBLE, comm);
}

static void transpose(int steps) {
    for (int step = 0; step < steps; step++) {
        transform();
        turn_over(row);
        transform();
        turn_over(column);
        transform();
    }
}

/* samplesort: 16,000 keys a rank, most of them small. */
enum { KEYS = 16000, SAMPLES = 32 };
static unsigned *keys, *sorted;
static size_t room;

static void samplesort_prepare(void) {
    keys = zeros(KEYS, sizeof *keys);
    room = 4 * KEYS;
    sorted = zeros(room, sizeof *sorted);
}

static int ascending(const void *left, const void *right) {
    unsigned a = *(const unsigned *)left, b = *(const unsigned *)right;
    return (a > b) - (a < b);
}

static void samplesort(int steps) {
    unsigned samples[SAMPLES], *all = zeros(ranks * SAMPLES, sizeof *all), *splitters = zeros(ranks, sizeof *splitters);
    int *counts = zeros(4 * ranks, sizeof *counts), *starts = counts + ranks, *in = counts + 2 * ranks, *places = counts + 3 * ranks;
    for (int step = 0; step < steps; step++) {
        for (int i = 0; i < KEYS; i++) {
            unsigned long number = mix(((long)step * ranks + rank) * KEYS + i);
            keys[i] = (unsigned)((number >> 32) * (number & 0xffffffff) >> 32);
        }
        qsort(keys, KEYS, sizeof *keys, ascending);
        for (int i = 0; i < SAMPLES; i++)
            samples[i] = keys[(2 * i + 1) * KEYS / (2 * SAMPLES)];
        MPI_Gather(samples, SAMPLES, MPI_UNSIGNED, all, SAMPLES, MPI_UNSIGNED, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            qsort(all, ranks * SAMPLES, sizeof *all, ascending);
            for (int i = 0; i + 1 < ranks; i++)
                splitters[i] = all[(i + 1) * SAMPLES];
        }
        MPI_Bcast(splitters, ranks - 1, MPI_UNSIGNED, 0, MPI_COMM_WORLD);
        memset(counts, 0, ranks * sizeof *counts);
        for (int i = 0, to = 0; i < KEYS; i++) {
            while (to + 1 < ranks && keys[i] >= splitters[to])
                to++;
            counts[to]++;
        }
        MPI_Alltoall(counts, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD);
        int total = 0;
        for (int i = 0; i < ranks; i++) {
            starts[i] = i ? starts[i - 1] + counts[i - 1] : 0;
            places[i] = total;
            total += in[i];
        }
        if ((size_t)total > room)
            MPI_Abort(MPI_COMM_WORLD, 1);
        MPI_Alltoallv(keys, counts, starts, MPI_UNSIGNED, sorted, in, places, MPI_UNSIGNED, MPI_COMM_WORLD);
        qsort(sorted, total, sizeof *sorted, ascending);
        unsigned last = total ? sorted[total - 1] : 0, before = 0, wrong, any;
        MPI_Sendrecv(&last, 1, MPI_UNSIGNED, (rank + 1) % ranks, 0, &before, 1, MPI_UNSIGNED, (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        wrong = rank > 0 && total && before > sorted[0];
        MPI_Allreduce(&wrong, &any, 1, MPI_UNSIGNED, MPI_MAX, MPI_COMM_WORLD);
        if (any)
            MPI_Abort(MPI_COMM_WORLD, 1);
    }
    free(all);
    free(splitters);
    free(counts);
}

/* nbody: 2048 particles on all ranks together, each with a place and a mass. */
enum { PARTICLES = 2048 };
static double (*bodies)[4], (*guests)[4], (*pulls)[3];
static int share;

static void nbody_prepare(void) {
    share = (PARTICLES + ranks - 1) / ranks;
    bodies = zeros(share, sizeof *bodies);
    guests = zeros(share, sizeof *guests);
    pulls = zeros(share, sizeof *pulls);
    for (int i = 0; i < share; i++)
        for (int axis = 0; axis < 4; axis++)
            bodies[i][axis] = (double)(mix((rank * share + i) * 4 + axis) % 1000) / 1000;
}

static void nbody(int steps) {
    for (int step = 0; step < steps; step++) {
        memcpy(guests, bodies, share * sizeof *bodies);
        memset(pulls, 0, share * sizeof *pulls);
        for (int round = 0; round < ranks; round++) {
            for (int i = 0; i < share; i++)
                for (int j = 0; j < share; j++) {
                    double x = guests[j][0] - bodies[i][0], y = guests[j][1] - bodies[i][1], z = guests[j][2] - bodies[i][2];
                    double square = x * x + y * y + z * z + 1e-3, pull = guests[j][3] / (square * sqrt(square));
                    pulls[i][0] += pull * x;
                    pulls[i][1] += pull * y;
                    pulls[i][2] += pull * z;
                }
            if (round + 1 < ranks)
                MPI_Sendrecv_replace(guests, 4 * share, MPI_DOUBLE, (rank + 1) % ranks, 0, (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD,
                                     MPI_STATUS_IGNORE);
        }
        for (int i = 0; i < share; i++)
            for (int axis = 0; axis < 3; axis++)
                bodies[i][axis] += 1e-9 * pulls[i][axis];
    }
}

/* taskfarm: messages of up to 6000 numbers; a step is a task for each worker. */
enum { MOST = 6000, RESULT = 1, TASK = 2, STOP = 9 };
static double *message;

static void taskfarm_prepare(void) {
    message = zeros(MOST, sizeof *message);
}

/* Half of the messages have some numbers, others up to MOST. */
static int length(unsigned long number) {
    return number % 2 ? 1 + number / 2 % 64 : 64 + number / 2 % (MOST - 64);
}

static void taskfarm(int steps) {
    MPI_Status status;
    int count;
    if (rank > 0) {
        for (;;) {
            MPI_Probe(0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_DOUBLE, &count);
            MPI_Recv(message, count, MPI_DOUBLE, 0, status.MPI_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (status.MPI_TAG == STOP)
                return;
            /* The first number is the number of the task. */
            unsigned long task = (unsigned long)message[0], work = 20 + mix(task) % 380;
            for (unsigned long pass = 0; pass < work; pass++)
                for (int i = 1; i < 500; i++)
                    message[i] = message[i] * 0.999 + message[i - 1] * 1e-6;
            MPI_Send(message, length(mix(task + 1000000)), MPI_DOUBLE, 0, RESULT + task % 3, MPI_COMM_WORLD);
        }
    }
    int tasks = steps * (ranks - 1), given = 0, active = 0;
    double sum = 0;
    for (int worker = 1; worker < ranks; worker++, given++, active++) {
        message[0] = given;
        MPI_Send(message, length(mix(given)), MPI_DOUBLE, worker, TASK + given % 2, MPI_COMM_WORLD);
    }
    while (active > 0) {
        MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_DOUBLE, &count);
        MPI_Recv(message, count, MPI_DOUBLE, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < count; i++)
            sum += message[i];
        if (given < tasks) {
            message[0] = given;
            MPI_Send(message, length(mix(given)), MPI_DOUBLE, status.MPI_SOURCE, TASK + given % 2, MPI_COMM_WORLD);
            given++;
        } else {
            MPI_Send(&sum, 1, MPI_DOUBLE, status.MPI_SOURCE, STOP, MPI_COMM_WORLD);
            active--;
        }
    }
}

/* blocklu: blocks of 32 by 32 numbers, dealt out to the process grid in turns. A step is a block of the diagonal. */
enum { BLOCK = 32, AREA = BLOCK * BLOCK };
static int blocks, local_rows, local_columns;
static double *matrix, *left, *upper, *corner;

static double *block_at(int i, int j) {
    return matrix + ((size_t)(i / grid_size[0]) * local_columns + j / grid_size[1]) * AREA;
}

static void blocklu_prepare(void) {
    make_grid();
    blocks = 16 + ranks / 2;
    local_rows = blocks / grid_size[0] + 1;
    local_columns = blocks / grid_size[1] + 1;
    matrix = zeros((size_t)local_rows * local_columns * AREA, sizeof *matrix);
    left = zeros((size_t)local_rows * AREA, sizeof *left);
    upper = zeros((size_t)local_columns * AREA, sizeof *upper);
    corner = zeros(AREA, sizeof *corner);
}

static void fill_matrix(void) {
    for (int i = grid_place[0]; i < blocks; i += grid_size[0])
        for (int j = grid_place[1]; j < blocks; j += grid_size[1])
            for (int k = 0; k < AREA; k++)
                block_at(i, j)[k] = (double)(mix(((long)i * blocks + j) * AREA + k) % 100) / 100 + (i == j && k % (BLOCK + 1) == 0 ? blocks * BLOCK : 0);
}

/* The diagonal block becomes its own factors. */
static void factor(double *a) {
    for (int k = 0; k < BLOCK; k++)
        for (int i = k + 1; i < BLOCK; i++) {
            double ratio = a[i * BLOCK + k] /= a[k * BLOCK + k];
            for (int j = k + 1; j < BLOCK; j++)
                a[i * BLOCK + j] -= ratio * a[k * BLOCK + j];
        }
}

/* A block below the diagonal becomes one of the left factor. */
static void solve_left(double *a, const double *diagonal) {
    for (int i = 0; i < BLOCK; i++)
        for (int k = 0; k < BLOCK; k++) {
            double ratio = a[i * BLOCK + k] /= diagonal[k * BLOCK + k];
            for (int j = k + 1; j < BLOCK; j++)
                a[i * BLOCK + j] -= ratio * diagonal[k * BLOCK + j];
        }
}

/* A block right of the diagonal becomes one of the upper factor. */
static void solve_upper(double *a, const double *diagonal) {
    for (int k = 0; k < BLOCK; k++)
        for (int i = k + 1; i < BLOCK; i++)
            for (int j = 0; j < BLOCK; j++)
                a[i * BLOCK + j] -= diagonal[i * BLOCK + k] * a[k * BLOCK + j];
}

static void blocklu(int steps) {
    if (steps > 1)
        steps = blocks;
    fill_matrix();
    for (int k = 0; k < steps; k++) {
        int owner_row = k % grid_size[0], owner_column = k % grid_size[1], below = 0, right = 0;
        if (grid_place[0] == owner_row && grid_place[1] == owner_column) {
            factor(block_at(k, k));
            memcpy(corner, block_at(k, k), AREA * sizeof *corner);
        }
        if (grid_place[1] == owner_column)
            MPI_Bcast(corner, AREA, MPI_DOUBLE, owner_row, column);
        if (grid_place[0] == owner_row)
            MPI_Bcast(corner, AREA, MPI_DOUBLE, owner_column, row);
        for (int i = k + 1; i < blocks; i++)
            if (i % grid_size[0] == grid_place[0]) {
                if (grid_place[1] == owner_column) {
                    solve_left(block_at(i, k), corner);
                    memcpy(left + below * AREA, block_at(i, k), AREA * sizeof *left);
                }
                below++;
            }
        for (int j = k + 1; j < blocks; j++)
            if (j % grid_size[1] == grid_place[1]) {
                if (grid_place[0] == owner_row) {
                    solve_upper(block_at(k, j), corner);
                    memcpy(upper + right * AREA, block_at(k, j), AREA * sizeof *upper);
                }
                right++;
            }
        MPI_Bcast(left, below * AREA, MPI_DOUBLE, owner_column, row);
        MPI_Bcast(upper, right * AREA, MPI_DOUBLE, owner_row, column);
        double *a = left;
        for (int i = k + 1; i < blocks; i++) {
            if (i % grid_size[0] != grid_place[0])
                continue;
            double *b = upper;
            for (int j = k + 1; j < blocks; j++) {
                if (j % grid_size[1] != grid_place[1])
                    continue;
                double *c = block_at(i, j);
                for (int x = 0; x < BLOCK; x++)
                    for (int y = 0; y < BLOCK; y++)
                        for (int z = 0; z < BLOCK; z++)
                            c[x * BLOCK + z] -= a[x * BLOCK + y] * b[y * BLOCK + z];
                b += AREA;
            }
            a += AREA;
        }
    }
}

/* multigrid: levels of 128, 64, 32, 16 and 8 points a side on each rank; the last is solved on rank 0. */
enum { FINEST = 128, COARSEST = 8, LEVELS = 5 };
static double *guess[LEVELS], *right_side[LEVELS], *whole, *pieces, *strip;
static int neighbours[4];
static MPI_Comm plane;
static MPI_Datatype columns_of[LEVELS];

/* Points a side of a level. Its arrays also have a border of neighbours' points. */
static int side_of(int level) {
    return FINEST >> level;
}

#define AT(array, n, i, j) (array)[(i) * ((n) + 2) + (j)]

static void multigrid_prepare(void) {
    int periods[2] = {0, 0};
    grid_size[0] = grid_size[1] = 0;
    MPI_Dims_create(ranks, 2, grid_size);
    MPI_Cart_create(MPI_COMM_WORLD, 2, grid_size, periods, 0, &plane);
    MPI_Cart_shift(plane, 0, 1, &neighbours[0], &neighbours[1]);
    MPI_Cart_shift(plane, 1, 1, &neighbours[2], &neighbours[3]);
    for (int level = 0; level < LEVELS; level++) {
        int n = side_of(level);
        guess[level] = zeros((n + 2) * (n + 2), sizeof *guess[level]);
        right_side[level] = zeros((n + 2) * (n + 2), sizeof *right_side[level]);
        MPI_Type_vector(n, 1, n + 2, MPI_DOUBLE, &columns_of[level]);
        MPI_Type_commit(&columns_of[level]);
    }
    for (int i = 1; i <= FINEST; i++)
        for (int j = 1; j <= FINEST; j++)
            AT(right_side[0], FINEST, i, j) = (double)(mix((rank * FINEST + i) * FINEST + j) % 1000) / 1000 - 0.5;
    pieces = zeros(ranks * COARSEST * COARSEST, sizeof *pieces);
    whole = zeros((grid_size[0] * COARSEST + 2) * (grid_size[1] * COARSEST + 2), sizeof *whole);
    strip = zeros(COARSEST * COARSEST, sizeof *strip);
}

static void borders(int level) {
    int n = side_of(level);
    double *u = guess[level];
    MPI_Sendrecv(&AT(u, n, 1, 1), n, MPI_DOUBLE, neighbours[0], 0, &AT(u, n, n + 1, 1), n, MPI_DOUBLE, neighbours[1], 0, plane, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&AT(u, n, n, 1), n, MPI_DOUBLE, neighbours[1], 1, &AT(u, n, 0, 1), n, MPI_DOUBLE, neighbours[0], 1, plane, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&AT(u, n, 1, 1), 1, columns_of[level], neighbours[2], 2, &AT(u, n, 1, n + 1), 1, columns_of[level], neighbours[3], 2, plane,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(&AT(u, n, 1, n), 1, columns_of[level], neighbours[3], 3, &AT(u, n, 1, 0), 1, columns_of[level], neighbours[2], 3, plane,
                 MPI_STATUS_IGNORE);
}

/* Half a sweep of Gauss and Seidel over points of one colour. */
static void smooth(double *u, const double *f, int rows, int columns, int colour) {
    for (int i = 1; i <= rows; i++)
        for (int j = 1 + (i + colour) % 2; j <= columns; j += 2) {
            double *at = u + i * (columns + 2) + j;
            *at = (at[-1] + at[1] + at[-columns - 2] + at[columns + 2] + f[i * (columns + 2) + j]) / 4;
        }
}

static void sweeps(int level, int count) {
    for (int i = 0; i < 2 * count; i++) {
        borders(level);
        smooth(guess[level], right_side[level], side_of(level), side_of(level), i % 2);
    }
}

static void coarsest(void) {
    int n = COARSEST, width = grid_size[1] * n;
    static double *sides;
    if (!sides)
        sides = zeros((grid_size[0] * n + 2) * (width + 2), sizeof *sides);
    for (int i = 0; i < n; i++)
        memcpy(strip + i * n, &AT(right_side[LEVELS - 1], n, i + 1, 1), n * sizeof *strip);
    MPI_Gather(strip, n * n, MPI_DOUBLE, pieces, n * n, MPI_DOUBLE, 0, plane);
    if (rank == 0) {
        for (int from = 0; from < ranks; from++)
            for (int i = 0; i < n * n; i++)
                sides[(from / grid_size[1] * n + i / n + 1) * (width + 2) + from % grid_size[1] * n + i % n + 1] = pieces[from * n * n + i];
        memset(whole, 0, (grid_size[0] * n + 2) * (width + 2) * sizeof *whole);
        for (int i = 0; i < 30; i++)
            smooth(whole, sides, grid_size[0] * n, width, i % 2);
        for (int to = 0; to < ranks; to++)
            for (int i = 0; i < n * n; i++)
                pieces[to * n * n + i] = whole[(to / grid_size[1] * n + i / n + 1) * (width + 2) + to % grid_size[1] * n + i % n + 1];
    }
    MPI_Scatter(pieces, n * n, MPI_DOUBLE, strip, n * n, MPI_DOUBLE, 0, plane);
    for (int i = 0; i < n; i++)
        memcpy(&AT(guess[LEVELS - 1], n, i + 1, 1), strip + i * n, n * sizeof *strip);
}

/* The residual at a point. */
static double residual(int level, int i, int j) {
    int n = side_of(level);
    double *u = guess[level];
    return AT(right_side[level], n, i, j) + AT(u, n, i - 1, j) + AT(u, n, i + 1, j) + AT(u, n, i, j - 1) + AT(u, n, i, j + 1) - 4 * AT(u, n, i, j);
}

static void cycle(int level) {
    if (level == LEVELS - 1) {
        coarsest();
        return;
    }
    int n = side_of(level), half = n / 2;
    sweeps(level, 1);
    borders(level);
    memset(guess[level + 1], 0, (half + 2) * (half + 2) * sizeof **guess);
    for (int i = 1; i <= half; i++)
        for (int j = 1; j <= half; j++)
            AT(right_side[level + 1], half, i, j) = residual(level, 2 * i - 1, 2 * j - 1) + residual(level, 2 * i - 1, 2 * j) +
                                                    residual(level, 2 * i, 2 * j - 1) + residual(level, 2 * i, 2 * j);
    cycle(level + 1);
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= n; j++)
            AT(guess[level], n, i, j) += AT(guess[level + 1], half, (i + 1) / 2, (j + 1) / 2);
    sweeps(level, 1);
}

static void multigrid(int steps) {
    for (int step = 0; step < steps; step++) {
        double norm = 0, all;
        cycle(0);
        borders(0);
        for (int i = 1; i <= FINEST; i++)
            for (int j = 1; j <= FINEST; j++)
                norm += residual(0, i, j) * residual(0, i, j);
        MPI_Allreduce(&norm, &all, 1, MPI_DOUBLE, MPI_SUM, plane);
    }
}

/* graph: 20,000 vertices a rank, each with seven edges to near vertices; one edge of an eighth of them leads anywhere. A step is a search. */
enum { VERTICES = 20000, EDGES = 7 };
static char *seen;
static int *frontier, *next, **out, *in, *filled;

static void graph_prepare(void) {
    seen = zeros(VERTICES, 1);
    frontier = zeros(VERTICES, sizeof *frontier);
    next = zeros(VERTICES, sizeof *next);
    out = zeros(ranks, sizeof *out);
    for (int i = 0; i < ranks; i++)
        out[i] = zeros(VERTICES * EDGES, sizeof **out);
    in = zeros(VERTICES * EDGES, sizeof *in);
    filled = zeros(ranks, sizeof *filled);
}

static int visit(const int *vertices, int count, int reached) {
    for (int i = 0; i < count; i++)
        if (!seen[vertices[i]]) {
            seen[vertices[i]] = 1;
            next[reached++] = vertices[i];
        }
    return reached;
}

static void graph(int steps) {
    MPI_Request *requests = zeros(ranks, sizeof *requests), end;
    MPI_Status status;
    long vertices = (long)ranks * VERTICES;
    for (int step = 0; step < steps; step++) {
        long root = (long)(mix(step) % vertices);
        int count = 0, all;
        memset(seen, 0, VERTICES);
        if (root / VERTICES == rank) {
            frontier[count++] = (int)(root % VERTICES);
            seen[frontier[0]] = 1;
        }
        do {
            int reached = 0, sent = 0, arrived, ending = 0, ended = 0;
            memset(filled, 0, ranks * sizeof *filled);
            for (int i = 0; i < count; i++) {
                long from = (long)rank * VERTICES + frontier[i];
                for (int edge = 0; edge < EDGES; edge++) {
                    unsigned long number = mix(from * EDGES + edge);
                    long to = edge == 0 && number % 8 == 0 ? (long)(mix(number) % vertices) : (from + (long)(number % 10000) - 3000 + vertices) % vertices;
                    int owner = (int)(to / VERTICES);
                    out[owner][filled[owner]++] = (int)(to % VERTICES);
                }
            }
            reached = visit(out[rank], filled[rank], reached);
            for (int i = 1; i < ranks; i++) {
                int to = (rank + i) % ranks;
                if (filled[to])
                    MPI_Issend(out[to], filled[to], MPI_INT, to, 0, MPI_COMM_WORLD, &requests[sent++]);
            }
            /* Once this rank's messages have been received it enters the barrier; once all have entered, no message is under way. */
            while (!ended) {
                MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &arrived, &status);
                if (arrived) {
                    int filling;
                    MPI_Get_count(&status, MPI_INT, &filling);
                    MPI_Recv(in, filling, MPI_INT, status.MPI_SOURCE, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                    reached = visit(in, filling, reached);
                }
                if (ending) {
                    MPI_Test(&end, &ended, MPI_STATUS_IGNORE);
                } else {
                    MPI_Testall(sent, requests, &ending, MPI_STATUSES_IGNORE);
                    if (ending)
                        MPI_Ibarrier(MPI_COMM_WORLD, &end);
                }
            }
            int *old = frontier;
            frontier = next;
            next = old;
            count = reached;
            MPI_Allreduce(&count, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        } while (all > 0);
    }
    free(requests);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*prepare)(void), (*run)(int);
        int steps;
    } programs[] = {
        {"stencil3d", stencil3d_prepare, stencil3d, 50}, {"transpose", transpose_prepare, transpose, 16},   {"samplesort", samplesort_prepare, samplesort, 5},
        {"nbody", nbody_prepare, nbody, 6},              {"taskfarm", taskfarm_prepare, taskfarm, 40},      {"blocklu", blocklu_prepare, blocklu, 2},
        {"multigrid", multigrid_prepare, multigrid, 10}, {"graph", graph_prepare, graph, 5},
    };
    const char *start = getenv("START");
    int late = start ? atoi(start) : 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double *from = zeros(ranks, sizeof *from), *to = zeros(ranks, sizeof *to);
    for (unsigned i = 0; i < sizeof programs / sizeof *programs; i++)
        if (argc > 1 && !strcmp(argv[1], programs[i].name)) {
            programs[i].prepare();
            MPI_Alltoall(from, 1, MPI_DOUBLE, to, 1, MPI_DOUBLE, MPI_COMM_WORLD);
            programs[i].run(1);
            MPI_Barrier(MPI_COMM_WORLD);
            volatile long turns = 0;
            while (rank == late * 5 % ranks && turns < 100000L * (late + 1))
                turns++;
            MPI_Barrier(MPI_COMM_WORLD);
            programs[i].run(programs[i].steps);
            MPI_Barrier(MPI_COMM_WORLD);
            MPI_Finalize();
            return 0;
        }
    fprintf(stderr, "usage: kinds NAME\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
}
