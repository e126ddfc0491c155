/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Collective operations: on all ranks of a communicator, or on the neighbours in its topology. A rank's own contribution to a buffer that
 * it receives into is recorded with the rest. */
#include "serve.h"

/* Contributions are compared by their bytes; those that stand where they are received have none of their own. */
static void sends(struct served_call *call, const void *in, MPI_Count count, MPI_Datatype type) {
    if (in != MPI_IN_PLACE)
        call->entry.send_bytes = bytes_of(count, type);
}

static void contributes(struct served_call *call, const void *in, MPI_Count count, MPI_Datatype type, int root) {
    call->entry.root = root;
    /* Elsewhere the arguments mean nothing. */
    if (root != MPI_ROOT && root != MPI_PROC_NULL)
        sends(call, in, count, type);
}

static void broadcast(struct served_call *call, void *buffer, MPI_Count count, MPI_Datatype type, int root) {
    call->entry.root = root;
    if (receives_at_root(call->on, root))
        call->entry.send_bytes = bytes_of(count, type);
    else if (root != MPI_PROC_NULL)
        call_receives(call, buffer, count, type);
}

static void reduce(struct served_call *call, void *out, MPI_Count count, MPI_Datatype type, int root) {
    call->entry.root = root;
    if (receives_at_root(call->on, root))
        call_receives(call, out, count, type);
    else if (root != MPI_PROC_NULL)
        call->entry.send_bytes = bytes_of(count, type);
}

static void scattered(struct served_call *call, void *out, MPI_Count count, MPI_Datatype type, int root) {
    call->entry.root = root;
    if (root != MPI_ROOT && root != MPI_PROC_NULL && out != MPI_IN_PLACE)
        call_receives(call, out, count, type);
}

static MPI_Count extent_of(MPI_Datatype type) {
    MPI_Count lower = 0, extent = 0;
    PMPI_Type_get_extent_x(type, &lower, &extent);
    return extent;
}

/* Blocks of one type, their places in its extents. */
#define BLOCKS(OUT, COUNTS, PLACES, TYPE, NUMBER)                                                                              \
    for (int i = 0; i < NUMBER; i++)                                                                                           \
    call_receives(call, (char *)OUT + (MPI_Count)PLACES[i] * extent_of(TYPE), COUNTS[i], TYPE)
/* Blocks of a type each, their places in bytes. */
#define TYPED_BLOCKS(OUT, COUNTS, PLACES, TYPES, NUMBER)                                                                       \
    for (int i = 0; i < NUMBER; i++)                                                                                           \
    call_receives(call, (char *)OUT + PLACES[i], COUNTS[i], TYPES[i])

SERVE(Barrier, (MPI_Comm comm), (comm), call_on_communicator(call, comm), )
SERVE(Ibarrier, (MPI_Comm comm, MPI_Request *request), (comm, request), call_on_communicator(call, comm),
      served_starts(call, request, SERVED_OTHER))

#include "serve-collectives.h"
#if LARGE_FORMS
#include "replay-large.h"
#include "serve-collectives.h"
#endif
