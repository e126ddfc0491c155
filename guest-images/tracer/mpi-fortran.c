/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The entry points of the MPI libraries' Fortran layers, mpi_send_ and the like: each notes its return address, which is the call in
 * the program, and jumps on to the library's own entry of that name with every argument in place. The library then calls the C
 * function, whose wrapper records the call; its own return address would be in the library, the same for all calls. Two sites are
 * kept because an entry for mpi_f08 may call one for mpif.h.
 *
 * FORTRAN_ENTRY(name) of fortran-names.h, which the build makes of the functions in nodescope.h, has the names in lower case.
 * Only r10, r11 and rax are changed on the way, which a call may change anyhow (System V ABI for x86-64, section 3.2.1; rax counts
 * vector registers for functions with variable arguments, which these are not).
 */
#include "mpi-tracer.h"

struct entry {
    void *target;
    const char *name;
};

__attribute__((used)) static void *resolve(struct entry *entry) {
    void *target = real_function(entry->name);
    __atomic_store_n(&entry->target, target, __ATOMIC_RELEASE);
    return target;
}

/* The first call of an entry, whose address is in r11. On entry to a function rsp is 8 modulo 16; seven pushes align it. */
__asm__(".text\n"
        ".type nodescope_fortran_first, @function\n"
        "nodescope_fortran_first:\n"
        "    push %rdi\n    push %rsi\n    push %rdx\n    push %rcx\n    push %r8\n    push %r9\n    push %r10\n"
        "    mov %r11, %rdi\n"
        "    call resolve\n"
        "    mov %rax, %r11\n"
        "    pop %r10\n    pop %r9\n    pop %r8\n    pop %rcx\n    pop %rdx\n    pop %rsi\n    pop %rdi\n"
        "    jmp *%r11\n"
        ".size nodescope_fortran_first, . - nodescope_fortran_first\n");

#define ENTRY(symbol)                                                                                                          \
    __asm__(".section .rodata\n"                                                                                               \
            "9: .asciz \"" #symbol "\"\n"                                                                                      \
            ".data\n.balign 8\n"                                                                                               \
            "8: .quad 0, 9b\n"                                                                                                 \
            ".text\n.balign 16\n"                                                                                              \
            ".globl " #symbol "\n.type " #symbol ", @function\n" #symbol ":\n"                                                 \
            "    endbr64\n"                                                                                                    \
            "    mov (%rsp), %r11\n"                                                                                           \
            "    mov fortran_sites@gottpoff(%rip), %rax\n"                                                                     \
            "    mov %fs:(%rax), %r10\n"                                                                                       \
            "    mov %r10, %fs:8(%rax)\n"                                                                                      \
            "    mov %r11, %fs:(%rax)\n"                                                                                       \
            "    mov 8b(%rip), %r11\n"                                                                                         \
            "    test %r11, %r11\n"                                                                                            \
            "    jz 1f\n"                                                                                                      \
            "    jmp *%r11\n"                                                                                                  \
            "1:  lea 8b(%rip), %r11\n"                                                                                         \
            "    jmp nodescope_fortran_first\n"                                                                                \
            ".size " #symbol ", . - " #symbol "\n");

/* mpif.h and the module mpi have the first two; mpi_f08 the others, as far as they exist. */
#if defined(OPEN_MPI)
#define FORTRAN_ENTRY(name) ENTRY(mpi_##name##_) ENTRY(pmpi_##name##_) ENTRY(mpi_##name##_f08_) ENTRY(pmpi_##name##_f08_)
/* Persistent collectives of this library are an extension. */
#define FORTRAN_EXTENSION(name) ENTRY(mpix_##name##_) ENTRY(pmpix_##name##_) ENTRY(mpix_##name##_f08_) ENTRY(pmpix_##name##_f08_)
#else
#define FORTRAN_ENTRY(name)                                                                                                    \
    ENTRY(mpi_##name##_) ENTRY(pmpi_##name##_) ENTRY(mpi_##name##_f08_) ENTRY(mpi_##name##_f08_large_) ENTRY(mpi_##name##_f08ts_) \
    ENTRY(mpi_##name##_f08ts_large_)
#define FORTRAN_EXTENSION(name)
#endif
#include "fortran-names.h"
