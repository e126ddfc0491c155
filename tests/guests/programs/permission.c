/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Permission for the doorbell. Without arguments: prints whether this process has the permission. `drop COMMAND...` runs a command
 * without the permission, which needs no privilege (ioperm(2)).
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nodescope.h"

int main(int argc, char **argv) {
    if (argc == 1) {
        puts(nodescope_may_ring() ? "permitted" : "refused");
        return 0;
    }
    if (argc < 3 || strcmp(argv[1], "drop") || ioperm(NODESCOPE_DOORBELL_PORT, 4, 0))
        return 2;
    execvp(argv[2], argv + 2);
    return 3;
}
