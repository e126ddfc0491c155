/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Matched probes, and receives of what they matched. */
#include "conformance.h"
void matched_probes(void) {
    int values[40], count, flag = 0;
    MPI_Message message;
    MPI_Status status;
    MPI_Request sent[2], received;
    fill(values, 40, rank);
    MPI_Isend(values, 11, MPI_INT, right, 1, WORLD, &sent[0]);
    MPI_Isend(values, 22, MPI_INT, right, 2, WORLD, &sent[1]);
    int in[40];
    MPI_Mprobe(left, 1, WORLD, &message, &status);
    MPI_Get_count(&status, MPI_INT, &count);
    MPI_Mrecv(in, count, MPI_INT, &message, IGNORE);
    CHECK(count == 11 && filled(in, 11, left));
    while (!flag)
        MPI_Improbe(MPI_ANY_SOURCE, 2, WORLD, &flag, &message, &status);
    MPI_Imrecv(in, 40, MPI_INT, &message, &received);
    MPI_Wait(&received, &status);
    MPI_Get_count(&status, MPI_INT, &count);
    CHECK(count == 22 && filled(in, 22, left));
    MPI_Waitall(2, sent, MPI_STATUSES_IGNORE);
    expect("MPI_Isend", 132, 0);
    expect("MPI_Mrecv", 0, 44);
    expect("MPI_Wait", 0, 88);
}
