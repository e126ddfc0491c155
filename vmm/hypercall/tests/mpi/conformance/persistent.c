/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Persistent requests of all kinds, started one by one and together, some of them freed without a start. */
#include "conformance.h"
void persistent(void) {
    int out[8], in[5][8], room = 4 * (MPI_BSEND_OVERHEAD + sizeof out);
    void *buffer = malloc(room);
    MPI_Buffer_attach(buffer, room);
    MPI_Request receives[4], sends[4], unused;
    for (int i = 0; i < 4; i++)
        MPI_Recv_init(in[i], 8, MPI_INT, left, i, WORLD, &receives[i]);
    MPI_Send_init(out, 8, MPI_INT, right, 0, WORLD, &sends[0]);
    MPI_Bsend_init(out, 8, MPI_INT, right, 1, WORLD, &sends[1]);
    MPI_Ssend_init(out, 8, MPI_INT, right, 2, WORLD, &sends[2]);
    MPI_Rsend_init(out, 8, MPI_INT, right, 3, WORLD, &sends[3]);
    MPI_Send_init(out, 8, MPI_INT, right, 4, WORLD, &unused);
    for (int round = 0; round < 3; round++) {
        fill(out, 8, rank + round);
        MPI_Startall(4, receives);
        MPI_Barrier(WORLD);
        for (int i = 0; i < 4; i++)
            MPI_Start(&sends[i]);
        MPI_Waitall(4, sends, MPI_STATUSES_IGNORE);
        MPI_Waitall(4, receives, MPI_STATUSES_IGNORE);
        for (int i = 0; i < 4; i++)
            CHECK(filled(in[i], 8, left + round));
    }
    for (int i = 0; i < 4; i++) {
        MPI_Request_free(&sends[i]);
        MPI_Request_free(&receives[i]);
    }
    MPI_Request_free(&unused);
    MPI_Buffer_detach(&buffer, &room);
    free(buffer);
    expect("MPI_Waitall", 0, 3 * 4 * 32);
}
