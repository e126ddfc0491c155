/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Four threads that keep a processor busy with state that a hand-off between engines may lose: vector registers over long loops, page
 * faults, shoot-downs of other processors' translations, signals by a timer, and locks. The output depends on the program alone.
 *
 * torture ROUNDS */
#include <immintrin.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>

enum { THREADS = 4, PAGES = 8 };

static long rounds;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t all;
static volatile sig_atomic_t alarms;

static void alarmed(int signal) {
    (void)signal;
    /* The handler's own use of vector registers must not be seen. */
    __m256i v = _mm256_set1_epi64x(0x5a5a5a5a);
    __asm__ volatile("" : "+x"(v));
    alarms++;
}

static uint64_t fold(uint64_t hash, uint64_t value) {
    return (hash ^ value) * 0x100000001b3ull;
}

static void *work(void *argument) {
    long id = (long)argument;
    uint64_t hash = 0xcbf29ce484222325ull + id;
    __m256d a = _mm256_set_pd(1.5 + id, 2.25, 3.125, 4.0625), b = _mm256_set1_pd(0.9999), c = _mm256_set1_pd(1e-3);
    long double x87 = 1.0L + id;
    for (long round = 0; round < rounds; round++) {
        for (int i = 0; i < 2000; i++) {
            a = _mm256_fmadd_pd(a, b, c);
            x87 = x87 * 0.99999L + 0.001L;
        }
        double lanes[4];
        _mm256_storeu_pd(lanes, a);
        for (int i = 0; i < 4; i++) {
            uint64_t bits;
            memcpy(&bits, &lanes[i], 8);
            hash = fold(hash, bits);
        }
        double narrow = (double)x87;
        uint64_t bits;
        memcpy(&bits, &narrow, 8);
        hash = fold(hash, bits);
        /* Fresh pages, then none: other processors must forget them. */
        uint8_t *pages = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int i = 0; i < PAGES; i++) {
            pages[i * 4096 + id] = (uint8_t)(round + i);
            hash = fold(hash, pages[i * 4096 + id] + pages[i * 4096 + 2048]);
        }
        mprotect(pages, PAGES * 4096, PROT_READ);
        hash = fold(hash, pages[4096 + id]);
        munmap(pages, PAGES * 4096);
        pthread_mutex_lock(&lock);
        all += hash >> 7;
        pthread_mutex_unlock(&lock);
    }
    return (void *)hash;
}

int main(int argc, char **argv) {
    rounds = argc > 1 ? atol(argv[1]) : 100;
    signal(SIGALRM, alarmed);
    struct itimerval often = {.it_interval.tv_usec = 3000, .it_value.tv_usec = 3000};
    setitimer(ITIMER_REAL, &often, NULL);
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++) {
        void *hash;
        pthread_join(threads[i], &hash);
        printf("thread %d: %016llx\n", i, (unsigned long long)(uintptr_t)hash);
    }
    printf("all: %016llx\n", (unsigned long long)all);
    return 0;
}
