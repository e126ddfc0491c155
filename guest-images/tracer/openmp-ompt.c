/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The callbacks of OMPT, the interface for tools of libomp and other runtimes. A runtime asks for a tool by ompt_start_tool. From then on OMPT
 * feeds the statistics, and the interposed entry points of libgomp, which libomp provides too, only forward.
 */
#define _GNU_SOURCE
#include "openmp-ompt.h"

#include <stdlib.h>
#include <string.h>

#include "openmp-core.h"

/* A team whose memory goes back when the region has ended. Threads may hear of the end later, and then are not told the team any more. */
struct ompt_team {
    struct team team;
    int left; /* the primary thread is at the region's end */
    struct slot slots[];
};

static __thread struct ompt_team *own __attribute__((tls_model("initial-exec")));
static __thread uint32_t own_number __attribute__((tls_model("initial-exec")));
/* The team around a nested one, of its primary thread. */
struct outer {
    struct ompt_team *team;
    uint32_t number;
};

static void parallel_begin(ompt_data_t *task, const void *frame, ompt_data_t *parallel, unsigned threads, int flags, const void *site) {
    (void)task, (void)frame, (void)flags;
    struct ompt_team *team = calloc(1, sizeof *team + threads * sizeof *team->slots + sizeof(struct outer));
    parallel->ptr = team;
    if (!tracing || !team)
        return;
    struct outer outer = {own, own_number};
    memcpy(&team->slots[threads], &outer, sizeof outer);
    region_begin(&team->team, (uintptr_t)site, team->slots, threads);
}

static void implicit_task(int endpoint, ompt_data_t *parallel, ompt_data_t *task, unsigned threads, unsigned number, int flags) {
    (void)task, (void)threads;
    if (!tracing || flags & ompt_task_initial || endpoint != ompt_scope_begin || !parallel || !parallel->ptr)
        return;
    own = parallel->ptr;
    own_number = number;
    region_enter(&own->team, number);
}

static void parallel_end(ompt_data_t *parallel, ompt_data_t *task, int flags, const void *site) {
    (void)task, (void)flags, (void)site;
    struct ompt_team *team = parallel ? parallel->ptr : NULL;
    if (!team)
        return;
    if (tracing) {
        /* A region of one thread has no barrier at its end. */
        if (!team->left)
            region_leave(&team->team, own_number);
        region_end(&team->team);
        struct outer outer;
        memcpy(&outer, &team->slots[team->team.capacity], sizeof outer);
        own = outer.team;
        own_number = outer.number;
    }
    free(team);
}

/* The barrier at a region's end is known as such from OpenMP 5.1 on; before, by its place: the region's, and none in other threads. */
static int ends_region(int kind, const void *site) {
    if (kind == ompt_sync_region_barrier_implicit_parallel)
        return 1;
    return kind == ompt_sync_region_barrier_implicit && own && (!site || (uintptr_t)site == own->team.site);
}

static void leave(void) {
    struct ompt_team *team = own;
    if (team->team.primary == self())
        team->left = 1;
    else
        own = NULL; /* the team's memory goes back before this thread hears of the end */
    region_leave(&team->team, own_number);
}

static void sync_region(int kind, int endpoint, ompt_data_t *parallel, ompt_data_t *task, const void *site) {
    (void)parallel, (void)task;
    if (!tracing)
        return;
    int begins = endpoint == ompt_scope_begin;
    if (kind == ompt_sync_region_taskwait) {
        if (begins)
            wait_begin(TASKWAIT, (uintptr_t)site);
        else
            wait_end(TASKWAIT);
        return;
    }
    int barrier = kind == ompt_sync_region_barrier || kind == ompt_sync_region_barrier_explicit;
    int implicit = kind == ompt_sync_region_barrier_implicit || kind == ompt_sync_region_barrier_implicit_workshare ||
                   kind == ompt_sync_region_barrier_implicit_parallel;
    if (!own || !(barrier || implicit))
        return;
    if (own->left && own->team.primary == self())
        return;
    if (!begins)
        barrier_end();
    else if (implicit && ends_region(kind, site))
        leave();
    else if (!implicit || !share_wait())
        barrier_begin((uintptr_t)site);
}

/* A taskgroup begins long before its end is waited for. */
static void sync_region_wait(int kind, int endpoint, ompt_data_t *parallel, ompt_data_t *task, const void *site) {
    (void)parallel, (void)task;
    if (!tracing || kind != ompt_sync_region_taskgroup)
        return;
    if (endpoint == ompt_scope_begin)
        wait_begin(TASKGROUP, (uintptr_t)site);
    else
        wait_end(TASKGROUP);
}

static enum schedule schedule_of(int type) {
    switch (type) {
    case ompt_work_loop_static: return STATIC;
    case ompt_work_loop_dynamic: return DYNAMIC;
    case ompt_work_loop_guided: return GUIDED;
    default: return UNKNOWN_SCHEDULE;
    }
}

static void work(int type, int endpoint, ompt_data_t *parallel, ompt_data_t *task, uint64_t count, const void *site) {
    (void)parallel, (void)task, (void)count;
    if (!tracing || !own)
        return;
    enum kind kind = LOOP;
    switch (type) {
    case ompt_work_loop:
    case ompt_work_loop_static:
    case ompt_work_loop_dynamic:
    case ompt_work_loop_guided:
    case ompt_work_loop_other: break;
    case ompt_work_sections: kind = SECTIONS; break;
    case ompt_work_single_executor:
    case ompt_work_single_other: kind = SINGLE; break;
    case ompt_work_workshare: kind = WORKSHARE; break;
    case ompt_work_taskloop:
        if (endpoint == ompt_scope_begin)
            construct_begin(TASKLOOP, (uintptr_t)site);
        else
            construct_end(TASKLOOP);
        return;
    default: return;
    }
    if (endpoint == ompt_scope_begin)
        share_begin(kind, (uintptr_t)site, kind == LOOP ? schedule_of(type) : NO_SCHEDULE, 0, 1);
    else
        share_end(kind);
}

static void masked(int endpoint, ompt_data_t *parallel, ompt_data_t *task, const void *site) {
    (void)parallel, (void)task;
    if (!tracing)
        return;
    if (endpoint == ompt_scope_begin)
        construct_begin(MASTER, (uintptr_t)site);
    else
        construct_end(MASTER);
}

/* 0 for what is no wait: tests of locks do not wait. */
static enum kind mutex_kind(int kind) {
    switch (kind) {
    case ompt_mutex_lock:
    case ompt_mutex_nest_lock: return LOCK;
    case ompt_mutex_critical: return CRITICAL;
    case ompt_mutex_atomic: return ATOMIC;
    case ompt_mutex_ordered: return ORDERED;
    default: return 0;
    }
}

static void mutex_acquire(int type, unsigned hint, unsigned implementation, uint64_t id, const void *site) {
    (void)hint, (void)implementation, (void)id;
    enum kind kind = mutex_kind(type);
    if (tracing && kind)
        wait_begin(kind, (uintptr_t)site);
}

/*
 * libomp must not be asked for the end of a critical construct. Up to LLVM 14 at least, __kmpc_end_critical looks up the first thread of the process
 * (kmp_csupport.cpp gives the number 0 for a thread's). It crashes where that thread uses no OpenMP. Interposed functions see the end of critical
 * and ordered constructs. Nothing shows the end of atomic ones, so that only their wait is counted.
 */
static int ends_by_callback;

static void mutex_acquired(int type, uint64_t id, const void *site) {
    (void)id, (void)site;
    enum kind kind = mutex_kind(type);
    if (!tracing || !kind)
        return;
    if (kind == LOCK || (kind == ATOMIC && !ends_by_callback))
        wait_end(kind);
    else
        wait_over(kind);
}

static void mutex_released(int type, uint64_t id, const void *site) {
    (void)id, (void)site;
    enum kind kind = mutex_kind(type);
    if (tracing && kind && kind != LOCK)
        construct_end(kind);
}

#define END_OF(name, kind, parameters, arguments)                                                                              \
    __attribute__((visibility("default"))) void name parameters {                                                              \
        static void(*real) parameters;                                                                                         \
        if (__builtin_expect(!real, 0))                                                                                        \
            real = (void(*) parameters)needed_function(#name);                                                                 \
        real arguments;                                                                                                        \
        if (tracing && by_ompt)                                                                                                \
            construct_end(kind);                                                                                               \
    }
END_OF(__kmpc_end_critical, CRITICAL, (void *location, int32_t thread, void *name), (location, thread, name))
END_OF(__kmpc_end_ordered, ORDERED, (void *location, int32_t thread), (location, thread))

static void flush(ompt_data_t *thread, const void *site) {
    (void)thread;
    if (tracing)
        construct_count(FLUSH, (uintptr_t)site);
}

/* A task's data is the place of the construct; tasks that are not explicit have none. */
static void task_create(ompt_data_t *by, const void *frame, ompt_data_t *task, int flags, int dependences, const void *site) {
    (void)by, (void)frame, (void)dependences;
    if (!tracing || !(flags & ompt_task_explicit))
        return;
    task->ptr = (void *)site;
    construct_count(CREATED_TASK, (uintptr_t)site);
}

/* Tied tasks alone: a task that another thread goes on with counts as the thread's that began the task. */
static void task_schedule(ompt_data_t *before, int status, ompt_data_t *next) {
    if (!tracing)
        return;
    if (status == ompt_task_complete || status == ompt_task_cancel) {
        if (before && before->ptr)
            task_end();
    } else if (status == ompt_task_switch && next && next->ptr) {
        task_begin((uintptr_t)next->ptr);
    }
}

static int initialize(ompt_function_lookup_t lookup, int device, ompt_data_t *tool) {
    (void)device, (void)tool;
    static const struct {
        int event;
        ompt_callback_t function;
    } callbacks[] = {
        {ompt_callback_parallel_begin, (ompt_callback_t)parallel_begin},
        {ompt_callback_parallel_end, (ompt_callback_t)parallel_end},
        {ompt_callback_implicit_task, (ompt_callback_t)implicit_task},
        {ompt_callback_task_create, (ompt_callback_t)task_create},
        {ompt_callback_task_schedule, (ompt_callback_t)task_schedule},
        {ompt_callback_sync_region, (ompt_callback_t)sync_region},
        {ompt_callback_sync_region_wait, (ompt_callback_t)sync_region_wait},
        {ompt_callback_work, (ompt_callback_t)work},
        {ompt_callback_masked, (ompt_callback_t)masked},
        {ompt_callback_mutex_acquire, (ompt_callback_t)mutex_acquire},
        {ompt_callback_mutex_acquired, (ompt_callback_t)mutex_acquired},
        {ompt_callback_flush, (ompt_callback_t)flush},
    };
    ompt_set_callback_t set = (ompt_set_callback_t)lookup("ompt_set_callback");
    if (!set)
        return 0;
    for (size_t i = 0; i < sizeof callbacks / sizeof *callbacks; i++)
        set(callbacks[i].event, callbacks[i].function);
    ends_by_callback = !runtime_function("__kmpc_end_critical");
    if (ends_by_callback)
        set(ompt_callback_mutex_released, (ompt_callback_t)mutex_released);
    return 1;
}

static void finalize(ompt_data_t *tool) {
    (void)tool;
}

__attribute__((visibility("default"))) ompt_start_tool_result_t *ompt_start_tool(unsigned version, const char *runtime) {
    static ompt_start_tool_result_t result = {initialize, finalize, {0}};
    (void)version;
    if (!tracing)
        return NULL;
    runtime_name = strdup(runtime);
    by_ompt = 1;
    return &result;
}
