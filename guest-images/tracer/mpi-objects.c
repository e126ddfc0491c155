/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* RMA windows, files and matched messages by their handles: what was made of which communicator, under which id. */
#include "mpi-tracer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUCKETS = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object *objects[BUCKETS];

static struct object **bucket(enum object_kind kind, uint64_t handle) {
    return &objects[((handle + kind) * 0x9e3779b97f4a7c15ull) >> 56];
}

struct object *object_made(enum object_kind kind, uint64_t handle, struct communicator *on) {
    object_released(object_taken(kind, handle)); /* one of this handle that went out of sight */
    struct object *made = calloc(1, sizeof *made);
    if (!made) {
        fputs("nodescope: the MPI tracer is out of memory\n", stderr);
        abort();
    }
    /* A message is its receiver's alone. */
    *made = (struct object){.kind = kind, .handle = handle, .communicator = on, .unit = 1, .id = kind == OBJECT_MESSAGE ? 0 : shared_id(on, kind)};
    communicator_hold(on);
    pthread_mutex_lock(&lock);
    struct object **head = bucket(kind, handle);
    made->next = *head;
    *head = made;
    pthread_mutex_unlock(&lock);
    return made;
}

struct object *object_of(enum object_kind kind, uint64_t handle) {
    pthread_mutex_lock(&lock);
    struct object *found = *bucket(kind, handle);
    while (found && (found->handle != handle || found->kind != kind))
        found = found->next;
    pthread_mutex_unlock(&lock);
    return found;
}

struct object *object_taken(enum object_kind kind, uint64_t handle) {
    struct object *taken = NULL;
    pthread_mutex_lock(&lock);
    for (struct object **at = bucket(kind, handle); *at; at = &(*at)->next) {
        if ((*at)->handle == handle && (*at)->kind == kind) {
            taken = *at;
            *at = taken->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return taken;
}

void object_released(struct object *taken) {
    if (taken) {
        communicator_release(taken->communicator);
        free(taken);
    }
}
