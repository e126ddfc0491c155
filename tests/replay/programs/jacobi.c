/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Jacobi's method on a plane that is cut into stripes: halos by non-blocking messages, an all-reduce every tenth sweep.
 * jacobi [SWEEPS [WIDTH]] */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 24 };

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int sweeps = argc > 1 ? atoi(argv[1]) : 40, width = argc > 2 ? atoi(argv[2]) : 64;
    double *now = calloc((ROWS + 2) * width, sizeof *now), *next = calloc((ROWS + 2) * width, sizeof *next), change = 0;
    int up = rank > 0 ? rank - 1 : MPI_PROC_NULL, down = rank < size - 1 ? rank + 1 : MPI_PROC_NULL;
    for (int x = 0; rank == 0 && x < width; x++)
        now[x] = next[x] = 1;
    for (int sweep = 0; sweep < sweeps; sweep++) {
        MPI_Request requests[4];
        MPI_Irecv(now, width, MPI_DOUBLE, up, 1, MPI_COMM_WORLD, &requests[0]);
        MPI_Irecv(now + (ROWS + 1) * width, width, MPI_DOUBLE, down, 2, MPI_COMM_WORLD, &requests[1]);
        MPI_Isend(now + width, width, MPI_DOUBLE, up, 2, MPI_COMM_WORLD, &requests[2]);
        MPI_Isend(now + ROWS * width, width, MPI_DOUBLE, down, 1, MPI_COMM_WORLD, &requests[3]);
        MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
        change = 0;
        for (int y = 1; y <= ROWS; y++)
            for (int x = 1; x < width - 1; x++) {
                double *at = now + y * width + x, to = 0.25 * (at[-1] + at[1] + at[-width] + at[width]);
                change += (to - *at) * (to - *at);
                next[y * width + x] = to;
            }
        double *swapped = now;
        now = next;
        next = swapped;
        if (sweep % 10 == 9) {
            double all;
            MPI_Allreduce(&change, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
            change = all;
            /* The path depends on the others' numbers. */
            if (all < 1e-3)
                break;
        }
    }
    printf("rank %d of %d: change %.17g, middle %.17g\n", rank, size, change, now[ROWS / 2 * width + width / 2]);
    MPI_Finalize();
    return 0;
}
