/* Four ranks call every function that the tracer knows, and count what they call: "books.RANK" has a line "FUNCTION CALLS" for each.
 * tests/mpi.rs compares them with the trace. */
#define _GNU_SOURCE
#include <mpi.h>
#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RANKS 4
static int rank, size, left, right;
static const char *path;
static MPI_Info info; /* empty */

static struct {
    const char *name;
    long calls;
} books[512];

static void tally(const char *name) {
    int at = 0;
    while (books[at].name && strcmp(books[at].name, name))
        at++;
    books[at].name = name;
    books[at].calls++;
}

#define PASTE(a, b) PASTE_EXPANDED(a, b)
#define PASTE_EXPANDED(a, b) a##b
#define TEXT(a) TEXT_EXPANDED(a)
#define TEXT_EXPANDED(a) #a

#define CALL(name, ...) (tally("MPI_" #name), MPI_##name(__VA_ARGS__))
#define CALLC(name, ...) (tally("MPI_" #name TEXT(SUFFIX)), PASTE(MPI_##name, SUFFIX)(__VA_ARGS__))
/* Open MPI has persistent collectives as an extension; MPICH 4.0 fails when one is started again. */
#ifdef OPEN_MPI
#define STARTS_OF_ONE 2
#define PERSISTENTC(name, ...) (tally("MPI_" #name "_init"), MPIX_##name##_init(__VA_ARGS__))
#else
#define STARTS_OF_ONE 1
#define PERSISTENTC(name, ...) (tally("MPI_" #name "_init" TEXT(SUFFIX)), PASTE(MPI_##name##_init, SUFFIX)(__VA_ARGS__))
#endif

#define SUFFIX
#define COUNT int
#define PLACE int
#define EXTERNAL MPI_Aint
#include "every-counted.h"
#if MPI_VERSION >= 4
#undef SUFFIX
#undef COUNT
#undef PLACE
#undef EXTERNAL
#define SUFFIX _c
#define COUNT MPI_Count
#define PLACE MPI_Aint
#define EXTERNAL MPI_Count
#include "every-counted.h"
#endif

static void requests(void) {
    int v[4] = {0}, w[4] = {0}, flag = 0, index, done, indices[4];
    MPI_Request q[4];
    MPI_Message message;
    MPI_Status status;
    CALL(Isend, v, 1, MPI_INT, right, 7, MPI_COMM_WORLD, &q[0]);
    CALL(Probe, MPI_ANY_SOURCE, 7, MPI_COMM_WORLD, &status);
    while (CALL(Iprobe, left, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE), !flag)
        ;
    while (CALL(Improbe, left, 7, MPI_COMM_WORLD, &flag, &message, &status), !flag)
        ;
    CALL(Mrecv, w, 4, MPI_INT, &message, &status);
    while (CALL(Request_get_status, q[0], &flag, MPI_STATUS_IGNORE), !flag)
        ;
    while (CALL(Test, &q[0], &flag, MPI_STATUS_IGNORE), !flag)
        ;
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 2; i++) {
            CALL(Irecv, &w[i], 1, MPI_INT, left, 10 + i, MPI_COMM_WORLD, &q[i]);
            CALL(Isend, &v[i], 1, MPI_INT, right, 10 + i, MPI_COMM_WORLD, &q[2 + i]);
        }
        switch (round) {
        case 0:
            while (CALL(Testall, 4, q, &flag, MPI_STATUSES_IGNORE), !flag)
                ;
            break;
        case 1:
            for (int gone = 0; gone < 4; gone += flag)
                CALL(Testany, 4, q, &index, &flag, MPI_STATUS_IGNORE);
            break;
        case 2:
            for (int gone = 0; gone < 4; gone += done)
                CALL(Testsome, 4, q, &done, indices, MPI_STATUSES_IGNORE);
            break;
        case 3:
            for (int gone = 0; gone < 4; gone++)
                CALL(Waitany, 4, q, &index, MPI_STATUS_IGNORE);
            break;
        case 4:
            for (int gone = 0; gone < 4; gone += done)
                CALL(Waitsome, 4, q, &done, indices, MPI_STATUSES_IGNORE);
        }
    }
    CALL(Irecv, w, 1, MPI_INT, left, 99, MPI_COMM_WORLD, &q[0]); /* nobody sends this */
    CALL(Cancel, &q[0]);
    CALL(Wait, &q[0], &status);
#if MPI_VERSION >= 4
    MPI_Request out, in;
    CALL(Psend_init, v, 4, 1, MPI_INT, right, 8, MPI_COMM_WORLD, MPI_INFO_NULL, &out);
    CALL(Precv_init, w, 4, 1, MPI_INT, left, 8, MPI_COMM_WORLD, MPI_INFO_NULL, &in);
    CALL(Start, &in);
    CALL(Start, &out);
    CALL(Pready, 0, out);
    CALL(Pready_range, 1, 2, out);
    CALL(Pready_list, 1, (int[]){3}, out);
    while (CALL(Parrived, in, 3, &flag), !flag)
        ;
    CALL(Wait, &out, MPI_STATUS_IGNORE);
    CALL(Wait, &in, MPI_STATUS_IGNORE);
    CALL(Request_free, &out);
    CALL(Request_free, &in);
#endif
    MPI_Request barrier;
    CALL(Ibarrier, MPI_COMM_WORLD, &barrier);
    CALL(Wait, &barrier, MPI_STATUS_IGNORE);
#ifdef OPEN_MPI
    tally("MPI_Barrier_init"), MPIX_Barrier_init(MPI_COMM_WORLD, MPI_INFO_NULL, &barrier);
#else
    CALL(Barrier_init, MPI_COMM_WORLD, MPI_INFO_NULL, &barrier);
#endif
    CALL(Start, &barrier);
    CALL(Wait, &barrier, MPI_STATUS_IGNORE);
    CALL(Request_free, &barrier);
}

static int query(void *state, MPI_Status *status) {
    (void)state;
    MPI_Status_set_elements(status, MPI_INT, 0);
    MPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = status->MPI_TAG = MPI_UNDEFINED;
    return MPI_SUCCESS;
}
static int release(void *state) {
    (void)state;
    return MPI_SUCCESS;
}
static int cancel(void *state, int complete) {
    (void)state, (void)complete;
    return MPI_SUCCESS;
}

static void communicators(void) {
    MPI_Comm made, half, between, both;
    MPI_Group world, pair;
    MPI_Request q;
    int value = 0, other = 0, ends[RANKS], edges[2 * RANKS], sizes[2] = {2, 2}, round[2] = {0, 0}, keep[2] = {1, 0};
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    CALL(Comm_dup, MPI_COMM_WORLD, &made);
    CALL(Comm_free, &made);
    CALL(Comm_dup_with_info, MPI_COMM_WORLD, MPI_INFO_NULL, &made);
    CALL(Comm_disconnect, &made);
    CALL(Comm_idup, MPI_COMM_WORLD, &made, &q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    CALL(Barrier, made);
    CALL(Comm_free, &made);
    CALL(Comm_split_type, MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &made);
    CALL(Comm_free, &made);
    CALL(Cart_create, MPI_COMM_WORLD, 2, sizes, round, 0, &made);
    CALL(Cart_sub, made, keep, &half);
    CALL(Comm_free, &half);
    CALL(Comm_free, &made);
    for (int i = 0; i < RANKS; i++) {
        ends[i] = 2 * (i + 1);
        edges[2 * i] = (i + 3) % RANKS;
        edges[2 * i + 1] = (i + 1) % RANKS;
    }
    CALL(Graph_create, MPI_COMM_WORLD, RANKS, ends, edges, 0, &made);
    CALL(Neighbor_allgather, &value, 1, MPI_INT, ends, 1, MPI_INT, made);
    CALL(Comm_free, &made);
    CALL(Dist_graph_create, MPI_COMM_WORLD, 1, &rank, (int[]){1}, &right, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &made);
    CALL(Neighbor_alltoall, &value, 1, MPI_INT, ends, 1, MPI_INT, made);
    CALL(Comm_free, &made);
    CALL(Dist_graph_create_adjacent, MPI_COMM_WORLD, 1, &left, (int[]){3}, 1, &right, (int[]){5}, MPI_INFO_NULL, 0, &made);
    CALL(Neighbor_alltoall, &value, 1, MPI_INT, ends, 1, MPI_INT, made);
    CALL(Comm_free, &made);
    /* {2, 0} and {3, 1}, the two sides of an intercommunicator. */
    CALL(Comm_split, MPI_COMM_WORLD, rank % 2, -rank, &half);
    CALL(Intercomm_create, half, 0, MPI_COMM_WORLD, rank % 2 ? 2 : 3, 12, &between);
    CALL(Sendrecv, &value, 1, MPI_INT, 0, 3, &other, 1, MPI_INT, MPI_ANY_SOURCE, 3, MPI_COMM_SELF, MPI_STATUS_IGNORE);
    if (rank < 2) /* its rank in its half is 1; the other side's rank 1 is world rank 1 - rank */
        CALL(Sendrecv, &value, 1, MPI_INT, 1, 4, &other, 1, MPI_INT, MPI_ANY_SOURCE, 4, between, MPI_STATUS_IGNORE);
    CALL(Intercomm_merge, between, rank % 2, &both);
    CALL(Barrier, both);
    CALL(Comm_free, &both);
    CALL(Comm_free, &between);
    CALL(Comm_free, &half);
    MPI_Group_incl(world, 2, (int[]){2, 0}, &pair);
    CALL(Comm_create, MPI_COMM_WORLD, pair, &made);
    if (rank % 2 == 0) {
        CALL(Comm_free, &made);
        CALL(Comm_create_group, MPI_COMM_WORLD, pair, 5, &made);
        CALL(Barrier, made);
        CALL(Comm_free, &made);
    }
#if MPI_VERSION >= 4
    CALL(Comm_idup_with_info, MPI_COMM_WORLD, MPI_INFO_NULL, &made, &q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    CALL(Comm_free, &made);
    CALL(Comm_create_from_group, world, "a", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &made);
    CALL(Barrier, made);
    CALL(Comm_free, &made);
    if (rank < 2) {
        MPI_Group mine, other;
        MPI_Group_incl(world, 1, (int[]){rank}, &mine);
        MPI_Group_incl(world, 1, (int[]){1 - rank}, &other);
        CALL(Intercomm_create_from_groups, mine, 0, other, 0, "b", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &between);
        CALL(Comm_free, &between);
        MPI_Group_free(&mine);
        MPI_Group_free(&other);
    }
#endif
    CALL(Grequest_start, query, release, cancel, NULL, &q);
    CALL(Grequest_complete, q);
    CALL(Wait, &q, MPI_STATUS_IGNORE);
    MPI_Group_free(&pair);
    MPI_Group_free(&world);
}

static void epochs(void) {
    static int memory[16];
    int value = 0, other = 0, got, flag = 0;
    MPI_Win window;
    MPI_Group world, next, before;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &right, &next);
    MPI_Group_incl(world, 1, &left, &before);
    CALL(Win_create, memory, sizeof memory, 4, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    CALL(Win_set_info, window, info);
    for (int i = 0; i < 2; i++) {
        CALL(Win_post, before, 0, window);
        CALL(Win_start, next, 0, window);
        CALL(Put, &value, 1, MPI_INT, right, i, 1, MPI_INT, window);
        CALL(Win_complete, window);
        if (i == 0)
            CALL(Win_wait, window);
        else
            while (CALL(Win_test, window, &flag), !flag)
                ;
    }
    CALL(Barrier, MPI_COMM_WORLD);
    CALL(Win_lock, MPI_LOCK_EXCLUSIVE, right, 0, window);
    CALL(Fetch_and_op, &value, &got, MPI_INT, right, 2, MPI_SUM, window);
    CALL(Win_flush_local, right, window);
    CALL(Compare_and_swap, &value, &other, &got, MPI_INT, right, 3, window);
    CALL(Win_unlock, right, window);
    CALL(Win_lock_all, 0, window);
    CALL(Put, &value, 1, MPI_INT, right, 4, 1, MPI_INT, window);
    CALL(Win_flush_all, window);
    CALL(Win_flush_local_all, window);
    CALL(Win_sync, window);
    CALL(Win_unlock_all, window);
    CALL(Win_free, &window);
    CALL(Win_create_dynamic, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    CALL(Win_attach, window, memory, sizeof memory);
    CALL(Win_detach, window, memory);
    CALL(Win_free, &window);
    MPI_Group_free(&next);
    MPI_Group_free(&before);
    MPI_Group_free(&world);
}

static void more_files(void) {
    MPI_File file;
    MPI_Offset size;
    CALL(File_open, MPI_COMM_SELF, "/dev/null", MPI_MODE_WRONLY, MPI_INFO_NULL, &file);
    CALL(File_close, &file);
    CALL(File_open, MPI_COMM_WORLD, path, MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    CALL(File_set_size, file, 4096);
    CALL(File_preallocate, file, 8192);
    CALL(File_get_size, file, &size);
    CALL(File_set_info, file, info);
    CALL(File_set_atomicity, file, 0);
    CALL(File_get_position_shared, file, &size);
    CALL(File_close, &file);
    CALL(Barrier, MPI_COMM_WORLD);
    if (rank == 0)
        CALL(File_delete, path, MPI_INFO_NULL);
}

/* Between ranks 0 and 1, as if they were of different worlds. */
static void processes(char *program) {
    char port[MPI_MAX_PORT_NAME] = "";
    MPI_Comm other;
    if (rank == 0) {
        CALL(Open_port, MPI_INFO_NULL, port);
        CALL(Send, port, sizeof port, MPI_CHAR, 1, 30, MPI_COMM_WORLD);
        CALL(Comm_accept, port, MPI_INFO_NULL, 0, MPI_COMM_SELF, &other);
        CALL(Comm_disconnect, &other);
        CALL(Close_port, port);
    } else if (rank == 1) {
        CALL(Recv, port, sizeof port, MPI_CHAR, 0, 30, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CALL(Comm_connect, port, MPI_INFO_NULL, 0, MPI_COMM_SELF, &other);
        CALL(Comm_disconnect, &other);
    }
    if (rank < 2) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof address;
        int file = socket(AF_INET, SOCK_STREAM, 0), listener = file;
        if (rank == 0) {
            bind(listener, (struct sockaddr *)&address, length);
            listen(listener, 1);
            getsockname(listener, (struct sockaddr *)&address, &length);
            CALL(Send, &address.sin_port, 1, MPI_SHORT, 1, 31, MPI_COMM_WORLD);
            file = accept(listener, NULL, NULL);
            close(listener);
        } else {
            CALL(Recv, &address.sin_port, 1, MPI_SHORT, 0, 31, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            if (connect(file, (struct sockaddr *)&address, length))
                abort();
        }
        CALL(Comm_join, file, &other);
        CALL(Comm_disconnect, &other);
        close(file);
    }
    /* The children are not to write where their parents do. */
    char *arguments[] = {"NODESCOPE_TRACE_DUMP=/dev/null", program, "child", NULL};
    char *command = "/usr/bin/env", **all[] = {arguments, arguments};
    CALL(Comm_spawn, command, arguments, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other, MPI_ERRCODES_IGNORE);
    CALL(Comm_disconnect, &other);
    CALL(Comm_spawn_multiple, 2, (char *[]){command, command}, all, (int[]){1, 1}, (MPI_Info[]){MPI_INFO_NULL, MPI_INFO_NULL}, 0,
         MPI_COMM_WORLD, &other, MPI_ERRCODES_IGNORE);
    CALL(Comm_disconnect, &other);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "child")) {
        MPI_Comm parent;
        MPI_Init(&argc, &argv);
        MPI_Comm_get_parent(&parent);
        MPI_Comm_disconnect(&parent);
        return MPI_Finalize();
    }
    int provided;
    CALL(Init_thread, &argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != RANKS || argc < 3)
        MPI_Abort(MPI_COMM_WORLD, 2);
    left = (rank + RANKS - 1) % RANKS, right = (rank + 1) % RANKS;
    path = argv[1];
    MPI_Info_create(&info);
    counted();
#if MPI_VERSION >= 4
    counted_c();
#endif
    requests();
    communicators();
    epochs();
    more_files();
    MPI_Comm parent;
    CALL(Comm_get_parent, &parent);
#if defined(OPEN_MPI) && !defined(NO_PROCESSES) /* Debian's MPICH has none: its transport does not support them */
    processes(argv[0]);
#endif
    CALL(Finalize);
    char name[4096];
    snprintf(name, sizeof name, "%s.%d", argv[2], rank);
    FILE *file = fopen(name, "w");
    for (int i = 0; file && books[i].name; i++)
        fprintf(file, "%s %ld\n", books[i].name, books[i].calls);
    return !file || fclose(file);
}
