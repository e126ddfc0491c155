/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Everything that may be sent to or received from MPI_PROC_NULL: no byte moves. */
#include "conformance.h"
void nobody(void) {
    int values[16] = {0}, flag;
    MPI_Status status;
    MPI_Request requests[6];
    MPI_Message message;
    MPI_Send(values, 16, MPI_INT, MPI_PROC_NULL, 1, WORLD);
    MPI_Ssend(values, 16, MPI_INT, MPI_PROC_NULL, 1, WORLD);
    MPI_Rsend(values, 16, MPI_INT, MPI_PROC_NULL, 1, WORLD);
    MPI_Recv(values, 16, MPI_INT, MPI_PROC_NULL, 1, WORLD, &status);
    CHECK(status.MPI_SOURCE == MPI_PROC_NULL);
    MPI_Sendrecv(values, 8, MPI_INT, MPI_PROC_NULL, 1, values + 8, 8, MPI_INT, MPI_PROC_NULL, 1, WORLD, IGNORE);
    MPI_Sendrecv_replace(values, 8, MPI_INT, MPI_PROC_NULL, 1, MPI_PROC_NULL, 1, WORLD, IGNORE);
    MPI_Isend(values, 16, MPI_INT, MPI_PROC_NULL, 1, WORLD, &requests[0]);
    MPI_Issend(values, 16, MPI_INT, MPI_PROC_NULL, 1, WORLD, &requests[1]);
    MPI_Irecv(values, 16, MPI_INT, MPI_PROC_NULL, 1, WORLD, &requests[2]);
    MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
    MPI_Send_init(values, 16, MPI_INT, MPI_PROC_NULL, 1, WORLD, &requests[3]);
    MPI_Recv_init(values, 16, MPI_INT, MPI_PROC_NULL, 1, WORLD, &requests[4]);
    MPI_Startall(2, &requests[3]);
    MPI_Waitall(2, &requests[3], MPI_STATUSES_IGNORE);
    MPI_Request_free(&requests[3]);
    MPI_Request_free(&requests[4]);
    MPI_Probe(MPI_PROC_NULL, 1, WORLD, &status);
    MPI_Iprobe(MPI_PROC_NULL, 1, WORLD, &flag, &status);
    CHECK(flag);
    MPI_Mprobe(MPI_PROC_NULL, 1, WORLD, &message, &status);
    CHECK(message == MPI_MESSAGE_NO_PROC);
    MPI_Mrecv(values, 16, MPI_INT, &message, IGNORE);
    /* At the ends of a line, half of each exchange is with MPI_PROC_NULL. */
    int before = rank == 0 ? MPI_PROC_NULL : left, after = rank == size - 1 ? MPI_PROC_NULL : right;
    MPI_Sendrecv(values, 4, MPI_INT, after, 2, values + 4, 4, MPI_INT, before, 2, WORLD, IGNORE);
    const char *functions[] = {"MPI_Send", "MPI_Ssend", "MPI_Rsend", "MPI_Recv", "MPI_Sendrecv_replace", "MPI_Isend",
                               "MPI_Issend", "MPI_Waitall", "MPI_Send_init", "MPI_Mrecv"};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        expect(functions[i], 0, 0);
    expect("MPI_Sendrecv", after == MPI_PROC_NULL ? 0 : 16, before == MPI_PROC_NULL ? 0 : 16);
}
