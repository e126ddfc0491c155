/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Communicator ids that are equal on every member and in every run, without a message. An id is a hash of three values: the parent's id,
 * the world ranks of the members in order, and the number of communicators made before of that parent and those members. All members take
 * part in each of these creations, in one order, so that all count alike.
 */
#include "mpi-tracer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1024 };

int world_rank = NODESCOPE_NONE, world_size;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct communicator *communicators[BUCKETS];
static struct creations {
    struct creations *next;
    uint64_t key, count;
} *creations[BUCKETS];

static void *allocate(size_t bytes) {
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) {
        fputs("nodescope: the MPI tracer is out of memory\n", stderr);
        abort();
    }
    return memory;
}

static uint64_t mix(uint64_t hash, uint64_t value) { /* FNV-1a over the value's bytes */
    for (int i = 0; i < 8; i++, value >>= 8)
        hash = (hash ^ (value & 0xff)) * 0x100000001b3ull;
    return hash;
}

static unsigned bucket(uint64_t value) {
    return (unsigned)((value * 0x9e3779b97f4a7c15ull) >> 54);
}

static uint64_t bits(MPI_Comm handle) {
    return (uint64_t)(uintptr_t)handle;
}

static MPI_Group world_group(void) {
    MPI_Group group;
    real.Comm_group(MPI_COMM_WORLD, &group);
    return group;
}

/* World ranks of a group's members. */
static int *world_ranks(MPI_Group group, int size) {
    int *local = allocate(size * sizeof *local), *world = allocate(size * sizeof *world);
    for (int i = 0; i < size; i++)
        local[i] = i;
    MPI_Group all = world_group();
    real.Group_translate_ranks(group, size, local, all, world);
    for (int i = 0; i < size; i++)
        if (world[i] < 0)
            world[i] = NODESCOPE_OUTSIDE;
    real.Group_free(&all);
    free(local);
    return world;
}

int *world_ranks_of_group(MPI_Group group, int *size) {
    real.Group_size(group, size);
    return world_ranks(group, *size);
}

static uint64_t hash_members(const int *world, int size) {
    uint64_t hash = mix(0xcbf29ce484222325ull, size);
    for (int i = 0; i < size; i++)
        hash = mix(hash, (uint32_t)world[i]);
    return hash;
}

static uint64_t id_for(uint64_t parent, uint64_t members) {
    uint64_t key = mix(mix(0xcbf29ce484222325ull, parent), members);
    struct creations **at = &creations[bucket(key)];
    while (*at && (*at)->key != key)
        at = &(*at)->next;
    if (!*at) {
        *at = allocate(sizeof **at);
        (*at)->key = key;
    }
    return mix(key, (*at)->count++) | 1ull << 63;
}

static struct communicator *insert(struct communicator *entry) {
    struct communicator **head = &communicators[bucket(bits(entry->handle))];
    entry->holders = 1;
    entry->next = *head;
    return *head = entry;
}

static struct communicator *find(MPI_Comm handle) {
    struct communicator *entry = communicators[bucket(bits(handle))];
    while (entry && entry->handle != handle)
        entry = entry->next;
    return entry;
}

static struct communicator *add(uint64_t parent, MPI_Comm handle) {
    struct communicator *entry = allocate(sizeof *entry);
    MPI_Group group;
    int size;
    entry->handle = handle;
    real.Comm_test_inter(handle, &entry->inter);
    real.Comm_rank(handle, &entry->rank);
    real.Comm_size(handle, &size);
    real.Comm_group(handle, &group);
    int *local = world_ranks(group, size);
    real.Group_free(&group);
    uint64_t members = hash_members(local, size);
    if (entry->inter) {
        real.Comm_remote_size(handle, &entry->size);
        real.Comm_remote_group(handle, &group);
        entry->world = world_ranks(group, entry->size);
        real.Group_free(&group);
        /* Both sides must agree, so the order of the groups must not matter. */
        members += hash_members(entry->world, entry->size);
        entry->local_size = size;
        entry->local_world = local;
    } else {
        entry->size = size;
        entry->world = local;
    }
    entry->members = members;
    if (handle == MPI_COMM_WORLD) {
        entry->id = NODESCOPE_COMM_WORLD;
        free(entry->world);
        entry->world = NULL;
    } else {
        entry->id = handle == MPI_COMM_SELF ? NODESCOPE_COMM_SELF : id_for(parent, members);
    }
    return insert(entry);
}

struct communicator *communicator_of(MPI_Comm handle) {
    if (handle == MPI_COMM_NULL)
        return NULL;
    pthread_mutex_lock(&lock);
    struct communicator *entry = find(handle);
    if (!entry)
        entry = add(NODESCOPE_COMM_NONE, handle);
    pthread_mutex_unlock(&lock);
    return entry;
}

struct communicator *communicator_made(uint64_t parent, MPI_Comm made) {
    if (made == MPI_COMM_NULL)
        return NULL;
    communicator_forget(made); /* a handle of this value that was freed out of sight */
    pthread_mutex_lock(&lock);
    struct communicator *entry = add(parent, made);
    pthread_mutex_unlock(&lock);
    return entry;
}

static int *copy(const int *ranks, int count) {
    if (!ranks)
        return NULL;
    int *all = allocate(count * sizeof *all);
    memcpy(all, ranks, count * sizeof *all);
    return all;
}

struct communicator *communicator_promised(struct communicator *parent, MPI_Comm made) {
    if (!parent || made == MPI_COMM_NULL)
        return NULL;
    communicator_forget(made);
    struct communicator *entry = allocate(sizeof *entry);
    *entry = *parent;
    entry->handle = made;
    entry->world = copy(parent->world, parent->size);
    entry->local_world = copy(parent->local_world, parent->local_size);
    entry->neighbours = NULL;
    pthread_mutex_lock(&lock);
    entry->id = id_for(parent->id, parent->members);
    insert(entry);
    pthread_mutex_unlock(&lock);
    return entry;
}

uint64_t shared_id(const struct communicator *on, uint64_t salt) {
    pthread_mutex_lock(&lock);
    uint64_t id = id_for(on ? on->id : NODESCOPE_COMM_NONE, mix(on ? on->members : 0, salt));
    pthread_mutex_unlock(&lock);
    return id;
}

static struct neighbours *room_for(int destinations, int sources) {
    struct neighbours *all = allocate(sizeof *all + (destinations + sources) * sizeof *all->ranks);
    all->destinations = destinations;
    all->sources = sources;
    return all;
}

/* In the order that the standard gives the neighbours of each kind of topology. */
static struct neighbours *find_neighbours(const struct communicator *on) {
    struct neighbours *all = NULL;
    int kind = MPI_UNDEFINED, count, sources, weighted;
    real.Topo_test(on->handle, &kind);
    if (kind == MPI_CART) {
        real.Cartdim_get(on->handle, &count);
        all = room_for(2 * count, 2 * count);
        for (int i = 0; i < count; i++)
            real.Cart_shift(on->handle, i, 1, &all->ranks[2 * i], &all->ranks[2 * i + 1]);
        memcpy(all->ranks + 2 * count, all->ranks, 2 * count * sizeof *all->ranks);
    } else if (kind == MPI_GRAPH) {
        real.Graph_neighbors_count(on->handle, on->rank, &count);
        all = room_for(count, count);
        real.Graph_neighbors(on->handle, on->rank, count, all->ranks);
        memcpy(all->ranks + count, all->ranks, count * sizeof *all->ranks);
    } else if (kind == MPI_DIST_GRAPH) {
        real.Dist_graph_neighbors_count(on->handle, &sources, &count, &weighted);
        all = room_for(count, sources);
        int *weights = allocate((count + sources) * sizeof *weights);
        real.Dist_graph_neighbors(on->handle, sources, all->ranks + count, weights, count, all->ranks, weights + sources);
        free(weights);
    }
    for (int i = 0; all && i < all->destinations + all->sources; i++)
        all->ranks[i] = world_rank_of(on, all->ranks[i]);
    return all;
}

const struct neighbours *neighbours_of(struct communicator *on) {
    if (!on)
        return NULL;
    struct neighbours *known = __atomic_load_n(&on->neighbours, __ATOMIC_ACQUIRE), *none = NULL;
    if (known)
        return known;
    known = find_neighbours(on);
    if (known && !__atomic_compare_exchange_n(&on->neighbours, &none, known, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        free(known); /* another thread was faster */
        known = none;
    }
    return known;
}

void communicator_hold(struct communicator *entry) {
    if (entry)
        __atomic_fetch_add(&entry->holders, 1, __ATOMIC_RELAXED);
}

void communicator_release(struct communicator *entry) {
    if (entry && __atomic_sub_fetch(&entry->holders, 1, __ATOMIC_ACQ_REL) == 0) {
        free(entry->world);
        free(entry->local_world);
        free(entry->neighbours);
        free(entry);
    }
}

void communicator_forget(MPI_Comm handle) {
    struct communicator *entry = NULL;
    pthread_mutex_lock(&lock);
    for (struct communicator **at = &communicators[bucket(bits(handle))]; *at; at = &(*at)->next) {
        if ((*at)->handle == handle) {
            entry = *at;
            *at = entry->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    communicator_release(entry);
}

int world_rank_of(const struct communicator *entry, int rank) {
    if (rank == MPI_PROC_NULL || rank == MPI_ROOT)
        return NODESCOPE_PROC_NULL;
    if (rank == MPI_ANY_SOURCE)
        return NODESCOPE_ANY;
    if (!entry || rank < 0 || rank >= entry->size)
        return NODESCOPE_NONE;
    return entry->world ? entry->world[rank] : rank;
}
