/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The mode, the recording as it is written and read, and the comparison of a made call with the recorded one. */
#define _GNU_SOURCE
#include "replay.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes that are written at a time, unless a single entry is larger. */
#define WRITTEN_AT_ONCE (1u << 20)

enum mode mode = MODE_INERT;
int nested;
struct replay_header replay_is;
struct library library;

static struct {
    char path[4096];
    int file;
    uint8_t *bytes;
    size_t used, room; /* recording: not yet written; replay: of the mapped file */
    size_t at;         /* replay: what is read next; recording: where the open entry begins */
    size_t entry_end;  /* replay: of the open entry */
    size_t last_poll;  /* recording: the last entry, if that is a poll that found nothing, else none */
    uint32_t repeated; /* replay: of the entry at hand, how many polls it has served */
    uint64_t calls;    /* that were served, from 1 */
    const char *thread; /* the one that makes all calls */
    int is_open;        /* recording: an entry is */
    int closed;
} recording = {.file = -1};
static const size_t none = SIZE_MAX;
/* Its address tells threads apart. */
static __thread char this_thread;

void *allocate_memory(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory)
        give_up("out of memory", "");
    return memory;
}

static const char *name_of(uint16_t function) {
    switch (function) {
#define NAME_CASE(name, number)                                                                                                \
    case number:                                                                                                               \
        return "MPI_" #name;
        NODESCOPE_MPI_FUNCTIONS(NAME_CASE)
#undef NAME_CASE
    }
    return "an unknown function";
}

/* ---- start and end ---- */

static void after_fork(void) {
    mode = MODE_INERT;
}

/* Returns whether the rank is in a comma-separated list; no list has all ranks. */
static int is_chosen(const char *list, int rank) {
    if (!list || !*list)
        return 1;
    for (const char *at = list; *at;) {
        char *end;
        errno = 0;
        long number = strtol(at, &end, 10);
        if (end == at || errno || number < 0 || (*end && *end != ','))
            give_up("NODESCOPE_RECORD_RANKS is no list of ranks such as 0,5: ", list);
        if (number == rank)
            return 1;
        at = *end ? end + 1 : end;
    }
    return 0;
}

static void write_out(void) {
    for (size_t done = 0; done < recording.used;) {
        ssize_t written = write(recording.file, recording.bytes + done, recording.used - done);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            char why[4200];
            snprintf(why, sizeof why, "%s: %s", recording.path, strerror(errno));
            give_up("it cannot write ", why);
        }
        done += written;
    }
    recording.used = 0;
    recording.last_poll = none;
}

static void append(const void *bytes, size_t count) {
    if (recording.used + count > recording.room) {
        recording.room = 2 * (recording.used + count);
        if (recording.room < 2 * WRITTEN_AT_ONCE)
            recording.room = 2 * WRITTEN_AT_ONCE;
        recording.bytes = realloc(recording.bytes, recording.room);
        if (!recording.bytes)
            give_up("out of memory", "");
    }
    memcpy(recording.bytes + recording.used, bytes, count);
    recording.used += count;
}

static void start_recording(int level) {
    int rank, size;
    library.Comm_rank(MPI_COMM_WORLD, &rank);
    library.Comm_size(MPI_COMM_WORLD, &size);
    if (!is_chosen(getenv("NODESCOPE_RECORD_RANKS"), rank)) {
        mode = MODE_INERT;
        return;
    }
    replay_is = (struct replay_header){.version = REPLAY_VERSION, .flavour = FLAVOUR, .rank = rank, .size = size, .thread_level = level};
    memcpy(replay_is.magic, REPLAY_MAGIC, sizeof replay_is.magic);
    const char *folder = getenv("NODESCOPE_RECORD");
    mkdir(folder, 0777);
    snprintf(recording.path, sizeof recording.path, "%s/rank-%d", folder, rank);
    recording.file = open(recording.path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (recording.file < 0)
        give_up("it cannot create the recording ", recording.path);
    recording.last_poll = none;
    append(&replay_is, sizeof replay_is);
    write_out();
}

static void start_replay(void) {
    struct stat file;
    snprintf(recording.path, sizeof recording.path, "%s", getenv("NODESCOPE_REPLAY"));
    recording.file = open(recording.path, O_RDONLY | O_CLOEXEC);
    if (recording.file < 0 || fstat(recording.file, &file) < 0)
        give_up("it cannot open the recording ", recording.path);
    recording.room = file.st_size;
    if (recording.room < sizeof replay_is)
        give_up("this file is no recording of a rank: ", recording.path);
    /* All of it is brought in now: a burst must not pay for reading the file. */
    recording.bytes = mmap(NULL, recording.room, PROT_READ, MAP_PRIVATE | MAP_POPULATE, recording.file, 0);
    if (recording.bytes == MAP_FAILED)
        give_up("it cannot map the recording ", recording.path);
    memcpy(&replay_is, recording.bytes, sizeof replay_is);
    recording.at = sizeof replay_is;
    if (memcmp(replay_is.magic, REPLAY_MAGIC, sizeof replay_is.magic) || replay_is.version != REPLAY_VERSION || replay_is.size < 1 ||
        replay_is.rank < 0 || replay_is.rank >= replay_is.size)
        give_up("this file is no recording of a rank, or of another version: ", recording.path);
    if (replay_is.flavour != FLAVOUR)
        give_up(FLAVOUR == NODESCOPE_FLAVOUR_OPEN_MPI ? "this is Open MPI, but the recording is of MPICH: " : "this is MPICH, but the recording is of Open MPI: ",
                recording.path);
    int size;
    library.Comm_size(MPI_COMM_WORLD, &size);
    if (size != 1)
        give_up("a replay is one process: start the program without mpirun, or with one rank. The recording is ", recording.path);
}

__attribute__((constructor)) static void choose_mode(void) {
    const char *record = getenv("NODESCOPE_RECORD"), *replay = getenv("NODESCOPE_REPLAY");
    int records = record && *record, replays = replay && *replay;
    if (!records && !replays)
        return;
    if (!program_has_mpi())
        return;
    library_check();
    if (records && replays)
        give_up("both NODESCOPE_RECORD and NODESCOPE_REPLAY are set; unset one", "");
    /* In effect once MPI_Init has returned. */
    nested = 1;
    mode = records ? MODE_RECORD : MODE_REPLAY;
    pthread_atfork(NULL, NULL, after_fork);
}

void replay_start(int level) {
#define LIBRARY_RESOLVE(name) library.name = real_function("PMPI_" #name);
    LIBRARY_FUNCTIONS(LIBRARY_RESOLVE)
#undef LIBRARY_RESOLVE
    recording.thread = &this_thread;
    if (mode == MODE_RECORD)
        start_recording(level);
    else
        start_replay();
    if (mode != MODE_INERT)
        describe_world();
    nested = 0;
}

/* The program ends: what is not yet written is. */
void replay_finish(void) {
    if (mode == MODE_RECORD && recording.file >= 0 && !recording.closed) {
        /* An entry that is open has no end: the call did not return. */
        if (recording.is_open)
            recording.used = recording.at;
        write_out();
        recording.closed = 1;
    }
}

__attribute__((destructor)) static void stop(void) {
    if (recording.file >= 0)
        replay_finish();
}

void refuse(const char *function, const char *why) {
    char text[512];
    snprintf(text, sizeof text, "%s%s. The call is number %llu of rank %d", function, why, (unsigned long long)recording.calls + 1, replay_is.rank);
    replay_finish();
    give_up("recordings do not cover ", text);
}

/* ---- entries ---- */

uint64_t bytes_of(MPI_Count count, MPI_Datatype type) {
    MPI_Count size = 0;
    if (type == MPI_DATATYPE_NULL || PMPI_Type_size_x(type, &size) != MPI_SUCCESS || size < 0)
        return 0;
    return count * size;
}

void call_opens(struct served_call *call, uint16_t function) {
    *call = (struct served_call){.entry = {.function = function,
                                    .communicator = REPLAY_NOTHING,
                                    .destination = REPLAY_NOTHING,
                                    .send_tag = REPLAY_NOTHING,
                                    .source = REPLAY_NOTHING,
                                    .receive_tag = REPLAY_NOTHING,
                                    .root = REPLAY_NOTHING,
                                    .detail = REPLAY_NOTHING}};
    if (&this_thread != recording.thread)
        refuse(name_of(function), " of a second thread; let one thread make all MPI calls");
}

void call_on_communicator(struct served_call *call, MPI_Comm comm) {
    call->on = described_of(comm);
    call->entry.communicator = call->on ? call->on->id : -1;
}

void call_sends(struct served_call *call, MPI_Count count, MPI_Datatype type, int destination, int tag) {
    call->entry.destination = destination;
    call->entry.send_tag = tag;
    call->entry.send_bytes = bytes_of(count, type);
}

void call_receives_from(struct served_call *call, int source, int tag) {
    call->entry.source = source;
    call->entry.receive_tag = tag;
}

void call_receives(struct served_call *call, void *buffer, MPI_Count count, MPI_Datatype type) {
    if (call->region_count == call->region_room) {
        call->region_room = call->region_room ? 2 * call->region_room : 2;
        call->regions = realloc(call->regions, call->region_room * sizeof *call->regions);
        if (!call->regions)
            give_up("out of memory", "");
    }
    call->regions[call->region_count++] = (struct region){buffer, count, type};
    call->entry.receive_bytes += bytes_of(count, type);
}

static void print_number(char *text, size_t room, const char *what, int number) {
    size_t used = strlen(text);
    if (number != REPLAY_NOTHING && used < room)
        snprintf(text + used, room - used, ", %s %d", what, number);
}

/* Values with a meaning of their own differ between the MPIs, and between ranks and tags. */
static void print_rank(char *text, size_t room, const char *what, int rank) {
    size_t used = strlen(text);
    const char *name = rank == MPI_ANY_SOURCE ? "MPI_ANY_SOURCE" : rank == MPI_PROC_NULL ? "MPI_PROC_NULL" : rank == MPI_ROOT ? "MPI_ROOT" : NULL;
    if (!name)
        print_number(text, room, what, rank);
    else if (used < room)
        snprintf(text + used, room - used, ", %s %s", what, name);
}

static void print_tag(char *text, size_t room, const char *what, int tag) {
    size_t used = strlen(text);
    if (tag != MPI_ANY_TAG)
        print_number(text, room, what, tag);
    else if (used < room)
        snprintf(text + used, room - used, ", %s MPI_ANY_TAG", what);
}

static void print_call(char *text, size_t room, const struct replay_entry *entry) {
    snprintf(text, room, "%s", name_of(entry->function));
    print_number(text, room, "communicator", entry->communicator);
    print_rank(text, room, "destination", entry->destination);
    print_tag(text, room, "tag sent", entry->send_tag);
    print_rank(text, room, "source", entry->source);
    print_tag(text, room, "tag received", entry->receive_tag);
    print_rank(text, room, "root", entry->root);
    print_number(text, room, entry->function < NODESCOPE_MPI_Comm_dup ? "requests" : "hash of other arguments", entry->detail);
    size_t used = strlen(text);
    if (entry->send_bytes && used < room)
        used += snprintf(text + used, room - used, ", %llu bytes sent", (unsigned long long)entry->send_bytes);
    if (entry->receive_bytes && used < room)
        snprintf(text + used, room - used, ", room for %llu bytes", (unsigned long long)entry->receive_bytes);
}

static int same_call(const struct replay_entry *a, const struct replay_entry *b) {
    return a->function == b->function && a->communicator == b->communicator && a->destination == b->destination &&
           a->send_tag == b->send_tag && a->source == b->source && a->receive_tag == b->receive_tag && a->root == b->root &&
           a->detail == b->detail && a->send_bytes == b->send_bytes && a->receive_bytes == b->receive_bytes;
}

static _Noreturn void diverges(const struct replay_entry *recorded, const struct replay_entry *made, const char *reason) {
    char was[400] = "the recording has ended", is[400], text[1200];
    if (recorded)
        print_call(was, sizeof was, recorded);
    print_call(is, sizeof is, made);
    snprintf(text, sizeof text,
             "the replay of rank %d diverges at call %llu%s%s.\n  recorded: %s\n  made:     %s\n  The program, its arguments, its input files or its "
             "environment are others than in the recorded run",
             replay_is.rank, (unsigned long long)recording.calls, reason ? ": " : "", reason ? reason : "", was, is);
    give_up(text, "");
}

static _Noreturn void damaged(void) {
    char text[4200];
    snprintf(text, sizeof text, "%s at byte %zu", recording.path, recording.at);
    give_up("the recording is damaged: ", text);
}

/* The entry that is to be served next; null at the end of the recording. */
static const struct replay_entry *next_entry(void) {
    if (recording.at == recording.room)
        return NULL;
    const struct replay_entry *entry = (const void *)(recording.bytes + recording.at);
    if (recording.room - recording.at < sizeof *entry || entry->size < sizeof *entry || entry->size % 8 ||
        entry->size > recording.room - recording.at)
        damaged();
    return entry;
}

int replay_finds_nothing(void) {
    const struct replay_entry *entry = next_entry();
    return entry && (entry->flags & REPLAY_FAILED_POLL);
}

static const struct replay_entry *open_entry;

void replay_diverges(const struct replay_entry *made, const char *reason) {
    diverges(open_entry, made, reason);
}

static const struct replay_entry *expect(const struct replay_entry *made) {
    const struct replay_entry *recorded = next_entry();
    recording.calls++;
    if (!recorded || !same_call(recorded, made))
        diverges(recorded, made, NULL);
    return recorded;
}

int call_answer(struct served_call *call, int result) {
    if (mode == MODE_RECORD) {
        recording.calls++;
        call->entry.result = result;
        recording.at = recording.used;
        recording.is_open = 1;
        append(&call->entry, sizeof call->entry);
        return result;
    }
    const struct replay_entry *recorded = expect(&call->entry);
    open_entry = recorded;
    if (recorded->flags & REPLAY_FAILED_POLL)
        diverges(recorded, &call->entry, "the recorded call found nothing");
    recording.entry_end = recording.at + recorded->size;
    recording.at += sizeof *recorded;
    return recorded->result;
}

void call_closes(struct served_call *call) {
    free(call->regions);
    if (mode == MODE_REPLAY) {
        if (recording.at > recording.entry_end)
            damaged();
        recording.at = recording.entry_end;
        return;
    }
    static const uint8_t zeros[8];
    append(zeros, (8 - recording.used % 8) % 8);
    uint64_t size = recording.used - recording.at;
    memcpy(recording.bytes + recording.at, &size, sizeof size);
    recording.last_poll = none;
    recording.is_open = 0;
    if (recording.used >= WRITTEN_AT_ONCE)
        write_out();
}

void call_found_nothing(struct served_call *call) {
    free(call->regions);
    if (mode == MODE_REPLAY) {
        const struct replay_entry *recorded = expect(&call->entry);
        if (recording.repeated++ >= recorded->repeats) {
            recording.repeated = 0;
            recording.at += recorded->size;
        }
        return;
    }
    recording.calls++;
    if (recording.last_poll != none) {
        struct replay_entry *last = (void *)(recording.bytes + recording.last_poll);
        if (same_call(last, &call->entry) && last->repeats < UINT32_MAX) {
            last->repeats++;
            return;
        }
    }
    if (recording.used >= WRITTEN_AT_ONCE)
        write_out();
    call->entry.flags = REPLAY_FAILED_POLL;
    call->entry.size = sizeof call->entry;
    recording.last_poll = recording.used;
    append(&call->entry, sizeof call->entry);
}

/* ---- results ---- */

void exchange(void *bytes, size_t count) {
    if (mode == MODE_RECORD) {
        append(bytes, count);
        return;
    }
    if (count > recording.entry_end - recording.at)
        damaged();
    memcpy(bytes, recording.bytes + recording.at, count);
    recording.at += count;
}

int exchange_int(int value) {
    int32_t number = value;
    exchange(&number, sizeof number);
    return number;
}

uint64_t status_bytes(const MPI_Status *status) {
    MPI_Count bytes = 0;
    if (PMPI_Get_elements_x(status, MPI_BYTE, &bytes) != MPI_SUCCESS || bytes < 0)
        return 0;
    return bytes;
}

void exchange_status(MPI_Status *status, int with_error) {
    struct {
        int32_t source, tag, error, cancelled;
        int64_t bytes;
    } kept;
    if (mode == MODE_RECORD) {
        int cancelled = 0;
        PMPI_Test_cancelled(status, &cancelled);
        kept.source = status->MPI_SOURCE;
        kept.tag = status->MPI_TAG;
        kept.error = with_error ? status->MPI_ERROR : 0;
        kept.cancelled = cancelled;
        kept.bytes = status_bytes(status);
    }
    exchange(&kept, sizeof kept);
    if (mode == MODE_REPLAY) {
        status->MPI_SOURCE = kept.source;
        status->MPI_TAG = kept.tag;
        if (with_error)
            status->MPI_ERROR = kept.error;
        PMPI_Status_set_elements_x(status, MPI_BYTE, kept.bytes);
        PMPI_Status_set_cancelled(status, kept.cancelled);
    }
}

/* Returns whether elements of a type lie side by side in memory as they are sent. */
static int is_dense(MPI_Datatype type, MPI_Count size) {
    MPI_Count lower, extent, true_lower, true_extent;
    PMPI_Type_get_extent_x(type, &lower, &extent);
    PMPI_Type_get_true_extent_x(type, &true_lower, &true_extent);
    return lower == 0 && extent == size && true_lower == 0 && true_extent == size;
}

static void exchange_packed(struct served_call *made, uint8_t *buffer, MPI_Count count, MPI_Datatype type, MPI_Count size) {
    static uint8_t *packed;
    static int room;
    MPI_Count lower, extent;
    PMPI_Type_get_extent_x(type, &lower, &extent);
    MPI_Count at_once = (1 << 30) / size;
    if (at_once < 1)
        refuse(name_of(made->entry.function), " of a datatype of more than 1 GiB");
    for (MPI_Count done = 0; done < count; done += at_once) {
        int elements = count - done < at_once ? count - done : at_once, needed, place = 0;
        PMPI_Pack_size(elements, type, MPI_COMM_SELF, &needed);
        if (needed > room) {
            free(packed);
            packed = allocate_memory(needed);
            room = needed;
        }
        uint8_t *from = buffer + done * extent;
        if (mode == MODE_RECORD)
            PMPI_Pack(from, elements, type, packed, room, &place, MPI_COMM_SELF);
        int length = exchange_int(place);
        if (length < 0 || length > room)
            damaged();
        exchange(packed, length);
        if (mode == MODE_REPLAY)
            PMPI_Unpack(packed, length, &place, from, elements, type, MPI_COMM_SELF);
    }
}

void exchange_regions(struct served_call *made, struct region *regions, int count, const MPI_Status *received) {
    if (exchange_int(count) != count)
        replay_diverges(&made->entry, "it completes an operation of another kind");
    for (int i = 0; i < count; i++) {
        struct region region = regions[i];
        MPI_Count size = 0;
        if (region.count > 0 && region.type != MPI_DATATYPE_NULL)
            PMPI_Type_size_x(region.type, &size);
        uint64_t bytes = size > 0 ? region.count * size : 0;
        if (received) {
            uint64_t came = status_bytes(received);
            if (came < bytes)
                bytes = came;
        }
        uint64_t recorded = bytes;
        exchange(&recorded, sizeof recorded);
        if (recorded != bytes)
            replay_diverges(&made->entry, "it receives into a buffer of another size");
        if (!bytes)
            continue;
        if (is_dense(region.type, size))
            exchange(region.buffer, bytes);
        else
            exchange_packed(made, region.buffer, (bytes + size - 1) / size, region.type, size);
    }
}
