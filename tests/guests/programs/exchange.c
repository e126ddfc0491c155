/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An MPI program whose calls, arguments and results do not depend on time: no polls, no wildcards, all requests awaited together. */
#include <mpi.h>
#include <stdio.h>

#define MOST 8
#define ROOM 20000

static int out[MOST][ROOM], in[MOST][ROOM];

int main(int argc, char **argv) {
    int rank, size, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size > MOST)
        MPI_Abort(MPI_COMM_WORLD, 2);
    const int right = (rank + 1) % size, left = (rank + size - 1) % size;

    for (int round = 1; round <= 5; round++) {
        /* The last messages are larger than what either MPI sends at once. */
        int count = round * round * ROOM / 25;
        MPI_Request requests[2 * MOST];
        for (int peer = 0; peer < size; peer++) {
            MPI_Irecv(in[peer], count, MPI_INT, peer, round, MPI_COMM_WORLD, &requests[2 * peer]);
            MPI_Isend(out[peer], count, MPI_INT, peer, round, MPI_COMM_WORLD, &requests[2 * peer + 1]);
        }
        MPI_Waitall(2 * size, requests, MPI_STATUSES_IGNORE);
        MPI_Sendrecv(out[0], round, MPI_INT, right, 100, in[0], ROOM, MPI_INT, left, 100, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Allreduce(&round, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    }

    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    MPI_Bcast(out[0], ROOM, MPI_INT, 0, half);
    MPI_Comm_free(&half);

    int counts[MOST], starts[MOST];
    for (int peer = 0; peer < size; peer++) {
        counts[peer] = 1 + (rank + peer) % 3;
        starts[peer] = peer * 3;
    }
    MPI_Alltoallv(out[0], counts, starts, MPI_INT, in[0], counts, starts, MPI_INT, MPI_COMM_WORLD);

    MPI_Request persistent[2];
    MPI_Send_init(out[0], 7, MPI_INT, left, 3, MPI_COMM_WORLD, &persistent[0]);
    MPI_Recv_init(in[0], 7, MPI_INT, right, 3, MPI_COMM_WORLD, &persistent[1]);
    for (int round = 0; round < 3; round++) {
        MPI_Startall(2, persistent);
        MPI_Waitall(2, persistent, MPI_STATUSES_IGNORE);
    }
    MPI_Request_free(&persistent[0]);
    MPI_Request_free(&persistent[1]);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    if (rank == 0)
        printf("%s: %d ranks, sum %d\n", argv[0], size, sum);
    return sum != 5 * size;
}
