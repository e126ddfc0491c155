/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* MPI and OpenMP: each rank has a loop, critical constructs, barriers and a reduction over all ranks, four times. */
#include <mpi.h>
#include <stdio.h>

#include "nodescope-interval.h"

static volatile long sink;

static void work(long steps) {
    for (volatile long i = 0; i < steps; i++)
        ;
}

int main(int argc, char **argv) {
    int rank, provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int step = 0; step < 4; step++) {
        long own = 0, all = 0;
        nodescope_interval_begin("step");
#pragma omp parallel
        {
#pragma omp for schedule(dynamic, 2)
            for (int i = 0; i < 40; i++)
                work(rank ? 4000 : 1000);
#pragma omp critical
            own++;
#pragma omp barrier
        }
        nodescope_interval_end("step");
        MPI_Allreduce(&own, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        sink += all;
    }
    if (rank == 0)
        printf("threads %ld\n", sink / 4);
    MPI_Finalize();
    return 0;
}
