/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* OpenMP without MPI: one team of three threads, each of which counts itself. */
#include <stdio.h>

int main(void) {
    int threads = 0;
#pragma omp parallel num_threads(3)
#pragma omp critical
    threads++;
    printf("team of %d\n", threads);
    return 0;
}
