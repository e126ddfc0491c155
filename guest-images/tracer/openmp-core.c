/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "openmp-core.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "mpi-log.h"

/* How a frame waits. */
enum mode { BODY, WAITS, AFTER };

#define INTERVALS 4096

int tracing;
int by_ompt;
const char *runtime_name = "none";
uint32_t peak_threads;
struct thread *all_threads;

static uint32_t active_threads, thread_count;
static struct thread *spare_threads;
static pthread_mutex_t thread_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t thread_key;
static __thread struct thread *me __attribute__((tls_model("initial-exec")));

static void out_of_memory(void) {
    fprintf(stderr, "nodescope: the OpenMP tracer stops this program: out of memory\n");
    _exit(127);
}

static void *zeroed(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (!memory)
        out_of_memory();
    return memory;
}

/* ---- tables ---- */

static size_t mix(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t hash = (a * 0x9e3779b97f4a7c15ull ^ b) * 0xff51afd7ed558ccdull ^ c;
    hash *= 0xc4ceb9fe1a85ec53ull;
    return hash ^ hash >> 32;
}

static size_t event_hash(const struct event *event) {
    return mix(event->address, event->region, (uint64_t)event->interval << 8 | event->kind);
}

static struct event *find_event(struct thread *t, uint32_t interval, uintptr_t region, enum kind kind, uintptr_t address) {
    struct event key = {.interval = interval, .kind = kind, .region = region, .address = address}, *event;
    size_t hash = event_hash(&key);
    for (event = t->events[hash & (t->event_room - 1)]; event; event = event->next)
        if (event->address == address && event->region == region && event->kind == (uint32_t)kind && event->interval == interval)
            return event;
    if (t->event_count == t->event_room) {
        /* Whoever holds an event keeps it: events do not move, only the table does. */
        struct event **larger = zeroed(2 * t->event_room, sizeof *larger);
        for (uint32_t i = 0; i < t->event_room; i++) {
            for (struct event *next, *old = t->events[i]; old; old = next) {
                next = old->next;
                size_t at = event_hash(old) & (2 * t->event_room - 1);
                old->next = larger[at];
                larger[at] = old;
            }
        }
        free(t->events);
        t->events = larger;
        t->event_room *= 2;
    }
    event = zeroed(1, sizeof *event);
    *event = key;
    event->next = t->events[hash & (t->event_room - 1)];
    t->events[hash & (t->event_room - 1)] = event;
    t->event_count++;
    return event;
}

static struct cell *find_cell(struct thread *t, uint32_t interval, uintptr_t region) {
    size_t hash = mix(region, interval, 1);
    struct cell *cell;
    for (cell = t->cells[hash & (t->cell_room - 1)]; cell; cell = cell->next)
        if (cell->region == region && cell->interval == interval)
            return cell;
    if (t->cell_count == t->cell_room) {
        struct cell **larger = zeroed(2 * t->cell_room, sizeof *larger);
        for (uint32_t i = 0; i < t->cell_room; i++) {
            for (struct cell *next, *old = t->cells[i]; old; old = next) {
                next = old->next;
                size_t at = mix(old->region, old->interval, 1) & (2 * t->cell_room - 1);
                old->next = larger[at];
                larger[at] = old;
            }
        }
        free(t->cells);
        t->cells = larger;
        t->cell_room *= 2;
    }
    cell = zeroed(1, sizeof *cell);
    cell->interval = interval;
    cell->region = region;
    cell->next = t->cells[hash & (t->cell_room - 1)];
    t->cells[hash & (t->cell_room - 1)] = cell;
    t->cell_count++;
    return cell;
}

/* ---- threads ---- */

static inline int is_wait(uint32_t state) {
    return state >= WAIT_BARRIER;
}

/* The time since the last change belongs to the thread's state. */
static inline void charge(struct thread *t, uint64_t now) {
    /* Clocks of processors may differ by a few ticks. */
    uint64_t since = now > t->last ? now - t->last : 0;
    t->cell->ticks[t->state] += since;
    if (is_wait(t->state))
        t->waited += since;
    t->last += since;
}

static void add_active(void) {
    uint32_t active = __atomic_add_fetch(&active_threads, 1, __ATOMIC_RELAXED), peak = __atomic_load_n(&peak_threads, __ATOMIC_RELAXED);
    while (active > peak && !__atomic_compare_exchange_n(&peak_threads, &peak, active, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* A thread that ends leaves its statistics to the record, and its place to the next new thread: programs with nested regions make threads for
 * each of the regions. */
static void thread_ends(void *data) {
    struct thread *t = data;
    if (t->root) {
        charge(t, log_now());
        __atomic_sub_fetch(&active_threads, 1, __ATOMIC_RELAXED);
    }
    me = NULL;
    pthread_mutex_lock(&thread_lock);
    t->spare = spare_threads;
    spare_threads = t;
    pthread_mutex_unlock(&thread_lock);
}

struct thread *self(void) {
    if (__builtin_expect(me != NULL, 1))
        return me;
    pthread_mutex_lock(&thread_lock);
    struct thread *t = spare_threads;
    if (t) {
        spare_threads = t->spare;
    } else {
        t = zeroed(1, sizeof *t);
        t->id = thread_count++;
        t->event_room = t->cell_room = 16;
        t->events = zeroed(t->event_room, sizeof *t->events);
        t->cells = zeroed(t->cell_room, sizeof *t->cells);
        t->room = 32;
        t->frames = zeroed(t->room, sizeof *t->frames);
        t->next = all_threads;
        __atomic_store_n(&all_threads, t, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&thread_lock);
    t->tid = syscall(SYS_gettid);
    t->root = 0;
    t->depth = t->shares = t->interval = t->state = 0;
    t->waited = 0;
    t->region = t->asked_threads = 0;
    t->team = NULL;
    t->parked = NULL;
    t->loop = t->just_ended = NULL;
    t->last = log_now();
    if (!t->used)
        t->first = t->last;
    t->used = 1;
    t->cell = find_cell(t, 0, 0);
    pthread_setspecific(thread_key, t);
    return me = t;
}

/* The thread, if it is in a region or starts one. */
static struct thread *root(void) {
    struct thread *t = self();
    if (!t->team && !t->parked && !t->root) {
        t->root = 1;
        add_active();
        t->last = log_now();
    }
    return t;
}

static void child(void) {
    /* The child of a fork has one thread and no statistics. */
    tracing = 0;
}

__attribute__((constructor)) static void start(void) {
    record_open();
    if (!tracing)
        return;
    if (pthread_key_create(&thread_key, thread_ends)) {
        fprintf(stderr, "nodescope: the OpenMP tracer is off: no key for the data of threads is left\n");
        tracing = 0;
        return;
    }
    pthread_atfork(NULL, NULL, child);
    root();
}

__attribute__((destructor)) static void finish(void) {
    if (!tracing)
        return;
    if (me && me->cell && me->last && (me->root || me->team))
        charge(me, log_now());
    record_write(1);
    tracing = 0;
}

/* ---- frames ---- */

static struct frame *push(struct thread *t, enum kind kind, uintptr_t address, struct event *event, uint64_t now) {
    if (t->depth == t->room) {
        t->room *= 2;
        t->frames = realloc(t->frames, t->room * sizeof *t->frames);
        if (!t->frames)
            out_of_memory();
    }
    struct frame *frame = &t->frames[t->depth++];
    *frame = (struct frame){.event = event,
                            .loop = t->loop,
                            .cell = t->cell,
                            .start = now,
                            .address = address,
                            .interval = t->interval,
                            .kind = kind,
                            .state = t->state,
                            .shares = t->shares};
    return frame;
}

static struct frame *top(struct thread *t) {
    return t->depth ? &t->frames[t->depth - 1] : NULL;
}

static void count(struct event *event, uint64_t start) {
    if (!event->count++)
        event->first = start;
}

static void lasted(struct event *event, uint64_t duration) {
    event->total += duration;
    if (duration > event->longest)
        event->longest = duration;
}

/* Leaves the top frame: the time in it is nested in the frame below. */
static void pop(struct thread *t, uint64_t now, uint64_t waited) {
    struct frame *frame = top(t);
    uint64_t duration = now - frame->start;
    t->state = frame->state;
    t->loop = frame->loop;
    t->depth--;
    struct frame *below = top(t);
    if (below) {
        below->inner += duration;
        below->waited += waited;
    }
}

static int is_share(uint32_t kind) {
    return kind == LOOP || kind == SECTIONS || kind == SINGLE || kind == WORKSHARE || kind == TASKLOOP;
}

/* Begins a stretch of code that may hold a loop whose sharing is inlined. */
static void open_implied(struct thread *t, uint64_t now) {
    push(t, LOOP, 0, NULL, now);
    t->state = SHARED;
}

/*
 * Ends the inlined construct that the thread is in, if any, and returns its statistics. Compilers ask for the numbers of threads once in a function
 * (the answer does not change there), for all of the function's loops. Later loops are known by the barriers at their ends: code that
 * such a barrier ends counts as a loop, with the barrier's place. Other code behind the first loop counts as shared, but as no construct.
 */
static struct event *close_inlined(struct thread *t, uint64_t now, uintptr_t barrier) {
    struct frame *frame = top(t);
    struct event *event = NULL;
    if (!frame || frame->mode != BODY || frame->event || !is_share(frame->kind))
        return NULL;
    uintptr_t address = frame->address ? frame->address : barrier;
    if (address) {
        event = find_event(t, t->interval, t->region, frame->kind, address);
        count(event, frame->start);
        lasted(event, now - frame->start);
        event->waited += frame->waited;
        event->schedule = frame->kind != LOOP ? NO_SCHEDULE : frame->address ? STATIC : STATIC_OR_NONE;
    }
    pop(t, now, frame->waited);
    return event;
}

static void reopen(struct thread *t, uint64_t now) {
    if (t->shares && t->region && (!t->depth || top(t)->kind == PARALLEL))
        open_implied(t, now);
}

/* ---- regions ---- */

void region_begin(struct team *team, uintptr_t site, struct slot *slots, uint32_t capacity) {
    struct thread *t = root();
    uint64_t now = log_now();
    charge(t, now);
    t->just_ended = NULL;
    team->site = site;
    team->begin = now;
    team->primary = t;
    team->interval = t->interval;
    team->capacity = capacity;
    team->entered = 0;
    team->slots = slots;
    team->outer = t->team;
    struct event *event = find_event(t, t->interval, t->region, PARALLEL, site);
    struct frame *frame = push(t, PARALLEL, site, event, now);
    frame->outer_waited = t->waited;
    count(event, now);
    t->cell = find_cell(t, t->interval, site);
    /* Making the team is the primary thread's work. */
    t->state = PRIMARY;
}

static uintptr_t region_of(struct team *team) {
    return team ? team->site : 0;
}

void region_enter(struct team *team, uint32_t number) {
    struct thread *t = self();
    int primary = t == team->primary;
    if (!primary)
        add_active();
    uint64_t now = log_now();
    if (!primary) {
        t->depth = 0;
        t->interval = team->interval;
        t->cell = find_cell(t, team->interval, team->site);
        t->state = START;
        t->last = team->begin;
        t->parked = NULL;
    }
    if (!primary || !team->outer)
        t->number = number;
    charge(t, now);
    t->team = team;
    t->region = team->site;
    t->waited = now > team->begin ? now - team->begin : 0;
    t->shares = 0;
    t->asked_threads = 0;
    t->state = primary ? PRIMARY : REPLICATED;
    t->just_ended = NULL;
    __atomic_add_fetch(&team->entered, 1, __ATOMIC_RELAXED);
    if (number < team->capacity)
        team->slots[number].thread = t;
    if (!primary) {
        struct frame *frame = push(t, PARALLEL, team->site, find_event(t, team->interval, region_of(team->outer), PARALLEL, team->site), now);
        frame->start = team->begin;
        count(frame->event, team->begin);
    }
    if (team->kind) {
        share_begin(team->kind, team->site, team->schedule, team->chunk, team->step);
    }
}

/* The thread is done with the region's code; it waits, and perhaps executes tasks, until the region ends. */
void region_leave(struct team *team, uint32_t number) {
    struct thread *t = self();
    uint64_t now = log_now();
    struct event *ended = t->just_ended;
    charge(t, now);
    int shares = t->depth && top(t)->kind == LOOP && !top(t)->event && !top(t)->address;
    struct event *inlined = close_inlined(t, now, 0);
    if (inlined)
        ended = inlined;
    /* Constructs that a library or a cancellation has left open. */
    while (t->depth && top(t)->kind != PARALLEL)
        pop(t, now, 0);
    struct event *own = t->depth ? top(t)->event : NULL;
    if (number < team->capacity) {
        struct slot *slot = &team->slots[number];
        slot->thread = t;
        slot->cell = t->cell;
        slot->state = ended || shares ? WAIT_DESYNC : WAIT_BARRIER;
        slot->event = ended ? ended : own;
        slot->waited = t->waited;
        slot->end = now;
        t->parked = slot;
    }
    t->just_ended = NULL;
    if (t != team->primary) {
        if (own)
            lasted(own, now - top(t)->start);
        t->depth = 0;
    }
}

void region_end(struct team *team) {
    struct thread *t = team->primary;
    uint64_t now = log_now(), least = UINT64_MAX, sum = 0;
    uint32_t threads = 0;
    for (uint32_t i = 0; i < team->capacity; i++) {
        struct slot *slot = &team->slots[i];
        if (!slot->thread || !slot->cell)
            continue;
        uint64_t waits = now > slot->end ? now - slot->end : 0;
        /* The thread may already be another one's, which began when this one had ended. */
        __atomic_add_fetch(&slot->cell->ticks[slot->state], waits, __ATOMIC_RELAXED);
        if (slot->event)
            __atomic_add_fetch(&slot->event->ended, waits, __ATOMIC_RELAXED);
        uint64_t waited = slot->waited + waits;
        least = waited < least ? waited : least;
        sum += waited;
        threads++;
    }
    if (team->entered > 1)
        __atomic_sub_fetch(&active_threads, team->entered - 1, __ATOMIC_RELAXED);
    if (threads) {
        /* Of the time that threads of the region wait, TALP calls what all wait scheduling, and the rest imbalance. */
        struct cell *cell = find_cell(t, team->interval, team->site);
        cell->scheduling += least * threads;
        cell->imbalance += sum - least * threads;
    }
    while (t->depth && top(t)->kind != PARALLEL)
        pop(t, now, 0);
    t->parked = NULL;
    t->team = team->outer;
    t->region = region_of(team->outer);
    t->last = now;
    t->just_ended = NULL;
    if (t->depth) {
        struct frame *frame = top(t);
        lasted(frame->event, now - frame->start);
        t->cell = frame->cell;
        t->interval = frame->interval;
        t->shares = frame->shares;
        t->waited = frame->outer_waited;
        pop(t, now, 0);
    }
    if (!t->team)
        record_refresh(now);
}

/* ---- constructs ---- */

/* The thread, brought up to date, if a construct of it is to be counted. */
static struct thread *at_event(uint64_t *now) {
    struct thread *t = root();
    *now = log_now();
    if (!t->parked)
        charge(t, *now);
    return t;
}

void share_begin(enum kind kind, uintptr_t site, enum schedule schedule, int64_t chunk, int64_t step) {
    uint64_t now;
    struct thread *t = at_event(&now);
    close_inlined(t, now, 0);
    struct event *event = find_event(t, t->interval, t->region, kind, site);
    push(t, kind, site, event, now);
    count(event, now);
    t->just_ended = NULL;
    event->schedule = schedule;
    event->chunk = chunk;
    t->state = SHARED;
    if (kind == LOOP)
        t->loop = event;
    t->step = step;
}

void share_chunk(int64_t distance) {
    struct thread *t = me;
    if (!t || !t->loop)
        return;
    t->loop->chunks++;
    t->loop->iterations += t->step == 1 || !t->step ? distance : distance / t->step;
}

void share_end(enum kind kind) {
    uint64_t now;
    struct thread *t = at_event(&now);
    while (t->depth && top(t)->kind != kind && top(t)->kind != PARALLEL)
        pop(t, now, 0);
    if (!t->depth || top(t)->kind != kind || !top(t)->event)
        return;
    struct frame frame = *top(t);
    lasted(frame.event, now - frame.start);
    frame.event->waited += frame.waited;
    pop(t, now, frame.waited);
    t->just_ended = frame.event;
    reopen(t, now);
}

int share_wait(void) {
    uint64_t now;
    struct thread *t = at_event(&now);
    struct event *event = t->just_ended;
    close_inlined(t, now, 0);
    if (!event)
        return 0;
    push(t, event->kind, event->address, event, now)->mode = AFTER;
    t->state = WAIT_DESYNC;
    return 1;
}

void share_waited(void) {
    uint64_t now;
    struct thread *t = at_event(&now);
    if (!t->depth || top(t)->mode != AFTER)
        return;
    struct frame *frame = top(t);
    uint64_t waited = now - frame->start - frame->inner;
    frame->event->ended += waited;
    pop(t, now, waited);
    t->just_ended = NULL;
    reopen(t, now);
}

void share_inlined(enum kind kind, uintptr_t site, int works) {
    uint64_t now;
    struct thread *t = at_event(&now);
    if (!t->region || (t->depth && top(t)->kind != PARALLEL && (top(t)->event || top(t)->mode != BODY)))
        return;
    close_inlined(t, now, 0);
    if (kind == LOOP)
        t->shares = 1;
    push(t, kind, site, NULL, now);
    if (works)
        t->state = SHARED;
}

void barrier_begin(uintptr_t site) {
    uint64_t now;
    struct thread *t = at_event(&now);
    struct event *ended = close_inlined(t, now, t->shares ? site : 0);
    t->just_ended = NULL;
    if (ended) {
        push(t, ended->kind, ended->address, ended, now)->mode = AFTER;
        t->state = WAIT_DESYNC;
        return;
    }
    struct event *event = find_event(t, t->interval, t->region, BARRIER, site);
    push(t, BARRIER, site, event, now)->mode = WAITS;
    count(event, now);
    t->state = WAIT_BARRIER;
}

void barrier_end(void) {
    uint64_t now;
    struct thread *t = at_event(&now);
    if (!t->depth)
        return;
    if (top(t)->mode == AFTER) {
        share_waited();
    } else if (top(t)->kind == BARRIER) {
        struct frame *frame = top(t);
        uint64_t waited = now - frame->start - frame->inner;
        lasted(frame->event, now - frame->start);
        frame->event->waited += waited;
        pop(t, now, waited);
        reopen(t, now);
    }
}

static uint32_t waiting_state(enum kind kind) {
    switch (kind) {
    case LOCK: return WAIT_LOCK;
    case ORDERED: return WAIT_ORDERED;
    case FLUSH: return WAIT_FLUSH;
    case TASKWAIT:
    case TASKGROUP: return WAIT_TASK;
    default: return WAIT_CRITICAL;
    }
}

void wait_begin(enum kind kind, uintptr_t site) {
    uint64_t now;
    struct thread *t = at_event(&now);
    struct event *event = find_event(t, t->interval, t->region, kind, site);
    push(t, kind, site, event, now)->mode = WAITS;
    count(event, now);
    t->state = waiting_state(kind);
}

void wait_over(enum kind kind) {
    uint64_t now;
    struct thread *t = at_event(&now);
    struct frame *frame = top(t);
    if (!frame || frame->kind != kind || frame->mode != WAITS)
        return;
    uint64_t waited = now - frame->start - frame->inner;
    frame->event->waited += waited;
    frame->waited += waited;
    frame->mode = BODY;
    t->state = frame->state;
}

void wait_end(enum kind kind) {
    uint64_t now;
    struct thread *t = at_event(&now);
    struct frame *frame = top(t);
    if (!frame || frame->kind != kind || frame->mode != WAITS)
        return;
    uint64_t waited = now - frame->start - frame->inner;
    lasted(frame->event, now - frame->start);
    frame->event->waited += waited;
    pop(t, now, waited);
}

void construct_begin(enum kind kind, uintptr_t site) {
    uint64_t now;
    struct thread *t = at_event(&now);
    struct event *event = find_event(t, t->interval, t->region, kind, site);
    push(t, kind, site, event, now);
    count(event, now);
}

void construct_end(enum kind kind) {
    uint64_t now;
    struct thread *t = at_event(&now);
    struct frame *frame = top(t);
    if (!frame || frame->kind != kind || !frame->event)
        return;
    lasted(frame->event, now - frame->start);
    pop(t, now, frame->waited);
}

void construct_count(enum kind kind, uintptr_t site) {
    struct thread *t = root();
    count(find_event(t, t->interval, t->region, kind, site), log_now());
}

/* A thread that waits for the end of its region executes tasks of the region, too. */
void task_begin(uintptr_t site) {
    struct thread *t = root();
    uint64_t now = log_now();
    struct slot *slot = t->parked;
    if (slot) {
        uint64_t waits = now > slot->end ? now - slot->end : 0;
        t->cell = slot->cell;
        t->cell->ticks[slot->state] += waits;
        slot->waited += waits;
        if (slot->event)
            slot->event->ended += waits;
        t->last = now;
        t->parked = NULL;
        t->waited = slot->waited;
    } else {
        charge(t, now);
    }
    struct event *event = find_event(t, t->interval, t->region, EXPLICIT_TASK, site);
    struct frame *frame = push(t, EXPLICIT_TASK, site, event, now);
    /* The slot, where the thread goes on waiting. */
    frame->outer_waited = (uintptr_t)slot;
    count(event, now);
    t->state = TASK;
}

void task_end(void) {
    struct thread *t = self();
    uint64_t now = log_now();
    charge(t, now);
    while (t->depth && top(t)->kind != EXPLICIT_TASK && top(t)->kind != PARALLEL)
        pop(t, now, 0);
    if (!t->depth || top(t)->kind != EXPLICIT_TASK)
        return;
    struct frame *frame = top(t);
    struct slot *slot = (struct slot *)(uintptr_t)frame->outer_waited;
    lasted(frame->event, now - frame->start);
    frame->event->waited += frame->waited;
    pop(t, now, frame->waited);
    if (slot) {
        slot->end = now;
        slot->waited = t->waited;
        t->parked = slot;
    }
}

/* ---- intervals ---- */

static pthread_mutex_t interval_lock = PTHREAD_MUTEX_INITIALIZER;
static struct interval intervals[INTERVALS] = {{0, "whole program"}};
static struct interval_time interval_times[INTERVALS];
static uint32_t known_intervals = 1;

struct open_interval {
    uint32_t id;
    uint64_t start;
};
/* Intervals that the thread is in, the outermost first. */
static __thread struct open_interval opened[256];
static __thread uint32_t opened_count;

uint32_t interval_count(void) {
    return __atomic_load_n(&known_intervals, __ATOMIC_ACQUIRE);
}

const struct interval *interval_at(uint32_t id) {
    return &intervals[id];
}

struct interval_time interval_time_at(uint32_t id, uint64_t now) {
    struct interval_time time = interval_times[id];
    /* The record is written by a thread that may be in intervals. */
    for (uint32_t i = 0; i < opened_count; i++)
        if (opened[i].id == id) {
            uint64_t duration = now - opened[i].start;
            if (!time.count++)
                time.first = opened[i].start;
            time.total += duration;
            time.longest = duration > time.longest ? duration : time.longest;
        }
    return time;
}

static uint32_t find_interval(uint32_t parent, const char *name) {
    pthread_mutex_lock(&interval_lock);
    uint32_t id;
    for (id = 1; id < known_intervals; id++)
        if (intervals[id].parent == parent && !strncmp(intervals[id].name, name, sizeof intervals[id].name - 1))
            break;
    if (id == known_intervals) {
        if (id == INTERVALS) {
            fprintf(stderr, "nodescope: the OpenMP tracer keeps %d intervals; interval %s counts to the one around it\n", INTERVALS, name);
            id = parent;
        } else {
            intervals[id].parent = parent;
            snprintf(intervals[id].name, sizeof intervals[id].name, "%s", name);
            __atomic_store_n(&known_intervals, id + 1, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&interval_lock);
    return id;
}

static void switch_interval(struct thread *t, uint32_t interval) {
    t->interval = interval;
    t->cell = find_cell(t, interval, t->region);
}

/* Intervals belong to threads that start regions, outside of regions or in nested ones; a worker's code is in the interval of its region. */
static struct thread *interval_thread(const char *what, const char *name) {
    static int told;
    if (!tracing)
        return NULL;
    struct thread *t = root();
    if (!t->team)
        return t;
    if (!__atomic_exchange_n(&told, 1, __ATOMIC_RELAXED))
        fprintf(stderr, "nodescope: the OpenMP tracer takes no %s of interval %s within a parallel region: name intervals outside of regions\n",
                what, name);
    return NULL;
}

__attribute__((visibility("default"))) void nodescope_interval_begin_hook(const char *name) {
    struct thread *t = interval_thread("begin", name);
    if (!t)
        return;
    uint64_t now = log_now();
    charge(t, now);
    if (opened_count == sizeof opened / sizeof *opened) {
        fprintf(stderr, "nodescope: the OpenMP tracer takes no interval %s: %u intervals are open\n", name, opened_count);
        return;
    }
    uint32_t id = find_interval(t->interval, name);
    opened[opened_count++] = (struct open_interval){.id = id, .start = now};
    switch_interval(t, id);
}

/* Ends the innermost interval of this name, and with it those that were begun within and not ended. */
__attribute__((visibility("default"))) void nodescope_interval_end_hook(const char *name) {
    struct thread *t = interval_thread("end", name);
    if (!t)
        return;
    uint64_t now = log_now();
    charge(t, now);
    uint32_t at = opened_count;
    while (at && strncmp(intervals[opened[at - 1].id].name, name, sizeof intervals[0].name - 1))
        at--;
    if (!at) {
        fprintf(stderr, "nodescope: interval %s ends without having begun\n", name);
        return;
    }
    while (opened_count >= at) {
        struct open_interval *open = &opened[--opened_count];
        struct interval_time *time = &interval_times[open->id];
        pthread_mutex_lock(&interval_lock);
        uint64_t duration = now - open->start;
        if (!time->count++)
            time->first = open->start;
        time->total += duration;
        time->longest = duration > time->longest ? duration : time->longest;
        pthread_mutex_unlock(&interval_lock);
    }
    switch_interval(t, opened_count ? opened[opened_count - 1].id : 0);
}

int interval_is_open(const char *name) {
    for (uint32_t i = 0; i < opened_count; i++)
        if (!strncmp(intervals[opened[i].id].name, name, sizeof intervals[0].name - 1))
            return 1;
    return 0;
}

static void with_c_name(const char *name, size_t length, void (*hook)(const char *)) {
    char copy[sizeof intervals[0].name];
    while (length && name[length - 1] == ' ')
        length--;
    length = length < sizeof copy - 1 ? length : sizeof copy - 1;
    memcpy(copy, name, length);
    copy[length] = 0;
    hook(copy);
}

/* Fortran passes the length behind the other arguments. */
__attribute__((visibility("default"))) void nodescope_interval_begin_(const char *name, size_t length) {
    with_c_name(name, length, nodescope_interval_begin_hook);
}

__attribute__((visibility("default"))) void nodescope_interval_end_(const char *name, size_t length) {
    with_c_name(name, length, nodescope_interval_end_hook);
}
