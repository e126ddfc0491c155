/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Collective operations: on all ranks of a communicator, or on the neighbours in its topology. */
#include "mpi-wrap.h"

#if MPI_VERSION >= 4
#define PERSISTENT MPI_
#else
#define PERSISTENT MPIX_ /* Open MPI has them as an extension */
#endif

static void rooted(struct call *call, int root) {
    const struct communicator *on = call->communicator;
    call->record.root = on && root == MPI_ROOT ? world_rank : world_rank_of(on, root);
}

static uint64_t group_size(const struct call *call) {
    return call->communicator ? call->communicator->size : 0;
}

static int in_place(struct call *call, const void *buffer) {
    if (buffer != MPI_IN_PLACE)
        return 0;
    call->record.flags |= NODESCOPE_FLAG_IN_PLACE;
    return 1;
}

static uint64_t lists(struct call *call, uint32_t kind, const void *counts, size_t width, MPI_Datatype type, const MPI_Datatype *types) {
    return section_bytes(call, kind, group_size(call), 0, counts, width, type, types);
}

static int own_rank(const struct call *call) {
    return call->communicator ? call->communicator->rank : 0;
}

static void bcast(struct call *call, MPI_Count count, MPI_Datatype type, int root) {
    rooted(call, root);
    uint64_t bytes = root == MPI_PROC_NULL ? 0 : type_bytes(call, count, type);
    *(is_root(call, root) ? &call->record.send_bytes : &call->record.receive_bytes) = bytes;
}

static void reduce(struct call *call, const void *in, MPI_Count count, MPI_Datatype type, MPI_Op op, int root) {
    rooted(call, root);
    call_reduces(call, op);
    in_place(call, in);
    uint64_t bytes = type_bytes(call, count, type);
    int inter = call->communicator && call->communicator->inter;
    if (is_root(call, root))
        call->record.receive_bytes = bytes;
    if (inter ? root != MPI_ROOT && root != MPI_PROC_NULL : 1)
        call->record.send_bytes = bytes;
}

static void all_reduce(struct call *call, const void *in, MPI_Count count, MPI_Datatype type, MPI_Op op) {
    call_reduces(call, op);
    in_place(call, in);
    call->record.send_bytes = call->record.receive_bytes = type_bytes(call, count, type);
}

static void reduce_scatter(struct call *call, const void *in, const void *counts, size_t width, MPI_Datatype type, MPI_Op op) {
    call_reduces(call, op);
    in_place(call, in);
    call->record.receive_bytes = type_bytes(call, count_at(counts, width, own_rank(call)), type);
    if (!(call->record.flags & NODESCOPE_FLAG_INTERCOMM)) /* there the counts are those of the local group */
        call->record.send_bytes = lists(call, NODESCOPE_SECTION_SEND_BYTES, counts, width, type, 0);
}

static void reduce_scatter_block(struct call *call, const void *in, MPI_Count count, MPI_Datatype type, MPI_Op op) {
    call_reduces(call, op);
    in_place(call, in);
    call->record.receive_bytes = type_bytes(call, count, type);
    call->record.send_bytes = call->record.receive_bytes * group_size(call);
}

/* In a gather with MPI_IN_PLACE the root's contribution is already where it belongs: it counts as sent, as on other ranks. */
static void gather(struct call *call, const void *in, MPI_Count in_count, MPI_Datatype in_type, MPI_Count out_count,
                   MPI_Datatype out_type, int root) {
    int here = is_root(call, root), placed = here && in_place(call, in);
    rooted(call, root);
    if (here)
        call->record.receive_bytes = type_bytes(call, out_count, out_type) * group_size(call);
    if (placed)
        call->record.send_bytes = type_bytes(call, out_count, out_type);
    else if (root != MPI_ROOT && root != MPI_PROC_NULL)
        call->record.send_bytes = type_bytes(call, in_count, in_type);
}

static void gatherv(struct call *call, const void *in, MPI_Count in_count, MPI_Datatype in_type, const void *counts,
                    size_t width, MPI_Datatype out_type,
                    int root) {
    int here = is_root(call, root), placed = here && in_place(call, in);
    rooted(call, root);
    if (here)
        call->record.receive_bytes = lists(call, NODESCOPE_SECTION_RECEIVE_BYTES, counts, width, out_type, 0);
    if (placed)
        call->record.send_bytes = type_bytes(call, count_at(counts, width, own_rank(call)), out_type);
    else if (root != MPI_ROOT && root != MPI_PROC_NULL)
        call->record.send_bytes = type_bytes(call, in_count, in_type);
}

static void scatter(struct call *call, MPI_Count in_count, MPI_Datatype in_type, const void *out, MPI_Count out_count,
                    MPI_Datatype out_type,
                    int root) {
    int here = is_root(call, root), placed = here && in_place(call, out);
    rooted(call, root);
    if (here)
        call->record.send_bytes = type_bytes(call, in_count, in_type) * group_size(call);
    if (placed)
        call->record.receive_bytes = type_bytes(call, in_count, in_type);
    else if (root != MPI_ROOT && root != MPI_PROC_NULL)
        call->record.receive_bytes = type_bytes(call, out_count, out_type);
}

static void scatterv(struct call *call, const void *counts, size_t width, MPI_Datatype in_type, const void *out,
                     MPI_Count out_count, MPI_Datatype out_type,
                     int root) {
    int here = is_root(call, root), placed = here && in_place(call, out);
    rooted(call, root);
    if (here)
        call->record.send_bytes = lists(call, NODESCOPE_SECTION_SEND_BYTES, counts, width, in_type, 0);
    if (placed)
        call->record.receive_bytes = type_bytes(call, count_at(counts, width, own_rank(call)), in_type);
    else if (root != MPI_ROOT && root != MPI_PROC_NULL)
        call->record.receive_bytes = type_bytes(call, out_count, out_type);
}

static void all_gather(struct call *call, const void *in, MPI_Count in_count, MPI_Datatype in_type, MPI_Count out_count,
                       MPI_Datatype out_type) {
    int placed = in_place(call, in);
    call->record.send_bytes = placed ? type_bytes(call, out_count, out_type) : type_bytes(call, in_count, in_type);
    call->record.receive_bytes = type_bytes(call, out_count, out_type) * group_size(call);
}

static void all_gatherv(struct call *call, const void *in, MPI_Count in_count, MPI_Datatype in_type, const void *counts,
                        size_t width, MPI_Datatype out_type) {
    int placed = in_place(call, in);
    call->record.send_bytes = placed ? type_bytes(call, count_at(counts, width, own_rank(call)), out_type) : type_bytes(call,
                                                  in_count, in_type);
    call->record.receive_bytes = lists(call, NODESCOPE_SECTION_RECEIVE_BYTES, counts, width, out_type, 0);
}

static void all_to_all(struct call *call, const void *in, MPI_Count in_count, MPI_Datatype in_type, MPI_Count out_count,
                       MPI_Datatype out_type) {
    int placed = in_place(call, in);
    call->record.send_bytes = (placed ? type_bytes(call, out_count, out_type) : type_bytes(call, in_count,
                               in_type)) * group_size(call);
    call->record.receive_bytes = type_bytes(call, out_count, out_type) * group_size(call);
}

static void all_to_allv(struct call *call, const void *in, const void *in_counts, MPI_Datatype in_type, const void *out_counts,
                        size_t width,
                        MPI_Datatype out_type) {
    int placed = in_place(call, in);
    call->record.send_bytes =
        lists(call, NODESCOPE_SECTION_SEND_BYTES, placed ? out_counts : in_counts, width, placed ? out_type : in_type, 0);
    call->record.receive_bytes = lists(call, NODESCOPE_SECTION_RECEIVE_BYTES, out_counts, width, out_type, 0);
}

static void all_to_allw(struct call *call, const void *in, const void *in_counts, const MPI_Datatype *in_types,
                        const void *out_counts, size_t width,
                        const MPI_Datatype *out_types) {
    int placed = in_place(call, in);
    call->record.send_bytes =
        lists(call, NODESCOPE_SECTION_SEND_BYTES, placed ? out_counts : in_counts, width, MPI_DATATYPE_NULL,
              placed ? out_types : in_types);
    call->record.receive_bytes = lists(call, NODESCOPE_SECTION_RECEIVE_BYTES, out_counts, width, MPI_DATATYPE_NULL, out_types);
}

/* ---- neighbours ---- */

static void with_neighbours(struct call *call) {
    const struct neighbours *near = neighbours_of(call->communicator);
    if (!near)
        return;
    section_ranks(call, NODESCOPE_SECTION_DESTINATIONS, near->ranks, near->destinations);
    section_ranks(call, NODESCOPE_SECTION_SOURCES, near->ranks + near->destinations, near->sources);
}

/* How many there are, without those beyond the edge of a grid, to whom nothing goes. */
static uint64_t real_ones(const int *ranks, int count) {
    uint64_t there = 0;
    for (int i = 0; i < count; i++)
        there += ranks[i] != NODESCOPE_PROC_NULL;
    return there;
}

static void near_all_gather(struct call *call, MPI_Count in_count, MPI_Datatype in_type, MPI_Count out_count, MPI_Datatype out_type) {
    const struct neighbours *near = neighbours_of(call->communicator);
    call->record.send_bytes = type_bytes(call, in_count, in_type);
    if (near)
        call->record.receive_bytes = type_bytes(call, out_count, out_type) * real_ones(near->ranks + near->destinations, near->sources);
}

static void near_all_to_all(struct call *call, MPI_Count in_count, MPI_Datatype in_type, MPI_Count out_count, MPI_Datatype out_type) {
    const struct neighbours *near = neighbours_of(call->communicator);
    near_all_gather(call, in_count, in_type, out_count, out_type);
    if (near)
        call->record.send_bytes *= real_ones(near->ranks, near->destinations);
}

static void to_neighbours(struct call *call, const void *counts, size_t width, MPI_Datatype type, const MPI_Datatype *types) {
    const struct neighbours *near = neighbours_of(call->communicator);
    if (near)
        call->record.send_bytes =
            section_bytes(call, NODESCOPE_SECTION_SEND_BYTES, near->destinations, near->ranks, counts, width, type, types);
}

static void from_neighbours(struct call *call, const void *counts, size_t width, MPI_Datatype type, const MPI_Datatype *types) {
    const struct neighbours *near = neighbours_of(call->communicator);
    if (near)
        call->record.receive_bytes = section_bytes(call, NODESCOPE_SECTION_RECEIVE_BYTES, near->sources, near->ranks + near->destinations,
                                                   counts, width, type, types);
}

WRAP(Barrier, (MPI_Comm comm), (comm), call_on(call, comm), )
WRAP(Ibarrier, (MPI_Comm comm, MPI_Request *request), (comm, request), call_on(call, comm), call_starts(call, request, REQUEST_OTHER))
WRAP_AS(PERSISTENT, Barrier_init, (MPI_Comm comm, MPI_Info info, MPI_Request *request), (comm, info, request), call_on(call, comm),
        call_prepares(call, request, REQUEST_OTHER))

#include "wrap-collectives.h"
#if LARGE_FORMS
#include "mpi-large.h"
#include "wrap-collectives.h"
#endif
