/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Kernels whose cost of tracing is measured; arguments: the kernel and its repeats. The last line is the seconds that the kernel took: wall time, and processor time of all threads. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N (1 << 16)

static double a[N], b[N];
static long counter;

/* Two static loops and a reduction a step, each of some ten microseconds. */
static void stencil(long steps) {
    for (long step = 0; step < steps; step++) {
        double change = 0;
#pragma omp parallel
        {
#pragma omp for schedule(static)
            for (int i = 1; i < N - 1; i++)
                b[i] = (a[i - 1] + a[i] + a[i + 1]) / 3 + 1;
#pragma omp for schedule(static) reduction(+ : change)
            for (int i = 1; i < N - 1; i++) {
                change += b[i] - a[i];
                a[i] = b[i];
            }
        }
        if (change < -1e300)
            exit(1);
    }
}

/* Batches of random numbers, as in NAS EP, handed out one by one. */
static void batches(long count) {
    long inside = 0;
#pragma omp parallel
    {
        long own = 0;
#pragma omp for schedule(dynamic, 1)
        for (long batch = 0; batch < count; batch++) {
            unsigned long long seed = batch * 2654435761u + 1;
            for (int pair = 0; pair < 2000; pair++) {
                seed = seed * 6364136223846793005ull + 1442695040888963407ull;
                double x = (seed >> 40) / 16777216.0, y = (seed >> 16 & 0xffffff) / 16777216.0;
                own += x * x + y * y < 1;
            }
        }
#pragma omp critical
        inside += own;
    }
    counter += inside;
}

/* A critical construct for each microsecond or two of work. */
static void criticals(long count) {
#pragma omp parallel
#pragma omp for schedule(static)
    for (long i = 0; i < count; i++) {
        unsigned long long value = i + 1;
        for (int j = 0; j < 600; j++) {
            /* Marsaglia's xorshift, which compilers do not work out in advance. */
            value ^= value << 13;
            value ^= value >> 7;
            value ^= value << 17;
        }
#pragma omp critical
        counter += value & 1;
    }
}

static long fibonacci(int n) {
    long x, y;
    if (n < 2)
        return n;
    if (n < 16)
        return fibonacci(n - 1) + fibonacci(n - 2);
#pragma omp task shared(x)
    x = fibonacci(n - 1);
#pragma omp task shared(y)
    y = fibonacci(n - 2);
#pragma omp taskwait
    return x + y;
}

/* Tasks of some microseconds. */
static void tasks(long count) {
    for (long i = 0; i < count; i++) {
#pragma omp parallel
#pragma omp single
        counter += fibonacci(26);
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(long);
    } kernels[] = {{"stencil", stencil}, {"batches", batches}, {"criticals", criticals}, {"tasks", tasks}};
    for (size_t i = 0; argc == 3 && i < sizeof kernels / sizeof *kernels; i++) {
        if (strcmp(kernels[i].name, argv[1]))
            continue;
        long repeats = atol(argv[2]);
        kernels[i].run(repeats / 10 + 1);
        double start = omp_get_wtime();
        clock_t used = clock();
        kernels[i].run(repeats);
        printf("%ld\n%.9f %.6f\n", counter, omp_get_wtime() - start, (double)(clock() - used) / CLOCKS_PER_SEC);
        return 0;
    }
    fprintf(stderr, "usage: cost stencil|batches|criticals|tasks REPEATS\n");
    return 2;
}
