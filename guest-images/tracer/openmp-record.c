/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The record of a process: its statistics of OpenMP as a text of lines, with tabs between the columns. In a guest the record is put among the files of the
 * results (openmp/HOST-PID.openmp). On real hardware NODESCOPE_OPENMP_LOG=FOLDER turns tracing on, and the file is
 * FOLDER/HOST-PID.openmp. The crate plugins/analysis/openmp reads the record; its README.md has the columns.
 */
#define _GNU_SOURCE
#include "openmp-core.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job-id.h"
#include "mpi-log.h"
#include "nodescope.h"

/* Where the process is killed, statistics of its last seconds are lost; a record is written as often. */
#define REFRESH_SECONDS 1

static char folder[3800];
static int in_guest;
static struct nodescope_log_moment opened_at;
static uint64_t next_refresh, ticks_a_refresh;

/* The MPI tracer has these, too; each library has its own. */
int log_clock_is_tsc;

static int kernel_relies_on_tsc(void) {
    char name[16] = "";
    FILE *file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "r");
    if (!file)
        return 0;
    char *read = fgets(name, sizeof name, file);
    fclose(file);
    return read && !strncmp(name, "tsc", 3);
}

static uint64_t read_clock(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static struct nodescope_log_moment moment(void) {
    struct nodescope_log_moment now = {.ticks = log_now(), .monotonic = read_clock(CLOCK_MONOTONIC), .real = read_clock(CLOCK_REALTIME)};
    return now;
}

void record_open(void) {
    const char *named = getenv("NODESCOPE_OPENMP_LOG");
    if (named && *named) {
        if (strlen(named) >= sizeof folder) {
            fprintf(stderr, "nodescope: the OpenMP tracer is off: the path of NODESCOPE_OPENMP_LOG has more than %zu bytes\n", sizeof folder - 1);
            return;
        }
        strcpy(folder, named);
    } else if (nodescope_attach() == NODESCOPE_PRESENT) {
        in_guest = 1;
    } else {
        return;
    }
    log_clock_is_tsc = kernel_relies_on_tsc();
    opened_at = moment();
    next_refresh = opened_at.ticks;
    tracing = 1;
}

/* ---- text ---- */

struct text {
    char *bytes;
    size_t length, room;
};

__attribute__((format(printf, 2, 3))) static void put(struct text *text, const char *format, ...) {
    for (;;) {
        va_list arguments;
        va_start(arguments, format);
        size_t left = text->room - text->length;
        int needed = vsnprintf(text->bytes ? text->bytes + text->length : NULL, left, format, arguments);
        va_end(arguments);
        if (needed < 0)
            return;
        if ((size_t)needed < left) {
            text->length += needed;
            return;
        }
        size_t room = 2 * text->room + needed + 4096;
        char *larger = realloc(text->bytes, room);
        if (!larger)
            return;
        text->bytes = larger;
        text->room = room;
    }
}

/* A name as the last column: what would end the line becomes a blank. */
static void put_name(struct text *text, const char *name) {
    size_t start = text->length;
    put(text, "%s", name);
    for (size_t i = start; i < text->length; i++)
        if ((unsigned char)text->bytes[i] < ' ')
            text->bytes[i] = ' ';
    put(text, "\n");
}

/* ---- modules ---- */

struct module {
    uintptr_t start, end, base;
    char name[1024];
    char build_id[65];
    int used;
};

struct modules {
    size_t count, room;
    struct module *all;
};

static void read_build_id(struct module *module, uintptr_t base, const ElfW(Phdr) *part) {
    const char *at = (const char *)(base + part->p_vaddr), *end = at + part->p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
        const ElfW(Nhdr) *note = (const void *)at;
        const char *name = at + sizeof *note, *id = name + ((note->n_namesz + 3) & ~3u);
        if (id + note->n_descsz > end)
            return;
        if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && !memcmp(name, "GNU", 4)) {
            for (uint32_t i = 0; i < note->n_descsz && i < 32; i++)
                sprintf(module->build_id + 2 * i, "%02x", (unsigned char)id[i]);
            return;
        }
        at = id + ((note->n_descsz + 3) & ~3u);
    }
}

static int add_module(struct dl_phdr_info *info, size_t size, void *data) {
    struct modules *modules = data;
    (void)size;
    if (modules->count == modules->room) {
        size_t room = modules->room ? 2 * modules->room : 64;
        struct module *more = realloc(modules->all, room * sizeof *more);
        if (!more)
            return 1;
        modules->all = more;
        modules->room = room;
    }
    struct module *module = &modules->all[modules->count];
    memset(module, 0, sizeof *module);
    module->base = info->dlpi_addr;
    module->start = UINTPTR_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t from = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD) {
            module->start = from < module->start ? from : module->start;
            module->end = from + part->p_memsz > module->end ? from + part->p_memsz : module->end;
        } else if (part->p_type == PT_NOTE && !module->build_id[0]) {
            read_build_id(module, info->dlpi_addr, part);
        }
    }
    if (modules->count == 0 || !info->dlpi_name || !*info->dlpi_name) {
        ssize_t length = modules->count ? -1 : readlink("/proc/self/exe", module->name, sizeof module->name - 1);
        if (length <= 0)
            strcpy(module->name, "[unknown]");
    } else {
        snprintf(module->name, sizeof module->name, "%s", info->dlpi_name);
    }
    modules->count++;
    return 0;
}

/* The module's number from 1, 0 for an address in none; the address becomes relative. */
static size_t place(struct modules *modules, uintptr_t *address) {
    for (size_t i = 0; *address && i < modules->count; i++) {
        struct module *module = &modules->all[i];
        if (*address >= module->start && *address < module->end) {
            *address -= module->base;
            module->used = 1;
            return i + 1;
        }
    }
    return 0;
}

/* ---- the record ---- */

/* The first of these variables that is set, as a number. */
static long first_number(const char *const *names, long otherwise) {
    for (; *names; names++) {
        const char *value = getenv(*names);
        char *end;
        if (value && *value) {
            long number = strtol(value, &end, 10);
            if (!*end)
                return number;
        }
    }
    return otherwise;
}

static int worth_writing(void) {
    /* A process that has used no OpenMP leaves no record, but for intervals, which its author wants to see. */
    for (struct thread *t = __atomic_load_n(&all_threads, __ATOMIC_ACQUIRE); t; t = t->next)
        if (t->event_count)
            return 1;
    return interval_count() > 1;
}

static void put_thread(struct text *text, struct modules *modules, const struct thread *t) {
    put(text, "thread\t%u\t%d\t%u\t%d\t%" PRIu64 "\n", t->id, t->tid, t->number, t->root, t->first);
    for (uint32_t i = 0; i < t->cell_room; i++) {
        for (const struct cell *cell = t->cells[i]; cell; cell = cell->next) {
            uintptr_t region = cell->region;
            size_t module = place(modules, &region);
            put(text, "times\t%u\t%u\t%zu\t%" PRIxPTR "\t%" PRIu64 "\t%" PRIu64, t->id, cell->interval, module, region, cell->imbalance,
                cell->scheduling);
            for (int state = 0; state < STATES; state++)
                put(text, "\t%" PRIu64, cell->ticks[state]);
            put(text, "\n");
        }
    }
    for (uint32_t i = 0; i < t->event_room; i++) {
        for (const struct event *event = t->events[i]; event; event = event->next) {
            uintptr_t region = event->region, address = event->address;
            size_t region_module = place(modules, &region), module = place(modules, &address);
            if (!event->count)
                continue;
            put(text,
                "event\t%u\t%u\t%zu\t%" PRIxPTR "\t%u\t%zu\t%" PRIxPTR "\t%u\t%" PRId64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64
                "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\n",
                t->id, event->interval, region_module, region, event->kind, module, address, event->schedule, event->chunk, event->count,
                event->first, event->total, event->longest, event->waited, event->ended, event->iterations, event->chunks);
        }
    }
}

static void put_record(struct text *text, int complete) {
    static const char *const ranks[] = {"PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", NULL};
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", NULL};
    struct modules modules = {0};
    char host[64] = "";
    struct nodescope_log_moment now = moment();
    gethostname(host, sizeof host - 1);
    dl_iterate_phdr(add_module, &modules);
    put(text, "nodescope-openmp\t1\n");
    put(text, "process\t%d\t%ld\t%ld\t%ld\t%u\t", (int)getpid(), first_number(ranks, -1), first_number(sizes, -1), sysconf(_SC_NPROCESSORS_ONLN),
        peak_threads);
    put_name(text, runtime_name);
    put(text, "program\t%" PRIx64 "\n", job_id());
    put(text, "host\t");
    put_name(text, host);
    put(text, "clock\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\n", opened_at.ticks, opened_at.monotonic, now.ticks, now.monotonic);
    for (uint32_t id = 0; id < interval_count(); id++) {
        struct interval_time time = interval_time_at(id, now.ticks);
        if (!id)
            time = (struct interval_time){1, opened_at.ticks, now.ticks - opened_at.ticks, now.ticks - opened_at.ticks};
        put(text, "interval\t%u\t%u\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t", id, interval_at(id)->parent, time.count, time.first,
            time.total, time.longest);
        put_name(text, interval_at(id)->name);
    }
    for (struct thread *t = __atomic_load_n(&all_threads, __ATOMIC_ACQUIRE); t; t = t->next)
        put_thread(text, &modules, t);
    for (size_t i = 0; i < modules.count; i++) {
        struct module *module = &modules.all[i];
        if (module->used || i == 0) {
            put(text, "module\t%zu\t%s\t", i + 1, module->build_id[0] ? module->build_id : "-");
            put_name(text, module->name);
        }
    }
    put(text, "end\t%s\n", complete ? "exit" : "running");
    free(modules.all);
}

/* Writes a file by another name first: whoever reads it finds a whole record. */
static void write_file(const struct text *text, const char *path, const char *part) {
    int file = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    size_t done = 0;
    int error = file < 0 ? errno : 0;
    while (!error && done < text->length) {
        ssize_t wrote = write(file, text->bytes + done, text->length - done);
        if (wrote > 0)
            done += wrote;
        else if (wrote < 0 && errno != EINTR)
            error = errno;
    }
    if (file >= 0 && close(file) && !error)
        error = errno;
    if (!error && rename(part, path))
        error = errno;
    if (error)
        fprintf(stderr, "nodescope: the OpenMP tracer cannot write %s: %s\n", path, strerror(error));
}

static void put_file(const struct text *text, const char *name) {
    for (size_t done = 0; done < text->length;) {
        size_t size = text->length - done;
        size = size < NODESCOPE_MAX_CHUNK ? size : NODESCOPE_MAX_CHUNK;
        int last = done + size == text->length;
        struct nodescope_answer answer =
            nodescope_call(NODESCOPE_OP_PUT_FILE, (void *)name, strlen(name), done, text->bytes + done, size | (last ? NODESCOPE_PUT_LAST : 0));
        if (answer.status != NODESCOPE_OK) {
            fprintf(stderr, "nodescope: the OpenMP tracer's record %s is not among the results: status %u\n", name, answer.status);
            return;
        }
        done += size;
    }
}

void record_write(int complete) {
    if (!worth_writing())
        return;
    struct text text = {0};
    char host[64] = "", path[4096], part[4096];
    put_record(&text, complete);
    gethostname(host, sizeof host - 1);
    if (in_guest) {
        snprintf(path, sizeof path, "openmp/%s-%d.openmp", host, (int)getpid());
        put_file(&text, path);
    } else {
        snprintf(path, sizeof path, "%s/%s-%d.openmp", folder, host, (int)getpid());
        snprintf(part, sizeof part, "%s/%s-%d.part", folder, host, (int)getpid());
        write_file(&text, path, part);
    }
    free(text.bytes);
}

void record_refresh(uint64_t now) {
    if (in_guest || now < next_refresh)
        return;
    if (!ticks_a_refresh) {
        /* The first region's end: by now the clock's frequency is known well enough. */
        struct nodescope_log_moment then = moment();
        uint64_t nanoseconds = then.monotonic - opened_at.monotonic;
        if (nanoseconds < 1000000)
            return;
        ticks_a_refresh = (double)(then.ticks - opened_at.ticks) / nanoseconds * 1e9 * REFRESH_SECONDS;
    } else {
        record_write(0);
    }
    next_refresh = log_now() + ticks_a_refresh;
}
