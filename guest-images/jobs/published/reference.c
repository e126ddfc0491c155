/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Runs reference programs one after the other, in C or (-f) in Fortran:
   `reference heat 1024 30 jacobi 1920 25 grid 1024 30 heat-f 1024 30`. */
#include "programs.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The Fortran ones. */
void heat_(const int *size, const int *steps);
void jacobi_(const int *size, const int *iterations);
void grid_(const int *size, const int *sweeps);

void one_is_late(void)
{
    static int number;
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    /* Not a power of two, in which algorithms count. */
    if (rank == 5 * number++ % ranks)
        for (double end = MPI_Wtime() + 10e-3; MPI_Wtime() < end;)
            ;
}

/* Fortran's entry to one_is_late. */
void one_is_late_(void)
{
    one_is_late();
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    for (int i = 1; i + 2 < argc; i += 3) {
        const char *name = argv[i];
        int size = atoi(argv[i + 1]), steps = atoi(argv[i + 2]);
        if (strcmp(name, "heat") == 0)
            heat(size, steps);
        else if (strcmp(name, "jacobi") == 0)
            jacobi(size, steps);
        else if (strcmp(name, "grid") == 0)
            grid(size, steps);
        else if (strcmp(name, "heat-f") == 0)
            heat_(&size, &steps);
        else if (strcmp(name, "jacobi-f") == 0)
            jacobi_(&size, &steps);
        else if (strcmp(name, "grid-f") == 0)
            grid_(&size, &steps);
        else {
            fprintf(stderr, "reference: no program %s\n", name);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
    }
    MPI_Finalize();
    return 0;
}
