/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Functions that recordings do not cover: one-sided communication, files, processes, persistent collectives, partitioned and generalized
 * operations. A call of one ends a recording or a replay with a message; in other programs it goes to the MPI.
 *
 * Each is a stub that jumps on with every argument in place, as in mpi-fortran.c. REFUSED(name) of refused-names.h, which the build
 * makes of the functions in nodescope.h, names all that concern others. The stubs are weak: a function that is served has a definition that
 * takes the stub's place.
 */
#include "replay.h"

struct entry {
    void *target;
    const char *name;
};

__attribute__((used)) static void *find_target(struct entry *entry) {
    /* Names begin with PMPI, which the MPI has for each. */
    if (mode != MODE_INERT && !nested)
        refuse(entry->name + 1, "");
    void *target = real_function(entry->name);
    if (mode == MODE_INERT)
        __atomic_store_n(&entry->target, target, __ATOMIC_RELEASE);
    return target;
}

/* The first call of a stub, whose address is in r11. On entry to a function rsp is 8 modulo 16; seven pushes align it. */
__asm__(".text\n"
        ".type nodescope_refused_first, @function\n"
        "nodescope_refused_first:\n"
        "    push %rdi\n    push %rsi\n    push %rdx\n    push %rcx\n    push %r8\n    push %r9\n    push %r10\n"
        "    mov %r11, %rdi\n"
        "    call find_target\n"
        "    mov %rax, %r11\n"
        "    pop %r10\n    pop %r9\n    pop %r8\n    pop %rcx\n    pop %rdx\n    pop %rsi\n    pop %rdi\n"
        "    jmp *%r11\n"
        ".size nodescope_refused_first, . - nodescope_refused_first\n");

#define STUB(symbol, real)                                                                                                     \
    __asm__(".section .rodata\n"                                                                                               \
            "9: .asciz \"" #real "\"\n"                                                                                        \
            ".data\n.balign 8\n"                                                                                               \
            "8: .quad 0, 9b\n"                                                                                                 \
            ".text\n.balign 16\n"                                                                                              \
            ".weak " #symbol "\n.type " #symbol ", @function\n" #symbol ":\n"                                                  \
            "    endbr64\n"                                                                                                    \
            "    mov 8b(%rip), %r11\n"                                                                                         \
            "    test %r11, %r11\n"                                                                                            \
            "    jz 1f\n"                                                                                                      \
            "    jmp *%r11\n"                                                                                                  \
            "1:  lea 8b(%rip), %r11\n"                                                                                         \
            "    jmp nodescope_refused_first\n"                                                                                \
            ".size " #symbol ", . - " #symbol "\n");

#if defined(OPEN_MPI)
#define REFUSED(name) STUB(MPI_##name, PMPI_##name) STUB(PMPI_##name, PMPI_##name)
/* Persistent collectives of this library are an extension. */
#define REFUSED_EXTENSION(name) STUB(MPIX_##name, PMPIX_##name) STUB(PMPIX_##name, PMPIX_##name)
#else
#define REFUSED(name)                                                                                                          \
    STUB(MPI_##name, PMPI_##name) STUB(PMPI_##name, PMPI_##name) STUB(MPI_##name##_c, PMPI_##name##_c) STUB(PMPI_##name##_c, PMPI_##name##_c)
#define REFUSED_EXTENSION(name)
#endif
#include "refused-names.h"
