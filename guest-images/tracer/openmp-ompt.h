/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The part of OMPT that the tracer uses: OpenMP API Specification 5.1, chapter 4 "OMPT Interface" (types in section 4.4, callbacks in
 * section 4.5). Names and numbers are the specification's. libomp's own header omp-tools.h belongs to clang, which building the tracer does not need.
 */
#ifndef NODESCOPE_OPENMP_OMPT_H
#define NODESCOPE_OPENMP_OMPT_H

#include <stdint.h>

typedef union ompt_data_t {
    uint64_t value;
    void *ptr;
} ompt_data_t;

typedef void (*ompt_interface_fn_t)(void);
typedef ompt_interface_fn_t (*ompt_function_lookup_t)(const char *name);
typedef void (*ompt_callback_t)(void);
typedef int (*ompt_set_callback_t)(int event, ompt_callback_t callback);
typedef int (*ompt_initialize_t)(ompt_function_lookup_t lookup, int device, ompt_data_t *tool);
typedef void (*ompt_finalize_t)(ompt_data_t *tool);

typedef struct ompt_start_tool_result_t {
    ompt_initialize_t initialize;
    ompt_finalize_t finalize;
    ompt_data_t tool_data;
} ompt_start_tool_result_t;

enum {
    ompt_callback_parallel_begin = 3,
    ompt_callback_parallel_end = 4,
    ompt_callback_task_create = 5,
    ompt_callback_task_schedule = 6,
    ompt_callback_implicit_task = 7,
    ompt_callback_sync_region_wait = 16,
    ompt_callback_mutex_released = 17,
    ompt_callback_work = 20,
    ompt_callback_masked = 21,
    ompt_callback_sync_region = 23,
    ompt_callback_mutex_acquire = 26,
    ompt_callback_mutex_acquired = 27,
    ompt_callback_flush = 29,
};
enum { ompt_scope_begin = 1, ompt_scope_end = 2 };
enum {
    ompt_sync_region_barrier = 1,
    ompt_sync_region_barrier_implicit = 2,
    ompt_sync_region_barrier_explicit = 3,
    ompt_sync_region_barrier_implementation = 4,
    ompt_sync_region_taskwait = 5,
    ompt_sync_region_taskgroup = 6,
    ompt_sync_region_barrier_implicit_workshare = 8,
    ompt_sync_region_barrier_implicit_parallel = 9,
};
enum {
    ompt_work_loop = 1,
    ompt_work_sections = 2,
    ompt_work_single_executor = 3,
    ompt_work_single_other = 4,
    ompt_work_workshare = 5,
    ompt_work_distribute = 6,
    ompt_work_taskloop = 7,
    ompt_work_loop_static = 10,
    ompt_work_loop_dynamic = 11,
    ompt_work_loop_guided = 12,
    ompt_work_loop_other = 13,
};
enum {
    ompt_mutex_lock = 1,
    ompt_mutex_nest_lock = 3,
    ompt_mutex_critical = 5,
    ompt_mutex_atomic = 6,
    ompt_mutex_ordered = 7,
};
enum { ompt_task_initial = 1, ompt_task_implicit = 2, ompt_task_explicit = 4 };
enum { ompt_task_complete = 1, ompt_task_cancel = 3, ompt_task_switch = 7 };

#endif
