/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Collective functions with counts, each blocking, non-blocking and persistent: included once for each form. */

/* RECORD sees the parameters by the names used here. */
#define COLLECTIVE(NAME, STARTS, PREPARES, PARAMETERS, ARGUMENTS, RECORD)                                                      \
    WRAP(NAME, (PLAIN PARAMETERS, MPI_Comm comm), (PLAIN ARGUMENTS, comm), call_on(call, comm); RECORD, )                      \
    WRAP(STARTS, (PLAIN PARAMETERS, MPI_Comm comm, MPI_Request *request), (PLAIN ARGUMENTS, comm, request), call_on(call, comm); \
         RECORD, call_starts(call, request, REQUEST_OTHER))                                                                    \
    WRAP_AS(PERSISTENT, PREPARES, (PLAIN PARAMETERS, MPI_Comm comm, MPI_Info info, MPI_Request *request),                      \
            (PLAIN ARGUMENTS, comm, info, request), call_on(call, comm);                                                       \
            RECORD, call_prepares(call, request, REQUEST_OTHER))

COLLECTIVE(Bcast, Ibcast, Bcast_init, (void *buffer, COUNT count, MPI_Datatype type, int root), (buffer, count, type, root),
           bcast(call, count, type, root))
COLLECTIVE(Reduce, Ireduce, Reduce_init, (const void *in, void *out, COUNT count, MPI_Datatype type, MPI_Op op, int root),
           (in, out, count, type, op, root), reduce(call, in, count, type, op, root))
COLLECTIVE(Allreduce, Iallreduce, Allreduce_init,
           (const void *in, void *out, COUNT count, MPI_Datatype type, MPI_Op op), (in, out, count, type, op),
           all_reduce(call, in, count, type, op))
COLLECTIVE(Scan, Iscan, Scan_init,
           (const void *in, void *out, COUNT count, MPI_Datatype type, MPI_Op op), (in, out, count, type, op),
           all_reduce(call, in, count, type, op))
COLLECTIVE(Exscan, Iexscan, Exscan_init,
           (const void *in, void *out, COUNT count, MPI_Datatype type, MPI_Op op), (in, out, count, type, op),
           all_reduce(call, in, count, type, op))
COLLECTIVE(Reduce_scatter, Ireduce_scatter, Reduce_scatter_init,
           (const void *in, void *out, const COUNT counts[], MPI_Datatype type, MPI_Op op),
           (in, out, counts, type, op), reduce_scatter(call, in, counts, sizeof(COUNT), type, op))
COLLECTIVE(Reduce_scatter_block, Ireduce_scatter_block, Reduce_scatter_block_init,
           (const void *in, void *out, COUNT count, MPI_Datatype type, MPI_Op op),
           (in, out, count, type, op), reduce_scatter_block(call, in, count, type, op))
COLLECTIVE(Gather, Igather, Gather_init,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT out_count, MPI_Datatype out_type, int root),
           (in, in_count, in_type, out, out_count, out_type, root), gather(call, in, in_count, in_type, out_count, out_type, root))
COLLECTIVE(Gatherv, Igatherv, Gatherv_init,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, const COUNT counts[], const PLACE places[],
            MPI_Datatype out_type,
            int root),
           (in, in_count, in_type, out, counts, places, out_type, root),
           gatherv(call, in, in_count, in_type, counts, sizeof(COUNT), out_type, root))
COLLECTIVE(Scatter, Iscatter, Scatter_init,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT out_count, MPI_Datatype out_type, int root),
           (in, in_count, in_type, out, out_count, out_type, root), scatter(call, in_count, in_type, out, out_count, out_type,
            root))
COLLECTIVE(Scatterv, Iscatterv, Scatterv_init,
           (const void *in, const COUNT counts[], const PLACE places[], MPI_Datatype in_type, void *out, COUNT out_count,
            MPI_Datatype out_type, int root),
           (in, counts, places, in_type, out, out_count, out_type, root),
           scatterv(call, counts, sizeof(COUNT), in_type, out, out_count, out_type, root))
COLLECTIVE(Allgather, Iallgather, Allgather_init,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT out_count, MPI_Datatype out_type),
           (in, in_count, in_type, out, out_count, out_type), all_gather(call, in, in_count, in_type, out_count, out_type))
COLLECTIVE(Allgatherv, Iallgatherv, Allgatherv_init,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, const COUNT counts[], const PLACE places[],
            MPI_Datatype out_type),
           (in, in_count, in_type, out, counts, places, out_type), all_gatherv(call, in, in_count, in_type, counts,
            sizeof(COUNT), out_type))
COLLECTIVE(Alltoall, Ialltoall, Alltoall_init,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT out_count, MPI_Datatype out_type),
           (in, in_count, in_type, out, out_count, out_type), all_to_all(call, in, in_count, in_type, out_count, out_type))
COLLECTIVE(Alltoallv, Ialltoallv, Alltoallv_init,
           (const void *in, const COUNT in_counts[], const PLACE in_places[], MPI_Datatype in_type, void *out,
            const COUNT out_counts[],
            const PLACE out_places[], MPI_Datatype out_type),
           (in, in_counts, in_places, in_type, out, out_counts, out_places, out_type),
           all_to_allv(call, in, in_counts, in_type, out_counts, sizeof(COUNT), out_type))
COLLECTIVE(Alltoallw, Ialltoallw, Alltoallw_init,
           (const void *in, const COUNT in_counts[], const PLACE in_places[], const MPI_Datatype in_types[], void *out,
            const COUNT out_counts[],
            const PLACE out_places[], const MPI_Datatype out_types[]),
           (in, in_counts, in_places, in_types, out, out_counts, out_places, out_types),
           all_to_allw(call, in, in_counts, in_types, out_counts, sizeof(COUNT), out_types))

/* ---- with the neighbours in a topology ---- */

COLLECTIVE(Neighbor_allgather, Ineighbor_allgather, Neighbor_allgather_init,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT out_count, MPI_Datatype out_type),
           (in, in_count, in_type, out, out_count, out_type),
           with_neighbours(call); near_all_gather(call, in_count, in_type, out_count, out_type))
COLLECTIVE(Neighbor_allgatherv, Ineighbor_allgatherv, Neighbor_allgatherv_init,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, const COUNT counts[], const PLACE places[],
            MPI_Datatype out_type),
           (in, in_count, in_type, out, counts, places, out_type), with_neighbours(call);
           r->send_bytes = type_bytes(call, in_count, in_type); from_neighbours(call, counts, sizeof(COUNT), out_type, 0))
COLLECTIVE(Neighbor_alltoall, Ineighbor_alltoall, Neighbor_alltoall_init,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT out_count, MPI_Datatype out_type),
           (in, in_count, in_type, out, out_count, out_type),
           with_neighbours(call); near_all_to_all(call, in_count, in_type, out_count, out_type))
COLLECTIVE(Neighbor_alltoallv, Ineighbor_alltoallv, Neighbor_alltoallv_init,
           (const void *in, const COUNT in_counts[], const PLACE in_places[], MPI_Datatype in_type, void *out,
            const COUNT out_counts[], const PLACE out_places[], MPI_Datatype out_type),
           (in, in_counts, in_places, in_type, out, out_counts, out_places, out_type), with_neighbours(call);
           to_neighbours(call, in_counts, sizeof(COUNT), in_type, 0); from_neighbours(call, out_counts, sizeof(COUNT), out_type, 0))
COLLECTIVE(Neighbor_alltoallw, Ineighbor_alltoallw, Neighbor_alltoallw_init,
           (const void *in, const COUNT in_counts[], const MPI_Aint in_places[], const MPI_Datatype in_types[], void *out,
            const COUNT out_counts[], const MPI_Aint out_places[], const MPI_Datatype out_types[]),
           (in, in_counts, in_places, in_types, out, out_counts, out_places, out_types), with_neighbours(call);
           to_neighbours(call, in_counts, sizeof(COUNT), MPI_DATATYPE_NULL, in_types);
           from_neighbours(call, out_counts, sizeof(COUNT), MPI_DATATYPE_NULL, out_types))
#undef COLLECTIVE
