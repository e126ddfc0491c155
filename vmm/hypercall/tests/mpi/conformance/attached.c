/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A window to which memory is attached after it was made. */
#include "conformance.h"
void attached(void) {
    int memory[4] = {0}, value = rank;
    MPI_Win window;
    MPI_Aint place, places[4];
    MPI_Win_create_dynamic(MPI_INFO_NULL, WORLD, &window);
    MPI_Win_attach(window, memory, sizeof memory);
    MPI_Get_address(memory, &place);
    MPI_Allgather(&place, 1, MPI_AINT, places, 1, MPI_AINT, WORLD);
    MPI_Win_lock_all(0, window);
    MPI_Put(&value, 1, MPI_INT, right, places[right], 1, MPI_INT, window);
    MPI_Win_unlock_all(window);
    MPI_Barrier(WORLD);
    CHECK(memory[0] == left);
    MPI_Win_detach(window, memory);
    MPI_Win_free(&window);
    expect("MPI_Allgather", 8, 32);
    expect("MPI_Put", 4, 0);
}
