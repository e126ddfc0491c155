/* Models for nodescope in a shared library. docs/extending.md explains the kinds of models and shows examples.
 *
 * A library defines nodescope_models(). A study names the library in study.plugins. Every structure begins with its size, so that a
 * later version can add fields at the end: a reader looks only at fields within that size. All functions of an instance are called by
 * one thread at a time, and instances of several nodes by several threads. Two runs of a study must give the same answers: a model may
 * depend on nothing but its arguments and its own memory.
 */
#ifndef NODESCOPE_MODELS_H
#define NODESCOPE_MODELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface. A library of another version is refused. */
#define NODESCOPE_VERSION 1
/* Version of nodescope_event and nodescope_batch, see plugins/api/EVENTS.md. */
#define NODESCOPE_STREAM_VERSION 1

/* Kinds of models. */
#define NODESCOPE_OBSERVER 0    /* sees the stream of events and counts */
#define NODESCOPE_REFERENCES 1  /* adds cycles to references, in a term of its own */
#define NODESCOPE_MEMORY 2      /* gives the latency of main memory */
#define NODESCOPE_REPLACEMENT 3 /* chooses the line that is replaced */
#define NODESCOPE_PREFETCHER 4  /* brings lines into a cache */

/* What observers and timings of references need to see beside misses of the first level: bits of nodescope_model.needs. */
#define NODESCOPE_EVERY_REFERENCE 1
#define NODESCOPE_PAGE_SIZES 2

/* Units of parameters. */
#define NODESCOPE_NUMBER 0 /* 4 */
#define NODESCOPE_BYTES 1  /* "64 KiB" */
#define NODESCOPE_CYCLES 2 /* "12 cycles", "5 ns" */
#define NODESCOPE_SWITCH 3 /* true, false */

/* Accesses. */
#define NODESCOPE_READ 0
#define NODESCOPE_WRITE 1
#define NODESCOPE_FETCH 2
#define NODESCOPE_PREFETCH 3 /* only in events */

/* Where a line came from. */
#define NODESCOPE_FROM_FIRST_LEVEL 0
#define NODESCOPE_FROM_L2 1
#define NODESCOPE_FROM_L3 2
#define NODESCOPE_FROM_OTHER_CACHE 3
#define NODESCOPE_FROM_LOCAL_MEMORY 4
#define NODESCOPE_FROM_REMOTE_MEMORY 5

/* Answers of a cache. */
#define NODESCOPE_HIT 0
#define NODESCOPE_PREFETCHED_HIT 1
#define NODESCOPE_MISS 2

/* No event. */
#define NODESCOPE_NO_EVENT UINT32_MAX

typedef struct nodescope_parameter {
    size_t size;
    const char *name; /* small letters, digits and "_" */
    const char *line; /* what it means, in one line */
    uint64_t default_value;
    uint64_t least;
    uint64_t most;
    uint32_t unit;
    uint32_t reserved;
} nodescope_parameter;

typedef struct nodescope_event_kind {
    size_t size;
    const char *name;
    const char *line;
} nodescope_event_kind;

/* An event of 16 bytes: a reference to one line, or a line that a prefetcher brought. */
typedef struct nodescope_event {
    uint64_t place;    /* number of the line in bits 0 to 39, cycles since the batch began in bits 40 to 63 */
    uint32_t block;    /* number of the block that makes the reference */
    uint8_t operation; /* number of the operation within the block */
    uint8_t flags;     /* reason in bits 0 and 1; bit 2: locked, bit 3: non-temporal, bit 4: a page of more than 4 KiB */
    uint8_t answer;    /* where the line came from */
    uint8_t filled;    /* level that a prefetcher filled; 0 for a reference */
} nodescope_event;

static inline uint64_t nodescope_line(const nodescope_event *event) { return event->place & ((UINT64_C(1) << 40) - 1); }
static inline uint64_t nodescope_cycles(const nodescope_event *event) { return event->place >> 40; }
static inline unsigned nodescope_reason(const nodescope_event *event) { return event->flags & 3u; }
static inline int nodescope_locked(const nodescope_event *event) { return event->flags >> 2 & 1; }
static inline int nodescope_non_temporal(const nodescope_event *event) { return event->flags >> 3 & 1; }
static inline int nodescope_large_page(const nodescope_event *event) { return event->flags >> 4 & 1; }

/* Events of one vCPU in one context at one privilege, in order. */
typedef struct nodescope_batch {
    size_t size;
    const nodescope_event *events;
    size_t count;
    uint64_t clock;   /* the vCPU's clock at the beginning of the batch, in cycles */
    uint32_t context; /* address space and MPI function */
    uint32_t line_bytes;
    uint16_t vcpu;
    uint8_t kernel; /* 1 for code of the kernel */
    uint8_t reserved[5];
} nodescope_batch;

/* A reference to one line, and its answer. */
typedef struct nodescope_reference {
    size_t size;
    uint64_t physical; /* guest-physical address of the first byte */
    uint64_t linear;   /* guest-linear address of the first byte */
    uint64_t now;      /* the vCPU's clock in cycles */
    uint32_t bytes;    /* referenced bytes within the line */
    uint32_t context;
    uint32_t block;
    uint32_t operation;
    uint32_t stall; /* cycles of the answer beyond a hit of the first level */
    uint16_t vcpu;
    uint8_t access;
    uint8_t answer; /* where the line came from */
    uint8_t kernel;
    uint8_t locked;
    uint8_t non_temporal;
    uint8_t large_page;
    uint8_t reserved[4];
} nodescope_reference;

/* A request to main memory. */
typedef struct nodescope_request {
    size_t size;
    uint64_t line; /* guest-physical address */
    uint64_t now;
    uint16_t vcpu;
    uint16_t socket; /* socket of the vCPU */
    uint16_t home;   /* socket to whose memory the line belongs */
    uint8_t write_back;
    uint8_t reserved;
} nodescope_request;

/* A set of a cache. */
typedef struct nodescope_set {
    size_t size;
    uint64_t *bits; /* the policy's own bits of the set, zero at first */
    uint32_t number;
    uint32_t ways;
} nodescope_set;

/* An access to a cache, as its prefetchers see the access. */
typedef struct nodescope_access {
    size_t size;
    uint64_t line; /* number of the line */
    uint32_t block;
    uint32_t operation;
    uint8_t access;
    uint8_t answer; /* NODESCOPE_HIT, NODESCOPE_PREFETCHED_HIT or NODESCOPE_MISS */
    uint8_t reserved[6];
} nodescope_access;

typedef struct nodescope_vcpu {
    uint16_t core;
    uint16_t socket;
} nodescope_vcpu;

/* The node or the cache for which an instance is made. A policy or a prefetcher is for a cache, others are for a node. */
typedef struct nodescope_shape {
    size_t size;
    const nodescope_vcpu *vcpus; /* of the node; NULL for a cache */
    size_t vcpu_count;
    uint64_t hertz; /* cycles of the node's clock in a second; 0 for a cache */
    uint32_t level; /* of the cache, from 1 on; 0 for a node */
    uint32_t sets;
    uint32_t ways;
    uint32_t line_bytes;
} nodescope_shape;

/* A model. The functions of other kinds are NULL. */
typedef struct nodescope_model {
    size_t size;
    const char *name; /* small letters, digits, "_" and "-" */
    const char *line; /* what the model is, in one line */
    const nodescope_parameter *parameters;
    size_t parameter_count;
    const nodescope_event_kind *events;
    size_t event_count;
    uint32_t kind;
    uint32_t needs;
    void *model_data; /* given to make() */

    /* Makes an instance for values in the order of the parameters. Returns the instance's userdata. An instance that cannot be made calls
     * nodescope_host.fail and returns NULL. */
    void *(*make)(void *model_data, const nodescope_shape *shape, const uint64_t *values);
    void (*drop)(void *userdata);

    /* NODESCOPE_OBSERVER: adds to the counts of the batch's vCPU, context and privilege, one for each event of the model. */
    void (*observe)(void *userdata, const nodescope_batch *batch, uint64_t *counts);
    /* May be NULL. Sets *bytes to a file for the results when the window closes, and returns its size, at most 64 MiB. */
    size_t (*file)(void *userdata, const uint8_t **bytes);
    /* NODESCOPE_REFERENCES: returns the cycles to add, at most 1,000,000. Sets *event to the number of the event to which they are charged;
     * leaves NODESCOPE_NO_EVENT there for a reference that is no event of the model. */
    uint32_t (*reference)(void *userdata, const nodescope_reference *reference, uint32_t *event);
    /* NODESCOPE_MEMORY: returns the cycles of the request, at most 1,000,000. May set *event to an event that is counted. */
    uint32_t (*request)(void *userdata, const nodescope_request *request, uint32_t *event);

    /* NODESCOPE_REPLACEMENT. */
    void (*hit)(void *userdata, const nodescope_set *set, uint32_t way);
    void (*insert)(void *userdata, const nodescope_set *set, uint32_t way);
    uint32_t (*victim)(void *userdata, const nodescope_set *set); /* the set is full; insert() for that way follows */
    void (*remove)(void *userdata, const nodescope_set *set, uint32_t way); /* may be NULL: does nothing */
    /* Chooses among the empty ways, the bits of `empty`. May be NULL: the lowest. */
    uint32_t (*empty_way)(void *userdata, uint64_t empty);
    /* Returns 1 if another hit of a way that was just used would change nothing; such hits of the first level are then not shown. May be
     * NULL: every hit is shown. */
    int (*settled)(void *userdata, const nodescope_set *set, uint32_t way);

    /* NODESCOPE_PREFETCHER: writes the numbers of the lines to bring, the most urgent first, and returns how many, at most `most`. */
    size_t (*prefetch)(void *userdata, const nodescope_access *access, uint64_t *wanted, size_t most);
} nodescope_model;

/* The models of a library. */
typedef struct nodescope_library {
    size_t size;
    uint32_t version; /* NODESCOPE_VERSION */
    uint32_t reserved;
    const nodescope_model *const *models;
    size_t model_count;
} nodescope_library;

/* What nodescope gives a library. */
typedef struct nodescope_host {
    size_t size;
    uint32_t version; /* NODESCOPE_VERSION of the program */
    uint32_t reserved;
    /* Ends the study with this sentence, which follows the model's name, once the running function returns. */
    void (*fail)(const char *why);
    /* Returns a capability of the program: "stream" is the version of the stream of events, "kinds" the number of kinds of models. Returns
     * 0 for a name that this program does not know. */
    uint64_t (*capability)(const char *name);
} nodescope_host;

/* Returns the library's models, which stay valid. `host` stays valid, too. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const nodescope_library *nodescope_models(const nodescope_host *host);

#ifdef __cplusplus
}
#endif

#endif
