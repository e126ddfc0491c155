/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* In how many pieces the data of a datatype lies in memory, on which depends what it costs to pack (MPI 4.0, section 5.1.13). */
#include <stdlib.h>

#include "mpi-tracer.h"

#if defined(STANDARD_ABI)

uint64_t element_blocks(MPI_Datatype type) {
    (void)type;
    return 0;
}

#else

/* Larger descriptions of datatypes, and deeper ones, are not looked at. */
enum { MOST_NUMBERS = 1 << 16, DEEPEST = 8 };

/* A datatype keeps its number of blocks as an attribute: its handle may stand for another datatype once it is freed. */
static int attribute = MPI_KEYVAL_INVALID;

static int not_copied(MPI_Datatype type, int key, void *extra, void *from, void *to, int *flag) {
    (void)type, (void)key, (void)extra, (void)from, (void)to;
    *flag = 0;
    return MPI_SUCCESS;
}

static int nothing_to_delete(MPI_Datatype type, int key, void *value, void *extra) {
    (void)type, (void)key, (void)value, (void)extra;
    return MPI_SUCCESS;
}

/* Elements of a dense datatype one after the other are one block. */
static int is_dense(MPI_Datatype type) {
    MPI_Count size, lower, extent;
    return real.Type_size_x(type, &size) == MPI_SUCCESS && real.Type_get_extent_x(type, &lower, &extent) == MPI_SUCCESS && size == extent;
}

static uint64_t blocks_of(MPI_Datatype type, int depth);

/* Blocks of `count` elements one after the other. */
static uint64_t in_a_row(MPI_Datatype type, int count, int depth) {
    return count <= 0 ? 0 : is_dense(type) ? 1 : (uint64_t)count * blocks_of(type, depth + 1);
}

/* Sizes, parts and starts of each dimension follow the number of dimensions, and then the order. */
static uint64_t of_subarray(const int *numbers, MPI_Datatype type, int depth) {
    int dimensions = numbers[0], c_order = numbers[1 + 3 * dimensions] == MPI_ORDER_C;
    const int *sizes = numbers + 1, *parts = sizes + dimensions;
    uint64_t blocks = 1, row = 1;
    int whole = 1;
    for (int i = 0; i < dimensions; i++) {
        int at = c_order ? dimensions - 1 - i : i;
        if (whole)
            row *= parts[at];
        else
            blocks *= parts[at];
        whole = whole && parts[at] == sizes[at];
    }
    return blocks * (is_dense(type) ? 1 : row * blocks_of(type, depth + 1));
}

static uint64_t of_contents(int combiner, const int *numbers, const MPI_Datatype *types, int depth) {
    uint64_t blocks = 0;
    switch (combiner) {
    case MPI_COMBINER_DUP:
    case MPI_COMBINER_RESIZED:
        return blocks_of(types[0], depth + 1);
    case MPI_COMBINER_CONTIGUOUS:
        return in_a_row(types[0], numbers[0], depth);
    case MPI_COMBINER_VECTOR:
    case MPI_COMBINER_HVECTOR:
    case MPI_COMBINER_INDEXED_BLOCK:
    case MPI_COMBINER_HINDEXED_BLOCK:
        return numbers[0] * in_a_row(types[0], numbers[1], depth);
    case MPI_COMBINER_INDEXED:
    case MPI_COMBINER_HINDEXED:
        for (int i = 0; i < numbers[0]; i++)
            blocks += in_a_row(types[0], numbers[1 + i], depth);
        return blocks;
    case MPI_COMBINER_STRUCT:
        for (int i = 0; i < numbers[0]; i++)
            blocks += in_a_row(types[i], numbers[1 + i], depth);
        return blocks;
    case MPI_COMBINER_SUBARRAY:
        return of_subarray(numbers, types[0], depth);
    default:
        return 0;
    }
}

static int is_named(MPI_Datatype type) {
    int integers, addresses, types, combiner;
    return real.Type_get_envelope(type, &integers, &addresses, &types, &combiner) != MPI_SUCCESS || combiner == MPI_COMBINER_NAMED;
}

static uint64_t blocks_of(MPI_Datatype type, int depth) {
    int integers, addresses, types, combiner;
    if (is_dense(type) || is_named(type))
        return 1;
    real.Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    if (depth > DEEPEST || integers < 0 || addresses < 0 || types < 0 || integers > MOST_NUMBERS || addresses > MOST_NUMBERS || types > MOST_NUMBERS)
        return 0;
    int *numbers = calloc(integers + 1, sizeof *numbers);
    MPI_Aint *places = calloc(addresses + 1, sizeof *places);
    MPI_Datatype *parts = calloc(types + 1, sizeof *parts);
    uint64_t blocks = 0;
    if (numbers && places && parts && real.Type_get_contents(type, integers, addresses, types, numbers, places, parts) == MPI_SUCCESS) {
        blocks = of_contents(combiner, numbers, parts, depth);
        for (int i = 0; i < types; i++)
            if (!is_named(parts[i]))
                real.Type_free(&parts[i]);
    }
    free(numbers);
    free(places);
    free(parts);
    return blocks;
}

uint64_t element_blocks(MPI_Datatype type) {
    void *known = NULL;
    int found = 0;
    if (attribute == MPI_KEYVAL_INVALID)
        real.Type_create_keyval(not_copied, nothing_to_delete, &attribute, NULL);
    if (real.Type_get_attr(type, attribute, &known, &found) == MPI_SUCCESS && found)
        return (uintptr_t)known;
    uint64_t blocks = blocks_of(type, 0);
    real.Type_set_attr(type, attribute, (void *)(uintptr_t)blocks);
    return blocks;
}

#endif
