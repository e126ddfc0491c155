/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "mpi-log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mpi-tracer.h"

/* Mapped at a time: large enough that mapping the next is rare. */
#define PIECE (8ull << 20)
/* Frames after which the header's last moment is brought up to date. */
#define FRAMES_A_MOMENT 1024

int log_on;
int log_clock_is_tsc;

static struct {
    char path[4096];
    int file;
    uint8_t *base;            /* of the piece */
    uint64_t start, end, used; /* of the piece, and of what is written, from the start of the file */
    uint64_t frames;
    struct nodescope_log_header *header; /* mapped throughout */
} out = {.file = -1};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void fail(const char *what, int error) {
    fprintf(stderr, "nodescope: the MPI tracer stops this program: cannot %s %s: %s\n", what, out.path, strerror(error));
    _exit(127);
}

/* Maps the piece of the file in which `bytes` more fit. */
static void next_piece(uint64_t bytes) {
    if (out.base)
        munmap(out.base, out.end - out.start);
    uint64_t page = sysconf(_SC_PAGESIZE);
    out.start = out.used / page * page;
    out.end = out.start + (bytes + page + PIECE) / PIECE * PIECE;
    /* Space is taken now: a full disk is an error here and a signal later. */
    int error = posix_fallocate(out.file, out.start, out.end - out.start);
    if (error)
        fail("extend", error);
    void *base = mmap(NULL, out.end - out.start, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, out.file, out.start);
    if (base == MAP_FAILED)
        fail("map", errno);
    out.base = base;
}

static uint64_t processor_frequency(void) {
    double best = 0, mhz;
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "cpu MHz : %lf", &mhz) == 1 && mhz > best)
            best = mhz;
    if (file)
        fclose(file);
    return best * 1e6;
}

static uint64_t read_clock(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static struct nodescope_log_moment moment(void) {
    uint64_t before = log_now();
    struct nodescope_log_moment now = {.monotonic = read_clock(CLOCK_MONOTONIC)};
    now.ticks = before + (log_now() - before) / 2;
    now.real = read_clock(CLOCK_REALTIME);
    return now;
}

static int kernel_relies_on_tsc(void) {
    char name[16] = "";
    FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r");
    if (!file)
        return 0;
    int is = fgets(name, sizeof name, file) && !strcmp(name, "tsc\n");
    fclose(file);
    return is;
}

void log_open(void) {
    const char *folder = getenv("NODESCOPE_TRACE_LOG");
    if (!folder || !*folder)
        return;
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(out.path, sizeof out.path, "%s/%s-%d.calls", folder, host, (int)getpid());
    out.file = open(out.path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out.file < 0)
        fail("create", errno);
    next_piece(0);
    out.header = mmap(NULL, sizeof *out.header, PROT_READ | PROT_WRITE, MAP_SHARED, out.file, 0);
    if (out.header == MAP_FAILED)
        fail("map", errno);
    log_clock_is_tsc = kernel_relies_on_tsc();
    struct nodescope_log_header header = {
        .version = NODESCOPE_LOG_VERSION, .processors = sysconf(_SC_NPROCESSORS_ONLN), .frequency = processor_frequency(), .first = moment()};
    header.last = header.first;
    memcpy(header.magic, NODESCOPE_LOG_MAGIC, sizeof header.magic);
    *out.header = header;
    out.used = sizeof header;
    log_on = 1;
}

void log_leave(void) {
    if (!log_on)
        return;
    log_on = 0;
    munmap(out.base, out.end - out.start);
    munmap(out.header, sizeof *out.header);
    close(out.file);
}

void log_close(void) {
    if (!log_on)
        return;
    out.header->last = moment();
    /* Where that fails, the zeros that are left over end it as well. */
    int error = ftruncate(out.file, out.used);
    (void)error;
    log_leave();
}

void log_put(uint32_t operation, uint64_t a0, uint64_t a1, uint64_t a2, const void *payload, uint64_t time) {
    struct nodescope_log_frame frame = {.operation = operation, .arguments = {a0, a1, a2}};
    uint64_t padded = payload ? (a1 + 7) / 8 * 8 : 0, size = sizeof frame + padded;
    pthread_mutex_lock(&lock);
    if (out.used + size + sizeof frame > out.end)
        next_piece(size + sizeof frame);
    struct nodescope_log_frame *at = (void *)(out.base + (out.used - out.start));
    out.used += size;
    out.frames++;
    if (out.frames % FRAMES_A_MOMENT == 0 || (out.frames & (out.frames - 1)) == 0)
        out.header->last = moment();
    if (payload) {
        memcpy(at + 1, payload, a1);
        memset((uint8_t *)(at + 1) + a1, 0, padded - a1);
    }
    *at = frame;
    uint64_t now = log_now();
    at->inner = operation == NODESCOPE_OP_MPI_ENTER || !time ? now : time;
    at->outer = operation == NODESCOPE_OP_MPI_ENTER && time ? time : now;
    __atomic_store_n(&at->size, size, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
}
