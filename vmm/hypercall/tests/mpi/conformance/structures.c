/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Structures with gaps: gaps do not move. */
#include "conformance.h"
struct particle {
    char kind;
    double place[3];
    int neighbours[2];
};

void structures(void) {
    struct particle out[5], in[5];
    int lengths[3] = {1, 3, 2};
    MPI_Aint places[3] = {offsetof(struct particle, kind), offsetof(struct particle, place), offsetof(struct particle, neighbours)};
    MPI_Datatype types[3] = {MPI_CHAR, MPI_DOUBLE, MPI_INT}, bare, particle;
    MPI_Type_create_struct(3, lengths, places, types, &bare);
    MPI_Type_create_resized(bare, 0, sizeof(struct particle), &particle);
    MPI_Type_commit(&particle);
    for (int i = 0; i < 5; i++)
        out[i] = (struct particle){'a' + rank, {rank, i, 0.5}, {left, right}};
    MPI_Request requests[2];
    MPI_Irecv(in, 5, particle, left, 1, WORLD, &requests[0]);
    MPI_Isend(out, 5, particle, right, 1, WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    CHECK(in[4].kind == 'a' + left && in[4].place[1] == 4 && in[4].neighbours[1] == rank);
    MPI_Gather(out, 1, particle, in, 1, particle, 0, MPI_COMM_SELF);
    MPI_Type_free(&bare);
    MPI_Type_free(&particle);
    enum { ONE = 1 + 3 * 8 + 2 * 4 };
    expect("MPI_Isend", 5 * ONE, 0);
    expect("MPI_Waitall", 0, 5 * ONE);
    expect("MPI_Gather", ONE, ONE);
}
