/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Locks of one and of all, flushes of all kinds. */
#include "conformance.h"
void locks(void) {
    int *memory, value = rank + 1, got = 0;
    MPI_Win window;
    MPI_Win_allocate(8 * sizeof(int), sizeof(int), MPI_INFO_NULL, WORLD, &memory, &window);
    memset(memory, 0, 8 * sizeof(int));
    MPI_Barrier(WORLD);
    /* Nobody else locks the same target: where ranks contend for a lock, Open MPI 4.1.4 over shared memory may hang. */
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, left, 0, window);
    MPI_Put(&value, 1, MPI_INT, left, rank, 1, MPI_INT, window);
    MPI_Win_flush(left, window);
    MPI_Get(&got, 1, MPI_INT, left, rank, 1, MPI_INT, window);
    MPI_Win_flush_local(left, window);
    MPI_Win_unlock(left, window);
    CHECK(got == value);
    MPI_Barrier(WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, right, 0, window);
    MPI_Put(&value, 1, MPI_INT, right, 4, 1, MPI_INT, window);
    MPI_Win_unlock(right, window);
    MPI_Win_lock_all(0, window);
    for (int i = 0; i < size; i++)
        MPI_Accumulate(&value, 1, MPI_INT, i, 5, 1, MPI_INT, MPI_SUM, window);
    MPI_Win_flush_local_all(window);
    MPI_Win_flush_all(window);
    MPI_Barrier(WORLD);
    MPI_Win_sync(window);
    CHECK(memory[5] == 10);
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    expect("MPI_Put", 8, 0);
    expect("MPI_Get", 0, 4);
    expect("MPI_Accumulate", 16, 0);
}
