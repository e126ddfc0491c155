/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Counters that all ranks count up, compare and swap, and transfers with requests. */
#include "conformance.h"
void atomics(void) {
    int *memory, one = 1, before, expected = -1, mine = rank, values[4], got[4];
    MPI_Win window;
    MPI_Request requests[4];
    MPI_Win_allocate(16 * sizeof(int), sizeof(int), MPI_INFO_NULL, WORLD, &memory, &window);
    for (int i = 0; i < 16; i++)
        memory[i] = i == 1 ? -1 : 0;
    MPI_Barrier(WORLD);
    MPI_Win_lock_all(0, window);
    MPI_Fetch_and_op(&one, &before, MPI_INT, 0, 0, MPI_SUM, window);
    MPI_Win_flush(0, window);
    CHECK(before >= 0 && before < size);
    MPI_Compare_and_swap(&mine, &expected, &before, MPI_INT, 0, 1, window);
    MPI_Get_accumulate(&one, 1, MPI_INT, &before, 1, MPI_INT, 0, 2, 1, MPI_INT, MPI_SUM, window);
    MPI_Get_accumulate(NULL, 0, MPI_INT, got, 4, MPI_INT, 0, 4, 4, MPI_INT, MPI_NO_OP, window);
    MPI_Win_flush_all(window);
    fill(values, 4, rank);
    MPI_Rput(values, 4, MPI_INT, right, 8, 4, MPI_INT, window, &requests[0]);
    MPI_Raccumulate(&one, 1, MPI_INT, right, 12, 1, MPI_INT, MPI_REPLACE, window, &requests[1]);
    MPI_Rget(got, 4, MPI_INT, rank, 4, 4, MPI_INT, window, &requests[2]);
    MPI_Rget_accumulate(&one, 1, MPI_INT, &before, 1, MPI_INT, right, 13, 1, MPI_INT, MPI_SUM, window, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    MPI_Win_unlock_all(window);
    MPI_Barrier(WORLD);
    CHECK(filled(memory + 8, 4, left) && memory[12] == 1);
    CHECK(rank || (memory[0] == 4 && memory[1] >= 0 && memory[2] == 4));
    MPI_Win_free(&window);
    expect("MPI_Fetch_and_op", 4, 4);
    expect("MPI_Compare_and_swap", 8, 4);
    expect("MPI_Get_accumulate", 4, 4 + 16);
    expect("MPI_Rput", 16, 0);
    expect("MPI_Raccumulate", 4, 0);
    expect("MPI_Rget", 0, 16);
    expect("MPI_Rget_accumulate", 4, 4);
}
