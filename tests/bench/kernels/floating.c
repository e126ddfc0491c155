/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Kernels of floating-point code, written without a vector length: compiled for SSE2 and again for AVX2 and FMA, where the
 * compiler fuses multiplications and additions, and the vectors are twice as long.
 */
#include <stdlib.h>

#include "kernels.h"

#ifdef __AVX2__
#define BUILD(name) name##_avx2
#define LANES 4
#else
#define BUILD(name) name##_sse2
#define LANES 2
#endif

typedef double vector __attribute__((vector_size(8 * LANES)));

static double *ones(long n)
{
	double *v = aligned_alloc(64, (size_t)n * sizeof *v);
	if (!v)
		abort();
	for (long i = 0; i < n; i++)
		v[i] = 1.0 + (double)(i % 7);
	return v;
}

/* Vectorised by the compiler (-O3). */
__attribute__((noinline)) static void daxpy(long n, double a, const double *restrict x, double *restrict y)
{
	for (long i = 0; i < n; i++)
		y[i] += a * x[i];
}

/* 32 MB: at least twice the size of a cache. */
#define FAR 2000000L
void BUILD(daxpy_memory)(long n)
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

/* 16 KiB: half of L1. */
#define NEAR 1024L
#ifndef PASSES
#define PASSES 2000
#endif
void BUILD(daxpy_l1)(long n)
{
	static double *x, *y;
	if (!x) {
		x = ones(NEAR);
		y = ones(NEAR);
	}
	for (long i = 0; i < n * PASSES; i++)
		daxpy(NEAR, 1e-6, x, y);
	sink = y[1];
}

#ifndef ORDER
#define ORDER 96
#endif
static double *a, *b, *c;

static void matrices(void)
{
	if (a)
		return;
	a = ones(ORDER * ORDER);
	b = ones(ORDER * ORDER);
	c = ones(ORDER * ORDER);
}

SCALAR void BUILD(dgemm_scalar)(long n)
{
	matrices();
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

/* Blocks of four rows and two vectors in registers, as libraries do; TYPE is a vector in memory. */
#define BLOCKS(n, a, b, c, TYPE) \
	for (long r = 0; r < (n) * 8; r++) \
		for (int i = 0; i < ORDER; i += 4) \
			for (int j = 0; j < ORDER; j += 2 * LANES) { \
				vector s[4][2] = { 0 }; \
				for (int k = 0; k < ORDER; k++) { \
					vector u = *(const TYPE *)&(b)[k * ORDER + j]; \
					vector v = *(const TYPE *)&(b)[k * ORDER + j + LANES]; \
					_Pragma("GCC unroll 4") \
					for (int m = 0; m < 4; m++) { \
						double w = (a)[(i + m) * ORDER + k]; \
						s[m][0] += w * u; \
						s[m][1] += w * v; \
					} \
				} \
				_Pragma("GCC unroll 4") \
				for (int m = 0; m < 4; m++) { \
					*(TYPE *)&(c)[(i + m) * ORDER + j] = s[m][0]; \
					*(TYPE *)&(c)[(i + m) * ORDER + j + LANES] = s[m][1]; \
				} \
			}

__attribute__((noinline)) void BUILD(dgemm_vector)(long n)
{
	matrices();
	BLOCKS(n, a, b, c, vector)
	sink = c[1];
}

#ifdef __AVX2__
/*
 * The kernels on memory as malloc gives it: aligned to 16 bytes, so that every other vector of 32 bytes lies in two cache lines.
 */
typedef double misaligned __attribute__((vector_size(8 * LANES), aligned(16)));

static double *misaligned_ones(long n)
{
	return ones(n + 8) + 2;
}

void daxpy_memory_misaligned_avx2(long n)
{
	static double *x, *y;
	if (!x) {
		x = misaligned_ones(FAR);
		y = misaligned_ones(FAR);
	}
	for (long i = 0; i < n; i++)
		daxpy(FAR, 1e-3, x, y);
	sink = y[1];
}

void daxpy_l1_misaligned_avx2(long n)
{
	static double *x, *y;
	if (!x) {
		x = misaligned_ones(NEAR);
		y = misaligned_ones(NEAR);
	}
	for (long i = 0; i < n * 2000; i++)
		daxpy(NEAR, 1e-6, x, y);
	sink = y[1];
}

__attribute__((noinline)) void dgemm_vector_misaligned_avx2(long n)
{
	static double *a, *b, *c;
	if (!a) {
		a = misaligned_ones(ORDER * ORDER);
		b = misaligned_ones(ORDER * ORDER);
		c = misaligned_ones(ORDER * ORDER);
	}
	BLOCKS(n, a, b, c, misaligned)
	sink = c[1];
}
#endif
