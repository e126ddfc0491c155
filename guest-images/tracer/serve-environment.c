/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Start and end. */
#include "serve.h"

#include <stdlib.h>

#define SERVE_INIT(NAME, PARAMETERS, ARGUMENTS, ...)                                                                           \
    VISIBLE int MPI_##NAME PARAMETERS {                                                                                        \
        FIND_NEXT(MPI_##NAME, PMPI_##NAME);                                                                                    \
        int result = next ARGUMENTS;                                                                                           \
        if (mode != MODE_INERT && result == MPI_SUCCESS) {                                                                     \
            int level = MPI_THREAD_SINGLE;                                                                                     \
            PMPI_Query_thread(&level);                                                                                         \
            replay_start(level);                                                                                               \
            __VA_ARGS__;                                                                                                       \
        }                                                                                                                      \
        return result;                                                                                                         \
    }                                                                                                                          \
    BOTH_NAMES(MPI_##NAME, PMPI_##NAME)

SERVE_INIT(Init, (int *argc, char ***argv), (argc, argv))
SERVE_INIT(Init_thread, (int *argc, char ***argv, int required, int *provided), (argc, argv, required, provided),
           if (mode == MODE_REPLAY) *provided = replay_is.thread_level)

/* The MPI ends after the recording does, in both modes: nobody else waits for a replay. */
VISIBLE int MPI_Finalize(void) {
    FIND_NEXT(MPI_Finalize, PMPI_Finalize);
    if (mode == MODE_INERT || nested)
        return next();
    struct served_call call[1];
    nested++;
    call_opens(call, NODESCOPE_MPI_Finalize);
    call_answer(call, MPI_SUCCESS);
    call_closes(call);
    replay_finish();
    mode = MODE_INERT;
    int result = next();
    nested--;
    return result;
}
BOTH_NAMES(MPI_Finalize, PMPI_Finalize)

VISIBLE int MPI_Abort(MPI_Comm comm, int code) {
    FIND_NEXT(MPI_Abort, PMPI_Abort);
    replay_finish();
    /* The process is alone: nobody else is to be ended. */
    if (mode == MODE_REPLAY)
        _Exit(code ? code : 1);
    return next(comm, code);
}
BOTH_NAMES(MPI_Abort, PMPI_Abort)
