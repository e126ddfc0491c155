/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A program without faults in which ranks wait for each other in many ways: epochs with changing groups, locks that exclude each other,
   persistent collectives started in different orders, neighbours, files. Each rank works for a while between its calls, so that they
   come in every order. Its argument is a file. */
#include <mpi.h>
#include <stdlib.h>

#if MPI_VERSION < 4
#include <mpi-ext.h>
#define MPI_Allreduce_init MPIX_Allreduce_init
#define MPI_Bcast_init MPIX_Bcast_init
#define MPI_Neighbor_alltoall_init MPIX_Neighbor_alltoall_init
#endif

enum { ROUNDS = 12, ROOM = 16 };

static int rank, size, memory[ROOM];
static unsigned seed;

static void work(void) {
    seed = seed * 1103515245 + 12345;
    double until = MPI_Wtime() + (seed >> 16 & 255) * 1e-6;
    while (MPI_Wtime() < until)
        ;
}

/* Every second rank gives access to the others: to one of them in even rounds, to those on both sides in odd ones. */
static void pairwise(MPI_Win window, int round) {
    MPI_Group world, near;
    int ranks[2] = {round % 2 ? (rank + 1) % size : rank ^ 1, (rank + size - 1) % size}, value = rank, got;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1 + round % 2, ranks, &near);
    work();
    if ((rank + round / 2) % 2) {
        MPI_Win_post(near, 0, window);
        work();
        MPI_Win_wait(window);
    } else {
        MPI_Win_start(near, 0, window);
        work();
        MPI_Put(&value, 1, MPI_INT, ranks[0], 1, 1, MPI_INT, window);
        MPI_Get(&got, 1, MPI_INT, ranks[0], 0, 1, MPI_INT, window);
        work();
        MPI_Win_complete(window);
    }
    MPI_Group_free(&near);
    MPI_Group_free(&world);
}

static void locks(MPI_Win first, MPI_Win second, int round) {
    int value = 1, got, target = round % size, exclusive = (rank + round) % 3 == 0;
    MPI_Win_lock(exclusive ? MPI_LOCK_EXCLUSIVE : MPI_LOCK_SHARED, target, 0, first);
    work();
    MPI_Accumulate(&value, 1, MPI_INT, target, 2, 1, MPI_INT, MPI_SUM, first);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, (target + 1) % size, 0, second);
    MPI_Fetch_and_op(&value, &got, MPI_INT, (target + 1) % size, 3, MPI_SUM, second);
    MPI_Win_flush((target + 1) % size, second);
    work();
    MPI_Win_unlock((target + 1) % size, second);
    MPI_Win_unlock(target, first);
    MPI_Win_lock_all(0, first);
    MPI_Get(&got, 1, MPI_INT, target, 2, 1, MPI_INT, first);
    MPI_Win_flush_all(first);
    work();
    MPI_Win_unlock_all(first);
}

static void fences(MPI_Win window) {
    int value = rank;
    MPI_Win_fence(MPI_MODE_NOPRECEDE, window);
    work();
    MPI_Put(&value, 1, MPI_INT, (rank + 1) % size, 4, 1, MPI_INT, window);
    work();
    MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    seed = rank + 1;
    MPI_Win windows[2];
    for (int i = 0; i < 2; i++) {
        int *base;
        work();
        MPI_Win_allocate(sizeof memory, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &base, &windows[i]);
    }
    MPI_Comm ring;
    MPI_Request prepared[3];
    int periodic = 1, in[2] = {rank, rank}, out[2], one = 1, all, sent = rank;
    MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &periodic, 0, &ring);
    MPI_Bcast_init(&sent, 1, MPI_INT, size - 1, ring, MPI_INFO_NULL, &prepared[0]);
    work();
    MPI_Allreduce_init(&one, &all, 1, MPI_INT, MPI_SUM, ring, MPI_INFO_NULL, &prepared[1]);
    MPI_Neighbor_alltoall_init(in, 1, MPI_INT, out, 1, MPI_INT, ring, MPI_INFO_NULL, &prepared[2]);
    MPI_File file;
    MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    for (int round = 0; round < ROUNDS; round++) {
        pairwise(windows[0], round);
        for (int i = 0; i < 3; i++) {
            work();
            MPI_Start(&prepared[(rank + i) % 3]);
        }
        for (int i = 0; i < 3; i++)
            MPI_Wait(&prepared[i], MPI_STATUS_IGNORE);
        MPI_Barrier(MPI_COMM_WORLD);
        locks(windows[0], windows[1], round);
        MPI_Barrier(MPI_COMM_WORLD);
        fences(windows[1]);
        work();
        MPI_Neighbor_alltoall(in, 1, MPI_INT, out, 1, MPI_INT, ring);
        work();
        MPI_File_write_ordered(file, &rank, round % 2, MPI_INT, MPI_STATUS_IGNORE);
        work();
        MPI_Request request;
        MPI_File_iwrite_at_all(file, 4096 + rank * 4, &rank, 1, MPI_INT, &request);
        work();
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_File_write_at_all_begin(file, 8192 + rank * 4, &rank, 1, MPI_INT);
        work();
        MPI_File_write_at_all_end(file, &rank, MPI_STATUS_IGNORE);
        MPI_File_sync(file);
    }
    MPI_File_close(&file);
    for (int i = 0; i < 3; i++)
        MPI_Request_free(&prepared[i]);
    MPI_Comm_free(&ring);
    for (int i = 0; i < 2; i++)
        MPI_Win_free(&windows[i]);
    MPI_Finalize();
}
