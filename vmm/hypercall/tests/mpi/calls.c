/* Four ranks make a known number of calls with known arguments; tests/mpi.rs holds the numbers. */
#include <mpi.h>
#include <stdlib.h>

static int rank, size;

static void sends(void) {
    int value[4] = {0}, left = (rank + size - 1) % size, right = (rank + 1) % size;
    MPI_Request request;
    MPI_Sendrecv(value, 3, MPI_INT, right, 5, value, 3, MPI_INT, left, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv_replace(value, 1, MPI_INT, right, 6, left, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank % 2 == 0) {
        int bytes = 1024 + MPI_BSEND_OVERHEAD;
        void *buffer = malloc(bytes);
        MPI_Buffer_attach(buffer, bytes);
        MPI_Send(value, 1, MPI_INT, rank + 1, 10, MPI_COMM_WORLD);
        MPI_Bsend(value, 2, MPI_INT, rank + 1, 11, MPI_COMM_WORLD);
        MPI_Ssend(value, 3, MPI_INT, rank + 1, 12, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Rsend(value, 4, MPI_INT, rank + 1, 13, MPI_COMM_WORLD);
        MPI_Buffer_detach(&buffer, &bytes);
        free(buffer);
    } else {
        for (int i = 0; i < 3; i++)
            MPI_Recv(value, 4, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Irecv(value, 4, MPI_INT, rank - 1, 13, MPI_COMM_WORLD, &request);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    MPI_Send(value, 1, MPI_INT, MPI_PROC_NULL, 1, MPI_COMM_WORLD);
}

static void requests(void) {
    int in[8] = {0}, out[8] = {0}, left = (rank + size - 1) % size, right = (rank + 1) % size, index, done = 0, flag = 0;
    MPI_Request request[8];
    int indices[8];
    /* Small sends complete at once, and MPI gives all of them one handle. */
    for (int i = 0; i < 3; i++)
        MPI_Irecv(&in[i], 1, MPI_INT, left, 20 + i, MPI_COMM_WORLD, &request[i]);
    for (int i = 0; i < 3; i++)
        MPI_Isend(&out[i], 1, MPI_INT, right, 20 + i, MPI_COMM_WORLD, &request[3 + i]);
    MPI_Waitall(6, request, MPI_STATUSES_IGNORE);

    for (int i = 0; i < 2; i++)
        MPI_Irecv(&in[i], 1, MPI_INT, left, 30 + i, MPI_COMM_WORLD, &request[i]);
    for (int i = 0; i < 2; i++)
        MPI_Send(&out[i], 1, MPI_INT, right, 30 + i, MPI_COMM_WORLD);
    for (int i = 0; i < 3; i++) /* the third finds nothing left: index MPI_UNDEFINED */
        MPI_Waitany(2, request, &index, MPI_STATUS_IGNORE);

    for (int i = 0; i < 2; i++)
        MPI_Irecv(&in[i], 1, MPI_INT, left, 40 + i, MPI_COMM_WORLD, &request[i]);
    for (int i = 0; i < 2; i++)
        MPI_Issend(&out[i], 1, MPI_INT, right, 40 + i, MPI_COMM_WORLD, &request[2 + i]);
    for (int left_over = 4; left_over > 0; left_over -= done)
        MPI_Waitsome(4, request, &done, indices, MPI_STATUSES_IGNORE);

    MPI_Request ring[2];
    MPI_Recv_init(&in[0], 1, MPI_INT, left, 50, MPI_COMM_WORLD, &ring[0]);
    MPI_Send_init(&out[0], 1, MPI_INT, right, 50, MPI_COMM_WORLD, &ring[1]);
    for (int i = 0; i < 3; i++) {
        MPI_Startall(2, ring);
        MPI_Waitall(2, ring, MPI_STATUSES_IGNORE);
    }
    MPI_Request_free(&ring[0]);
    MPI_Request_free(&ring[1]);

    /* Rank 1 sends only after rank 0's permission, so that all polls before it find nothing. */
    if (rank == 0) {
        MPI_Status status;
        MPI_Irecv(&in[0], 1, MPI_INT, 1, 60, MPI_COMM_WORLD, &request[0]);
        for (int i = 0; i < 1000; i++)
            MPI_Test(&request[0], &flag, MPI_STATUS_IGNORE);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Wait(&request[0], MPI_STATUS_IGNORE);
        MPI_Irecv(&in[0], 1, MPI_INT, 1, 61, MPI_COMM_WORLD, &request[0]);
        for (int i = 0; i < 300; i++) {
            MPI_Iprobe(MPI_ANY_SOURCE, 62, MPI_COMM_WORLD, &flag, &status);
            MPI_Testall(1, request, &flag, MPI_STATUSES_IGNORE);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Wait(&request[0], MPI_STATUS_IGNORE);
        MPI_Probe(MPI_ANY_SOURCE, 62, MPI_COMM_WORLD, &status);
        MPI_Iprobe(MPI_ANY_SOURCE, 62, MPI_COMM_WORLD, &flag, &status);
        MPI_Recv(in, 8, MPI_INT, status.MPI_SOURCE, 62, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 1)
            MPI_Send(out, 1, MPI_INT, 0, 60, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 1) {
            MPI_Send(out, 1, MPI_INT, 0, 61, MPI_COMM_WORLD);
            MPI_Send(out, 7, MPI_INT, 0, 62, MPI_COMM_WORLD);
        }
    }
}

static void collectives(void) {
    double in[64] = {0}, out[64] = {0};
    int counts[4], places[4], total = 0, rows[4];
    MPI_Datatype types[4];
    int byte_places[4];
    for (int i = 0; i < size; i++) {
        counts[i] = i + 1;
        places[i] = total;
        byte_places[i] = total * 8;
        total += i + 1;
        rows[i] = rank + 1;
        types[i] = MPI_DOUBLE;
    }
    MPI_Bcast(in, 5, MPI_DOUBLE, 1, MPI_COMM_WORLD);
    MPI_Reduce(in, out, 6, MPI_DOUBLE, MPI_MAX, 2, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, out, 7, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Gather(in, 2, MPI_DOUBLE, out, 2, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    MPI_Gatherv(in, rank + 1, MPI_DOUBLE, out, counts, places, MPI_DOUBLE, 3, MPI_COMM_WORLD);
    MPI_Scatter(in, 2, MPI_DOUBLE, out, 2, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    MPI_Scatterv(in, counts, places, MPI_DOUBLE, out, rank + 1, MPI_DOUBLE, 3, MPI_COMM_WORLD);
    MPI_Allgather(in, 3, MPI_DOUBLE, out, 3, MPI_DOUBLE, MPI_COMM_WORLD);
    MPI_Allgatherv(in, rank + 1, MPI_DOUBLE, out, counts, places, MPI_DOUBLE, MPI_COMM_WORLD);
    MPI_Alltoall(in, 2, MPI_DOUBLE, out, 2, MPI_DOUBLE, MPI_COMM_WORLD);
    MPI_Alltoallv(in, counts, places, MPI_DOUBLE, out, rows, places, MPI_DOUBLE, MPI_COMM_WORLD);
    for (int i = 0; i < size; i++)
        byte_places[i] = 8 * i * 4;
    MPI_Alltoallw(in, counts, byte_places, types, out, rows, byte_places, types, MPI_COMM_WORLD);
    MPI_Reduce_scatter(in, out, counts, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    MPI_Reduce_scatter_block(in, out, 3, MPI_DOUBLE, MPI_PROD, MPI_COMM_WORLD);
    MPI_Scan(in, out, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Exscan(in, out, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Request request[2];
    MPI_Ibarrier(MPI_COMM_WORLD, &request[0]);
    MPI_Iallreduce(in, out, 4, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request[1]);
    MPI_Waitall(2, request, MPI_STATUSES_IGNORE);
}

static void communicators(void) {
    MPI_Comm half, twin, other, created;
    MPI_Group world, evens;
    int value = 0, members[2] = {2, 0};
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half); /* {2, 0} and {3, 1} */
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT, MPI_SUM, half);
    if (rank >= 2)
        MPI_Send(&value, 1, MPI_INT, 1, 70, half); /* its rank 0 is world rank 2 or 3, its rank 1 world rank 0 or 1 */
    else
        MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, 70, half, MPI_STATUS_IGNORE);
    MPI_Comm_free(&half);
    MPI_Comm_dup(MPI_COMM_WORLD, &twin);
    MPI_Comm_dup(MPI_COMM_WORLD, &other);
    MPI_Barrier(twin);
    MPI_Comm_free(&twin);
    MPI_Comm_free(&other);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 2, members, &evens);
    MPI_Comm_create(MPI_COMM_WORLD, evens, &created);
    if (created != MPI_COMM_NULL)
        MPI_Comm_free(&created);
    MPI_Group_free(&world);
    MPI_Group_free(&evens);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    sends();
    requests();
    collectives();
    communicators();
    MPI_Finalize();
    return 0;
}
