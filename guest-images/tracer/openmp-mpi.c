/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Intervals between MPI calls. NODESCOPE_OPENMP_INTERVALS=CALL..CALL[,CALL..CALL...] names the calls. A CALL is a function, such as
 * MPI_Barrier, or one call of the function by its number, such as MPI_Barrier:2. An interval lasts from the return of the first call to the
 * return of the second. The MPI tracer tells of each call, so that programs need both tracers.
 */
#define _GNU_SOURCE
#include "openmp-core.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nodescope-interval.h"
#include "nodescope.h"

#define MOST 16

struct call {
    uint32_t function;
    uint64_t number; /* 0: every call */
    uint64_t seen;
};

struct between {
    struct call from, to;
    char name[160];
};

static struct between all[MOST];
static uint32_t count;
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* Intervals that the thread has begun, a bit for each. */
static __thread uint32_t begun;

/* Reads a CALL that ends before `end`; whether it is one. */
static int read_call(const char *text, const char *end, struct call *call) {
    static const struct {
        const char *name;
        uint32_t function;
    } functions[] = {
#define FUNCTION(NAME, NUMBER) {"MPI_" #NAME, NUMBER},
        NODESCOPE_MPI_FUNCTIONS(FUNCTION)
#undef FUNCTION
    };
    const char *colon = memchr(text, ':', end - text), *name_end = colon ? colon : end;
    size_t length = name_end - text;
    if (colon) {
        char *rest;
        call->number = strtoull(colon + 1, &rest, 10);
        if (rest != end || !call->number)
            return 0;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strlen(functions[i].name) == length && !memcmp(functions[i].name, text, length)) {
            call->function = functions[i].function;
            return 1;
        }
    return 0;
}

static void read_intervals(void) {
    const char *at = getenv("NODESCOPE_OPENMP_INTERVALS");
    while (at && *at) {
        const char *end = strchrnul(at, ','), *dots = strstr(at, "..");
        size_t length = end - at;
        struct between *next = &all[count];
        if (count == MOST || length >= sizeof next->name || !dots || dots > end || !read_call(at, dots, &next->from) ||
            !read_call(dots + 2, end, &next->to)) {
            fprintf(stderr, "nodescope: the OpenMP tracer has no interval %.*s: name up to %d as CALL..CALL, such as MPI_Barrier:1..MPI_Barrier:2\n",
                    (int)length, at, MOST);
            if (count < MOST)
                memset(next, 0, sizeof *next);
        } else {
            memcpy(next->name, at, length);
            count++;
        }
        at = *end ? end + 1 : end;
    }
}

/* Counts a call; whether it is the one that was named. */
static int is_named(struct call *call, uint32_t function) {
    if (call->function != function)
        return 0;
    uint64_t number = __atomic_add_fetch(&call->seen, 1, __ATOMIC_RELAXED);
    return !call->number || call->number == number;
}

/* The MPI tracer calls this when a function of the program has returned. */
__attribute__((visibility("default"))) void nodescope_mpi_call_hook(uint32_t function) {
    if (!tracing)
        return;
    pthread_once(&once, read_intervals);
    uint32_t ends = 0, begins = 0;
    for (uint32_t i = 0; i < count; i++) {
        ends |= (uint32_t)is_named(&all[i].to, function) << i;
        begins |= (uint32_t)is_named(&all[i].from, function) << i;
    }
    ends &= begun;
    /* Where intervals begin at the same call, the later ones of the list are within the earlier ones. */
    for (uint32_t i = count; i-- > 0;)
        if (ends >> i & 1 && interval_is_open(all[i].name))
            nodescope_interval_end_hook(all[i].name);
    begun &= ~ends;
    for (uint32_t i = 0; i < count; i++) {
        if (begun >> i & 1 && !interval_is_open(all[i].name)) {
            fprintf(stderr, "nodescope: interval %s ended before its last call, with an interval around it: let intervals nest\n", all[i].name);
            begun &= ~(1u << i);
        }
        if (begins >> i & 1 && !(begun >> i & 1)) {
            nodescope_interval_begin_hook(all[i].name);
            begun |= (uint32_t)interval_is_open(all[i].name) << i;
        }
    }
}
