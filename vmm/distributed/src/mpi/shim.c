/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Functions of MPI with the handles and constants of the standard ABI (MPI 5.0, chapter 20), for libraries that do not have this ABI.
 * nodescope compiles this file by the compiler of such a library, mpicc, and loads the result (vmm/distributed/src/mpi/library.rs). */
#include <mpi.h>
#include <stdint.h>
#include <string.h>

/* Constants of the standard ABI. */
#define ABI_THREAD_FUNNELED 1024
#define ABI_THREAD_SERIALIZED 2048
#define ABI_THREAD_MULTIPLE 4096
#define ABI_REQUEST_NULL ((void *)0x180)

/* A handle of this library lies in the pointer that the standard ABI has in its place. */
_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "a request is larger than a pointer");

static MPI_Request request_of(void *handle) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (handle != ABI_REQUEST_NULL)
        memcpy(&request, &handle, sizeof request);
    return request;
}

static void *handle_of(MPI_Request request) {
    void *handle = 0;
    if (request == MPI_REQUEST_NULL)
        return ABI_REQUEST_NULL;
    memcpy(&handle, &request, sizeof request);
    return handle;
}

int nodescope_MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    int level = required == ABI_THREAD_SERIALIZED ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE;
    int given = MPI_THREAD_SINGLE;
    int error = MPI_Init_thread(argc, argv, level, &given);
    *provided = given >= MPI_THREAD_MULTIPLE ? ABI_THREAD_MULTIPLE
        : given >= MPI_THREAD_SERIALIZED     ? ABI_THREAD_SERIALIZED
        : given >= MPI_THREAD_FUNNELED       ? ABI_THREAD_FUNNELED
                                             : 0;
    return error;
}

int nodescope_MPI_Finalize(void) {
    return MPI_Finalize();
}

/* All functions below have one communicator, MPI_COMM_WORLD, and one datatype, MPI_BYTE. */

int nodescope_MPI_Comm_rank(void *world, int *rank) {
    (void)world;
    return MPI_Comm_rank(MPI_COMM_WORLD, rank);
}

int nodescope_MPI_Comm_size(void *world, int *size) {
    (void)world;
    return MPI_Comm_size(MPI_COMM_WORLD, size);
}

int nodescope_MPI_Comm_set_errhandler(void *world, void *errors_return) {
    (void)world, (void)errors_return;
    return MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
}

int nodescope_MPI_Isend(const void *buffer, int count, void *byte, int to, int tag, void *world, void **handle) {
    MPI_Request request = MPI_REQUEST_NULL;
    (void)byte, (void)world;
    int error = MPI_Isend((void *)(uintptr_t)buffer, count, MPI_BYTE, to, tag, MPI_COMM_WORLD, &request);
    *handle = handle_of(request);
    return error;
}

int nodescope_MPI_Irecv(void *buffer, int count, void *byte, int from, int tag, void *world, void **handle) {
    MPI_Request request = MPI_REQUEST_NULL;
    (void)byte, (void)world;
    int error = MPI_Irecv(buffer, count, MPI_BYTE, from, tag, MPI_COMM_WORLD, &request);
    *handle = handle_of(request);
    return error;
}

/* The status is ignored. */
int nodescope_MPI_Test(void **handle, int *done, void *status) {
    MPI_Request request = request_of(*handle);
    (void)status;
    int error = MPI_Test(&request, done, MPI_STATUS_IGNORE);
    *handle = handle_of(request);
    return error;
}

int nodescope_MPI_Error_string(int code, char *text, int *length) {
    return MPI_Error_string(code, text, length);
}

int nodescope_MPI_Get_library_version(char *text, int *length) {
    return MPI_Get_library_version(text, length);
}
