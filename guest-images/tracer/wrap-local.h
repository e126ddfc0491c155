/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Included once for each form; EXTERNAL is the type of sizes in a portable representation. */

WRAP(Pack, (const void *in, COUNT count, MPI_Datatype type, void *out, COUNT size, COUNT *place, MPI_Comm comm),
     (in, count, type, out, size, place, comm), call_on(call, comm); packs(call, count, type), )
WRAP(Unpack, (const void *in, COUNT size, COUNT *place, void *out, COUNT count, MPI_Datatype type, MPI_Comm comm),
     (in, size, place, out, count, type, comm), call_on(call, comm); unpacks(call, count, type), )
WRAP(Pack_external,
     (const char representation[], const void *in, COUNT count, MPI_Datatype type, void *out, EXTERNAL size, EXTERNAL *place),
     (representation, in, count, type, out, size, place), packs(call, count, type), )
WRAP(Unpack_external,
     (const char representation[], const void *in, EXTERNAL size, EXTERNAL *place, void *out, COUNT count, MPI_Datatype type),
     (representation, in, size, place, out, count, type), unpacks(call, count, type), )
WRAP(Reduce_local, (const void *in, void *inout, COUNT count, MPI_Datatype type, MPI_Op op), (in, inout, count, type, op),
     packs(call, count, type); call_reduces(call, op), )
WRAP(Buffer_attach, (void *buffer, COUNT size), (buffer, size), r->send_bytes = size, )
WRAP(Buffer_detach, (void *buffer, COUNT *size), (buffer, size), , )
