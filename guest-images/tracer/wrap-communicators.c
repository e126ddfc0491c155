/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Making and freeing communicators. */
#include "mpi-wrap.h"

static void made(struct call *call, MPI_Comm comm) {
    call_made_communicator(call, communicator_made(call->record.communicator, comm));
}

/* The two sides of a new intercommunicator have no parent in common. */
static void made_between(struct call *call, MPI_Comm comm) {
    call_made_communicator(call, communicator_made(NODESCOPE_COMM_NONE, comm));
}

/* The duplicate's handle is there, but must not be used before the request is complete. */
static void promised(struct call *call, MPI_Comm comm, const MPI_Request *request) {
    call_starts(call, request, REQUEST_OTHER);
    call_made_communicator(call, communicator_promised(call->communicator, comm));
}

/* The handle may be reused as soon as the library has it back, so it is forgotten before. */
static void frees(struct call *call, MPI_Comm comm) {
    call_on(call, comm);
    call->communicator = 0;
    communicator_forget(comm);
}

#define WRAP_COMM(NAME, PARAMETERS, ARGUMENTS) WRAP(NAME, PARAMETERS, ARGUMENTS, call_on(call, comm), made(call, *new_comm))

WRAP_COMM(Comm_dup, (MPI_Comm comm, MPI_Comm *new_comm), (comm, new_comm))
WRAP_COMM(Comm_dup_with_info, (MPI_Comm comm, MPI_Info info, MPI_Comm *new_comm), (comm, info, new_comm))
WRAP_COMM(Comm_split, (MPI_Comm comm, int color, int key, MPI_Comm *new_comm), (comm, color, key, new_comm))
WRAP_COMM(Comm_split_type, (MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *new_comm), (comm, type, key, info, new_comm))
WRAP_COMM(Comm_create, (MPI_Comm comm, MPI_Group group, MPI_Comm *new_comm), (comm, group, new_comm))
WRAP_COMM(Comm_create_group, (MPI_Comm comm, MPI_Group group, int tag, MPI_Comm *new_comm), (comm, group, tag, new_comm))
WRAP_COMM(Cart_create, (MPI_Comm comm, int dims, const int sizes[], const int periods[], int reorder, MPI_Comm *new_comm),
          (comm, dims, sizes, periods, reorder, new_comm))
WRAP_COMM(Cart_sub, (MPI_Comm comm, const int remain[], MPI_Comm *new_comm), (comm, remain, new_comm))
WRAP_COMM(Graph_create, (MPI_Comm comm, int nodes, const int index[], const int edges[], int reorder, MPI_Comm *new_comm),
          (comm, nodes, index, edges, reorder, new_comm))
WRAP_COMM(Dist_graph_create,
          (MPI_Comm comm, int n, const int nodes[], const int degrees[], const int targets[], const int weights[], MPI_Info info,
           int reorder, MPI_Comm *new_comm),
          (comm, n, nodes, degrees, targets, weights, info, reorder, new_comm))
WRAP_COMM(Dist_graph_create_adjacent,
          (MPI_Comm comm, int indegree, const int sources[], const int source_weights[], int outdegree, const int destinations[],
           const int destination_weights[], MPI_Info info, int reorder, MPI_Comm *new_comm),
          (comm, indegree, sources, source_weights, outdegree, destinations, destination_weights, info, reorder, new_comm))
WRAP_COMM(Intercomm_merge, (MPI_Comm comm, int high, MPI_Comm *new_comm), (comm, high, new_comm))
WRAP(Intercomm_create, (MPI_Comm local, int local_leader, MPI_Comm peer, int remote_leader, int tag, MPI_Comm *new_comm),
     (local, local_leader, peer, remote_leader, tag, new_comm), call_on(call, local), made_between(call, *new_comm))
WRAP(Comm_idup, (MPI_Comm comm, MPI_Comm *new_comm, MPI_Request *request), (comm, new_comm, request), call_on(call, comm),
     promised(call, *new_comm, request))
WRAP(Comm_free, (MPI_Comm * comm), (comm), frees(call, *comm), )
WRAP(Comm_disconnect, (MPI_Comm * comm), (comm), frees(call, *comm), )

#if MPI_VERSION >= 4
WRAP(Comm_idup_with_info, (MPI_Comm comm, MPI_Info info, MPI_Comm *new_comm, MPI_Request *request), (comm, info, new_comm, request),
     call_on(call, comm), promised(call, *new_comm, request))
WRAP(Comm_create_from_group, (MPI_Group group, const char *tag, MPI_Info info, MPI_Errhandler handler, MPI_Comm *new_comm),
     (group, tag, info, handler, new_comm), , made_between(call, *new_comm))
WRAP(Intercomm_create_from_groups,
     (MPI_Group local, int local_leader, MPI_Group remote, int remote_leader, const char *tag, MPI_Info info, MPI_Errhandler handler,
      MPI_Comm *new_comm),
     (local, local_leader, remote, remote_leader, tag, info, handler, new_comm), , made_between(call, *new_comm))
#endif
