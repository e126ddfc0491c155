// Two phases a step on each rank: `assemble` takes three times as long on the last rank, `solve` the same time on all; `record` runs on
// rank 0 alone while the others compute. Flags make functions twice as fast: -DFAST_ASSEMBLE, -DFAST_SOLVE, -DFAST_RECORD.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define STEPS 160
#define SIZE 4096
#define KEEP __attribute__((noinline, noclone))

#ifdef FAST_ASSEMBLE
#define ASSEMBLE 1
#else
#define ASSEMBLE 2
#endif
#ifdef FAST_SOLVE
#define SOLVE 2
#else
#define SOLVE 4
#endif
#ifdef FAST_RECORD
#define RECORD 1
#else
#define RECORD 2
#endif

static KEEP double assemble(double *a, int times) {
    double sum = 0;
    for (int t = 0; t < times; t++)
        for (int i = 0; i < SIZE; i++) {
            a[i] = a[i] * 0.999 + t;
            sum += a[i];
        }
    return sum;
}

static KEEP double solve(double *a, int times) {
    double sum = 0;
    for (int t = 0; t < times; t++)
        for (int i = 1; i < SIZE; i++)
            sum += a[i] / (a[i - 1] + 2.0);
    return sum;
}

static KEEP double record(double *a, int times) {
    double sum = 0;
    for (int t = 0; t < times; t++)
        for (int i = 0; i < SIZE; i += 3)
            sum = sum * 0.5 + a[i];
    return sum;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double *a = malloc(SIZE * sizeof *a);
    for (int i = 0; i < SIZE; i++)
        a[i] = i + rank;
    double own = 0, all = 0;
    for (int step = 0; step < STEPS; step++) {
        own += assemble(a, ASSEMBLE * 8 * (rank == size - 1 ? 3 : 1));
        own += solve(a, SOLVE * 4);
        if (rank == 0)
            own += record(a, RECORD * 40);
        MPI_Allreduce(&own, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    if (rank == 0)
        printf("%g\n", all);
    MPI_Finalize();
}
