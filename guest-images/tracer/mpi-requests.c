/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Requests by serial number. Handles will not do: MPI libraries reuse them, and both hand out one and the same handle for several
 * sends that completed at once (Open MPI's empty request, MPICH's lightweight request). Entries of equal handles are told apart by
 * the variable that the program keeps the request in; where it has moved the request, the oldest entry is taken, which is exact
 * for all but such completed sends.
 */
#include "mpi-tracer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUCKETS = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct request *first[BUCKETS], *last[BUCKETS], *spare;
static uint64_t serials;

static unsigned bucket(MPI_Request handle) {
    return (unsigned)(((uint64_t)(uintptr_t)handle * 0x9e3779b97f4a7c15ull) >> 52);
}

uint64_t next_serial(void) {
    return __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED);
}

void request_made(const MPI_Request *where, enum request_kind kind, struct communicator *communicator, uint64_t serial, uint64_t prepared) {
    if (*where == MPI_REQUEST_NULL)
        return;
    pthread_mutex_lock(&lock);
    struct request *entry = spare;
    if (entry)
        spare = entry->next;
    else if (!(entry = malloc(sizeof *entry))) {
        fputs("nodescope: the MPI tracer is out of memory\n", stderr);
        abort();
    }
    *entry = (struct request){.handle = *where, .where = where, .communicator = communicator, .serial = serial, .kind = kind, .prepared = prepared};
    communicator_hold(communicator);
    unsigned at = bucket(*where);
    if (first[at])
        last[at]->next = entry;
    else
        first[at] = entry;
    last[at] = entry;
    pthread_mutex_unlock(&lock);
}

struct request *request_claim(const MPI_Request *where) {
    if (*where == MPI_REQUEST_NULL)
        return NULL;
    struct request *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct request *entry = first[bucket(*where)]; entry; entry = entry->next) {
        if (entry->handle != *where || entry->claimed)
            continue;
        if (entry->where == where) {
            found = entry;
            break;
        }
        if (!found)
            found = entry;
    }
    if (found)
        found->claimed = 1;
    pthread_mutex_unlock(&lock);
    return found;
}

void request_unclaim(struct request *entry) {
    if (entry)
        entry->claimed = 0;
}

void request_gone(struct request *entry) {
    if (!entry)
        return;
    pthread_mutex_lock(&lock);
    unsigned at = bucket(entry->handle);
    struct request *previous = NULL;
    for (struct request *other = first[at]; other != entry; other = other->next)
        previous = other;
    if (previous)
        previous->next = entry->next;
    else
        first[at] = entry->next;
    if (last[at] == entry)
        last[at] = previous;
    struct communicator *communicator = entry->communicator;
    entry->next = spare;
    spare = entry;
    pthread_mutex_unlock(&lock);
    communicator_release(communicator);
}

void request_completed(struct request *entry) {
    if (!entry)
        return;
    if (!entry->prepared) {
        request_gone(entry);
        return;
    }
    entry->serial = 0;
    entry->claimed = entry->cancelling = 0;
}
