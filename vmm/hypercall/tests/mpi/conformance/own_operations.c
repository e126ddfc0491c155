/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Operations of the program, one of them not commutative. */
#include "conformance.h"
static void larger(void *in, void *inout, int *count, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *count; i++)
        if (((int *)in)[i] > ((int *)inout)[i])
            ((int *)inout)[i] = ((int *)in)[i];
}

/* Keeps the first rank's value. */
static void first(void *in, void *inout, int *count, MPI_Datatype *type) {
    (void)type;
    memcpy(inout, in, *count * sizeof(int));
}

void own_operations(void) {
    MPI_Op commutes, ordered;
    int values[8], result[8];
    fill(values, 8, rank);
    MPI_Op_create(larger, 1, &commutes);
    MPI_Op_create(first, 0, &ordered);
    MPI_Allreduce(values, result, 8, MPI_INT, commutes, WORLD);
    CHECK(filled(result, 8, 3));
    MPI_Allreduce(values, result, 8, MPI_INT, ordered, WORLD);
    CHECK(filled(result, 8, 0));
    MPI_Reduce(values, result, 8, MPI_INT, ordered, 3, WORLD);
    MPI_Scan(values, result, 8, MPI_INT, ordered, WORLD);
    CHECK(filled(result, 8, 0));
    MPI_Op_free(&commutes);
    MPI_Op_free(&ordered);
    expect("MPI_Allreduce", 64, 64);
    expect("MPI_Reduce", 32, rank == 3 ? 32 : 0);
    expect("MPI_Scan", 32, 32);
}
