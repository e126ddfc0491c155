/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Hints in info objects, for windows and communicators; nothing of it moves data. */
#include "conformance.h"
void hints(void) {
    MPI_Info info, copy;
    MPI_Win window;
    int memory[4], keys, found;
    char value[100];
    MPI_Info_create(&info);
    MPI_Info_set(info, "no_locks", "true");
    MPI_Info_set(info, "same_size", "true");
    MPI_Info_dup(info, &copy);
    MPI_Info_delete(copy, "same_size");
    MPI_Info_get_nkeys(copy, &keys);
    MPI_Info_get(copy, "no_locks", 99, value, &found);
    CHECK(keys == 1 && found && !strcmp(value, "true"));
    MPI_Win_create(memory, sizeof memory, sizeof(int), info, WORLD, &window);
    MPI_Win_set_info(window, copy);
    MPI_Win_fence(0, window);
    MPI_Win_free(&window);
    MPI_Comm_set_info(WORLD, copy);
    MPI_Info_free(&info);
    MPI_Info_free(&copy);
}
