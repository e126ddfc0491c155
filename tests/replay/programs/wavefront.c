/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sweeps of discrete ordinates over a grid of cells in the manner of Sweep3D (Koch, Baker and Alcouffe, 1992): the columns of cells are
 * dealt to a grid of ranks; a sweep begins in each corner in turn and passes the fluxes at the faces of blocks of planes on to the next
 * ranks. Cells near the origin are thick and need more inner iterations, so that ranks compute for different times.
 *
 * wavefront [SWEEPS [CELLS]]: CELLS is the length of a rank's part, in cells.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { PLANES = 8, BLOCK = 2 };

int main(int argc, char **argv) {
    int rank, size, dims[2] = {0, 0}, periods[2] = {0, 0}, place[2], west, east, south, north;
    MPI_Comm grid;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Dims_create(size, 2, dims);
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid);
    MPI_Comm_rank(grid, &rank);
    MPI_Cart_coords(grid, rank, 2, place);
    MPI_Cart_shift(grid, 0, 1, &west, &east);
    MPI_Cart_shift(grid, 1, 1, &south, &north);
    int sweeps = argc > 1 ? atoi(argv[1]) : 2, n = argc > 2 ? atoi(argv[2]) : 12;
    double *flux = calloc((size_t)PLANES * n * n, sizeof *flux), *x_face = calloc((size_t)BLOCK * n, sizeof *x_face);
    double *y_face = calloc((size_t)BLOCK * n, sizeof *y_face), error = 0;
    double *z_face = calloc((size_t)n * n, sizeof *z_face);
    for (int sweep = 0; sweep < sweeps; sweep++) {
        error = 0;
        for (int corner = 0; corner < 4; corner++) {
            int forward_x = corner & 1, forward_y = corner >> 1;
            int from_x = forward_x ? west : east, to_x = forward_x ? east : west;
            int from_y = forward_y ? south : north, to_y = forward_y ? north : south;
            for (int i = 0; i < n * n; i++)
                z_face[i] = 1;
            for (int plane = 0; plane < PLANES; plane += BLOCK) {
                for (int i = 0; i < BLOCK * n; i++)
                    x_face[i] = y_face[i] = 0.5;
                MPI_Recv(x_face, BLOCK * n, MPI_DOUBLE, from_x, corner, grid, MPI_STATUS_IGNORE);
                MPI_Recv(y_face, BLOCK * n, MPI_DOUBLE, from_y, corner, grid, MPI_STATUS_IGNORE);
                for (int z = 0; z < BLOCK; z++)
                    for (int j = 0; j < n; j++)
                        for (int i = 0; i < n; i++) {
                            int x = forward_x ? i : n - 1 - i, y = forward_y ? j : n - 1 - j;
                            int thick = place[0] * n + x + place[1] * n + y < n * dims[0];
                            double in = x_face[z * n + y] + y_face[z * n + x] + z_face[y * n + x], out = in / 3;
                            for (int inner = 0; inner < (thick ? 6 : 3); inner++)
                                out = (in + 0.7 * sqrt(out)) / 4.1;
                            double *at = &flux[((size_t)(plane + z) * n + y) * n + x], before = *at;
                            *at = 0.5 * before + 0.125 * out;
                            error += fabs(*at - before);
                            x_face[z * n + y] = y_face[z * n + x] = z_face[y * n + x] = out;
                        }
                MPI_Send(x_face, BLOCK * n, MPI_DOUBLE, to_x, corner, grid);
                MPI_Send(y_face, BLOCK * n, MPI_DOUBLE, to_y, corner, grid);
            }
        }
        double all;
        MPI_Allreduce(&error, &all, 1, MPI_DOUBLE, MPI_SUM, grid);
        error = all;
    }
    printf("rank %d of %d: error %.17g, flux %.17g\n", rank, size, error, flux[n + 1]);
    MPI_Comm_free(&grid);
    MPI_Finalize();
    return 0;
}
