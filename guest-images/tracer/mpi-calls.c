/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The way of a call's record: filled in while the arguments are at hand, shown by MPI_ENTER just before the real call, sent by
 * MPI_EVENT just after it. No clock is read here: the host knows virtual time and instructions retired, and stamps both.
 *
 * On real hardware NODESCOPE_TRACE_LOG=FOLDER in the environment puts a log in the host's place (mpi-log.h), which has the times.
 * NODESCOPE_TRACE_DUMP=PATH writes the records alone to PATH.RANK, anywhere.
 */
#define _GNU_SOURCE
#include "mpi-tracer.h"

#include "mpi-log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { RUNS = 4, RUN_SERIALS = 8 };

enum state tracer_state = INERT;
struct helpers real;
__thread int depth __attribute__((tls_model("initial-exec")));

static int present; /* a nodescope answers */
static const char *dump_path;
static int dump_file = -1;
static pthread_mutex_t dump_lock = PTHREAD_MUTEX_INITIALIZER;

/* Consecutive polls that found nothing, of one function with the same arguments. A program often polls several things in turn, so
 * several runs stay open until the thread does something else. */
struct run {
    struct nodescope_mpi_record record; /* calls == 0: unused */
    struct module *module;
    uint64_t serials[RUN_SERIALS];
    uint32_t serial_count;
    uint64_t serial_hash;
};

static __thread struct {
    uint32_t pid, tid;
    uint64_t sequence;
    uint8_t *buffer; /* the record with its sections */
    size_t used, room;
    struct request **claimed;
    size_t claimed_room;
    MPI_Status *statuses;
    size_t statuses_room;
    struct run runs[RUNS];
    int open_runs;
} thread __attribute__((tls_model("initial-exec")));

/* Of the OpenMP tracer, where that is preloaded, too: intervals between MPI calls (openmp-mpi.c). */
void nodescope_mpi_call_hook(uint32_t function) __attribute__((weak));

static void returned(const struct call *call) {
    if (__builtin_expect(nodescope_mpi_call_hook != NULL, 0))
        nodescope_mpi_call_hook(call->record.function);
}

static void *grow(void *memory, size_t *room, size_t needed, size_t element) {
    if (needed <= *room)
        return memory;
    *room = needed < 64 ? 64 : needed * 2;
    memory = realloc(memory, *room * element);
    if (!memory)
        give_up("out of memory", "");
    return memory;
}

/* ---- activation ---- */

static void after_fork(void) {
    thread.pid = thread.tid = 0;
    log_leave();
}

void tracer_decide(void) {
    static int decided;
    if (decided)
        return;
    library_check();
    decided = 1;
    int found = nodescope_attach();
    present = found == NODESCOPE_PRESENT;
    if (found == NODESCOPE_NO_PERMISSION)
        fprintf(stderr,
                "nodescope: this process has no permission for the doorbell (I/O port %#x), so its MPI calls are not traced: start it from the "
                "job or as root\n",
                NODESCOPE_DOORBELL_PORT);
    dump_path = getenv("NODESCOPE_TRACE_DUMP");
    if (!present)
        log_open();
    int has_intervals = nodescope_mpi_call_hook && getenv("NODESCOPE_OPENMP_INTERVALS");
    if (!present && !dump_path && !log_on && !has_intervals)
        return;
    pthread_atfork(NULL, NULL, after_fork);
    tracer_state = BEFORE_INIT;
}

/* Shells and launchers are none of the tracer's business; a program that opens its MPI later decides in MPI_Init. */
__attribute__((constructor)) static void start(int count, char **arguments) {
    (void)count;
    if (program_has_mpi()) {
        library_choose(arguments);
        tracer_decide();
    }
}

/* A program that ends without MPI_Finalize may have polled last. */
__attribute__((destructor)) static void stop(void) {
    if (tracer_state == RUNNING)
        flush_poll_runs();
    log_close();
}

static void greet(void) {
    struct nodescope_hello hello = {
        .kind = NODESCOPE_PROCESS_MPI_RANK, .world_rank = world_rank, .world_size = world_size, .pid = getpid(), .flavour = FLAVOUR, .version = NODESCOPE_ABI_VERSION};
    gethostname(hello.host, sizeof hello.host - 1);
    strncpy(hello.program, program_invocation_short_name, sizeof hello.program - 1);
    if (present)
        nodescope_call(NODESCOPE_OP_HELLO, &hello, sizeof hello, 0, NULL, 0);
    if (log_on)
        log_put(NODESCOPE_OP_HELLO, 0, sizeof hello, 0, &hello, 0);
}

void tracer_started(void) {
#define HELPER_RESOLVE(name) real.name = real_function("PMPI_" #name);
    HELPERS(HELPER_RESOLVE)
    DATATYPE_HELPERS(HELPER_RESOLVE)
#undef HELPER_RESOLVE
    real.Comm_rank(MPI_COMM_WORLD, &world_rank);
    real.Comm_size(MPI_COMM_WORLD, &world_size);
    tracer_state = RUNNING;
    if (present || log_on)
        greet();
}

void tracer_message(const char *text) {
    fprintf(stderr, "nodescope: %s\n", text);
    if (present)
        nodescope_call(NODESCOPE_OP_MESSAGE, (void *)(uintptr_t)text, strlen(text), 0, NULL, 0);
    if (log_on)
        log_put(NODESCOPE_OP_MESSAGE, 0, strlen(text), 0, text, 0);
}

void tracer_ends(void) {
    tracer_state = INERT;
}

/* ---- sending ---- */

static void dump(const void *bytes, size_t length) {
    pthread_mutex_lock(&dump_lock);
    if (dump_file < 0) {
        char path[4096];
        snprintf(path, sizeof path, "%s.%d", dump_path, world_rank);
        dump_file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (dump_file < 0)
            give_up("cannot create the file named by NODESCOPE_TRACE_DUMP: ", path);
    }
    for (const char *at = bytes; length > 0;) {
        ssize_t written = write(dump_file, at, length);
        if (written <= 0)
            give_up("cannot write the file named by NODESCOPE_TRACE_DUMP: ", dump_path);
        at += written;
        length -= written;
    }
    pthread_mutex_unlock(&dump_lock);
}

/* `returned` is when the MPI function had returned, of a log's clock. */
static void send(const void *records, size_t bytes, uint64_t returned) {
    if (present)
        nodescope_call(NODESCOPE_OP_MPI_EVENT, (void *)(uintptr_t)records, bytes, 0, NULL, 0);
    if (dump_path)
        dump(records, bytes);
    if (log_on)
        log_put(NODESCOPE_OP_MPI_EVENT, 0, bytes, 0, records, returned);
}

static void send_records(uint64_t returned) {
    send(thread.buffer, thread.used, returned);
    thread.used = 0;
}

static uint64_t thread_id(void) {
    if (!thread.pid) {
        thread.pid = getpid();
        thread.tid = syscall(SYS_gettid);
    }
    return (uint64_t)thread.pid << 32 | thread.tid;
}

static uint8_t *append(size_t bytes) {
    thread.buffer = grow(thread.buffer, &thread.room, thread.used + bytes, 1);
    uint8_t *at = thread.buffer + thread.used;
    thread.used += bytes;
    return at;
}

void call_begin(struct call *call, uint16_t function, uint16_t flags, void *call_site) {
    uint64_t began = log_on ? log_now() : 0;
    *call = (struct call){.record = {.function = function,
                                     .flags = flags,
                                     .rank = world_rank,
                                     .destination = NODESCOPE_NONE,
                                     .send_tag = NODESCOPE_NONE,
                                     .source = NODESCOPE_NONE,
                                     .receive_tag = NODESCOPE_NONE,
                                     .root = NODESCOPE_NONE,
                                     .calls = 1},
                          .began = began};
    call->module = site_of(call, (uintptr_t)call_site);
    thread.used = 0;
    append(sizeof call->record);
}

/* The host takes the record as far as it is known: should the call never end, that is what says where the thread stands. The record
 * was written a moment ago, so that its pages are there. */
static void announce(struct call *call) {
    uint64_t id = thread_id();
    call->record.pid = thread.pid;
    call->record.tid = thread.tid;
    call->record.sequence = thread.sequence;
    call->record.size = thread.used;
    if (present)
        nodescope_cpuid(NODESCOPE_OP_MPI_ENTER, call->record.function, id, thread.sequence, (uintptr_t)&call->record,
                        (uintptr_t)(thread.buffer + sizeof call->record));
    if (log_on)
        log_put(NODESCOPE_OP_MPI_ENTER, call->record.function, id, thread.sequence, NULL, call->began);
}

/* Appends a section with a text; its end, padded, is the record's. */
static void append_text(uint32_t kind, const char *text) {
    struct nodescope_section section = {kind, strlen(text)};
    size_t padded = (section.count + 7) / 8 * 8;
    memcpy(append(sizeof section), &section, sizeof section);
    memset(append(padded), 0, padded);
    memcpy(thread.buffer + thread.used - padded, text, section.count);
}

/* Before a call is announced, so that a call that never ends has the name too. */
static void name_module(struct call *call) {
    const char *module = module_announces(call->module);
    if (module) {
        append_text(NODESCOPE_SECTION_MODULE, module);
        call->record.sections++;
    }
}

/* Puts the header in front of the sections at the start of the buffer. */
static void close_record(struct call *call, int result) {
    call->record.result = result;
    call->record.rank = world_rank;
    call->record.size = thread.used;
    memcpy(thread.buffer, &call->record, sizeof call->record);
    for (int i = 0; i < call->claims; i++)
        request_unclaim(call->claimed[i]);
    object_released(call->ends);
}

static void append_runs(void) {
    while (thread.open_runs) {
        struct run *oldest = NULL;
        for (struct run *run = thread.runs; run < thread.runs + RUNS; run++)
            if (run->record.calls && (!oldest || run->record.sequence < oldest->record.sequence))
                oldest = run;
        size_t start = thread.used, serial_bytes = oldest->serial_count * sizeof *oldest->serials;
        struct nodescope_section section = {NODESCOPE_SECTION_REQUESTS, oldest->serial_count};
        const char *module = module_announces(oldest->module);
        oldest->record.sections = (oldest->serial_count > 0) + (module != NULL);
        append(sizeof oldest->record);
        if (oldest->serial_count) {
            memcpy(append(sizeof section), &section, sizeof section);
            memcpy(append(serial_bytes), oldest->serials, serial_bytes);
        }
        if (module)
            append_text(NODESCOPE_SECTION_MODULE, module);
        oldest->record.size = thread.used - start;
        memcpy(thread.buffer + start, &oldest->record, sizeof oldest->record);
        oldest->record.calls = 0;
        thread.open_runs--;
    }
}

void flush_poll_runs(void) {
    if (!thread.open_runs)
        return;
    thread.used = 0;
    append_runs();
    send_records(0);
}

void call_enter(struct call *call) {
    if (thread.open_runs) {
        /* The buffer's start is this call's, its sections may be there already: send the runs from behind them. */
        size_t own = thread.used;
        append_runs();
        send(thread.buffer + own, thread.used - own, 0);
        thread.used = own;
    }
    name_module(call);
    announce(call);
}

void call_leave(struct call *call, int result) {
    close_record(call, result);
    send_records(call->returned);
    thread.sequence++;
    returned(call);
}

/* ---- polls ---- */

void poll_enter(struct call *call) {
    announce(call);
}

static int same_poll(const struct run *run, const struct call *call, uint64_t hash, uint32_t serials) {
    const struct nodescope_mpi_record *a = &run->record, *b = &call->record;
    return a->calls && a->function == b->function && a->communicator == b->communicator && a->source == b->source &&
           a->receive_tag == b->receive_tag && a->object == b->object && a->detail == b->detail && a->call_site == b->call_site &&
           run->serial_hash == hash && run->serial_count == (serials < RUN_SERIALS ? serials : RUN_SERIALS);
}

void poll_leave(struct call *call, int result, int found) {
    if (found || result != MPI_SUCCESS) {
        /* The runs that it ends follow in the same hypercall, after the record whose interval must not contain their sending. */
        name_module(call);
        close_record(call, result);
        append_runs();
        send_records(call->returned);
        thread.sequence++;
        returned(call);
        return;
    }
    /* The only section that a poll makes before it succeeds is that of the requests given. */
    uint32_t serials = 0;
    const uint64_t *serial = NULL;
    if (call->record.sections) {
        const struct nodescope_section *section = (const void *)(thread.buffer + sizeof call->record);
        serials = section->count;
        serial = (const uint64_t *)(section + 1);
    }
    for (int i = 0; i < call->claims; i++)
        request_unclaim(call->claimed[i]);
    uint64_t hash = serials;
    for (uint32_t i = 0; i < serials; i++)
        hash = (hash ^ serial[i]) * 0x100000001b3ull;
    struct run *run = NULL, *unused = NULL;
    for (struct run *at = thread.runs; at < thread.runs + RUNS; at++) {
        if (same_poll(at, call, hash, serials))
            run = at;
        else if (!at->record.calls)
            unused = at;
    }
    uint64_t joined = run ? run->record.sequence : call->record.sequence;
    if (present)
        nodescope_cpuid(NODESCOPE_OP_MPI_POLL_FAILED, call->record.function, thread_id(), joined, 0, 0);
    if (log_on)
        log_put(NODESCOPE_OP_MPI_POLL_FAILED, call->record.function, thread_id(), joined, NULL, call->returned);
    if (run) {
        /* Its number was not used up: the thread's sequence has no gaps. */
        run->record.calls++;
        return;
    }
    thread.sequence++;
    struct run fresh = {.record = call->record, .module = call->module, .serial_hash = hash, .serial_count = serials < RUN_SERIALS ? serials : RUN_SERIALS};
    for (uint32_t i = 0; i < fresh.serial_count; i++)
        fresh.serials[i] = serial[i];
    fresh.record.flags |= NODESCOPE_FLAG_POLL_RUN | (serials > RUN_SERIALS ? NODESCOPE_FLAG_TAIL_DROPPED : 0);
    fresh.record.result = result;
    if (!unused) {
        flush_poll_runs();
        unused = thread.runs;
    }
    *unused = fresh;
    thread.open_runs++;
}

/* ---- arguments ---- */

void call_on(struct call *call, MPI_Comm handle) {
    call->communicator = communicator_of(handle);
    if (!call->communicator)
        return;
    call->record.communicator = call->communicator->id;
    call->record.communicator_size = call->communicator->size;
    if (call->communicator->inter)
        call->record.flags |= NODESCOPE_FLAG_INTERCOMM;
}

/* MPI_LONG_DOUBLE with an index, or two of them. Predefined datatypes are one block. */
enum { LARGEST_PREDEFINED = 32 };

uint64_t type_bytes(struct call *call, uint64_t count, MPI_Datatype type) {
    MPI_Count size = 0;
    if (type == MPI_DATATYPE_NULL || real.Type_size_x(type, &size) != MPI_SUCCESS || size < 0)
        return 0;
    if (!call->record.element_size) {
        call->record.element_size = size <= UINT32_MAX ? size : UINT32_MAX;
        call->record.element_blocks = size > LARGEST_PREDEFINED ? element_blocks(type) : 0;
    }
    return count * size;
}

void call_reduces(struct call *call, MPI_Op op) {
    call->record.reduction = op == MPI_MAX       ? NODESCOPE_REDUCTION_MAX
                             : op == MPI_MIN     ? NODESCOPE_REDUCTION_MIN
                             : op == MPI_SUM     ? NODESCOPE_REDUCTION_SUM
                             : op == MPI_PROD    ? NODESCOPE_REDUCTION_PROD
                             : op == MPI_LAND    ? NODESCOPE_REDUCTION_LAND
                             : op == MPI_BAND    ? NODESCOPE_REDUCTION_BAND
                             : op == MPI_LOR     ? NODESCOPE_REDUCTION_LOR
                             : op == MPI_BOR     ? NODESCOPE_REDUCTION_BOR
                             : op == MPI_LXOR    ? NODESCOPE_REDUCTION_LXOR
                             : op == MPI_BXOR    ? NODESCOPE_REDUCTION_BXOR
                             : op == MPI_MAXLOC  ? NODESCOPE_REDUCTION_MAXLOC
                             : op == MPI_MINLOC  ? NODESCOPE_REDUCTION_MINLOC
                             : op == MPI_REPLACE ? NODESCOPE_REDUCTION_REPLACE
                             : op == MPI_NO_OP   ? NODESCOPE_REDUCTION_NO_OP
                                                 : NODESCOPE_REDUCTION_USER;
}

int is_root(const struct call *call, int root) {
    if (!call->communicator)
        return 0;
    return call->communicator->inter ? root == MPI_ROOT : root == call->communicator->rank;
}

void call_made_communicator(struct call *call, struct communicator *made) {
    if (!made)
        return;
    call->record.new_communicator = made->id;
    if (made->rank != 0)
        return;
    if (made->inter) {
        section_ranks(call, NODESCOPE_SECTION_MEMBERS, made->local_world, made->local_size);
        section_ranks(call, NODESCOPE_SECTION_REMOTE_MEMBERS, made->world, made->size);
    } else {
        section_ranks(call, NODESCOPE_SECTION_MEMBERS, made->world, made->size);
    }
}

static struct object *on_object(struct call *call, struct object *object) {
    if (!object)
        return NULL;
    call->record.object = object->id;
    call->communicator = object->communicator;
    if (object->communicator) {
        call->record.communicator = object->communicator->id;
        call->record.communicator_size = object->communicator->size;
    }
    return object;
}

struct object *call_on_object(struct call *call, enum object_kind kind, uint64_t handle) {
    return on_object(call, object_of(kind, handle));
}

struct object *call_ends_object(struct call *call, enum object_kind kind, uint64_t handle) {
    return call->ends = on_object(call, object_taken(kind, handle));
}

/* ---- sections ---- */

static void *begin_section(struct call *call, uint32_t kind, uint32_t count, size_t element) {
    struct nodescope_section section = {kind, count};
    size_t bytes = (count * element + 7) / 8 * 8;
    /* Poll runs that a call ends travel in the same hypercall: leave them room. */
    if (count == 0)
        return NULL;
    if (thread.used + sizeof section + bytes > NODESCOPE_MAX_RECORDS - (RUNS + 1) * (sizeof(struct run) + 256)) {
        call->record.flags |= NODESCOPE_FLAG_TAIL_DROPPED;
        return NULL;
    }
    call->record.sections++;
    memcpy(append(sizeof section), &section, sizeof section);
    return memset(append(bytes), 0, bytes);
}

uint64_t *section_numbers(struct call *call, uint32_t kind, uint32_t count) {
    return begin_section(call, kind, count, sizeof(uint64_t));
}

void section_ranks(struct call *call, uint32_t kind, const int *world, int count) {
    int32_t *ranks = begin_section(call, kind, count > 0 ? count : 0, sizeof *ranks);
    for (int i = 0; ranks && i < count; i++)
        ranks[i] = world ? world[i] : i;
}

void section_text(struct call *call, uint32_t kind, const char *text) {
    size_t length = text ? strlen(text) : 0;
    char *at = begin_section(call, kind, length, 1);
    if (at)
        memcpy(at, text, length);
}

uint64_t section_bytes(struct call *call, uint32_t kind, int peers, const int *world, const void *counts, size_t width, MPI_Datatype type,
                       const MPI_Datatype *types) {
    uint64_t total = 0, *bytes = section_numbers(call, kind, peers), element = types ? 0 : type_bytes(call, 1, type);
    for (int i = 0; i < peers; i++) {
        uint64_t length = 0;
        if (!world || world[i] != NODESCOPE_PROC_NULL)
            length = types ? type_bytes(call, count_at(counts, width, i), types[i]) : count_at(counts, width, i) * element;
        if (bytes)
            bytes[i] = length;
        total += length;
    }
    return total;
}

static void claims(struct call *call, int count, const MPI_Request *requests, int anew) {
    if (count <= 0)
        return;
    thread.claimed = grow(thread.claimed, &thread.claimed_room, count, sizeof *thread.claimed);
    call->claimed = thread.claimed;
    call->claims = count;
    uint64_t *serials = section_numbers(call, NODESCOPE_SECTION_REQUESTS, count);
    for (int i = 0; i < count; i++) {
        struct request *request = call->claimed[i] = request_claim(&requests[i]);
        if (request && anew)
            request->serial = next_serial();
        if (serials)
            serials[i] = request ? request->serial : 0;
    }
}

void call_claims(struct call *call, int count, const MPI_Request *requests) {
    claims(call, count, requests, 0);
}

void call_claims_anew(struct call *call, int count, const MPI_Request *requests) {
    claims(call, count, requests, 1);
}

void call_starts(struct call *call, const MPI_Request *request, enum request_kind kind) {
    call->record.request = next_serial();
    request_made(request, kind, call->communicator, call->record.request, 0);
}

void call_prepares(struct call *call, const MPI_Request *request, enum request_kind kind) {
    call->record.request = next_serial();
    request_made(request, kind, call->communicator, 0, call->record.request);
}

MPI_Status *lend_statuses(int count) {
    size_t needed = count > 0 ? count : 1;
    thread.statuses = grow(thread.statuses, &thread.statuses_room, needed, sizeof *thread.statuses);
    memset(thread.statuses, 0, needed * sizeof *thread.statuses);
    return thread.statuses;
}

static void completed(struct nodescope_completion *done, const struct request *request, const struct communicator *on, int receive,
                      const MPI_Status *status) {
    int cancelled = 0;
    *done = (struct nodescope_completion){.request = request ? request->serial : 0, .index = done->index, .source = NODESCOPE_NONE, .tag = NODESCOPE_NONE};
    if (request && request->kind == REQUEST_OTHER)
        return;
    /* Only where the program asked for it: MPICH leaves the bit as it found it in the status of a probe. */
    if (request && request->cancelling)
        real.Test_cancelled(status, &cancelled);
    done->cancelled = cancelled != 0;
    if (cancelled || (!receive && !(request && request->kind == REQUEST_READ)))
        return;
    MPI_Count bytes = 0;
    if (real.Get_elements_x(status, MPI_BYTE, &bytes) == MPI_SUCCESS && bytes > 0)
        done->bytes = bytes;
    if (!receive)
        return;
    done->source = world_rank_of(on, status->MPI_SOURCE);
    if (status->MPI_TAG >= 0)
        done->tag = status->MPI_TAG;
}

void call_completes(struct call *call, int count, const int *indices, const MPI_Status *statuses) {
    int active = 0;
    if (call->claims == 0)
        return;
    for (int i = 0; i < count; i++) {
        struct request *request = call->claimed[indices ? indices[i] : i];
        active += request && request->serial;
    }
    struct nodescope_completion *done = begin_section(call, NODESCOPE_SECTION_COMPLETIONS, active, sizeof *done);
    for (int i = 0; i < count; i++) {
        int index = indices ? indices[i] : i;
        struct request *request = call->claimed[index];
        if (done && request && request->serial) {
            done->index = index;
            completed(done++, request, request->communicator, request->kind == REQUEST_RECEIVE, &statuses[i]);
        }
        request_completed(request);
        call->claimed[index] = NULL;
    }
}

void call_received(struct call *call, const MPI_Status *status) {
    struct nodescope_completion *done = begin_section(call, NODESCOPE_SECTION_COMPLETIONS, 1, sizeof *done);
    if (done)
        completed(done, NULL, call->communicator, 1, status);
}

void call_transferred(struct call *call, const MPI_Status *status, uint64_t serial, int read) {
    struct nodescope_completion *done = begin_section(call, NODESCOPE_SECTION_COMPLETIONS, 1, sizeof *done);
    const struct request file = {.serial = serial, .kind = read ? REQUEST_READ : REQUEST_OTHER};
    if (done)
        completed(done, &file, NULL, 0, status);
}
