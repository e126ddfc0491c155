/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* All collectives that do not block, several of them under way at once. */
#include "conformance.h"
void nonblocking(void) {
    enum { N = 17 };
    int out[16], in[N][16], counts[4] = {1, 1, 1, 1}, places[4] = {0, 1, 2, 3}, bytes[4] = {0, 4, 8, 12};
    MPI_Datatype types[4] = {MPI_INT, MPI_INT, MPI_INT, MPI_INT};
    MPI_Request requests[N];
    fill(out, 16, rank);
    fill(in[1], 16, rank);
    MPI_Ibarrier(WORLD, &requests[0]);
    MPI_Ibcast(in[1], 6, MPI_INT, 3, WORLD, &requests[1]);
    MPI_Igather(out, 2, MPI_INT, in[2], 2, MPI_INT, 0, WORLD, &requests[2]);
    MPI_Igatherv(out, 1, MPI_INT, in[3], counts, places, MPI_INT, 0, WORLD, &requests[3]);
    MPI_Iscatter(out, 2, MPI_INT, in[4], 2, MPI_INT, 0, WORLD, &requests[4]);
    MPI_Iscatterv(out, counts, places, MPI_INT, in[5], 1, MPI_INT, 0, WORLD, &requests[5]);
    MPI_Iallgather(out, 2, MPI_INT, in[6], 2, MPI_INT, WORLD, &requests[6]);
    MPI_Iallgatherv(out, 1, MPI_INT, in[7], counts, places, MPI_INT, WORLD, &requests[7]);
    MPI_Ialltoall(out, 2, MPI_INT, in[8], 2, MPI_INT, WORLD, &requests[8]);
    MPI_Ialltoallv(out, counts, places, MPI_INT, in[9], counts, places, MPI_INT, WORLD, &requests[9]);
    MPI_Ialltoallw(out, counts, bytes, types, in[10], counts, bytes, types, WORLD, &requests[10]);
    MPI_Ireduce(out, in[11], 3, MPI_INT, MPI_SUM, 1, WORLD, &requests[11]);
    MPI_Iallreduce(out, in[12], 3, MPI_INT, MPI_SUM, WORLD, &requests[12]);
    MPI_Ireduce_scatter(out, in[13], counts, MPI_INT, MPI_SUM, WORLD, &requests[13]);
    MPI_Ireduce_scatter_block(out, in[14], 2, MPI_INT, MPI_SUM, WORLD, &requests[14]);
    MPI_Iscan(out, in[15], 2, MPI_INT, MPI_SUM, WORLD, &requests[15]);
    MPI_Iexscan(out, in[16], 2, MPI_INT, MPI_SUM, WORLD, &requests[16]);
    MPI_Waitall(N, requests, MPI_STATUSES_IGNORE);
    CHECK(filled(in[1], 6, 3) && in[12][1] == 6004 && in[15][0] == 1000 * rank * (rank + 1) / 2);
    expect("MPI_Ibcast", rank == 3 ? 24 : 0, rank == 3 ? 0 : 24);
    expect("MPI_Igather", 8, rank == 0 ? 32 : 0);
    expect("MPI_Igatherv", 4, rank == 0 ? 16 : 0);
    expect("MPI_Iscatter", rank == 0 ? 32 : 0, 8);
    expect("MPI_Iscatterv", rank == 0 ? 16 : 0, 4);
    expect("MPI_Iallgather", 8, 32);
    expect("MPI_Iallgatherv", 4, 16);
    expect("MPI_Ialltoall", 32, 32);
    expect("MPI_Ialltoallv", 16, 16);
    expect("MPI_Ialltoallw", 16, 16);
    expect("MPI_Ireduce", 12, rank == 1 ? 12 : 0);
    expect("MPI_Iallreduce", 12, 12);
    expect("MPI_Ireduce_scatter", 16, 4);
    expect("MPI_Ireduce_scatter_block", 32, 8);
    expect("MPI_Iscan", 8, 8);
    expect("MPI_Iexscan", 8, 8);
}
