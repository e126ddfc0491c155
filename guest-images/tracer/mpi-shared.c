/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Files that several nodes open together. A nodescope guest has a file system of its own in memory; only the study's shared file system
 * (cluster.shared) is the same on all nodes. Without it, Open MPI waits in MPI_File_open for ever, and MPICH finds no file on the other
 * nodes. The program is ended with a message in place of that.
 */
#define _GNU_SOURCE
#include "mpi-tracer.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

/* statfs(2): file systems that a node has for itself. */
static const char *local_type(long type) {
    switch (type) {
    case 0x01021994: return "tmpfs";
    case 0x794c7630: return "overlay";
    case 0x858458f6: return "ramfs";
    case 0xef53: return "ext4";
    default: return NULL;
    }
}

/* The path behind ROMIO's prefix for a kind of file system, as in "ufs:/scratch/out". */
static const char *path_of(const char *name) {
    const char *at = name;
    while (isalnum((unsigned char)*at))
        at++;
    return *at == ':' && at > name + 1 ? at + 1 : name;
}

/* The kind of the local file system in which the file lies, or will lie; null where it is another. Folders that do not exist on this
 * node count as what is above them: ranks on other nodes may have made them there, and all must come to the same answer. */
static const char *local_file_system(const char *path) {
    char above[4096];
    struct statfs of;
    if (snprintf(above, sizeof above, "%s", path) >= (int)sizeof above)
        return NULL;
    while (statfs(above, &of)) {
        char *slash = strrchr(above, '/');
        if (!slash)
            strcpy(above, ".");
        else if (slash == above)
            strcpy(above, "/");
        else
            *slash = 0;
    }
    return local_type(of.f_type);
}

/* An input file that each node has is as good as a shared one for ROMIO. OMPIO makes a file of its own beside it, which the ranks of other
 * nodes do not find, and waits for ever. */
static int reads_copies(void) {
#if defined(OPEN_MPI)
    const char *component = getenv("OMPI_MCA_io");
    return component && strstr(component, "romio");
#else
    return 1;
#endif
}

void shared_file_check(const struct call *call, MPI_Comm comm, const char *name, int mode) {
    const struct communicator *on = call->communicator;
    const char *nodes = getenv("NODESCOPE_NODES"), *shared = getenv("NODESCOPE_SHARED");
    if (!nodes || atoi(nodes) < 2 || !on || on->inter || on->size < 2 || !name)
        return;
    const char *path = path_of(name), *type = local_file_system(path);
    if (!type)
        return;
    /* Every rank of the communicator is here: MPI_File_open is collective. */
    MPI_Comm here;
    int here_size;
    real.Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    real.Comm_size(here, &here_size);
    real.Comm_free(&here);
    if (here_size == on->size)
        return;
    unsigned char one = (mode & MPI_MODE_RDONLY) && reads_copies() && !access(path, R_OK), all = 0;
    real.Allreduce(&one, &all, 1, MPI_BYTE, MPI_BAND, comm);
    if (all)
        return;
    if (on->rank == 0) {
        char text[1024];
        int length = snprintf(text, sizeof text, "MPI_File_open on %d ranks of several nodes: \"%.400s\" lies in a file system that each node has for itself (%s). ",
                              on->size, path, type);
        if (shared)
            snprintf(text + length, sizeof text - length, "Open a file in %.200s, which all nodes share (cluster.shared).", shared);
        else
            snprintf(text + length, sizeof text - length,
                     "Give the study a file system that all nodes share, as by cluster.shared = { path = \"/scratch\", size = \"1 GiB\" }, and open a file in it.");
        tracer_message(text);
    }
    real.Barrier(comm);
    real.Abort(comm, 1);
}
