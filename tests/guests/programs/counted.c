/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An MPI program that counts its own calls and messages: for every rank, calls, and bytes by receiver and sender. Rank 0 writes the
 * counts to the file "books" in three kinds of lines: calls RANK FUNCTION CALLS SENT RECEIVED, sent and received RANK PEER MESSAGES BYTES. */
#include <mpi.h>
#include <stdio.h>

#define RANKS 8
#define ROOM (1 << 20)
#define FUNCTIONS                                                                                                        \
    X(Init) X(Send) X(Ssend) X(Recv) X(Probe) X(Sendrecv) X(Isend) X(Irecv) X(Waitall) X(Test) X(Send_init)              \
        X(Recv_init) X(Startall) X(Request_free) X(Barrier) X(Bcast) X(Allreduce) X(Alltoallv) X(Gather) X(Comm_split)   \
            X(Comm_free) X(Finalize)

#define X(name) N_##name,
enum { FUNCTIONS KINDS };
#undef X
#define X(name) "MPI_" #name,
static const char *const names[] = {FUNCTIONS};
#undef X

struct count {
    long long number, sent, received;
};
struct books {
    struct count calls[KINDS];
    /* By world rank. */
    struct count to[RANKS], from[RANKS];
};
static struct books mine, all[RANKS];
static char out[ROOM], in[ROOM], parts[RANKS][ROOM / RANKS];

#define CALL(name, ...) (mine.calls[N_##name].number++, MPI_##name(__VA_ARGS__))

static void sent(int function, int to, long long bytes) {
    mine.calls[function].sent += bytes;
    mine.to[to].number++;
    mine.to[to].sent += bytes;
}

/* `from` is a world rank; the status knows the rank in the call's communicator. */
static void received(int function, int from, const MPI_Status *status) {
    int bytes;
    MPI_Get_count(status, MPI_BYTE, &bytes);
    mine.calls[function].received += bytes;
    mine.from[from].number++;
    mine.from[from].received += bytes;
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Status status, statuses[2 * RANKS];
    CALL(Init, &argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size % 2 || size > RANKS)
        MPI_Abort(MPI_COMM_WORLD, 2);
    const int right = (rank + 1) % size, left = (rank + size - 1) % size;

    /* Round the ring, with eager messages first and rendezvous messages last. Receive buffers are larger than the messages. */
    for (int bytes = 1; bytes <= ROOM; bytes *= 16) {
        CALL(Sendrecv, out, bytes, MPI_BYTE, right, 1, in, ROOM, MPI_BYTE, left, 1, MPI_COMM_WORLD, &status);
        sent(N_Sendrecv, right, bytes);
        received(N_Sendrecv, left, &status);
    }

    /* Rank 0 receives from any source. */
    if (rank == 0)
        for (int i = 1; i < size; i++) {
            CALL(Probe, MPI_ANY_SOURCE, 2, MPI_COMM_WORLD, &status);
            CALL(Recv, in, ROOM, MPI_BYTE, MPI_ANY_SOURCE, 2, MPI_COMM_WORLD, &status);
            received(N_Recv, status.MPI_SOURCE, &status);
        }
    else {
        CALL(Send, out, 1000 * rank, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
        sent(N_Send, 0, 1000 * rank);
    }
    /* Nothing is sent to MPI_PROC_NULL: a call, and no bytes. */
    CALL(Send, out, 5, MPI_BYTE, MPI_PROC_NULL, 0, MPI_COMM_WORLD);

    /* Everyone to everyone at once. */
    MPI_Request requests[2 * RANKS];
    int n = 0, peers[2 * RANKS];
    for (int peer = 0; peer < size; peer++)
        if (peer != rank) {
            CALL(Irecv, parts[peer], ROOM / RANKS, MPI_BYTE, peer, 3, MPI_COMM_WORLD, &requests[n]);
            peers[n++] = peer;
        }
    const int receives = n;
    for (int peer = 0; peer < size; peer++)
        if (peer != rank) {
            const int bytes = 10 * (rank + 1) * (peer + 2);
            CALL(Isend, out, bytes, MPI_BYTE, peer, 3, MPI_COMM_WORLD, &requests[n++]);
            sent(N_Isend, peer, bytes);
        }
    CALL(Waitall, n, requests, statuses);
    for (int i = 0; i < receives; i++)
        received(N_Waitall, peers[i], &statuses[i]);

    /* Across the middle, which is between nodes when their ranks follow one another; how often it is polled, only the
     * program knows. */
    const int across = (rank + size / 2) % size;
    if (rank < size / 2) {
        int done = 0;
        CALL(Irecv, in, ROOM, MPI_BYTE, across, 4, MPI_COMM_WORLD, &requests[0]);
        while (!done)
            CALL(Test, &requests[0], &done, &status);
        received(N_Test, across, &status);
    } else {
        CALL(Ssend, out, 20000, MPI_BYTE, across, 4, MPI_COMM_WORLD);
        sent(N_Ssend, across, 20000);
    }

    /* Prepared once, started three times: the preparation names the bytes, each start sends them. */
    CALL(Send_init, out, 128, MPI_BYTE, right, 5, MPI_COMM_WORLD, &requests[0]);
    CALL(Recv_init, in, ROOM, MPI_BYTE, left, 5, MPI_COMM_WORLD, &requests[1]);
    mine.calls[N_Send_init].sent += 128;
    for (int i = 0; i < 3; i++) {
        CALL(Startall, 2, requests);
        mine.to[right].number++;
        mine.to[right].sent += 128;
        CALL(Waitall, 2, requests, statuses);
        received(N_Waitall, left, &statuses[1]);
    }
    CALL(Request_free, &requests[0]);
    CALL(Request_free, &requests[1]);

    /* Collective operations count what is passed in and the room given. */
    CALL(Bcast, out, 1000, MPI_BYTE, 1, MPI_COMM_WORLD);
    *(rank == 1 ? &mine.calls[N_Bcast].sent : &mine.calls[N_Bcast].received) += 1000;
    double sums[8] = {0}, totals[8];
    CALL(Allreduce, sums, totals, 8, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    mine.calls[N_Allreduce].sent += 64;
    mine.calls[N_Allreduce].received += 64;
    int counts[RANKS], places[RANKS], total = 0;
    for (int peer = 0; peer < size; peer++) {
        counts[peer] = 7 * (rank + peer + 1);
        places[peer] = total;
        total += counts[peer];
    }
    CALL(Alltoallv, out, counts, places, MPI_BYTE, in, counts, places, MPI_BYTE, MPI_COMM_WORLD);
    mine.calls[N_Alltoallv].sent += total;
    mine.calls[N_Alltoallv].received += total;
    CALL(Barrier, MPI_COMM_WORLD);

    /* Pairs in communicators of their own, the greater world rank first: ranks in calls differ from world ranks. */
    MPI_Comm pair;
    CALL(Comm_split, MPI_COMM_WORLD, rank / 2, -rank, &pair);
    int here;
    MPI_Comm_rank(pair, &here);
    CALL(Sendrecv, out, 333, MPI_BYTE, 1 - here, 6, in, ROOM, MPI_BYTE, 1 - here, 6, pair, &status);
    sent(N_Sendrecv, rank ^ 1, 333);
    received(N_Sendrecv, rank ^ 1, &status);
    CALL(Comm_free, &pair);

    /* The last two calls are entered before the books are closed. */
    mine.calls[N_Finalize].number++;
    mine.calls[N_Gather].number++;
    mine.calls[N_Gather].sent += sizeof mine;
    if (rank == 0)
        mine.calls[N_Gather].received += size * sizeof mine;
    MPI_Gather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        FILE *file = fopen("books", "w");
        if (!file)
            MPI_Abort(MPI_COMM_WORLD, 3);
        for (int r = 0; r < size; r++) {
            for (int f = 0; f < KINDS; f++)
                if (all[r].calls[f].number)
                    fprintf(file, "calls %d %s %lld %lld %lld\n", r, names[f], all[r].calls[f].number,
                            all[r].calls[f].sent, all[r].calls[f].received);
            for (int p = 0; p < size; p++) {
                if (all[r].to[p].number)
                    fprintf(file, "sent %d %d %lld %lld\n", r, p, all[r].to[p].number, all[r].to[p].sent);
                if (all[r].from[p].number)
                    fprintf(file, "received %d %d %lld %lld\n", r, p, all[r].from[p].number, all[r].from[p].received);
            }
        }
        if (fclose(file))
            MPI_Abort(MPI_COMM_WORLD, 4);
    }
    MPI_Finalize();
    return 0;
}
