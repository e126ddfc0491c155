/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * C += A B of order N, inside a window named by the first argument. N*N*N multiplications and additions, and no other
 * floating-point operation between the window's opening and its closing; the build's flags choose their width.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nodescope.h"

#ifndef REAL
#define REAL double
#endif
#define N 48

static REAL a[N][N] __attribute__((aligned(64)));
static REAL b[N][N] __attribute__((aligned(64)));
static REAL c[N][N] __attribute__((aligned(64)));

/* Windows open and close between quanta, so this pause is longer than any quantum. */
static void let_a_quantum_pass(void) {
    uint64_t start = __builtin_ia32_rdtsc();
    while (__builtin_ia32_rdtsc() - start < 1000000)
        ;
}

__attribute__((noinline)) static void multiply(void) {
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++)
            for (int j = 0; j < N; j++)
                c[i][j] += a[i][k] * b[k][j];
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
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            a[i][j] = (REAL)((i + 2 * j) % 7 - 3);
            b[i][j] = (REAL)((3 * i + j) % 5 - 2);
        }
    nodescope_call(NODESCOPE_OP_OPEN_WINDOW, argv[1], strlen(argv[1]), 0, NULL, 0);
    let_a_quantum_pass();
    multiply();
    let_a_quantum_pass();
    nodescope_call(NODESCOPE_OP_CLOSE_WINDOW, argv[1], strlen(argv[1]), 0, NULL, 0);
    let_a_quantum_pass();
    long sum = 0;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            sum += (i + 1) * (long)c[i][j] * (j % 3 + 1);
    printf("%s: checksum %ld\n", argv[1], sum);
    return 0;
}
