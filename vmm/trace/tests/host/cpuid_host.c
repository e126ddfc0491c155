/*
 * A stand-in for the host, inside the process itself: makes CPUID fault (arch_prctl(2), ARCH_SET_CPUID) and answers the hypercall
 * in the signal handler. Every call accepted goes to NODESCOPE_TEST_LOG.PID as: u32 operation, u32 0, u64 arguments[5], then for
 * each of two buffers u64 length and its bytes. The first call of each operation that passes memory is answered "unreadable".
 */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "nodescope.h"

static int file = -1;
static unsigned answered; /* operations that were refused once */

static void put(const void *bytes, uint64_t length) {
    if (write(file, bytes, length) != (ssize_t)length)
        _exit(99);
}

static void put_buffer(uint64_t address, uint64_t length) {
    put(&length, sizeof length);
    if (length)
        put((const void *)address, length);
}

static void hypercall(greg_t *r) {
    uint32_t operation = r[REG_RCX], result = 0, status = NODESCOPE_OK;
    uint64_t arguments[5] = {r[REG_RSI], r[REG_RDI], r[REG_R8], r[REG_R9], r[REG_R10]};
    int first = (0xfca >> operation & 1), second = operation == NODESCOPE_OP_PUT_FILE; /* which pass memory */
    if (first && !(answered >> operation & 1)) {
        answered |= 1u << operation;
        status = NODESCOPE_UNREADABLE;
    } else {
        uint32_t head[2] = {operation, 0};
        put(head, sizeof head);
        put(arguments, sizeof arguments);
        put_buffer(arguments[0], first && operation != NODESCOPE_OP_NODE_IDENTITY ? arguments[1] : 0);
        put_buffer(arguments[3], second ? arguments[4] & ~NODESCOPE_PUT_LAST : 0);
        if (operation == NODESCOPE_OP_PROBE)
            result = NODESCOPE_ABI_VERSION;
        if (operation == NODESCOPE_OP_NODE_IDENTITY) {
            struct nodescope_identity id = {.version = 1, .node = 1, .nodes = 2, .vcpus = 4, .seed = 9, .ipv4 = {10, 0, 0, 2},
                                            .prefix = 24, .mac = {2, 0, 0, 0, 0, 1}, .text_bytes = 6, .name = "n1"};
            char *out = (char *)arguments[0];
            memcpy(out, &id, sizeof id);
            memcpy(out + sizeof id, "JOB=x\n", 6);
            result = sizeof id + 6;
        }
    }
    r[REG_RAX] = NODESCOPE_SIGNATURE;
    r[REG_RBX] = NODESCOPE_TRANSPORT_DIRECT;
    r[REG_RCX] = result;
    r[REG_RDX] = status;
}

static void on_fault(int signal, siginfo_t *info, void *context) {
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    (void)info;
    if (memcmp((const void *)r[REG_RIP], "\x0f\xa2", 2)) { /* a real fault: let it happen again, for good */
        struct sigaction default_action = {.sa_handler = SIG_DFL};
        sigaction(signal, &default_action, NULL);
        return;
    }
    if ((uint32_t)r[REG_RAX] == NODESCOPE_LEAF) {
        hypercall(r);
    } else {
        uint32_t a = r[REG_RAX], b, c = r[REG_RCX], d;
        syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
        __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
        syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
        r[REG_RAX] = a, r[REG_RBX] = b, r[REG_RCX] = c, r[REG_RDX] = d;
    }
    r[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
    char path[4096];
    const char *log = getenv("NODESCOPE_TEST_LOG");
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};
    if (!log)
        return;
    snprintf(path, sizeof path, "%s.%d", log, getpid());
    file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    sigaction(SIGSEGV, &action, NULL);
    if (file < 0 || syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0))
        _exit(98);
}
