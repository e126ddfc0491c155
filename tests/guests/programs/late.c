/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* An MPI program whose rank 0 is the last to finalize. All ranks exchange messages. Then all but rank 0 finalize, while rank 0 still
 * makes progress for 100 ms, and so answers all requests of the finalizing ranks. Only then rank 0 finalizes. */
#include <mpi.h>

#define BYTES 100000

static char out[BYTES], in[BYTES];

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int shift = 1; shift < size; shift++)
        MPI_Sendrecv(out, BYTES, MPI_BYTE, (rank + shift) % size, 0, in, BYTES, MPI_BYTE, (rank + size - shift) % size, 0,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 0) {
        int found;
        for (double start = MPI_Wtime(); MPI_Wtime() - start < 0.1;)
            MPI_Iprobe(MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    }
    MPI_Finalize();
    return 0;
}
