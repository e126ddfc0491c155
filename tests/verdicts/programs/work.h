/* Parts that the programs share. Each program has a planted fault, in the line with the comment FAULT, and is repaired with -DREPAIRED. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 60, UNIT = 8000000 };

static int rank, ranks;

/* Computes for a time in proportion to n: one division in a chain of dependent ones for each. */
__attribute__((noipa)) static double compute(double x, long n) {
    for (long i = 0; i < n; i += 16) x = 1.0 + x / 1.5;
    return x;
}

static void start(int *argc, char ***argv) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
}

static void end(double x) {
    if (rank == 0) printf("%g\n", x);
    MPI_Finalize();
}
