/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A graph as MPI-1 has it, and one that ranks make of one another. */
#include "conformance.h"
void graphs(void) {
    /* A star round rank 0. */
    int index[4] = {3, 4, 5, 6}, edges[6] = {1, 2, 3, 0, 0, 0}, in[3] = {0}, degree = 1;
    MPI_Comm star, ring;
    MPI_Graph_create(WORLD, 4, index, edges, 0, &star);
    MPI_Neighbor_allgather(&rank, 1, MPI_INT, in, 1, MPI_INT, star);
    CHECK(rank ? in[0] == 0 : in[0] + in[1] + in[2] == 6);
    MPI_Dist_graph_create(WORLD, 1, &left, &degree, &rank, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &ring);
    MPI_Neighbor_alltoall(&rank, 1, MPI_INT, in, 1, MPI_INT, ring);
    CHECK(in[0] == left);
    MPI_Comm_free(&star);
    MPI_Comm_free(&ring);
    expect("MPI_Neighbor_allgather", 4, rank ? 4 : 12);
    expect("MPI_Neighbor_alltoall", 4, 4);
}
