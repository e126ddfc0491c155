/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Code of several kinds, inside a window named by the first argument: a hot line, a library that is opened at run time, code that is
 * made at run time, and the kernel.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nodescope.h"

#define HOT 700000
#define LIBRARY 200000
#define MADE 150000

/* Windows open and close between quanta, so this pause is longer than any quantum. */
static void let_a_quantum_pass(void) {
    uint64_t start = __builtin_ia32_rdtsc();
    while (__builtin_ia32_rdtsc() - start < 1000000)
        ;
}

__attribute__((noinline)) static uint64_t hot(uint64_t n) {
    uint64_t sum = 1;
    for (uint64_t i = 0; i < n; i++)
        sum = sum * 6364136223846793005u + i; /* the hot line */
    return sum;
}

__attribute__((noinline)) static uint64_t caller(uint64_t n) {
    uint64_t sum = hot(n);
    __asm__ volatile("" : "+r"(sum));
    return sum + 1;
}

int main(int argc, char **argv) {
    struct nodescope_hello hello = {
        .kind = NODESCOPE_PROCESS_TOOL,
        .world_rank = -1,
        .pid = (uint32_t)getpid(),
        .version = NODESCOPE_ABI_VERSION,
    };
    if (argc != 2)
        return 2;
    strncpy(hello.program, argv[1], sizeof hello.program - 1);
    strcpy(hello.host, "node0");
    if (nodescope_attach() != NODESCOPE_PRESENT || !nodescope_answered(nodescope_call(NODESCOPE_OP_HELLO, &hello, sizeof hello, 0, NULL, 0)))
        return 3;
    void *library = dlopen("./library.so", RTLD_NOW);
    if (!library) {
        puts(dlerror());
        return 4;
    }
    uint64_t (*work)(uint64_t) = (uint64_t (*)(uint64_t))dlsym(library, "library_work");
    /* mov rax, rdi; 1: dec rax; jne 1b; ret */
    static const unsigned char code[] = {0x48, 0x89, 0xf8, 0x48, 0xff, 0xc8, 0x75, 0xfb, 0xc3};
    void *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!work || made == MAP_FAILED)
        return 5;
    memcpy(made, code, sizeof code);
    uint64_t (*run)(uint64_t) = (uint64_t (*)(uint64_t))made;

    nodescope_call(NODESCOPE_OP_OPEN_WINDOW, argv[1], strlen(argv[1]), 0, NULL, 0);
    let_a_quantum_pass();
    uint64_t sum = caller(HOT);
    sum += work(LIBRARY);
    sum += run(MADE);
    for (int i = 0; i < 300; i++)
        sum += (uint64_t)getppid();
    let_a_quantum_pass();
    nodescope_call(NODESCOPE_OP_CLOSE_WINDOW, argv[1], strlen(argv[1]), 0, NULL, 0);
    let_a_quantum_pass();
    printf("hotspots: %d\n", sum != 0);
    return 0;
}
