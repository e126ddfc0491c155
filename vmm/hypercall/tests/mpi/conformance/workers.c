/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* One rank hands out work to whoever asks for it; how often each asks is not known beforehand. */
#include "conformance.h"
void workers(void) {
    enum { JOBS = 30, ASK = 1, WORK = 2, STOP = 3 };
    int value = 0, done = 0;
    MPI_Status status;
    if (rank == 0) {
        for (int given = 0, stopped = 0; stopped < size - 1;) {
            MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, ASK, WORLD, &status);
            if (given < JOBS) {
                MPI_Send(&given, 1, MPI_INT, status.MPI_SOURCE, WORK, WORLD);
                given++;
            } else {
                MPI_Send(NULL, 0, MPI_INT, status.MPI_SOURCE, STOP, WORLD);
                stopped++;
            }
        }
        expect("MPI_Send", 4 * JOBS, 0);
        expect("MPI_Recv", 0, 4 * (JOBS + size - 1));
    } else {
        for (;;) {
            MPI_Send(&value, 1, MPI_INT, 0, ASK, WORLD);
            MPI_Recv(&value, 1, MPI_INT, 0, MPI_ANY_TAG, WORLD, &status);
            if (status.MPI_TAG == STOP)
                break;
            done++;
        }
        expect("MPI_Send", 4 * (done + 1), 0);
        expect("MPI_Recv", 0, 4 * done);
    }
}
