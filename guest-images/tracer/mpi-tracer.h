/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Inside of the MPI tracer: what its files share.
 *
 *     mpi-wrap.h            what a wrapper is
 *     wrap-*.c, wrap-*.h    one wrapper for each MPI function that communicates, synchronises or does I/O; a .h has the functions that
 *                           take counts and is included once for int counts and once for the large ones of MPI 4 (MPI_X_c)
 *     mpi-library.c         the program's MPI library, and what is looked up in it
 *     mpi-choose.c          the tracer for the program's MPI in place of another one
 *     mpi-calls.c           activation, the record of a call on its way to the host, poll runs
 *     mpi-log.c, mpi-log.h  the log that takes the host's place on real hardware
 *     mpi-sites.c           where calls are made
 *     mpi-fortran.c         where calls are made in Fortran programs
 *     mpi-communicators.c   communicator ids, world ranks, neighbours
 *     mpi-datatypes.c       in how many pieces data lies in memory
 *     mpi-objects.c         windows, files and matched messages
 *     mpi-requests.c        serial numbers of requests
 *     mpi-shared.c          files that several nodes open together
 *
 *     mpi-standard-abi.h    stands for mpi.h in programs of the standard ABI
 *
 * All are compiled once for each ABI, against its mpi.h; nothing is linked to an MPI library, whose names are looked up by
 * mpi-library.c, so that the tracer can be preloaded into shells and launchers too.
 */
#ifndef NODESCOPE_MPI_TRACER_H
#define NODESCOPE_MPI_TRACER_H

#if defined(STANDARD_ABI)
#include "mpi-standard-abi.h"
#else
#include <mpi.h>
#endif
#include <stdint.h>

#include "nodescope.h"

#if defined(STANDARD_ABI)
#define FLAVOUR NODESCOPE_FLAVOUR_STANDARD_ABI
#elif defined(OPEN_MPI)
#define FLAVOUR NODESCOPE_FLAVOUR_OPEN_MPI
/* Its predefined handles are addresses of variables, which are there when the program's MPI library is: mpi-library.c finds them. */
#define PREDEFINED(X)                                                                                                          \
    X(ompi_mpi_byte) X(ompi_mpi_comm_null) X(ompi_mpi_comm_self) X(ompi_mpi_comm_world) X(ompi_mpi_datatype_null)              \
    X(ompi_mpi_group_empty) X(ompi_mpi_group_null)                                                                             \
    X(ompi_mpi_op_band) X(ompi_mpi_op_bor) X(ompi_mpi_op_bxor) X(ompi_mpi_op_land) X(ompi_mpi_op_lor)                          \
    X(ompi_mpi_op_lxor) X(ompi_mpi_op_max) X(ompi_mpi_op_maxloc) X(ompi_mpi_op_min) X(ompi_mpi_op_minloc)                      \
    X(ompi_mpi_op_no_op) X(ompi_mpi_op_prod) X(ompi_mpi_op_replace) X(ompi_mpi_op_sum) X(ompi_request_null)                    \
    X(ompi_message_no_proc) X(ompi_message_null) X(ompi_mpi_file_null) X(ompi_mpi_info_null) X(ompi_mpi_win_null)
struct predefined {
#define PREDEFINED_FIELD(symbol) void *symbol;
    PREDEFINED(PREDEFINED_FIELD)
#undef PREDEFINED_FIELD
};
extern struct predefined predefined;
#undef OMPI_PREDEFINED_GLOBAL
#define OMPI_PREDEFINED_GLOBAL(type, symbol) ((type)predefined.symbol)
#include <mpi-ext.h>
#elif defined(MPICH_VERSION)
#define FLAVOUR NODESCOPE_FLAVOUR_MPICH
#else
#error "mpi.h is neither Open MPI's nor MPICH's"
#endif

/* ---- communicators ---- */

struct neighbours {
    int destinations, sources; /* how many */
    int ranks[];               /* world ranks: the destinations, then the sources */
};

struct communicator {
    MPI_Comm handle;
    struct communicator *next;
    uint64_t id;
    uint64_t members; /* a hash of them, the same on all */
    int rank;         /* the caller's, in the local group */
    int size;         /* of the group that peers are ranks of: the remote one of an intercommunicator */
    int inter;
    int holders;      /* the handle, and each request, window, file and message */
    int *world;       /* world ranks of that group; null: rank i is world rank i */
    int local_size;   /* of an intercommunicator: the local group */
    int *local_world;
    struct neighbours *neighbours; /* null until asked for */
};

extern int world_rank, world_size;

struct communicator *communicator_of(MPI_Comm handle);
/* Registers a communicator just made out of `parent` (a handle, or MPI_COMM_NULL where the sides have no common parent). */
struct communicator *communicator_made(uint64_t parent, MPI_Comm made);
/* Registers a duplicate whose handle must not be used yet. */
struct communicator *communicator_promised(struct communicator *parent, MPI_Comm made);
void communicator_hold(struct communicator *);
void communicator_release(struct communicator *);
/* The program frees the handle. */
void communicator_forget(MPI_Comm handle);
int world_rank_of(const struct communicator *, int rank);
/* Neighbours in the communicator's topology; null if it has none. */
const struct neighbours *neighbours_of(struct communicator *);
/* An id for something that the members make together, the same on all of them; `salt` tells the kinds apart. */
uint64_t shared_id(const struct communicator *, uint64_t salt);
/* World ranks of a group's members, to be freed. */
int *world_ranks_of_group(MPI_Group, int *size);

/* ---- windows, files, matched messages ---- */

enum object_kind { OBJECT_WINDOW = 1, OBJECT_FILE, OBJECT_MESSAGE };

struct object {
    struct object *next;
    enum object_kind kind;
    uint64_t handle;
    uint64_t id;
    struct communicator *communicator;
    uint64_t unit;  /* of a file: bytes of the view's elementary type */
    uint64_t split; /* of a file: serial of the split collective under way */
    int source, tag; /* of a message: world rank and tag matched */
};

struct object *object_made(enum object_kind, uint64_t handle, struct communicator *);
/* Null for one made out of sight. */
struct object *object_of(enum object_kind, uint64_t handle);
/* Takes it out of the table, where a new one may get its handle from now on. */
struct object *object_taken(enum object_kind, uint64_t handle);
void object_released(struct object *);
#define HANDLE(handle) ((uint64_t)(uintptr_t)(handle))

/* ---- requests ---- */

enum request_kind { REQUEST_OTHER, REQUEST_SEND, REQUEST_RECEIVE, REQUEST_READ };

struct request {
    MPI_Request handle;
    const MPI_Request *where; /* the variable that the program keeps it in */
    struct request *next;
    struct communicator *communicator;
    uint64_t serial; /* of the operation under way; 0 for an inactive persistent request */
    enum request_kind kind;
    uint64_t prepared; /* serial of the preparation of a persistent request, else 0 */
    int claimed;    /* by a call in progress */
    int cancelling; /* MPI_Cancel was called */
};

void request_made(const MPI_Request *where, enum request_kind, struct communicator *, uint64_t serial, uint64_t prepared);
/* Finds and claims the entry of a request; null: MPI_REQUEST_NULL, or made out of the tracer's sight. */
struct request *request_claim(const MPI_Request *where);
void request_unclaim(struct request *);
/* The operation is complete: an ordinary request is gone, a persistent one inactive. */
void request_completed(struct request *);
void request_gone(struct request *);
uint64_t next_serial(void);

/* ---- calls ---- */

struct module; /* a program or library that calls */

struct call {
    struct nodescope_mpi_record record;
    struct communicator *communicator;
    struct module *module;
    struct request **claimed; /* given to this call, and not completed by it */
    int claims;
    struct object *ends; /* taken out of its table; released when the record is closed */
    uint64_t began, returned; /* of a log's clock: this wrapper, and from the MPI function */
};

enum state { INERT, BEFORE_INIT, RUNNING };
extern enum state tracer_state;
extern __thread int depth __attribute__((tls_model("initial-exec")));

/* Returns the MPI library's symbol of this name; null if the library has none, or no library is loaded yet. */
void *mpi_symbol(const char *name);
/* The function behind a wrapper. Never null: a missing one ends the process with a message. */
void *real_function(const char *name);
/* The program is linked with an MPI library. */
int program_has_mpi(void);
/* NODESCOPE_FLAVOUR_..., and the names of their libraries' files. */
uint32_t flavour_of_program(void);
extern const char *const library_names[];
/* Finds what the tracer needs of the library; ends the process if it is another MPI than the tracer's. */
void library_check(void);
/* Starts the program anew with the tracer for the program's MPI, if that is another than this tracer's and the other tracer lies beside
 * this one. */
void library_choose(char **arguments);
/* Ends the process with a message: a reason, and what it is about. */
_Noreturn void give_up(const char *why, const char *what);

void call_begin(struct call *, uint16_t function, uint16_t flags, void *call_site);
void call_enter(struct call *);
void call_leave(struct call *, int result);
/* For polls, in place of call_enter and call_leave. */
void poll_enter(struct call *);
void poll_leave(struct call *, int result, int found);
void tracer_decide(void);
void tracer_started(void);
void tracer_ends(void);
void tracer_message(const char *);
void flush_poll_runs(void);

/* Arguments into the record. */
void call_on(struct call *, MPI_Comm);
uint64_t type_bytes(struct call *, uint64_t count, MPI_Datatype);
void call_reduces(struct call *, MPI_Op);
int is_root(const struct call *, int root);
void call_made_communicator(struct call *, struct communicator *);
struct object *call_on_object(struct call *, enum object_kind, uint64_t handle);
/* As call_on_object, for a call that ends the handle. */
struct object *call_ends_object(struct call *, enum object_kind, uint64_t handle);

/* Sections. Counts are of `width` bytes each: int, or MPI_Count. */
uint64_t *section_numbers(struct call *, uint32_t kind, uint32_t count);
void section_ranks(struct call *, uint32_t kind, const int *world, int count);
void section_text(struct call *, uint32_t kind, const char *text);
/* Bytes to or from `peers` ranks, of one type or of a type each (then `type` is not looked at); the sum is returned. Peers that are
 * MPI_PROC_NULL in `world`, if given, get nothing. */
uint64_t section_bytes(struct call *, uint32_t kind, int peers, const int *world, const void *counts, size_t width, MPI_Datatype type,
                       const MPI_Datatype *types);

static inline int64_t count_at(const void *counts, size_t width, int at) {
    return width == sizeof(int) ? ((const int *)counts)[at] : ((const int64_t *)counts)[at];
}

/* Claims the requests, records their serials, and lends statuses where the program ignores its own. */
void call_claims(struct call *, int count, const MPI_Request *);
/* As call_claims, for operations that start now: each gets a new serial. */
void call_claims_anew(struct call *, int count, const MPI_Request *);
MPI_Status *lend_statuses(int count);
/* `indices` null: all of 0 .. count - 1. */
void call_completes(struct call *, int count, const int *indices, const MPI_Status *);
void call_received(struct call *, const MPI_Status *);
/* A file was read; `serial` is that of the split collective that ends, or 0. */
void call_transferred(struct call *, const MPI_Status *, uint64_t serial, int read);

/* Starts, or prepares, an operation with a request. */
void call_starts(struct call *, const MPI_Request *, enum request_kind);
void call_prepares(struct call *, const MPI_Request *, enum request_kind);

/* ---- datatypes ---- */

/* Number of contiguous blocks of memory in an element of a datatype that the program made; 1 for elements that are contiguous; 0 if unknown. */
uint64_t element_blocks(MPI_Datatype);

/* ---- files that nodes share ---- */

/* Before MPI_File_open, on every rank: ends a program that opens one file on several nodes where each node has files of its own. */
void shared_file_check(const struct call *, MPI_Comm, const char *name, int mode);

/* ---- where calls are made ---- */

/* Of the last Fortran call of this thread, and of the one before. */
extern __thread uintptr_t fortran_sites[2] __attribute__((tls_model("initial-exec"), visibility("hidden")));

struct module *site_of(struct call *, uintptr_t return_address);
/* The module's name if it has not been told yet, else null. */
const char *module_announces(struct module *);

/* MPI functions that the tracer itself needs. */
#define HELPERS(X)                                                                                                             \
    X(Abort) X(Allreduce) X(Barrier) X(Comm_free) X(Comm_split_type)                                                           \
    X(Comm_rank) X(Comm_size) X(Comm_remote_size) X(Comm_test_inter) X(Comm_group) X(Comm_remote_group)                        \
    X(Group_translate_ranks) X(Group_free) X(Group_size) X(Type_size_x) X(Get_elements_x) X(Test_cancelled)                    \
    X(Query_thread) X(Topo_test) X(Cartdim_get) X(Cart_shift) X(Graph_neighbors_count) X(Graph_neighbors)                      \
    X(Dist_graph_neighbors_count) X(Dist_graph_neighbors)
#if defined(STANDARD_ABI)
#define DATATYPE_HELPERS(X)
#else
#define DATATYPE_HELPERS(X)                                                                                                    \
    X(Type_get_envelope) X(Type_get_contents) X(Type_get_extent_x) X(Type_free)                                                \
    X(Type_create_keyval) X(Type_get_attr) X(Type_set_attr)
#endif
struct helpers {
#define HELPER_FIELD(name) __typeof__(&PMPI_##name) name;
    HELPERS(HELPER_FIELD)
    DATATYPE_HELPERS(HELPER_FIELD)
#undef HELPER_FIELD
};
extern struct helpers real;

#endif
