/* Without a fault: each rank computes alone, and one reduction ends the program. */
#include "work.h"

int main(int argc, char **argv) {
    start(&argc, &argv);
    double sum = 0, x = compute(rank, STEPS * (long)UNIT);
    MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    end(sum);
}
