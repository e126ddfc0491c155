/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Functions that work on the caller's memory alone but may take long: packing, local reductions, the buffer of buffered sends. */
#include "mpi-wrap.h"

static void packs(struct call *call, MPI_Count count, MPI_Datatype type) {
    call->record.send_bytes = type_bytes(call, count, type);
}

static void unpacks(struct call *call, MPI_Count count, MPI_Datatype type) {
    call->record.receive_bytes = type_bytes(call, count, type);
}

#define EXTERNAL MPI_Aint
#include "wrap-local.h"
#undef EXTERNAL
#if LARGE_FORMS
#include "mpi-large.h"
#define EXTERNAL MPI_Count
#include "wrap-local.h"
#endif
