// Pairs of ways to compute the same, which a designer chooses between. Each prints the processor time of a piece of its work, in
// nanoseconds. The program runs in a guest and on the host (`scripts/bench ratios`).
//
// ratios [ROUNDS [SHARE [NAME]]]: repeats all ways in ROUNDS rounds, each with one part of SHARE of the work; NAME selects by its beginning.
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PLAIN __attribute__((noinline, optimize("O2", "no-tree-vectorize")))
#define VECTOR __attribute__((noinline, optimize("O3")))
#define AVX __attribute__((noinline, optimize("O3"), target("avx2,fma")))

static uint64_t seed = 1;
static uint32_t draw(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 33;
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
static volatile double sink;

// The large arrays have 128 MB, so that no last cache keeps them.
enum { BIG = 1 << 24, MID = 1 << 14, SIZE = 384, SQUARE = 1536 };
static double *a, *b, *c, m[3][SIZE][SIZE];
static float *f, *g;
static uint32_t *order, *sorted, *unsorted, *same;
static struct node { struct node *next; double value; } *nodes, *first;
static struct wide { double of[8]; } *wide;
static uint64_t *table;

PLAIN double in_order(int n, const uint32_t *at) { double s = 0; (void)at; for (int i = 0; i < n; i++) s += a[i]; return s; }
PLAIN double by_index(int n, const uint32_t *at) { double s = 0; for (int i = 0; i < n; i++) s += a[at[i]]; return s; }
PLAIN double along_list(void) { double s = 0; for (struct node *p = first; p; p = p->next) s += p->value; return s; }
PLAIN void product(int order_of_loops) {
    memset(m[2], 0, sizeof m[2]);
    if (order_of_loops == 0) {
        for (int i = 0; i < SIZE; i++) for (int j = 0; j < SIZE; j++) { double s = 0; for (int k = 0; k < SIZE; k++) s += m[0][i][k] * m[1][k][j]; m[2][i][j] = s; }
    } else {
        for (int i = 0; i < SIZE; i++) for (int k = 0; k < SIZE; k++) for (int j = 0; j < SIZE; j++) m[2][i][j] += m[0][i][k] * m[1][k][j];
    }
}
VECTOR void product_vector(void) {
    memset(m[2], 0, sizeof m[2]);
    for (int i = 0; i < SIZE; i++) for (int k = 0; k < SIZE; k++) for (int j = 0; j < SIZE; j++) m[2][i][j] += m[0][i][k] * m[1][k][j];
}
PLAIN void transpose(int block) {
    for (int bi = 0; bi < SQUARE; bi += block) for (int bj = 0; bj < SQUARE; bj += block)
        for (int i = bi; i < bi + block; i++) for (int j = bj; j < bj + block; j++) b[(size_t)j * SQUARE + i] = a[(size_t)i * SQUARE + j];
}
PLAIN long above(const uint32_t *v, int n) { long s = 0; for (int i = 0; i < n; i++) if (v[i] >= 1u << 30) { s += v[i]; __asm__ volatile("" : "+r"(s)); } return s; }
PLAIN long above_without_branch(const uint32_t *v, int n) { long s = 0; for (int i = 0; i < n; i++) s += v[i] & -(long)(v[i] >= 1u << 30); return s; }
PLAIN double one_field(void) { double s = 0; for (int i = 0; i < BIG / 8; i++) s += wide[i].of[0]; return s; }
PLAIN double one_array(void) { double s = 0; for (int i = 0; i < BIG / 8; i++) s += a[i]; return s; }
PLAIN void scale_plain(int n) { for (int i = 0; i < n; i++) c[i] = a[i] + 3.0 * b[i]; }
VECTOR void scale_vector(int n) { for (int i = 0; i < n; i++) c[i] = a[i] + 3.0 * b[i]; }
AVX void scale_avx(int n) { for (int i = 0; i < n; i++) c[i] = a[i] + 3.0 * b[i]; }
VECTOR void scale_float(int n) { for (int i = 0; i < n; i++) g[i] = f[i] * 3.0f + 1.0f; }
VECTOR void scale_double(int n) { for (int i = 0; i < n; i++) c[i] = a[i] * 3.0 + 1.0; }
PLAIN double divide(int n) { double s = 0; for (int i = 0; i < n; i++) s += a[i] / (b[i] + 1.5); return s; }
PLAIN double multiply(int n) { double s = 0; for (int i = 0; i < n; i++) s += a[i] * (b[i] + 1.5); return s; }
PLAIN double one_sum(int n) { double s = 0; for (int i = 0; i < n; i++) s += a[i] * b[i]; return s; }
PLAIN double four_sums(int n) { double s = 0, t = 0, u = 0, v = 0; for (int i = 0; i < n; i += 4) { s += a[i] * b[i]; t += a[i+1] * b[i+1]; u += a[i+2] * b[i+2]; v += a[i+3] * b[i+3]; } return s + t + u + v; }
PLAIN uint64_t update(uint64_t mask, int n) { uint64_t x = 7; for (int i = 0; i < n; i++) { x = x * 6364136223846793005u + 1442695040888963407u; table[(x >> 20) & mask] ^= x; } return x; }
PLAIN double strided(int step, int n) { double s = 0; for (int i = 0, j = 0; i < n; i++, j += step) { if (j >= BIG) j -= BIG; s += a[j]; } return s; }
PLAIN long search(int size, int n) {
    long found = 0;
    for (int i = 0; i < n; i++) { uint32_t want = draw(); int low = 0, high = size; while (low < high) { int mid = (low + high) / 2; if (sorted[mid] < want) low = mid + 1; else high = mid; } found += low; }
    return found;
}
PLAIN uint64_t bytes(uint8_t *to, const uint8_t *from, int n) { for (int i = 0; i < n; i++) to[i] = from[i]; return to[n / 2]; }
PLAIN long f0(long x) { return x + 1; } PLAIN long f1(long x) { return x ^ 3; } PLAIN long f2(long x) { return x + 5; } PLAIN long f3(long x) { return x ^ 7; }
PLAIN long calls(const uint32_t *which, int n) { static long (*const to[4])(long) = { f0, f1, f2, f3 }; long x = 0; for (int i = 0; i < n; i++) x = to[which[i] & 3](x); return x; }
PLAIN uint64_t chain(int n) { uint64_t x = 3; for (int i = 0; i < n; i++) x = x * 5 + 1; return x; }
PLAIN uint64_t chains(int n) { uint64_t x = 3, y = 4, z = 5; for (int i = 0; i < n; i += 3) { x = x * 5 + 1; y = y * 5 + 1; z = z * 5 + 1; } return x + y + z; }

// Prints the nanoseconds of one of `units` pieces of work.
#define TIME(name, times, units, work) do { \
    if (strncmp(name, only, strlen(only))) break; \
    int n = (times) < share ? 1 : (times) / share; double t = now(); \
    for (int r = 0; r < n; r++) { work; } \
    printf("%s %.4f\n", name, 1e9 * (now() - t) / n / (units)); fflush(stdout); \
} while (0)

static void ways(int share, const char *only);

// Returns zeros. The gaps between arrays are odd, since equal elements of arrays that are a power of two apart meet in the same places of
// caches and way predictors.
static void *array(size_t bytes) {
    static int count;
    uint8_t *at = calloc(1, bytes + 20 * 4096);
    if (!at) exit(1);
    count++;
    return at + count * (4096 + 64);
}

int main(int count, char **arguments) {
    int rounds = count > 1 ? atoi(arguments[1]) : 1, share = count > 2 ? atoi(arguments[2]) : 1;
    a = array(BIG * 8); b = array(BIG * 8); c = array(BIG * 8); f = array(BIG * 4); g = array(BIG * 4);
    order = array(BIG * 4); sorted = array(BIG * 4); unsorted = array(BIG * 4); same = array(BIG * 4);
    nodes = array(sizeof *nodes * (BIG / 8)); wide = array(sizeof *wide * (BIG / 8)); table = array(BIG * 8);
    for (int i = 0; i < BIG; i++) { a[i] = i % 1000; b[i] = i % 77; c[i] = 0; f[i] = i % 99; g[i] = 0; order[i] = i; unsorted[i] = draw(); sorted[i] = i * 128u + draw() % 128; }
    for (int i = BIG - 1; i > 0; i--) { int j = draw() % (i + 1); uint32_t t = order[i]; order[i] = order[j]; order[j] = t; }
    for (int i = 0; i < BIG / 8; i++) for (int k = 0; k < 8; k++) wide[i].of[k] = i + k;
    for (int i = 0, n = 0; i < BIG; i++) if (order[i] < BIG / 8) { struct node *p = &nodes[order[i]]; p->value = n++; p->next = first; first = p; }
    for (int i = 0; i < SIZE; i++) for (int j = 0; j < SIZE; j++) { m[0][i][j] = i + j; m[1][i][j] = i - j; }
    for (int round = 0; round < rounds; round++) ways(share, count > 3 ? arguments[3] : "");
    return 0;
}

static void ways(int share, const char *only) {
    TIME("order.random", 5, BIG, sink = by_index(BIG, order));
    TIME("order.sequential", 30, BIG, sink = in_order(BIG, order));
    TIME("structure.list", 2, BIG / 8, sink = along_list());
    TIME("structure.array", 250, BIG / 8, sink = in_order(BIG / 8, order));
    TIME("product.inner", 12, 1e6, product(0));
    TIME("product.rows", 24, 1e6, product(1));
    TIME("product.vector", 48, 1e6, product_vector());
    TIME("transpose.plain", 24, SQUARE * SQUARE, transpose(SQUARE));
    TIME("transpose.blocked", 60, SQUARE * SQUARE, transpose(16));
    TIME("branch.unsorted", 8, BIG, sink = above(unsorted, BIG));
    TIME("branch.sorted", 35, BIG, sink = above(sorted, BIG));
    TIME("branch.without", 35, BIG, sink = above_without_branch(unsorted, BIG));
    TIME("layout.fields", 120, BIG / 8, sink = one_field());
    TIME("layout.arrays", 250, BIG / 8, sink = one_array());
    TIME("width.scalar", 800000, 1024, scale_plain(1024));
    TIME("width.sse2", 1600000, 1024, scale_vector(1024));
    TIME("width.avx2", 2400000, 1024, scale_avx(1024));
    TIME("type.double", 200000, MID, scale_double(MID));
    TIME("type.float", 400000, MID, scale_float(MID));
    TIME("operation.divide", 20000, MID, sink = divide(MID));
    TIME("operation.multiply", 32000, MID, sink = multiply(MID));
    TIME("sums.one", 32000, MID, sink = one_sum(MID));
    TIME("sums.four", 80000, MID, sink = four_sums(MID));
    TIME("table.memory", 4, 6e6, sink = update(BIG - 1, 6000000));
    TIME("table.small", 4, 1e8, sink = update(1023, 100000000));
    TIME("stride.line", 4, 3e7, sink = strided(8, 30000000));
    TIME("stride.element", 4, 1e8, sink = strided(1, 100000000));
    TIME("search.large", 4, 4e5, sink = search(BIG, 400000));
    TIME("search.small", 4, 2e7, sink = search(256, 20000000));
    TIME("copy.bytes", 400, 4e6, sink = bytes((uint8_t *)c, (uint8_t *)a, 4000000));
    TIME("copy.library", 16000, 1e6, memcpy(c, a, 1000000); sink = c[7]);
    TIME("calls.random", 6, BIG, sink = calls(unsorted, BIG));
    TIME("calls.same", 20, BIG, sink = calls(same, BIG));
    TIME("chain.one", 12, 6e7, sink = chain(60000000 + r));
    TIME("chain.three", 20, 1.2e8, sink = chains(120000000 + r));
}
