/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sends and receives in one call, of lengths that depend on the rank. */
#include "conformance.h"
void send_receive(void) {
    int out[20], in[20];
    fill(out, 20, rank);
    MPI_Status status;
    MPI_Sendrecv(out, rank + 1, MPI_INT, right, 7, in, 20, MPI_INT, left, 7, WORLD, &status);
    int count;
    MPI_Get_count(&status, MPI_INT, &count);
    CHECK(count == left + 1 && filled(in, count, left));
    MPI_Sendrecv_replace(out, 20, MPI_INT, left, 8, MPI_ANY_SOURCE, 8, WORLD, IGNORE);
    CHECK(filled(out, 20, right));
    expect("MPI_Sendrecv", 4 * (rank + 1), 4 * (left + 1));
    expect("MPI_Sendrecv_replace", 80, 80);
}
