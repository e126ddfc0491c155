/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Inside of the MPI tracer: what its files share.
 *
 *     mpi-wrappers.c        one wrapper for each MPI function
 *     mpi-calls.c           activation, the record of a call on its way to the host, poll runs
 *     mpi-communicators.c   communicator ids and world ranks
 *     mpi-requests.c        serial numbers of requests
 *
 * All are compiled once for each MPI, against its mpi.h; nothing is linked to an MPI library, whose functions are looked up with
 * dlsym, so that the tracer can be preloaded into shells and launchers too.
 */
#ifndef NODESCOPE_MPI_TRACER_H
#define NODESCOPE_MPI_TRACER_H

#include <mpi.h>
#include <stdint.h>

#include "nodescope.h"

#if defined(OPEN_MPI)
#define FLAVOUR NODESCOPE_FLAVOUR_OPEN_MPI
/* Its predefined handles are addresses of variables, which programs without MPI lack. */
#pragma weak ompi_mpi_byte
#pragma weak ompi_mpi_comm_null
#pragma weak ompi_mpi_comm_self
#pragma weak ompi_mpi_comm_world
#pragma weak ompi_mpi_datatype_null
#pragma weak ompi_mpi_op_band
#pragma weak ompi_mpi_op_bor
#pragma weak ompi_mpi_op_bxor
#pragma weak ompi_mpi_op_land
#pragma weak ompi_mpi_op_lor
#pragma weak ompi_mpi_op_lxor
#pragma weak ompi_mpi_op_max
#pragma weak ompi_mpi_op_maxloc
#pragma weak ompi_mpi_op_min
#pragma weak ompi_mpi_op_minloc
#pragma weak ompi_mpi_op_no_op
#pragma weak ompi_mpi_op_prod
#pragma weak ompi_mpi_op_replace
#pragma weak ompi_mpi_op_sum
#pragma weak ompi_request_null
#elif defined(MPICH_VERSION)
#define FLAVOUR NODESCOPE_FLAVOUR_MPICH
#else
#error "mpi.h is neither Open MPI's nor MPICH's"
#endif

/* ---- communicators ---- */

struct communicator {
    MPI_Comm handle;
    struct communicator *next;
    uint64_t id;
    int rank;    /* the caller's, in the local group */
    int size;    /* of the group that peers are ranks of: the remote one of an intercommunicator */
    int inter;
    int holders; /* the handle, and each request */
    int *world;  /* world ranks of that group; null: rank i is world rank i */
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

/* ---- requests ---- */

enum request_kind { REQUEST_OTHER, REQUEST_SEND, REQUEST_RECEIVE };

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

struct call {
    struct nodescope_mpi_record record;
    struct communicator *communicator;
};

enum state { INERT, BEFORE_INIT, RUNNING };
extern enum state tracer_state;
extern __thread int depth __attribute__((tls_model("initial-exec")));

/* The function behind a wrapper. Never null: a missing one ends the process with a message. */
void *real_function(const char *name);

void call_begin(struct call *, uint16_t function, void *call_site);
void call_enter(struct call *);
void call_leave(struct call *, int result);
/* For polls, in place of call_enter and call_leave. */
void poll_enter(struct call *);
void poll_leave(struct call *, int result, int found);
void tracer_decide(void);
void tracer_started(void);
void tracer_ends(void);
void flush_poll_runs(void);

/* Arguments into the record. */
void call_on(struct call *, MPI_Comm);
uint64_t type_bytes(struct call *, uint64_t count, MPI_Datatype);
void call_reduces(struct call *, MPI_Op);
int is_root(const struct call *, int root);
void call_made_communicator(struct call *, struct communicator *);

/* Sections. */
uint64_t *section_numbers(struct call *, uint32_t kind, uint32_t count);
uint64_t section_counts(struct call *, uint32_t kind, const int *counts, MPI_Datatype);
uint64_t section_counts_w(struct call *, uint32_t kind, const int *counts, const MPI_Datatype *);

/* Claims the requests, records their serials, and lends statuses where the program ignores its own. */
struct request **call_claims(struct call *, int count, const MPI_Request *);
MPI_Status *lend_statuses(int count);
/* `indices` null: all of 0 .. count - 1. */
void call_completes(struct call *, struct request **, int requests, int count, const int *indices, const MPI_Status *);
void call_received(struct call *, const MPI_Status *);

/* MPI functions that the tracer itself needs. */
#define HELPERS(X)                                                                                                             \
    X(Comm_rank) X(Comm_size) X(Comm_remote_size) X(Comm_test_inter) X(Comm_group) X(Comm_remote_group)                        \
    X(Group_translate_ranks) X(Group_free) X(Type_size_x) X(Get_elements_x) X(Test_cancelled)
struct helpers {
#define HELPER_FIELD(name) __typeof__(&PMPI_##name) name;
    HELPERS(HELPER_FIELD)
#undef HELPER_FIELD
};
extern struct helpers real;

#endif
