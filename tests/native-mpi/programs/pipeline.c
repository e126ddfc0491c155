/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A pipeline: each rank works on a block and passes it on without waiting, the next block being on its way meanwhile. */
#include "measured.h"

#include <math.h>

enum { BLOCK = 6000, AHEAD = 2 };

int main(int argc, char **argv) {
    begin(&argc, &argv);
    int blocks = argc > 1 ? atoi(argv[1]) : 6000, from = rank - 1, to = rank + 1;
    static double in[AHEAD][BLOCK], out[AHEAD][BLOCK];
    MPI_Request receives[AHEAD], sends[AHEAD];
    for (int i = 0; i < AHEAD; i++)
        receives[i] = sends[i] = MPI_REQUEST_NULL;
    double sum = 0;
    measured_begins();
    for (int i = 0; i < AHEAD && rank > 0; i++)
        MPI_Irecv(in[i], BLOCK, MPI_DOUBLE, from, 0, MPI_COMM_WORLD, &receives[i]);
    for (int block = 0; block < blocks; block++) {
        int slot = block % AHEAD;
        if (rank > 0)
            MPI_Wait(&receives[slot], MPI_STATUS_IGNORE);
        MPI_Wait(&sends[slot], MPI_STATUS_IGNORE);
        /* Odd ranks have a tenth more to do. */
        int rounds = rank % 2 ? 22 : 20;
        for (int i = 0; i < BLOCK; i++) {
            double value = rank ? in[slot][i] : block + i;
            for (int k = 0; k < rounds; k++)
                value = value * 0.999 + 1;
            out[slot][i] = value;
        }
        sum += out[slot][block % BLOCK];
        if (rank > 0 && block + AHEAD < blocks)
            MPI_Irecv(in[slot], BLOCK, MPI_DOUBLE, from, 0, MPI_COMM_WORLD, &receives[slot]);
        if (to < ranks)
            MPI_Isend(out[slot], BLOCK, MPI_DOUBLE, to, 0, MPI_COMM_WORLD, &sends[slot]);
    }
    MPI_Waitall(AHEAD, sends, MPI_STATUSES_IGNORE);
    measured_ends(sum);
}
