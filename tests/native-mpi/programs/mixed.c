/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Messages of 8 bytes to 1 MiB, blocking, one after the other and both ways, broadcasts and an all-to-all, with work between them. */
#include "measured.h"

enum { LARGEST = 1 << 20 };

static double work(double *data, int rounds) {
    for (int k = 0; k < rounds; k++)
        for (int i = 1; i < 1024; i++)
            data[i] = 0.5 * (data[i - 1] + data[i]) + 1e-3;
    return data[1023];
}

int main(int argc, char **argv) {
    begin(&argc, &argv);
    int cycles = argc > 1 ? atoi(argv[1]) : 120, next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    char *out = calloc(1, LARGEST), *in = calloc(1, LARGEST);
    static double data[1024];
    double sum = 0;
    measured_begins();
    for (int cycle = 0; cycle < cycles; cycle++) {
        for (int bytes = 8; bytes <= LARGEST; bytes *= 2) {
            sum += work(data, 40 + bytes / 16384);
            if (rank % 2) {
                MPI_Recv(in, bytes, MPI_BYTE, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(out, bytes, MPI_BYTE, next, 0, MPI_COMM_WORLD);
            } else {
                MPI_Send(out, bytes, MPI_BYTE, next, 0, MPI_COMM_WORLD);
                MPI_Recv(in, bytes, MPI_BYTE, before, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            }
            sum += work(data, 25);
            MPI_Bcast(out, bytes < 4096 ? bytes : 4096, MPI_BYTE, cycle % ranks, MPI_COMM_WORLD);
        }
        sum += work(data, 60 + 30 * rank);
        MPI_Sendrecv(out, 20000, MPI_BYTE, next, 1, in, 20000, MPI_BYTE, before, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Alltoall(out, 8192, MPI_BYTE, in, 8192, MPI_BYTE, MPI_COMM_WORLD);
        sum += in[cycle];
    }
    measured_ends(sum);
}
