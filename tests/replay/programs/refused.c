/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A window for one-sided communication, which recordings do not cover. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
    double memory[4] = {0};
    MPI_Win window;
    MPI_Init(&argc, &argv);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_create(memory, sizeof memory, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_free(&window);
    MPI_Finalize();
    printf("finished\n");
    return 0;
}
