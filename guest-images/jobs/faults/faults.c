/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* MPI programs with a fault, `faults CASE`:

       receive   each rank receives from the other before it sends: a deadlock
       send      each rank sends more to the next than MPI buffers before it receives: a deadlock
       barrier   rank 0 enters a barrier, the last rank first waits for a message of rank 0: a deadlock
       wait      rank 0 waits for a message that rank 1 never sends: a deadlock with MPI_Finalize
       start     each rank wants access to the other's window before it gives any: a deadlock
       lock      each rank locks its own window, then the other's: a deadlock
       persist   rank 0 starts a persistent sum, the other first waits for a message of rank 0: a deadlock
       near      the same with neighbours
       file      rank 0 writes to a file together with the other, which goes to a barrier: a deadlock
       poll      rank 0 asks again and again for that message
       lost      a message that nobody receives; the program ends well
       mismatch  a broadcast meets a reduction; the program ends well, with MPIs that buffer short messages
       truncate  a message that is longer than its receive; the error is returned
       abort     the same; the error ends the program */
#include <mpi.h>
#if MPI_VERSION < 4
#include <mpi-ext.h>
#define MPI_Allreduce_init MPIX_Allreduce_init
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONG = 1 << 20 };

static int rank, ranks;
static char data[LONG], other[LONG];

static void receive(void)
{
    int peer = 1 - rank;
    MPI_Recv(data, 8, MPI_BYTE, peer, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(data, 8, MPI_BYTE, peer, 7, MPI_COMM_WORLD);
}

static void send(void)
{
    int after = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    MPI_Send(data, LONG, MPI_BYTE, after, 3, MPI_COMM_WORLD);
    MPI_Recv(other, LONG, MPI_BYTE, before, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void barrier(void)
{
    if (rank == ranks - 1)
        MPI_Recv(data, 8, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        MPI_Send(data, 8, MPI_BYTE, ranks - 1, 1, MPI_COMM_WORLD);
}

static void await(void)
{
    if (rank == 0) {
        MPI_Request request;
        MPI_Irecv(data, 8, MPI_BYTE, 1, 9, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

static void start(void)
{
    int peer = 1 - rank;
    MPI_Win window;
    MPI_Group world, group;
    MPI_Win_create(data, 8, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &peer, &group);
    MPI_Win_start(group, 0, window);
    MPI_Get(other, 8, MPI_BYTE, peer, 0, 8, MPI_BYTE, window);
    MPI_Win_complete(window);
    MPI_Win_post(group, 0, window);
    MPI_Win_wait(window);
}

static void lock(void)
{
    int peer = 1 - rank;
    char *base;
    MPI_Win window;
    MPI_Win_allocate(8, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
    MPI_Put(data, 8, MPI_BYTE, rank, 0, 8, MPI_BYTE, window);
    MPI_Win_flush(rank, window);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, peer, 0, window);
    MPI_Put(data, 8, MPI_BYTE, peer, 0, 8, MPI_BYTE, window);
    MPI_Win_unlock(peer, window);
    MPI_Win_unlock(rank, window);
}

static void persist(void)
{
    MPI_Request request;
    MPI_Allreduce_init(data, other, 8, MPI_BYTE, MPI_BOR, MPI_COMM_WORLD, MPI_INFO_NULL, &request);
    if (rank)
        MPI_Recv(data, 8, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Start(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static void near(void)
{
    int around = 1;
    MPI_Comm ring;
    MPI_Cart_create(MPI_COMM_WORLD, 1, &ranks, &around, 0, &ring);
    if (rank)
        MPI_Recv(data, 8, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Neighbor_allgather(data, 8, MPI_BYTE, other, 8, MPI_BYTE, ring);
}

static void file(void)
{
    MPI_File file;
    MPI_File_open(MPI_COMM_WORLD, "/tmp/faults", MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file);
    if (rank == 0)
        MPI_File_write_ordered(file, data, 8, MPI_BYTE, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void poll(void)
{
    for (int found = rank; !found;)
        MPI_Iprobe(1, 9, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
}

static void lost(void)
{
    if (rank == 0)
        MPI_Send(data, 100, MPI_BYTE, 1, 5, MPI_COMM_WORLD);
}

static void mismatch(void)
{
    if (rank == 0)
        MPI_Bcast(data, 8, MPI_BYTE, 0, MPI_COMM_WORLD);
    else
        MPI_Reduce(data, other, 8, MPI_BYTE, MPI_BOR, 0, MPI_COMM_WORLD);
}

static void short_receive(void)
{
    if (rank == 0)
        MPI_Send(data, 100, MPI_BYTE, 1, 5, MPI_COMM_WORLD);
    if (rank == 1) {
        int result = MPI_Recv(data, 64, MPI_BYTE, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE), class;
        MPI_Error_class(result, &class);
        printf("the receive %s\n", class == MPI_ERR_TRUNCATE ? "was too short" : "did not fail");
    }
}

static void truncate(void)
{
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    short_receive();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"receive", receive}, {"send", send},       {"barrier", barrier},   {"wait", await},   {"start", start},
                 {"lock", lock},       {"persist", persist}, {"near", near},         {"file", file},    {"poll", poll},
                 {"lost", lost},       {"mismatch", mismatch}, {"truncate", truncate}, {"abort", short_receive}};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        if (argc > 1 && ranks > 1 && !strcmp(argv[1], cases[i].name)) {
            cases[i].run();
            MPI_Finalize();
            return 0;
        }
    fputs("usage: mpirun -n 2 faults CASE\n", stderr);
    MPI_Abort(MPI_COMM_WORLD, 2);
    return 2;
}
