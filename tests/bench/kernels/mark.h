/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program marks the begin and the end of a measured part by a hypercall, and by a line on standard output. Real hardware ignores
 * the hypercall. The line reaches a host without hypercalls by the guest's console.
 */
#ifndef MARK_H
#define MARK_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "nodescope.h"

static inline void hypercall(const char *text)
{
	uint32_t a = NODESCOPE_LEAF, b, c = NODESCOPE_OP_MARK, d;
	__asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d)
			 : "S"(text), "D"(strlen(text)) : "memory");
}

/* `what` is begin or end. */
static inline void announce(const char *what, const char *label, const char *name)
{
	char text[128];
	snprintf(text, sizeof text, "bench:%s:%s:%s", what, label, name);
	puts(text);
	fflush(stdout);
	hypercall(text);
}

/* Processor time that the part took by the program's own clock. */
static inline void say_time(const char *label, const char *name, double seconds)
{
	printf("bench:time:%s:%s:%.6f\n", label, name, seconds);
	fflush(stdout);
}

static inline double processor_time(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
