/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Micro-kernels of branches, calls, and the supply of instructions. */
#include "micro.h"

/* Branches that are always taken, with their targets at a distance. No target is reached in another way. */
#define TAKEN(name, times, distance) \
	void name(long n) \
	{ \
		LOOP(times + 3) \
			__asm__ volatile("or $1, %%eax;" REPEAT(times, "jnz 1f; nop; " distance "1:") : : : "rax", "cc"); \
	}
TAKEN(branch_taken, 64, ".p2align 5;")
TAKEN(branch_taken_dense, 64, "")
TAKEN(branch_taken_far, 128, ".p2align 7;")

/* A byte for each branch: it is taken if the byte is 0. An addition is skipped. */
static void pattern(const char *name, size_t period, long n)
{
	enum { BYTES = 8192 };
	uint8_t *m;
	size_t at = 0;
	if (area(name, BYTES, LARGE, &m))
		for (size_t i = 0; i < BYTES; i++)
			m[i] = 0xb2d >> i % period & 1;
	LOOP(7) {
		__asm__ volatile("cmpb $0, (%0); je 1f; add $1, %%rax; 1:" : : "r"(m + at) : "rax", "cc");
		at = (at + 1) & (BYTES - 1);
	}
}

void branch_alternating(long n)
{
	pattern(__func__, 2, n);
}

void branch_period_12(long n)
{
	pattern(__func__, 12, n);
}

/* A generator of pseudo-random numbers for assembly: its chain is shorter than the time of a misprediction. */
#define NEXT "imul %[factor], %[x]; add %[step], %[x];"
#define GENERATOR [factor] "r"(6364136223846793005u), [step] "r"(1442695040888963407u)

/* Branches that are taken if a random number is at least `limit`. */
#define RANDOM(name, limit) \
	void name(long n) \
	{ \
		uint64_t x = 1; \
		LOOP(26) \
			__asm__ volatile(REPEAT(5, NEXT "cmp %[most], %[x]; jae 1f; add $1, %%rax; 1:") \
				: [x] "+r"(x) : GENERATOR, [most] "r"(limit) : "rax", "cc"); \
		sink = (double)x; \
	}
RANDOM(branch_random, 1UL << 63)
RANDOM(branch_random_10, UINT64_MAX / 10 * 9)

/* The path chooses the bits of the number by which a load finds its place. */
void branch_random_load(long n)
{
	char *m;
	uint64_t x = 1;
	area(__func__, L2, LARGE, &m);
	LOOP(42)
		__asm__ volatile(REPEAT(5, NEXT "mov %[x], %%rax; test %[x], %[x]; js 1f; shl $9, %%rax; 1: shr $49, %%rax;"
			"add (%[m], %%rax, 8), %%rcx")
			: [x] "+r"(x) : GENERATOR, [m] "r"(m) : "rax", "rcx", "cc", "memory");
	sink = (double)x;
}

/* The chain of loads adds nothing to the number, but the comparison waits for it. */
void branch_random_wait(long n)
{
	static void **at;
	void **m;
	uint64_t x = 1;
	if (area(__func__, L2, LARGE, &m))
		at = ring(m, L2, LINE);
	LOOP(42)
		__asm__ volatile(REPEAT(5, NEXT "mov (%[at]), %[at]; mov %[at], %%rax; and $0, %%rax; add %[x], %%rax; js 1f; add $1, %%rcx; 1:")
			: [x] "+r"(x), [at] "+r"(at) : GENERATOR : "rax", "rcx", "cc", "memory");
	sink = (double)x;
}

/* An inner loop with a constant number of passes. */
#define NEST(name, passes) \
	void name(long n) \
	{ \
		LOOP(3 * passes + 3) \
			__asm__ volatile("mov $" #passes ", %%ecx; 1: add $1, %%rax; sub $1, %%ecx; jnz 1b" : : : "rax", "rcx", "cc"); \
	}
NEST(nest_5, 5)
NEST(nest_16, 16)
NEST(nest_40, 40)

/* Bodies of a switch are of the same length, so that only the jump counts. */
#define CASE(i) case i: __asm__ volatile("add $" #i ", %0" : "+r"(sum) : : "cc"); break;
#define CHOOSE(i) \
	switch (i) { \
	CASE(0) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) \
	default: __builtin_unreachable(); \
	}

void switch_random(long n)
{
	uint64_t x = 1, sum = 0;
	LOOP(10) {
		__asm__ volatile(NEXT : [x] "+r"(x) : GENERATOR : "cc");
		CHOOSE(x >> 61);
	}
	sink = (double)sum;
}

void switch_period_7(long n)
{
	uint64_t at = 0, sum = 0;
	LOOP(7) {
		at = at == 6 ? 0 : at + 1;
		__asm__ volatile("" : "+r"(at));
		CHOOSE(at);
	}
	sink = (double)sum;
}

#define OPAQUE __attribute__((noipa, optimize("no-optimize-sibling-calls")))

OPAQUE static void empty(void)
{
	__asm__ volatile("");
}

void call_return(long n)
{
	LOOP(18) {
		empty(); empty(); empty(); empty();
		empty(); empty(); empty(); empty();
	}
}

/* `calls` says by its bits which of two places calls. */
OPAQUE static void deep(long depth, uint64_t calls)
{
	if (depth <= 1)
		return;
	if (calls & 1) {
		deep(depth - 1, calls >> 1 | calls << 63);
		__asm__ volatile("# one");
	} else {
		deep(depth - 1, calls >> 1 | calls << 63);
		__asm__ volatile("# two");
	}
}

void call_deep_10(long n)
{
	LOOP(10 * 8)
		deep(10, 0);
}

void call_deep_100(long n)
{
	uint64_t x = 1;
	LOOP(100 * 9) {
		deep(100, x);
		x = x * 6364136223846793005u + 1442695040888963407u;
	}
}

OPAQUE static long fib(long i)
{
	return i < 2 ? i : fib(i - 1) + fib(i - 2);
}

void call_fib(long n)
{
	long sum = 0;
	LOOP(1973 * 13)
		sum += fib(15);
	sink = (double)sum;
}

#define TARGET(name, value) OPAQUE static uint64_t name(uint64_t x) { return x + value; }
TARGET(target_a, 1)
TARGET(target_b, 2)
TARGET(target_c, 3)
TARGET(target_d, 4)
static uint64_t (*volatile const targets[])(uint64_t) = { target_a, target_b, target_c, target_d };

void pointer_same(long n)
{
	uint64_t sum = 0;
	LOOP(7)
		sum = targets[1](sum);
	sink = (double)sum;
}

void pointer_random(long n)
{
	uint64_t x = 1, sum = 0;
	LOOP(10) {
		__asm__ volatile(NEXT : [x] "+r"(x) : GENERATOR : "cc");
		sum = targets[x >> 62](sum);
	}
	sink = (double)sum;
}

/* Long code without branches, of independent instructions of 2, 7 or 8 bytes. */
#define CODE(name, times, text) \
	void name(long n) \
	{ \
		LOOP(4 * times + 2) \
			__asm__ volatile(REPEAT(times, text) : : : "rax", "rbx", "rcx", "rdx", "rsi", "cc"); \
	}
CODE(code_decode, 3800, "xor %%eax, %%eax; xor %%ecx, %%ecx; xor %%edx, %%edx; xor %%esi, %%esi")
CODE(code_l2, 2340, "add $0x12345678, %%rbx; add $0x12345678, %%rcx; add $0x12345678, %%rdx; add $0x12345678, %%rsi")
CODE(code_l2_nop, 2048, ".rept 4; .byte 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0; .endr")

void code_l2_jump(long n)
{
	LOOP(2 * 2048 + 2)
		__asm__ volatile(REPEAT(2048, "add $1, %%rax; jmp 1f; .p2align 6; 1:") : : : "rax", "cc");
}
