/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Blocking sends in the four modes, from even ranks to odd ones. */
#include "conformance.h"
void send_modes(void) {
    int values[50], room = MPI_BSEND_OVERHEAD + sizeof values;
    fill(values, 50, rank);
    if (rank % 2 == 0) {
        void *buffer = malloc(room), *back;
        MPI_Buffer_attach(buffer, room);
        MPI_Send(values, 10, MPI_INT, right, 1, WORLD);
        MPI_Bsend(values, 20, MPI_INT, right, 2, WORLD);
        MPI_Ssend(values, 30, MPI_INT, right, 3, WORLD);
        /* The receiver says that its receive is posted. */
        MPI_Recv(NULL, 0, MPI_BYTE, right, 4, WORLD, IGNORE);
        MPI_Rsend(values, 40, MPI_INT, right, 5, WORLD);
        MPI_Buffer_detach(&back, &room);
        CHECK(back == buffer);
        free(buffer);
        expect("MPI_Send", 40, 0);
        expect("MPI_Bsend", 80, 0);
        expect("MPI_Ssend", 120, 0);
        expect("MPI_Rsend", 160, 0);
        expect("MPI_Recv", 0, 0);
    } else {
        MPI_Request ready;
        MPI_Recv(values, 50, MPI_INT, left, 1, WORLD, IGNORE);
        CHECK(filled(values, 10, left));
        MPI_Recv(values, 50, MPI_INT, left, 2, WORLD, IGNORE);
        MPI_Recv(values, 50, MPI_INT, left, 3, WORLD, IGNORE);
        MPI_Irecv(values, 50, MPI_INT, left, 5, WORLD, &ready);
        MPI_Send(NULL, 0, MPI_BYTE, left, 4, WORLD);
        MPI_Wait(&ready, IGNORE);
        CHECK(filled(values, 40, left));
        expect("MPI_Recv", 0, 240);
        expect("MPI_Wait", 0, 160);
        expect("MPI_Send", 0, 0);
    }
}
