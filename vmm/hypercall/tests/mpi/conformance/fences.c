/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Puts, gets and accumulates between fences. */
#include "conformance.h"
void fences(void) {
    int memory[20] = {0}, values[5], got[5];
    MPI_Win window;
    fill(values, 5, rank);
    MPI_Win_create(memory, sizeof memory, sizeof(int), MPI_INFO_NULL, WORLD, &window);
    MPI_Win_fence(MPI_MODE_NOPRECEDE, window);
    MPI_Put(values, 5, MPI_INT, right, 0, 5, MPI_INT, window);
    MPI_Accumulate(values, 3, MPI_INT, right, 10, 3, MPI_INT, MPI_SUM, window);
    MPI_Put(values, 5, MPI_INT, MPI_PROC_NULL, 0, 5, MPI_INT, window);
    MPI_Win_fence(0, window);
    CHECK(filled(memory, 5, left) && memory[11] == 1000 * left + 1);
    MPI_Get(got, 5, MPI_INT, left, 0, 5, MPI_INT, window);
    MPI_Win_fence(MPI_MODE_NOSUCCEED, window);
    CHECK(filled(got, 5, (rank + 2) % size));
    MPI_Win_free(&window);
    expect("MPI_Put", 20, 0);
    expect("MPI_Accumulate", 12, 0);
    expect("MPI_Get", 0, 20);
}
