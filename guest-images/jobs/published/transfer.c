/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Messages of many sizes, from whose trace a network's overheads follow: to and fro between ranks 0 and 1 (tag 1), from each rank to
   the next round a ring (tag 2), and to a rank that receives long after (tag 3). `transfer LARGEST ROUNDS`. */
#include <mpi.h>
#include <stdlib.h>

static const int sizes[] = {0,    8,    64,   256,   512,   1024,  1500,  2048, 3072,
                            4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65000};

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int largest = argc > 1 ? atoi(argv[1]) : 65000, rounds = argc > 2 ? atoi(argv[2]) : 6, rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int after = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    char *data = calloc(1, (size_t)largest + 1), *other = calloc(1, (size_t)largest + 1);
    if (!data || !other || ranks < 2)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= largest; i++) {
        int size = sizes[i];
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (int k = 0; k < rounds; k++)
            for (int way = 0; way < 2; way++)
                if (rank == way)
                    MPI_Send(data, size, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD);
                else if (rank == 1 - way)
                    MPI_Recv(data, size, MPI_BYTE, way, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        double round = (MPI_Wtime() - start) / rounds;
        MPI_Barrier(MPI_COMM_WORLD);
        for (int k = 0; k < 2 * rounds; k++)
            MPI_Sendrecv(data, size, MPI_BYTE, after, 2, other, size, MPI_BYTE, before, 2, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
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
    MPI_Finalize();
    return 0;
}
