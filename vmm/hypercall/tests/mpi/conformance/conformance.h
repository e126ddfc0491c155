/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Declarations that the small programs share. Each is a function of its file's name, which all four ranks of MPI_COMM_WORLD call. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORLD MPI_COMM_WORLD
#define IGNORE MPI_STATUS_IGNORE

extern int rank, size, left, right; /* in MPI_COMM_WORLD, which is taken for a ring */

/* The bytes that all calls of a function on this rank pass in, and that they receive, in this run of the program. */
void expect(const char *function, unsigned long long sent, unsigned long long received);

/* Ends the job if something that the program computed is wrong. */
#define CHECK(condition)                                                                                                       \
    do {                                                                                                                       \
        if (!(condition)) {                                                                                                    \
            fprintf(stderr, "%s:%d: rank %d: not so: %s\n", __FILE__, __LINE__, rank, #condition);                            \
            exit(3);                                                                                                           \
        }                                                                                                                      \
    } while (0)

/* Fills with numbers that tell rank and place. */
static inline void fill(int *values, int count, int from) {
    for (int i = 0; i < count; i++)
        values[i] = 1000 * from + i;
}

static inline int filled(const int *values, int count, int from) {
    for (int i = 0; i < count; i++)
        if (values[i] != 1000 * from + i)
            return 0;
    return 1;
}

#endif
