/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Start and end of MPI, and processes of other worlds. */
#include "job-id.h"
#include "mpi-wrap.h"

#include <stdio.h>
#include <string.h>

#define WRAP_INIT(NAME, PARAMETERS, ARGUMENTS)                                                                                 \
    VISIBLE int MPI_##NAME PARAMETERS {                                                                                        \
        static __typeof__(&MPI_##NAME) next;                                                                                   \
        if (!next)                                                                                                             \
            next = (__typeof__(&MPI_##NAME))real_function("PMPI_" #NAME);                                                      \
        tracer_decide();                                                                                                       \
        if (tracer_state != BEFORE_INIT || depth)                                                                              \
            return next ARGUMENTS;                                                                                             \
        struct call call[1];                                                                                                   \
        int level = MPI_THREAD_SINGLE;                                                                                         \
        depth++;                                                                                                               \
        call_begin(call, NODESCOPE_MPI_##NAME, 0, __builtin_return_address(0));                                                \
        call_enter(call);                                                                                                      \
        int result = next ARGUMENTS;                                                                                           \
        if (result == MPI_SUCCESS) {                                                                                           \
            tracer_started();                                                                                                  \
            real.Query_thread(&level);                                                                                         \
            call->record.detail = level <= MPI_THREAD_SINGLE       ? 0                                                         \
                                  : level <= MPI_THREAD_FUNNELED   ? 1                                                         \
                                  : level <= MPI_THREAD_SERIALIZED ? 2                                                         \
                                                                   : 3;                                                        \
            call->record.communicator = NODESCOPE_COMM_WORLD;                                                                  \
            call->record.communicator_size = world_size;                                                                       \
            call->record.object = job_id();                                                                                    \
        }                                                                                                                      \
        call_leave(call, result);                                                                                              \
        depth--;                                                                                                               \
        return result;                                                                                                         \
    }                                                                                                                          \
    BOTH_NAMES(MPI_##NAME, PMPI_##NAME)

WRAP_INIT(Init, (int *argc, char ***argv), (argc, argv))
WRAP_INIT(Init_thread, (int *argc, char ***argv, int required, int *provided), (argc, argv, required, provided))

/* Afterwards MPI must not be asked anything any more. */
WRAP(Finalize, (void), (), call_on(call, MPI_COMM_WORLD), tracer_ends())

VISIBLE int MPI_Abort(MPI_Comm comm, int code) {
    __typeof__(&MPI_Abort) next = (__typeof__(&MPI_Abort))real_function("PMPI_Abort");
    if (tracer_state != RUNNING || depth)
        return next(comm, code);
    /* It does not return: the record is sent before. */
    struct call call[1];
    depth++;
    call_begin(call, NODESCOPE_MPI_Abort, 0, __builtin_return_address(0));
    call_on(call, comm);
    call_enter(call);
    call_leave(call, code);
    return next(comm, code);
}
BOTH_NAMES(MPI_Abort, PMPI_Abort)

/* The members of the new communicator's two sides have no communicator in common to count in. */
static void made_between(struct call *call, MPI_Comm comm) {
    call_made_communicator(call, communicator_made(NODESCOPE_COMM_NONE, comm));
}

static void rooted(struct call *call, MPI_Comm comm, int root) {
    call_on(call, comm);
    call->record.root = world_rank_of(call->communicator, root);
}

static void named(struct call *call, const char *name, int known) {
    if (known)
        section_text(call, NODESCOPE_SECTION_NAME, name);
}

WRAP(Comm_spawn,
     (const char *command, char *argv[], int most, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *made, int codes[]),
     (command, argv, most, info, root, comm, made, codes), rooted(call, comm, root); named(call, command, is_root(call, root)),
     made_between(call, *made))
WRAP(Comm_spawn_multiple,
     (int count, char *commands[], char **argvs[], const int most[], const MPI_Info infos[], int root, MPI_Comm comm, MPI_Comm *made,
      int codes[]),
     (count, commands, argvs, most, infos, root, comm, made, codes), rooted(call, comm, root);
     named(call, is_root(call, root) ? commands[0] : "", 1), made_between(call, *made))
WRAP(Comm_accept, (const char *port, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *made), (port, info, root, comm, made),
     rooted(call, comm, root); named(call, port, is_root(call, root)), made_between(call, *made))
WRAP(Comm_connect, (const char *port, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *made), (port, info, root, comm, made),
     rooted(call, comm, root); named(call, port, is_root(call, root)), made_between(call, *made))
WRAP(Comm_join, (int file, MPI_Comm *made), (file, made), , made_between(call, *made))
WRAP(Comm_get_parent, (MPI_Comm * parent), (parent), ,
     if (*parent != MPI_COMM_NULL) call_made_communicator(call, communicator_of(*parent)))
WRAP(Open_port, (MPI_Info info, char *port), (info, port), , named(call, port, 1))
WRAP(Close_port, (const char *port), (port), named(call, port, 1), )
WRAP(Publish_name, (const char *service, MPI_Info info, const char *port), (service, info, port), named(call, service, 1), )
WRAP(Unpublish_name, (const char *service, MPI_Info info, const char *port), (service, info, port), named(call, service, 1), )
WRAP(Lookup_name, (const char *service, MPI_Info info, char *port), (service, info, port), named(call, service, 1), )

#if MPI_VERSION >= 4
/* A program may do without MPI_Init, in sessions: it has no MPI_COMM_WORLD then whose ranks a trace could speak of. */
VISIBLE int MPI_Session_init(MPI_Info info, MPI_Errhandler handler, MPI_Session *session) {
    __typeof__(&MPI_Session_init) next = (__typeof__(&MPI_Session_init))real_function("PMPI_Session_init");
    static int told;
    tracer_decide();
    if (tracer_state == BEFORE_INIT && !__atomic_exchange_n(&told, 1, __ATOMIC_RELAXED))
        tracer_message("this program opens an MPI session before MPI_Init: what it does outside MPI_COMM_WORLD's life is not traced");
    return next(info, handler, session);
}
BOTH_NAMES(MPI_Session_init, PMPI_Session_init)
#endif
