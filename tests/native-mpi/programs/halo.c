/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Jacobi's method on a square cut into strips: non-blocking exchange of edges, its residual by an all-reduce every tenth sweep. */
#include "measured.h"

#include <math.h>

int main(int argc, char **argv) {
    begin(&argc, &argv);
    int side = argc > 1 ? atoi(argv[1]) : 512, sweeps = argc > 2 ? atoi(argv[2]) : 2500, rows = side / ranks;
    double *now = calloc((size_t)(rows + 2) * side, sizeof *now), *next = calloc((size_t)(rows + 2) * side, sizeof *next);
    int up = rank > 0 ? rank - 1 : MPI_PROC_NULL, down = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
    for (int j = 0; j < side && rank == 0; j++)
        now[j] = next[j] = 1;
    double residual = 0;
    measured_begins();
    for (int sweep = 0; sweep < sweeps; sweep++) {
        MPI_Request requests[4];
        MPI_Irecv(now, side, MPI_DOUBLE, up, 0, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(now + (rows + 1) * side, side, MPI_DOUBLE, down, 1, MPI_COMM_WORLD, &requests[1]);
        MPI_Isend(now + side, side, MPI_DOUBLE, up, 1, MPI_COMM_WORLD, &requests[2]);
        MPI_Isend(now + rows * side, side, MPI_DOUBLE, down, 0, MPI_COMM_WORLD, &requests[3]);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
        double sum = 0;
        for (int i = 1; i <= rows; i++)
            for (int j = 1; j < side - 1; j++) {
                int at = i * side + j;
                next[at] = 0.25 * (now[at - side] + now[at + side] + now[at - 1] + now[at + 1]);
                sum += fabs(next[at] - now[at]);
            }
        double *swap = now;
        now = next;
        next = swap;
        if (sweep % 10 == 9)
            MPI_Allreduce(&sum, &residual, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    measured_ends(residual);
}
