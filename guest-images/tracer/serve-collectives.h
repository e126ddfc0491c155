/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Collective functions with counts, blocking and non-blocking: included once for each form. */

/* DESCRIBE sees the parameters by the names used here. */
#define COLLECTIVE(NAME, STARTS, PARAMETERS, ARGUMENTS, DESCRIBE)                                                              \
    SERVE(NAME, (PLAIN PARAMETERS, MPI_Comm comm), (PLAIN ARGUMENTS, comm), call_on_communicator(call, comm); DESCRIBE,        \
          exchange_regions(call, call->regions, call->region_count, NULL))                                                     \
    SERVE(STARTS, (PLAIN PARAMETERS, MPI_Comm comm, MPI_Request *request), (PLAIN ARGUMENTS, comm, request),                   \
          call_on_communicator(call, comm);                                                                                    \
          DESCRIBE, served_starts(call, request, SERVED_OTHER))

COLLECTIVE(Bcast, Ibcast, (void *buffer, COUNT count, MPI_Datatype type, int root), (buffer, count, type, root),
           broadcast(call, buffer, count, type, root))
COLLECTIVE(Reduce, Ireduce, (const void *in, void *out, COUNT count, MPI_Datatype type, MPI_Op op, int root),
           (in, out, count, type, op, root), (void)in; (void)op; reduce(call, out, count, type, root))
COLLECTIVE(Allreduce, Iallreduce, (const void *in, void *out, COUNT count, MPI_Datatype type, MPI_Op op), (in, out, count, type, op),
           (void)in; (void)op; call_receives(call, out, count, type))
COLLECTIVE(Scan, Iscan, (const void *in, void *out, COUNT count, MPI_Datatype type, MPI_Op op), (in, out, count, type, op), (void)in;
           (void)op; call_receives(call, out, count, type))
COLLECTIVE(Exscan, Iexscan, (const void *in, void *out, COUNT count, MPI_Datatype type, MPI_Op op), (in, out, count, type, op), (void)in;
           (void)op; call_receives(call, out, count, type))
COLLECTIVE(Reduce_scatter, Ireduce_scatter, (const void *in, void *out, const COUNT counts[], MPI_Datatype type, MPI_Op op),
           (in, out, counts, type, op), (void)in; (void)op; call_receives(call, out, call->on ? counts[call->on->rank] : 0, type))
COLLECTIVE(Reduce_scatter_block, Ireduce_scatter_block, (const void *in, void *out, COUNT count, MPI_Datatype type, MPI_Op op),
           (in, out, count, type, op), (void)in; (void)op; call_receives(call, out, count, type))
COLLECTIVE(Gather, Igather,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT out_count, MPI_Datatype out_type, int root),
           (in, in_count, in_type, out, out_count, out_type, root), contributes(call, in, in_count, in_type, root);
           if (receives_at_root(call->on, root)) call_receives(call, out, (MPI_Count)out_count * peers_of(call->on), out_type))
COLLECTIVE(Gatherv, Igatherv,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, const COUNT counts[], const PLACE places[],
            MPI_Datatype out_type, int root),
           (in, in_count, in_type, out, counts, places, out_type, root), contributes(call, in, in_count, in_type, root);
           if (receives_at_root(call->on, root)) BLOCKS(out, counts, places, out_type, peers_of(call->on)))
COLLECTIVE(Scatter, Iscatter,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT out_count, MPI_Datatype out_type, int root),
           (in, in_count, in_type, out, out_count, out_type, root), (void)in; (void)in_count; (void)in_type;
           scattered(call, out, out_count, out_type, root))
COLLECTIVE(Scatterv, Iscatterv,
           (const void *in, const COUNT counts[], const PLACE places[], MPI_Datatype in_type, void *out, COUNT out_count,
            MPI_Datatype out_type, int root),
           (in, counts, places, in_type, out, out_count, out_type, root), (void)in; (void)counts; (void)places; (void)in_type;
           scattered(call, out, out_count, out_type, root))
COLLECTIVE(Allgather, Iallgather,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT out_count, MPI_Datatype out_type),
           (in, in_count, in_type, out, out_count, out_type), sends(call, in, in_count, in_type);
           call_receives(call, out, (MPI_Count)out_count * peers_of(call->on), out_type))
COLLECTIVE(Allgatherv, Iallgatherv,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, const COUNT counts[], const PLACE places[],
            MPI_Datatype out_type),
           (in, in_count, in_type, out, counts, places, out_type), sends(call, in, in_count, in_type);
           BLOCKS(out, counts, places, out_type, peers_of(call->on)))
COLLECTIVE(Alltoall, Ialltoall,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT out_count, MPI_Datatype out_type),
           (in, in_count, in_type, out, out_count, out_type), sends(call, in, in_count, in_type);
           call_receives(call, out, (MPI_Count)out_count * peers_of(call->on), out_type))
COLLECTIVE(Alltoallv, Ialltoallv,
           (const void *in, const COUNT in_counts[], const PLACE in_places[], MPI_Datatype in_type, void *out, const COUNT out_counts[],
            const PLACE out_places[], MPI_Datatype out_type),
           (in, in_counts, in_places, in_type, out, out_counts, out_places, out_type), (void)in; (void)in_counts; (void)in_places;
           (void)in_type; BLOCKS(out, out_counts, out_places, out_type, peers_of(call->on)))
COLLECTIVE(Alltoallw, Ialltoallw,
           (const void *in, const COUNT in_counts[], const PLACE in_places[], const MPI_Datatype in_types[], void *out,
            const COUNT out_counts[], const PLACE out_places[], const MPI_Datatype out_types[]),
           (in, in_counts, in_places, in_types, out, out_counts, out_places, out_types), (void)in; (void)in_counts; (void)in_places;
           (void)in_types; TYPED_BLOCKS(out, out_counts, out_places, out_types, peers_of(call->on)))

/* ---- with the neighbours in a topology ---- */

COLLECTIVE(Neighbor_allgather, Ineighbor_allgather,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT out_count, MPI_Datatype out_type),
           (in, in_count, in_type, out, out_count, out_type), sends(call, in, in_count, in_type);
           call_receives(call, out, (MPI_Count)out_count * sources_of(call->on), out_type))
COLLECTIVE(Neighbor_allgatherv, Ineighbor_allgatherv,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, const COUNT counts[], const PLACE places[],
            MPI_Datatype out_type),
           (in, in_count, in_type, out, counts, places, out_type), sends(call, in, in_count, in_type);
           BLOCKS(out, counts, places, out_type, sources_of(call->on)))
COLLECTIVE(Neighbor_alltoall, Ineighbor_alltoall,
           (const void *in, COUNT in_count, MPI_Datatype in_type, void *out, COUNT out_count, MPI_Datatype out_type),
           (in, in_count, in_type, out, out_count, out_type), sends(call, in, in_count, in_type);
           call_receives(call, out, (MPI_Count)out_count * sources_of(call->on), out_type))
COLLECTIVE(Neighbor_alltoallv, Ineighbor_alltoallv,
           (const void *in, const COUNT in_counts[], const PLACE in_places[], MPI_Datatype in_type, void *out, const COUNT out_counts[],
            const PLACE out_places[], MPI_Datatype out_type),
           (in, in_counts, in_places, in_type, out, out_counts, out_places, out_type), (void)in; (void)in_counts; (void)in_places;
           (void)in_type; BLOCKS(out, out_counts, out_places, out_type, sources_of(call->on)))
COLLECTIVE(Neighbor_alltoallw, Ineighbor_alltoallw,
           (const void *in, const COUNT in_counts[], const MPI_Aint in_places[], const MPI_Datatype in_types[], void *out,
            const COUNT out_counts[], const MPI_Aint out_places[], const MPI_Datatype out_types[]),
           (in, in_counts, in_places, in_types, out, out_counts, out_places, out_types), (void)in; (void)in_counts; (void)in_places;
           (void)in_types; TYPED_BLOCKS(out, out_counts, out_places, out_types, sources_of(call->on)))
#undef COLLECTIVE
