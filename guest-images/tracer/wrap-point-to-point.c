/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Point-to-point communication: sends in all modes, receives, probes, matched probes, persistent and partitioned operations. */
#include "mpi-wrap.h"

/* Nothing goes to MPI_PROC_NULL, and nothing comes from there. */
static void sends(struct call *call, MPI_Count count, MPI_Datatype type, int destination, int tag) {
    uint64_t bytes = type_bytes(call, count, type);
    call->record.send_bytes = destination == MPI_PROC_NULL ? 0 : bytes;
    call->record.destination = world_rank_of(call->communicator, destination);
    call->record.send_tag = tag >= 0 ? tag : NODESCOPE_NONE;
}

static void asks(struct call *call, int source, int tag) {
    call->record.source = world_rank_of(call->communicator, source);
    call->record.receive_tag = tag == MPI_ANY_TAG ? NODESCOPE_ANY : tag >= 0 ? tag : NODESCOPE_NONE;
}

static void receives(struct call *call, MPI_Count count, MPI_Datatype type, int source, int tag) {
    uint64_t bytes = type_bytes(call, count, type);
    call->record.receive_bytes = source == MPI_PROC_NULL ? 0 : bytes;
    asks(call, source, tag);
}

WRAP(Probe, (int source, int tag, MPI_Comm comm, MPI_Status *status), (source, tag, comm, status), OWN_STATUS; call_on(call, comm);
     asks(call, source, tag), call_received(call, status))
POLL(Iprobe, (int source, int tag, MPI_Comm comm, int *flag, MPI_Status *status), (source, tag, comm, flag, status), OWN_STATUS;
     call_on(call, comm); asks(call, source, tag), *flag, call_received(call, status))

/* ---- matched messages: their handle does not say whose they are, so the tracer keeps it ---- */

static void matched(struct call *call, MPI_Message message, const MPI_Status *status) {
    call_received(call, status);
    if (message == MPI_MESSAGE_NULL || message == MPI_MESSAGE_NO_PROC)
        return;
    struct object *object = object_made(OBJECT_MESSAGE, HANDLE(message), call->communicator);
    object->source = world_rank_of(call->communicator, status->MPI_SOURCE);
    object->tag = status->MPI_TAG >= 0 ? status->MPI_TAG : NODESCOPE_NONE;
}

static void takes(struct call *call, MPI_Count count, MPI_Datatype type, MPI_Message message) {
    call->record.receive_bytes = type_bytes(call, count, type);
    if (message == MPI_MESSAGE_NO_PROC) {
        call->record.receive_bytes = 0;
        call->record.source = NODESCOPE_PROC_NULL;
        return;
    }
    struct object *object = call_ends_object(call, OBJECT_MESSAGE, HANDLE(message));
    if (!object)
        return;
    call->record.source = object->source;
    call->record.receive_tag = object->tag;
}

WRAP(Mprobe, (int source, int tag, MPI_Comm comm, MPI_Message *message, MPI_Status *status), (source, tag, comm, message, status),
     OWN_STATUS; call_on(call, comm); asks(call, source, tag), matched(call, *message, status))
POLL(Improbe, (int source, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status),
     (source, tag, comm, flag, message, status), OWN_STATUS; call_on(call, comm); asks(call, source, tag), *flag,
     matched(call, *message, status))

/* ---- persistent and partitioned operations ---- */

/* Serials are given before the call, which may complete the operation; the two sections are of equal length. */
static void restarts(struct call *call, int count, const MPI_Request *requests) {
    call_claims_anew(call, count, requests);
    uint64_t *prepared = section_numbers(call, NODESCOPE_SECTION_PREPARED, count > 0 ? count : 0);
    for (int i = 0; prepared && i < count; i++)
        prepared[i] = call->claimed[i] ? call->claimed[i]->prepared : 0;
}

WRAP(Start, (MPI_Request * request), (request), restarts(call, 1, request), )
WRAP(Startall, (int count, MPI_Request requests[]), (count, requests), restarts(call, count, requests), )

#if MPI_VERSION >= 4
static void partition(struct call *call, const MPI_Request *request, int detail) {
    call_claims(call, 1, request);
    call->record.detail = detail;
}

WRAP(Psend_init,
     (const void *buffer, int partitions, MPI_Count count, MPI_Datatype type, int destination, int tag, MPI_Comm comm, MPI_Info info,
      MPI_Request *request),
     (buffer, partitions, count, type, destination, tag, comm, info, request), call_on(call, comm);
     sends(call, count * partitions, type, destination, tag); r->detail = partitions, call_prepares(call, request, REQUEST_SEND))
WRAP(Precv_init,
     (void *buffer, int partitions, MPI_Count count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Info info,
      MPI_Request *request),
     (buffer, partitions, count, type, source, tag, comm, info, request), call_on(call, comm);
     receives(call, count * partitions, type, source, tag); r->detail = partitions, call_prepares(call, request, REQUEST_RECEIVE))
WRAP(Pready, (int which, MPI_Request request), (which, request), partition(call, &request, which), )
WRAP(Pready_range, (int low, int high, MPI_Request request), (low, high, request), partition(call, &request, high - low + 1), )
WRAP(Pready_list, (int length, int list[], MPI_Request request), (length, list, request), partition(call, &request, length), )
POLL(Parrived, (MPI_Request request, int which, int *flag), (request, which, flag), partition(call, &request, which), *flag, )
#endif

#include "wrap-point-to-point.h"
#if LARGE_FORMS
#include "mpi-large.h"
#include "wrap-point-to-point.h"
#endif
