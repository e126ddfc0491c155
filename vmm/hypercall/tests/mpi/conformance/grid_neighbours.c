/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Neighbourhood collectives on a line, where the outer ranks have one neighbour, and on a torus. */
#include "conformance.h"
void grid_neighbours(void) {
    int dims[1] = {4}, open[1] = {0}, torus_dims[2] = {2, 2}, closed[2] = {1, 1}, out[4] = {rank, rank, rank, rank}, in[4];
    MPI_Comm line, torus;
    MPI_Cart_create(WORLD, 1, dims, open, 0, &line);
    MPI_Cart_create(WORLD, 2, torus_dims, closed, 0, &torus);
    in[0] = in[1] = -1;
    MPI_Neighbor_allgather(out, 1, MPI_INT, in, 1, MPI_INT, line);
    CHECK(in[0] == (rank == 0 ? -1 : rank - 1) && in[1] == (rank == 3 ? -1 : rank + 1));
    MPI_Neighbor_alltoall(out, 1, MPI_INT, in, 1, MPI_INT, line);
    MPI_Neighbor_allgather(out, 2, MPI_INT, (int[8]){0}, 2, MPI_INT, torus);
    MPI_Neighbor_alltoall(out, 1, MPI_INT, in, 1, MPI_INT, torus);
    MPI_Comm_free(&line);
    MPI_Comm_free(&torus);
    int near = rank == 0 || rank == 3 ? 1 : 2;
    expect("MPI_Neighbor_allgather", 4 + 8, 4 * near + 32);
    expect("MPI_Neighbor_alltoall", 4 * near + 16, 4 * near + 16);
}
