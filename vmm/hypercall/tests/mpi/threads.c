/* Two ranks of four threads each; every thread of one exchanges messages with the same thread of the other, by blocking calls,
 * requests and matched probes, and all of a rank's threads use the same communicators. Argument: exchanges a thread makes. */
#include <mpi.h>
#include <pthread.h>
#include <stdlib.h>

#define THREADS 4
static int rank, rounds;

static void *work(void *argument) {
    int thread = (int)(size_t)argument, peer = 1 - rank, out = 0, in = 0, flag;
    for (int i = 0; i < rounds; i++) {
        MPI_Request q[2];
        MPI_Message message;
        MPI_Sendrecv(&out, 1, MPI_INT, peer, thread, &in, 1, MPI_INT, peer, thread, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Irecv(&in, 1, MPI_INT, peer, thread, MPI_COMM_WORLD, &q[0]);
        MPI_Isend(&out, 1, MPI_INT, peer, thread, MPI_COMM_WORLD, &q[1]);
        MPI_Waitall(2, q, MPI_STATUSES_IGNORE);
        MPI_Isend(&out, 1, MPI_INT, peer, thread, MPI_COMM_WORLD, &q[0]);
        MPI_Mprobe(peer, thread, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
        MPI_Mrecv(&in, 1, MPI_INT, &message, MPI_STATUS_IGNORE);
        do
            MPI_Test(&q[0], &flag, MPI_STATUS_IGNORE);
        while (!flag);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int provided;
    pthread_t threads[THREADS];
    rounds = atoi(argv[1]);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    if (provided != MPI_THREAD_MULTIPLE)
        MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (size_t i = 1; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    work(NULL);
    for (int i = 1; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    MPI_Finalize();
    return 0;
}
