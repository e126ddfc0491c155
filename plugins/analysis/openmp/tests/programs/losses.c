/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Programs of known constructs; the first argument names one. Teams have four threads. */
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nodescope-interval.h"

static volatile long sink;

static void work(long steps) {
    for (volatile long i = 0; i < steps; i++)
        ;
}

static void imbalance(void) {
#pragma omp parallel
    {
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < 4; i++)
            work(i == 0 ? 100000000 : 1);
    }
}

static void fixed(void) {
#pragma omp parallel for schedule(static)
    for (int i = 0; i < 400; i++)
        work(10);
}

static void fixed_chunks(void) {
#pragma omp parallel for schedule(static, 10)
    for (int i = 0; i < 400; i++)
        work(10);
}

static void dynamic(void) {
    for (int times = 0; times < 3; times++) {
#pragma omp parallel
        {
#pragma omp for schedule(dynamic, 7)
            for (int i = 0; i < 700; i++)
                work(10);
#pragma omp for schedule(guided, 5) nowait
            for (int i = 0; i < 2000; i += 2)
                work(10);
#pragma omp for schedule(dynamic, 1)
            for (unsigned long long i = 100; i > 0; i--)
                work(10);
        }
    }
}

static void combined(void) {
#pragma omp parallel for schedule(dynamic, 5)
    for (int i = 0; i < 100; i++)
        work(10);
}

static void critical(void) {
#pragma omp parallel
    for (int i = 0; i < 10; i++) {
#pragma omp critical
        sink++;
#pragma omp critical(named)
        sink++;
    }
}

static void lock(void) {
    omp_lock_t lock;
    omp_nest_lock_t nest;
    omp_init_lock(&lock);
    omp_init_nest_lock(&nest);
#pragma omp parallel
    for (int i = 0; i < 7; i++) {
        omp_set_lock(&lock);
        sink++;
        omp_unset_lock(&lock);
        omp_set_nest_lock(&nest);
        omp_set_nest_lock(&nest);
        sink++;
        omp_unset_nest_lock(&nest);
        omp_unset_nest_lock(&nest);
    }
}

static void barrier(void) {
#pragma omp parallel
    for (int i = 0; i < 5; i++) {
#pragma omp barrier
    }
}

static void ordered(void) {
#pragma omp parallel for ordered schedule(dynamic, 1)
    for (int i = 0; i < 60; i++) {
        work(10);
#pragma omp ordered
        sink++;
    }
}

static void doacross(void) {
    static long chain[101];
#pragma omp parallel for ordered(1) schedule(dynamic, 1)
    for (int i = 1; i <= 100; i++) {
#pragma omp ordered depend(sink : i - 1)
        chain[i] = chain[i - 1] + 1;
#pragma omp ordered depend(source)
    }
    if (chain[100] != 100)
        exit(3);
}

static void single(void) {
#pragma omp parallel
    for (int i = 0; i < 6; i++) {
#pragma omp single
        sink++;
    }
}

static void copied(void) {
    long sum = 0;
#pragma omp parallel reduction(+ : sum)
    for (int i = 0; i < 6; i++) {
        long value;
#pragma omp single copyprivate(value)
        value = 7;
        sum += value;
    }
    if (sum != 4 * 6 * 7)
        exit(3);
}

static void sections(void) {
#pragma omp parallel
    {
#pragma omp sections
        {
#pragma omp section
            work(1000);
#pragma omp section
            work(1000);
        }
    }
#pragma omp parallel sections
    {
#pragma omp section
        work(1000);
#pragma omp section
        work(1000);
    }
}

static void master(void) {
#pragma omp parallel
    for (int i = 0; i < 3; i++) {
#pragma omp master
        sink++;
    }
}

static void flush(void) {
#pragma omp parallel
    for (int i = 0; i < 3; i++) {
#pragma omp flush
    }
}

static void serial(void) {
#pragma omp parallel
    work(10);
    work(50000000);
}

static void replicated(void) {
#pragma omp parallel
    work(20000000);
}

static void tasks(void) {
    long sum = 0, taken[8] = {0};
    char large[300] = "ab";
#pragma omp parallel
#pragma omp single
    {
        for (int i = 0; i < 50; i++) {
#pragma omp task firstprivate(i, large) shared(sum)
            {
                work(1000);
#pragma omp atomic
                sum += i + large[1];
            }
        }
#pragma omp taskwait
#pragma omp taskgroup
        {
#pragma omp task shared(taken)
            taken[0] = 1;
#pragma omp task shared(taken) if (0)
            taken[1] = 1;
        }
    }
    if (sum != 49 * 50 / 2 + 50 * 'b' || !taken[0] || !taken[1])
        exit(3);
}

static void taskloop(void) {
    long sum = 0;
#pragma omp parallel
#pragma omp single
#pragma omp taskloop grainsize(10) reduction(+ : sum)
    for (int i = 0; i < 200; i++)
        sum += i;
#pragma omp parallel
#pragma omp single
#pragma omp taskloop grainsize(10)
    for (long i = 0; i < 200; i++)
        __atomic_add_fetch(&sum, i, __ATOMIC_RELAXED);
    if (sum != 2 * (199 * 200 / 2))
        exit(3);
}

static long fibonacci(int n) {
    long a, b;
    if (n < 2)
        return n;
#pragma omp task shared(a)
    a = fibonacci(n - 1);
#pragma omp task shared(b)
    b = fibonacci(n - 2);
#pragma omp taskwait
    return a + b;
}

static void recursion(void) {
    long value = 0;
#pragma omp parallel
#pragma omp single nowait
    value = fibonacci(15);
    if (value != 610)
        exit(3);
}

static void nested(void) {
#pragma omp parallel num_threads(2)
#pragma omp parallel num_threads(2)
    for (int i = 0; i < 2; i++) {
#pragma omp barrier
    }
}

static void *team(void *unused) {
    (void)unused;
#pragma omp parallel num_threads(2)
#pragma omp critical
    sink++;
    return NULL;
}

static void threads(void) {
    pthread_t made[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&made[i], NULL, team, NULL);
    for (int i = 0; i < 2; i++)
        pthread_join(made[i], NULL);
}

static void intervals(void) {
    nodescope_interval_begin("outer");
    for (int i = 0; i < 5; i++) {
        nodescope_interval_begin("inner");
#pragma omp parallel
#pragma omp critical
        sink++;
        nodescope_interval_end("inner");
    }
#pragma omp parallel
#pragma omp critical
    sink++;
    nodescope_interval_end("outer");
}

static void reduction(void) {
    double sum = 0;
#pragma omp parallel reduction(task, + : sum)
    {
#pragma omp task in_reduction(+ : sum)
        sum += 1;
    }
    if (sum != 4)
        exit(3);
}

static void endless(void) {
    for (;;) {
#pragma omp parallel
        work(1000);
    }
}

static void none(void) {
    work(1000);
}

#define CASE(name)                                                                                                             \
    { #name, name }

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {CASE(imbalance), CASE(fixed),      CASE(fixed_chunks), CASE(dynamic),   CASE(combined),  CASE(critical),
                 CASE(lock),      CASE(barrier),    CASE(ordered),      CASE(doacross),  CASE(single),    CASE(copied),
                 CASE(sections),  CASE(master),     CASE(flush),        CASE(serial),    CASE(replicated), CASE(tasks),
                 CASE(taskloop),  CASE(recursion),  CASE(nested),       CASE(threads),   CASE(intervals), CASE(reduction),
                 CASE(endless),   CASE(none)};
    for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(cases[i].name, argv[1])) {
            cases[i].run();
            return 0;
        }
    fprintf(stderr, "usage: losses CASE\n");
    return 2;
}
