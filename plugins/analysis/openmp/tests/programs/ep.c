/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A kernel like NAS EP: pairs of random numbers in a work-sharing loop, sums in a critical construct. The argument is the number of batches. */
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    long batches = argc > 1 ? atol(argv[1]) : 16, inside = 0;
#pragma omp parallel
    {
        long own = 0;
#pragma omp for schedule(dynamic, 1)
        for (long batch = 0; batch < batches; batch++) {
            unsigned long long seed = batch * 2654435761u + 1;
            for (int pair = 0; pair < 100; pair++) {
                seed = seed * 6364136223846793005ull + 1442695040888963407ull;
                double x = (seed >> 40) / 16777216.0, y = (seed >> 16 & 0xffffff) / 16777216.0;
                own += x * x + y * y < 1;
            }
        }
#pragma omp critical
        inside += own;
    }
    printf("%ld of %ld\n", inside, batches * 100);
    return 0;
}
