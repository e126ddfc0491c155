// Bandwidth of each level of the memory hierarchy: five loops over arrays of which one level holds all. Prints lines "LEVEL LOOP THREADS
// GB/s", with the bytes that the loop itself reads and writes.
//
// levels FIRST SECOND THIRD MEMORY CORES: bytes of all arrays together, for each level, and the threads with which memory is measured again,
// each with an eighth of MEMORY, which it passes once in a repetition.
#include <immintrin.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { REPETITIONS = 4, MOST_THREADS = 256 };
static const size_t WORK = 96 << 20; // Bytes of arrays that a thread passes in a repetition.

// Four vectors an iteration, as hand-written bandwidth loops have them.
#define LOOP(name, ...) __attribute__((noinline, target("avx"))) static void name(double *a, const double *b, const double *c, const double *d, size_t n) { \
    const __m256d s = _mm256_set1_pd(0.5); (void)s; (void)b; (void)c; (void)d; \
    for (size_t i = 0; i < n; i += 16) { _Pragma("GCC unroll 4") for (size_t j = i; j < i + 16; j += 4) { __VA_ARGS__; } } }
#define GET(x) _mm256_load_pd(x + j)
#define PUT(v) _mm256_store_pd(a + j, v)
LOOP(load, __m256d v = GET(a); __asm__ volatile("" : : "x"(v)))
LOOP(copy, PUT(GET(b)))
LOOP(update, PUT(_mm256_mul_pd(s, GET(a))))
LOOP(triad, PUT(_mm256_add_pd(_mm256_mul_pd(GET(b), GET(c)), GET(d))))
LOOP(daxpy, PUT(_mm256_add_pd(GET(a), _mm256_mul_pd(s, GET(b)))))

static const struct loop { const char *name; void (*run)(double *, const double *, const double *, const double *, size_t); int arrays, counted; } LOOPS[] = {
    { "load", load, 1, 1 }, { "copy", copy, 2, 2 }, { "update", update, 1, 2 }, { "triad", triad, 4, 4 }, { "daxpy", daxpy, 2, 3 },
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static char *memory;
static size_t room; // Of a thread.
static int one_thread;
static pthread_barrier_t barrier;
static const struct loop *loop;
static size_t bytes; // Of all arrays of a thread.
static double seconds;

static void *thread(void *number) {
    size_t n = bytes / loop->arrays / 8 / 16 * 16, passes = one_thread && WORK / bytes ? WORK / bytes : 1;
    // Arrays of a power of two would meet in few sets of the caches.
    size_t distance = (n * 8 + 4096 + 320) / 64 * 64;
    double *at[4];
    for (int i = 0; i < 4; i++) at[i] = (double *)(memory + (long)number * room + (i < loop->arrays ? i : 0) * distance);
    for (int r = 0; r < REPETITIONS; r++) {
        pthread_barrier_wait(&barrier);
        double start = now();
        for (size_t pass = 0; pass < passes; pass++) loop->run(at[0], at[1], at[2], at[3], n);
        pthread_barrier_wait(&barrier);
        if (!number) seconds = (now() - start) / passes;
    }
    return NULL;
}

static void measure(const char *level, int threads) {
    pthread_t all[MOST_THREADS];
    one_thread = threads == 1;
    pthread_barrier_init(&barrier, NULL, threads);
    for (long t = 1; t < threads; t++) pthread_create(&all[t], NULL, thread, (void *)t);
    thread(NULL);
    for (int t = 1; t < threads; t++) pthread_join(all[t], NULL);
    size_t n = bytes / loop->arrays / 8 / 16 * 16;
    printf("%s %s %d %.1f\n", level, loop->name, threads, 8e-9 * n * loop->counted * threads / seconds);
    fflush(stdout);
}

int main(int count, char **arguments) {
    const char *levels[] = { "L1", "L2", "L3", "memory" };
    int cores = count == 6 ? atoi(arguments[5]) : 0;
    if (cores < 1 || cores > MOST_THREADS) {
        fprintf(stderr, "usage: levels FIRST SECOND THIRD MEMORY CORES; CORES from 1 to %d\n", MOST_THREADS);
        return 2;
    }
    size_t most = strtoull(arguments[4], NULL, 0), each = most / 8;
    size_t all = (most > cores * each ? most : cores * each) + cores * (1 << 16);
    memory = aligned_alloc(64, all);
    if (!memory) return 1;
    for (size_t i = 0; i < all; i += 4096) memory[i] = 0;
    for (size_t l = 0; l < sizeof LOOPS / sizeof *LOOPS; l++) {
        loop = &LOOPS[l];
        for (int level = 0; level < 4; level++) {
            room = bytes = strtoull(arguments[level + 1], NULL, 0);
            measure(levels[level], 1);
        }
        bytes = each;
        room = each + (1 << 15);
        if (cores > 1) measure("memory", cores);
    }
    return 0;
}
