/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Cartesian grids, their rows, and shifts along them. */
#include "conformance.h"
void grids(void) {
    int dims[2] = {0, 0}, periods[2] = {1, 0}, remain[2] = {0, 1}, up, down, west, east, value = rank, in = -1, sum;
    MPI_Comm grid, row;
    MPI_Dims_create(size, 2, dims);
    CHECK(dims[0] == 2 && dims[1] == 2);
    MPI_Cart_create(WORLD, 2, dims, periods, 1, &grid);
    MPI_Cart_sub(grid, remain, &row);
    MPI_Cart_shift(grid, 0, 1, &up, &down);
    MPI_Cart_shift(grid, 1, 1, &west, &east);
    MPI_Sendrecv(&value, 1, MPI_INT, down, 1, &in, 1, MPI_INT, up, 1, grid, IGNORE);
    CHECK(in >= 0);
    MPI_Sendrecv(&value, 1, MPI_INT, east, 2, &in, 1, MPI_INT, west, 2, grid, IGNORE);
    MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, row);
    expect("MPI_Sendrecv", 4 + (east == MPI_PROC_NULL ? 0 : 4), 4 + (west == MPI_PROC_NULL ? 0 : 4));
    expect("MPI_Allreduce", 4, 4);
    MPI_Comm_free(&row);
    MPI_Comm_free(&grid);
}
