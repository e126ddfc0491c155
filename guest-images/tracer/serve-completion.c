/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Waits, tests, and what else is done to requests. The requests are looked up before the call, which may give up their handles. */
#include "serve.h"

#include <stdlib.h>

static MPI_Status *lent(int count) {
    static MPI_Status *statuses;
    static int room;
    if (count > room) {
        free(statuses);
        statuses = allocate_memory(count * sizeof *statuses);
        room = count;
    }
    return statuses;
}

#define OWN_STATUSES(COUNT)                                                                                                    \
    if (statuses == MPI_STATUSES_IGNORE)                                                                                       \
    statuses = lent(COUNT)

#define GIVEN(COUNT, REQUESTS)                                                                                                 \
    call->entry.detail = COUNT;                                                                                              \
    struct served **given = served_all(COUNT, REQUESTS)

static void one(struct served_call *call, struct served *given, MPI_Request *request, MPI_Status *status) {
    served_completes(call, given, request, status, 0);
}

static void every(struct served_call *call, struct served **given, int count, MPI_Request requests[], MPI_Status statuses[], int result) {
    for (int i = 0; i < count; i++)
        served_completes(call, given[i], &requests[i], &statuses[i], result == MPI_ERR_IN_STATUS);
}

static void any(struct served_call *call, struct served **given, int count, MPI_Request requests[], int *index, MPI_Status *status) {
    *index = exchange_int(*index);
    if (*index == MPI_UNDEFINED) {
        exchange_status(status, 0);
        return;
    }
    if (*index < 0 || *index >= count)
        replay_diverges(&call->entry, "the recorded index is beyond the requests");
    one(call, given[*index], &requests[*index], status);
}

static void some(struct served_call *call, struct served **given, int count, MPI_Request requests[], int *done, int indices[],
                 MPI_Status statuses[], int result) {
    *done = exchange_int(*done);
    for (int i = 0; *done != MPI_UNDEFINED && i < *done; i++) {
        indices[i] = exchange_int(indices[i]);
        if (indices[i] < 0 || indices[i] >= count)
            replay_diverges(&call->entry, "a recorded index is beyond the requests");
        served_completes(call, given[indices[i]], &requests[indices[i]], &statuses[i], result == MPI_ERR_IN_STATUS);
    }
}

SERVE(Wait, (MPI_Request * request, MPI_Status *status), (request, status), OWN_STATUS; GIVEN(1, request),
      one(call, given[0], request, status))
SERVE(Waitall, (int count, MPI_Request requests[], MPI_Status statuses[]), (count, requests, statuses), OWN_STATUSES(count);
      GIVEN(count, requests), every(call, given, count, requests, statuses, result))
SERVE(Waitany, (int count, MPI_Request requests[], int *index, MPI_Status *status), (count, requests, index, status), OWN_STATUS;
      GIVEN(count, requests), any(call, given, count, requests, index, status))
SERVE(Waitsome, (int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[]),
      (count, requests, done, indices, statuses), OWN_STATUSES(count); GIVEN(count, requests),
      some(call, given, count, requests, done, indices, statuses, result))
SERVE_POLL(Test, (MPI_Request * request, int *flag, MPI_Status *status), (request, flag, status), OWN_STATUS; GIVEN(1, request), *flag,
           *flag = 0, *flag = 1; one(call, given[0], request, status))
SERVE_POLL(Testall, (int count, MPI_Request requests[], int *flag, MPI_Status statuses[]), (count, requests, flag, statuses),
           OWN_STATUSES(count); GIVEN(count, requests), *flag, *flag = 0, *flag = 1;
           every(call, given, count, requests, statuses, result))
SERVE_POLL(Testany, (int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status), (count, requests, index, flag, status),
           OWN_STATUS; GIVEN(count, requests), *flag, *flag = 0; *index = MPI_UNDEFINED, *flag = 1;
           any(call, given, count, requests, index, status))
SERVE_POLL(Testsome, (int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[]),
           (count, requests, done, indices, statuses), OWN_STATUSES(count); GIVEN(count, requests), *done != 0, *done = 0,
           some(call, given, count, requests, done, indices, statuses, result))

/* The request stays, but its data is there from now on. */
static void shown(struct served_call *call, struct served *given, MPI_Status *status) {
    exchange_status(status, 0);
    int receives = given && given->active && !given->delivered;
    exchange_regions(call, receives ? given->regions : NULL, receives ? given->region_count : 0,
                     given && given->kind == SERVED_RECEIVE ? status : NULL);
    if (given)
        given->delivered = 1;
}
SERVE_POLL(Request_get_status, (MPI_Request request, int *flag, MPI_Status *status), (request, flag, status), OWN_STATUS;
           GIVEN(1, &request), *flag, *flag = 0, *flag = 1; shown(call, given[0], status))

static void gives_up(struct served_call *call, const struct served *given) {
    (void)call;
    if (given && given->kind != SERVED_SEND && given->active && !given->delivered)
        refuse("MPI_Request_free", " of an operation that receives and is under way");
}
static void gave_up(struct served *given, MPI_Request *request) {
    if (given)
        served_forget(given);
    *request = MPI_REQUEST_NULL;
}
SERVE(Request_free, (MPI_Request * request), (request), GIVEN(1, request); gives_up(call, given[0]), gave_up(given[0], request))
SERVE(Cancel, (MPI_Request * request), (request), (void)request; call->entry.detail = 1, )
