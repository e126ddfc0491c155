/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Micro-kernels of stores: forwarding, read-modify-writes, splits, libc's copies, locked instructions. */
#include <string.h>

#include "micro.h"

/* A value that goes to memory at %1 and back, in turn. */
#define FORWARD(name, count, times, text) \
	void name(long n) \
	{ \
		static uint64_t place[8] __attribute__((aligned(64))); \
		uint64_t x = 3; \
		LOOP(count * times + 2) \
			__asm__ volatile(REPEAT(times, text) : "+r"(x) : "r"(place), "r"(place) : "ymm0", "memory"); \
		sink = (double)x; \
	}
FORWARD(forward_same, 2, 32, "mov %0, (%1); mov (%1), %0")
FORWARD(forward_other, 2, 32, "mov %0, (%1); mov (%2), %0")
FORWARD(forward_narrow, 2, 32, "mov %0, (%1); mov 4(%2), %k0")
FORWARD(forward_vector, 2, 32, "vmovaps %%ymm0, (%1); vmovaps (%2), %%ymm0")
FORWARD(forward_failed, 3, 20, "mov %k0, (%1); mov %k0, 4(%1); mov (%2), %0")
FORWARD(counter_memory, 1, 64, "addq $1, (%1)")

/* The indices come from the first level. */
void histogram_small(long n)
{
	struct { uint64_t counters[256]; uint8_t values[8192]; } *m;
	uint64_t state = 1;
	size_t at = 0;
	if (area(__func__, sizeof *m, LARGE, &m))
		for (size_t i = 0; i < sizeof m->values; i++)
			m->values[i] = (uint8_t)draw(&state);
	LOOP(19) {
		__asm__ volatile(REPEAT(8, "movzbl k(%0), %%eax; addq $1, (%1, %%rax, 8)")
			: : "r"(m->values + at), "r"(m->counters) : "rax", "cc", "memory");
		at = (at + 8) & (sizeof m->values - 1);
	}
}

void histogram_l2(long n)
{
	struct { uint32_t counters[1 << 16]; uint16_t values[1 << 15]; } *m;
	uint64_t state = 1;
	size_t at = 0;
	if (area(__func__, sizeof *m, LARGE, &m))
		for (size_t i = 0; i < 1 << 15; i++)
			m->values[i] = (uint16_t)draw(&state);
	LOOP(19) {
		__asm__ volatile(REPEAT(8, "movzwl k * 2(%0), %%eax; addl $1, (%1, %%rax, 4)")
			: : "r"(m->values + at), "r"(m->counters) : "rax", "cc", "memory");
		at = (at + 8) & ((1 << 15) - 1);
	}
}

/* One instruction many times, at an address that `.set j` gives, from the begin of an array of several pages. */
#define PLACES(name, count, times, text) \
	void name(long n) \
	{ \
		char *m; \
		area(#name, 16 << 12, LARGE, &m); \
		LOOP(count * times + 2) \
			__asm__ volatile(REPEAT(times, text) : : "r"(m) : "rax", "rcx", "ymm0", "memory"); \
	}
PLACES(alias_4k, 2, 32, ".set j, (k & 31) * 64; mov %%rax, j(%0); mov j + 4096(%0), %%rcx")
PLACES(split_load_line, 1, 64, ".set j, (k & 31) * 64 + 48; vmovups j(%0), %%ymm0")
PLACES(split_store_line, 1, 64, ".set j, (k & 31) * 64 + 48; vmovups %%ymm0, j(%0)")
PLACES(split_load_page, 1, 64, ".set j, (k & 7) * 4096 + 4080; vmovups j(%0), %%ymm0")
PLACES(split_store_page, 1, 64, ".set j, (k & 7) * 4096 + 4080; vmovups %%ymm0, j(%0)")

/*
 * Calls of libc. A call is about `count` instructions. The compiler does not see the size, so that it makes no loop or REP of its own. The
 * low bits of the addresses of a copy differ.
 */
#define SET(name, bytes, count) \
	void name(long n) \
	{ \
		char *m; \
		area(#name, bytes, LARGE, &m); \
		LOOP(count) { \
			size_t size = bytes; \
			__asm__ volatile("" : "+r"(size) : "r"(m) : "memory"); \
			memset(m, (int)loop, size); \
		} \
	}
#define COPY(name, bytes, count) \
	void name(long n) \
	{ \
		char *m; \
		area(#name, 2 * (bytes) + 1088, LARGE, &m); \
		LOOP(count) { \
			size_t size = bytes; \
			__asm__ volatile("" : "+r"(size) : "r"(m) : "memory"); \
			memcpy(m, m + (bytes) + 1088, size); \
		} \
	}
SET(memset_256, 256, 30)
SET(memset_4k, 4096, 200)
SET(memset_64k, 64L << 10, 2600)
SET(memset_4m, 4L << 20, 166000)
COPY(memcpy_256, 256, 35)
COPY(memcpy_4k, 4096, 360)
COPY(memcpy_64k, 64L << 10, 5200)
COPY(memcpy_4m, 4L << 20, 330000)

void rep_stosb_4k(long n)
{
	char *m;
	area(__func__, 4096, LARGE, &m);
	LOOP(16) {
		char *to = m;
		size_t bytes = 4096;
		__asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(0) : "memory");
	}
}

void rep_movsb_4k(long n)
{
	char *m;
	area(__func__, 3 * 4096, LARGE, &m);
	LOOP(16) {
		char *to = m, *from = m + 4096 + 1088;
		size_t bytes = 4096;
		__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
	}
}

PLACES(atomic_add, 1, 64, "lock addq $1, (%0)")
PLACES(atomic_add_spread, 1, 64, ".set j, (k & 7) * 64; lock addq $1, j(%0)")
PLACES(atomic_swap, 1, 64, "xchg %%rax, (%0)")
PLACES(fence_mfence, 2, 32, "mov %%rax, (%0); mfence")

/* The additions keep the pauses apart: a hypervisor may take the processor from a program that pauses all the time. */
void pause_loop(long n)
{
	uint64_t x = 1;
	LOOP(259)
		__asm__ volatile("pause;" REPEAT(256, "add %0, %0") : "+r"(x));
	sink = (double)x;
}
