/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Inner loops of HPC programs on data that the first level holds, for comparing modelled cycles of a core with measured ones. Compiled for
 * SSE2 and again for AVX2 and FMA.
 */
#include <math.h>

#include "kernels.h"

#ifdef __AVX2__
#define BUILD(name) name##_avx2
#else
#define BUILD(name) name##_sse2
#endif

/* The loops of the reference BLAS's dgemm, which HPL spends its time in where Debian's hpcc runs without another BLAS. */
#define M 48
#define N 8
#define K 32
__attribute__((noinline)) static void dgemm(const double *restrict a, const double *restrict b, double *restrict c)
{
	for (int j = 0; j < N; j++)
		for (int l = 0; l < K; l++) {
			double t = b[l + j * K];
			for (int i = 0; i < M; i++)
				c[i + j * M] += t * a[i + l * M];
		}
}

void BUILD(hpl)(long n)
{
	static double a[M * K], b[K * N], c[M * N];
	for (int i = 0; i < M * K; i++)
		a[i] = 1.0 + i % 5;
	for (int i = 0; i < K * N; i++)
		b[i] = 1e-3 * (i % 3);
	for (long r = 0; r < n * 8; r++)
		dgemm(a, b, c);
	sink = c[1];
}

/* A complex transform of radix 4 (Stockham's order), real and imaginary parts apart. */
#define POINTS 256
static double wr[POINTS], wi[POINTS];

__attribute__((noinline)) static void stage(int m, int s, const double *restrict xr, const double *restrict xi,
	double *restrict yr, double *restrict yi)
{
	for (int p = 0; p < m; p++) {
		double r1 = wr[p * s], i1 = wi[p * s], r2 = wr[2 * p * s], i2 = wi[2 * p * s], r3 = wr[3 * p * s], i3 = wi[3 * p * s];
		for (int q = 0; q < s; q++) {
			int a = q + s * p, b = a + s * m, c = b + s * m, d = c + s * m, o = q + s * 4 * p;
			double sr = xr[a] + xr[c], si = xi[a] + xi[c], tr = xr[a] - xr[c], ti = xi[a] - xi[c];
			double ur = xr[b] + xr[d], ui = xi[b] + xi[d], vr = xi[b] - xi[d], vi = xr[d] - xr[b];
			yr[o] = sr + ur;
			yi[o] = si + ui;
			double er = tr + vr, ei = ti + vi;
			yr[o + s] = er * r1 - ei * i1;
			yi[o + s] = er * i1 + ei * r1;
			double fr = sr - ur, fi = si - ui;
			yr[o + 2 * s] = fr * r2 - fi * i2;
			yi[o + 2 * s] = fr * i2 + fi * r2;
			double gr = tr - vr, gi = ti - vi;
			yr[o + 3 * s] = gr * r3 - gi * i3;
			yi[o + 3 * s] = gr * i3 + gi * r3;
		}
	}
}

void BUILD(fft)(long n)
{
	static double xr[POINTS], xi[POINTS], yr[POINTS], yi[POINTS];
	if (wr[0] == 0)
		for (int k = 0; k < POINTS; k++) {
			wr[k] = cos(2 * M_PI * k / POINTS);
			wi[k] = -sin(2 * M_PI * k / POINTS);
		}
	for (long r = 0; r < n * 4; r++) {
		for (int k = 0; k < POINTS; k++) {
			xr[k] = k % 7;
			xi[k] = 0;
		}
		stage(64, 1, xr, xi, yr, yi);
		stage(16, 4, yr, yi, xr, xi);
		stage(4, 16, xr, xi, yr, yi);
		stage(1, 64, yr, yi, xr, xi);
	}
	sink = xr[1];
}

/* A stencil of five points. */
#define SIDE 34
__attribute__((noinline)) static void relax(const double (*restrict x)[SIDE], double (*restrict y)[SIDE])
{
	for (int i = 1; i < SIDE - 1; i++)
		for (int j = 1; j < SIDE - 1; j++)
			y[i][j] = 0.5 * x[i][j] + 0.125 * (x[i - 1][j] + x[i + 1][j] + x[i][j - 1] + x[i][j + 1]);
}

void BUILD(stencil)(long n)
{
	static double x[SIDE][SIDE], y[SIDE][SIDE];
	x[5][7] = 1;
	for (long r = 0; r < n * 8; r++) {
		relax(x, y);
		relax(y, x);
	}
	sink = x[6][6];
}

/* A sum in the order of the source: each addition waits for the one before. */
__attribute__((noinline)) static double product(const double *x, const double *y)
{
	double s = 0;
	for (int i = 0; i < 512; i++)
		s += x[i] * y[i];
	return s;
}

void BUILD(dot)(long n)
{
	static double x[512], y[512];
	x[1] = y[1] = 1;
	double s = 0;
	for (long r = 0; r < n * 40; r++) {
		/* A compiler that knows the arrays takes the sum once. */
		__asm__ volatile("" : : : "memory");
		s += product(x, y);
	}
	sink = s;
}

/* A polynomial at many places, as in elementary functions. */
__attribute__((noinline)) static void horner(const double *restrict x, double *restrict y)
{
	for (int i = 0; i < 512; i++) {
		double s = 1.0 / 5040;
		s = s * x[i] + 1.0 / 720;
		s = s * x[i] + 1.0 / 120;
		s = s * x[i] + 1.0 / 24;
		s = s * x[i] + 1.0 / 6;
		s = s * x[i] + 0.5;
		s = s * x[i] + 1.0;
		y[i] = s * x[i] + 1.0;
	}
}

void BUILD(polynomial)(long n)
{
	static double x[512], y[512];
	for (int i = 0; i < 512; i++)
		x[i] = 1e-3 * i;
	for (long r = 0; r < n * 20; r++)
		horner(x, y);
	sink = y[1];
}
