/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Attributes of communicators, whose callbacks are called as they are copied and deleted. */
#include "conformance.h"
static int copied, deleted;

static int copy(MPI_Comm comm, int key, void *state, void *in, void *out, int *flag) {
    (void)comm, (void)key, (void)state;
    *(void **)out = in;
    *flag = 1;
    copied++;
    return MPI_SUCCESS;
}

/* A callback may itself communicate: on its own communicator's processes alone. */
static int removed(MPI_Comm comm, int key, void *value, void *state) {
    (void)comm, (void)key, (void)value, (void)state;
    deleted++;
    return MPI_SUCCESS;
}

void attributes(void) {
    int key, found, number = 42, *value;
    MPI_Comm first, second;
    MPI_Comm_create_keyval(copy, removed, &key, NULL);
    MPI_Comm_dup(WORLD, &first);
    MPI_Comm_set_attr(first, key, &number);
    MPI_Comm_dup(first, &second);
    MPI_Comm_get_attr(second, key, &value, &found);
    CHECK(found && *value == 42 && copied == 1);
    MPI_Comm_free(&second);
    MPI_Comm_delete_attr(first, key);
    CHECK(deleted == 2);
    MPI_Comm_free(&first);
    MPI_Comm_get_attr(WORLD, MPI_TAG_UB, &value, &found);
    CHECK(found && *value >= 32767);
    /* Deleted when MPI is finalized. */
    MPI_Comm_set_attr(MPI_COMM_SELF, key, &number);
    MPI_Comm_free_keyval(&key);
}
