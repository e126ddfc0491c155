/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The id of the program that this process is a rank of: equal on all ranks of one MPI_COMM_WORLD, and another one for another program of the
 * same job. The launcher tells it, so that no message is needed:
 *
 * - Open MPI, and every other launcher with PMIx: the namespace, PMIX_NAMESPACE. Processes of MPI_Comm_spawn have one of their own.
 * - MPICH's hydra sets no such variable. Its proxies, the ancestors of the ranks, have the address of their mpiexec on the command line
 *   (--control-port HOST:PORT), and the number of the group of processes (--pgid), which is not 0 after MPI_Comm_spawn.
 * - srun with PMI: the numbers of Slurm's job and step.
 *
 * Elsewhere the id is 0, and a reader of the trace goes by ranks and names.
 */
#define _GNU_SOURCE
#include "job-id.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A rank may be a grandchild of its proxy, for instance where a script starts it. */
enum { GENERATIONS = 16 };

static uint64_t add_text(uint64_t hash, const char *text) { /* FNV-1a, with the end of the text */
    do
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3ull;
    while (*text++);
    return hash;
}

static const uint64_t BASIS = 0xcbf29ce484222325ull;

/* Reads the beginning of a file of /proc; the bytes behind it are 0. */
static size_t read_of(int pid, const char *name, char *bytes, size_t room) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    memset(bytes, 0, room);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t got = read(file, bytes, room - 1);
    close(file);
    return got > 0 ? (size_t)got : 0;
}

/* The parent of a process; 0 if unknown. The name in the second column may have blanks and parentheses. */
static int parent_of(int pid) {
    char stat[512];
    int parent = 0;
    read_of(pid, "stat", stat, sizeof stat);
    char *after = strrchr(stat, ')');
    return after && sscanf(after, ") %*c %d", &parent) == 1 ? parent : 0;
}

static uint64_t of_hydra(void) {
    char line[4096];
    int pid = getppid();
    for (int i = 0; i < GENERATIONS && pid > 1; i++, pid = parent_of(pid)) {
        size_t length = read_of(pid, "cmdline", line, sizeof line);
        if (!length || !strstr(line, "hydra"))
            continue;
        uint64_t hash = BASIS;
        int found = 0;
        for (char *word = line; word < line + length; word += strlen(word) + 1) {
            int port = !strcmp(word, "--control-port");
            if (!port && strcmp(word, "--pgid"))
                continue;
            found |= port;
            word += strlen(word) + 1;
            if (word < line + length)
                hash = add_text(hash, word);
        }
        if (found)
            return hash;
    }
    return 0;
}

uint64_t job_id(void) {
    const char *name = getenv("PMIX_NAMESPACE");
    if (name && *name)
        return add_text(BASIS, name);
    if (getenv("PMI_FD") || getenv("HYDI_CONTROL_FD")) {
        uint64_t id = of_hydra();
        if (id)
            return id;
    }
    const char *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
    return job && step ? add_text(add_text(BASIS, job), step) : 0;
}
