/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Point-to-point functions with counts: included once for each form. */

#define WRAP_SEND(NAME)                                                                                                        \
    WRAP(NAME, (const void *buffer, COUNT count, MPI_Datatype type, int destination, int tag, MPI_Comm comm),                  \
         (buffer, count, type, destination, tag, comm), call_on(call, comm); sends(call, count, type, destination, tag), )
WRAP_SEND(Send)
WRAP_SEND(Bsend)
WRAP_SEND(Ssend)
WRAP_SEND(Rsend)
#undef WRAP_SEND

#define WRAP_SEND_REQUEST(NAME, MADE)                                                                                          \
    WRAP(NAME,                                                                                                                 \
         (const void *buffer, COUNT count, MPI_Datatype type, int destination, int tag, MPI_Comm comm, MPI_Request *request),  \
         (buffer, count, type, destination, tag, comm, request), call_on(call, comm);                                          \
         sends(call, count, type, destination, tag), MADE(call, request, REQUEST_SEND))
WRAP_SEND_REQUEST(Isend, call_starts)
WRAP_SEND_REQUEST(Ibsend, call_starts)
WRAP_SEND_REQUEST(Issend, call_starts)
WRAP_SEND_REQUEST(Irsend, call_starts)
WRAP_SEND_REQUEST(Send_init, call_prepares)
WRAP_SEND_REQUEST(Bsend_init, call_prepares)
WRAP_SEND_REQUEST(Ssend_init, call_prepares)
WRAP_SEND_REQUEST(Rsend_init, call_prepares)
#undef WRAP_SEND_REQUEST

#define WRAP_RECEIVE_REQUEST(NAME, MADE)                                                                                       \
    WRAP(NAME, (void *buffer, COUNT count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request),       \
         (buffer, count, type, source, tag, comm, request), call_on(call, comm); receives(call, count, type, source, tag),     \
         MADE(call, request, REQUEST_RECEIVE))
WRAP_RECEIVE_REQUEST(Irecv, call_starts)
WRAP_RECEIVE_REQUEST(Recv_init, call_prepares)
#undef WRAP_RECEIVE_REQUEST

WRAP(Recv, (void *buffer, COUNT count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Status *status),
     (buffer, count, type, source, tag, comm, status), OWN_STATUS; call_on(call, comm);
     receives(call, count, type, source, tag), call_received(call, status))

WRAP(Sendrecv,
     (const void *out, COUNT out_count, MPI_Datatype out_type, int destination, int out_tag, void *in, COUNT in_count,
      MPI_Datatype in_type, int source, int in_tag, MPI_Comm comm, MPI_Status *status),
     (out, out_count, out_type, destination, out_tag, in, in_count, in_type, source, in_tag, comm, status), OWN_STATUS;
     call_on(call, comm); sends(call, out_count, out_type, destination, out_tag); receives(call, in_count, in_type, source, in_tag),
     call_received(call, status))

WRAP(Sendrecv_replace,
     (void *buffer, COUNT count, MPI_Datatype type, int destination, int out_tag, int source, int in_tag, MPI_Comm comm,
      MPI_Status *status),
     (buffer, count, type, destination, out_tag, source, in_tag, comm, status), OWN_STATUS; call_on(call, comm);
     sends(call, count, type, destination, out_tag); receives(call, count, type, source, in_tag), call_received(call, status))

WRAP(Mrecv, (void *buffer, COUNT count, MPI_Datatype type, MPI_Message *message, MPI_Status *status),
     (buffer, count, type, message, status), OWN_STATUS; takes(call, count, type, *message), call_received(call, status))
WRAP(Imrecv, (void *buffer, COUNT count, MPI_Datatype type, MPI_Message *message, MPI_Request *request),
     (buffer, count, type, message, request), takes(call, count, type, *message), call_starts(call, request, REQUEST_RECEIVE))

#if MPI_VERSION >= 4
WRAP(Isendrecv,
     (const void *out, COUNT out_count, MPI_Datatype out_type, int destination, int out_tag, void *in, COUNT in_count,
      MPI_Datatype in_type, int source, int in_tag, MPI_Comm comm, MPI_Request *request),
     (out, out_count, out_type, destination, out_tag, in, in_count, in_type, source, in_tag, comm, request), call_on(call, comm);
     sends(call, out_count, out_type, destination, out_tag); receives(call, in_count, in_type, source, in_tag),
     call_starts(call, request, REQUEST_RECEIVE))
WRAP(Isendrecv_replace,
     (void *buffer, COUNT count, MPI_Datatype type, int destination, int out_tag, int source, int in_tag, MPI_Comm comm,
      MPI_Request *request),
     (buffer, count, type, destination, out_tag, source, in_tag, comm, request), call_on(call, comm);
     sends(call, count, type, destination, out_tag); receives(call, count, type, source, in_tag),
     call_starts(call, request, REQUEST_RECEIVE))
#endif
