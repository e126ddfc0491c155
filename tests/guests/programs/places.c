/* Runs code of every kind for some time each: its own, inlined, the C library's, the kernel's, of the vDSO, and code that it makes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static volatile double sink;

static inline __attribute__((always_inline)) double mix(double x)
{
	return x * 1.000001 + 0.5; /* mix */
}

__attribute__((noinline)) static void work(long n)
{
	double x = sink;
	for (long i = 0; i < n; i++)
		x = mix(x);
	sink = x;
}

__attribute__((noinline)) static void library(long n)
{
	char *text = malloc(1 << 16);
	for (long i = 0; i < n; i++) {
		memset(text, 'a', 1 << 16);
		sink = sink + strlen(text);
	}
	free(text);
}

__attribute__((noinline)) static void calls(long n)
{
	struct stat about;
	for (long i = 0; i < n; i++)
		sink = sink + stat("/usr/bin/env", &about);
}

__attribute__((noinline)) static void clocks(long n)
{
	struct timespec now;
	for (long i = 0; i < n; i++) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		sink = sink + now.tv_nsec;
	}
}

__attribute__((noinline)) static void made(long n)
{
	/* push %rbp; mov %rsp,%rbp; 1: dec %rdi; jnz 1b; pop %rbp; ret */
	static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xff, 0xcf, 0x75, 0xfb, 0x5d, 0xc3};
	void *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memcpy(page, code, sizeof code);
	((void (*)(long))page)(n);
	sink = sink + 1;
}

int main(int argc, char **argv)
{
	long n = atol(argv[1]);
	work(n * 1000);
	library(n);
	calls(n);
	clocks(n * 200);
	made(n * 1000);
	printf("%d %f\n", argc, sink);
	return 0;
}
