/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Receives from any source with any tag; the status says whose message it was. */
#include "conformance.h"
void any_source(void) {
    int value, seen = 0;
    MPI_Status status;
    if (rank != 0) {
        MPI_Send(&rank, 1, MPI_INT, 0, 10 + rank, WORLD);
        expect("MPI_Send", 4, 0);
        return;
    }
    for (int i = 1; i < size; i++) {
        MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, WORLD, &status);
        CHECK(status.MPI_SOURCE == value && status.MPI_TAG == 10 + value);
        seen |= 1 << value;
    }
    CHECK(seen == 14);
    expect("MPI_Recv", 0, 12);
}
