/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* One-sided functions with counts or displacement units: included once for each form. */

/* The unit of displacements is a MPI_Aint in the large forms. */
WRAP(Win_create, (void *base, MPI_Aint size, PLACE unit, MPI_Info info, MPI_Comm comm, MPI_Win *window),
     (base, size, unit, info, comm, window), call_on(call, comm), made(call, *window))
WRAP(Win_allocate, (MPI_Aint size, PLACE unit, MPI_Info info, MPI_Comm comm, void *base, MPI_Win *window),
     (size, unit, info, comm, base, window), call_on(call, comm), made(call, *window))
WRAP(Win_allocate_shared, (MPI_Aint size, PLACE unit, MPI_Info info, MPI_Comm comm, void *base, MPI_Win *window),
     (size, unit, info, comm, base, window), call_on(call, comm), made(call, *window))

/* Each with its form that makes a request. RECORD sees the parameters by the names used here. */
#define ONE_SIDED(NAME, STARTS, PARAMETERS, ARGUMENTS, RECORD)                                                                 \
    WRAP(NAME, (PLAIN PARAMETERS, MPI_Win window), (PLAIN ARGUMENTS, window), RECORD, )                                        \
    WRAP(STARTS, (PLAIN PARAMETERS, MPI_Win window, MPI_Request *request), (PLAIN ARGUMENTS, window, request), RECORD,         \
         call_starts(call, request, REQUEST_OTHER))

ONE_SIDED(Put, Rput,
          (const void *out, COUNT count, MPI_Datatype type, int rank, MPI_Aint place, COUNT there, MPI_Datatype there_type),
          (out, count, type, rank, place, there, there_type), puts_to(call, count, type, rank, place, window))
ONE_SIDED(Get, Rget, (void *in, COUNT count, MPI_Datatype type, int rank, MPI_Aint place, COUNT there, MPI_Datatype there_type),
          (in, count, type, rank, place, there, there_type), gets_from(call, count, type, rank, place, window))
ONE_SIDED(Accumulate, Raccumulate,
          (const void *out, COUNT count, MPI_Datatype type, int rank, MPI_Aint place, COUNT there, MPI_Datatype there_type, MPI_Op op),
          (out, count, type, rank, place, there, there_type, op), call_reduces(call, op);
          puts_to(call, count, type, rank, place, window))
ONE_SIDED(Get_accumulate, Rget_accumulate,
          (const void *out, COUNT out_count, MPI_Datatype out_type, void *in, COUNT in_count, MPI_Datatype in_type, int rank,
           MPI_Aint place, COUNT there, MPI_Datatype there_type, MPI_Op op),
          (out, out_count, out_type, in, in_count, in_type, rank, place, there, there_type, op),
          exchanges(call, out_count, out_type, in_count, in_type, rank, place, op, window))
#undef ONE_SIDED
