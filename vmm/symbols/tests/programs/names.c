/* Inlined functions, calls of other libraries, and functions of each binding. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

volatile double sink;

static inline __attribute__((always_inline)) double inner(double x)
{
	return x * 1.5 + sink; /* inner */
}

static inline __attribute__((always_inline)) double outer(double x)
{
	return inner(x) + 1; /* outer calls inner */
}

__attribute__((noinline)) void work(int n)
{
	for (int i = 0; i < n; i++)
		sink = outer(sink); /* work calls outer */
}

__attribute__((noinline)) static void hidden(int n)
{
	sink += n;
	puts("hidden");
}

int main(int argc, char **argv)
{
	char *text = malloc(argc + 100);
	strcpy(text, argv[0]);
	work(argc);
	hidden(argc);
	printf("%f %s\n", sink, text);
	return 0;
}
