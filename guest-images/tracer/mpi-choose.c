/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The tracer for the program's MPI in place of another one. Who starts a program knows the launcher, and seldom which library the program
 * is linked with: MPICH's launcher, for one, starts programs of MPICH's own ABI and of the standard ABI. The wrong tracer therefore starts
 * the program anew, before the program's first instruction, with the right tracer in LD_PRELOAD.
 */
#define _GNU_SOURCE
#include "mpi-tracer.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Where the dynamic linker was started as a program, the kernel's program is the linker, and its own arguments are gone. */
static int can_start_anew(void) {
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0)
        return 0;
    program[length] = 0;
    return strncmp(file_name(program), "ld-", 3) != 0;
}

/* Puts the other library's path in the place of this library's in LD_PRELOAD. */
static int preload_other(const char *own, const char *other) {
    const char *preload = getenv("LD_PRELOAD"), *at = preload ? strstr(preload, own) : NULL;
    if (!at || strstr(at + strlen(own), own))
        return 0;
    size_t room = strlen(preload) + strlen(other) + 1;
    char *changed = malloc(room);
    if (!changed)
        return 0;
    snprintf(changed, room, "%.*s%s%s", (int)(at - preload), preload, other, at + strlen(own));
    int done = setenv("LD_PRELOAD", changed, 1) == 0;
    free(changed);
    return done;
}

void library_choose(char **arguments) {
    uint32_t flavour = flavour_of_program();
    char other[PATH_MAX];
    Dl_info own;
    if (flavour == NODESCOPE_FLAVOUR_NONE || flavour == FLAVOUR || !dladdr((void *)library_choose, &own))
        return;
    int folder = file_name(own.dli_fname) - own.dli_fname;
    int length = snprintf(other, sizeof other, "%.*slibnodescope-mpi-%s.so", folder, own.dli_fname, library_names[flavour]);
    if (length >= (int)sizeof other || access(other, R_OK) != 0 || !can_start_anew() || !preload_other(own.dli_fname, other))
        return; /* library_check tells the user */
    execv("/proc/self/exe", arguments);
    preload_other(other, own.dli_fname);
}
