/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Runs reference programs one after the other: `reference heat 1024 30 jacobi 1920 25 grid 1024 30`. */
#include "programs.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    for (int i = 1; i + 2 < argc; i += 3) {
        int size = atoi(argv[i + 1]), steps = atoi(argv[i + 2]);
        if (strcmp(argv[i], "heat") == 0)
            heat(size, steps);
        else if (strcmp(argv[i], "jacobi") == 0)
            jacobi(size, steps);
        else if (strcmp(argv[i], "grid") == 0)
            grid(size, steps);
        else {
            fprintf(stderr, "reference: no program %s\n", argv[i]);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
    }
    MPI_Finalize();
    return 0;
}
