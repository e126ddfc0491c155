/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Measures the path between two ranks for `nodescope calibrate`: run it traced, on two ranks that are where the path's ends are.
 *
 *     mpicc -O2 -o measure measure.c
 *     nodescope trace --output measured -- mpirun -np 2 ./measure [LARGEST]
 *     nodescope calibrate --network measured --output cluster.toml
 *
 * For each size from 0 to LARGEST bytes (4 MiB): a ping-pong, from which latency and bandwidth follow; then messages whose receives begin
 * late, after work, from which follows what a receive costs by itself, and after polls, from which follows up to which size a send does not
 * wait for its receive. The trace holds the times; what is printed is for people.
 *
 * Before each message its sender works on as much memory as the first-level cache holds, as programs do between their messages: MPI and
 * the kernel are not found there then. That time is in no call and counts nowhere.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LATE = 12 };
static const double A_SIZE = 0.02; /* seconds of ping-pong at each size */

static char *data;
static int rank, other;

static char *memory;
static size_t cache;

static void work(void) {
    for (size_t i = 0; i < cache; i += 64)
        memory[i]++;
}

static void out(int bytes) {
    MPI_Send(data, bytes, MPI_BYTE, other, 0, MPI_COMM_WORLD);
}

static void in(int bytes) {
    MPI_Recv(data, bytes, MPI_BYTE, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static double ping_pong(int bytes, int times) {
    double start = MPI_Wtime();
    double worked = 0;
    for (int i = 0; i < times; i++) {
        if (rank != 0)
            in(bytes);
        double before = MPI_Wtime();
        work();
        worked += MPI_Wtime() - before;
        out(bytes);
        if (rank == 0)
            in(bytes);
    }
    return (MPI_Wtime() - start - 2 * worked) / times / 2;
}

/* Polls for a message that never comes let MPI move what does. */
static void late(int bytes, double delay, int polls) {
    int found;
    for (int i = 0; i < LATE; i++) {
        if (rank == 0) {
            in(0);
            out(bytes);
        } else {
            out(0);
            double until = MPI_Wtime() + delay;
            while (MPI_Wtime() < until)
                if (polls)
                    MPI_Iprobe(other, 1, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
                else
                    work();
            in(bytes);
        }
    }
}

static void size(int bytes) {
    double once = ping_pong(bytes, 6);
    MPI_Bcast(&once, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    double times = A_SIZE / 2 / once;
    once = ping_pong(bytes, times < 15 ? 15 : times > 400 ? 400 : times);
    MPI_Bcast(&once, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    late(bytes, 2e-5 + 12 * once, 0);
    late(bytes, 2e-5 + 12 * once, 1);
    if (rank == 0)
        printf("%8d B %12.3f us\n", bytes, once * 1e6);
}

int main(int argc, char **argv) {
    int ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long largest = argc > 1 ? atol(argv[1]) : 4 << 20;
    if (ranks != 2 || largest < 16 || largest > 1 << 30) {
        if (rank == 0)
            fprintf(stderr, "measure: runs on 2 ranks, with a largest size from 16 to %d bytes\n", 1 << 30);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    other = 1 - rank;
    data = malloc(largest);
    memset(data, 1, largest);
    long first = sysconf(_SC_LEVEL1_DCACHE_SIZE);
    cache = first > 0 ? first : 32 << 10;
    memory = calloc(cache, 1);
    ping_pong(0, 1000);
    size(0);
    size(1);
    /* Four sizes an octave, and around each power of two, where protocols change. */
    for (long octave = 4; octave <= largest; octave *= 2) {
        long before = octave < 1024 ? octave / 16 : 64; /* headers count towards limits */
        long sizes[] = {octave - before, octave, octave + octave / 16, octave + octave / 4, octave + octave / 2, octave + 3 * octave / 4};
        for (int i = 0; i < 6; i++)
            if (sizes[i] <= largest && (octave > 16 || (i != 0 && i != 2)))
                size(sizes[i]);
    }
    MPI_Finalize();
    free(data);
    free(memory);
}
