/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Parallel HDF5: every rank writes its rows of a matrix, closes the file, and reads the rows of the next rank. The library's names are
 * declared here and its constants looked up at run time, so that the program needs mpi.h and the image's libhdf5 alone.
 *
 *     mpicc.openmpi -O2 -o hdf5-openmpi hdf5.c -ldl        LIBHDF5=libhdf5_openmpi.so.103
 *     mpicc.mpich -O2 -o hdf5-mpich hdf5.c -ldl            LIBHDF5=libhdf5_mpich.so.103
 */
#include <dlfcn.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 64, COLUMNS = 512 };

typedef int64_t hid_t;
typedef unsigned long long hsize_t;

static int rank, ranks;
static void *library;

static void *symbol(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return found;
}

#define CALL(result, name, ...) ((result(*)())symbol(#name))(__VA_ARGS__)
#define ID(name) (*(hid_t *)symbol(#name))

static hid_t valid(hid_t id, const char *what) {
    if (id < 0) {
        fprintf(stderr, "rank %d: %s fails\n", rank, what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return id;
}

static hid_t open_file(const char *path, int create) {
    hid_t access = valid(CALL(hid_t, H5Pcreate, ID(H5P_CLS_FILE_ACCESS_ID_g)), "H5Pcreate");
    valid(CALL(int, H5Pset_fapl_mpio, access, MPI_COMM_WORLD, MPI_INFO_NULL), "H5Pset_fapl_mpio");
    hid_t file = create ? CALL(hid_t, H5Fcreate, path, 2u /* H5F_ACC_TRUNC */, (hid_t)0, access)
                        : CALL(hid_t, H5Fopen, path, 0u /* H5F_ACC_RDONLY */, access);
    CALL(int, H5Pclose, access);
    return valid(file, "the file's opening");
}

/* Collective transfer of a rank's rows. */
static void transfer(hid_t set, int who, double *rows, int write) {
    hsize_t start[2] = {(hsize_t)who * ROWS, 0}, count[2] = {ROWS, COLUMNS};
    hid_t in_file = valid(CALL(hid_t, H5Dget_space, set), "H5Dget_space");
    hid_t in_memory = valid(CALL(hid_t, H5Screate_simple, 2, count, (hsize_t *)NULL), "H5Screate_simple");
    valid(CALL(int, H5Sselect_hyperslab, in_file, 0, start, (hsize_t *)NULL, count, (hsize_t *)NULL), "H5Sselect_hyperslab");
    hid_t how = valid(CALL(hid_t, H5Pcreate, ID(H5P_CLS_DATASET_XFER_ID_g)), "H5Pcreate");
    valid(CALL(int, H5Pset_dxpl_mpio, how, 1 /* collective */), "H5Pset_dxpl_mpio");
    hid_t type = ID(H5T_NATIVE_DOUBLE_g);
    valid(write ? CALL(int, H5Dwrite, set, type, in_memory, in_file, how, rows) : CALL(int, H5Dread, set, type, in_memory, in_file, how, rows),
          write ? "H5Dwrite" : "H5Dread");
    CALL(int, H5Pclose, how);
    CALL(int, H5Sclose, in_memory);
    CALL(int, H5Sclose, in_file);
}

int main(int argc, char **argv) {
    static double rows[ROWS * COLUMNS];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *name = getenv("LIBHDF5");
    library = dlopen(name ? name : "libhdf5_openmpi.so.103", RTLD_NOW);
    if (argc != 2 || !library) {
        fprintf(stderr, "usage: %s FILE (%s)\n", argv[0], library ? "" : dlerror());
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    valid(CALL(int, H5open), "H5open");
    hsize_t size[2] = {(hsize_t)ranks * ROWS, COLUMNS};
    for (int i = 0; i < ROWS * COLUMNS; i++)
        rows[i] = rank + i / 1e6;
    hid_t file = open_file(argv[1], 1);
    hid_t space = valid(CALL(hid_t, H5Screate_simple, 2, size, (hsize_t *)NULL), "H5Screate_simple");
    hid_t set = valid(CALL(hid_t, H5Dcreate2, file, "matrix", ID(H5T_NATIVE_DOUBLE_g), space, (hid_t)0, (hid_t)0, (hid_t)0), "H5Dcreate2");
    transfer(set, rank, rows, 1);
    CALL(int, H5Dclose, set);
    CALL(int, H5Sclose, space);
    valid(CALL(int, H5Fclose, file), "H5Fclose");

    file = open_file(argv[1], 0);
    set = valid(CALL(hid_t, H5Dopen2, file, "matrix", (hid_t)0), "H5Dopen2");
    int who = (rank + 1) % ranks, wrong = 0, all = 0;
    transfer(set, who, rows, 0);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        wrong += rows[i] != who + i / 1e6;
    CALL(int, H5Dclose, set);
    valid(CALL(int, H5Fclose, file), "H5Fclose");
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0)
        printf("hdf5: %d ranks, %d wrong values of %d\n", ranks, all, ranks * ROWS * COLUMNS);
    MPI_Finalize();
    return all != 0;
}
