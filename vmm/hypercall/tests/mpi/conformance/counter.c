/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Counts calls of MPI functions, by function and rank, without knowing anything of them: stubs.s, which the test writes, has a stub of
 * each name in mpi.h, for C and for Fortran. A stub counts the call, if it is made in the program itself and not in a library, and
 * jumps on to the next definition of the same name. Written for the test alone; it has nothing of the tracer's.
 *
 * COUNTER_OUTPUT.RANK gets a line for each program and function: the program, "calls", the function, how many; and what a program
 * expects: the program, "bytes", the function, bytes sent, bytes received.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From stubs.s. */
extern const char *const counter_names[];
extern unsigned long counter_calls[];
extern void *counter_next[];
extern const unsigned long counter_functions;

unsigned long counter_start, counter_length; /* of the program's own code */

static const char *program = "start";
static FILE *out;

static int own_code(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size, (void)data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && part->p_flags & PF_X) {
            counter_start = info->dlpi_addr + part->p_vaddr;
            counter_length = part->p_memsz;
        }
    }
    return 1; /* the first is the program */
}

static void open_output(void) {
    char path[4096];
    const char *folder = getenv("COUNTER_OUTPUT"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!rank)
        rank = getenv("PMI_RANK");
    if (out || !folder || !rank)
        return;
    snprintf(path, sizeof path, "%s.%s", folder, rank);
    out = fopen(path, "w");
}

static void flush(void) {
    open_output();
    for (unsigned long i = 0; i < counter_functions; i++) {
        unsigned long calls = __atomic_exchange_n(&counter_calls[i], 0, __ATOMIC_RELAXED);
        if (calls && out)
            fprintf(out, "%s calls %s %lu\n", program, counter_names[i], calls);
    }
}

void counter_enter(const char *next) {
    flush();
    program = next ? next : "between";
}

void counter_expect(const char *function, unsigned long long sent, unsigned long long received) {
    open_output();
    if (out)
        fprintf(out, "%s bytes %s %llu %llu\n", program, function, sent, received);
}

void *counter_find(unsigned long number) {
    void *next = dlsym(RTLD_NEXT, counter_names[number]);
    if (!next) {
        fprintf(stderr, "counter: nobody else defines %s\n", counter_names[number]);
        abort();
    }
    counter_next[number] = next;
    return next;
}

__attribute__((constructor)) static void begin(void) {
    dl_iterate_phdr(own_code, NULL);
}

__attribute__((destructor)) static void end(void) {
    flush();
    if (out)
        fclose(out);
}
