/* Effects of unusual instructions and of a debugger's breakpoints on a process: one line each. Any Intel processor under Linux gives
 * these lines. */
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *name, int status)
{
    if (WIFSIGNALED(status))
        printf("%s: signal %d\n", name, WTERMSIG(status));
    else
        printf("%s: exit %d\n", name, WEXITSTATUS(status));
}

/* Run code at an address that 32-bit code can name; behind it lie breakpoint instructions. */
static void run(const char *name, const unsigned char *code, size_t len)
{
    unsigned char *at = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    memset(at, 0xcc, 4096);
    memcpy(at, code, len);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(5);
        ((void (*)(void))at)();
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    say(name, status);
}

#define RUN(name, ...)                                                                             \
    do {                                                                                           \
        static const unsigned char code[] = {__VA_ARGS__};                                         \
        run(name, code, sizeof code);                                                              \
    } while (0)

static volatile long watched;

/* A child that stops before it calls this. */
static pid_t traced(int (*body)(void))
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        _exit(body());
    }
    int status;
    waitpid(child, &status, 0);
    return child;
}

static void set_breakpoint(pid_t child, const volatile void *at, long control)
{
    size_t registers = offsetof(struct user, u_debugreg);
    if (ptrace(PTRACE_POKEUSER, child, registers, at) != 0 ||
        ptrace(PTRACE_POKEUSER, child, registers + 7 * sizeof(long), control) != 0)
        perror("breakpoint");
}

static int count(void)
{
    for (int i = 0; i < 1000; i++) {
        volatile long other = i;
        if (i == 700)
            watched = other;
    }
    return 7;
}

static int call(void)
{
    return getppid() != 0 ? 9 : 8;
}

int main(void)
{
    RUN("mov rax, dr4", 0x0f, 0x21, 0xe0);
    RUN("mov rax, dr8", 0x44, 0x0f, 0x21, 0xc0);
    RUN("mov rax, cr1", 0x0f, 0x20, 0xc8);
    RUN("16 bytes", 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66,
        0x66, 0x66, 0x90);
    RUN("15 invalid bytes", 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66,
        0x66, 0x66, 0x06, 0x90);
    RUN("swapgs", 0x0f, 0x01, 0xf8);
    RUN("clac", 0x0f, 0x01, 0xca);
    RUN("vmlaunch", 0x0f, 0x01, 0xc2);
    RUN("getsec", 0x0f, 0x37);
    RUN("rsm", 0x0f, 0xaa);
    RUN("femms", 0x0f, 0x0e);
    RUN("sysretl", 0x0f, 0x07);
    RUN("sysexit", 0x0f, 0x35);
    RUN("int1", 0xf1);
    RUN("reserved nop", 0x0f, 0x1a, 0xc0);
    RUN("bndmk", 0xf3, 0x0f, 0x1b, 0xc0);
    RUN("xop", 0x8f, 0xe8, 0x78, 0xa2, 0xc0, 0x10);
    RUN("fma4", 0xc4, 0xe3, 0xf9, 0x69, 0xc0, 0x00);
    RUN("sse4a", 0xf2, 0x0f, 0x79, 0xc0);
    RUN("3dnow", 0x0f, 0x0f, 0xc1, 0x9e);
    RUN("clzero", 0x0f, 0x01, 0xfc);
    RUN("avx-512", 0x62, 0xf1, 0x7c, 0x48, 0x58, 0xc0);
    RUN("sysenter", 0xb8, 0x14, 0, 0, 0, 0x0f, 0x34);
    RUN("int 0x80", 0xb8, 0x14, 0, 0, 0, 0xcd, 0x80);
    RUN("int 1", 0xcd, 1);
    RUN("int 3", 0xcd, 3);
    RUN("lss", 0x48, 0x0f, 0xb2, 0x24, 0x24);
    RUN("lfs", 0x6a, 0x00, 0x6a, 0x00, 0x0f, 0xb4, 0x04, 0x24);
    /* push 0x40; push 0; call far [rsp + 4]: the selector of the TSS. */
    RUN("call of a task", 0x6a, 0x40, 0x68, 0, 0, 0, 0, 0xff, 0x5c, 0x24, 0x04);
    RUN("ud0", 0x0f, 0xff, 0xc0);
    /* push 0x23; push 0x10000009; retfq; then 32-bit code: decimal adjustments, SALC, ARPL, exit(5). */
    RUN("32-bit code", 0x6a, 0x23, 0x68, 9, 0, 0, 0x10, 0x48, 0xcb, 0x31, 0xc0, 0xb0, 0x0b, 0x37,
        0x27, 0x2f, 0x3f, 0xd4, 0x0a, 0xd5, 0x0a, 0xd6, 0x63, 0xc8, 0xb8, 1, 0, 0, 0, 0xbb, 5, 0, 0,
        0, 0xcd, 0x80);

    int status;
    pid_t child = traced(count);
    /* Eight bytes, written. */
    set_breakpoint(child, &watched, 1 | 0xd << 16);
    ptrace(PTRACE_CONT, child, 0, 0);
    waitpid(child, &status, 0);
    long value = ptrace(PTRACE_PEEKDATA, child, &watched, 0);
    printf("data: signal %d, value %ld\n", WSTOPSIG(status), value);
    ptrace(PTRACE_CONT, child, 0, 0);
    waitpid(child, &status, 0);
    say("data", status);

    child = traced(call);
    set_breakpoint(child, (const void *)getppid, 1);
    ptrace(PTRACE_CONT, child, 0, 0);
    waitpid(child, &status, 0);
    struct user_regs_struct registers;
    ptrace(PTRACE_GETREGS, child, 0, &registers);
    printf("code: signal %d, there %d\n", WSTOPSIG(status),
           registers.rip == (unsigned long)getppid);
    ptrace(PTRACE_CONT, child, 0, 0);
    waitpid(child, &status, 0);
    say("code", status);
    return 0;
}
