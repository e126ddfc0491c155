/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* All predefined operations, in place and not, and reductions on one rank alone. */
#include "conformance.h"
void reductions(void) {
    MPI_Op arithmetic[] = {MPI_MAX, MPI_MIN, MPI_SUM, MPI_PROD, MPI_LAND, MPI_BAND, MPI_LOR, MPI_BOR, MPI_LXOR, MPI_BXOR};
    int expected[] = {4, 1, 10, 24, 1, 0, 1, 7, 0, 4}, in, out;
    for (int i = 0; i < 10; i++) {
        in = rank + 1;
        MPI_Allreduce(&in, &out, 1, MPI_INT, arithmetic[i], WORLD);
        CHECK(out == expected[i]);
        MPI_Allreduce(MPI_IN_PLACE, &in, 1, MPI_INT, arithmetic[i], WORLD);
        CHECK(in == expected[i]);
    }
    struct {
        double value;
        int place;
    } pair = {rank == 2 ? 9.0 : 1.0, rank}, best;
    MPI_Allreduce(&pair, &best, 1, MPI_DOUBLE_INT, MPI_MAXLOC, WORLD);
    CHECK(best.place == 2);
    MPI_Allreduce(&pair, &best, 1, MPI_DOUBLE_INT, MPI_MINLOC, WORLD);
    CHECK(best.place == 0);
    in = 5, out = 6;
    MPI_Reduce_local(&in, &out, 1, MPI_INT, MPI_SUM);
    CHECK(out == 11);
    expect("MPI_Allreduce", 20 * 4 + 2 * 12, 20 * 4 + 2 * 12);
    expect("MPI_Reduce_local", 4, 0);
}
