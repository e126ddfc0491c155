/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Reductions whose results are shared out. */
#include "conformance.h"
void reduce_scatters(void) {
    int counts[4] = {1, 2, 3, 4}, values[20], result[10];
    fill(values, 20, rank);
    MPI_Reduce_scatter(values, result, counts, MPI_INT, MPI_SUM, WORLD);
    CHECK(result[0] == 6000 + 4 * (rank * (rank + 1) / 2));
    MPI_Reduce_scatter_block(values, result, 5, MPI_INT, MPI_SUM, WORLD);
    CHECK(result[0] == 6000 + 4 * 5 * rank);
    MPI_Reduce_scatter_block(MPI_IN_PLACE, values, 5, MPI_INT, MPI_SUM, WORLD);
    expect("MPI_Reduce_scatter", 40, 4 * (rank + 1));
    expect("MPI_Reduce_scatter_block", 160, 40);
}
