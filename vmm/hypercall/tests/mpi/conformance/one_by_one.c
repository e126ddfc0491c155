/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Requests of several threads in one communicator, told apart by their tags. */
#include "conformance.h"
#include <pthread.h>

enum { WORKERS = 4, TIMES = 10 };

static void *exchange(void *which) {
    int tag = (int)(intptr_t)which, out[3], in[3];
    for (int i = 0; i < TIMES; i++) {
        MPI_Request requests[2];
        fill(out, 3, rank + 10 * tag);
        MPI_Irecv(in, 3, MPI_INT, left, tag, WORLD, &requests[0]);
        MPI_Isend(out, 3, MPI_INT, right, tag, WORLD, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        CHECK(filled(in, 3, left + 10 * tag));
    }
    return NULL;
}

void one_by_one(void) {
    pthread_t all[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        pthread_create(&all[i], NULL, exchange, (void *)(intptr_t)i);
    for (int i = 0; i < WORKERS; i++)
        pthread_join(all[i], NULL);
    expect("MPI_Isend", 12 * WORKERS * TIMES, 0);
    expect("MPI_Waitall", 0, 12 * WORKERS * TIMES);
}
