/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Post, start, complete and wait between neighbours; a wait that is polled. */
#include "conformance.h"
void epochs(void) {
    int memory[4] = {0}, value = rank, done = 0;
    MPI_Win window;
    MPI_Group all, before, after;
    MPI_Comm_group(WORLD, &all);
    MPI_Group_incl(all, 1, &left, &before);
    MPI_Group_incl(all, 1, &right, &after);
    MPI_Win_create(memory, sizeof memory, sizeof(int), MPI_INFO_NULL, WORLD, &window);
    for (int round = 0; round < 2; round++) {
        MPI_Win_post(before, 0, window);
        MPI_Win_start(after, 0, window);
        MPI_Put(&value, 1, MPI_INT, right, round, 1, MPI_INT, window);
        MPI_Win_complete(window);
        if (round == 0)
            MPI_Win_wait(window);
        else
            while (!done)
                MPI_Win_test(window, &done);
        CHECK(memory[round] == left);
    }
    MPI_Win_free(&window);
    MPI_Group_free(&all);
    MPI_Group_free(&before);
    MPI_Group_free(&after);
    expect("MPI_Put", 8, 0);
}
