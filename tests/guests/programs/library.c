/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A library that `places.c` opens. */
#include <stdint.h>

uint64_t library_work(uint64_t n) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum = (sum ^ i) * 3;
    return sum;
}
