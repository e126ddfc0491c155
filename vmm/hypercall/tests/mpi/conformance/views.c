/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A file through a view that leaves each rank its own stripes, an own pointer, and a shared one. */
#include "conformance.h"
void views(void) {
    char name[4096];
    int values[8], in[8];
    MPI_File file;
    MPI_Datatype stripes;
    snprintf(name, sizeof name, "%s.view", getenv("CONFORMANCE_FILE"));
    fill(values, 8, rank);
    MPI_Type_vector(4, 2, 2 * size, MPI_INT, &stripes);
    MPI_Type_commit(&stripes);
    CHECK(MPI_File_open(WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file) == MPI_SUCCESS);
    MPI_File_set_view(file, 8 * rank, MPI_INT, stripes, "native", MPI_INFO_NULL);
    MPI_File_write_all(file, values, 8, MPI_INT, IGNORE);
    MPI_File_seek(file, 0, MPI_SEEK_SET);
    MPI_File_read_all(file, in, 8, MPI_INT, IGNORE);
    CHECK(filled(in, 8, rank));
    MPI_File_seek(file, 0, MPI_SEEK_SET);
    MPI_File_read(file, in, 4, MPI_INT, IGNORE);
    MPI_File_write(file, values + 4, 4, MPI_INT, IGNORE);
    MPI_File_close(&file);
    MPI_Type_free(&stripes);
    if (rank == 0)
        MPI_File_delete(name, MPI_INFO_NULL);
    expect("MPI_File_write_all", 32, 0);
    expect("MPI_File_read_all", 0, 32);
    expect("MPI_File_read", 0, 16);
    expect("MPI_File_write", 16, 0);
}
