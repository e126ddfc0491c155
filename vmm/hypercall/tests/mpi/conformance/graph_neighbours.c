/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Neighbourhood collectives on a distributed graph, blocking and not, with lists of counts and types. */
#include "conformance.h"
void graph_neighbours(void) {
    int sources[2] = {left, right}, targets[2] = {left, right}, out[8], in[8], counts[2] = {1, 2}, back[2], places[2] = {0, 4};
    MPI_Comm ring;
    MPI_Request requests[4];
    MPI_Dist_graph_create_adjacent(WORLD, 2, sources, MPI_UNWEIGHTED, 2, targets, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &ring);
    fill(out, 8, rank);
    int in_counts[2] = {3, 3};
    MPI_Neighbor_allgatherv(out, 3, MPI_INT, in, in_counts, places, MPI_INT, ring);
    CHECK(filled(in, 3, left) && filled(in + 4, 3, right));
    /* One value to the left and two to the right: two come from the left, one from the right. */
    back[0] = 2, back[1] = 1;
    MPI_Neighbor_alltoallv(out, counts, places, MPI_INT, in, back, places, MPI_INT, ring);
    CHECK(in[0] == 1000 * left + 4 && in[4] == 1000 * right);
    MPI_Aint bytes[2] = {0, 16};
    MPI_Datatype types[2] = {MPI_INT, MPI_INT};
    MPI_Neighbor_alltoallw(out, counts, bytes, types, in, back, bytes, types, ring);
    MPI_Ineighbor_allgather(out, 2, MPI_INT, in, 2, MPI_INT, ring, &requests[0]);
    MPI_Wait(&requests[0], IGNORE);
    MPI_Ineighbor_alltoall(out, 1, MPI_INT, in, 1, MPI_INT, ring, &requests[0]);
    MPI_Wait(&requests[0], IGNORE);
    MPI_Ineighbor_alltoallv(out, counts, places, MPI_INT, in, back, places, MPI_INT, ring, &requests[0]);
    MPI_Wait(&requests[0], IGNORE);
    MPI_Comm_free(&ring);
    expect("MPI_Neighbor_allgatherv", 12, 24);
    expect("MPI_Neighbor_alltoallv", 12, 12);
    expect("MPI_Neighbor_alltoallw", 12, 12);
    expect("MPI_Ineighbor_allgather", 8, 16);
    expect("MPI_Ineighbor_alltoall", 8, 8);
    expect("MPI_Ineighbor_alltoallv", 12, 12);
}
