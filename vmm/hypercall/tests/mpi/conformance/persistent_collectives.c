/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Collectives prepared once and started twice, where the library has them. */
#include "conformance.h"
#if MPI_VERSION < 4
#include <mpi-ext.h>
#define MPI_Bcast_init MPIX_Bcast_init
#define MPI_Allreduce_init MPIX_Allreduce_init
#define MPI_Barrier_init MPIX_Barrier_init
#endif

void persistent_collectives(void) {
    int values[10], sum[10];
    MPI_Request requests[3];
    MPI_Bcast_init(values, 10, MPI_INT, 2, WORLD, MPI_INFO_NULL, &requests[0]);
    MPI_Allreduce_init(values, sum, 10, MPI_INT, MPI_SUM, WORLD, MPI_INFO_NULL, &requests[1]);
    MPI_Barrier_init(WORLD, MPI_INFO_NULL, &requests[2]);
    for (int round = 0; round < 2; round++) {
        fill(values, 10, rank + round);
        MPI_Start(&requests[0]);
        MPI_Wait(&requests[0], IGNORE);
        CHECK(filled(values, 10, 2 + round));
        MPI_Startall(2, &requests[1]);
        MPI_Waitall(2, &requests[1], MPI_STATUSES_IGNORE);
        CHECK(sum[0] == 4000 * (2 + round));
    }
    for (int i = 0; i < 3; i++)
        MPI_Request_free(&requests[i]);
    expect("MPI_Wait", 0, 0);
}
