/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The entry points of libgomp, which programs of gcc and gfortran call. libgomp tells tools nothing, so its entry points are interposed. Each forwards
 * to libgomp's own. The function that a region executes is wrapped, as the region's end is known to no thread but the primary one.
 *
 * A loop of static schedule calls nothing: the compiler puts the sharing into the program. Such a loop asks for the number of threads
 * and then for the thread's own, which is how share_inlined knows the loop (openmp-core.c).
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "openmp-core.h"

#define EXPORTED __attribute__((visibility("default")))
typedef unsigned long long ull;
typedef void region_function(void *);

void *runtime_function(const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (!function) {
        /* A module of Python, for instance, opens its runtime outside the global scope. */
        static const char *const libraries[] = {"libgomp.so.1", "libomp.so.5", "libomp.so", "libiomp5.so"};
        for (size_t i = 0; !function && i < sizeof libraries / sizeof *libraries; i++) {
            void *library = dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD);
            function = library ? dlsym(library, name) : NULL;
        }
    }
    return function;
}

void *needed_function(const char *name) {
    void *function = runtime_function(name);
    if (!function) {
        fprintf(stderr, "nodescope: the OpenMP tracer stops this program: no loaded OpenMP runtime provides %s\n", name);
        _exit(127);
    }
    return function;
}

static void *needed(const char *name) {
    if (!by_ompt)
        runtime_name = "libgomp";
    return needed_function(name);
}

/* The runtime's own function of the name, looked up once: two threads may look it up both, with one answer. */
#define REAL(type, name)                                                                                                       \
    static __typeof__(type) *real;                                                                                             \
    if (__builtin_expect(!real, 0))                                                                                            \
    real = needed(#name)
#define OFF (__builtin_expect(!tracing || by_ompt, 0))

/* ---- regions ---- */

/* libgomp has the answer without a call; the interposed function would count the question. */
static unsigned own_number(void) {
    REAL(int(void), omp_get_thread_num);
    return real();
}

static uint32_t capacity(unsigned threads) {
    REAL(int(void), omp_get_max_threads);
    int most = real();
    /* A team may have fewer threads than asked for, and never more. */
    return threads ? threads : most > 0 ? most : 1;
}

static void in_region(void *data) {
    struct team *team = data;
    unsigned number = own_number();
    region_enter(team, number);
    team->function(team->data);
    region_leave(team, number);
}

/* Around a call of libgomp that executes a whole region. The slots of small teams lie on the stack. */
#define REGION(site, function_, data_, threads, kind_, schedule_, chunk_, step_, call)                                                \
    do {                                                                                                                       \
        struct team team = {.function = function_, .data = data_, .kind = kind_, .schedule = schedule_, .chunk = chunk_, .step = step_}; \
        uint32_t room = capacity(threads);                                                                                     \
        size_t bytes = room * sizeof(struct slot);                                                                             \
        struct slot *slots = bytes <= 16384 ? memset(alloca(bytes), 0, bytes) : calloc(1, bytes);                              \
        region_begin(&team, site, slots, slots ? room : 0);                                                                    \
        call;                                                                                                                  \
        region_end(&team);                                                                                                     \
        if (bytes > 16384)                                                                                                     \
            free(slots);                                                                                                       \
    } while (0)

EXPORTED void GOMP_parallel(region_function *fn, void *data, unsigned threads, unsigned flags) {
    REAL(void(region_function *, void *, unsigned, unsigned), GOMP_parallel);
    if (OFF)
        return real(fn, data, threads, flags);
    REGION(CALLER, fn, data, threads, 0, 0, 0, 1, real(in_region, &team, threads, flags));
}

/* libgomp takes the first word of the data for what is reduced. */
struct reducing {
    void *reductions;
    struct team *team;
};

static void in_reducing_region(void *data) {
    in_region(((struct reducing *)data)->team);
}

EXPORTED unsigned GOMP_parallel_reductions(region_function *fn, void *data, unsigned threads, unsigned flags) {
    REAL(unsigned(region_function *, void *, unsigned, unsigned), GOMP_parallel_reductions);
    if (OFF)
        return real(fn, data, threads, flags);
    unsigned entered;
    struct reducing reducing = {.reductions = *(void **)data};
    REGION(CALLER, fn, data, threads, 0, 0, 0, 1, (reducing.team = &team, entered = real(in_reducing_region, &reducing, threads, flags)));
    return entered;
}

#define PARALLEL_LOOP(name, schedule)                                                                                          \
    EXPORTED void GOMP_parallel_loop_##name(region_function *fn, void *data, unsigned threads, long start, long end, long incr, \
                                            long chunk, unsigned flags) {                                                      \
        REAL(void(region_function *, void *, unsigned, long, long, long, long, unsigned), GOMP_parallel_loop_##name);           \
        if (OFF)                                                                                                               \
            return real(fn, data, threads, start, end, incr, chunk, flags);                                                    \
        REGION(CALLER, fn, data, threads, LOOP, schedule, chunk, incr, real(in_region, &team, threads, start, end, incr, chunk, flags)); \
    }
PARALLEL_LOOP(static, STATIC)
PARALLEL_LOOP(dynamic, DYNAMIC)
PARALLEL_LOOP(guided, GUIDED)
PARALLEL_LOOP(nonmonotonic_dynamic, DYNAMIC)
PARALLEL_LOOP(nonmonotonic_guided, GUIDED)

#define PARALLEL_LOOP_RUNTIME(name)                                                                                            \
    EXPORTED void GOMP_parallel_loop_##name(region_function *fn, void *data, unsigned threads, long start, long end, long incr, \
                                            unsigned flags) {                                                                  \
        REAL(void(region_function *, void *, unsigned, long, long, long, unsigned), GOMP_parallel_loop_##name);                 \
        if (OFF)                                                                                                               \
            return real(fn, data, threads, start, end, incr, flags);                                                           \
        REGION(CALLER, fn, data, threads, LOOP, RUNTIME, 0, incr, real(in_region, &team, threads, start, end, incr, flags));          \
    }
PARALLEL_LOOP_RUNTIME(runtime)
PARALLEL_LOOP_RUNTIME(nonmonotonic_runtime)
PARALLEL_LOOP_RUNTIME(maybe_nonmonotonic_runtime)

EXPORTED void GOMP_parallel_sections(region_function *fn, void *data, unsigned threads, unsigned count, unsigned flags) {
    REAL(void(region_function *, void *, unsigned, unsigned, unsigned), GOMP_parallel_sections);
    if (OFF)
        return real(fn, data, threads, count, flags);
    REGION(CALLER, fn, data, threads, SECTIONS, 0, 0, 1, real(in_region, &team, threads, count, flags));
}

/* Programs of gcc before 4.9: the primary thread calls the function itself. */
static __thread struct team *begun;

static struct team *begin_old(uintptr_t site, region_function *fn, void *data, unsigned threads, enum kind kind, enum schedule schedule, long chunk,
                              long step) {
    uint32_t room = capacity(threads);
    struct team *team = calloc(1, sizeof *team + room * sizeof(struct slot) + sizeof begun);
    if (!team)
        return NULL;
    *team = (struct team){.function = fn, .data = data, .kind = kind, .schedule = schedule, .chunk = chunk, .step = step};
    region_begin(team, site, (struct slot *)(team + 1), room);
    /* The team around this one lies behind the slots. */
    memcpy((struct slot *)(team + 1) + room, &begun, sizeof begun);
    begun = team;
    return team;
}

#define PARALLEL_START(name, kind, schedule, chunk, step, parameters, arguments)                                                     \
    EXPORTED void name parameters {                                                                                            \
        REAL(void parameters, name);                                                                                           \
        if (OFF) {                                                                                                             \
            real arguments;                                                                                                    \
            return;                                                                                                            \
        }                                                                                                                      \
        struct team *team = begin_old(CALLER, fn, data, threads, kind, schedule, chunk, step);                                       \
        if (team) {                                                                                                            \
            fn = in_region;                                                                                                    \
            data = team;                                                                                                       \
        }                                                                                                                      \
        real arguments;                                                                                                        \
        if (team)                                                                                                              \
            region_enter(team, own_number());                                                                                  \
    }
PARALLEL_START(GOMP_parallel_start, 0, 0, 0, 1, (region_function * fn, void *data, unsigned threads), (fn, data, threads))
PARALLEL_START(GOMP_parallel_sections_start, SECTIONS, 0, 0, 1, (region_function * fn, void *data, unsigned threads, unsigned count),
               (fn, data, threads, count))
PARALLEL_START(GOMP_parallel_loop_static_start, LOOP, STATIC, chunk, incr,
               (region_function * fn, void *data, unsigned threads, long start, long end, long incr, long chunk),
               (fn, data, threads, start, end, incr, chunk))
PARALLEL_START(GOMP_parallel_loop_dynamic_start, LOOP, DYNAMIC, chunk, incr,
               (region_function * fn, void *data, unsigned threads, long start, long end, long incr, long chunk),
               (fn, data, threads, start, end, incr, chunk))
PARALLEL_START(GOMP_parallel_loop_guided_start, LOOP, GUIDED, chunk, incr,
               (region_function * fn, void *data, unsigned threads, long start, long end, long incr, long chunk),
               (fn, data, threads, start, end, incr, chunk))
PARALLEL_START(GOMP_parallel_loop_runtime_start, LOOP, RUNTIME, 0, incr,
               (region_function * fn, void *data, unsigned threads, long start, long end, long incr), (fn, data, threads, start, end, incr))

EXPORTED void GOMP_parallel_end(void) {
    REAL(void(void), GOMP_parallel_end);
    struct team *team = begun;
    if (OFF || !team) {
        real();
        return;
    }
    region_leave(team, own_number());
    real();
    region_end(team);
    memcpy(&begun, team->slots + team->capacity, sizeof begun);
    free(team);
}

/* ---- inlined loops ---- */

static __thread uintptr_t asked __attribute__((tls_model("initial-exec")));

/* Bytes of code between the two questions of a compiler. */
#define NEAR 64

EXPORTED int omp_get_num_threads(void) {
    REAL(int(void), omp_get_num_threads);
    asked = CALLER;
    return real();
}

EXPORTED int omp_get_thread_num(void) {
    REAL(int(void), omp_get_thread_num);
    int number = real();
    uintptr_t site = CALLER;
    if (!OFF && asked && site > asked && site - asked < NEAR)
        share_inlined(LOOP, asked, 1);
    asked = 0;
    return number;
}

/* ---- loops ---- */

#define COUNT_CHUNK(has)                                                                                                       \
    if (has)                                                                                                                   \
    share_chunk(*to - *from)

#define LOOP_START(name, schedule)                                                                                             \
    EXPORTED bool GOMP_loop_##name##_start(long start, long end, long incr, long chunk, long *from, long *to) {                 \
        REAL(bool(long, long, long, long, long *, long *), GOMP_loop_##name##_start);                                           \
        if (OFF)                                                                                                               \
            return real(start, end, incr, chunk, from, to);                                                                    \
        share_begin(LOOP, CALLER, schedule, chunk, incr);                                                                      \
        bool has = real(start, end, incr, chunk, from, to);                                                                    \
        COUNT_CHUNK(has);                                                                                                \
        return has;                                                                                                            \
    }                                                                                                                          \
    EXPORTED bool GOMP_loop_ull_##name##_start(bool up, ull start, ull end, ull incr, ull chunk, ull *from, ull *to) {          \
        REAL(bool(bool, ull, ull, ull, ull, ull *, ull *), GOMP_loop_ull_##name##_start);                                       \
        if (OFF)                                                                                                               \
            return real(up, start, end, incr, chunk, from, to);                                                                \
        share_begin(LOOP, CALLER, schedule, chunk, incr);                                                                      \
        bool has = real(up, start, end, incr, chunk, from, to);                                                                \
        COUNT_CHUNK(has);                                                                                                \
        return has;                                                                                                            \
    }
LOOP_START(static, STATIC)
LOOP_START(dynamic, DYNAMIC)
LOOP_START(guided, GUIDED)
LOOP_START(nonmonotonic_dynamic, DYNAMIC)
LOOP_START(nonmonotonic_guided, GUIDED)
LOOP_START(ordered_static, STATIC)
LOOP_START(ordered_dynamic, DYNAMIC)
LOOP_START(ordered_guided, GUIDED)

#define LOOP_START_RUNTIME(name)                                                                                               \
    EXPORTED bool GOMP_loop_##name##_start(long start, long end, long incr, long *from, long *to) {                             \
        REAL(bool(long, long, long, long *, long *), GOMP_loop_##name##_start);                                                 \
        if (OFF)                                                                                                               \
            return real(start, end, incr, from, to);                                                                           \
        share_begin(LOOP, CALLER, RUNTIME, 0, incr);                                                                           \
        bool has = real(start, end, incr, from, to);                                                                           \
        COUNT_CHUNK(has);                                                                                                \
        return has;                                                                                                            \
    }                                                                                                                          \
    EXPORTED bool GOMP_loop_ull_##name##_start(bool up, ull start, ull end, ull incr, ull *from, ull *to) {                     \
        REAL(bool(bool, ull, ull, ull, ull *, ull *), GOMP_loop_ull_##name##_start);                                            \
        if (OFF)                                                                                                               \
            return real(up, start, end, incr, from, to);                                                                       \
        share_begin(LOOP, CALLER, RUNTIME, 0, incr);                                                                           \
        bool has = real(up, start, end, incr, from, to);                                                                       \
        COUNT_CHUNK(has);                                                                                                \
        return has;                                                                                                            \
    }
LOOP_START_RUNTIME(runtime)
LOOP_START_RUNTIME(nonmonotonic_runtime)
LOOP_START_RUNTIME(maybe_nonmonotonic_runtime)
LOOP_START_RUNTIME(ordered_runtime)

/* A schedule as gcc numbers it, with a bit for monotonic ones (gcc's include/gomp-constants.h). */
static enum schedule schedule_of(long number) {
    switch (number & 0x7fffffff) {
    case 0: return RUNTIME;
    case 1: return STATIC;
    case 2: return DYNAMIC;
    case 3: return GUIDED;
    default: return RUNTIME; /* 4 is auto */
    }
}

/* From OpenMP 5 on, loops with reductions of tasks; a null `from` asks for no share yet. */
#define LOOP_START_GENERIC(name)                                                                                               \
    EXPORTED bool GOMP_loop_##name(long start, long end, long incr, long schedule, long chunk, long *from, long *to,            \
                                   uintptr_t *reductions, void **memory) {                                                     \
        REAL(bool(long, long, long, long, long, long *, long *, uintptr_t *, void **), GOMP_loop_##name);                       \
        if (OFF)                                                                                                               \
            return real(start, end, incr, schedule, chunk, from, to, reductions, memory);                                      \
        if (from)                                                                                                              \
            share_begin(LOOP, CALLER, schedule_of(schedule), chunk, incr);                                                     \
        bool has = real(start, end, incr, schedule, chunk, from, to, reductions, memory);                                      \
        COUNT_CHUNK(has && from);                                                                                        \
        return has;                                                                                                            \
    }                                                                                                                          \
    EXPORTED bool GOMP_loop_ull_##name(bool up, ull start, ull end, ull incr, long schedule, ull chunk, ull *from, ull *to,     \
                                       uintptr_t *reductions, void **memory) {                                                 \
        REAL(bool(bool, ull, ull, ull, long, ull, ull *, ull *, uintptr_t *, void **), GOMP_loop_ull_##name);                   \
        if (OFF)                                                                                                               \
            return real(up, start, end, incr, schedule, chunk, from, to, reductions, memory);                                  \
        if (from)                                                                                                              \
            share_begin(LOOP, CALLER, schedule_of(schedule), chunk, incr);                                                     \
        bool has = real(up, start, end, incr, schedule, chunk, from, to, reductions, memory);                                  \
        COUNT_CHUNK(has && from);                                                                                        \
        return has;                                                                                                            \
    }
LOOP_START_GENERIC(start)
LOOP_START_GENERIC(ordered_start)

#define LOOP_START_DOACROSS(name, schedule)                                                                                    \
    EXPORTED bool GOMP_loop_doacross_##name##_start(unsigned counted, long *counts, long chunk, long *from, long *to) {         \
        REAL(bool(unsigned, long *, long, long *, long *), GOMP_loop_doacross_##name##_start);                                  \
        if (OFF)                                                                                                               \
            return real(counted, counts, chunk, from, to);                                                                     \
        share_begin(LOOP, CALLER, schedule, chunk, 1);                                                                         \
        bool has = real(counted, counts, chunk, from, to);                                                                     \
        COUNT_CHUNK(has);                                                                                                   \
        return has;                                                                                                            \
    }                                                                                                                          \
    EXPORTED bool GOMP_loop_ull_doacross_##name##_start(unsigned counted, ull *counts, ull chunk, ull *from, ull *to) {         \
        REAL(bool(unsigned, ull *, ull, ull *, ull *), GOMP_loop_ull_doacross_##name##_start);                                  \
        if (OFF)                                                                                                               \
            return real(counted, counts, chunk, from, to);                                                                     \
        share_begin(LOOP, CALLER, schedule, chunk, 1);                                                                         \
        bool has = real(counted, counts, chunk, from, to);                                                                     \
        COUNT_CHUNK(has);                                                                                                   \
        return has;                                                                                                            \
    }
LOOP_START_DOACROSS(static, STATIC)
LOOP_START_DOACROSS(dynamic, DYNAMIC)
LOOP_START_DOACROSS(guided, GUIDED)

EXPORTED bool GOMP_loop_doacross_runtime_start(unsigned counted, long *counts, long *from, long *to) {
    REAL(bool(unsigned, long *, long *, long *), GOMP_loop_doacross_runtime_start);
    if (OFF)
        return real(counted, counts, from, to);
    share_begin(LOOP, CALLER, RUNTIME, 0, 1);
    bool has = real(counted, counts, from, to);
    COUNT_CHUNK(has);
    return has;
}

EXPORTED bool GOMP_loop_ull_doacross_runtime_start(unsigned counted, ull *counts, ull *from, ull *to) {
    REAL(bool(unsigned, ull *, ull *, ull *), GOMP_loop_ull_doacross_runtime_start);
    if (OFF)
        return real(counted, counts, from, to);
    share_begin(LOOP, CALLER, RUNTIME, 0, 1);
    bool has = real(counted, counts, from, to);
    COUNT_CHUNK(has);
    return has;
}

EXPORTED bool GOMP_loop_doacross_start(unsigned counted, long *counts, long schedule, long chunk, long *from, long *to, uintptr_t *reductions,
                                       void **memory) {
    REAL(bool(unsigned, long *, long, long, long *, long *, uintptr_t *, void **), GOMP_loop_doacross_start);
    if (OFF)
        return real(counted, counts, schedule, chunk, from, to, reductions, memory);
    if (from)
        share_begin(LOOP, CALLER, schedule_of(schedule), chunk, 1);
    bool has = real(counted, counts, schedule, chunk, from, to, reductions, memory);
    COUNT_CHUNK(has && from);
    return has;
}

EXPORTED bool GOMP_loop_ull_doacross_start(unsigned counted, ull *counts, long schedule, ull chunk, ull *from, ull *to, uintptr_t *reductions,
                                           void **memory) {
    REAL(bool(unsigned, ull *, long, ull, ull *, ull *, uintptr_t *, void **), GOMP_loop_ull_doacross_start);
    if (OFF)
        return real(counted, counts, schedule, chunk, from, to, reductions, memory);
    if (from)
        share_begin(LOOP, CALLER, schedule_of(schedule), chunk, 1);
    bool has = real(counted, counts, schedule, chunk, from, to, reductions, memory);
    COUNT_CHUNK(has && from);
    return has;
}

#define LOOP_NEXT(name)                                                                                                        \
    EXPORTED bool GOMP_loop_##name##_next(long *from, long *to) {                                                               \
        REAL(bool(long *, long *), GOMP_loop_##name##_next);                                                                    \
        bool has = real(from, to);                                                                                             \
        COUNT_CHUNK(has && !OFF);                                                                                           \
        return has;                                                                                                            \
    }                                                                                                                          \
    EXPORTED bool GOMP_loop_ull_##name##_next(ull *from, ull *to) {                                                             \
        REAL(bool(ull *, ull *), GOMP_loop_ull_##name##_next);                                                                  \
        bool has = real(from, to);                                                                                             \
        COUNT_CHUNK(has && !OFF);                                                                                           \
        return has;                                                                                                            \
    }
LOOP_NEXT(static)
LOOP_NEXT(dynamic)
LOOP_NEXT(guided)
LOOP_NEXT(runtime)
LOOP_NEXT(nonmonotonic_dynamic)
LOOP_NEXT(nonmonotonic_guided)
LOOP_NEXT(nonmonotonic_runtime)
LOOP_NEXT(maybe_nonmonotonic_runtime)
LOOP_NEXT(ordered_static)
LOOP_NEXT(ordered_dynamic)
LOOP_NEXT(ordered_guided)
LOOP_NEXT(ordered_runtime)

/* Ends of work-sharing constructs, with and without a wait. */
#define SHARE_END(name, kind)                                                                                                  \
    EXPORTED void name(void) {                                                                                                 \
        REAL(void(void), name);                                                                                                \
        if (OFF)                                                                                                               \
            return real();                                                                                                     \
        share_end(kind);                                                                                                       \
        share_wait();                                                                                                          \
        real();                                                                                                                \
        share_waited();                                                                                                        \
    }
#define SHARE_END_CANCEL(name, kind)                                                                                           \
    EXPORTED bool name(void) {                                                                                                 \
        REAL(bool(void), name);                                                                                                \
        if (OFF)                                                                                                               \
            return real();                                                                                                     \
        share_end(kind);                                                                                                       \
        share_wait();                                                                                                          \
        bool cancelled = real();                                                                                               \
        share_waited();                                                                                                        \
        return cancelled;                                                                                                      \
    }
#define SHARE_END_NOWAIT(name, kind)                                                                                           \
    EXPORTED void name(void) {                                                                                                 \
        REAL(void(void), name);                                                                                                \
        if (!OFF)                                                                                                              \
            share_end(kind);                                                                                                   \
        real();                                                                                                                \
    }
SHARE_END(GOMP_loop_end, LOOP)
SHARE_END_CANCEL(GOMP_loop_end_cancel, LOOP)
SHARE_END_NOWAIT(GOMP_loop_end_nowait, LOOP)
SHARE_END(GOMP_sections_end, SECTIONS)
SHARE_END_CANCEL(GOMP_sections_end_cancel, SECTIONS)
SHARE_END_NOWAIT(GOMP_sections_end_nowait, SECTIONS)

EXPORTED unsigned GOMP_sections_start(unsigned count) {
    REAL(unsigned(unsigned), GOMP_sections_start);
    if (!OFF)
        share_begin(SECTIONS, CALLER, NO_SCHEDULE, 0, 1);
    return real(count);
}

EXPORTED unsigned GOMP_sections2_start(unsigned count, uintptr_t *reductions, void **memory) {
    REAL(unsigned(unsigned, uintptr_t *, void **), GOMP_sections2_start);
    if (!OFF)
        share_begin(SECTIONS, CALLER, NO_SCHEDULE, 0, 1);
    return real(count, reductions, memory);
}

/* ---- single ---- */

EXPORTED bool GOMP_single_start(void) {
    REAL(bool(void), GOMP_single_start);
    bool executes = real();
    if (!OFF)
        share_inlined(SINGLE, CALLER, executes);
    return executes;
}

EXPORTED void *GOMP_single_copy_start(void) {
    REAL(void *(void), GOMP_single_copy_start);
    if (OFF)
        return real();
    /* Null for the thread that executes the construct; the others come back when it has ended. */
    share_begin(SINGLE, CALLER, NO_SCHEDULE, 0, 1);
    share_end(SINGLE);
    share_wait();
    void *copied = real();
    share_waited();
    if (!copied)
        construct_begin(SINGLE, CALLER);
    return copied;
}

EXPORTED void GOMP_single_copy_end(void *data) {
    REAL(void(void *), GOMP_single_copy_end);
    if (!OFF)
        construct_end(SINGLE);
    real(data);
}

/* ---- synchronisation ---- */

EXPORTED void GOMP_barrier(void) {
    REAL(void(void), GOMP_barrier);
    if (OFF)
        return real();
    barrier_begin(CALLER);
    real();
    barrier_end();
}

EXPORTED bool GOMP_barrier_cancel(void) {
    REAL(bool(void), GOMP_barrier_cancel);
    if (OFF)
        return real();
    barrier_begin(CALLER);
    bool cancelled = real();
    barrier_end();
    return cancelled;
}

#define ENTER(name, kind, parameters, arguments)                                                                               \
    EXPORTED void name parameters {                                                                                            \
        REAL(void parameters, name);                                                                                           \
        if (OFF)                                                                                                               \
            return real arguments;                                                                                             \
        wait_begin(kind, CALLER);                                                                                              \
        real arguments;                                                                                                        \
        wait_over(kind);                                                                                                       \
    }
#define LEAVE(name, kind, parameters, arguments)                                                                               \
    EXPORTED void name parameters {                                                                                            \
        REAL(void parameters, name);                                                                                           \
        real arguments;                                                                                                        \
        /* libomp has these entry points, too, and OMPT does not tell of the ends. */                                          \
        if (tracing)                                                                                                           \
            construct_end(kind);                                                                                               \
    }
#define WAIT(name, kind, parameters, arguments)                                                                                \
    EXPORTED void name parameters {                                                                                            \
        REAL(void parameters, name);                                                                                           \
        if (OFF)                                                                                                               \
            return real arguments;                                                                                             \
        wait_begin(kind, CALLER);                                                                                              \
        real arguments;                                                                                                        \
        wait_end(kind);                                                                                                        \
    }
ENTER(GOMP_critical_start, CRITICAL, (void), ())
LEAVE(GOMP_critical_end, CRITICAL, (void), ())
ENTER(GOMP_critical_name_start, CRITICAL, (void **name), (name))
LEAVE(GOMP_critical_name_end, CRITICAL, (void **name), (name))
ENTER(GOMP_atomic_start, ATOMIC, (void), ())
LEAVE(GOMP_atomic_end, ATOMIC, (void), ())
ENTER(GOMP_ordered_start, ORDERED, (void), ())
LEAVE(GOMP_ordered_end, ORDERED, (void), ())
WAIT(omp_set_lock, LOCK, (void *lock), (lock))
WAIT(omp_set_nest_lock, LOCK, (void *lock), (lock))
WAIT(omp_set_lock_, LOCK, (void *lock), (lock))
WAIT(omp_set_nest_lock_, LOCK, (void *lock), (lock))

/* Functions of a variable number of arguments, one for each loop of a nest: as many are passed on as a nest may sensibly have. Those that were not
 * given are what lies there on the caller's stack. */
#define NEST long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l
#define NEST_GIVEN a, b, c, d, e, f, g, h, i, j, k, l
WAIT(GOMP_doacross_wait, ORDERED, (NEST), (NEST_GIVEN))
WAIT(GOMP_doacross_ull_wait, ORDERED, (NEST), (NEST_GIVEN))

/* ---- tasks ---- */

/* In front of a task's data: what the task is. */
struct task {
    region_function *function;
    void (*copy)(void *, void *);
    void *data;
    uintptr_t site;
    long offset; /* from the start of this to the data */
};

/* libgomp looks at the first words of a taskloop's data, which therefore are in front. */
#define HEAD 32
#define BOUNDS 24

static void run_task(void *memory) {
    struct task *task = memory;
    task_begin(task->site);
    task->function((char *)memory + task->offset);
    task_end();
}

static void run_part(void *memory) {
    struct task *task = (void *)((char *)memory + HEAD);
    char *data = (char *)memory + task->offset;
    memcpy(data, memory, 2 * sizeof(long)); /* the part's bounds */
    task_begin(task->site);
    task->function(data);
    task_end();
}

static void copy_task(void *to, void *from) {
    struct task *task = to;
    memcpy(to, from, sizeof *task);
    task->copy((char *)to + task->offset, task->data);
}

static void copy_part(void *to, void *from) {
    memcpy(to, from, HEAD + sizeof(struct task));
    struct task *task = (void *)((char *)to + HEAD);
    task->copy((char *)to + task->offset, task->data);
}

#define DETACHED (1u << 13) /* libgomp writes the event into the data (gcc's include/gomp-constants.h) */
#define LARGEST (64l << 10)

EXPORTED void GOMP_task(region_function *fn, void *data, void (*copy)(void *, void *), long size, long align, bool deferred, unsigned flags,
                        void **depend, int priority, void *detach) {
    REAL(void(region_function *, void *, void (*)(void *, void *), long, long, bool, unsigned, void **, int, void *), GOMP_task);
    if (OFF)
        return real(fn, data, copy, size, align, deferred, flags, depend, priority, detach);
    uintptr_t site = CALLER;
    construct_count(CREATED_TASK, site);
    if (flags & DETACHED || size < 0 || size > LARGEST || align < 0 || align > 4096)
        return real(fn, data, copy, size, align, deferred, flags, depend, priority, detach);
    long own = align > 16 ? align : 16, offset = (sizeof(struct task) + own - 1) / own * own;
    char *memory = alloca(offset + size + own);
    memory = (char *)(((uintptr_t)memory + own - 1) / own * own);
    *(struct task *)memory = (struct task){.function = fn, .copy = copy, .data = data, .site = site, .offset = offset};
    if (!copy && size)
        memcpy(memory + offset, data, size);
    real(run_task, memory, copy ? copy_task : NULL, offset + size, own, deferred, flags, depend, priority, detach);
}

#define TASKLOOP_WRAPPER(name, type)                                                                                           \
    EXPORTED void name(region_function *fn, void *data, void (*copy)(void *, void *), long size, long align, unsigned flags,    \
                       unsigned long tasks, int priority, type start, type end, type step) {                                   \
        REAL(void(region_function *, void *, void (*)(void *, void *), long, long, unsigned, unsigned long, int, type, type, type), name); \
        if (OFF)                                                                                                               \
            return real(fn, data, copy, size, align, flags, tasks, priority, start, end, step);                                \
        uintptr_t site = CALLER;                                                                                               \
        construct_begin(TASKLOOP, site);                                                                                       \
        if (size < BOUNDS || size > LARGEST || align < 0 || align > 4096) {                                                    \
            real(fn, data, copy, size, align, flags, tasks, priority, start, end, step);                                       \
        } else {                                                                                                               \
            long own = align > 16 ? align : 16, offset = (HEAD + sizeof(struct task) + own - 1) / own * own;                    \
            char *memory = alloca(offset + size + own);                                                                        \
            memory = (char *)(((uintptr_t)memory + own - 1) / own * own);                                                      \
            memcpy(memory, data, BOUNDS);                                                                                      \
            *(struct task *)(memory + HEAD) =                                                                                  \
                (struct task){.function = fn, .copy = copy, .data = data, .site = site, .offset = offset};                     \
            if (!copy)                                                                                                         \
                memcpy(memory + offset, data, size);                                                                           \
            real(run_part, memory, copy ? copy_part : NULL, offset + size, own, flags, tasks, priority, start, end, step);     \
        }                                                                                                                      \
        construct_end(TASKLOOP);                                                                                               \
    }
TASKLOOP_WRAPPER(GOMP_taskloop, long)
TASKLOOP_WRAPPER(GOMP_taskloop_ull, ull)

WAIT(GOMP_taskwait, TASKWAIT, (void), ())
WAIT(GOMP_taskwait_depend, TASKWAIT, (void **depend), (depend))
WAIT(GOMP_taskgroup_end, TASKGROUP, (void), ())
