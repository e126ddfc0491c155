/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Inside of the replay library: what its files share.
 *
 * The library is preloaded into MPI programs, behind the tracer where both are there: the tracer forwards each call to this library,
 * and this library to the MPI. It has two modes, chosen by the environment; without either it only forwards.
 *
 *     NODESCOPE_RECORD=FOLDER          writes FOLDER/rank-N: all that rank N receives from other ranks
 *     NODESCOPE_RECORD_RANKS=0,5       the ranks to record; all, if it is not there
 *     NODESCOPE_REPLAY=FILE            runs the program as one process that is the recorded rank: every call that concerns
 *                                      others is served from the file, every other call by the MPI
 *
 * Functions of the MPI fall into four kinds:
 *     served    calls that concern others: each is an entry of the recording (serve-*.c)
 *     answered  questions about communicators, groups and topologies: a replay answers them from the descriptions of communicators that
 *               the recording has; they are no entries (replay-communicators.c, replay-groups.c)
 *     refused   calls that a recording does not cover: one-sided, files, processes, ... (replay-refuse.c)
 *     local     datatypes, packing, time, attributes, names, error handlers: the MPI does them, in a replay on handles of
 *               its own that stand for those of the recorded run
 *
 * A served call is written once for both modes: `exchange` and the functions above it take from memory into the recording in the one,
 * and from the recording into memory in the other.
 *
 * The file is little-endian: struct replay_header, then entries, each struct replay_entry and its results, padded to a multiple of 8.
 */
#ifndef NODESCOPE_REPLAY_H
#define NODESCOPE_REPLAY_H

#include "mpi-tracer.h"

#include <stddef.h>
#include <stdint.h>

#define REPLAY_MAGIC "NSREPLAY"
#define REPLAY_VERSION 1u

struct replay_header {
    char magic[8];
    uint32_t version;
    uint32_t flavour; /* NODESCOPE_FLAVOUR_... */
    int32_t rank, size;
    int32_t thread_level; /* that the MPI provided */
    uint32_t reserved;
};

#define REPLAY_FAILED_POLL 1u /* the call, and `repeats` more like it, found nothing */
#define REPLAY_NOTHING (-1000000) /* an argument that the call does not have */

struct replay_entry {
    uint64_t size; /* bytes with the results, a multiple of 8 */
    uint16_t function;
    uint16_t flags;
    int32_t result;
    uint32_t repeats;
    int32_t communicator; /* in the order in which the rank met them: 0 world, 1 self */
    int32_t destination, send_tag, source, receive_tag, root; /* ranks of the communicator, as the program gave them */
    int32_t detail; /* requests given; of calls that make communicators, a hash of other arguments */
    uint64_t send_bytes, receive_bytes; /* of a receive: the room for it */
};

enum mode { MODE_INERT, MODE_RECORD, MODE_REPLAY };
extern enum mode mode;
/* In a call that is served, or before MPI_Init has returned: what the MPI calls in turn is none of the program's. */
extern int nested;

/* ---- data ---- */

/* Memory that a call receives into. */
struct region {
    void *buffer;
    MPI_Count count;
    MPI_Datatype type;
};

struct served_call {
    struct replay_entry entry;
    struct described *on;
    struct region *regions;
    int region_count, region_room;
};

/* Fills in `call` for a function of this number. */
void call_opens(struct served_call *, uint16_t function);
void call_on_communicator(struct served_call *, MPI_Comm);
void call_sends(struct served_call *, MPI_Count count, MPI_Datatype type, int destination, int tag);
void call_receives_from(struct served_call *, int source, int tag);
/* Memory that the call receives into; `room` adds to the entry's bytes. */
void call_receives(struct served_call *, void *buffer, MPI_Count count, MPI_Datatype type);
uint64_t bytes_of(MPI_Count count, MPI_Datatype type);

/* Recording: the call has this result. Replay: compares the call with the recorded one, ends the program if it is another, and
 * returns the recorded result. */
int call_answer(struct served_call *, int result);
/* After the results: ends the entry. */
void call_closes(struct served_call *);
/* The poll found nothing. Recording: a call like the one before adds to its repeats. */
void call_found_nothing(struct served_call *);
/* Replay: whether the next entry is a poll that finds nothing. */
int replay_finds_nothing(void);
/* Ends the program: the made call is not the recorded one, for a reason beyond the arguments. */
_Noreturn void replay_diverges(const struct replay_entry *made, const char *reason);
_Noreturn void refuse(const char *function, const char *why);

void exchange(void *bytes, size_t count);
int exchange_int(int value);
void exchange_status(MPI_Status *, int with_error);
void exchange_regions(struct served_call *made, struct region *, int count, const MPI_Status *received);
uint64_t status_bytes(const MPI_Status *);

void replay_start(int level);
void replay_finish(void);
void *allocate_memory(size_t bytes);
extern struct replay_header replay_is;

/* ---- communicators ---- */

struct described {
    struct described *next;
    MPI_Comm handle;
    int id;
    int rank, size;       /* in the local group, and of it */
    int inter, remote_size;
    int *members, *remote; /* world ranks */
    int topology;          /* MPI_CART, MPI_GRAPH, MPI_DIST_GRAPH or MPI_UNDEFINED */
    int numbers;           /* of the topology */
    int *topology_numbers; /* cart: dims, periods, coordinates; graph: nodes, edges, index, edges; distributed: sources, destinations,
                            * weighted, sources, their weights, destinations, their weights */
};

struct described *described_of(MPI_Comm);
void describe_world(void);
/* Registers the communicator that a call made; replay: makes one of the process's own that stands for it. */
void exchange_communicator(MPI_Comm *made, MPI_Comm duplicate_of);
void exchange_promised(MPI_Comm *made, MPI_Comm duplicate_of);
void described_forget(MPI_Comm);
/* Ranks that a collective's blocks are of: the remote group of an intercommunicator. */
int peers_of(const struct described *);
int receives_at_root(const struct described *, int root);
/* Neighbours from which a neighbourhood collective receives, or to which it sends. */
int sources_of(const struct described *);
int destinations_of(const struct described *);

/* ---- groups, in a replay ---- */

MPI_Group group_made(const int *world_ranks, int count);

/* ---- requests ---- */

enum served_kind { SERVED_SEND, SERVED_RECEIVE, SERVED_OTHER };

struct served {
    struct served *next;
    MPI_Request handle;
    const MPI_Request *where;
    enum served_kind kind;
    int persistent, active;
    int delivered; /* what it received has been shown already */
    int claimed;   /* while those of an array are looked up */
    struct region *regions;
    int region_count;
};

/* The call started, or prepared, an operation; takes its regions. */
void served_starts(struct served_call *, MPI_Request *, enum served_kind);
void served_prepares(struct served_call *, MPI_Request *, enum served_kind);
struct served *served_of(const MPI_Request *);
/* All of an array, until the next call of this function. */
struct served **served_all(int count, const MPI_Request *);
void served_completes(struct served_call *, struct served *, MPI_Request *, MPI_Status *, int with_error);
void served_forget(struct served *);

/* Functions of the MPI that this library defines, too, and needs itself. */
#define LIBRARY_FUNCTIONS(X)                                                                                                   \
    X(Cart_get) X(Cartdim_get) X(Comm_dup) X(Comm_free) X(Comm_group) X(Comm_rank) X(Comm_remote_group) X(Comm_remote_size)    \
    X(Comm_size) X(Comm_test_inter) X(Dist_graph_neighbors) X(Dist_graph_neighbors_count) X(Graph_get) X(Graphdims_get)        \
    X(Group_free) X(Group_incl) X(Group_size) X(Group_translate_ranks) X(Isend) X(Mprobe) X(Mrecv) X(Recv_init)                \
    X(Request_free) X(Topo_test)
struct library {
#define LIBRARY_FIELD(name) __typeof__(&PMPI_##name) name;
    LIBRARY_FUNCTIONS(LIBRARY_FIELD)
#undef LIBRARY_FIELD
};
extern struct library library;

#endif
