/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Micro-kernels of independent instructions: ports, dividers, and the width of the core. */
#include "micro.h"

#define GENERAL "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "cc"
#define VECTORS "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", \
	"ymm8", "ymm9", "ymm10", "ymm11", "ymm12", "ymm13", "ymm14", "ymm15"

/* Eight instructions in eight registers each, eight times. */
#define EIGHT(f) f(rax) f(rcx) f(rdx) f(rsi) f(rdi) f(r8) f(r9) f(r10)
#define INTEGER(name, f) \
	void name(long n) \
	{ \
		LOOP(66) \
			__asm__ volatile(REPEAT(8, EIGHT(f)) : : : GENERAL); \
	}
#define NOP(r) "nop;"
#define ADD(r) "add $1, %%" #r ";"
#define LEA(r) "lea 1(%%" #r ", %%" #r ", 2), %%" #r ";"
#define IMUL(r) "imul %%" #r ", %%" #r ";"
#define SHIFT(r) "shl $1, %%" #r ";"
#define ZERO(r) "xor %%" #r ", %%" #r ";"
INTEGER(ports_nop, NOP)
INTEGER(ports_add, ADD)
INTEGER(ports_lea, LEA)
INTEGER(ports_imul, IMUL)
INTEGER(ports_shift, SHIFT)
INTEGER(idiom_zero, ZERO)

/* Twelve vector registers hide latencies up to 6 cycles of two ports. They hold 1 first. */
#define TWELVE(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)
#define FILL(r) "vbroadcastsd %0, %%ymm" #r ";"
#define VECTOR(name, times, f) \
	void name(long n) \
	{ \
		static const double one = 1.0; \
		__asm__ volatile(TWELVE(FILL) "vbroadcastsd %0, %%ymm15" : : "m"(one) : VECTORS); \
		LOOP(12 * times) \
			__asm__ volatile(REPEAT(times, TWELVE(f)) : : : VECTORS); \
	}
#define SELF(operation, r) operation " %%ymm15, %%ymm" #r ", %%ymm" #r ";"
#define FADD(r) SELF("vaddpd", r)
#define FMUL(r) SELF("vmulpd", r)
#define FMA(r) "vfmadd213pd %%ymm15, %%ymm15, %%ymm" #r ";"
#define SHUFFLE(r) "vpermilpd $5, %%ymm" #r ", %%ymm" #r ";"
#define PERMUTE(r) "vpermpd $0x1b, %%ymm" #r ", %%ymm" #r ";"
#define VECTOR_ADD(r) SELF("vpaddd", r)
#define VECTOR_SHIFT(r) "vpsllq $1, %%ymm" #r ", %%ymm" #r ";"
#define VECTOR_IMUL(r) SELF("vpmulld", r)
#define FDIV(r) "vdivsd %%xmm" #r ", %%xmm15, %%xmm" #r ";"
#define FDIV256(r) "vdivpd %%ymm" #r ", %%ymm15, %%ymm" #r ";"
#define FSQRT256(r) "vsqrtpd %%ymm15, %%ymm" #r ";"
VECTOR(ports_fadd, 6, FADD)
VECTOR(ports_fmul, 6, FMUL)
VECTOR(ports_fma, 6, FMA)
VECTOR(ports_shuffle, 6, SHUFFLE)
VECTOR(ports_permute, 6, PERMUTE)
VECTOR(ports_vector_add, 6, VECTOR_ADD)
VECTOR(ports_vector_shift, 6, VECTOR_SHIFT)
VECTOR(ports_vector_imul, 6, VECTOR_IMUL)

/* Operands of dividers have all bits. */
#define DIVIDER(name, f) \
	void name(long n) \
	{ \
		static const double dividend = 1.7320508075688772, divisor = 1.4142135623730951; \
		__asm__ volatile(TWELVE(FILL) "vbroadcastsd %1, %%ymm15" : : "m"(divisor), "m"(dividend) : VECTORS); \
		LOOP(48) \
			__asm__ volatile(REPEAT(4, TWELVE(f)) : : : VECTORS); \
	}
DIVIDER(throughput_fdiv, FDIV)
DIVIDER(throughput_fdiv256, FDIV256)
DIVIDER(throughput_fsqrt256, FSQRT256)

/* The moves of the dividend cut the chains. */
void throughput_div64(long n)
{
	LOOP(66)
		__asm__ volatile(REPEAT(16, "mov %0, %%rax; xor %%edx, %%edx; div %1; nop")
			: : "r"(0xfedcba9876543210u), "r"(0x123456789u) : "rax", "rdx", "cc");
}

/* Additions in six registers, multiplications in the other six. */
#define FADD_FMUL(a, b) FADD(a) FMUL(b)
void ports_fadd_fmul(long n)
{
	static const double one = 1.0;
	__asm__ volatile(TWELVE(FILL) "vbroadcastsd %0, %%ymm15" : : "m"(one) : VECTORS);
	LOOP(74)
		__asm__ volatile(REPEAT(6, FADD_FMUL(0, 6) FADD_FMUL(1, 7) FADD_FMUL(2, 8) FADD_FMUL(3, 9) FADD_FMUL(4, 10)
			FADD_FMUL(5, 11)) : : : VECTORS);
}

/* The flags say that no branch is taken; nothing changes them. */
void ports_not_taken(long n)
{
	LOOP(67)
		__asm__ volatile("test %%esp, %%esp;" REPEAT(64, "jz 1f") "1:" : : : "cc");
}

/* One instruction 64 times, on 16 vectors of an aligned array. */
#define MEMORY_64(name, text) \
	void name(long n) \
	{ \
		char *m; \
		area(#name, L1, LARGE, &m); \
		LOOP(66) \
			__asm__ volatile(REPEAT(64, text) : : "r"(m) : "rax", "ymm0", "memory"); \
	}
MEMORY_64(ports_load64, "mov k * 8(%0), %%rax")
MEMORY_64(ports_load256, ".set j, (k & 15) * 32; vmovaps j(%0), %%ymm0")
MEMORY_64(ports_store64, ".set j, (k & 7) * 8; mov %%rax, j(%0)")
MEMORY_64(ports_store256, ".set j, (k & 15) * 32; vmovaps %%ymm0, j(%0)")

/* The stores are 2 KiB and some lines behind the loads, so that no address bits agree. */
void ports_load_store(long n)
{
	char *m;
	area(__func__, L1, LARGE, &m);
	LOOP(66)
		__asm__ volatile(REPEAT(32, ".set j, (k & 15) * 32; vmovaps j(%0), %%ymm0; vmovaps %%ymm1, j + 2560(%0)")
			: : "r"(m) : "ymm0", "ymm1", "memory");
}

/* Two integer additions, a load and two vector additions, all independent. */
void mix_alu_load_fp(long n)
{
	char *m;
	area(__func__, L1, LARGE, &m);
	LOOP(62)
		__asm__ volatile(REPEAT(12, "add $1, %%rax; add $1, %%rcx; mov k * 8(%0), %%rdx;"
			"vaddpd %%ymm15, %%ymm15, %%ymm0; vmulpd %%ymm15, %%ymm15, %%ymm1")
			: : "r"(m) : GENERAL, VECTORS);
}

void mix_load_op(long n)
{
	char *m;
	area(__func__, L1, LARGE, &m);
	LOOP(66)
		__asm__ volatile(REPEAT(8, "add k * 64(%0), %%rax; add k * 64 + 8(%0), %%rcx; add k * 64 + 16(%0), %%rdx;"
			"add k * 64 + 24(%0), %%rsi; add k * 64 + 32(%0), %%r8; add k * 64 + 40(%0), %%r9;"
			"add k * 64 + 48(%0), %%r10; add k * 64 + 56(%0), %%r11")
			: : "r"(m) : "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "cc");
}

void idiom_move(long n)
{
	LOOP(66)
		__asm__ volatile(REPEAT(16, "mov %%rax, %%rcx; mov %%rcx, %%rdx; mov %%rdx, %%rsi; mov %%rsi, %%rax")
			: : : "rax", "rcx", "rdx", "rsi");
}

void idiom_vector_move(long n)
{
	LOOP(66)
		__asm__ volatile(REPEAT(16, "vmovaps %%ymm0, %%ymm1; vmovaps %%ymm1, %%ymm2; vmovaps %%ymm2, %%ymm3; vmovaps %%ymm3, %%ymm0")
			: : : VECTORS);
}

/* Without the cut the multiplications would be one chain. */
void idiom_zero_cut(long n)
{
	LOOP(66)
		__asm__ volatile(REPEAT(16, "xor %%eax, %%eax; imul %%rax, %%rax; imul %%rax, %%rax; nop") : : : "rax", "cc");
}
