/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Non-blocking sends in the four modes, all of them to both neighbours. */
#include "conformance.h"
void isend_modes(void) {
    int values[10], in[8][10], room = 8 * (MPI_BSEND_OVERHEAD + sizeof values);
    MPI_Request requests[16];
    void *buffer = malloc(room);
    fill(values, 10, rank);
    MPI_Buffer_attach(buffer, room);
    for (int i = 0; i < 4; i++) {
        MPI_Irecv(in[2 * i], 10, MPI_INT, left, i, WORLD, &requests[2 * i]);
        MPI_Irecv(in[2 * i + 1], 10, MPI_INT, right, i, WORLD, &requests[2 * i + 1]);
    }
    MPI_Barrier(WORLD); /* for the ready ones */
    int targets[2] = {left, right};
    for (int i = 0; i < 2; i++) {
        MPI_Isend(values, 4, MPI_INT, targets[i], 0, WORLD, &requests[8 + 4 * i]);
        MPI_Ibsend(values, 5, MPI_INT, targets[i], 1, WORLD, &requests[9 + 4 * i]);
        MPI_Issend(values, 6, MPI_INT, targets[i], 2, WORLD, &requests[10 + 4 * i]);
        MPI_Irsend(values, 7, MPI_INT, targets[i], 3, WORLD, &requests[11 + 4 * i]);
    }
    MPI_Waitall(16, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < 4; i++)
        CHECK(filled(in[2 * i], 4 + i, left) && filled(in[2 * i + 1], 4 + i, right));
    MPI_Buffer_detach(&buffer, &room);
    free(buffer);
    expect("MPI_Isend", 32, 0);
    expect("MPI_Ibsend", 40, 0);
    expect("MPI_Issend", 48, 0);
    expect("MPI_Irsend", 56, 0);
    expect("MPI_Waitall", 0, 2 * 4 * (4 + 5 + 6 + 7));
}
