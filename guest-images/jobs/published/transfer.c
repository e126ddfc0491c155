/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Messages of many sizes, from whose trace it follows what messages cost their ends. By tag:

       1  to and fro between ranks 0 and 1
       2  from each rank to the next round a ring
       3  to a rank that receives long after
       4  from each rank to the next two at once, so that two come together
       5  as 1, of columns of a matrix of doubles: a derived datatype that has to be packed
       6  as 2, of such columns

   Between calls of MPI_Barrier on MPI_COMM_SELF lie nothing, or twenty datatypes made and freed, as collectives do that name
   blocks by them. `transfer LARGEST ROUNDS`, on at least three ranks. */
#include <mpi.h>
#include <stdlib.h>

static const int sizes[] = {0,    8,    64,   256,   512,   1024,  1504,  2048, 3072,
                            4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65000};

/* Doubles of a row, of which one is sent. */
enum { LINE = 100 };

static int rank, ranks;
static char *data, *other;

static void to_and_fro(int count, MPI_Datatype type, int tag, int rounds)
{
    for (int k = 0; k < rounds; k++)
        for (int way = 0; way < 2; way++)
            if (rank == way)
                MPI_Send(data, count, type, 1 - rank, tag, MPI_COMM_WORLD);
            else if (rank == 1 - way)
                MPI_Recv(data, count, type, way, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void round_a_ring(int count, MPI_Datatype type, int tag, int rounds)
{
    int after = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    for (int k = 0; k < rounds; k++)
        MPI_Sendrecv(data, count, type, after, tag, other, count, type, before, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void to_two(int size, int rounds)
{
    char *more = other + size;
    for (int k = 0; k < rounds; k++) {
        MPI_Request requests[4];
        for (int i = 0; i < 2; i++)
            MPI_Irecv(i ? more : other, size, MPI_BYTE, (rank + ranks - 1 - i) % ranks, 4, MPI_COMM_WORLD, &requests[i]);
        for (int i = 0; i < 2; i++)
            MPI_Isend(data, size, MPI_BYTE, (rank + 1 + i) % ranks, 4, MPI_COMM_WORLD, &requests[2 + i]);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    }
}

static void long_after(int size, int rounds, double round)
{
    for (int k = 0; k < rounds; k++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 0)
            MPI_Send(data, size, MPI_BYTE, 1, 3, MPI_COMM_WORLD);
        if (rank == 1) {
            for (double end = MPI_Wtime() + 3 * round; MPI_Wtime() < end;)
                ;
            MPI_Recv(data, size, MPI_BYTE, 0, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    }
}

static void datatypes(int number)
{
    for (int k = 0; k < number; k++) {
        /* Blocks of four ranks, of which two do not follow the others. */
        int lengths[] = {120, 120, 120, 120}, starts[] = {1680, 1800, 0, 120};
        MPI_Datatype type;
        MPI_Type_indexed(4, lengths, starts, MPI_DOUBLE, &type);
        MPI_Type_commit(&type);
        MPI_Type_free(&type);
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int largest = argc > 1 ? atoi(argv[1]) : 65000, rounds = argc > 2 ? atoi(argv[2]) : 6;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    size_t matrix = ((size_t)largest / 8 + 1) * LINE * sizeof(double), room = matrix > 2 * (size_t)largest ? matrix : 2 * (size_t)largest;
    data = calloc(1, room);
    other = calloc(1, room);
    if (!data || !other || ranks < 3)
        MPI_Abort(MPI_COMM_WORLD, 1);
    /* Connections acknowledge at once when they are new. */
    round_a_ring(8, MPI_BYTE, 0, 40);
    for (int k = 0; k < 40; k++)
        MPI_Barrier(MPI_COMM_WORLD);
    to_two(8, 40);
    for (int k = 0; k < 3; k++)
        for (int number = 0; number <= 20; number += 20) {
            MPI_Barrier(MPI_COMM_SELF);
            datatypes(number);
            MPI_Barrier(MPI_COMM_SELF);
        }
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= largest; i++) {
        int size = sizes[i];
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        to_and_fro(size, MPI_BYTE, 1, rounds);
        double round = (MPI_Wtime() - start) / rounds;
        MPI_Barrier(MPI_COMM_WORLD);
        round_a_ring(size, MPI_BYTE, 2, 2 * rounds);
        MPI_Barrier(MPI_COMM_WORLD);
        to_two(size, 2 * rounds);
        long_after(size, rounds, round);
        if (size % 8 == 0 && size >= 64) {
            MPI_Datatype column;
            MPI_Type_vector(size / 8, 1, LINE, MPI_DOUBLE, &column);
            MPI_Type_commit(&column);
            MPI_Barrier(MPI_COMM_WORLD);
            to_and_fro(1, column, 5, rounds);
            MPI_Barrier(MPI_COMM_WORLD);
            round_a_ring(1, column, 6, 2 * rounds);
            MPI_Type_free(&column);
        }
    }
    MPI_Finalize();
    return 0;
}
