/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Messages of unknown length, which are probed before room is made for them. */
#include "conformance.h"
void probes(void) {
    int count, flag = 0, *values;
    MPI_Status status;
    if (rank % 2 == 0) {
        values = calloc(100, sizeof *values);
        MPI_Send(values, 10 + rank, MPI_INT, right, 1, WORLD);
        MPI_Send(values, 20 + rank, MPI_INT, right, 2, WORLD);
        free(values);
        expect("MPI_Send", 4 * (30 + 2 * rank), 0);
        return;
    }
    MPI_Probe(MPI_ANY_SOURCE, 1, WORLD, &status);
    MPI_Get_count(&status, MPI_INT, &count);
    CHECK(count == 10 + left && status.MPI_SOURCE == left);
    values = malloc(count * sizeof *values);
    MPI_Recv(values, count, MPI_INT, left, 1, WORLD, IGNORE);
    free(values);
    while (!flag)
        MPI_Iprobe(left, MPI_ANY_TAG, WORLD, &flag, &status);
    MPI_Get_count(&status, MPI_INT, &count);
    CHECK(count == 20 + left && status.MPI_TAG == 2);
    values = malloc(count * sizeof *values);
    MPI_Recv(values, count, MPI_INT, left, 2, WORLD, IGNORE);
    free(values);
    expect("MPI_Recv", 0, 4 * (30 + 2 * left));
}
