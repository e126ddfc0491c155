/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* One-sided communication: windows, epochs, puts, gets and accumulates. */
#include "mpi-wrap.h"

#include <stdlib.h>

/* ---- windows ---- */

static void made(struct call *call, MPI_Win window) {
    call->record.object = object_made(OBJECT_WINDOW, HANDLE(window), call->communicator)->id;
}

static struct object *on_window(struct call *call, MPI_Win window) {
    return call_on_object(call, OBJECT_WINDOW, HANDLE(window));
}

WRAP(Win_create_dynamic, (MPI_Info info, MPI_Comm comm, MPI_Win *window), (info, comm, window), call_on(call, comm), made(call, *window))
WRAP(Win_attach, (MPI_Win window, void *base, MPI_Aint size), (window, base, size), on_window(call, window), )
WRAP(Win_detach, (MPI_Win window, const void *base), (window, base), on_window(call, window), )
WRAP(Win_free, (MPI_Win * window), (window), call_ends_object(call, OBJECT_WINDOW, HANDLE(*window)), )
WRAP(Win_set_info, (MPI_Win window, MPI_Info info), (window, info), on_window(call, window), )

/* ---- epochs ---- */

static void towards(struct call *call, MPI_Win window, int rank) {
    on_window(call, window);
    call->record.destination = world_rank_of(call->communicator, rank);
}

static void group(struct call *call, MPI_Win window, uint32_t kind, MPI_Group members) {
    int size, *ranks = world_ranks_of_group(members, &size);
    on_window(call, window);
    section_ranks(call, kind, ranks, size);
    free(ranks);
}

#define WRAP_WINDOW(NAME) WRAP(NAME, (MPI_Win window), (window), on_window(call, window), )
#define WRAP_TARGET(NAME) WRAP(NAME, (int rank, MPI_Win window), (rank, window), towards(call, window, rank), )

WRAP(Win_fence, (int assertion, MPI_Win window), (assertion, window), on_window(call, window), )
WRAP(Win_lock, (int kind, int rank, int assertion, MPI_Win window), (kind, rank, assertion, window), towards(call, window, rank);
     r->detail = kind == MPI_LOCK_EXCLUSIVE ? 1 : 2, )
WRAP(Win_lock_all, (int assertion, MPI_Win window), (assertion, window), on_window(call, window), )
WRAP(Win_post, (MPI_Group origins, int assertion, MPI_Win window), (origins, assertion, window),
     group(call, window, NODESCOPE_SECTION_SOURCES, origins), )
WRAP(Win_start, (MPI_Group targets, int assertion, MPI_Win window), (targets, assertion, window),
     group(call, window, NODESCOPE_SECTION_DESTINATIONS, targets), )
WRAP_TARGET(Win_unlock)
WRAP_TARGET(Win_flush)
WRAP_TARGET(Win_flush_local)
WRAP_WINDOW(Win_unlock_all)
WRAP_WINDOW(Win_flush_all)
WRAP_WINDOW(Win_flush_local_all)
WRAP_WINDOW(Win_sync)
WRAP_WINDOW(Win_complete)
WRAP_WINDOW(Win_wait)
POLL(Win_test, (MPI_Win window, int *flag), (window, flag), on_window(call, window), *flag, )

/* ---- transfers ---- */

/* Nothing is transferred to or from MPI_PROC_NULL. */
static uint64_t transfers(struct call *call, MPI_Count count, MPI_Datatype type, int rank) {
    uint64_t bytes = type_bytes(call, count, type);
    return rank == MPI_PROC_NULL ? 0 : bytes;
}

static void puts_to(struct call *call, MPI_Count count, MPI_Datatype type, int rank, MPI_Aint place, MPI_Win window) {
    towards(call, window, rank);
    call->record.offset = place;
    call->record.send_bytes = transfers(call, count, type, rank);
}

static void gets_from(struct call *call, MPI_Count count, MPI_Datatype type, int rank, MPI_Aint place, MPI_Win window) {
    on_window(call, window);
    call->record.offset = place;
    call->record.source = world_rank_of(call->communicator, rank);
    call->record.receive_bytes = transfers(call, count, type, rank);
}

/* With MPI_NO_OP nothing is sent: the call only gets. */
static void exchanges(struct call *call, MPI_Count out_count, MPI_Datatype out_type, MPI_Count in_count, MPI_Datatype in_type, int rank,
                      MPI_Aint place, MPI_Op op, MPI_Win window) {
    call_reduces(call, op);
    gets_from(call, in_count, in_type, rank, place, window);
    call->record.destination = call->record.source;
    if (op != MPI_NO_OP)
        call->record.send_bytes = transfers(call, out_count, out_type, rank);
}

WRAP(Fetch_and_op,
     (const void *out, void *in, MPI_Datatype type, int rank, MPI_Aint place, MPI_Op op, MPI_Win window),
     (out, in, type, rank, place, op, window), exchanges(call, 1, type, 1, type, rank, place, op, window), )
/* Two elements go, one comes. */
WRAP(Compare_and_swap,
     (const void *out, const void *compare, void *in, MPI_Datatype type, int rank, MPI_Aint place, MPI_Win window),
     (out, compare, in, type, rank, place, window), exchanges(call, 2, type, 1, type, rank, place, MPI_REPLACE, window);
     r->reduction = NODESCOPE_REDUCTION_NONE, )

#include "wrap-rma.h"
#if LARGE_FORMS
#include "mpi-large.h"
#include "wrap-rma.h"
#endif
