/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef KERNELS_H
#define KERNELS_H

/* A function that the compiler must not vectorise. */
#define SCALAR __attribute__((noinline, optimize("no-tree-vectorize")))

/* Results go here, so that no kernel is optimised away. */
extern volatile double sink;

/* integer.c; the argument counts repeats of some million instructions. */
void integer(long n);
void chase(long n);
void chase_l3(long n);
void quicksort(long n);
void traced(long n);

/* floating.c, compiled once for SSE2 and once for AVX2 and FMA. */
#define FLOATING(build) \
	void daxpy_memory_##build(long n); \
	void daxpy_l1_##build(long n); \
	void dgemm_scalar_##build(long n); \
	void dgemm_vector_##build(long n)
FLOATING(sse2);
FLOATING(avx2);
void daxpy_memory_misaligned_avx2(long n);
void daxpy_l1_misaligned_avx2(long n);
void dgemm_vector_misaligned_avx2(long n);

#endif
