/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A file that all ranks write and read at places that they name, with and without requests. */
#include "conformance.h"
void files(void) {
    char *name = getenv("CONFORMANCE_FILE");
    int values[10], in[10];
    MPI_Offset own = 40 * rank, bytes;
    MPI_File file;
    MPI_Status status;
    MPI_Request request;
    fill(values, 10, rank);
    CHECK(MPI_File_open(WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file) == MPI_SUCCESS);
    MPI_File_write_at(file, own, values, 5, MPI_INT, &status);
    MPI_File_iwrite_at(file, own + 20, values + 5, 5, MPI_INT, &request);
    MPI_Wait(&request, IGNORE);
    MPI_File_sync(file);
    MPI_Barrier(WORLD);
    MPI_File_read_at(file, 40 * right, in, 10, MPI_INT, &status);
    CHECK(filled(in, 10, right));
    MPI_File_write_at_all(file, own, values, 10, MPI_INT, &status);
    MPI_File_read_at_all(file, own, in, 10, MPI_INT, &status);
    MPI_File_get_size(file, &bytes);
    CHECK(bytes == 160);
    MPI_File_close(&file);
    if (rank == 0)
        MPI_File_delete(name, MPI_INFO_NULL);
    expect("MPI_File_write_at", 20, 0);
    expect("MPI_File_iwrite_at", 20, 0);
    expect("MPI_File_read_at", 0, 40);
    expect("MPI_File_write_at_all", 40, 0);
    expect("MPI_File_read_at_all", 0, 40);
}
