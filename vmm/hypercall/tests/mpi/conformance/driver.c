/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Runs the programs one after the other in one MPI job. Around each stand two marks in the trace, which calls of PMPI_Reduce_local make:
 * the counter does not count them, because they are not of the form MPI_X. Arguments: -t for an initialisation with
 * MPI_THREAD_MULTIPLE, then the names of the programs.
 */
#include "conformance.h"

#include "programs.h"

#define PROGRAM(name) void name(void);
PROGRAMS
#undef PROGRAM

static const struct {
    const char *name;
    void (*run)(void);
} programs[] = {
#define PROGRAM(name) {#name, name},
    PROGRAMS
#undef PROGRAM
};

int rank, size, left, right;

/* From counter.c. */
void counter_enter(const char *program);
void counter_expect(const char *function, unsigned long long sent, unsigned long long received);

void expect(const char *function, unsigned long long sent, unsigned long long received) {
    counter_expect(function, sent, received);
}

/* A mark of a length that no program uses. */
static void mark(int number) {
    static int out[20000], inout[20000];
    PMPI_Reduce_local(out, inout, 10000 + number, MPI_INT, MPI_BXOR);
}

int main(int count, char **arguments) {
    int first = 1;
    if (count > 1 && !strcmp(arguments[1], "-t")) {
        int level;
        first = 2;
        MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &level);
        CHECK(level == MPI_THREAD_MULTIPLE);
    } else {
        MPI_Init(&count, &arguments);
    }
    MPI_Comm_rank(WORLD, &rank);
    MPI_Comm_size(WORLD, &size);
    CHECK(size == 4);
    left = (rank + size - 1) % size;
    right = (rank + 1) % size;
    for (int at = first; at < count; at++) {
        for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
            if (strcmp(programs[i].name, arguments[at]))
                continue;
            PMPI_Barrier(WORLD);
            mark(at - first);
            counter_enter(programs[i].name);
            programs[i].run();
            counter_enter(NULL);
            mark(at - first);
        }
    }
    MPI_Finalize();
    return 0;
}
