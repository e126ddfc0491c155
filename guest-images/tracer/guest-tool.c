/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * nodescope-guest: talks to the nodescope around this guest. Static, no libraries beyond libc.
 *
 * Exit codes: 0 done; 1 the nodescope refused or an input could not be read; 2 wrong usage; 3 no nodescope around this system
 * (for probe, whose answer that is: 1).
 */
#include "nodescope.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { DONE = 0, FAILED = 1, USAGE = 2, ABSENT = 3 };

static const char usage[] =
    "usage: nodescope-guest COMMAND\n"
    "  probe             say whether this system runs in a nodescope (exit code 0: yes, 1: no)\n"
    "  identity          print this node's identity as KEY=VALUE lines\n"
    "  put FILE [NAME]   copy FILE (- is standard input) into the results, as NAME (default: FILE's last component)\n"
    "  mark TEXT         put a marker into the trace\n"
    "  open NAME         open the measurement window NAME\n"
    "  close NAME        close it\n"
    "  message TEXT      show TEXT to the user\n"
    "  stir              stir what is this node's own into the kernel's random numbers (for process 1)\n"
    "  exit STATUS       report the job's exit status, 0 to 255\n"
    "  doorbell COMMAND [ARGUMENT...]\n"
    "                    run COMMAND with permission to use the doorbell (for process 1)\n"
    "exit codes: 0 done, 1 refused or unreadable input, 2 wrong usage, 3 no nodescope here\n";

static int outcome(struct nodescope_answer answer, const char *what) {
    static const char *const reasons[] = {
        "done",
        "this nodescope does not know the operation (is the tool newer than the host?)",
        "memory stayed unreadable",
        "memory stayed unwritable",
        "refused by the study",
        "bad argument (too long, not UTF-8, a file name that is unsafe or also a folder's)",
        "over a limit of the study (for files: file_limit, node_limit or limit of [results])",
    };
    if (answer.status == NODESCOPE_OK)
        return DONE;
    fprintf(stderr, "nodescope-guest: %s: %s (status %u)\n", what,
            answer.status < sizeof reasons / sizeof *reasons ? reasons[answer.status] : "unknown status", answer.status);
    return FAILED;
}

static int text(uint32_t operation, char *value, const char *what) {
    return outcome(nodescope_call(operation, value, strlen(value), 0, NULL, 0), what);
}

static int put(const char *path, char *name) {
    static uint8_t chunk[NODESCOPE_MAX_CHUNK];
    FILE *file = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    if (!file) {
        fprintf(stderr, "nodescope-guest: %s: %s\n", path, strerror(errno));
        return FAILED;
    }
    uint64_t offset = 0;
    int last;
    do {
        size_t got = fread(chunk, 1, sizeof chunk, file);
        if (ferror(file)) {
            fprintf(stderr, "nodescope-guest: %s: read error at byte %llu\n", path, (unsigned long long)(offset + got));
            return FAILED;
        }
        last = got < sizeof chunk;
        /* The call has two buffers; nodescope_call touches both. */
        int code = outcome(nodescope_call(NODESCOPE_OP_PUT_FILE, name, strlen(name), offset, chunk, got | (last ? NODESCOPE_PUT_LAST : 0)), name);
        if (code != DONE)
            return code;
        offset += got;
    } while (!last);
    return DONE;
}

static int identity(void) {
    size_t room = 4096;
    for (;;) {
        struct nodescope_identity *id = calloc(1, room + 1);
        if (!id) {
            fprintf(stderr, "nodescope-guest: out of memory\n");
            return FAILED;
        }
        struct nodescope_answer answer = nodescope_call(NODESCOPE_OP_NODE_IDENTITY, id, room, 0, NULL, 0);
        if (answer.status != NODESCOPE_OK) {
            free(id);
            return outcome(answer, "identity");
        }
        if (answer.result > room) {
            room = answer.result;
            free(id);
            continue;
        }
        printf("NODE=%u\nNODES=%u\nVCPUS=%u\nNAME=%.64s\nADDRESS=%u.%u.%u.%u\nPREFIX=%u\n", id->node, id->nodes, id->vcpus, id->name,
               id->ipv4[0], id->ipv4[1], id->ipv4[2], id->ipv4[3], id->prefix);
        printf("MAC=%02x:%02x:%02x:%02x:%02x:%02x\nSEED=%llu\n", id->mac[0], id->mac[1], id->mac[2], id->mac[3], id->mac[4],
               id->mac[5], (unsigned long long)id->seed);
        fwrite(id + 1, 1, id->text_bytes <= room - sizeof *id ? id->text_bytes : 0, stdout);
        free(id);
        return fflush(stdout) ? FAILED : DONE;
    }
}

/*
 * A node that is renewed has the random numbers of the one that it was made of, until the kernel takes new ones: from the entropy device and from
 * RDSEED, which are each node's own, and from the identity (random(4)).
 */
static int stir(void) {
    struct {
        struct rand_pool_info pool;
        unsigned char bytes[256];
    } own = {.pool = {.entropy_count = 0, .buf_size = sizeof own.bytes}};
    struct nodescope_answer answer = nodescope_call(NODESCOPE_OP_NODE_IDENTITY, own.bytes, 128, 0, NULL, 0);
    if (answer.status != NODESCOPE_OK)
        return outcome(answer, "stir");
    int device = open("/dev/hwrng", O_RDONLY);
    if (device >= 0) {
        if (read(device, own.bytes + 128, 128) == 128)
            own.pool.entropy_count = 8 * 128;
        close(device);
    }
    int pool = open("/dev/random", O_WRONLY);
    if (pool < 0 || ioctl(pool, RNDADDENTROPY, &own.pool) || ioctl(pool, RNDRESEEDCRNG)) {
        fprintf(stderr, "nodescope-guest: stir: /dev/random: %s\n", strerror(errno));
        return FAILED;
    }
    close(pool);
    return DONE;
}

/* Permission to use the doorbell is inherited: process 1 starts itself by this. */
static int doorbell(char **command) {
    if (ioperm(NODESCOPE_DOORBELL_PORT, 4, 1))
        fprintf(stderr, "nodescope-guest: no permission for the doorbell (I/O port %#x): %s\n", NODESCOPE_DOORBELL_PORT, strerror(errno));
    execvp(*command, command);
    fprintf(stderr, "nodescope-guest: %s: %s\n", *command, strerror(errno));
    return FAILED;
}

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "doorbell"))
        return doorbell(argv + 2);
    const char *command = argc > 1 ? argv[1] : "";
    int operands = argc - 2;
    int is_put = !strcmp(command, "put") && (operands == 1 || operands == 2);
    int is_probe = !strcmp(command, "probe") && operands == 0;
    int is_identity = !strcmp(command, "identity") && operands == 0;
    int is_stir = !strcmp(command, "stir") && operands == 0;
    uint32_t operation = !strcmp(command, "mark")      ? NODESCOPE_OP_MARK
                         : !strcmp(command, "open")    ? NODESCOPE_OP_OPEN_WINDOW
                         : !strcmp(command, "close")   ? NODESCOPE_OP_CLOSE_WINDOW
                         : !strcmp(command, "message") ? NODESCOPE_OP_MESSAGE
                         : !strcmp(command, "exit")    ? NODESCOPE_OP_JOB_EXIT
                                                       : 0;
    if (!strcmp(command, "--help") || !strcmp(command, "-h")) {
        fputs(usage, stdout);
        return DONE;
    }
    if (!is_put && !is_probe && !is_identity && !is_stir && !(operation && operands == 1)) {
        fputs(usage, stderr);
        return USAGE;
    }
    unsigned long status = 0;
    if (operation == NODESCOPE_OP_JOB_EXIT) {
        char *end;
        errno = 0;
        status = strtoul(argv[2], &end, 10);
        if (!argv[2][0] || *end || errno || status > 255) {
            fprintf(stderr, "nodescope-guest: exit: \"%s\" is not a status from 0 to 255\n", argv[2]);
            return USAGE;
        }
    }

    struct nodescope_answer probe = nodescope_cpuid(NODESCOPE_OP_PROBE, 0, 0, 0, 0, 0);
    int found = nodescope_choose(probe);
    if (found == NODESCOPE_ABSENT) {
        fprintf(is_probe ? stdout : stderr, "nodescope-guest: no nodescope around this system\n");
        return is_probe ? FAILED : ABSENT;
    }
    if (found == NODESCOPE_NO_PERMISSION) {
        fprintf(stderr, "nodescope-guest: no permission for the doorbell (I/O port %#x): start this from the job or as root\n",
                NODESCOPE_DOORBELL_PORT);
        return FAILED;
    }
    if (is_probe) {
        printf("nodescope, ABI version %u, %s transport\n", probe.result, nodescope_rings ? "doorbell" : "direct");
        return DONE;
    }
    if (is_identity)
        return identity();
    if (is_stir)
        return stir();
    if (is_put) {
        char *slash = strrchr(argv[2], '/');
        return put(argv[2], operands == 2 ? argv[3] : slash ? slash + 1 : argv[2]);
    }
    if (operation == NODESCOPE_OP_JOB_EXIT)
        return outcome(nodescope_cpuid(operation, status, 0, 0, 0, 0), "exit");
    return text(operation, argv[2], command);
}
