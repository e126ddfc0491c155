/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Micro-kernels of loads that miss caches and translations. */
#include <string.h>

#include "micro.h"

/* Chains of dependent loads in `chains` parts of the memory, one load of each in turn. */
static void follow(const char *name, size_t bytes, size_t chains, long n)
{
	static void **at[8];
	char *m;
	if (area(name, bytes, LARGE, &m))
		for (size_t i = 0; i < chains; i++)
			at[i] = ring(m + bytes / chains * i, bytes / chains, LINE);
	void **a = at[0], **b = at[1], **c = at[2], **d = at[3];
	void **e = at[4], **f = at[5], **g = at[6], **h = at[7];
#define AGAIN(times, text) \
	LOOP(34) \
		__asm__ volatile(REPEAT(times, text) \
			: "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f), "+r"(g), "+r"(h) : : "memory")
#define TWO "mov (%0), %0; mov (%1), %1;"
#define FOUR TWO "mov (%2), %2; mov (%3), %3;"
	if (chains == 1)
		AGAIN(32, "mov (%0), %0;");
	else if (chains == 2)
		AGAIN(16, TWO);
	else if (chains == 4)
		AGAIN(8, FOUR);
	else
		AGAIN(4, FOUR "mov (%4), %4; mov (%5), %5; mov (%6), %6; mov (%7), %7");
	void **last[] = { a, b, c, d, e, f, g, h };
	for (size_t i = 0; i < chains; i++)
		at[i] = last[i];
}

#define CHASE(name, bytes, chains) void name(long n) { follow(#name, bytes, chains, n); }
CHASE(chase_l1, L1, 1)
CHASE(chase_l2, L2, 1)
CHASE(chase_l3_small, L3, 1)
CHASE(chase_8m, 8L << 20, 1)
CHASE(chase_l3_small_4, L3, 4)
CHASE(chase_memory, MEMORY, 1)
CHASE(chase_memory_2, MEMORY, 2)
CHASE(chase_memory_4, MEMORY, 4)
CHASE(chase_memory_8, MEMORY, 8)

/* Independent loads over 5 << `log` bytes. Four generators together make places faster than any level loads them. */
#define GENERATE(x) "imul %[factor], %[" #x "]; mov %[" #x "], %%rdi; shr %[shift], %%rdi; lea (%%rdi, %%rdi, 4), %%rdi; add (%[m], %%rdi, 8), %%rsi;"
#define GATHER(name, log) \
	void name(long n) \
	{ \
		static uint64_t state[4] = { 1, 3, 5, 7 }; \
		uint64_t a = state[0], b = state[1], c = state[2], d = state[3]; \
		char *m; \
		area(#name, 5L << (log), LARGE, &m); \
		LOOP(42) \
			__asm__ volatile(REPEAT(2, GENERATE(a) GENERATE(b) GENERATE(c) GENERATE(d)) \
				: [a] "+r"(a), [b] "+r"(b), [c] "+r"(c), [d] "+r"(d) \
				: [m] "r"(m), [factor] "r"(6364136223846793005u), [shift] "i"(64 - ((log) - 3)) \
				: "rsi", "rdi", "cc", "memory"); \
		memcpy(state, (uint64_t[]){ a, b, c, d }, sizeof state); \
	}
GATHER(gather_l2, 15)
GATHER(gather_l3, 19)
GATHER(gather_5m, 20)
GATHER(gather_memory, 24)

/* The array of indices is an eighth of the data or less. */
static void gather_index(const char *name, size_t bytes, size_t count, long n)
{
	static size_t last;
	char *m;
	uint64_t state = 1;
	bool fresh = area(name, bytes + count * sizeof(uint32_t), LARGE, &m);
	uint32_t *index = (uint32_t *)(m + bytes);
	if (fresh) {
		last = 0;
		for (size_t i = 0; i < count; i++)
			index[i] = (uint32_t)draw_below(&state, bytes / 8);
	}
	size_t at = last;
	LOOP(37) {
		__asm__ volatile(REPEAT(16, "mov k * 4(%0), %%eax; add (%1, %%rax, 8), %%rcx")
			: : "r"(index + at), "r"(m) : "rax", "rcx", "cc", "memory");
		at = (at + 16) & (count - 1);
	}
	last = at;
}

void gather_index_l2(long n)
{
	gather_index(__func__, L2, 1 << 13, n);
}

void gather_index_l3(long n)
{
	gather_index(__func__, L3, 1 << 16, n);
}

void gather_index_memory(long n)
{
	gather_index(__func__, MEMORY, 1 << 21, n);
}

/* Half of the slots of a table hold their key, and the place of a value in the same table. */
SCALAR void hash_probe(long n)
{
	enum { SLOTS = L3 / 16 };
	struct { uint64_t key, value; } *m;
	static uint64_t last = 1;
	uint64_t state = 1, x = last, sum = 0;
	if (area(__func__, L3, LARGE, &m))
		for (size_t i = 0; i < SLOTS; i++) {
			uint64_t r = draw(&state);
			m[i].key = r >> 63 ? i : SLOTS;
			m[i].value = draw_below(&state, SLOTS);
		}
	LOOP(14) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		uint64_t slot = (uint64_t)((unsigned __int128)x * SLOTS >> 64);
		if (m[slot].key == slot) {
			sum += m[m[slot].value].value;
			/* The compiler must keep the branch. */
			__asm__ volatile("" : "+r"(sum));
		}
	}
	last = x;
	sink = (double)sum;
}

/* Sorted numbers; each search takes 15 steps. The compiler must keep the branch. */
SCALAR static void search(const char *name, bool branches, long n)
{
	enum { COUNT = L2 / 8 };
	uint64_t *m, x = 1, sum = 0;
	if (area(name, L2, LARGE, &m))
		for (uint64_t i = 0; i < COUNT; i++)
			m[i] = i << 49;
	LOOP(15 * 6 + 6) {
		const uint64_t *at = m;
		x = x * 6364136223846793005u + 1442695040888963407u;
		for (size_t half = COUNT / 2; half > 0; half /= 2)
			if (!branches)
				__asm__("lea (%0, %1, 8), %%rax; cmp (%%rax), %2; cmovae %%rax, %0"
					: "+r"(at) : "r"(half), "r"(x) : "rax", "cc", "memory");
			else if (at[half] <= x) {
				at += half;
				__asm__ volatile("" : "+r"(at));
			}
		sum += *at;
	}
	sink = (double)sum;
}

void binary_search(long n)
{
	search(__func__, true, n);
}

void binary_search_cmov(long n)
{
	search(__func__, false, n);
}

/* Four fused operations for each node, and a sum. */
static void list_work(const char *name, size_t bytes, long n)
{
	static void **at;
	void **m;
	double sum = 0, factor = 0.3;
	if (area(name, bytes, LARGE, &m))
		at = ring(m, bytes, LINE);
	LOOP(58)
		__asm__ volatile(REPEAT(8, "mov (%0), %0; vmovsd 8(%0), %%xmm0; vfmadd213sd %2, %2, %%xmm0; vfmadd213sd %2, %2, %%xmm0;"
			"vfmadd213sd %2, %2, %%xmm0; vfmadd213sd %2, %2, %%xmm0; vaddsd %%xmm0, %1, %1")
			: "+r"(at), "+x"(sum) : "x"(factor) : "xmm0", "memory");
	sink = sum;
}

void list_work_l2(long n)
{
	list_work(__func__, L2, n);
}

void list_work_l3(long n)
{
	list_work(__func__, L3, n);
}

/* A ring with one line in each page. */
#define TLB(name, pages) \
	void name(long n) \
	{ \
		static void **at; \
		void **m; \
		if (area(#name, pages * 4096, SMALL, &m)) \
			at = ring(m, pages * 4096, 4096); \
		LOOP(34) \
			__asm__ volatile(REPEAT(32, "mov (%0), %0") : "+r"(at) : : "memory"); \
	}
TLB(tlb_32, 32)
TLB(tlb_256, 256)
TLB(tlb_1500, 1500)
TLB(tlb_8000, 8000)

SCALAR void tlb_8000_parallel(long n)
{
	char *m;
	uint64_t x = 1, y = 3, sum = 0;
	area(__func__, 8000 * 4096, SMALL, &m);
	LOOP(25) {
		x *= 6364136223846793005u;
		y *= 6364136223846793005u;
		uint64_t i = (x >> 32) * 8000 >> 32, j = (y >> 32) * 8000 >> 32;
		sum += *(volatile uint64_t *)(m + i * 4096 + (i + i / 64) % 64 * LINE);
		sum += *(volatile uint64_t *)(m + j * 4096 + (j + j / 64) % 64 * LINE);
	}
	sink = (double)sum;
}
