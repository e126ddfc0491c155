/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A served function is SERVE(name, parameters, arguments, description of the call, results). It bears both names, MPI_X and
 * PMPI_X, as a wrapper of the tracer does (mpi-wrap.h), whose PMPI_X is looked up here. Results are exchanged with the recording if the
 * call succeeded; inside, `call` is the call.
 *
 * ANSWER(name, parameters, arguments, code that a replay runs in place of the MPI).
 */
#ifndef NODESCOPE_SERVE_H
#define NODESCOPE_SERVE_H

#include "replay.h"

#define PASTE(a, b) PASTE_EXPANDED(a, b)
#define PASTE_EXPANDED(a, b) a##b
#define TEXT(a) TEXT_EXPANDED(a)
#define TEXT_EXPANDED(a) #a
#define PLAIN(...) __VA_ARGS__
#define VISIBLE __attribute__((visibility("default")))
#define BOTH_NAMES(SYMBOL, PSYMBOL) extern __typeof__(SYMBOL) PSYMBOL __attribute__((alias(TEXT(SYMBOL)), visibility("default")));

#define FIND_NEXT(SYMBOL, PSYMBOL)                                                                                             \
    static __typeof__(&SYMBOL) next;                                                                                           \
    if (__builtin_expect(!next, 0))                                                                                            \
    next = (__typeof__(&SYMBOL))real_function(TEXT(PSYMBOL))

/* An error in one of several statuses leaves the others' results. */
#define SERVE_AS(SYMBOL, PSYMBOL, FUNCTION, PARAMETERS, ARGUMENTS, DESCRIBE, RESULTS)                                          \
    VISIBLE int SYMBOL PARAMETERS {                                                                                            \
        FIND_NEXT(SYMBOL, PSYMBOL);                                                                                            \
        if (__builtin_expect(mode == MODE_INERT, 1) || nested)                                                                 \
            return next ARGUMENTS;                                                                                             \
        struct served_call call[1];                                                                                                   \
        nested++;                                                                                                              \
        call_opens(call, FUNCTION);                                                                                            \
        DESCRIBE;                                                                                                              \
        int result = call_answer(call, mode == MODE_RECORD ? next ARGUMENTS : MPI_SUCCESS);                                    \
        if (result == MPI_SUCCESS || result == MPI_ERR_IN_STATUS) {                                                            \
            RESULTS;                                                                                                           \
        }                                                                                                                      \
        call_closes(call);                                                                                                     \
        nested--;                                                                                                              \
        return result;                                                                                                         \
    }                                                                                                                          \
    BOTH_NAMES(SYMBOL, PSYMBOL)

#define SERVE(NAME, PARAMETERS, ARGUMENTS, DESCRIBE, RESULTS)                                                                  \
    SERVE_AS(PASTE(MPI_##NAME, SUFFIX), PASTE(PMPI_##NAME, SUFFIX), NODESCOPE_MPI_##NAME, PARAMETERS, ARGUMENTS, DESCRIBE, RESULTS)

/* A call that may find nothing: FLAG is the variable that says so. */
#define SERVE_POLL(NAME, PARAMETERS, ARGUMENTS, DESCRIBE, FLAG, NOTHING, RESULTS)                                              \
    VISIBLE int MPI_##NAME PARAMETERS {                                                                                        \
        FIND_NEXT(MPI_##NAME, PMPI_##NAME);                                                                                    \
        if (__builtin_expect(mode == MODE_INERT, 1) || nested)                                                                 \
            return next ARGUMENTS;                                                                                             \
        struct served_call call[1];                                                                                                   \
        nested++;                                                                                                              \
        call_opens(call, NODESCOPE_MPI_##NAME);                                                                                \
        DESCRIBE;                                                                                                              \
        int result = MPI_SUCCESS, found = 1;                                                                                   \
        if (mode == MODE_RECORD) {                                                                                             \
            result = next ARGUMENTS;                                                                                           \
            found = result != MPI_SUCCESS || (FLAG);                                                                           \
        } else {                                                                                                               \
            found = !replay_finds_nothing();                                                                                   \
        }                                                                                                                      \
        if (!found) {                                                                                                          \
            call_found_nothing(call);                                                                                          \
            if (mode == MODE_REPLAY) {                                                                                         \
                NOTHING;                                                                                                       \
            }                                                                                                                  \
        } else {                                                                                                               \
            result = call_answer(call, result);                                                                                \
            if (result == MPI_SUCCESS || result == MPI_ERR_IN_STATUS) {                                                        \
                RESULTS;                                                                                                       \
            }                                                                                                                  \
            call_closes(call);                                                                                                 \
        }                                                                                                                      \
        nested--;                                                                                                              \
        return result;                                                                                                         \
    }                                                                                                                          \
    BOTH_NAMES(MPI_##NAME, PMPI_##NAME)

#define ANSWER(NAME, PARAMETERS, ARGUMENTS, BODY)                                                                              \
    VISIBLE int MPI_##NAME PARAMETERS {                                                                                        \
        FIND_NEXT(MPI_##NAME, PMPI_##NAME);                                                                                    \
        if (__builtin_expect(mode != MODE_REPLAY, 1) || nested)                                                                \
            return next ARGUMENTS;                                                                                             \
        BODY;                                                                                                                  \
        return MPI_SUCCESS;                                                                                                    \
    }                                                                                                                          \
    BOTH_NAMES(MPI_##NAME, PMPI_##NAME)

/* Where the program ignores its status, the recording needs one all the same. */
#define OWN_STATUS                                                                                                             \
    MPI_Status own_status;                                                                                                     \
    if (status == MPI_STATUS_IGNORE)                                                                                           \
    status = &own_status

#endif

#ifndef SUFFIX
#define SUFFIX
#define COUNT int
#define PLACE int
#define LARGE_FORMS (MPI_VERSION >= 4)
#endif
