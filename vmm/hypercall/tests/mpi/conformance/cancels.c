/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A receive that is cancelled, and a send that is given away. */
#include "conformance.h"
void cancels(void) {
    int value = rank, in, cancelled;
    MPI_Request never, given;
    MPI_Status status;
    MPI_Irecv(&in, 1, MPI_INT, left, 99, WORLD, &never);
    MPI_Cancel(&never);
    MPI_Wait(&never, &status);
    MPI_Test_cancelled(&status, &cancelled);
    CHECK(cancelled);
    MPI_Isend(&value, 1, MPI_INT, right, 5, WORLD, &given);
    MPI_Request_free(&given);
    MPI_Recv(&in, 1, MPI_INT, left, 5, WORLD, IGNORE);
    CHECK(in == left);
    MPI_Barrier(WORLD); /* the value was sent */
    expect("MPI_Wait", 0, 0);
    expect("MPI_Recv", 0, 4);
}
