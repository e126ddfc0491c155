/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Making and freeing communicators. */
#include "serve.h"

static int hashed(int a, int b) {
    return (int)((uint32_t)a * 31u + (uint32_t)b);
}

#define SERVE_COMM(NAME, PARAMETERS, ARGUMENTS, ORIGINAL)                                                                      \
    SERVE(NAME, PARAMETERS, ARGUMENTS, call_on_communicator(call, comm), exchange_communicator(new_comm, ORIGINAL))

SERVE_COMM(Comm_dup, (MPI_Comm comm, MPI_Comm *new_comm), (comm, new_comm), comm)
SERVE_COMM(Comm_dup_with_info, (MPI_Comm comm, MPI_Info info, MPI_Comm *new_comm), (comm, info, new_comm), (PLAIN((void)info, comm)))
/* Colour and key decide whose communicator it is: a replay must give those that were recorded. */
SERVE(Comm_split, (MPI_Comm comm, int color, int key, MPI_Comm *new_comm), (comm, color, key, new_comm), call_on_communicator(call, comm);
      call->entry.detail = hashed(color, key), exchange_communicator(new_comm, MPI_COMM_SELF))
SERVE(Comm_split_type, (MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *new_comm), (comm, type, key, info, new_comm), (void)info;
      call_on_communicator(call, comm); call->entry.detail = hashed(type, key), exchange_communicator(new_comm, MPI_COMM_SELF))
SERVE_COMM(Comm_create, (MPI_Comm comm, MPI_Group group, MPI_Comm *new_comm), (comm, group, new_comm), (PLAIN((void)group, MPI_COMM_SELF)))
SERVE_COMM(Comm_create_group, (MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *new_comm), (comm, group, tag, new_comm),
           (PLAIN((void)group, (void)tag, MPI_COMM_SELF)))
SERVE(Cart_create, (MPI_Comm comm, int dims, const int sizes[], const int periods[], int reorder, MPI_Comm *new_comm),
      (comm, dims, sizes, periods, reorder, new_comm), (void)periods; (void)reorder; call_on_communicator(call, comm);
      call->entry.detail = dims;
      for (int i = 0; i < dims; i++) call->entry.detail = hashed(call->entry.detail, sizes[i]),
      exchange_communicator(new_comm, MPI_COMM_SELF))
SERVE_COMM(Cart_sub, (MPI_Comm comm, const int remain[], MPI_Comm *new_comm), (comm, remain, new_comm), (PLAIN((void)remain, MPI_COMM_SELF)))
SERVE(Graph_create, (MPI_Comm comm, int nodes, const int index[], const int edges[], int reorder, MPI_Comm *new_comm),
      (comm, nodes, index, edges, reorder, new_comm), (void)index; (void)edges; (void)reorder; call_on_communicator(call, comm);
      call->entry.detail = nodes, exchange_communicator(new_comm, MPI_COMM_SELF))
SERVE(Dist_graph_create,
      (MPI_Comm comm, int n, const int nodes[], const int degrees[], const int targets[], const int weights[], MPI_Info info, int reorder,
       MPI_Comm *new_comm),
      (comm, n, nodes, degrees, targets, weights, info, reorder, new_comm), (void)nodes; (void)degrees; (void)targets; (void)weights;
      (void)info; (void)reorder; call_on_communicator(call, comm); call->entry.detail = n, exchange_communicator(new_comm, MPI_COMM_SELF))
SERVE(Dist_graph_create_adjacent,
      (MPI_Comm comm, int indegree, const int sources[], const int source_weights[], int outdegree, const int destinations[],
       const int destination_weights[], MPI_Info info, int reorder, MPI_Comm *new_comm),
      (comm, indegree, sources, source_weights, outdegree, destinations, destination_weights, info, reorder, new_comm), (void)sources;
      (void)source_weights; (void)destinations; (void)destination_weights; (void)info; (void)reorder; call_on_communicator(call, comm);
      call->entry.detail = hashed(indegree, outdegree), exchange_communicator(new_comm, MPI_COMM_SELF))
SERVE(Intercomm_merge, (MPI_Comm comm, int high, MPI_Comm *new_comm), (comm, high, new_comm), call_on_communicator(call, comm);
      call->entry.detail = high, exchange_communicator(new_comm, MPI_COMM_SELF))
SERVE(Intercomm_create, (MPI_Comm local, int local_leader, MPI_Comm peer, int remote_leader, int tag, MPI_Comm *new_comm),
      (local, local_leader, peer, remote_leader, tag, new_comm), (void)peer; (void)remote_leader; (void)tag;
      call_on_communicator(call, local); call->entry.root = local_leader, exchange_communicator(new_comm, MPI_COMM_SELF))
SERVE(Comm_idup, (MPI_Comm comm, MPI_Comm *new_comm, MPI_Request *request), (comm, new_comm, request), call_on_communicator(call, comm),
      exchange_promised(new_comm, comm);
      served_starts(call, request, SERVED_OTHER))
#if MPI_VERSION >= 4
SERVE(Comm_idup_with_info, (MPI_Comm comm, MPI_Info info, MPI_Comm *new_comm, MPI_Request *request), (comm, info, new_comm, request),
      (void)info; call_on_communicator(call, comm), exchange_promised(new_comm, comm);
      served_starts(call, request, SERVED_OTHER))
#endif

/* The handle may be reused as soon as the library has it back, so it is forgotten before. */
static void frees(struct served_call *call, MPI_Comm comm) {
    call_on_communicator(call, comm);
    described_forget(comm);
}
SERVE(Comm_free, (MPI_Comm * comm), (comm), frees(call, *comm), if (mode == MODE_REPLAY) library.Comm_free(comm))
SERVE(Comm_disconnect, (MPI_Comm * comm), (comm), frees(call, *comm), if (mode == MODE_REPLAY) library.Comm_free(comm))
