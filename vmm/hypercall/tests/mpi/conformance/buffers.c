/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Buffers for sends that are attached and detached again and again. */
#include "conformance.h"
void buffers(void) {
    int value = rank, in[3], room = 3 * (MPI_BSEND_OVERHEAD + sizeof value);
    void *buffer = malloc(room), *back;
    for (int round = 0; round < 3; round++) {
        int length;
        MPI_Buffer_attach(buffer, room);
        for (int i = 0; i < 3; i++)
            MPI_Bsend(&value, 1, MPI_INT, right, i, WORLD);
        for (int i = 2; i >= 0; i--)
            MPI_Recv(&in[i], 1, MPI_INT, left, i, WORLD, IGNORE);
        MPI_Buffer_detach(&back, &length);
        CHECK(back == buffer && length == room && in[0] == left);
    }
    free(buffer);
    expect("MPI_Bsend", 36, 0);
    expect("MPI_Recv", 0, 36);
}
