/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Groups in a replay. The process has no other ranks of which the MPI could make a group. Each group is therefore a group of this process
 * alone, which gives a handle, with a list of world ranks beside it.
 */
#include "serve.h"

#include <stdlib.h>
#include <string.h>

struct members {
    struct members *next;
    MPI_Group handle;
    int count;
    int *ranks; /* world ranks */
};

static struct members *all;
static const struct members empty;

static const struct members *members_of(MPI_Group group) {
    for (const struct members *at = all; at; at = at->next)
        if (at->handle == group)
            return at;
    return &empty;
}

static MPI_Group add(int *ranks, int count) {
    if (count == 0) {
        free(ranks);
        return MPI_GROUP_EMPTY;
    }
    static MPI_Group own;
    static const int first[1];
    struct members *one = allocate_memory(sizeof *one);
    nested++;
    if (!own)
        library.Comm_group(MPI_COMM_SELF, &own);
    library.Group_incl(own, 1, first, &one->handle);
    nested--;
    one->count = count;
    one->ranks = ranks;
    one->next = all;
    all = one;
    return one->handle;
}

MPI_Group group_made(const int *world_ranks, int count) {
    int *ranks = allocate_memory(count * sizeof *ranks);
    memcpy(ranks, world_ranks, count * sizeof *ranks);
    return add(ranks, count);
}

static int place_of(const struct members *group, int rank) {
    for (int i = 0; i < group->count; i++)
        if (group->ranks[i] == rank)
            return i;
    return MPI_UNDEFINED;
}

static void forget(MPI_Group *group) {
    for (struct members **at = &all; *at; at = &(*at)->next) {
        struct members *one = *at;
        if (one->handle == *group) {
            *at = one->next;
            free(one->ranks);
            free(one);
            break;
        }
    }
    nested++;
    if (*group != MPI_GROUP_EMPTY)
        library.Group_free(group);
    nested--;
    *group = MPI_GROUP_NULL;
}

static int compare(MPI_Group a, MPI_Group b) {
    const struct members *x = members_of(a), *y = members_of(b);
    if (x->count != y->count)
        return MPI_UNEQUAL;
    if (x->count == 0 || !memcmp(x->ranks, y->ranks, x->count * sizeof *x->ranks))
        return MPI_IDENT;
    for (int i = 0; i < x->count; i++)
        if (place_of(y, x->ranks[i]) == MPI_UNDEFINED)
            return MPI_UNEQUAL;
    return MPI_SIMILAR;
}

/* Members of `a` inside and/or outside of `b`, followed, if asked for, by the members of `b` that are not in `a`. */
static MPI_Group combined(MPI_Group a, MPI_Group b, int inside, int outside, int others) {
    const struct members *x = members_of(a), *y = members_of(b);
    int *ranks = allocate_memory((x->count + y->count) * sizeof *ranks), count = 0;
    for (int i = 0; i < x->count; i++)
        if (place_of(y, x->ranks[i]) == MPI_UNDEFINED ? outside : inside)
            ranks[count++] = x->ranks[i];
    for (int i = 0; others && i < y->count; i++)
        if (place_of(x, y->ranks[i]) == MPI_UNDEFINED)
            ranks[count++] = y->ranks[i];
    return add(ranks, count);
}

static MPI_Group included(MPI_Group group, int count, const int places[]) {
    const struct members *of = members_of(group);
    int *ranks = allocate_memory(count * sizeof *ranks);
    for (int i = 0; i < count; i++)
        ranks[i] = places[i] >= 0 && places[i] < of->count ? of->ranks[places[i]] : MPI_UNDEFINED;
    return add(ranks, count);
}

static MPI_Group excluded(MPI_Group group, int count, const int places[]) {
    const struct members *of = members_of(group);
    int *ranks = allocate_memory(of->count * sizeof *ranks), kept = 0;
    for (int i = 0; i < of->count; i++) {
        int out = 0;
        for (int j = 0; j < count; j++)
            out |= places[j] == i;
        if (!out)
            ranks[kept++] = of->ranks[i];
    }
    return add(ranks, kept);
}

/* The places that ranges name; to be freed. */
static int *places_of(int count, int ranges[][3], int *places) {
    *places = 0;
    for (int i = 0; i < count; i++)
        if (ranges[i][2])
            *places += (ranges[i][1] - ranges[i][0]) / ranges[i][2] + 1;
    int *list = allocate_memory(*places * sizeof *list), at = 0;
    for (int i = 0; i < count; i++)
        for (int step = 0; ranges[i][2] && step <= (ranges[i][1] - ranges[i][0]) / ranges[i][2]; step++)
            list[at++] = ranges[i][0] + step * ranges[i][2];
    return list;
}

static MPI_Group ranged(MPI_Group group, int count, int ranges[][3], MPI_Group (*with)(MPI_Group, int, const int[])) {
    int places, *list = places_of(count, ranges, &places);
    MPI_Group made = with(group, places, list);
    free(list);
    return made;
}

static void translate(MPI_Group from, int count, const int ranks[], MPI_Group to, int there[]) {
    const struct members *x = members_of(from), *y = members_of(to);
    for (int i = 0; i < count; i++)
        there[i] = ranks[i] == MPI_PROC_NULL                   ? MPI_PROC_NULL
                   : ranks[i] >= 0 && ranks[i] < x->count ? place_of(y, x->ranks[ranks[i]])
                                                               : MPI_UNDEFINED;
}

ANSWER(Group_size, (MPI_Group group, int *size), (group, size), *size = members_of(group)->count)
ANSWER(Group_rank, (MPI_Group group, int *rank), (group, rank), *rank = place_of(members_of(group), replay_is.rank))
ANSWER(Group_translate_ranks, (MPI_Group from, int count, const int ranks[], MPI_Group to, int there[]), (from, count, ranks, to, there),
       translate(from, count, ranks, to, there))
ANSWER(Group_compare, (MPI_Group a, MPI_Group b, int *result), (a, b, result), *result = compare(a, b))
ANSWER(Group_union, (MPI_Group a, MPI_Group b, MPI_Group *made), (a, b, made), *made = combined(a, b, 1, 1, 1))
ANSWER(Group_intersection, (MPI_Group a, MPI_Group b, MPI_Group *made), (a, b, made), *made = combined(a, b, 1, 0, 0))
ANSWER(Group_difference, (MPI_Group a, MPI_Group b, MPI_Group *made), (a, b, made), *made = combined(a, b, 0, 1, 0))
ANSWER(Group_incl, (MPI_Group group, int count, const int places[], MPI_Group *made), (group, count, places, made),
       *made = included(group, count, places))
ANSWER(Group_excl, (MPI_Group group, int count, const int places[], MPI_Group *made), (group, count, places, made),
       *made = excluded(group, count, places))
ANSWER(Group_range_incl, (MPI_Group group, int count, int ranges[][3], MPI_Group *made), (group, count, ranges, made),
       *made = ranged(group, count, ranges, included))
ANSWER(Group_range_excl, (MPI_Group group, int count, int ranges[][3], MPI_Group *made), (group, count, ranges, made),
       *made = ranged(group, count, ranges, excluded))
ANSWER(Group_free, (MPI_Group * group), (group), forget(group))
