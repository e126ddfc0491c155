/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Requests that the program completes itself. */
#include "conformance.h"
static int query(void *state, MPI_Status *status) {
    (void)state;
    MPI_Status_set_elements(status, MPI_BYTE, 0);
    MPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return MPI_SUCCESS;
}

static int release(void *state) {
    ++*(int *)state;
    return MPI_SUCCESS;
}

static int cancel(void *state, int complete) {
    (void)state, (void)complete;
    return MPI_SUCCESS;
}

void generalized(void) {
    int released = 0, flag;
    MPI_Request request, copy;
    MPI_Grequest_start(query, release, cancel, &released, &request);
    copy = request;
    MPI_Test(&request, &flag, IGNORE);
    CHECK(!flag);
    MPI_Grequest_complete(copy);
    MPI_Wait(&request, IGNORE);
    CHECK(released == 1);
}
