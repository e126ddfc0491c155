/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Communicators: their descriptions, which the recording has, and the questions that a replay answers from them.
 *
 * In a replay a communicator is one of the process's own with a single rank: a duplicate of MPI_COMM_SELF, or of the communicator of
 * which it is a duplicate, so that attributes are copied as the program has asked. Attributes, names, error handlers and
 * Fortran's handles are therefore the MPI's.
 */
#include "serve.h"

#include <stdlib.h>
#include <string.h>

static struct described *all;
static int next_id;

struct described *described_of(MPI_Comm handle) {
    for (struct described *at = all; at; at = at->next)
        if (at->handle == handle)
            return at;
    return NULL;
}

void described_forget(MPI_Comm handle) {
    for (struct described **at = &all; *at; at = &(*at)->next) {
        struct described *one = *at;
        if (one->handle == handle) {
            *at = one->next;
            free(one->members);
            free(one->remote);
            free(one->topology_numbers);
            free(one);
            return;
        }
    }
}

static struct described *add(MPI_Comm handle) {
    described_forget(handle); /* a handle of this value that was freed out of sight */
    struct described *one = allocate_memory(sizeof *one);
    *one = (struct described){.next = all, .handle = handle, .id = next_id++, .topology = MPI_UNDEFINED};
    return all = one;
}

static int *numbers(int count) {
    return allocate_memory(count * sizeof(int));
}

/* World ranks of a group's members; the group is freed. */
static int *world_ranks(MPI_Group group, int count) {
    MPI_Group world;
    int *own = numbers(count), *there = numbers(count);
    for (int i = 0; i < count; i++)
        own[i] = i;
    library.Comm_group(MPI_COMM_WORLD, &world);
    library.Group_translate_ranks(group, count, own, world, there);
    library.Group_free(&world);
    library.Group_free(&group);
    free(own);
    return there;
}

static void ask_topology(struct described *one) {
    MPI_Comm comm = one->handle;
    library.Topo_test(comm, &one->topology);
    int *n;
    if (one->topology == MPI_CART) {
        int dims;
        library.Cartdim_get(comm, &dims);
        one->numbers = 3 * dims;
        n = one->topology_numbers = numbers(one->numbers);
        library.Cart_get(comm, dims, n, n + dims, n + 2 * dims);
    } else if (one->topology == MPI_GRAPH) {
        int nodes, edges;
        library.Graphdims_get(comm, &nodes, &edges);
        one->numbers = 2 + nodes + edges;
        n = one->topology_numbers = numbers(one->numbers);
        n[0] = nodes;
        n[1] = edges;
        library.Graph_get(comm, nodes, edges, n + 2, n + 2 + nodes);
    } else if (one->topology == MPI_DIST_GRAPH) {
        int sources, destinations, weighted;
        library.Dist_graph_neighbors_count(comm, &sources, &destinations, &weighted);
        one->numbers = 3 + 2 * (sources + destinations);
        n = one->topology_numbers = numbers(one->numbers);
        memset(n, 0, one->numbers * sizeof *n);
        n[0] = sources;
        n[1] = destinations;
        n[2] = weighted;
        int *to = n + 3 + 2 * sources;
        library.Dist_graph_neighbors(comm, sources, n + 3, n + 3 + sources, destinations, to, to + destinations);
    }
}

static void ask(struct described *one) {
    MPI_Group group;
    library.Comm_test_inter(one->handle, &one->inter);
    library.Comm_rank(one->handle, &one->rank);
    library.Comm_size(one->handle, &one->size);
    library.Comm_group(one->handle, &group);
    one->members = world_ranks(group, one->size);
    if (one->inter) {
        library.Comm_remote_size(one->handle, &one->remote_size);
        library.Comm_remote_group(one->handle, &group);
        one->remote = world_ranks(group, one->remote_size);
    } else {
        ask_topology(one);
    }
}

static void exchange_numbers(int **list, int count) {
    if (mode == MODE_REPLAY)
        *list = numbers(count);
    exchange(*list, count * sizeof(int));
}

static void exchange_description(struct described *one) {
    one->rank = exchange_int(one->rank);
    one->size = exchange_int(one->size);
    one->inter = exchange_int(one->inter);
    one->remote_size = exchange_int(one->remote_size);
    one->topology = exchange_int(one->topology);
    one->numbers = exchange_int(one->numbers);
    /* No list is longer than the recording. */
    if (one->size < 0 || one->remote_size < 0 || one->numbers < 0)
        give_up("the recording is damaged: a communicator of a negative size", "");
    exchange_numbers(&one->members, one->size);
    exchange_numbers(&one->remote, one->remote_size);
    exchange_numbers(&one->topology_numbers, one->numbers);
}

void describe_world(void) {
    struct described *world = add(MPI_COMM_WORLD), *self = add(MPI_COMM_SELF);
    world->rank = replay_is.rank;
    world->size = replay_is.size;
    world->members = numbers(world->size);
    for (int i = 0; i < world->size; i++)
        world->members[i] = i;
    self->size = 1;
    self->members = numbers(1);
    self->members[0] = replay_is.rank;
}

void exchange_communicator(MPI_Comm *made, MPI_Comm duplicate_of) {
    if (!exchange_int(mode == MODE_RECORD && *made != MPI_COMM_NULL)) {
        if (mode == MODE_REPLAY)
            *made = MPI_COMM_NULL;
        return;
    }
    if (mode == MODE_REPLAY)
        library.Comm_dup(duplicate_of, made);
    struct described *one = add(*made);
    if (mode == MODE_RECORD)
        ask(one);
    exchange_description(one);
}

static int *copied(const int *list, int count) {
    int *copy = numbers(count);
    if (count)
        memcpy(copy, list, count * sizeof *copy);
    return copy;
}

/* The handle must not be used yet, but of a duplicate all is known. */
void exchange_promised(MPI_Comm *made, MPI_Comm duplicate_of) {
    if (mode == MODE_REPLAY)
        library.Comm_dup(duplicate_of, made);
    const struct described *original = described_of(duplicate_of);
    struct described *one = add(*made), links = *one;
    if (!original)
        return;
    *one = *original;
    one->next = links.next;
    one->handle = links.handle;
    one->id = links.id;
    one->members = copied(original->members, original->size);
    one->remote = copied(original->remote, original->remote_size);
    one->topology_numbers = copied(original->topology_numbers, original->numbers);
}

int peers_of(const struct described *on) {
    return !on ? 0 : on->inter ? on->remote_size : on->size;
}

int receives_at_root(const struct described *on, int root) {
    return on && (on->inter ? root == MPI_ROOT : root == on->rank);
}

/* Of a graph, where a node's edges begin and how many it has. */
static int edges_of(const struct described *on, int rank, const int **first) {
    const int *n = on->topology_numbers, *index = n + 2, *edges = n + 2 + n[0];
    if (rank < 0 || rank >= n[0])
        return 0;
    int begin = rank ? index[rank - 1] : 0;
    if (first)
        *first = edges + begin;
    return index[rank] - begin;
}

int sources_of(const struct described *on) {
    if (!on)
        return 0;
    return on->topology == MPI_CART         ? 2 * on->numbers / 3
           : on->topology == MPI_GRAPH      ? edges_of(on, on->rank, NULL)
           : on->topology == MPI_DIST_GRAPH ? on->topology_numbers[0]
                                            : 0;
}

int destinations_of(const struct described *on) {
    return on && on->topology == MPI_DIST_GRAPH ? on->topology_numbers[1] : sources_of(on);
}

/* ---- questions ---- */

/* Of a communicator that this library does not know, the MPI says that it is none. */
#define ASKED(COMM, ...)                                                                                                       \
    const struct described *on = described_of(COMM);                                                                           \
    if (!on)                                                                                                                   \
        return next(__VA_ARGS__)
#define ASKED_OF(COMM, KIND, ...)                                                                                              \
    ASKED(COMM, __VA_ARGS__);                                                                                                  \
    if (on->topology != KIND)                                                                                                  \
    return next(__VA_ARGS__)

ANSWER(Comm_rank, (MPI_Comm comm, int *rank), (comm, rank), ASKED(comm, comm, rank); *rank = on->rank)
ANSWER(Comm_size, (MPI_Comm comm, int *size), (comm, size), ASKED(comm, comm, size); *size = on->size)
ANSWER(Comm_remote_size, (MPI_Comm comm, int *size), (comm, size), ASKED(comm, comm, size); *size = on->remote_size)
ANSWER(Comm_test_inter, (MPI_Comm comm, int *inter), (comm, inter), ASKED(comm, comm, inter); *inter = on->inter)
ANSWER(Comm_group, (MPI_Comm comm, MPI_Group *group), (comm, group), ASKED(comm, comm, group); *group = group_made(on->members, on->size))
ANSWER(Comm_remote_group, (MPI_Comm comm, MPI_Group *group), (comm, group), ASKED(comm, comm, group);
       *group = group_made(on->remote, on->remote_size))
ANSWER(Topo_test, (MPI_Comm comm, int *kind), (comm, kind), ASKED(comm, comm, kind); *kind = on->topology)

static int has(const int *list, int count, int rank) {
    for (int i = 0; i < count; i++)
        if (list[i] == rank)
            return 1;
    return 0;
}

static int compared(const int *a, int a_count, const int *b, int b_count) {
    if (a_count != b_count)
        return MPI_UNEQUAL;
    if (a_count == 0 || !memcmp(a, b, a_count * sizeof *a))
        return MPI_CONGRUENT;
    for (int i = 0; i < a_count; i++)
        if (!has(b, b_count, a[i]))
            return MPI_UNEQUAL;
    return MPI_SIMILAR;
}

static int compare(MPI_Comm a, const struct described *x, MPI_Comm b, const struct described *y) {
    if (a == b)
        return MPI_IDENT;
    if (x->inter != y->inter)
        return MPI_UNEQUAL;
    int local = compared(x->members, x->size, y->members, y->size);
    int remote = x->inter ? compared(x->remote, x->remote_size, y->remote, y->remote_size) : MPI_CONGRUENT;
    return local == MPI_UNEQUAL || remote == MPI_UNEQUAL ? MPI_UNEQUAL : local == MPI_SIMILAR ? local : remote;
}

ANSWER(Comm_compare, (MPI_Comm a, MPI_Comm b, int *result), (a, b, result), ASKED(a, a, b, result);
       const struct described *other = described_of(b); if (!other) return next(a, b, result); *result = compare(a, on, b, other))

ANSWER(Cartdim_get, (MPI_Comm comm, int *dims), (comm, dims), ASKED_OF(comm, MPI_CART, comm, dims); *dims = on->numbers / 3)

static void cart_get(const struct described *on, int room, int sizes[], int periods[], int places[]) {
    int dims = on->numbers / 3;
    for (int i = 0; i < dims && i < room; i++) {
        sizes[i] = on->topology_numbers[i];
        periods[i] = on->topology_numbers[dims + i];
        places[i] = on->topology_numbers[2 * dims + i];
    }
}
ANSWER(Cart_get, (MPI_Comm comm, int room, int sizes[], int periods[], int places[]), (comm, room, sizes, periods, places),
       ASKED_OF(comm, MPI_CART, comm, room, sizes, periods, places); cart_get(on, room, sizes, periods, places))

/* Ranks of a grid are in row-major order (MPI 4.0, section 8.2). */
static int cart_rank(const struct described *on, const int places[], int *rank) {
    int dims = on->numbers / 3;
    const int *sizes = on->topology_numbers, *periods = sizes + dims;
    *rank = 0;
    for (int i = 0; i < dims; i++) {
        int place = places[i];
        if (periods[i])
            place = (place % sizes[i] + sizes[i]) % sizes[i];
        else if (place < 0 || place >= sizes[i])
            return 0;
        *rank = *rank * sizes[i] + place;
    }
    return 1;
}
ANSWER(Cart_rank, (MPI_Comm comm, const int places[], int *rank), (comm, places, rank), ASKED_OF(comm, MPI_CART, comm, places, rank);
       if (!cart_rank(on, places, rank)) return MPI_ERR_ARG)

static void cart_places(const struct described *on, int rank, int room, int places[]) {
    for (int i = on->numbers / 3 - 1; i >= 0; i--) {
        int size = on->topology_numbers[i];
        if (i < room)
            places[i] = rank % size;
        rank /= size;
    }
}
ANSWER(Cart_coords, (MPI_Comm comm, int rank, int room, int places[]), (comm, rank, room, places),
       ASKED_OF(comm, MPI_CART, comm, rank, room, places); cart_places(on, rank, room, places))

static int moved(const struct described *on, int direction, int by) {
    int dims = on->numbers / 3, rank;
    int *places = copied(on->topology_numbers + 2 * dims, dims);
    places[direction] += by;
    if (!cart_rank(on, places, &rank))
        rank = MPI_PROC_NULL;
    free(places);
    return rank;
}
ANSWER(Cart_shift, (MPI_Comm comm, int direction, int by, int *source, int *destination), (comm, direction, by, source, destination),
       ASKED_OF(comm, MPI_CART, comm, direction, by, source, destination);
       if (direction < 0 || direction >= on->numbers / 3) return next(comm, direction, by, source, destination);
       *source = moved(on, direction, -by); *destination = moved(on, direction, by))

/* Both MPIs leave ranks where they are. */
static int mapped(const struct described *on, int64_t places) {
    return on->rank < places ? on->rank : MPI_UNDEFINED;
}
static int64_t product(int count, const int sizes[]) {
    int64_t all_places = 1;
    for (int i = 0; i < count; i++)
        all_places *= sizes[i];
    return all_places;
}
ANSWER(Cart_map, (MPI_Comm comm, int dims, const int sizes[], const int periods[], int *rank), (comm, dims, sizes, periods, rank),
       ASKED(comm, comm, dims, sizes, periods, rank); *rank = mapped(on, product(dims, sizes)))
ANSWER(Graph_map, (MPI_Comm comm, int nodes, const int index[], const int edges[], int *rank), (comm, nodes, index, edges, rank),
       ASKED(comm, comm, nodes, index, edges, rank); *rank = mapped(on, nodes))

ANSWER(Graphdims_get, (MPI_Comm comm, int *nodes, int *edges), (comm, nodes, edges), ASKED_OF(comm, MPI_GRAPH, comm, nodes, edges);
       *nodes = on->topology_numbers[0]; *edges = on->topology_numbers[1])

static void copy_some(int *to, const int *from, int count, int room) {
    if (count > room)
        count = room;
    if (count > 0)
        memcpy(to, from, count * sizeof *to);
}
ANSWER(Graph_get, (MPI_Comm comm, int index_room, int edge_room, int index[], int edges[]), (comm, index_room, edge_room, index, edges),
       ASKED_OF(comm, MPI_GRAPH, comm, index_room, edge_room, index, edges); const int *n = on->topology_numbers;
       copy_some(index, n + 2, n[0], index_room); copy_some(edges, n + 2 + n[0], n[1], edge_room))
ANSWER(Graph_neighbors_count, (MPI_Comm comm, int rank, int *count), (comm, rank, count), ASKED_OF(comm, MPI_GRAPH, comm, rank, count);
       *count = edges_of(on, rank, NULL))
ANSWER(Graph_neighbors, (MPI_Comm comm, int rank, int room, int neighbours[]), (comm, rank, room, neighbours),
       ASKED_OF(comm, MPI_GRAPH, comm, rank, room, neighbours); const int *first = NULL; int count = edges_of(on, rank, &first);
       copy_some(neighbours, first, count, room))
ANSWER(Dist_graph_neighbors_count, (MPI_Comm comm, int *sources, int *destinations, int *weighted), (comm, sources, destinations, weighted),
       ASKED_OF(comm, MPI_DIST_GRAPH, comm, sources, destinations, weighted); *sources = on->topology_numbers[0];
       *destinations = on->topology_numbers[1]; *weighted = on->topology_numbers[2])

/* MPICH's is a variable of the library, which must not be linked. */
static const int *unweighted(void) {
#if defined(OPEN_MPI)
    return MPI_UNWEIGHTED;
#else
    int *const *variable = mpi_symbol("MPI_UNWEIGHTED");
    return variable ? *variable : NULL;
#endif
}

static void near(const struct described *on, int source_room, int sources[], int source_weights[], int room, int destinations[], int weights[]) {
    const int *n = on->topology_numbers, *from = n + 3, *to = from + 2 * n[0];
    copy_some(sources, from, n[0], source_room);
    copy_some(destinations, to, n[1], room);
    if (n[2] && source_weights != unweighted())
        copy_some(source_weights, from + n[0], n[0], source_room);
    if (n[2] && weights != unweighted())
        copy_some(weights, to + n[1], n[1], room);
}
ANSWER(Dist_graph_neighbors, (MPI_Comm comm, int source_room, int sources[], int source_weights[], int room, int destinations[], int weights[]),
       (comm, source_room, sources, source_weights, room, destinations, weights),
       ASKED_OF(comm, MPI_DIST_GRAPH, comm, source_room, sources, source_weights, room, destinations, weights);
       near(on, source_room, sources, source_weights, room, destinations, weights))
