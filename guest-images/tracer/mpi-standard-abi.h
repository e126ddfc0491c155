/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the MPI tracer needs of an mpi.h for the standard ABI of MPI (MPI 5.0, chapter 20). The ABI fixes handles, constants and layouts,
 * so that a program linked with libmpi_abi.so.1 runs with every MPI that has this library: MPICH 5, Intel MPI 2021.19, Open MPI 6.
 * The tracer's library for such programs therefore needs no MPI on the machine that builds the library.
 *
 * The definitions of the wrappers declare the functions that are wrapped. Here are only those that the tracer calls itself.
 */
#ifndef NODESCOPE_MPI_STANDARD_ABI_H
#define NODESCOPE_MPI_STANDARD_ABI_H

#include <stddef.h>
#include <stdint.h>

#define MPI_VERSION 5

typedef intptr_t MPI_Aint;
typedef int64_t MPI_Offset, MPI_Count;

/* Handles are pointers to incomplete types. Those of predefined objects are small numbers. */
#define HANDLES(X) X(Comm) X(Datatype) X(Errhandler) X(File) X(Group) X(Info) X(Message) X(Op) X(Request) X(Session) X(Win)
#define HANDLE_TYPE(name) typedef struct nodescope_abi_##name *MPI_##name;
HANDLES(HANDLE_TYPE)
#undef HANDLE_TYPE
#undef HANDLES

#define MPI_SUM ((MPI_Op)0x21)
#define MPI_MIN ((MPI_Op)0x22)
#define MPI_MAX ((MPI_Op)0x23)
#define MPI_PROD ((MPI_Op)0x24)
#define MPI_BAND ((MPI_Op)0x28)
#define MPI_BOR ((MPI_Op)0x29)
#define MPI_BXOR ((MPI_Op)0x2a)
#define MPI_LAND ((MPI_Op)0x30)
#define MPI_LOR ((MPI_Op)0x31)
#define MPI_LXOR ((MPI_Op)0x32)
#define MPI_MINLOC ((MPI_Op)0x38)
#define MPI_MAXLOC ((MPI_Op)0x39)
#define MPI_REPLACE ((MPI_Op)0x3c)
#define MPI_NO_OP ((MPI_Op)0x3d)

#define MPI_COMM_NULL ((MPI_Comm)0x100)
#define MPI_COMM_WORLD ((MPI_Comm)0x101)
#define MPI_COMM_SELF ((MPI_Comm)0x102)
#define MPI_MESSAGE_NULL ((MPI_Message)0x128)
#define MPI_MESSAGE_NO_PROC ((MPI_Message)0x129)
#define MPI_INFO_NULL ((MPI_Info)0x130)
#define MPI_REQUEST_NULL ((MPI_Request)0x180)
#define MPI_DATATYPE_NULL ((MPI_Datatype)0x200)
#define MPI_BYTE ((MPI_Datatype)0x247)

typedef struct {
    int MPI_SOURCE, MPI_TAG, MPI_ERROR;
    int MPI_internal[5];
} MPI_Status;
_Static_assert(sizeof(MPI_Status) == 32, "MPI 5.0, section 20.3");

#define MPI_STATUS_IGNORE ((MPI_Status *)0)
#define MPI_STATUSES_IGNORE ((MPI_Status *)0)
#define MPI_IN_PLACE ((void *)1)

enum {
    MPI_SUCCESS = 0,
    MPI_ANY_SOURCE = -1,
    MPI_ANY_TAG = -2,
    MPI_PROC_NULL = -3,
    MPI_ROOT = -4,
    MPI_UNDEFINED = -32766,
    MPI_THREAD_SINGLE = 0,
    MPI_THREAD_FUNNELED = 1024,
    MPI_THREAD_SERIALIZED = 2048,
    MPI_CART = 211,
    MPI_GRAPH = 212,
    MPI_DIST_GRAPH = 213,
    MPI_COMM_TYPE_SHARED = 221,
    MPI_LOCK_EXCLUSIVE = 301,
    MPI_MODE_RDONLY = 16,
    MPI_MODE_RDWR = 32,
    MPI_MODE_WRONLY = 256
};

typedef int MPI_Grequest_query_function(void *state, MPI_Status *);
typedef int MPI_Grequest_free_function(void *state);
typedef int MPI_Grequest_cancel_function(void *state, int complete);

int PMPI_Abort(MPI_Comm, int code);
int PMPI_Allreduce(const void *values, void *results, int count, MPI_Datatype, MPI_Op, MPI_Comm);
int PMPI_Barrier(MPI_Comm);
int PMPI_Cart_shift(MPI_Comm, int direction, int displacement, int *source, int *destination);
int PMPI_Cartdim_get(MPI_Comm, int *dimensions);
int PMPI_Comm_free(MPI_Comm *);
int PMPI_Comm_group(MPI_Comm, MPI_Group *);
int PMPI_Comm_rank(MPI_Comm, int *rank);
int PMPI_Comm_remote_group(MPI_Comm, MPI_Group *);
int PMPI_Comm_remote_size(MPI_Comm, int *size);
int PMPI_Comm_size(MPI_Comm, int *size);
int PMPI_Comm_split_type(MPI_Comm, int type, int key, MPI_Info, MPI_Comm *);
int PMPI_Comm_test_inter(MPI_Comm, int *flag);
int PMPI_Dist_graph_neighbors(MPI_Comm, int most_sources, int sources[], int source_weights[], int most_destinations, int destinations[],
                              int destination_weights[]);
int PMPI_Dist_graph_neighbors_count(MPI_Comm, int *sources, int *destinations, int *weighted);
int PMPI_Get_elements_x(const MPI_Status *, MPI_Datatype, MPI_Count *);
int PMPI_Graph_neighbors(MPI_Comm, int rank, int most, int neighbors[]);
int PMPI_Graph_neighbors_count(MPI_Comm, int rank, int *count);
int PMPI_Group_free(MPI_Group *);
int PMPI_Group_size(MPI_Group, int *size);
int PMPI_Group_translate_ranks(MPI_Group, int count, const int ranks[], MPI_Group other, int translated[]);
int PMPI_Query_thread(int *level);
int PMPI_Test_cancelled(const MPI_Status *, int *flag);
int PMPI_Topo_test(MPI_Comm, int *kind);
int PMPI_Type_size_x(MPI_Datatype, MPI_Count *);

#endif
