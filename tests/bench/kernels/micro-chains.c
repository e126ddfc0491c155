/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Micro-kernels of dependent instructions: latencies. */
#include "micro.h"

/* A chain in one general register. */
#define INTEGER(name, text) \
	void name(long n) \
	{ \
		uint64_t x = 3; \
		LOOP(64) \
			__asm__ volatile(REPEAT(64, text) : "+r"(x) : "r"(1L) : "cc"); \
		sink = (double)x; \
	}
INTEGER(chain_add, "add %0, %0")
INTEGER(chain_adc, "adc %0, %0")
INTEGER(chain_cmov, "cmovc %1, %0")
INTEGER(chain_imul, "imul %0, %0")

/* A chain in one vector register. The second operand keeps the values normal. */
#define REAL(name, start, other, text) \
	void name(long n) \
	{ \
		double x = start; \
		LOOP(64) \
			__asm__ volatile(REPEAT(64, text) : "+x"(x) : "x"(other)); \
		sink = x; \
	}
REAL(chain_fadd, 1.0, 1e-9, "vaddsd %1, %0, %0")
REAL(chain_fmul, 1.5, 1.0, "vmulsd %1, %0, %0")
REAL(chain_fma, 1.5, 0.3, "vfmadd213sd %1, %1, %0")
REAL(chain_fdiv, 1.5, 1.7, "vdivsd %0, %1, %0")
REAL(chain_shuffle, 1.5, 1.0, "vpermpd $0x1b, %t0, %t0")

void chain_transfer(long n)
{
	double x = 1.5;
	LOOP(66)
		__asm__ volatile(REPEAT(32, "vmovq %0, %%rax; vmovq %%rax, %0") : "+x"(x) : : "rax");
	sink = x;
}

/* The addition keeps the roots away from 1, which a divider may treat in a shorter time. */
void chain_fsqrt(long n)
{
	double x = 2.5;
	LOOP(64)
		__asm__ volatile(REPEAT(32, "vsqrtsd %0, %0, %0; vaddsd %1, %0, %0") : "+x"(x) : "x"(1.1));
	sink = x;
}

/* The remainder is the high half of the next dividend, so that no quotient has more than 64 bits. */
void chain_div64(long n)
{
	uint64_t a = 0x123456789abcdefu, high = 0;
	LOOP(66)
		__asm__ volatile(REPEAT(64, "div %2") : "+a"(a), "+d"(high) : "r"(0xfedcba9876543211u) : "cc");
	sink = (double)(a + high);
}

void chain_load(long n)
{
	void *x = &x;
	void **at = &x;
	LOOP(64)
		__asm__ volatile(REPEAT(64, "mov (%0), %0") : "+r"(at) : : "memory");
	sink = (double)(uintptr_t)at;
}

void chain_index(long n)
{
	static uint64_t zero[8];
	uint64_t x = 0;
	LOOP(64)
		__asm__ volatile(REPEAT(64, "mov (%1, %0, 8), %0") : "+r"(x) : "r"(zero) : "memory");
	sink = (double)x;
}

void chain_fma_load(long n)
{
	double x = 1.5, factor = 0.3;
	LOOP(64)
		__asm__ volatile(REPEAT(64, "vfmadd213sd %1, %2, %0") : "+x"(x) : "m"(factor), "x"(0.3));
	sink = x;
}

/* Three additions for each link of the chain: with four ports the chain is the limit. */
void slack_add(long n)
{
	uint64_t x = 1;
	LOOP(66)
		__asm__ volatile(REPEAT(16, "add %0, %0; add $1, %%rax; add $1, %%rcx; add $1, %%rdx")
			: "+r"(x) : : "rax", "rcx", "rdx", "cc");
	sink = (double)x;
}

/* Seven integer additions and one multiplication of the chain. */
void slack_fmul(long n)
{
	double x = 1.5;
	LOOP(66)
		__asm__ volatile(REPEAT(8, "vmulsd %1, %0, %0; add $1, %%rax; add $1, %%rcx; add $1, %%rdx; add $1, %%rsi;"
			"add $1, %%rdi; add $1, %%r8; add $1, %%r9")
			: "+x"(x) : "x"(1.0) : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "cc");
	sink = x;
}

/* Sums of 16 KiB: 32 additions of vectors in memory, in turn to each of the accumulators. */
#define SUM(name, times, text) \
	void name(long n) \
	{ \
		char *m; \
		size_t offset = 0; \
		area(#name, L1, LARGE, &m); \
		LOOP(36) { \
			__asm__ volatile(REPEAT(times, text) : : "r"(m + offset) \
				: "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7"); \
			offset = (offset + 1024) & (L1 - 1); \
		} \
	}
#define ADD(size, at, register) "vaddpd k * " #size " + " #at "(%0), %%" #register ", %%" #register ";"
SUM(reduce_1, 32, ADD(32, 0, ymm0))
SUM(reduce_2, 16, ADD(64, 0, ymm0) ADD(64, 32, ymm1))
SUM(reduce_4, 8, ADD(128, 0, ymm0) ADD(128, 32, ymm1) ADD(128, 64, ymm2) ADD(128, 96, ymm3))
SUM(reduce_8, 4, ADD(256, 0, ymm0) ADD(256, 32, ymm1) ADD(256, 64, ymm2) ADD(256, 96, ymm3)
	ADD(256, 128, ymm4) ADD(256, 160, ymm5) ADD(256, 192, ymm6) ADD(256, 224, ymm7))
