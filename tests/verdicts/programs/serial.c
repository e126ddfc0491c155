/* The first rank alone computes what each step begins with. */
#include "work.h"

int main(int argc, char **argv) {
    start(&argc, &argv);
    double x = rank, sum = 0, begin = 1;
    for (int step = 0; step < STEPS; step++) {
#ifdef REPAIRED
        begin = compute(begin, UNIT / ranks);
#else
        if (rank == 0) begin = compute(begin, UNIT); /* FAULT */
#endif
        MPI_Bcast(&begin, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        x = compute(x + begin, UNIT);
        MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    end(sum);
}
