/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Every kind of call that a recording has: datatypes with holes, persistent and matched messages, all collectives, blocking and not,
 * communicators, groups, topologies, intercommunicators. Each step prints a digest of what it received. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

static void told(const char *step, double digest) {
    printf("rank %d of %d: %s %.17g\n", rank, size, step, digest);
}

static double digest_of(const double *values, int count) {
    double digest = 0;
    for (int i = 0; i < count; i++)
        digest = digest * 0.75 + values[i];
    return digest;
}

static void datatypes(int left, int right) {
    MPI_Datatype column;
    double plane[6][5], into[6][5];
    for (int i = 0; i < 30; i++) {
        plane[i / 5][i % 5] = rank * 100 + i;
        into[i / 5][i % 5] = -1;
    }
    MPI_Type_vector(6, 1, 5, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);
    MPI_Sendrecv(&plane[0][1], 1, column, right, 3, &into[0][2], 1, column, left, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    told("column", digest_of(&into[0][0], 30));
    MPI_Request requests[2];
    MPI_Irecv(&into[0][0], 1, column, left, 4, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(&plane[0][4], 1, column, right, 4, MPI_COMM_WORLD, &requests[1]);
    /* The operations under way keep it. */
    MPI_Type_free(&column);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    told("freed column", digest_of(&into[0][0], 30));
    MPI_Sendrecv_replace(&plane[0][0], 7, MPI_DOUBLE, right, 5, left, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    told("replaced", digest_of(&plane[0][0], 30));
}

static void persistent(int left, int right) {
    double out[8], in[8], digest = 0;
    MPI_Request requests[2];
    MPI_Status statuses[2];
    int count;
    MPI_Recv_init(in, 8, MPI_DOUBLE, left, 6, MPI_COMM_WORLD, &requests[0]);
    MPI_Send_init(out, 5, MPI_DOUBLE, right, 6, MPI_COMM_WORLD, &requests[1]);
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 5; j++)
            out[j] = rank + 10 * i + 0.5 * j;
        MPI_Startall(2, requests);
        MPI_Waitall(2, requests, statuses);
        MPI_Get_count(&statuses[0], MPI_DOUBLE, &count);
        digest = digest * 0.5 + digest_of(in, 5) + count + statuses[0].MPI_SOURCE;
    }
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
    told("persistent", digest);
}

static void matched(int left, int right) {
    double out = rank + 0.25, in = 0;
    MPI_Message message;
    MPI_Status status;
    MPI_Request sent, received;
    MPI_Isend(&out, 1, MPI_DOUBLE, right, 7, MPI_COMM_WORLD, &sent);
    MPI_Mprobe(left, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
    MPI_Mrecv(&in, 1, MPI_DOUBLE, &message, &status);
    MPI_Wait(&sent, MPI_STATUS_IGNORE);
    told("mprobe", in + status.MPI_TAG);
    MPI_Isend(&out, 1, MPI_DOUBLE, left, 8, MPI_COMM_WORLD, &sent);
    int there = 0;
    while (!there)
        MPI_Improbe(right, 8, MPI_COMM_WORLD, &there, &message, &status);
    MPI_Imrecv(&in, 1, MPI_DOUBLE, &message, &received);
    MPI_Wait(&received, &status);
    MPI_Wait(&sent, MPI_STATUS_IGNORE);
    told("improbe", in + status.MPI_SOURCE);
}

static void collectives(MPI_Comm comm, const char *name) {
    int here, all;
    MPI_Comm_rank(comm, &here);
    MPI_Comm_size(comm, &all);
    double own[64], in[64], digest = 0;
    int counts[64], places[64], one[64];
    for (int i = 0; i < 64; i++)
        own[i] = rank * 1.5 + i, in[i] = 0;
    for (int i = 0; i < all; i++)
        counts[i] = i % 2 + 1, places[i] = 2 * i, one[i] = 1;
#define STEP(CALL)                                                                                                             \
    CALL;                                                                                                                      \
    digest = digest * 0.5 + digest_of(in, 64)
    STEP(MPI_Barrier(comm));
    in[0] = here == 1 ? 42.5 : 0;
    STEP(MPI_Bcast(in, 1, MPI_DOUBLE, 1, comm));
    STEP(MPI_Reduce(own, in, 3, MPI_DOUBLE, MPI_SUM, 0, comm));
    STEP(MPI_Allreduce(own, in, 3, MPI_DOUBLE, MPI_MAX, comm));
    STEP(MPI_Allreduce(MPI_IN_PLACE, in, 2, MPI_DOUBLE, MPI_SUM, comm));
    STEP(MPI_Gather(own, 2, MPI_DOUBLE, in, 2, MPI_DOUBLE, 1, comm));
    STEP(MPI_Gatherv(own, here % 2 + 1, MPI_DOUBLE, in, counts, places, MPI_DOUBLE, 0, comm));
    STEP(MPI_Scatter(own, 2, MPI_DOUBLE, in, 2, MPI_DOUBLE, 0, comm));
    STEP(MPI_Scatterv(own, counts, places, MPI_DOUBLE, in, here % 2 + 1, MPI_DOUBLE, 1, comm));
    STEP(MPI_Allgather(own, 1, MPI_DOUBLE, in, 1, MPI_DOUBLE, comm));
    STEP(MPI_Allgatherv(own, here % 2 + 1, MPI_DOUBLE, in, counts, places, MPI_DOUBLE, comm));
    STEP(MPI_Alltoall(own, 1, MPI_DOUBLE, in, 1, MPI_DOUBLE, comm));
    STEP(MPI_Alltoallv(own, one, places, MPI_DOUBLE, in, one, places, MPI_DOUBLE, comm));
    STEP(MPI_Reduce_scatter(own, in, one, MPI_DOUBLE, MPI_SUM, comm));
    STEP(MPI_Reduce_scatter_block(own, in, 1, MPI_DOUBLE, MPI_SUM, comm));
    STEP(MPI_Scan(own, in, 2, MPI_DOUBLE, MPI_SUM, comm));
    MPI_Request request;
#define LATER(CALL) STEP(CALL; MPI_Wait(&request, MPI_STATUS_IGNORE))
    LATER(MPI_Ibarrier(comm, &request));
    LATER(MPI_Iallreduce(own, in, 4, MPI_DOUBLE, MPI_MIN, comm, &request));
    LATER(MPI_Ibcast(in, 5, MPI_DOUBLE, 0, comm, &request));
    LATER(MPI_Iallgatherv(own, here % 2 + 1, MPI_DOUBLE, in, counts, places, MPI_DOUBLE, comm, &request));
    LATER(MPI_Ialltoall(own, 1, MPI_DOUBLE, in, 1, MPI_DOUBLE, comm, &request));
    told(name, digest);
}

static void communicators(void) {
    MPI_Comm half, copy, few, later;
    MPI_Group world, some;
    MPI_Request request;
    int compared, members[2] = {0, size - 1}, here, there[2];
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    collectives(half, "half");
    MPI_Comm_dup(half, &copy);
    MPI_Comm_compare(half, copy, &compared);
    told("congruent", compared == MPI_CONGRUENT);
    collectives(copy, "copy");
    MPI_Comm_idup(half, &later, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    collectives(later, "later");
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 2, members, &some);
    MPI_Group_rank(some, &here);
    MPI_Group_translate_ranks(world, 2, members, some, there);
    told("group", (here == MPI_UNDEFINED ? -1 : here) + 10 * there[1]);
    MPI_Comm_create(MPI_COMM_WORLD, some, &few);
    if (few != MPI_COMM_NULL) {
        collectives(few, "few");
        MPI_Comm_free(&few);
    }
    MPI_Group_free(&some);
    MPI_Group_free(&world);
    /* The two halves as two sides. */
    MPI_Comm between, merged;
    double own = rank, in[8] = {0};
    int remote;
    /* The first of a half is the last of the world that is even, or odd, as its keys have it. */
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank % 2 ? (size - 1) / 2 * 2 : (size - 2) / 2 * 2 + 1, 9, &between);
    MPI_Comm_remote_size(between, &remote);
    MPI_Allgather(&own, 1, MPI_DOUBLE, in, 1, MPI_DOUBLE, between);
    told("between", digest_of(in, remote) + remote);
    MPI_Intercomm_merge(between, rank % 2, &merged);
    collectives(merged, "merged");
    MPI_Comm_free(&merged);
    MPI_Comm_free(&between);
    MPI_Comm_free(&later);
    MPI_Comm_free(&copy);
    MPI_Comm_free(&half);
}

/* Operations that have completed as they began may share a request. */
static void alone(void) {
    double own[2] = {rank + 0.5, rank + 1.5}, in[2] = {0}, none = -1, digest;
    MPI_Request requests[4];
    MPI_Iallreduce(own, in, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_SELF, &requests[0]);
    MPI_Irecv(&none, 1, MPI_DOUBLE, MPI_PROC_NULL, 1, MPI_COMM_WORLD, &requests[1]);
    MPI_Isend(own, 1, MPI_DOUBLE, MPI_PROC_NULL, 1, MPI_COMM_WORLD, &requests[2]);
    MPI_Ibarrier(MPI_COMM_SELF, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    digest = digest_of(in, 2) + none;
    told("alone", digest);
}

static void topologies(void) {
    MPI_Comm ring, graph;
    int dims[1] = {size}, periods[1] = {1}, left, right, sources[1], destinations[1], weighted, in, out;
    double own = rank + 0.125, near[2] = {0};
    MPI_Cart_create(MPI_COMM_WORLD, 1, dims, periods, 0, &ring);
    MPI_Cart_shift(ring, 0, 1, &left, &right);
    MPI_Neighbor_allgather(&own, 1, MPI_DOUBLE, near, 1, MPI_DOUBLE, ring);
    told("ring", digest_of(near, 2) + 10 * left + 100 * right);
    MPI_Comm_free(&ring);
    sources[0] = (rank + size - 1) % size;
    destinations[0] = (rank + 1) % size;
    MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 1, sources, MPI_UNWEIGHTED, 1, destinations, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &graph);
    MPI_Dist_graph_neighbors_count(graph, &in, &out, &weighted);
    MPI_Neighbor_alltoall(&own, 1, MPI_DOUBLE, near, 1, MPI_DOUBLE, graph);
    told("graph", near[0] + 10 * in + 100 * out);
    MPI_Comm_free(&graph);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int left = (rank + size - 1) % size, right = (rank + 1) % size;
    datatypes(left, right);
    persistent(left, right);
    matched(left, right);
    collectives(MPI_COMM_WORLD, "world");
    communicators();
    topologies();
    alone();
    MPI_Finalize();
    return 0;
}
