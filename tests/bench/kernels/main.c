/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Small programs of seven shapes, for measuring how fast an engine executes them: kernels LABEL:NAME:REPEATS... Compiled again with
 * SET_MICRO, it is the program of the micro-kernels.
 *
 * For each argument the program announces the start and the end of the kernel by a hypercall, and by a line on standard output.
 * Real hardware ignores the hypercall. The line reaches a host without hypercalls by the guest's console. Then the program prints
 * the processor time by the guest's clock. One repeat is some million instructions.
 *
 * The argument "together" waits for the next whole half second since the machine was started: programs on machines that were
 * started at the same time go on at the same time.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "kernels.h"
#include "mark.h"
#ifdef SET_MICRO
#include "micro.h"
#endif

volatile double sink;

#define ROW(name) { #name, name },
static const struct { const char *name; void (*run)(long); } kernels[] = {
#ifdef SET_MICRO
	MICRO(ROW)
#else
	ROW(integer) ROW(chase) ROW(chase_l3) ROW(quicksort) ROW(traced)
	ROW(daxpy_memory_sse2) ROW(daxpy_l1_sse2) ROW(dgemm_scalar_sse2) ROW(dgemm_vector_sse2)
	ROW(daxpy_memory_avx2) ROW(daxpy_l1_avx2) ROW(dgemm_scalar_avx2) ROW(dgemm_vector_avx2)
	ROW(daxpy_memory_misaligned_avx2) ROW(daxpy_l1_misaligned_avx2) ROW(dgemm_vector_misaligned_avx2)
#endif
};

static void together(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	int first_half = now.tv_nsec < 500000000;
	struct timespec then = { now.tv_sec + !first_half, first_half ? 500000000 : 0 };
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &then, NULL))
		;
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "together")) {
			together();
			continue;
		}
		char label[32], name[32];
		long repeats;
		if (sscanf(argv[i], "%31[^:]:%31[^:]:%ld", label, name, &repeats) != 3)
			return fprintf(stderr, "kernels: %s is not LABEL:NAME:REPEATS\n", argv[i]), 2;
		size_t k = 0;
		while (k < sizeof kernels / sizeof *kernels && strcmp(kernels[k].name, name))
			k++;
		if (k == sizeof kernels / sizeof *kernels)
			return fprintf(stderr, "kernels: no kernel %s\n", name), 2;
		/* Memory is touched and set up before the clock starts. */
		kernels[k].run(1);
		announce("begin", label, name);
		double start = processor_time();
		kernels[k].run(repeats);
		double seconds = processor_time() - start;
		announce("end", label, name);
		say_time(label, name, seconds);
	}
	return 0;
}
