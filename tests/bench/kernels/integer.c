/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Kernels of integer code: registers only, dependent loads, sorting; and one that makes many hypercalls. */
#include <stdlib.h>

#include "kernels.h"
#include "mark.h"

/* Sizes may be given to the compiler. */
#ifndef DRAWS
#define DRAWS 300000
#endif
#ifndef STEPS
#define STEPS 200000
#endif
#ifndef L3_NODES
#define L3_NODES (1 << 16)
#endif
#ifndef ITEMS
#define ITEMS 20000L
#endif

/* Registers only: a generator of pseudo-random numbers with a few branches. */
SCALAR void integer(long n)
{
	uint64_t x = 88172645463325252u, s = 0;
	for (long i = 0; i < n * DRAWS; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		if (x & 1)
			s += x >> 3;
		else
			s ^= x + (uint64_t)i;
	}
	sink = (double)s;
}

/* A line each. */
struct node { struct node *next; char pad[56]; };

/* A ring of nodes in random order. */
static struct node *ring(uint32_t count)
{
	struct node *nodes = aligned_alloc(64, count * sizeof *nodes);
	uint32_t *order = malloc(count * sizeof *order), x = 1;
	for (uint32_t i = 0; i < count; i++)
		order[i] = i;
	for (uint32_t i = count - 1; i > 0; i--) {
		x = x * 1664525 + 1013904223;
		uint32_t j = (uint32_t)(((uint64_t)x * (i + 1)) >> 32), t = order[i];
		order[i] = order[j];
		order[j] = t;
	}
	for (uint32_t i = 0; i < count; i++)
		nodes[order[i]].next = &nodes[order[(i + 1) % count]];
	free(order);
	return nodes;
}

SCALAR static struct node *follow(struct node *at, long steps)
{
	for (long i = 0; i < steps; i++)
		at = at->next;
	return at;
}

/* Dependent loads over 64 MiB: each waits for memory. */
void chase(long n)
{
	static struct node *at;
	if (!at)
		at = ring(1 << 20);
	at = follow(at, n * 200000);
	sink = (double)(uintptr_t)at;
}

/* Dependent loads over 4 MiB, which fit into the third-level cache of hosts. */
void chase_l3(long n)
{
	static struct node *at;
	if (!at)
		at = ring(L3_NODES);
	at = follow(at, n * STEPS);
	sink = (double)(uintptr_t)at;
}

static void sort(int32_t *v, long n)
{
	while (n > 12) {
		int32_t p = v[n / 2];
		long i = -1, j = n;
		for (;;) {
			while (v[++i] < p)
				;
			while (v[--j] > p)
				;
			if (i >= j)
				break;
			int32_t t = v[i];
			v[i] = v[j];
			v[j] = t;
		}
		sort(v, j + 1);
		v += j + 1;
		n -= j + 1;
	}
	for (long i = 1; i < n; i++) {
		int32_t t = v[i];
		long j = i;
		for (; j > 0 && v[j - 1] > t; j--)
			v[j] = v[j - 1];
		v[j] = t;
	}
}

void quicksort(long n)
{
	static int32_t v[ITEMS];
	uint32_t x = 7;
	for (long r = 0; r < n; r++) {
		for (long i = 0; i < ITEMS; i++)
			v[i] = (int32_t)(x = x * 1664525 + 1013904223);
		sort(v, ITEMS);
	}
	sink = v[1];
}

/* The integer loop with a hypercall for every 4000 instructions or so, like a traced program that calls MPI all the time. */
void traced(long n)
{
	for (long i = 0; i < n * 1000; i++) {
		uint64_t x = (uint64_t)i | 1;
		for (int k = 0; k < 500; k++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			__asm__ volatile("" : "+r"(x));
		}
		sink = (double)x;
		hypercall("traced");
	}
}
