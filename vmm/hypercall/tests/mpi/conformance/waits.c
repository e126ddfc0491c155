/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* MPI_Waitany and MPI_Waitsome until nothing is left, and MPI_Wait for a null request. */
#include "conformance.h"
void waits(void) {
    enum { N = 6 };
    int in[2 * N], out = rank, index, done, total = 0, indices[N];
    MPI_Request receives[2 * N], sends[2 * N], null = MPI_REQUEST_NULL;
    for (int i = 0; i < 2 * N; i++)
        MPI_Irecv(&in[i], 1, MPI_INT, left, i, WORLD, &receives[i]);
    for (int i = 2 * N - 1; i >= 0; i--)
        MPI_Isend(&out, 1, MPI_INT, right, i, WORLD, &sends[i]);
    for (int i = 0; i < N; i++) {
        MPI_Waitany(N, receives, &index, IGNORE);
        CHECK(index >= 0 && index < N);
    }
    MPI_Waitany(N, receives, &index, IGNORE);
    CHECK(index == MPI_UNDEFINED);
    while (total < N) {
        MPI_Waitsome(N, receives + N, &done, indices, MPI_STATUSES_IGNORE);
        total += done;
    }
    MPI_Waitsome(N, receives + N, &done, indices, MPI_STATUSES_IGNORE);
    CHECK(done == MPI_UNDEFINED);
    MPI_Waitall(2 * N, sends, MPI_STATUSES_IGNORE);
    MPI_Wait(&null, IGNORE);
    expect("MPI_Waitany", 0, 4 * N);
    expect("MPI_Waitsome", 0, 4 * N);
    expect("MPI_Waitall", 0, 0);
}
