/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Calls that fail return their errors to a program that asks for them, and are recorded with these. */
#include "conformance.h"
static int called;

static void handler(MPI_Comm *comm, int *code, ...) {
    (void)comm, (void)code;
    called++;
}

void errors(void) {
    int value = 0, class, result;
    MPI_Comm own;
    MPI_Errhandler mine;
    MPI_Comm_dup(WORLD, &own);
    MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    result = MPI_Send(&value, 1, MPI_INT, size + 5, 1, own);
    MPI_Error_class(result, &class);
    CHECK(class == MPI_ERR_RANK);
    result = MPI_Bcast(&value, 1, MPI_INT, -77, own);
    MPI_Error_class(result, &class);
    CHECK(class == MPI_ERR_ROOT);
    MPI_Comm_create_errhandler(handler, &mine);
    MPI_Comm_set_errhandler(own, mine);
    MPI_Recv(&value, -1, MPI_INT, left, 1, own, IGNORE);
    CHECK(called == 1);
    MPI_Errhandler_free(&mine);
    MPI_Barrier(own);
    MPI_Comm_free(&own);
}
