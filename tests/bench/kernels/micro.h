/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Micro-kernels: each has one limit, so that an error of a prediction can be explained. One repeat is about a million instructions.
 * The remarks name the limit. Cores differ in its value.
 */
#ifndef MICRO_H
#define MICRO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

/*
 * Sizes of data. They leave a part of each level of a host's caches to other data. A virtual machine may have a few megabytes of the
 * third level, so these data are hardly larger than a second level.
 */
#define L1 (16L << 10)
#define L2 (256L << 10)
#define L3 (5L << 19)
#define MEMORY (128L << 20)
#define LINE 64

/* A loop of the kernel's `n` repeats, if each pass is this number of instructions. */
#define LOOP(instructions) for (long loop = n * (1000000 / (instructions)); loop > 0; loop--)

/* Text of assembly, several times. In the text, `k` counts the times from 0. */
#define REPEAT(times, text) ".set k, 0\n.rept " #times "\n" text "\n.set k, k + 1\n.endr\n"

enum pages { LARGE, SMALL };

/*
 * Sets `at` to the memory of the kernel with the name `owner`. Returns true if the memory is new; it is then zero, and present. Only
 * the memory of one kernel is kept, so that many kernels fit into a small guest. Large pages cost few translations.
 */
bool area(const char *owner, size_t bytes, enum pages pages, void *at);

/* The next pseudo-random number. */
static inline uint64_t draw(uint64_t *state)
{
	uint64_t x = *state;
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return *state = x;
}

/* A pseudo-random number below `limit`. */
static inline uint64_t draw_below(uint64_t *state, uint64_t limit)
{
	return (uint64_t)(((unsigned __int128)draw(state) * limit) >> 64);
}

/*
 * Links places of `stride` bytes each to a ring in random order. If a place is a page, the pointers are in different lines of the pages, so
 * that all sets of caches have the same number of them. Returns the pointer of the first place.
 */
void **ring(void *memory, size_t bytes, size_t stride);

/* micro-chains.c: each instruction waits for the one before, so that latencies are the limit. */
#define MICRO_CHAINS(ROW) \
	ROW(chain_add)		/* latency of an integer addition */ \
	ROW(chain_adc)		/* latency of an addition with carry, through the flags */ \
	ROW(chain_cmov)		/* latency of a conditional move */ \
	ROW(chain_imul)		/* latency of an integer multiplication */ \
	ROW(chain_div64)	/* latency of a 64-bit division */ \
	ROW(chain_fadd)		/* latency of a floating-point addition */ \
	ROW(chain_fmul)		/* latency of a floating-point multiplication */ \
	ROW(chain_fma)		/* latency of a fused multiplication and addition */ \
	ROW(chain_fdiv)		/* latency of a floating-point division */ \
	ROW(chain_fsqrt)	/* latency of a square root, and of an addition */ \
	ROW(chain_transfer)	/* latency of moves between general and vector registers */ \
	ROW(chain_shuffle)	/* latency of a shuffle across halves of a vector */ \
	ROW(chain_load)		/* latency of a load from the first level, always the same address */ \
	ROW(chain_index)	/* latency of a load from the first level, with an index register */ \
	ROW(chain_fma_load)	/* latency of a fused operation; its load from the first level does not depend on the chain */ \
	ROW(slack_add)		/* a chain of additions leaves time for independent ones, which take ports */ \
	ROW(slack_fmul)		/* a chain of multiplications, with independent integer work in its slack */ \
	ROW(reduce_1)		/* latency of a vector addition: a sum in one accumulator */ \
	ROW(reduce_2)		/* half the latency: two accumulators */ \
	ROW(reduce_4)		/* a quarter of the latency */ \
	ROW(reduce_8)		/* ports of loads or additions: eight accumulators hide the latency */

/* micro-ports.c: independent instructions, so that ports or the width of the front end are the limit. */
#define MICRO_PORTS(ROW) \
	ROW(ports_nop)		/* width of decoding and retirement: no port */ \
	ROW(ports_add)		/* ports of integer arithmetic */ \
	ROW(ports_lea)		/* ports of addresses with three parts */ \
	ROW(ports_imul)		/* port of integer multiplication */ \
	ROW(ports_shift)	/* ports of integer shifts */ \
	ROW(ports_not_taken)	/* ports of branches that are never taken */ \
	ROW(ports_load64)	/* ports of 64-bit loads from the first level */ \
	ROW(ports_load256)	/* ports of 256-bit loads from the first level */ \
	ROW(ports_store64)	/* ports of 64-bit stores to one line */ \
	ROW(ports_store256)	/* ports of 256-bit stores to the first level */ \
	ROW(ports_load_store)	/* a load and a store of 256 bits each, to different lines */ \
	ROW(ports_fadd)		/* ports of 256-bit floating-point addition */ \
	ROW(ports_fmul)		/* ports of 256-bit floating-point multiplication */ \
	ROW(ports_fma)		/* ports of 256-bit fused operations */ \
	ROW(ports_fadd_fmul)	/* ports of additions and multiplications together */ \
	ROW(ports_shuffle)	/* ports of shuffles inside halves of a vector */ \
	ROW(ports_permute)	/* ports of shuffles across halves of a vector */ \
	ROW(ports_vector_add)	/* ports of 256-bit integer addition */ \
	ROW(ports_vector_shift)	/* ports of 256-bit integer shifts */ \
	ROW(ports_vector_imul)	/* ports of 256-bit integer multiplication, two operations each on some cores */ \
	ROW(throughput_div64)	/* the divider, for integers */ \
	ROW(throughput_fdiv)	/* the divider, for one floating-point number */ \
	ROW(throughput_fdiv256)	/* the divider, for vectors of four numbers */ \
	ROW(throughput_fsqrt256) /* the divider, for square roots of vectors */ \
	ROW(mix_alu_load_fp)	/* width: integer, load and floating-point ports are all free */ \
	ROW(mix_load_op)	/* width or load ports: additions with an operand in memory */ \
	ROW(idiom_move)		/* width: register moves are renamed, so that a chain of them takes no time */ \
	ROW(idiom_vector_move)	/* width: vector moves are renamed */ \
	ROW(idiom_zero)		/* width: xor of a register with itself needs no port and waits for nothing */ \
	ROW(idiom_zero_cut)	/* a zero idiom cuts each chain of multiplications; the port is the limit */

/* micro-stores.c: stores that loads wait for, and instructions that wait for stores. */
#define MICRO_STORES(ROW) \
	ROW(forward_same)	/* latency from a store to a load of the same bytes; some cores rename the place */ \
	ROW(forward_other)	/* the same, where the load has its address in another register */ \
	ROW(forward_narrow)	/* latency from a store to a load of a part of its bytes */ \
	ROW(forward_vector)	/* latency from a 256-bit store to its load */ \
	ROW(forward_failed)	/* a load needs bytes of two stores, and waits until both are in the cache */ \
	ROW(counter_memory)	/* latency of a read-modify-write of one counter; some cores rename the place */ \
	ROW(histogram_small)	/* read-modify-writes of 256 counters at random: seldom the same twice */ \
	ROW(histogram_l2)	/* read-modify-writes over 256 KiB at random: misses of the first level */ \
	ROW(alias_4k)		/* loads whose low address bits are those of an earlier store: the loads wait for it in vain */ \
	ROW(split_load_line)	/* loads across two lines take two accesses */ \
	ROW(split_store_line)	/* stores across two lines take two accesses */ \
	ROW(split_load_page)	/* loads across two pages take two translations */ \
	ROW(split_store_page)	/* stores across two pages take two translations */ \
	ROW(memset_256)		/* cost of a call of memset, for 256 bytes */ \
	ROW(memset_4k)		/* stores to the first level, by libc */ \
	ROW(memset_64k)		/* stores to the second level, by libc */ \
	ROW(memset_4m)		/* stores to the third level or to memory, by libc */ \
	ROW(memcpy_256)		/* cost of a call of memcpy, for 256 bytes */ \
	ROW(memcpy_4k)		/* loads and stores in the first level, by libc */ \
	ROW(memcpy_64k)		/* loads and stores in the second level, by libc */ \
	ROW(memcpy_4m)		/* loads and stores in the third level or in memory, by libc */ \
	ROW(rep_stosb_4k)	/* rep stosb of 4 KiB: microcode, stores to the first level */ \
	ROW(rep_movsb_4k)	/* rep movsb of 4 KiB: microcode, loads and stores in the first level */ \
	ROW(atomic_add)		/* latency of a locked addition to a line of this core */ \
	ROW(atomic_add_spread)	/* locked additions to eight lines still go one after the other */ \
	ROW(atomic_swap)	/* latency of xchg with memory, which is locked */ \
	ROW(fence_mfence)	/* a fence between stores waits for them */ \
	ROW(pause_loop)		/* pause, with a chain of 256 additions between two */

/* micro-branches.c: predictions of branches, and the supply of instructions. */
#define MICRO_BRANCHES(ROW) \
	ROW(branch_taken)	/* taken branches: one a cycle or less */ \
	ROW(branch_taken_dense)	/* taken branches a few bytes apart: one place of a predictor holds few branches */ \
	ROW(branch_taken_far)	/* 128 taken branches, each in another line of code */ \
	ROW(branch_alternating)	/* every other time taken: a short history predicts it */ \
	ROW(branch_period_12)	/* a pattern of twelve: history predicts it */ \
	ROW(branch_random)	/* half of the branches are mispredicted */ \
	ROW(branch_random_10)	/* a tenth of the branches are mispredicted */ \
	ROW(branch_random_load)	/* half are mispredicted, and a load from the second level depends on the path */ \
	ROW(branch_random_wait)	/* half are mispredicted, and each branch waits for a chain of loads from the second level */ \
	ROW(nest_5)		/* an inner loop of five passes: predicted by history */ \
	ROW(nest_16)		/* an inner loop of 16 passes */ \
	ROW(nest_40)		/* an inner loop of 40 passes: a long history, or the end is mispredicted */ \
	ROW(switch_random)	/* an indirect jump to eight places at random: mispredicted */ \
	ROW(switch_period_7)	/* an indirect jump with a period of seven: history predicts it */ \
	ROW(call_return)	/* a call and a return of an empty function */ \
	ROW(call_deep_10)	/* ten calls, then ten returns: the stack of return addresses */ \
	ROW(call_deep_100)	/* a hundred calls from two places: more than the stack of return addresses holds */ \
	ROW(call_fib)		/* recursion as in Fibonacci numbers */ \
	ROW(pointer_same)	/* a call through a pointer that never changes */ \
	ROW(pointer_random)	/* calls through pointers to four functions at random: mispredicted */ \
	ROW(code_decode)	/* decoding: 15,000 short instructions, more than a cache of micro-operations holds */ \
	ROW(code_l2)		/* fetches from the second level: 64 KiB of long additions */ \
	ROW(code_l2_nop)	/* fetches from the second level: 64 KiB of long nops */ \
	ROW(code_l2_jump)	/* fetches from the second level: a jump to another line of 128 KiB every two instructions */

/* micro-caches.c: latencies and parallel misses of each level, and of translations. */
#define MICRO_CACHES(ROW) \
	ROW(chase_l1)		/* latency of the first level, over 16 KiB */ \
	ROW(chase_l2)		/* latency of the second level, over 256 KiB */ \
	ROW(chase_l3_small)	/* latency of the third level, over 2.5 MiB */ \
	ROW(chase_8m)		/* latency of the third level, or of memory where the host leaves less than 8 MiB of the level */ \
	ROW(chase_memory)	/* latency of memory, over 128 MiB */ \
	ROW(chase_memory_2)	/* half the latency of memory: two chains */ \
	ROW(chase_memory_4)	/* a quarter of the latency of memory: four chains */ \
	ROW(chase_memory_8)	/* an eighth of the latency of memory: eight chains */ \
	ROW(chase_l3_small_4)	/* a quarter of the latency of the third level: four chains */ \
	ROW(gather_l2)		/* independent loads at random: parallel misses of the first level */ \
	ROW(gather_l3)		/* independent loads at random: parallel misses of the second level */ \
	ROW(gather_5m)		/* the same over 5 MiB, which may be more than the host leaves of the third level */ \
	ROW(gather_memory)	/* independent loads at random: parallel misses of all levels */ \
	ROW(gather_index_l2)	/* the same by an array of indices, a[index[i]] */ \
	ROW(gather_index_l3)	/* the same, in the third level */ \
	ROW(gather_index_memory) /* the same, in memory */ \
	ROW(hash_probe)		/* a random branch that waits for a load from the third level, and a second load in half of the cases */ \
	ROW(binary_search)	/* random branches; each waits for a load */ \
	ROW(binary_search_cmov)	/* dependent loads without branches */ \
	ROW(list_work_l2)	/* latency of the second level, with arithmetic for each node in its shadow */ \
	ROW(list_work_l3)	/* latency of the third level, with arithmetic for each node in its shadow */ \
	ROW(tlb_32)		/* dependent loads, each in another page of 4 KiB: 32 pages, in the first level of translations */ \
	ROW(tlb_256)		/* 256 pages: the second level of translations */ \
	ROW(tlb_1500)		/* 1,500 pages: the second level of translations, its largest part */ \
	ROW(tlb_8000)		/* 8,000 pages: page walks */ \
	ROW(tlb_8000_parallel)	/* 8,000 pages, independent loads: parallel page walks */

/* micro-streams.c: bandwidth of each level, and prefetchers. */
#define MICRO_STREAMS(ROW) \
	ROW(stream_read_l1)	/* 256-bit loads from the first level */ \
	ROW(stream_read_l2)	/* bandwidth from the second level */ \
	ROW(stream_read_l3)	/* bandwidth from the third level */ \
	ROW(stream_read_8m)	/* bandwidth from the third level, where the host leaves 8 MiB of it */ \
	ROW(stream_read_memory)	/* bandwidth from memory */ \
	ROW(stream_write_l1)	/* 256-bit stores to the first level */ \
	ROW(stream_write_l2)	/* bandwidth of lines from and to the second level */ \
	ROW(stream_write_l3)	/* bandwidth of lines from and to the third level */ \
	ROW(stream_write_memory) /* bandwidth of lines from and to memory */ \
	ROW(stream_copy_l1)	/* a load and a store */ \
	ROW(stream_copy_l2)	/* the same, second level */ \
	ROW(stream_copy_l3)	/* the same, third level */ \
	ROW(stream_copy_memory)	/* the same, memory */ \
	ROW(stream_triad_l2)	/* two loads, a fused operation and a store */ \
	ROW(stream_triad_l3)	/* the same, third level */ \
	ROW(stream_triad_memory) /* the same, memory */ \
	ROW(stream_daxpy_l2)	/* two loads, a fused operation and a store to a loaded line */ \
	ROW(stream_daxpy_l3)	/* the same, third level */ \
	ROW(stream_daxpy_memory) /* the same, memory */ \
	ROW(stream_nt_memory)	/* non-temporal stores: bandwidth to memory, without reading lines */ \
	ROW(stride_64_l2)	/* one load of each line, in order: prefetched */ \
	ROW(stride_128_l2)	/* every second line */ \
	ROW(stride_256_l2)	/* every fourth line */ \
	ROW(stride_4096_l2)	/* a line of each page; all have the same set of the first level */ \
	ROW(stride_8192_l2)	/* a line of every second page */ \
	ROW(stride_64_l3)	/* the same in the third level */ \
	ROW(stride_128_l3)	/* every second line */ \
	ROW(stride_256_l3)	/* every fourth line */ \
	ROW(stride_4096_l3)	/* a line of each page */ \
	ROW(stride_8192_l3)	/* a line of every second page */

#define MICRO(ROW) \
	MICRO_CHAINS(ROW) MICRO_PORTS(ROW) MICRO_STORES(ROW) MICRO_BRANCHES(ROW) MICRO_CACHES(ROW) MICRO_STREAMS(ROW)

#define DECLARE(name) void name(long n);
MICRO(DECLARE)
#undef DECLARE

#endif
