/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Makes so many hypercalls between two markers: rings COUNT */
#include <stdlib.h>

#include "nodescope.h"

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 1;
    if (nodescope_attach() != NODESCOPE_PRESENT)
        return 1;
    nodescope_call(NODESCOPE_OP_MARK, "begin", 5, 0, NULL, 0);
    for (long i = 0; i < count; i++)
        nodescope_cpuid(NODESCOPE_OP_PROBE, 0, 0, 0, 0, 0);
    nodescope_call(NODESCOPE_OP_MARK, "end", 3, 0, NULL, 0);
    return 0;
}
