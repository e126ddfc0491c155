/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Each rank says in one line what it finds in the environment under the names given, and makes one barrier. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **names) {
    int rank;
    char line[256];
    MPI_Init(&count, &names);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int length = snprintf(line, sizeof line, "rank %d:", rank);
    for (int i = 1; i < count; i++) {
        const char *value = getenv(names[i]);
        length += snprintf(line + length, sizeof line - length, " %s=%s", names[i], value ? value : "(none)");
    }
    puts(line);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
