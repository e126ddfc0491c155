/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Requests: the memory that an operation receives into is known when it starts, and exchanged with the recording when a call completes it.
 *
 * In a replay a request is a persistent one of the MPI that nobody starts, for the sake of a handle that Fortran's layer can translate.
 */
#include "replay.h"

#include <stdlib.h>

#define BUCKETS 1024

static struct served *table[BUCKETS];

static struct served **bucket(MPI_Request handle) {
    uint64_t bits = HANDLE(handle);
    return &table[(bits ^ bits >> 10 ^ bits >> 5) % BUCKETS];
}

/* Operations that have completed, or do nothing, may share a handle; the variable that holds it tells them apart, and where Fortran's
 * layer has put it into another, any will do: nothing is received by them. */
struct served *served_of(const MPI_Request *where) {
    struct served *found = NULL;
    for (struct served *at = *bucket(*where); at; at = at->next)
        if (at->handle == *where && !at->claimed && (!found || at->where == where))
            found = at;
    return found;
}

struct served **served_all(int count, const MPI_Request *requests) {
    static struct served **list;
    static int room;
    if (count > room) {
        free(list);
        list = allocate_memory(count * sizeof *list);
        room = count;
    }
    for (int i = 0; i < count; i++)
        if ((list[i] = requests[i] == MPI_REQUEST_NULL ? NULL : served_of(&requests[i])))
            list[i]->claimed = 1;
    for (int i = 0; i < count; i++)
        if (list[i])
            list[i]->claimed = 0;
    return list;
}

/* The program may free a datatype while the operation is under way. */
static MPI_Datatype held(MPI_Datatype type) {
    int integers, addresses, types, combiner = MPI_COMBINER_NAMED;
    MPI_Datatype copy = type;
    if (type != MPI_DATATYPE_NULL && PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) == MPI_SUCCESS &&
        combiner != MPI_COMBINER_NAMED)
        PMPI_Type_dup(type, &copy);
    return copy;
}

static void let_go(MPI_Datatype type) {
    int integers, addresses, types, combiner = MPI_COMBINER_NAMED;
    if (type != MPI_DATATYPE_NULL && PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner) == MPI_SUCCESS &&
        combiner != MPI_COMBINER_NAMED)
        PMPI_Type_free(&type);
}

static void add(struct served_call *call, MPI_Request *request, enum served_kind kind, int persistent) {
    if (mode == MODE_REPLAY)
        library.Recv_init(NULL, 0, MPI_BYTE, MPI_PROC_NULL, 0, MPI_COMM_SELF, request);
    struct served *one = allocate_memory(sizeof *one), **head = bucket(*request);
    *one = (struct served){.next = *head,
                           .handle = *request,
                           .where = request,
                           .kind = kind,
                           .persistent = persistent,
                           .active = !persistent,
                           .regions = call->regions,
                           .region_count = call->region_count};
    call->regions = NULL;
    call->region_count = 0;
    for (int i = 0; i < one->region_count; i++)
        one->regions[i].type = held(one->regions[i].type);
    *head = one;
}

/* Both MPIs have requests that several operations share, of which each has completed as it began: nobody can tell which of them a call
 * completes later. */
static int is_shared(MPI_Request handle) {
#if defined(OPEN_MPI)
    static void *empty;
    if (!empty)
        empty = mpi_symbol("ompi_request_empty");
    return (void *)handle == empty;
#else
    /* A builtin handle: MPICH's src/include/mpir_handlemem.h. */
    return (unsigned)handle >> 30 == 1;
#endif
}

void served_starts(struct served_call *call, MPI_Request *request, enum served_kind kind) {
    /* Data that such an operation receives is there now; MPI_PROC_NULL sends none. */
    if (exchange_int(mode == MODE_RECORD && is_shared(*request))) {
        if (kind == SERVED_OTHER)
            exchange_regions(call, call->regions, call->region_count, NULL);
        call->region_count = 0;
    }
    add(call, request, kind, 0);
}

void served_prepares(struct served_call *call, MPI_Request *request, enum served_kind kind) {
    add(call, request, kind, 1);
}

void served_forget(struct served *one) {
    for (struct served **at = bucket(one->handle); *at; at = &(*at)->next) {
        if (*at == one) {
            *at = one->next;
            break;
        }
    }
    if (mode == MODE_REPLAY)
        library.Request_free(&one->handle);
    for (int i = 0; i < one->region_count; i++)
        let_go(one->regions[i].type);
    free(one->regions);
    free(one);
}

void served_completes(struct served_call *call, struct served *one, MPI_Request *request, MPI_Status *status, int with_error) {
    exchange_status(status, with_error);
    int cancelled = 0;
    PMPI_Test_cancelled(status, &cancelled);
    int receives = one && one->active && !one->delivered && !cancelled;
    exchange_regions(call, receives ? one->regions : NULL, receives ? one->region_count : 0, one && one->kind == SERVED_RECEIVE ? status : NULL);
    if (!one)
        return;
    if (one->persistent) {
        one->active = one->delivered = 0;
        return;
    }
    served_forget(one);
    if (mode == MODE_REPLAY)
        *request = MPI_REQUEST_NULL;
}
