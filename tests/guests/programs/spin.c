#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile double sink;

static inline double mix(double x)
{
	return x * 1.000001 + 0.5;
}

__attribute__((noinline)) void work(long n)
{
	double x = 0;
	for (long i = 0; i < n; i++)
		x = mix(x);
	sink = x;
}

int main(int argc, char **argv)
{
	long n = argc > 1 ? atol(argv[1]) : 1000;
	char *text = malloc(1 << 16);
	for (int i = 0; i < 20; i++) {
		work(n);
		for (int k = 0; k < 200; k++) {
			memset(text, 'a' + i, 1 << 16);
			sink = sink + strlen(text);
		}
	}
	printf("%f\n", sink);
	return 0;
}
