/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Point-to-point functions with counts: included once for each form. */

#define SERVE_SEND(NAME)                                                                                                       \
    SERVE(NAME, (const void *buffer, COUNT count, MPI_Datatype type, int destination, int tag, MPI_Comm comm),                 \
          (buffer, count, type, destination, tag, comm), (void)buffer; call_on_communicator(call, comm);                       \
          call_sends(call, count, type, destination, tag), )
SERVE_SEND(Send)
SERVE_SEND(Bsend)
SERVE_SEND(Ssend)
SERVE_SEND(Rsend)
#undef SERVE_SEND

#define SERVE_SEND_REQUEST(NAME, MADE)                                                                                         \
    SERVE(NAME,                                                                                                                \
          (const void *buffer, COUNT count, MPI_Datatype type, int destination, int tag, MPI_Comm comm, MPI_Request *request), \
          (buffer, count, type, destination, tag, comm, request), (void)buffer; call_on_communicator(call, comm);              \
          call_sends(call, count, type, destination, tag), MADE(call, request, SERVED_SEND))
SERVE_SEND_REQUEST(Isend, served_starts)
SERVE_SEND_REQUEST(Ibsend, served_starts)
SERVE_SEND_REQUEST(Issend, served_starts)
SERVE_SEND_REQUEST(Irsend, served_starts)
SERVE_SEND_REQUEST(Send_init, served_prepares)
SERVE_SEND_REQUEST(Bsend_init, served_prepares)
SERVE_SEND_REQUEST(Ssend_init, served_prepares)
SERVE_SEND_REQUEST(Rsend_init, served_prepares)
#undef SERVE_SEND_REQUEST

#define SERVE_RECEIVE_REQUEST(NAME, MADE)                                                                                      \
    SERVE(NAME, (void *buffer, COUNT count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request),      \
          (buffer, count, type, source, tag, comm, request), call_on_communicator(call, comm);                                 \
          call_receives_from(call, source, tag); call_receives(call, buffer, count, type), MADE(call, request, SERVED_RECEIVE))
SERVE_RECEIVE_REQUEST(Irecv, served_starts)
SERVE_RECEIVE_REQUEST(Recv_init, served_prepares)
#undef SERVE_RECEIVE_REQUEST

SERVE(Recv, (void *buffer, COUNT count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Status *status),
      (buffer, count, type, source, tag, comm, status), OWN_STATUS; call_on_communicator(call, comm);
      call_receives_from(call, source, tag); call_receives(call, buffer, count, type), received(call, status))

SERVE(Sendrecv,
      (const void *out, COUNT out_count, MPI_Datatype out_type, int destination, int out_tag, void *in, COUNT in_count,
       MPI_Datatype in_type, int source, int in_tag, MPI_Comm comm, MPI_Status *status),
      (out, out_count, out_type, destination, out_tag, in, in_count, in_type, source, in_tag, comm, status), OWN_STATUS; (void)out;
      call_on_communicator(call, comm); call_sends(call, out_count, out_type, destination, out_tag);
      call_receives_from(call, source, in_tag); call_receives(call, in, in_count, in_type), received(call, status))

SERVE(Sendrecv_replace,
      (void *buffer, COUNT count, MPI_Datatype type, int destination, int out_tag, int source, int in_tag, MPI_Comm comm,
       MPI_Status *status),
      (buffer, count, type, destination, out_tag, source, in_tag, comm, status), OWN_STATUS; call_on_communicator(call, comm);
      call_sends(call, count, type, destination, out_tag); call_receives_from(call, source, in_tag);
      call_receives(call, buffer, count, type), received(call, status))

SERVE(Mrecv, (void *buffer, COUNT count, MPI_Datatype type, MPI_Message *message, MPI_Status *status),
      (buffer, count, type, message, status), OWN_STATUS; call_receives(call, buffer, count, type),
      if (mode == MODE_REPLAY) take_stand_in(message); received(call, status))
SERVE(Imrecv, (void *buffer, COUNT count, MPI_Datatype type, MPI_Message *message, MPI_Request *request),
      (buffer, count, type, message, request), call_receives(call, buffer, count, type),
      if (mode == MODE_REPLAY) take_stand_in(message); served_starts(call, request, SERVED_RECEIVE))

#if MPI_VERSION >= 4
SERVE(Isendrecv,
      (const void *out, COUNT out_count, MPI_Datatype out_type, int destination, int out_tag, void *in, COUNT in_count,
       MPI_Datatype in_type, int source, int in_tag, MPI_Comm comm, MPI_Request *request),
      (out, out_count, out_type, destination, out_tag, in, in_count, in_type, source, in_tag, comm, request), (void)out;
      call_on_communicator(call, comm); call_sends(call, out_count, out_type, destination, out_tag);
      call_receives_from(call, source, in_tag); call_receives(call, in, in_count, in_type), served_starts(call, request, SERVED_RECEIVE))
SERVE(Isendrecv_replace,
      (void *buffer, COUNT count, MPI_Datatype type, int destination, int out_tag, int source, int in_tag, MPI_Comm comm,
       MPI_Request *request),
      (buffer, count, type, destination, out_tag, source, in_tag, comm, request), call_on_communicator(call, comm);
      call_sends(call, count, type, destination, out_tag); call_receives_from(call, source, in_tag);
      call_receives(call, buffer, count, type), served_starts(call, request, SERVED_RECEIVE))
#endif
