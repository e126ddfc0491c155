/* Ranks of the second node compute before they post a receive for a large message, for which the sender waits. */
#include "work.h"

enum { N = 20000 };

int main(int argc, char **argv) {
    start(&argc, &argv);
    double x = rank, *data = calloc(N, sizeof *data);
    int other = (rank + ranks / 2) % ranks;
    for (int step = 0; step < STEPS; step++) {
        if (rank < ranks / 2) {
            x = compute(x, UNIT / 4);
            MPI_Send(data, N, MPI_DOUBLE, other, 0, MPI_COMM_WORLD);
            x = compute(x, 2 * UNIT);
        } else {
#ifdef REPAIRED
            MPI_Request request;
            MPI_Irecv(data, N, MPI_DOUBLE, other, 0, MPI_COMM_WORLD, &request);
            x = compute(x, UNIT / 4);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
            x = compute(x, UNIT);
#else
            x = compute(x, UNIT / 4 + UNIT);
            MPI_Recv(data, N, MPI_DOUBLE, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE); /* FAULT */
#endif
        }
    }
    end(x);
}
