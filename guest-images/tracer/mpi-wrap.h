/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A wrapper bears both names, MPI_X and PMPI_X, and forwards to the library's PMPI_X. The thread's depth guard lets only the outermost
 * call be recorded. Both names together see every call exactly once, from C and from Fortran: whichever name the library's Fortran layer
 * calls, the call arrives here. Calls that the library or the tracer makes inside it are not recorded again.
 *
 * WRAP(name, parameters, arguments, what to record before the call, what to record after it). Everything that can be recorded
 * before is, so that little lies between the host's two time stamps. Inside, `call` is the call and `r` its record.
 */
#ifndef NODESCOPE_MPI_WRAP_H
#define NODESCOPE_MPI_WRAP_H

#include "mpi-log.h"
#include "mpi-tracer.h"

#define PASTE(a, b) PASTE_EXPANDED(a, b)
#define PASTE_EXPANDED(a, b) a##b
#define TEXT(a) TEXT_EXPANDED(a)
#define TEXT_EXPANDED(a) #a
#define PLAIN(...) __VA_ARGS__
#define VISIBLE __attribute__((visibility("default")))

/* PSYMBOL is another name of the function SYMBOL just defined. */
#define BOTH_NAMES(SYMBOL, PSYMBOL) extern __typeof__(SYMBOL) PSYMBOL __attribute__((alias(TEXT(SYMBOL)), visibility("default")));

#define DEFINE(SYMBOL, PSYMBOL, FUNCTION, PARAMETERS, ARGUMENTS, BEFORE, ENTER, CALL, LEAVE)                                   \
    VISIBLE int SYMBOL PARAMETERS {                                                                                            \
        static __typeof__(&SYMBOL) next;                                                                                       \
        if (__builtin_expect(!next, 0))                                                                                        \
            next = (__typeof__(&SYMBOL))real_function(TEXT(PSYMBOL));                                                          \
        if (__builtin_expect(tracer_state != RUNNING, 0) || depth)                                                             \
            return next ARGUMENTS;                                                                                             \
        struct call call[1];                                                                                                   \
        struct nodescope_mpi_record *const r = &call->record;                                                                  \
        (void)r;                                                                                                               \
        depth++;                                                                                                               \
        call_begin(call, FUNCTION, FORM, __builtin_return_address(0));                                                         \
        BEFORE;                                                                                                                \
        ENTER(call);                                                                                                           \
        int result = next ARGUMENTS;                                                                                           \
        if (__builtin_expect(log_on, 0))                                                                                       \
            call->returned = log_now();                                                                                        \
        CALL;                                                                                                                  \
        LEAVE;                                                                                                                 \
        depth--;                                                                                                               \
        return result;                                                                                                         \
    }                                                                                                                          \
    BOTH_NAMES(SYMBOL, PSYMBOL)

/* AFTER runs only if the call succeeded. */
#define WRAP_AS(PREFIX, NAME, PARAMETERS, ARGUMENTS, BEFORE, AFTER)                                                            \
    DEFINE(PASTE(PASTE(PREFIX, NAME), SUFFIX), PASTE(PASTE(P, PASTE(PREFIX, NAME)), SUFFIX), NODESCOPE_MPI_##NAME, PARAMETERS,  \
           ARGUMENTS, BEFORE, call_enter, if (result == MPI_SUCCESS) { AFTER; }, call_leave(call, result))
#define WRAP(NAME, PARAMETERS, ARGUMENTS, BEFORE, AFTER) WRAP_AS(MPI_, NAME, PARAMETERS, ARGUMENTS, BEFORE, AFTER)

/* FOUND says whether the poll found something; only then AFTER runs. */
#define POLL(NAME, PARAMETERS, ARGUMENTS, BEFORE, FOUND, AFTER)                                                                \
    DEFINE(PASTE(MPI_##NAME, SUFFIX), PASTE(PMPI_##NAME, SUFFIX), NODESCOPE_MPI_##NAME, PARAMETERS, ARGUMENTS, BEFORE, poll_enter, \
           int found = result == MPI_SUCCESS && (FOUND);                                                                       \
           if (found) { AFTER; }, poll_leave(call, result, found))

/* Where the program ignores its status, the tracer needs one all the same. */
#define OWN_STATUS                                                                                                             \
    if (status == MPI_STATUS_IGNORE)                                                                                           \
    status = lend_statuses(1)

#endif

/* The form in which functions with counts are defined now: for int counts, and after mpi-large.h for large ones. */
#ifndef SUFFIX
#define SUFFIX
#define FORM 0
#define COUNT int
#define PLACE int
#define LARGE_FORMS (MPI_VERSION >= 4)
#endif
