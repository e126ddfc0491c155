/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The log of a process on real hardware, where no host sees its hypercalls. Each hypercall is written, with the time, to a file.
 *
 * NODESCOPE_TRACE_LOG=FOLDER in the environment turns the log on; the file is FOLDER/HOST-PID.calls. `nodescope trace` makes a trace of the
 * files. All is little-endian. A file begins with struct nodescope_log_header; frames follow, each a struct nodescope_log_frame and its
 * payload. The second argument is the payload's size (no payload: MPI_ENTER, MPI_POLL_FAILED). Zeros pad to a multiple of 8. The file is
 * mapped, so that what was logged survives whatever ends the process; a frame of size 0 ends it.
 */
#ifndef NODESCOPE_MPI_LOG_H
#define NODESCOPE_MPI_LOG_H

#include <stdint.h>
#include <time.h>
#include <x86intrin.h>

#define NODESCOPE_LOG_MAGIC "NSCALLS\n"
#define NODESCOPE_LOG_VERSION 1u

/* One moment on three clocks. */
struct nodescope_log_moment {
    uint64_t ticks;     /* of the log's clock */
    uint64_t monotonic; /* nanoseconds of CLOCK_MONOTONIC */
    uint64_t real;      /* nanoseconds since 1970 */
};

struct nodescope_log_header {
    char magic[8];
    uint32_t version;
    uint32_t processors; /* of the node */
    uint64_t frequency;  /* hertz, of the processor; 0 unknown */
    struct nodescope_log_moment first, last; /* the last is brought up to date now and then, and at the end */
};

struct nodescope_log_frame {
    uint32_t size; /* of frame and payload, a multiple of 8; written last */
    uint32_t operation;
    uint64_t inner; /* ticks: when the MPI function itself began, or had returned */
    uint64_t outer; /* when the tracer began before it, or is done after it */
    uint64_t arguments[3]; /* as in RSI, RDI and R8; addresses are 0 and mean the payload */
};

extern int log_on;

/* Opens the log, if the environment asks for one. */
void log_open(void);
void log_close(void);
/* The child of a fork has no log. */
void log_leave(void);
/* MPI_ENTER: the outer time is when the call's wrapper began. MPI_EVENT, MPI_POLL_FAILED: `inner` is when the MPI function had returned, or
 * 0 for now. */
void log_put(uint32_t operation, uint64_t a0, uint64_t a1, uint64_t a2, const void *payload, uint64_t time);

/* The time-stamp counter, where the kernel's own clock relies on it (it is then constant and the same on all processors; SDM vol. 3,
 * "Time-Stamp Counter"), else CLOCK_MONOTONIC, which takes several times as long to read. */
extern int log_clock_is_tsc;

static inline uint64_t log_now(void) {
    if (__builtin_expect(log_clock_is_tsc, 1))
        return __rdtsc();
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

#endif
