/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Programs whose communication is known, each with phases of its own:
 *
 *   patterns torus ROWS COLUMNS MILLISECONDS   shifts up, right, left, down on a torus, and sleeps after each
 *   patterns hadamard QUBITS                   an n-qubit Hadamard transform of a vector that all ranks share
 *   patterns pairs DISTANCE TURNS BYTES        exchanges with the rank at a distance, and prints how long that took
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int rank, size;

static void pause_for(long milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void exchange(void *out, void *in, int bytes, int to, int from) {
    MPI_Sendrecv(out, bytes, MPI_BYTE, to, 0, in, bytes, MPI_BYTE, from, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static int torus(int rows, int columns, long milliseconds) {
    static const int shifts[4][2] = {{-1, 0}, {0, 1}, {0, -1}, {1, 0}};
    static char out[1 << 14], in[1 << 14];
    if (rows * columns != size)
        return 1;
    int row = rank / columns, column = rank % columns;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int at = 0; at < 4; at++) {
        int down = shifts[at][0], right = shifts[at][1];
        int to = (row + down + rows) % rows * columns + (column + right + columns) % columns;
        int from = (row - down + rows) % rows * columns + (column - right + columns) % columns;
        exchange(out, in, sizeof out, to, from);
        pause_for(milliseconds);
    }
    return 0;
}

/* The most significant qubits tell the rank, the others the place in its part. The ranks must be a power of two. */
static int hadamard(int qubits) {
    long part = (1L << qubits) / size;
    double *own = calloc(part, sizeof *own), *other = malloc(part * sizeof *other);
    if (own == NULL || other == NULL)
        return 1;
    if (rank == 0)
        own[0] = 1;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int distance = size / 2; distance > 0; distance /= 2) {
        int partner = rank ^ distance, upper = (rank & distance) != 0;
        exchange(own, other, part * sizeof *own, partner, partner);
        for (long at = 0; at < part; at++)
            own[at] = (upper ? other[at] - own[at] : own[at] + other[at]) * M_SQRT1_2;
        /* Gates follow one another. */
        MPI_Barrier(MPI_COMM_WORLD);
    }
    for (long distance = part / 2; distance > 0; distance /= 2)
        for (long at = 0; at < part; at++)
            if ((at & distance) == 0) {
                double low = own[at], high = own[at + distance];
                own[at] = (low + high) * M_SQRT1_2;
                own[at + distance] = (low - high) * M_SQRT1_2;
            }
    /* Every amplitude of the transformed state |0> is the same. */
    double expected = pow(2, -qubits / 2.0), worst = 0, all;
    for (long at = 0; at < part; at++)
        worst = fmax(worst, fabs(own[at] - expected));
    MPI_Reduce(&worst, &all, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("hadamard: %s\n", all < 1e-12 ? "right" : "wrong");
    return 0;
}

static int pairs(int distance, int turns, int bytes) {
    char *out = calloc(bytes, 1), *in = malloc(bytes);
    if (out == NULL || in == NULL)
        return 1;
    int partner = rank ^ distance;
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    for (int turn = 0; turn < turns; turn++)
        exchange(out, in, bytes, partner, partner);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("pairs: %.0f us\n", (MPI_Wtime() - begin) * 1e6);
    return 0;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int status = 2;
    if (argc == 5 && strcmp(argv[1], "torus") == 0)
        status = torus(atoi(argv[2]), atoi(argv[3]), atol(argv[4]));
    else if (argc == 3 && strcmp(argv[1], "hadamard") == 0)
        status = hadamard(atoi(argv[2]));
    else if (argc == 5 && strcmp(argv[1], "pairs") == 0)
        status = pairs(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
    if (status != 0)
        MPI_Abort(MPI_COMM_WORLD, status);
    MPI_Finalize();
    return 0;
}
