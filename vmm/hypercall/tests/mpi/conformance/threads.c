/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Threads that send, receive and poll at the same time, each with a communicator of its own. */
#include "conformance.h"
#include <pthread.h>

enum { THREADS = 3, ROUNDS = 20 };

static MPI_Comm own[THREADS];

static void *work(void *which) {
    int number = (int)(intptr_t)which, out = 10 * rank + number, in, flag, sum;
    for (int i = 0; i < ROUNDS; i++) {
        MPI_Request request;
        MPI_Sendrecv(&out, 1, MPI_INT, right, i, &in, 1, MPI_INT, left, i, own[number], IGNORE);
        CHECK(in == 10 * left + number);
        MPI_Irecv(&in, 1, MPI_INT, right, 100 + i, own[number], &request);
        MPI_Send(&out, 1, MPI_INT, left, 100 + i, own[number]);
        for (flag = 0; !flag;)
            MPI_Test(&request, &flag, IGNORE);
        MPI_Allreduce(&out, &sum, 1, MPI_INT, MPI_SUM, own[number]);
    }
    return NULL;
}

void threads(void) {
    pthread_t others[THREADS];
    for (int i = 0; i < THREADS; i++)
        MPI_Comm_dup(WORLD, &own[i]);
    for (int i = 1; i < THREADS; i++)
        pthread_create(&others[i], NULL, work, (void *)(intptr_t)i);
    work((void *)0);
    for (int i = 1; i < THREADS; i++)
        pthread_join(others[i], NULL);
    for (int i = 0; i < THREADS; i++)
        MPI_Comm_free(&own[i]);
    enum { N = THREADS * ROUNDS };
    expect("MPI_Sendrecv", 4 * N, 4 * N);
    expect("MPI_Send", 4 * N, 0);
    expect("MPI_Test", 0, 4 * N);
    expect("MPI_Allreduce", 4 * N, 4 * N);
}
