/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Many small messages in both directions, with tags that are not in order. */
#include "conformance.h"
void crowd(void) {
    enum { N = 100 };
    int in[2 * N], out[N];
    MPI_Request requests[4 * N];
    for (int i = 0; i < N; i++) {
        out[i] = 1000 * rank + i;
        MPI_Irecv(&in[i], 1, MPI_INT, left, N - i, WORLD, &requests[2 * i]);
        MPI_Irecv(&in[N + i], 1, MPI_INT, right, i, WORLD, &requests[2 * i + 1]);
    }
    for (int i = 0; i < N; i++) {
        MPI_Isend(&out[i], 1, MPI_INT, right, i + 1, WORLD, &requests[2 * N + 2 * i]);
        MPI_Isend(&out[i], 1, MPI_INT, left, i, WORLD, &requests[2 * N + 2 * i + 1]);
    }
    MPI_Waitall(4 * N, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < N; i++)
        CHECK(in[i] == 1000 * left + N - i - 1 && in[N + i] == 1000 * right + i);
    expect("MPI_Isend", 8 * N, 0);
    expect("MPI_Waitall", 0, 8 * N);
}
