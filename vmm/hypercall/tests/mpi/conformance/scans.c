/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sums over the ranks before, with the own and without. */
#include "conformance.h"
void scans(void) {
    long own = rank + 1, sum = 0;
    MPI_Scan(&own, &sum, 1, MPI_LONG, MPI_SUM, WORLD);
    CHECK(sum == (rank + 1) * (rank + 2) / 2);
    MPI_Exscan(&own, &sum, 1, MPI_LONG, MPI_SUM, WORLD);
    CHECK(rank == 0 || sum == rank * (rank + 1) / 2);
    sum = own;
    MPI_Scan(MPI_IN_PLACE, &sum, 1, MPI_LONG, MPI_PROD, WORLD);
    expect("MPI_Scan", 16, 16);
    expect("MPI_Exscan", 8, 8);
}
