/* Threads that share lines of memory. Each kernel is measured with one thread, then with several, and prints the nanoseconds of one
   operation, and the ratio:

       sharing THREADS OPERATIONS [KERNEL]

   Each thread runs on a core of its own. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LINES 128 /* Two lines, since some processors prefetch pairs of lines. */
#define MOST 16
#define ALIGNED _Alignas(LINES)

static struct { ALIGNED volatile long value; } padded[MOST];
static ALIGNED volatile long neighbours[8];
static ALIGNED atomic_long counter;
static ALIGNED atomic_int test_and_set;
static ALIGNED volatile long protected;
static struct { ALIGNED atomic_long next; ALIGNED atomic_long serving; } ticket;
struct waiter { ALIGNED _Atomic(struct waiter *) next; atomic_int locked; };
static ALIGNED _Atomic(struct waiter *) last_waiter;
static struct waiter waiters[MOST];
static struct { ALIGNED atomic_long value; } flags[2];
static ALIGNED volatile long mixed[8];

static long operations;
static int threads;

__attribute__((noinline)) static void increment(volatile long *word) {
    for (long i = 0; i < operations; i++)
        (*word)++;
}

static void run_neighbours(int thread) { increment(&neighbours[thread % 8]); }

static void run_padded(int thread) { increment(&padded[thread].value); }

static void run_counter(int thread) {
    (void)thread;
    for (long i = 0; i < operations; i++)
        atomic_fetch_add(&counter, 1);
}

static void run_test_and_set(int thread) {
    (void)thread;
    for (long i = 0; i < operations; i++) {
        while (atomic_exchange_explicit(&test_and_set, 1, memory_order_acquire))
            ;
        protected++;
        atomic_store_explicit(&test_and_set, 0, memory_order_release);
    }
}

static void run_ticket(int thread) {
    (void)thread;
    for (long i = 0; i < operations; i++) {
        long mine = atomic_fetch_add(&ticket.next, 1);
        while (atomic_load_explicit(&ticket.serving, memory_order_acquire) != mine)
            ;
        protected++;
        atomic_store_explicit(&ticket.serving, mine + 1, memory_order_release);
    }
}

/* The lock of Mellor-Crummey and Scott: each thread spins on a line of its own. */
static void run_queue(int thread) {
    struct waiter *me = &waiters[thread];
    for (long i = 0; i < operations; i++) {
        atomic_store_explicit(&me->next, NULL, memory_order_relaxed);
        struct waiter *before = atomic_exchange(&last_waiter, me);
        if (before) {
            atomic_store_explicit(&me->locked, 1, memory_order_relaxed);
            atomic_store_explicit(&before->next, me, memory_order_release);
            while (atomic_load_explicit(&me->locked, memory_order_acquire))
                ;
        }
        protected++;
        struct waiter *behind = atomic_load_explicit(&me->next, memory_order_acquire);
        if (!behind) {
            struct waiter *expected = me;
            if (atomic_compare_exchange_strong(&last_waiter, &expected, NULL))
                continue;
            while (!(behind = atomic_load_explicit(&me->next, memory_order_acquire)))
                ;
        }
        atomic_store_explicit(&behind->locked, 0, memory_order_release);
    }
}

/* An operation is a round trip between the first two threads. */
static void run_ping_pong(int thread) {
    for (long i = 1; i <= operations && thread < 2; i++) {
        if (thread == 0)
            atomic_store_explicit(&flags[0].value, i, memory_order_release);
        else
            while (atomic_load_explicit(&flags[0].value, memory_order_acquire) != i)
                ;
        if (thread == 1)
            atomic_store_explicit(&flags[1].value, i, memory_order_release);
        else if (threads > 1)
            while (atomic_load_explicit(&flags[1].value, memory_order_acquire) != i)
                ;
    }
}

/* All threads read a line, which the first one writes after every eighth read. */
static void run_mixed(int thread) {
    long sum = 0;
    for (long i = 0; i < operations; i++) {
        sum += mixed[i & 7];
        if (thread == 0 && i % 8 == 0)
            mixed[0] = sum;
    }
}

static const struct {
    const char *name;
    void (*run)(int thread);
} kernels[] = {
    {"neighbours", run_neighbours}, {"padded", run_padded},       {"counter", run_counter},     {"test_and_set", run_test_and_set},
    {"ticket", run_ticket},         {"queue", run_queue},         {"ping_pong", run_ping_pong}, {"mixed", run_mixed},
};

static void (*kernel)(int thread);
static pthread_barrier_t barrier;
static long spent[MOST];

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void *run(void *argument) {
    long thread = (long)argument;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(thread, &own);
    sched_setaffinity(0, sizeof own, &own);
    /* After the first barrier, all threads run. */
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    long from = now();
    kernel(thread);
    spent[thread] = now() - from;
    return NULL;
}

/* Returns the nanoseconds of one operation of the slowest thread. */
static double measure(int count) {
    pthread_t ids[MOST];
    threads = count;
    memset(flags, 0, sizeof flags);
    pthread_barrier_init(&barrier, NULL, count);
    for (long thread = 1; thread < count; thread++)
        pthread_create(&ids[thread], NULL, run, (void *)thread);
    run((void *)0);
    for (long thread = 1; thread < count; thread++)
        pthread_join(ids[thread], NULL);
    long most = 0;
    for (int thread = 0; thread < count; thread++)
        most = spent[thread] > most ? spent[thread] : most;
    return (double)most / operations;
}

int main(int count, char **arguments) {
    int many = count > 2 ? atoi(arguments[1]) : 0;
    operations = count > 2 ? atol(arguments[2]) : 0;
    if (many < 1 || many > MOST || operations < 1) {
        fprintf(stderr, "usage: sharing THREADS OPERATIONS [KERNEL]\n");
        return 2;
    }
    for (unsigned k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        if (count > 3 && strcmp(arguments[3], kernels[k].name))
            continue;
        kernel = kernels[k].run;
        measure(1);
        double one = measure(1), all = measure(many);
        printf("%s %.3f %.3f %.2f\n", kernels[k].name, one, all, all / one);
        fflush(stdout);
    }
    return 0;
}
