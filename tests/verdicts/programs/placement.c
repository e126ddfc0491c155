/* Each rank exchanges much with one partner, which is on the other node; the neighbour on the own node would do as well. */
#include "work.h"

enum { COUNT = 8192 };

static double sent[COUNT], received[COUNT];

int main(int argc, char **argv) {
    start(&argc, &argv);
    double x = rank;
#ifdef REPAIRED
    int partner = rank ^ 1;
#else
    int partner = (rank + ranks / 2) % ranks;
#endif
    for (int step = 0; step < STEPS; step++) {
        x = compute(x, UNIT);
        for (int round = 0; round < 10; round++)
            MPI_Sendrecv(sent, COUNT, MPI_DOUBLE, partner, 0, received, COUNT, MPI_DOUBLE, partner, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE); /* FAULT */
    }
    end(x + received[0]);
}
