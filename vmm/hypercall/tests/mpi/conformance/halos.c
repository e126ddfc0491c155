/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Ten steps of an exchange of borders with four neighbours on a torus. */
#include "conformance.h"
void halos(void) {
    int dims[2] = {2, 2}, periods[2] = {1, 1}, near[4], out[4][32], in[4][32];
    MPI_Comm torus;
    MPI_Request requests[8];
    MPI_Cart_create(WORLD, 2, dims, periods, 0, &torus);
    MPI_Cart_shift(torus, 0, 1, &near[0], &near[1]);
    MPI_Cart_shift(torus, 1, 1, &near[2], &near[3]);
    for (int step = 0; step < 10; step++) {
        for (int i = 0; i < 4; i++) {
            fill(out[i], 32, 10 * rank + (i ^ 1));
            MPI_Irecv(in[i], 32, MPI_INT, near[i], i, torus, &requests[i]);
        }
        for (int i = 0; i < 4; i++)
            MPI_Isend(out[i], 32, MPI_INT, near[i], i ^ 1, torus, &requests[4 + i]);
        MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < 4; i++)
            CHECK(filled(in[i], 32, 10 * near[i] + i));
    }
    MPI_Comm_free(&torus);
    expect("MPI_Isend", 10 * 4 * 128, 0);
    expect("MPI_Waitall", 0, 10 * 4 * 128);
}
