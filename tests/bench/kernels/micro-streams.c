/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Micro-kernels of loads and stores in order: bandwidths, and strides. */
#include "micro.h"

#define VECTORS "ymm0", "ymm1", "memory"

/*
 * Passes over one to three arrays. One or two arrays are `bytes` together, three are three quarters of it. `text` is `count` instructions
 * for 32 bytes, which are at j of %0, %1 and %2. The arrays are a few lines out of step, so that low bits of their addresses differ.
 */
#define STREAM(name, bytes, arrays, count, text) \
	void name(long n) \
	{ \
		static size_t last; \
		char *m; \
		const size_t each = (arrays) == 1 ? (bytes) : (arrays) == 2 ? (bytes) / 2 : (bytes) / 4; \
		if (area(#name, (bytes) + 2 * 1088, LARGE, &m)) \
			last = 0; \
		size_t offset = last; \
		LOOP(16 * count + 8) { \
			char *a = m + offset; \
			__asm__ volatile(REPEAT(16, ".set j, k * 32;" text) \
				: : "r"(a), "r"(a + each + 1088), "r"(a + 2 * (each + 1088)) : VECTORS); \
			offset = offset + 512 < each ? offset + 512 : 0; \
		} \
		last = offset; \
	}
#define READ "vmovaps j(%0), %%ymm0"
#define WRITE "vmovaps %%ymm1, j(%0)"
#define COPY "vmovaps j(%1), %%ymm0; vmovaps %%ymm0, j(%0)"
#define TRIAD "vmovapd j(%1), %%ymm0; vfmadd132pd j(%2), %%ymm1, %%ymm0; vmovapd %%ymm0, j(%0)"
#define DAXPY "vmovapd j(%0), %%ymm0; vfmadd231pd j(%1), %%ymm1, %%ymm0; vmovapd %%ymm0, j(%0)"
#define STREAM_NT "vmovntps %%ymm1, j(%0)"
STREAM(stream_read_l1, L1, 1, 1, READ)
STREAM(stream_read_l2, L2, 1, 1, READ)
STREAM(stream_read_l3, L3, 1, 1, READ)
STREAM(stream_read_8m, 8L << 20, 1, 1, READ)
STREAM(stream_read_memory, MEMORY, 1, 1, READ)
STREAM(stream_write_l1, L1, 1, 1, WRITE)
STREAM(stream_write_l2, L2, 1, 1, WRITE)
STREAM(stream_write_l3, L3, 1, 1, WRITE)
STREAM(stream_write_memory, MEMORY, 1, 1, WRITE)
STREAM(stream_copy_l1, L1, 2, 2, COPY)
STREAM(stream_copy_l2, L2, 2, 2, COPY)
STREAM(stream_copy_l3, L3, 2, 2, COPY)
STREAM(stream_copy_memory, MEMORY, 2, 2, COPY)
STREAM(stream_triad_l2, L2, 3, 3, TRIAD)
STREAM(stream_triad_l3, L3, 3, 3, TRIAD)
STREAM(stream_triad_memory, MEMORY, 3, 3, TRIAD)
STREAM(stream_daxpy_l2, L2, 2, 3, DAXPY)
STREAM(stream_daxpy_l3, L3, 2, 3, DAXPY)
STREAM(stream_daxpy_memory, MEMORY, 2, 3, DAXPY)
STREAM(stream_nt_memory, MEMORY, 1, 1, STREAM_NT)

/* 32 loads at a constant distance. Each pass over the data begins one line further, so that all lines are loaded. */
#define STRIDE(stride, level, bytes) \
	void stride_##stride##_##level(long n) \
	{ \
		static size_t last, skew; \
		char *m; \
		if (area(__func__, bytes, LARGE, &m)) \
			last = skew = 0; \
		size_t at = last; \
		LOOP(36) { \
			__asm__ volatile(REPEAT(32, "mov k * " #stride "(%0), %%rax") : : "r"(m + at + skew) : "rax", "memory"); \
			at += 32 * stride; \
			if (at == (bytes)) { \
				at = 0; \
				skew = (skew + LINE) & (stride - 1); \
			} \
		} \
		last = at; \
	}
STRIDE(64, l2, L2)
STRIDE(128, l2, L2)
STRIDE(256, l2, L2)
STRIDE(4096, l2, L2)
STRIDE(8192, l2, L2)
STRIDE(64, l3, L3)
STRIDE(128, l3, L3)
STRIDE(256, l3, L3)
STRIDE(4096, l3, L3)
STRIDE(8192, l3, L3)
