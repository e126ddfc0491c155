/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The measured part of a program: from the return of its first barrier to the return of its second. Prints its seconds on rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static double began;

static void begin(int *argc, char ***argv) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
}

static void measured_begins(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    began = MPI_Wtime();
}

static void measured_ends(double result) {
    MPI_Barrier(MPI_COMM_WORLD);
    double took = MPI_Wtime() - began;
    if (rank == 0)
        printf("result %.12g\nseconds %.9f\n", result, took);
    MPI_Finalize();
}
