/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Waits, tests, and what else is done to requests. */
#include "mpi-wrap.h"

#define OWN_STATUSES(COUNT)                                                                                                    \
    if (statuses == MPI_STATUSES_IGNORE)                                                                                       \
    statuses = lend_statuses(COUNT)

WRAP(Wait, (MPI_Request * request, MPI_Status *status), (request, status), OWN_STATUS; call_claims(call, 1, request),
     call_completes(call, 1, 0, status))
WRAP(Waitall, (int count, MPI_Request requests[], MPI_Status statuses[]), (count, requests, statuses), OWN_STATUSES(count);
     call_claims(call, count, requests), call_completes(call, count, 0, statuses))
WRAP(Waitany, (int count, MPI_Request requests[], int *index, MPI_Status *status), (count, requests, index, status), OWN_STATUS;
     call_claims(call, count, requests), call_completes(call, *index != MPI_UNDEFINED, index, status))
WRAP(Waitsome, (int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[]),
     (count, requests, done, indices, statuses), OWN_STATUSES(count); call_claims(call, count, requests),
     call_completes(call, *done == MPI_UNDEFINED ? 0 : *done, indices, statuses))
POLL(Test, (MPI_Request * request, int *flag, MPI_Status *status), (request, flag, status), OWN_STATUS;
     call_claims(call, 1, request), *flag, call_completes(call, 1, 0, status))
POLL(Testall, (int count, MPI_Request requests[], int *flag, MPI_Status statuses[]), (count, requests, flag, statuses),
     OWN_STATUSES(count); call_claims(call, count, requests), *flag, call_completes(call, count, 0, statuses))
POLL(Testany, (int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status), (count, requests, index, flag, status),
     OWN_STATUS; call_claims(call, count, requests), *flag, call_completes(call, *index != MPI_UNDEFINED, index, status))
POLL(Testsome, (int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[]),
     (count, requests, done, indices, statuses), OWN_STATUSES(count); call_claims(call, count, requests), *done != 0,
     call_completes(call, *done == MPI_UNDEFINED ? 0 : *done, indices, statuses))

static void frees(struct call *call) {
    request_gone(call->claimed[0]);
    call->claimed[0] = 0;
}

static void cancels(struct call *call) {
    if (call->claimed[0])
        call->claimed[0]->cancelling = 1;
}

WRAP(Request_free, (MPI_Request * request), (request), call_claims(call, 1, request), frees(call))
WRAP(Cancel, (MPI_Request * request), (request), call_claims(call, 1, request); cancels(call), )
/* The request stays: what completes it is the call that frees it. */
POLL(Request_get_status, (MPI_Request request, int *flag, MPI_Status *status), (request, flag, status), call_claims(call, 1, &request),
     *flag, )

WRAP(Grequest_start,
     (MPI_Grequest_query_function * query, MPI_Grequest_free_function *release, MPI_Grequest_cancel_function *cancel, void *state,
      MPI_Request *request),
     (query, release, cancel, state, request), , call_starts(call, request, REQUEST_OTHER))
WRAP(Grequest_complete, (MPI_Request request), (request), call_claims(call, 1, &request), )
