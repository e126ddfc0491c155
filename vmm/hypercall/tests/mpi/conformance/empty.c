/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Messages and collectives of no byte. */
#include "conformance.h"
void empty(void) {
    int zeros[4] = {0}, nothing[2];
    MPI_Request request;
    MPI_Sendrecv(NULL, 0, MPI_INT, right, 1, NULL, 0, MPI_INT, left, 1, WORLD, IGNORE);
    MPI_Isend(NULL, 0, MPI_DOUBLE, right, 2, WORLD, &request);
    MPI_Recv(NULL, 0, MPI_DOUBLE, left, 2, WORLD, IGNORE);
    MPI_Wait(&request, IGNORE);
    MPI_Bcast(NULL, 0, MPI_INT, 0, WORLD);
    MPI_Alltoallv(&nothing[0], zeros, zeros, MPI_INT, &nothing[1], zeros, zeros, MPI_INT, WORLD);
    MPI_Gatherv(NULL, 0, MPI_INT, NULL, zeros, zeros, MPI_INT, 1, WORLD);
    expect("MPI_Sendrecv", 0, 0);
    expect("MPI_Isend", 0, 0);
    expect("MPI_Recv", 0, 0);
    expect("MPI_Bcast", 0, 0);
    expect("MPI_Alltoallv", 0, 0);
    expect("MPI_Gatherv", 0, 0);
}
