/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* One rank sends itself elements of several datatypes. The tag is the number of contiguous blocks in an element. */
#include <mpi.h>
#include <stdlib.h>

static char *data, *room;

static void send(MPI_Datatype type, int blocks) {
    MPI_Type_commit(&type);
    /* Twice: what is known of a datatype is kept. */
    for (int i = 0; i < 2; i++)
        MPI_Sendrecv(data, 1, type, 0, blocks, room, 1 << 20, MPI_BYTE, 0, blocks, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Type_free(&type);
}

int main(int argc, char **argv) {
    MPI_Datatype type, inner, three;
    int lengths[3] = {1, 4, 2}, places[3] = {0, 5, 20}, sizes[3] = {10, 8, 6}, zeros[3] = {0, 0, 0};
    MPI_Aint offsets[2] = {0, 64};
    MPI_Init(&argc, &argv);
    data = calloc(1 << 20, 1);
    room = calloc(1 << 20, 1);
    MPI_Type_contiguous(100, MPI_DOUBLE, &type);
    send(type, 1);
    MPI_Type_vector(50, 1, 10, MPI_DOUBLE, &type);
    send(type, 50);
    MPI_Type_vector(7, 20, 30, MPI_DOUBLE, &type);
    send(type, 7);
    MPI_Type_indexed(3, lengths, places, MPI_DOUBLE, &type);
    send(type, 3);
    MPI_Type_create_indexed_block(3, 4, places, MPI_DOUBLE, &type);
    send(type, 3);
    /* Rows, planes and columns of an array of 10 x 8 x 6, the last index fastest. */
    MPI_Type_create_subarray(3, sizes, (int[3]){1, 8, 6}, zeros, MPI_ORDER_C, MPI_DOUBLE, &type);
    send(type, 1);
    MPI_Type_create_subarray(3, sizes, (int[3]){10, 1, 6}, zeros, MPI_ORDER_C, MPI_DOUBLE, &type);
    send(type, 10);
    MPI_Type_create_subarray(3, sizes, (int[3]){10, 8, 1}, zeros, MPI_ORDER_C, MPI_DOUBLE, &type);
    send(type, 80);
    MPI_Type_create_subarray(3, sizes, (int[3]){10, 8, 1}, zeros, MPI_ORDER_FORTRAN, MPI_DOUBLE, &type);
    send(type, 1);
    /* Five times every second of eight doubles, and an int before two doubles. */
    MPI_Type_vector(4, 1, 2, MPI_DOUBLE, &inner);
    MPI_Type_contiguous(5, inner, &type);
    send(type, 20);
    MPI_Type_create_struct(2, (int[2]){3, 2}, offsets, (MPI_Datatype[2]){MPI_DOUBLE, inner}, &three);
    MPI_Type_create_resized(three, 0, 1024, &type);
    send(type, 9);
    /* What is sent decides: doubles here, and columns are received. */
    MPI_Type_vector(50, 1, 10, MPI_DOUBLE, &type);
    MPI_Type_commit(&type);
    MPI_Sendrecv(data, 50, MPI_DOUBLE, 0, 0, room, 1, type, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Type_free(&type);
    MPI_Type_free(&three);
    MPI_Type_free(&inner);
    free(data);
    free(room);
    MPI_Finalize();
}
