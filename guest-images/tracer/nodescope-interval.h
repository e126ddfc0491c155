/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Intervals of a program, named by its author, for nodescope's statistics of OpenMP:
 *
 *     nodescope_interval_begin("solve");
 *     ...
 *     nodescope_interval_end("solve");
 *
 * Intervals nest. A name that is begun again within the same interval goes on with the statistics that it has. Without nodescope the calls do
 * nothing, and the program needs no library. From Fortran: call nodescope_interval_begin('solve'), with a library of one's own that
 * defines empty procedures of these names for runs without nodescope.
 */
#ifndef NODESCOPE_INTERVAL_H
#define NODESCOPE_INTERVAL_H

#ifdef __cplusplus
extern "C" {
#endif

void nodescope_interval_begin_hook(const char *name) __attribute__((weak));
void nodescope_interval_end_hook(const char *name) __attribute__((weak));

__attribute__((noinline, unused)) static void nodescope_interval_begin(const char *name) {
    if (nodescope_interval_begin_hook)
        nodescope_interval_begin_hook(name);
}

__attribute__((noinline, unused)) static void nodescope_interval_end(const char *name) {
    if (nodescope_interval_end_hook)
        nodescope_interval_end_hook(name);
}

#ifdef __cplusplus
}
#endif

#endif
