/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Duplicates of communicators: at once, by a request, with hints; messages on one are not seen on the other. */
#include "conformance.h"
void duplicates(void) {
    MPI_Comm later, hinted;
    MPI_Info hints;
    MPI_Request request;
    int out = rank, in;
    MPI_Comm_idup(WORLD, &later, &request);
    MPI_Wait(&request, IGNORE);
    MPI_Info_create(&hints);
    MPI_Info_set(hints, "collectives", "short");
    MPI_Comm_dup_with_info(WORLD, hints, &hinted);
    MPI_Info_free(&hints);
    MPI_Request sends[2];
    MPI_Isend(&out, 1, MPI_INT, right, 1, later, &sends[0]);
    out = rank;
    MPI_Isend(&rank, 1, MPI_INT, right, 1, hinted, &sends[1]);
    MPI_Recv(&in, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, hinted, IGNORE);
    MPI_Recv(&in, 1, MPI_INT, left, 1, later, IGNORE);
    MPI_Waitall(2, sends, MPI_STATUSES_IGNORE);
    CHECK(in == left);
    MPI_Comm_free(&later);
    MPI_Comm_disconnect(&hinted);
    expect("MPI_Recv", 0, 8);
}
