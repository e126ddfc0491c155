/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Small programs of seven shapes, for measuring how fast an engine executes them: kernels LABEL:NAME:REPEATS...
 *
 * For each argument it announces the start and the end of the kernel by a hypercall (inert on real hardware) and by a line on
 * standard output, which on a guest's console reaches a host that has no hypercall. One repeat is some million instructions.
 */
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nodescope.h"

#define SCALAR __attribute__((noinline, optimize("no-tree-vectorize")))
#define VECTOR __attribute__((noinline, target("avx2,fma")))

/* Results go here, so that no kernel is optimised away. */
static volatile double sink;

static void hypercall(const char *name)
{
	uint32_t a = NODESCOPE_LEAF, b, c = NODESCOPE_OP_MARK, d;
	__asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d)
			 : "S"(name), "D"(strlen(name)) : "memory");
}

static void announce(const char *what, const char *label, const char *name)
{
	char text[128];
	snprintf(text, sizeof text, "bench:%s:%s:%s", what, label, name);
	puts(text);
	fflush(stdout);
	hypercall(text);
}

/* Registers only: a generator of pseudo-random numbers with a few branches. */
SCALAR static void integer(long n)
{
	uint64_t x = 88172645463325252u, s = 0;
	for (long i = 0; i < n * 300000; i++) {
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

/* Dependent loads over 4 MiB in random order, a line each. */
#define CHASE 65536
SCALAR static void chase(long n)
{
	static struct node { struct node *next; char pad[56]; } *nodes;
	if (!nodes) {
		nodes = aligned_alloc(64, CHASE * sizeof *nodes);
		static uint32_t order[CHASE];
		uint32_t x = 1;
		for (uint32_t i = 0; i < CHASE; i++)
			order[i] = i;
		for (uint32_t i = CHASE - 1; i > 0; i--) {
			x = x * 1664525 + 1013904223;
			uint32_t j = (uint32_t)(((uint64_t)x * (i + 1)) >> 32), t = order[i];
			order[i] = order[j];
			order[j] = t;
		}
		for (uint32_t i = 0; i < CHASE; i++)
			nodes[order[i]].next = &nodes[order[(i + 1) % CHASE]];
	}
	struct node *at = nodes;
	for (long i = 0; i < n * 200000; i++)
		at = at->next;
	sink = (double)(uintptr_t)at;
}

VECTOR __attribute__((optimize("O3"))) static void daxpy(long n, double a, const double *restrict x, double *restrict y)
{
	for (long i = 0; i < n; i++)
		y[i] += a * x[i];
}

static double *ones(long n)
{
	double *v = aligned_alloc(64, (size_t)n * sizeof *v);
	for (long i = 0; i < n; i++)
		v[i] = 1.0 + (double)(i % 7);
	return v;
}

#define FAR 2000000L
static void daxpy_memory(long n)
{
	static double *x, *y;
	if (!x) {
		x = ones(FAR);
		y = ones(FAR);
	}
	for (long i = 0; i < n; i++)
		daxpy(FAR, 1e-3, x, y);
	sink = y[1];
}

#define NEAR 1024L
static void daxpy_l1(long n)
{
	static double *x, *y;
	if (!x) {
		x = ones(NEAR);
		y = ones(NEAR);
	}
	for (long i = 0; i < n * 2000; i++)
		daxpy(NEAR, 1e-6, x, y);
	sink = y[1];
}

#define ORDER 96
SCALAR static void dgemm_scalar(long n)
{
	static double *a, *b, *c;
	if (!a) {
		a = ones(ORDER * ORDER);
		b = ones(ORDER * ORDER);
		c = ones(ORDER * ORDER);
	}
	for (long r = 0; r < n; r++)
		for (int i = 0; i < ORDER; i++)
			for (int j = 0; j < ORDER; j++) {
				double s = 0;
				for (int k = 0; k < ORDER; k++)
					s += a[i * ORDER + k] * b[k * ORDER + j];
				c[i * ORDER + j] = s;
			}
	sink = c[1];
}

/* 4 x 8 blocks in registers, as libraries do. */
VECTOR static void dgemm_vector(long n)
{
	static double *a, *b, *c;
	if (!a) {
		a = ones(ORDER * ORDER);
		b = ones(ORDER * ORDER);
		c = ones(ORDER * ORDER);
	}
	for (long r = 0; r < n * 8; r++)
		for (int i = 0; i < ORDER; i += 4)
			for (int j = 0; j < ORDER; j += 8) {
				__m256d s[4][2] = { 0 };
				for (int k = 0; k < ORDER; k++) {
					__m256d u = _mm256_load_pd(&b[k * ORDER + j]);
					__m256d v = _mm256_load_pd(&b[k * ORDER + j + 4]);
#pragma GCC unroll 4
					for (int m = 0; m < 4; m++) {
						__m256d w = _mm256_broadcast_sd(&a[(i + m) * ORDER + k]);
						s[m][0] = _mm256_fmadd_pd(w, u, s[m][0]);
						s[m][1] = _mm256_fmadd_pd(w, v, s[m][1]);
					}
				}
#pragma GCC unroll 4
				for (int m = 0; m < 4; m++) {
					_mm256_store_pd(&c[(i + m) * ORDER + j], s[m][0]);
					_mm256_store_pd(&c[(i + m) * ORDER + j + 4], s[m][1]);
				}
			}
	sink = c[1];
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

#define ITEMS 20000L
static void quicksort(long n)
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

/* The integer loop with a hypercall for every 4000 instructions or so: what a traced program that calls MPI all the time costs. */
static void traced(long n)
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

static const struct { const char *name; void (*run)(long); } kernels[] = {
	{ "integer", integer }, { "chase", chase }, { "daxpy_memory", daxpy_memory }, { "daxpy_l1", daxpy_l1 },
	{ "dgemm_scalar", dgemm_scalar }, { "dgemm_vector", dgemm_vector }, { "quicksort", quicksort }, { "traced", traced },
};

static double processor_time(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		char label[32], name[32];
		long repeats;
		if (sscanf(argv[i], "%31[^:]:%31[^:]:%ld", label, name, &repeats) != 3)
			return fprintf(stderr, "kernels: %s is not LABEL:NAME:REPEATS\n", argv[i]), 2;
		size_t k = 0;
		while (k < sizeof kernels / sizeof *kernels && strcmp(kernels[k].name, name))
			k++;
		if (k == sizeof kernels / sizeof *kernels)
			return fprintf(stderr, "kernels: no kernel %s\n", name), 2;
		/* Memory is touched and set up before the clock starts. */
		kernels[k].run(1);
		announce("begin", label, name);
		double start = processor_time();
		kernels[k].run(repeats);
		double seconds = processor_time() - start;
		announce("end", label, name);
		printf("bench:time:%s:%s:%.6f\n", label, name, seconds);
		fflush(stdout);
	}
	return 0;
}
