/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Measures MPI calls of one rank by the time-stamp counter, and prints the shortest of many times for each function. */
#include <mpi.h>
#include <stdio.h>
#include <x86intrin.h>

#define ROUNDS 400

int main(int argc, char **argv) {
    enum { IPROBE, BARRIER, ALLREDUCE, SENDRECV, WAITALL, CALLS };
    static const char *const names[CALLS] = { "Iprobe", "Barrier", "Allreduce", "Sendrecv", "Irecv+Isend+Waitall" };
    unsigned long long least[CALLS];
    int flag, in[4] = { 1, 2, 3, 4 }, out[4];
    MPI_Status status, both[2];
    MPI_Request requests[2];
    MPI_Init(&argc, &argv);
    for (int call = 0; call < CALLS; call++) {
        least[call] = ~0ull;
        for (int round = 0; round < ROUNDS; round++) {
            unsigned long long from = __rdtsc();
            switch (call) {
            case IPROBE:
                MPI_Iprobe(MPI_ANY_SOURCE, 7, MPI_COMM_WORLD, &flag, &status);
                break;
            case BARRIER:
                MPI_Barrier(MPI_COMM_WORLD);
                break;
            case ALLREDUCE:
                MPI_Allreduce(in, out, 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
                break;
            case SENDRECV:
                MPI_Sendrecv(in, 4, MPI_INT, 0, 1, out, 4, MPI_INT, 0, 1, MPI_COMM_WORLD, &status);
                break;
            case WAITALL:
                MPI_Irecv(out, 4, MPI_INT, 0, 2, MPI_COMM_WORLD, &requests[0]);
                MPI_Isend(in, 4, MPI_INT, 0, 2, MPI_COMM_WORLD, &requests[1]);
                MPI_Waitall(2, requests, both);
                break;
            }
            unsigned long long took = __rdtsc() - from;
            if (took < least[call])
                least[call] = took;
        }
    }
    MPI_Finalize();
    for (int call = 0; call < CALLS; call++)
        printf("cost %s %llu\n", names[call], least[call]);
    return 0;
}
