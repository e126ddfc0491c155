/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Parts of an array: the border of a block with its halo. */
#include "conformance.h"
void blocks(void) {
    enum { N = 8 };
    int field[N][N], sizes[2] = {N, N}, part[2] = {N, 1}, from[2] = {0, N - 2}, to[2] = {0, 0};
    MPI_Datatype border, halo;
    for (int i = 0; i < N; i++)
        fill(field[i], N, rank);
    MPI_Type_create_subarray(2, sizes, part, from, MPI_ORDER_C, MPI_INT, &border);
    MPI_Type_create_subarray(2, sizes, part, to, MPI_ORDER_C, MPI_INT, &halo);
    MPI_Type_commit(&border);
    MPI_Type_commit(&halo);
    MPI_Sendrecv(field, 1, border, right, 1, field, 1, halo, left, 1, WORLD, IGNORE);
    for (int i = 0; i < N; i++)
        CHECK(field[i][0] == 1000 * left + N - 2);
    MPI_Type_free(&border);
    MPI_Type_free(&halo);
    expect("MPI_Sendrecv", 4 * N, 4 * N);
}
