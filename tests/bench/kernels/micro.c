/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Memory of the micro-kernels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "micro.h"

#define LARGE_PAGE (2UL << 20)

bool area(const char *owner, size_t bytes, enum pages pages, void *at)
{
	static const char *last = "";
	static char *mapped, *begin;
	static size_t length;
	bool fresh = strcmp(owner, last) != 0;
	if (fresh) {
		if (mapped)
			munmap(mapped, length);
		length = ((bytes + LARGE_PAGE - 1) & ~(LARGE_PAGE - 1)) + LARGE_PAGE;
		mapped = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (mapped == MAP_FAILED) {
			perror("kernels: mmap");
			exit(1);
		}
		begin = (char *)(((uintptr_t)mapped + LARGE_PAGE - 1) & ~(LARGE_PAGE - 1));
		/* A kernel without large pages refuses the advice. The data are then in small pages. */
		madvise(mapped, length, pages == LARGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
		/* A page that is only read stays the one page of zeros. */
		for (size_t i = 0; i < bytes; i += 4096)
			*(volatile char *)(begin + i) = 0;
		last = owner;
	}
	*(void **)at = begin;
	return fresh;
}

void **ring(void *memory, size_t bytes, size_t stride)
{
	size_t count = bytes / stride;
	uint64_t state = 88172645463325252u;
#define PLACE(i) ((void **)((char *)memory + (i) * stride + ((i) + (i) / 64) * LINE % stride))
	for (size_t i = 0; i < count; i++)
		*PLACE(i) = PLACE(i);
	/* Sattolo's shuffle: one ring through all places. */
	for (size_t i = count - 1; i > 0; i--) {
		size_t j = draw_below(&state, i);
		void *t = *PLACE(i);
		*PLACE(i) = *PLACE(j);
		*PLACE(j) = t;
	}
	return PLACE(0);
}
