/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Statistics of OpenMP constructs, kept in the process: for each thread, interval, parallel region and construct one record, so that
 * the statistics do not grow with iterations. The layer below knows no OpenMP runtime: openmp-gomp.c feeds the statistics from the entry points
 * of libgomp, openmp-ompt.c from the callbacks of OMPT.
 *
 * Each moment of a thread, from its start in a parallel region to the region's end, belongs to exactly one state. A thread outside all
 * regions is in the state SERIAL if it starts regions itself.
 */
#ifndef NODESCOPE_OPENMP_CORE_H
#define NODESCOPE_OPENMP_CORE_H

#include <stddef.h>
#include <stdint.h>

/* States of a thread. Numbers are columns of the record: append, never renumber. */
enum state {
    SERIAL,        /* outside all parallel regions, in a thread that starts regions */
    START,         /* from the beginning of a region until the thread runs its code; not in the primary thread */
    PRIMARY,       /* in a region outside work-sharing, in the team's primary thread */
    REPLICATED,    /* likewise in any other thread of the team */
    SHARED,        /* in a work-sharing construct */
    TASK,          /* in an explicit task */
    WAIT_BARRIER,  /* at an explicit barrier, or at the end of a region that ends with no work-sharing construct */
    WAIT_LOCK,     /* for a lock */
    WAIT_CRITICAL, /* for a critical or atomic construct */
    WAIT_ORDERED,  /* for an ordered construct, or for another iteration of a doacross loop */
    WAIT_DESYNC,   /* at the end of a work-sharing construct */
    WAIT_FLUSH,    /* in a flush */
    WAIT_TASK,     /* for tasks, in taskwait and at the end of a taskgroup */
    STATES
};

/* Constructs. Numbers are columns of the record: append, never renumber. */
enum kind {
    PARALLEL = 1,
    LOOP = 2,
    SECTIONS = 3,
    SINGLE = 4,
    WORKSHARE = 5,
    MASTER = 6,
    CRITICAL = 7,
    BARRIER = 8,
    ORDERED = 9,
    FLUSH = 10,
    LOCK = 11,
    ATOMIC = 12,
    EXPLICIT_TASK = 13,
    TASKWAIT = 14,
    TASKGROUP = 15,
    TASKLOOP = 16,
    CREATED_TASK = 17,
    KINDS
};

/* Schedules of loops. Numbers are columns of the record. STATIC_OR_NONE: code before a barrier that may be a loop of static schedule. */
enum schedule { NO_SCHEDULE = 0, STATIC = 1, DYNAMIC = 2, GUIDED = 3, RUNTIME = 4, UNKNOWN_SCHEDULE = 5, STATIC_OR_NONE = 6 };

/* Statistics of a construct in a thread, an interval and a region. Times are ticks of the log's clock. */
struct event {
    uint32_t interval;
    uint32_t kind;
    uintptr_t region;  /* call site of the innermost region around the construct; 0 outside */
    uintptr_t address; /* call site of the construct */
    uint32_t schedule;
    int64_t chunk;   /* as asked for, 0: none */
    uint64_t count;
    uint64_t first;  /* when it first began */
    uint64_t total;  /* durations, with what is nested in the construct */
    uint64_t longest;
    uint64_t waited; /* waiting within: before a lock is had, at a barrier, and in constructs nested in a work-sharing construct */
    uint64_t ended;  /* waiting for other threads at the end of the construct */
    uint64_t iterations, chunks; /* of loops, where the runtime tells */
    struct event *next;
};

/* Times of a thread by state, in an interval and a region. */
struct cell {
    uint32_t interval;
    uintptr_t region;
    uint64_t ticks[STATES];
    uint64_t imbalance, scheduling; /* of regions that this thread has started; see openmp-core.c */
    struct cell *next;
};

/* A thread's part of a team. */
struct slot {
    struct thread *thread;
    struct cell *cell;
    struct event *event; /* that the wait at the region's end belongs to */
    uint64_t end;        /* when the thread was done */
    uint64_t waited;
    uint32_t state;      /* of the wait at the region's end */
};

struct team {
    void (*function)(void *);
    void *data;
    uintptr_t site;
    uint64_t begin;
    struct thread *primary;
    uint32_t interval, capacity, entered;
    uint32_t kind; /* of the work-sharing construct that a combined construct begins with; 0: none */
    uint32_t schedule;
    int64_t chunk, step; /* of the loop variable */
    struct team *outer; /* of the primary thread */
    struct slot *slots;
};

/* A construct that a thread is in. */
struct frame {
    struct event *event;
    struct event *loop;  /* the loop around it, whose chunks are counted */
    struct cell *cell;
    uint64_t start, inner, waited;
    uint64_t outer_waited; /* of a region: the thread's waiting time in the region around it */
    uintptr_t address;
    uint32_t interval;
    uint8_t kind, state, mode, shares;
};

struct thread {
    uint32_t id, number;
    int32_t tid;
    int root, used;
    uint64_t first, last; /* the first event, and the last change of state */
    uint32_t state, interval;
    uintptr_t region;
    struct cell *cell;
    struct team *team;
    struct slot *parked; /* where the thread waits for the region's end */
    struct frame *frames;
    uint32_t depth, room;
    uint64_t waited;
    struct event *loop; /* whose chunks are counted */
    int64_t step;       /* of that loop's variable */
    struct event *just_ended; /* the last work-sharing construct since the last barrier */
    uintptr_t asked_threads; /* where the number of threads was asked for */
    int shares; /* code of this region shares work by thread numbers */
    struct event **events;
    struct cell **cells;
    uint32_t event_count, event_room, cell_count, cell_room;
    struct thread *next, *spare;
};

/* An interval of the user's. */
struct interval {
    uint32_t parent;
    char name[248];
};

struct interval_time {
    uint64_t count, first, total, longest;
};

extern int tracing;
extern int by_ompt; /* OMPT feeds the statistics; interposed functions only forward */
extern const char *runtime_name;
extern uint32_t peak_threads;
extern struct thread *all_threads;

struct thread *self(void);

/* ---- regions ---- */

/* `slots` holds `capacity` slots and is zero. */
void region_begin(struct team *team, uintptr_t site, struct slot *slots, uint32_t capacity);
void region_enter(struct team *team, uint32_t number);
void region_leave(struct team *team, uint32_t number);
void region_end(struct team *team);

/* ---- constructs ---- */

/* A work-sharing construct. Its end is followed by share_wait and share_waited if threads wait for each other there. */
void share_begin(enum kind kind, uintptr_t site, enum schedule schedule, int64_t chunk, int64_t step);
/* Counts a share of a loop, by how far its end is from its start. */
void share_chunk(int64_t distance);
void share_end(enum kind kind);
/* Returns whether there is a construct whose end is waited for. */
int share_wait(void);
void share_waited(void);
/* A construct whose end is not seen: a loop of static schedule, which the compiler inlines, or a single. Where the thread does not work in
 * the construct, its state stays. */
void share_inlined(enum kind kind, uintptr_t site, int works);

void barrier_begin(uintptr_t site);
void barrier_end(void);
/* Waiting of the kinds CRITICAL, ATOMIC, ORDERED, LOCK, FLUSH, TASKWAIT, TASKGROUP. */
void wait_begin(enum kind kind, uintptr_t site);
/* Had it; the construct goes on until construct_end. */
void wait_over(enum kind kind);
/* Had it, and nothing goes on. */
void wait_end(enum kind kind);
/* A construct that changes no state. */
void construct_begin(enum kind kind, uintptr_t site);
void construct_end(enum kind kind);
void construct_count(enum kind kind, uintptr_t site);
void task_begin(uintptr_t site);
void task_end(void);

/* ---- intervals (nodescope-interval.h) ---- */

uint32_t interval_count(void);
const struct interval *interval_at(uint32_t id);
struct interval_time interval_time_at(uint32_t id, uint64_t now);

/* Returns whether the thread is in an interval of this name. */
int interval_is_open(const char *name);

/* ---- the record (openmp-record.c) ---- */

void record_open(void);
/* Writes the record; `complete` if the process ends with it. */
void record_write(int complete);
/* Writes it if the last time is a while ago. Only at moments when no region is under way. */
void record_refresh(uint64_t now);

/* ---- runtimes ---- */

/* The runtime's function of this name; null where there is none. */
void *runtime_function(const char *name);
/* Likewise; ends the program where there is none. */
void *needed_function(const char *name);

#define CALLER ((uintptr_t)__builtin_return_address(0))

#endif
