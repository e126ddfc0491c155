/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Columns of a matrix, blocks of different lengths, and types made of types: the bytes are those that move. */
#include "conformance.h"
void strided(void) {
    int matrix[6][5], column[6], in[12], lengths[3] = {1, 2, 3}, places[3] = {0, 5, 10}, count;
    MPI_Datatype down, pieces, both;
    MPI_Status status;
    for (int i = 0; i < 6; i++)
        fill(matrix[i], 5, 10 * rank + i);
    MPI_Type_vector(6, 1, 5, MPI_INT, &down);
    MPI_Type_commit(&down);
    MPI_Type_indexed(3, lengths, places, MPI_INT, &pieces);
    MPI_Type_commit(&pieces);
    MPI_Type_create_hvector(2, 1, sizeof matrix[0], pieces, &both);
    MPI_Type_commit(&both);
    MPI_Sendrecv(&matrix[0][2], 1, down, right, 1, column, 6, MPI_INT, left, 1, WORLD, &status);
    CHECK(column[0] == 10000 * left + 2 && column[5] == 10000 * left + 5002);
    MPI_Sendrecv(matrix, 1, pieces, right, 2, in, 12, MPI_INT, left, 2, WORLD, &status);
    MPI_Get_count(&status, MPI_INT, &count);
    CHECK(count == 6);
    MPI_Bcast(matrix, 1, both, 0, WORLD);
    MPI_Type_free(&down);
    MPI_Type_free(&pieces);
    MPI_Type_free(&both);
    expect("MPI_Sendrecv", 48, 48);
    expect("MPI_Bcast", rank ? 0 : 48, rank ? 48 : 0);
}
