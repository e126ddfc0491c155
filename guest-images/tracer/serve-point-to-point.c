/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Point-to-point communication: sends in all modes, receives, probes, matched probes, persistent operations. */
#include "serve.h"

static void received(struct served_call *call, MPI_Status *status) {
    exchange_status(status, 0);
    exchange_regions(call, call->regions, call->region_count, status);
}

/* A matched message in a replay: an empty one that the process has sent to itself, for the sake of a handle of the MPI. */
static void make_stand_in(MPI_Message *message) {
    MPI_Request sent;
    library.Isend(NULL, 0, MPI_BYTE, 0, 0, MPI_COMM_SELF, &sent);
    library.Mprobe(0, 0, MPI_COMM_SELF, message, MPI_STATUS_IGNORE);
    library.Request_free(&sent);
}

static void take_stand_in(MPI_Message *message) {
    if (*message != MPI_MESSAGE_NO_PROC)
        library.Mrecv(NULL, 0, MPI_BYTE, message, MPI_STATUS_IGNORE);
    *message = MPI_MESSAGE_NULL;
}

static void matched(MPI_Message *message, MPI_Status *status) {
    exchange_status(status, 0);
    int there = exchange_int(mode == MODE_RECORD && *message != MPI_MESSAGE_NO_PROC);
    if (mode == MODE_REPLAY && there)
        make_stand_in(message);
    else if (mode == MODE_REPLAY)
        *message = MPI_MESSAGE_NO_PROC;
}

SERVE(Probe, (int source, int tag, MPI_Comm comm, MPI_Status *status), (source, tag, comm, status), OWN_STATUS;
      call_on_communicator(call, comm); call_receives_from(call, source, tag), exchange_status(status, 0))
SERVE_POLL(Iprobe, (int source, int tag, MPI_Comm comm, int *flag, MPI_Status *status), (source, tag, comm, flag, status), OWN_STATUS;
           call_on_communicator(call, comm); call_receives_from(call, source, tag), *flag, *flag = 0, *flag = 1;
           exchange_status(status, 0))
SERVE(Mprobe, (int source, int tag, MPI_Comm comm, MPI_Message *message, MPI_Status *status), (source, tag, comm, message, status),
      OWN_STATUS; call_on_communicator(call, comm); call_receives_from(call, source, tag), matched(message, status))
SERVE_POLL(Improbe, (int source, int tag, MPI_Comm comm, int *flag, MPI_Message *message, MPI_Status *status),
           (source, tag, comm, flag, message, status), OWN_STATUS; call_on_communicator(call, comm); call_receives_from(call, source, tag),
           *flag, *flag = 0, *flag = 1; matched(message, status))

static void started(int count, MPI_Request requests[]) {
    struct served **all = served_all(count, requests);
    for (int i = 0; i < count; i++)
        if (all[i])
            all[i]->active = 1;
}

SERVE(Start, (MPI_Request * request), (request), call->entry.detail = 1, started(1, request))
SERVE(Startall, (int count, MPI_Request requests[]), (count, requests), call->entry.detail = count, started(count, requests))

#include "serve-point-to-point.h"
#if LARGE_FORMS
#include "replay-large.h"
#include "serve-point-to-point.h"
#endif
