/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Communicators of the ranks that share memory, and memory that they share. */
#include "conformance.h"
void node_memory(void) {
    MPI_Comm node;
    MPI_Win window;
    int inner, ranks, *mine, *other, unit;
    MPI_Aint bytes;
    MPI_Comm_split_type(WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &inner);
    MPI_Comm_size(node, &ranks);
    MPI_Win_allocate_shared(4 * sizeof(int), sizeof(int), MPI_INFO_NULL, node, &mine, &window);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
    fill(mine, 4, inner);
    MPI_Win_sync(window);
    MPI_Barrier(node);
    MPI_Win_shared_query(window, (inner + 1) % ranks, &bytes, &unit, &other);
    CHECK(bytes == 16 && unit == 4 && filled(other, 4, (inner + 1) % ranks));
    MPI_Barrier(node);
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    MPI_Comm_free(&node);
}
