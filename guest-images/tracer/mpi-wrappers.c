/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * One wrapper for each MPI function recorded. A wrapper bears both names, MPI_X and PMPI_X, and forwards to the library's PMPI_X;
 * the thread's depth guard lets only the outermost call be recorded. Together they see every call exactly once, from C and from
 * Fortran, because whichever of the two names the library's Fortran layer calls, it arrives here, and what the library or the
 * tracer calls in turn is not recorded again.
 *
 * Each entry of the table below: name, parameters, arguments, what to record before the call, what to record after it. Everything
 * that can be recorded before is, so that little lies between the host's two time stamps.
 */
#include "mpi-tracer.h"

#define DEFINE(NAME, PARAMETERS, ARGUMENTS, BEFORE, ENTER, CALL, LEAVE)                                                        \
    __attribute__((visibility("default"))) int MPI_##NAME PARAMETERS {                                                         \
        static __typeof__(&MPI_##NAME) next;                                                                                   \
        if (__builtin_expect(!next, 0))                                                                                        \
            next = (__typeof__(&MPI_##NAME))real_function("PMPI_" #NAME);                                                      \
        if (__builtin_expect(tracer_state != RUNNING, 1) || depth)                                                             \
            return next ARGUMENTS;                                                                                             \
        struct call call[1];                                                                                                   \
        struct nodescope_mpi_record *const r = &call->record;                                                                  \
        (void)r;                                                                                                               \
        depth++;                                                                                                               \
        call_begin(call, NODESCOPE_MPI_##NAME, __builtin_return_address(0));                                                   \
        BEFORE;                                                                                                                \
        ENTER(call);                                                                                                           \
        int result = next ARGUMENTS;                                                                                           \
        CALL;                                                                                                                  \
        LEAVE;                                                                                                                 \
        depth--;                                                                                                               \
        return result;                                                                                                         \
    }                                                                                                                          \
    BOTH_NAMES(NAME)

#define BOTH_NAMES(NAME) extern __typeof__(PMPI_##NAME) PMPI_##NAME __attribute__((alias("MPI_" #NAME), visibility("default")));

/* AFTER runs only if the call succeeded. */
#define WRAP(NAME, PARAMETERS, ARGUMENTS, BEFORE, AFTER)                                                                       \
    DEFINE(NAME, PARAMETERS, ARGUMENTS, BEFORE, call_enter, if (result == MPI_SUCCESS) { AFTER; }, call_leave(call, result))

/* FOUND says whether the poll found something; only then AFTER runs, and MISSED otherwise. */
#define POLL(NAME, PARAMETERS, ARGUMENTS, BEFORE, FOUND, AFTER, MISSED)                                                        \
    DEFINE(NAME, PARAMETERS, ARGUMENTS, BEFORE, poll_enter, int found = result == MPI_SUCCESS && (FOUND);                      \
           if (found) { AFTER; } else { MISSED; }, poll_leave(call, result, found))

/* ---- start and end ---- */

#define WRAP_INIT(NAME, PARAMETERS, ARGUMENTS)                                                                                 \
    __attribute__((visibility("default"))) int MPI_##NAME PARAMETERS {                                                         \
        static __typeof__(&MPI_##NAME) next;                                                                                   \
        if (!next)                                                                                                             \
            next = (__typeof__(&MPI_##NAME))real_function("PMPI_" #NAME);                                                      \
        tracer_decide();                                                                                                       \
        if (tracer_state != BEFORE_INIT || depth)                                                                              \
            return next ARGUMENTS;                                                                                             \
        struct call call[1];                                                                                                   \
        depth++;                                                                                                               \
        call_begin(call, NODESCOPE_MPI_##NAME, __builtin_return_address(0));                                                   \
        call_enter(call);                                                                                                      \
        int result = next ARGUMENTS;                                                                                           \
        if (result == MPI_SUCCESS) {                                                                                           \
            tracer_started();                                                                                                  \
            call->record.communicator = NODESCOPE_COMM_WORLD;                                                                  \
            call->record.communicator_size = world_size;                                                                       \
        }                                                                                                                      \
        call_leave(call, result);                                                                                              \
        depth--;                                                                                                               \
        return result;                                                                                                         \
    }                                                                                                                          \
    BOTH_NAMES(NAME)

WRAP_INIT(Init, (int *argc, char ***argv), (argc, argv))
WRAP_INIT(Init_thread, (int *argc, char ***argv, int required, int *provided), (argc, argv, required, provided))

/* Afterwards MPI must not be asked anything any more. */
WRAP(Finalize, (void), (), call_on(call, MPI_COMM_WORLD), tracer_ends())

__attribute__((visibility("default"))) int MPI_Abort(MPI_Comm comm, int code) {
    __typeof__(&MPI_Abort) next = (__typeof__(&MPI_Abort))real_function("PMPI_Abort");
    if (tracer_state != RUNNING || depth)
        return next(comm, code);
    /* It does not return: the record is sent before. */
    struct call call[1];
    depth++;
    call_begin(call, NODESCOPE_MPI_Abort, __builtin_return_address(0));
    call_on(call, comm);
    call_enter(call);
    call_leave(call, code);
    return next(comm, code);
}
BOTH_NAMES(Abort)

/* ---- point to point ---- */

static void sends(struct call *call, int count, MPI_Datatype type, int destination, int tag) {
    call->record.send_bytes = type_bytes(call, count, type);
    call->record.destination = world_rank_of(call->communicator, destination);
    call->record.send_tag = tag >= 0 ? tag : NODESCOPE_NONE;
}

static void asks(struct call *call, int source, int tag) {
    call->record.source = world_rank_of(call->communicator, source);
    call->record.receive_tag = tag == MPI_ANY_TAG ? NODESCOPE_ANY : tag >= 0 ? tag : NODESCOPE_NONE;
}

static void receives(struct call *call, int count, MPI_Datatype type, int source, int tag) {
    call->record.receive_bytes = type_bytes(call, count, type);
    asks(call, source, tag);
}

static void starts(struct call *call, const MPI_Request *request, enum request_kind kind) {
    call->record.request = next_serial();
    request_made(request, kind, call->communicator, call->record.request, 0);
}

static void prepares(struct call *call, const MPI_Request *request, enum request_kind kind) {
    call->record.request = next_serial();
    request_made(request, kind, call->communicator, 0, call->record.request);
}

#define OWN_STATUS                                                                                                             \
    if (status == MPI_STATUS_IGNORE)                                                                                           \
    status = lend_statuses(1)

#define WRAP_SEND(NAME)                                                                                                        \
    WRAP(NAME, (const void *buffer, int count, MPI_Datatype type, int destination, int tag, MPI_Comm comm),                    \
         (buffer, count, type, destination, tag, comm), call_on(call, comm); sends(call, count, type, destination, tag), )
WRAP_SEND(Send)
WRAP_SEND(Bsend)
WRAP_SEND(Ssend)
WRAP_SEND(Rsend)

#define WRAP_SEND_REQUEST(NAME, MADE)                                                                                          \
    WRAP(NAME, (const void *buffer, int count, MPI_Datatype type, int destination, int tag, MPI_Comm comm, MPI_Request *request), \
         (buffer, count, type, destination, tag, comm, request), call_on(call, comm);                                          \
         sends(call, count, type, destination, tag), MADE(call, request, REQUEST_SEND))
WRAP_SEND_REQUEST(Isend, starts)
WRAP_SEND_REQUEST(Ibsend, starts)
WRAP_SEND_REQUEST(Issend, starts)
WRAP_SEND_REQUEST(Irsend, starts)
WRAP_SEND_REQUEST(Send_init, prepares)
WRAP_SEND_REQUEST(Bsend_init, prepares)
WRAP_SEND_REQUEST(Ssend_init, prepares)
WRAP_SEND_REQUEST(Rsend_init, prepares)

#define WRAP_RECEIVE_REQUEST(NAME, MADE)                                                                                       \
    WRAP(NAME, (void *buffer, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request),         \
         (buffer, count, type, source, tag, comm, request), call_on(call, comm); receives(call, count, type, source, tag),     \
         MADE(call, request, REQUEST_RECEIVE))
WRAP_RECEIVE_REQUEST(Irecv, starts)
WRAP_RECEIVE_REQUEST(Recv_init, prepares)

WRAP(Recv, (void *buffer, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Status *status),
     (buffer, count, type, source, tag, comm, status), OWN_STATUS; call_on(call, comm);
     receives(call, count, type, source, tag), call_received(call, status))

WRAP(Sendrecv,
     (const void *out, int out_count, MPI_Datatype out_type, int destination, int out_tag, void *in, int in_count, MPI_Datatype in_type,
      int source, int in_tag, MPI_Comm comm, MPI_Status *status),
     (out, out_count, out_type, destination, out_tag, in, in_count, in_type, source, in_tag, comm, status), OWN_STATUS;
     call_on(call, comm); sends(call, out_count, out_type, destination, out_tag); receives(call, in_count, in_type, source, in_tag),
     call_received(call, status))

WRAP(Sendrecv_replace,
     (void *buffer, int count, MPI_Datatype type, int destination, int out_tag, int source, int in_tag, MPI_Comm comm, MPI_Status *status),
     (buffer, count, type, destination, out_tag, source, in_tag, comm, status), OWN_STATUS; call_on(call, comm);
     sends(call, count, type, destination, out_tag); receives(call, count, type, source, in_tag), call_received(call, status))

WRAP(Probe, (int source, int tag, MPI_Comm comm, MPI_Status *status), (source, tag, comm, status), OWN_STATUS; call_on(call, comm);
     asks(call, source, tag), call_received(call, status))
POLL(Iprobe, (int source, int tag, MPI_Comm comm, int *flag, MPI_Status *status), (source, tag, comm, flag, status), OWN_STATUS;
     call_on(call, comm); asks(call, source, tag), *flag, call_received(call, status), )

/* A matched message is received through a handle that does not say its communicator, so sources are not known there. */
WRAP(Mprobe, (int source, int tag, MPI_Comm comm, MPI_Message *message, MPI_Status *status), (source, tag, comm, message, status),
     OWN_STATUS; call_on(call, comm); asks(call, source, tag), call_received(call, status))
POLL(Improbe, (int source, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status),
     (source, tag, comm, flag, message, status), OWN_STATUS; call_on(call, comm); asks(call, source, tag), *flag,
     call_received(call, status), )
WRAP(Mrecv, (void *buffer, int count, MPI_Datatype type, MPI_Message *message, MPI_Status *status), (buffer, count, type, message, status),
     OWN_STATUS; r->receive_bytes = type_bytes(call, count, type), call_received(call, status))
WRAP(Imrecv, (void *buffer, int count, MPI_Datatype type, MPI_Message *message, MPI_Request *request),
     (buffer, count, type, message, request), r->receive_bytes = type_bytes(call, count, type), starts(call, request, REQUEST_RECEIVE))

/* ---- persistent requests ---- */

static void missed(struct request **claimed, int count) {
    for (int i = 0; i < count; i++)
        request_unclaim(claimed[i]);
}

/* Serials are given before the call, which may complete the operation; the two sections are of equal length. */
static void restarts(struct call *call, int count, const MPI_Request *requests) {
    for (int i = 0; i < count; i++) {
        struct request *request = request_claim(&requests[i]);
        if (request)
            request->serial = next_serial();
        request_unclaim(request);
    }
    missed(call_claims(call, count, requests), count);
    uint64_t *prepared = section_numbers(call, NODESCOPE_SECTION_PREPARED, count > 0 ? count : 0);
    for (int i = 0; prepared && i < count; i++) {
        struct request *request = request_claim(&requests[i]);
        prepared[i] = request ? request->prepared : 0;
        request_unclaim(request);
    }
}

WRAP(Start, (MPI_Request * request), (request), restarts(call, 1, request), )
WRAP(Startall, (int count, MPI_Request requests[]), (count, requests), restarts(call, count, requests), )

/* ---- completion ---- */

static void cancels(struct request *request) {
    if (request)
        request->cancelling = 1;
    request_unclaim(request);
}

#define CLAIM(COUNT, REQUESTS) struct request **claimed = call_claims(call, COUNT, REQUESTS)
#define OWN_STATUSES(COUNT)                                                                                                    \
    if (statuses == MPI_STATUSES_IGNORE)                                                                                       \
    statuses = lend_statuses(COUNT)

WRAP(Wait, (MPI_Request * request, MPI_Status *status), (request, status), OWN_STATUS; CLAIM(1, request),
     call_completes(call, claimed, 1, 1, 0, status))
WRAP(Waitall, (int count, MPI_Request requests[], MPI_Status statuses[]), (count, requests, statuses), OWN_STATUSES(count);
     CLAIM(count, requests), call_completes(call, claimed, count, count, 0, statuses))
WRAP(Waitany, (int count, MPI_Request requests[], int *index, MPI_Status *status), (count, requests, index, status), OWN_STATUS;
     CLAIM(count, requests), call_completes(call, claimed, count, *index != MPI_UNDEFINED, index, status))
WRAP(Waitsome, (int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[]),
     (count, requests, done, indices, statuses), OWN_STATUSES(count); CLAIM(count, requests),
     call_completes(call, claimed, count, *done == MPI_UNDEFINED ? 0 : *done, indices, statuses))
POLL(Test, (MPI_Request * request, int *flag, MPI_Status *status), (request, flag, status), OWN_STATUS; CLAIM(1, request), *flag,
     call_completes(call, claimed, 1, 1, 0, status), missed(claimed, 1))
POLL(Testall, (int count, MPI_Request requests[], int *flag, MPI_Status statuses[]), (count, requests, flag, statuses),
     OWN_STATUSES(count); CLAIM(count, requests), *flag, call_completes(call, claimed, count, count, 0, statuses),
     missed(claimed, count))
POLL(Testany, (int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status), (count, requests, index, flag, status),
     OWN_STATUS; CLAIM(count, requests), *flag, call_completes(call, claimed, count, *index != MPI_UNDEFINED, index, status),
     missed(claimed, count))
POLL(Testsome, (int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[]),
     (count, requests, done, indices, statuses), OWN_STATUSES(count); CLAIM(count, requests), *done != 0,
     call_completes(call, claimed, count, *done == MPI_UNDEFINED ? 0 : *done, indices, statuses), missed(claimed, count))
WRAP(Request_free, (MPI_Request * request), (request), CLAIM(1, request), request_gone(claimed[0]))
WRAP(Cancel, (MPI_Request * request), (request), CLAIM(1, request); cancels(claimed[0]), )

/* ---- collectives, blocking and not ----
 *
 * Each pair shares its parameters and what it records. RECORD sees the parameters by the names used here. */

#define PLAIN(...) __VA_ARGS__
#define COLLECTIVE(NAME, INAME, PARAMETERS, ARGUMENTS, RECORD)                                                                 \
    WRAP(NAME, (PLAIN PARAMETERS, MPI_Comm comm), (PLAIN ARGUMENTS, comm), call_on(call, comm); RECORD, )                      \
    WRAP(INAME, (PLAIN PARAMETERS, MPI_Comm comm, MPI_Request *request), (PLAIN ARGUMENTS, comm, request), call_on(call, comm); \
         RECORD, starts(call, request, REQUEST_OTHER))

static void rooted(struct call *call, int root) {
    const struct communicator *on = call->communicator;
    call->record.root = on && root == MPI_ROOT ? world_rank : world_rank_of(on, root);
}

static uint64_t group_size(const struct call *call) {
    return call->communicator ? call->communicator->size : 0;
}

static int in_place(struct call *call, const void *buffer) {
    if (buffer != MPI_IN_PLACE)
        return 0;
    call->record.flags |= NODESCOPE_FLAG_IN_PLACE;
    return 1;
}

static int own_rank(const struct call *call) {
    return call->communicator ? call->communicator->rank : 0;
}

WRAP(Barrier, (MPI_Comm comm), (comm), call_on(call, comm), )
WRAP(Ibarrier, (MPI_Comm comm, MPI_Request *request), (comm, request), call_on(call, comm), starts(call, request, REQUEST_OTHER))

static void bcast(struct call *call, int count, MPI_Datatype type, int root) {
    rooted(call, root);
    uint64_t bytes = root == MPI_PROC_NULL ? 0 : type_bytes(call, count, type);
    *(is_root(call, root) ? &call->record.send_bytes : &call->record.receive_bytes) = bytes;
}
COLLECTIVE(Bcast, Ibcast, (void *buffer, int count, MPI_Datatype type, int root), (buffer, count, type, root),
           bcast(call, count, type, root))

static void reduce(struct call *call, const void *in, int count, MPI_Datatype type, MPI_Op op, int root) {
    rooted(call, root);
    call_reduces(call, op);
    in_place(call, in);
    uint64_t bytes = type_bytes(call, count, type);
    int inter = call->communicator && call->communicator->inter;
    if (is_root(call, root))
        call->record.receive_bytes = bytes;
    if (inter ? root != MPI_ROOT && root != MPI_PROC_NULL : 1)
        call->record.send_bytes = bytes;
}
COLLECTIVE(Reduce, Ireduce, (const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, int root),
           (in, out, count, type, op, root), reduce(call, in, count, type, op, root))

static void all_reduce(struct call *call, const void *in, int count, MPI_Datatype type, MPI_Op op) {
    call_reduces(call, op);
    in_place(call, in);
    call->record.send_bytes = call->record.receive_bytes = type_bytes(call, count, type);
}
COLLECTIVE(Allreduce, Iallreduce, (const void *in, void *out, int count, MPI_Datatype type, MPI_Op op), (in, out, count, type, op),
           all_reduce(call, in, count, type, op))
COLLECTIVE(Scan, Iscan, (const void *in, void *out, int count, MPI_Datatype type, MPI_Op op), (in, out, count, type, op),
           all_reduce(call, in, count, type, op))
COLLECTIVE(Exscan, Iexscan, (const void *in, void *out, int count, MPI_Datatype type, MPI_Op op), (in, out, count, type, op),
           all_reduce(call, in, count, type, op))

static void reduce_scatter(struct call *call, const void *in, const int *counts, MPI_Datatype type, MPI_Op op) {
    call_reduces(call, op);
    in_place(call, in);
    call->record.receive_bytes = type_bytes(call, counts[own_rank(call)], type);
    if (!(call->record.flags & NODESCOPE_FLAG_INTERCOMM)) /* there the counts are those of the local group */
        call->record.send_bytes = section_counts(call, NODESCOPE_SECTION_SEND_BYTES, counts, type);
}
COLLECTIVE(Reduce_scatter, Ireduce_scatter, (const void *in, void *out, const int counts[], MPI_Datatype type, MPI_Op op),
           (in, out, counts, type, op), reduce_scatter(call, in, counts, type, op))

static void reduce_scatter_block(struct call *call, const void *in, int count, MPI_Datatype type, MPI_Op op) {
    call_reduces(call, op);
    in_place(call, in);
    call->record.receive_bytes = type_bytes(call, count, type);
    call->record.send_bytes = call->record.receive_bytes * group_size(call);
}
COLLECTIVE(Reduce_scatter_block, Ireduce_scatter_block, (const void *in, void *out, int count, MPI_Datatype type, MPI_Op op),
           (in, out, count, type, op), reduce_scatter_block(call, in, count, type, op))

/* In a gather with MPI_IN_PLACE the root's contribution is already where it belongs: it counts as sent, as on other ranks. */
static void gather(struct call *call, const void *in, int in_count, MPI_Datatype in_type, int out_count, MPI_Datatype out_type, int root) {
    int here = is_root(call, root), placed = here && in_place(call, in);
    rooted(call, root);
    if (here)
        call->record.receive_bytes = type_bytes(call, out_count, out_type) * group_size(call);
    if (placed)
        call->record.send_bytes = type_bytes(call, out_count, out_type);
    else if (root != MPI_ROOT && root != MPI_PROC_NULL)
        call->record.send_bytes = type_bytes(call, in_count, in_type);
}
COLLECTIVE(Gather, Igather,
           (const void *in, int in_count, MPI_Datatype in_type, void *out, int out_count, MPI_Datatype out_type, int root),
           (in, in_count, in_type, out, out_count, out_type, root), gather(call, in, in_count, in_type, out_count, out_type, root))

static void gatherv(struct call *call, const void *in, int in_count, MPI_Datatype in_type, const int *counts, MPI_Datatype out_type,
                    int root) {
    int here = is_root(call, root), placed = here && in_place(call, in);
    rooted(call, root);
    if (here)
        call->record.receive_bytes = section_counts(call, NODESCOPE_SECTION_RECEIVE_BYTES, counts, out_type);
    if (placed)
        call->record.send_bytes = type_bytes(call, counts[own_rank(call)], out_type);
    else if (root != MPI_ROOT && root != MPI_PROC_NULL)
        call->record.send_bytes = type_bytes(call, in_count, in_type);
}
COLLECTIVE(Gatherv, Igatherv,
           (const void *in, int in_count, MPI_Datatype in_type, void *out, const int counts[], const int places[], MPI_Datatype out_type,
            int root),
           (in, in_count, in_type, out, counts, places, out_type, root),
           gatherv(call, in, in_count, in_type, counts, out_type, root))

static void scatter(struct call *call, int in_count, MPI_Datatype in_type, const void *out, int out_count, MPI_Datatype out_type,
                    int root) {
    int here = is_root(call, root), placed = here && in_place(call, out);
    rooted(call, root);
    if (here)
        call->record.send_bytes = type_bytes(call, in_count, in_type) * group_size(call);
    if (placed)
        call->record.receive_bytes = type_bytes(call, in_count, in_type);
    else if (root != MPI_ROOT && root != MPI_PROC_NULL)
        call->record.receive_bytes = type_bytes(call, out_count, out_type);
}
COLLECTIVE(Scatter, Iscatter,
           (const void *in, int in_count, MPI_Datatype in_type, void *out, int out_count, MPI_Datatype out_type, int root),
           (in, in_count, in_type, out, out_count, out_type, root), scatter(call, in_count, in_type, out, out_count, out_type, root))

static void scatterv(struct call *call, const int *counts, MPI_Datatype in_type, const void *out, int out_count, MPI_Datatype out_type,
                     int root) {
    int here = is_root(call, root), placed = here && in_place(call, out);
    rooted(call, root);
    if (here)
        call->record.send_bytes = section_counts(call, NODESCOPE_SECTION_SEND_BYTES, counts, in_type);
    if (placed)
        call->record.receive_bytes = type_bytes(call, counts[own_rank(call)], in_type);
    else if (root != MPI_ROOT && root != MPI_PROC_NULL)
        call->record.receive_bytes = type_bytes(call, out_count, out_type);
}
COLLECTIVE(Scatterv, Iscatterv,
           (const void *in, const int counts[], const int places[], MPI_Datatype in_type, void *out, int out_count,
            MPI_Datatype out_type, int root),
           (in, counts, places, in_type, out, out_count, out_type, root),
           scatterv(call, counts, in_type, out, out_count, out_type, root))

static void all_gather(struct call *call, const void *in, int in_count, MPI_Datatype in_type, int out_count, MPI_Datatype out_type) {
    int placed = in_place(call, in);
    call->record.send_bytes = placed ? type_bytes(call, out_count, out_type) : type_bytes(call, in_count, in_type);
    call->record.receive_bytes = type_bytes(call, out_count, out_type) * group_size(call);
}
COLLECTIVE(Allgather, Iallgather, (const void *in, int in_count, MPI_Datatype in_type, void *out, int out_count, MPI_Datatype out_type),
           (in, in_count, in_type, out, out_count, out_type), all_gather(call, in, in_count, in_type, out_count, out_type))

static void all_gatherv(struct call *call, const void *in, int in_count, MPI_Datatype in_type, const int *counts, MPI_Datatype out_type) {
    int placed = in_place(call, in);
    call->record.send_bytes = placed ? type_bytes(call, counts[own_rank(call)], out_type) : type_bytes(call, in_count, in_type);
    call->record.receive_bytes = section_counts(call, NODESCOPE_SECTION_RECEIVE_BYTES, counts, out_type);
}
COLLECTIVE(Allgatherv, Iallgatherv,
           (const void *in, int in_count, MPI_Datatype in_type, void *out, const int counts[], const int places[], MPI_Datatype out_type),
           (in, in_count, in_type, out, counts, places, out_type), all_gatherv(call, in, in_count, in_type, counts, out_type))

static void all_to_all(struct call *call, const void *in, int in_count, MPI_Datatype in_type, int out_count, MPI_Datatype out_type) {
    int placed = in_place(call, in);
    call->record.send_bytes = (placed ? type_bytes(call, out_count, out_type) : type_bytes(call, in_count, in_type)) * group_size(call);
    call->record.receive_bytes = type_bytes(call, out_count, out_type) * group_size(call);
}
COLLECTIVE(Alltoall, Ialltoall, (const void *in, int in_count, MPI_Datatype in_type, void *out, int out_count, MPI_Datatype out_type),
           (in, in_count, in_type, out, out_count, out_type), all_to_all(call, in, in_count, in_type, out_count, out_type))

static void all_to_allv(struct call *call, const void *in, const int *in_counts, MPI_Datatype in_type, const int *out_counts,
                        MPI_Datatype out_type) {
    int placed = in_place(call, in);
    call->record.send_bytes =
        section_counts(call, NODESCOPE_SECTION_SEND_BYTES, placed ? out_counts : in_counts, placed ? out_type : in_type);
    call->record.receive_bytes = section_counts(call, NODESCOPE_SECTION_RECEIVE_BYTES, out_counts, out_type);
}
COLLECTIVE(Alltoallv, Ialltoallv,
           (const void *in, const int in_counts[], const int in_places[], MPI_Datatype in_type, void *out, const int out_counts[],
            const int out_places[], MPI_Datatype out_type),
           (in, in_counts, in_places, in_type, out, out_counts, out_places, out_type),
           all_to_allv(call, in, in_counts, in_type, out_counts, out_type))

static void all_to_allw(struct call *call, const void *in, const int *in_counts, const MPI_Datatype *in_types, const int *out_counts,
                        const MPI_Datatype *out_types) {
    int placed = in_place(call, in);
    call->record.send_bytes =
        section_counts_w(call, NODESCOPE_SECTION_SEND_BYTES, placed ? out_counts : in_counts, placed ? out_types : in_types);
    call->record.receive_bytes = section_counts_w(call, NODESCOPE_SECTION_RECEIVE_BYTES, out_counts, out_types);
}
COLLECTIVE(Alltoallw, Ialltoallw,
           (const void *in, const int in_counts[], const int in_places[], const MPI_Datatype in_types[], void *out, const int out_counts[],
            const int out_places[], const MPI_Datatype out_types[]),
           (in, in_counts, in_places, in_types, out, out_counts, out_places, out_types),
           all_to_allw(call, in, in_counts, in_types, out_counts, out_types))

/* ---- communicators ---- */

static void made(struct call *call, MPI_Comm comm) {
    call_made_communicator(call, communicator_made(call->record.communicator, comm));
}

/* The two sides of a new intercommunicator have no parent in common. */
static void made_between(struct call *call, MPI_Comm comm) {
    call_made_communicator(call, communicator_made(NODESCOPE_COMM_NONE, comm));
}

#define WRAP_COMM(NAME, PARAMETERS, ARGUMENTS) WRAP(NAME, PARAMETERS, ARGUMENTS, call_on(call, comm), made(call, *new_comm))

WRAP_COMM(Comm_dup, (MPI_Comm comm, MPI_Comm *new_comm), (comm, new_comm))
WRAP_COMM(Comm_dup_with_info, (MPI_Comm comm, MPI_Info info, MPI_Comm *new_comm), (comm, info, new_comm))
WRAP_COMM(Comm_split, (MPI_Comm comm, int color, int key, MPI_Comm *new_comm), (comm, color, key, new_comm))
WRAP_COMM(Comm_split_type, (MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *new_comm), (comm, type, key, info, new_comm))
WRAP_COMM(Comm_create, (MPI_Comm comm, MPI_Group group, MPI_Comm *new_comm), (comm, group, new_comm))
WRAP_COMM(Comm_create_group, (MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *new_comm), (comm, group, tag, new_comm))
WRAP_COMM(Cart_create, (MPI_Comm comm, int dims, const int sizes[], const int periods[], int reorder, MPI_Comm *new_comm),
          (comm, dims, sizes, periods, reorder, new_comm))
WRAP_COMM(Cart_sub, (MPI_Comm comm, const int remain[], MPI_Comm *new_comm), (comm, remain, new_comm))
WRAP_COMM(Graph_create, (MPI_Comm comm, int nodes, const int index[], const int edges[], int reorder, MPI_Comm *new_comm),
          (comm, nodes, index, edges, reorder, new_comm))
WRAP_COMM(Dist_graph_create,
          (MPI_Comm comm, int n, const int nodes[], const int degrees[], const int targets[], const int weights[], MPI_Info info,
           int reorder, MPI_Comm *new_comm),
          (comm, n, nodes, degrees, targets, weights, info, reorder, new_comm))
WRAP_COMM(Dist_graph_create_adjacent,
          (MPI_Comm comm, int indegree, const int sources[], const int source_weights[], int outdegree, const int destinations[],
           const int destination_weights[], MPI_Info info, int reorder, MPI_Comm *new_comm),
          (comm, indegree, sources, source_weights, outdegree, destinations, destination_weights, info, reorder, new_comm))
WRAP_COMM(Intercomm_merge, (MPI_Comm comm, int high, MPI_Comm *new_comm), (comm, high, new_comm))
WRAP(Intercomm_create, (MPI_Comm local, int local_leader, MPI_Comm peer, int remote_leader, int tag, MPI_Comm *new_comm),
     (local, local_leader, peer, remote_leader, tag, new_comm), call_on(call, local), made_between(call, *new_comm))
WRAP(Comm_idup, (MPI_Comm comm, MPI_Comm *new_comm, MPI_Request *request), (comm, new_comm, request), call_on(call, comm),
     starts(call, request, REQUEST_OTHER); call_made_communicator(call, communicator_promised(call->communicator, *new_comm)))

/* The handle may be reused as soon as the library has it back, so it is forgotten before. */
WRAP(Comm_free, (MPI_Comm * comm), (comm), call_on(call, *comm); call->communicator = 0; communicator_forget(*comm), )
WRAP(Comm_disconnect, (MPI_Comm * comm), (comm), call_on(call, *comm); call->communicator = 0; communicator_forget(*comm), )
