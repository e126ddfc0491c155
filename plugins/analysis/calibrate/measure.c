/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Measures what messages cost, for `nodescope calibrate`. Run it traced, on ranks that are where the path's ends are: each on a node of its
 * own, or all on one node.
 *
 *     mpicc -O2 -o measure measure.c
 *     nodescope trace --output measured -- mpirun -np 2 ./measure [LARGEST [SECONDS]]
 *     nodescope trace --output exchanged -- mpirun -np 4 ./measure [LARGEST]
 *     nodescope calibrate --network measured --exchanges exchanged --output cluster.toml
 *
 * On two ranks, for each size from 0 to LARGEST bytes (4 MiB): a ping-pong of SECONDS (0.02), from which latency and bandwidth follow; then
 * messages whose receives begin late, after work, from which follows what a receive costs by itself, and after polls, from which follows up
 * to which size a send does not wait for its receive. The trace holds the times; what is printed is for people.
 *
 * On three ranks or more, messages by tag:
 *
 *     2  from each rank to the next, round a ring: what a message costs a receiver while all send
 *     4  from each rank to the next two: what a message costs that comes together with another
 *     5  to and fro between ranks 0 and 1, 6 round a ring: columns of a matrix of doubles, a derived datatype that has to be packed
 *
 *     7  between ranks 0 and 1, 2 and 3, to and fro: the first message of each of these ranks, whose connection opens
 *     8  from ranks 0 and 1 to 2 and 3, twice each: the first opens a connection between ranks that have one
 *     9  from rank 0 to the next two in turn, a stream: acknowledgements come while the rank sends
 *
 * Barriers keep the ranks together. After the first two messages, neighbours send to and fro, from which follows how far their clocks are
 * apart.
 *
 * Between barriers on MPI_COMM_SELF lie in turn:
 *
 *     nothing
 *     twenty datatypes made and freed, as collectives do that name blocks by them
 *     sums of two vectors, 1 MiB in all, as reductions make them
 *
 * `measure check` instead runs common patterns, which `nodescope calibrate run` predicts with what was measured. A barrier of all ranks is
 * before each pattern and after the last.
 *
 * Before each message its sender works on as much memory as the first-level cache holds, as programs do between their messages: MPI and
 * the kernel are not found there then. That time is in no call and counts nowhere.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STREAM = 96, LATE = 12, ROUNDS = 32, TOGETHER = 4 /* rounds between two barriers */, LINE = 100 /* doubles of a row, of which one is sent */ };
static const long LATE_LARGEST = 256 << 10; /* bytes: larger messages are not sent before their receives */

static double a_size = 0.02; /* seconds of ping-pong at each size */
static char *data, *room;
static int rank, ranks, other;

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
    double times = a_size / 2 / once;
    once = ping_pong(bytes, times < 15 ? 15 : times > 400 ? 400 : times);
    MPI_Bcast(&once, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    for (int polls = 0; polls < 2 && bytes <= LATE_LARGEST; polls++)
        late(bytes, 2e-5 + 12 * once, polls);
    if (rank == 0)
        printf("%8d B %12.3f us\n", bytes, once * 1e6);
}

/* Four sizes an octave, and around each power of two, where protocols change. */
static void pairs(long largest) {
    ping_pong(0, 1000);
    size(0);
    size(1);
    for (long octave = 4; octave <= largest; octave *= 2) {
        long before = octave < 1024 ? octave / 16 : 64; /* headers count towards limits */
        long sizes[] = {octave - before, octave, octave + octave / 16, octave + octave / 4, octave + octave / 2, octave + 3 * octave / 4};
        for (int i = 0; i < 6; i++)
            if (sizes[i] <= largest && (octave > 16 || (i != 0 && i != 2)))
                size(sizes[i]);
    }
}

static void columns_to_and_fro(MPI_Datatype column) {
    for (int i = 0; i < ROUNDS; i++)
        for (int way = 0; way < 2; way++)
            if (rank == way) {
                work();
                MPI_Send(data, 1, column, 1 - rank, 5, MPI_COMM_WORLD);
            } else if (rank == 1 - way)
                MPI_Recv(data, 1, column, way, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void round_a_ring(int count, MPI_Datatype type, int tag) {
    int after = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int i = 0; i < ROUNDS; i++) {
        if (i % TOGETHER == 0)
            MPI_Barrier(MPI_COMM_WORLD);
        work();
        MPI_Sendrecv(data, count, type, after, tag, room, count, type, before, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

static void to_two(int bytes) {
    for (int i = 0; i < ROUNDS; i++) {
        MPI_Request requests[4];
        if (i % TOGETHER == 0)
            MPI_Barrier(MPI_COMM_WORLD);
        work();
        for (int k = 0; k < 2; k++)
            MPI_Irecv(k ? room + bytes : room, bytes, MPI_BYTE, (rank + ranks - 1 - k) % ranks, 4, MPI_COMM_WORLD, &requests[k]);
        for (int k = 0; k < 2; k++)
            MPI_Isend(data, bytes, MPI_BYTE, (rank + 1 + k) % ranks, 4, MPI_COMM_WORLD, &requests[2 + k]);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    }
}

static void stream(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < STREAM; i++)
        if (rank == 0)
            MPI_Send(data, 8, MPI_BYTE, 1 + i % 2, 9, MPI_COMM_WORLD);
        else if (rank == 1 + i % 2)
            MPI_Recv(data, 8, MPI_BYTE, 0, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void datatypes(int number) {
    for (int k = 0; k < number; k++) {
        /* Blocks of four ranks, of which two do not follow the others. */
        int lengths[] = {120, 120, 120, 120}, starts[] = {1680, 1800, 0, 120};
        MPI_Datatype type;
        MPI_Type_indexed(4, lengths, starts, MPI_DOUBLE, &type);
        MPI_Type_commit(&type);
        MPI_Type_free(&type);
    }
}

static void sums(int number) {
    for (int k = 0; k < number; k++)
        MPI_Reduce_local(data, room, (32 << 10) / sizeof(double), MPI_DOUBLE, MPI_SUM);
}

/* Neighbours send to and fro, pair by pair. */
static void clocks(void) {
    MPI_Comm pairs;
    char byte = 0;
    MPI_Comm_dup(MPI_COMM_WORLD, &pairs);
    for (int first = 0; first < ranks; first++) {
        int second = (first + 1) % ranks;
        MPI_Barrier(pairs);
        for (int i = 0; i < ROUNDS; i++)
            if (rank == first) {
                MPI_Send(&byte, 1, MPI_BYTE, second, 0, pairs);
                MPI_Recv(&byte, 1, MPI_BYTE, second, 0, pairs, MPI_STATUS_IGNORE);
            } else if (rank == second) {
                MPI_Recv(&byte, 1, MPI_BYTE, first, 0, pairs, MPI_STATUS_IGNORE);
                MPI_Send(&byte, 1, MPI_BYTE, first, 0, pairs);
            }
    }
    MPI_Comm_free(&pairs);
}

/* First messages between four of the ranks. A rank that sends comes a little after its receiver. */
static void connections(void) {
    char byte = 0, answer;
    if (rank >= 4 || ranks < 4)
        return;
    MPI_Sendrecv(&byte, 1, MPI_BYTE, rank ^ 1, 7, &answer, 1, MPI_BYTE, rank ^ 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int apart = 2; apart < 4; apart++)
        for (int i = 0; i < 2; i++)
            if (rank < 2) {
                usleep(1000);
                MPI_Ssend(&byte, 1, MPI_BYTE, rank ^ apart, 8, MPI_COMM_WORLD);
            } else {
                MPI_Recv(&byte, 1, MPI_BYTE, rank ^ apart, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            }
}

static void exchanges(long largest) {
    connections();
    clocks();
    for (int k = 0; k < 3; k++)
        for (int what = 0; what < 3; what++) {
            MPI_Barrier(MPI_COMM_SELF);
            datatypes(what == 1 ? 20 : 0);
            sums(what == 2 ? 32 : 0);
            MPI_Barrier(MPI_COMM_SELF);
        }
    /* Connections acknowledge at once when they are new. */
    for (int k = 0; k < 3; k++) {
        round_a_ring(8, MPI_BYTE, 0);
        to_two(0);
    }
    for (int k = 0; k < 8; k++)
        stream();
    long sizes[64] = {0, 8};
    int many = 2;
    for (long octave = 64; octave <= largest; octave *= 2) {
        sizes[many++] = octave;
        if (octave >= 1024)
            sizes[many++] = octave + octave / 2;
    }
    for (int i = 0; i < many && sizes[i] <= largest; i++) {
        int bytes = sizes[i];
        round_a_ring(bytes, MPI_BYTE, 2);
        to_two(bytes);
        if (bytes >= 64 && bytes <= 64 << 10) {
            MPI_Datatype column;
            MPI_Type_vector(bytes / 8, 1, LINE, MPI_DOUBLE, &column);
            MPI_Type_commit(&column);
            MPI_Barrier(MPI_COMM_WORLD);
            columns_to_and_fro(column);
            round_a_ring(1, column, 6);
            MPI_Type_free(&column);
        }
    }
}

static void compute(int times) {
    for (int i = 0; i < times; i++)
        work();
}

/* Borders to both neighbours, without a ring: the ends have one neighbour. */
static void halo(int bytes) {
    MPI_Request requests[4];
    int below = rank > 0 ? rank - 1 : MPI_PROC_NULL, above = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
    MPI_Irecv(room, bytes, MPI_BYTE, below, 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Irecv(room + bytes, bytes, MPI_BYTE, above, 0, MPI_COMM_WORLD, &requests[1]);
    MPI_Isend(data, bytes, MPI_BYTE, below, 0, MPI_COMM_WORLD, &requests[2]);
    MPI_Isend(data, bytes, MPI_BYTE, above, 0, MPI_COMM_WORLD, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
}

static void pattern(int which, int bytes) {
    int below = rank > 0 ? rank - 1 : MPI_PROC_NULL, above = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
    compute(which == 3 ? 4 + 4 * (rank % 2) : 4);
    switch (which) {
    case 0: /* borders */
        halo(bytes);
        break;
    case 1: /* a wave from the first rank to the last */
        MPI_Recv(room, bytes, MPI_BYTE, below, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(data, bytes, MPI_BYTE, above, 0, MPI_COMM_WORLD);
        break;
    case 2: /* a sum over all ranks, as solvers have */
        MPI_Allreduce(data, room, bytes / 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        break;
    case 3: /* a broadcast between ranks of different work */
        MPI_Bcast(data, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
        halo(8);
        break;
    case 4: /* all to all */
        MPI_Alltoall(data, bytes, MPI_BYTE, room, bytes, MPI_BYTE, MPI_COMM_WORLD);
        break;
    }
}

static void check(void) {
    static const int sizes[] = {8, 1024, 8192, 40000, 131072, 524288};
    for (int i = 0; i < 20; i++)
        for (int which = 0; which < 5; which++)
            pattern(which, 8);
    for (int which = 0; which < 5; which++)
        for (int k = 0; k < 6; k++) {
            MPI_Barrier(MPI_COMM_WORLD);
            for (int i = 0; i < 10; i++)
                pattern(which, sizes[k]);
        }
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int checks = argc > 1 && !strcmp(argv[1], "check");
    long largest = checks ? 1 << 20 : argc > 1 ? atol(argv[1]) : 4 << 20;
    if (argc > 2)
        a_size = atof(argv[2]);
    if (ranks < 2 || largest < 16 || largest > 1 << 28) {
        if (rank == 0)
            fprintf(stderr, "measure: runs on 2 ranks or more, with a largest size from 16 to %d bytes, or with \"check\"\n", 1 << 28);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    other = 1 - rank;
    size_t matrix = (64 << 10) * LINE, all = checks ? (size_t)ranks << 19 : 2 * (size_t)largest;
    size_t bytes = matrix > all ? matrix : all;
    data = malloc(bytes);
    room = malloc(bytes);
    long first = sysconf(_SC_LEVEL1_DCACHE_SIZE);
    cache = first > 0 ? first : 32 << 10;
    memory = calloc(cache, 1);
    if (!data || !room || !memory)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(data, 0, bytes);
    memset(room, 0, bytes);
    if (checks)
        check();
    else if (ranks > 2)
        exchanges(largest);
    else
        pairs(largest);
    MPI_Finalize();
    free(data);
    free(room);
    free(memory);
}
