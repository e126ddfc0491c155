/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The four tests, polled until they succeed, and MPI_Request_get_status. */
#include "conformance.h"
void tests(void) {
    int in[5], out = rank, flag = 0, index, done, indices[2], total = 0;
    MPI_Request receives[5], sends[5];
    for (int i = 0; i < 5; i++)
        MPI_Irecv(&in[i], 1, MPI_INT, left, i, WORLD, &receives[i]);
    /* In vain: nobody sends before the barrier. */
    for (int i = 0; i < 50; i++) {
        MPI_Test(&receives[0], &flag, IGNORE);
        CHECK(!flag);
    }
    MPI_Barrier(WORLD);
    for (int i = 0; i < 5; i++)
        MPI_Isend(&out, 1, MPI_INT, right, i, WORLD, &sends[i]);
    while (!flag)
        MPI_Request_get_status(receives[0], &flag, IGNORE);
    MPI_Test(&receives[0], &flag, IGNORE);
    CHECK(flag);
    for (flag = 0; !flag;)
        MPI_Test(&receives[1], &flag, IGNORE);
    for (flag = 0; !flag;)
        MPI_Testany(1, &receives[2], &index, &flag, IGNORE);
    while (total < 2) {
        MPI_Testsome(2, &receives[3], &done, indices, MPI_STATUSES_IGNORE);
        total += done;
    }
    for (flag = 0; !flag;)
        MPI_Testall(5, sends, &flag, MPI_STATUSES_IGNORE);
    expect("MPI_Test", 0, 8);
    expect("MPI_Testany", 0, 4);
    expect("MPI_Testsome", 0, 8);
    expect("MPI_Testall", 0, 0);
}
