/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Values of several types in one buffer that is packed, sent and unpacked. */
#include "conformance.h"
void packing(void) {
    char out[200], in[200];
    int place = 0, number = rank, more[4], bytes;
    double half = 0.5 + rank;
    MPI_Status status;
    fill(more, 4, rank);
    MPI_Pack(&number, 1, MPI_INT, out, sizeof out, &place, WORLD);
    MPI_Pack(&half, 1, MPI_DOUBLE, out, sizeof out, &place, WORLD);
    MPI_Pack(more, 4, MPI_INT, out, sizeof out, &place, WORLD);
    int packed = place;
    MPI_Sendrecv(out, packed, MPI_PACKED, right, 1, in, sizeof in, MPI_PACKED, left, 1, WORLD, &status);
    MPI_Get_count(&status, MPI_PACKED, &bytes);
    CHECK(bytes == packed);
    place = 0;
    MPI_Unpack(in, bytes, &place, &number, 1, MPI_INT, WORLD);
    MPI_Unpack(in, bytes, &place, &half, 1, MPI_DOUBLE, WORLD);
    MPI_Unpack(in, bytes, &place, more, 4, MPI_INT, WORLD);
    CHECK(number == left && half == 0.5 + left && filled(more, 4, left));
    MPI_Aint external = 0;
    MPI_Pack_external("external32", more, 4, MPI_INT, out, sizeof out, &external);
    CHECK(external == 16);
    external = 0;
    MPI_Unpack_external("external32", out, 16, &external, more, 4, MPI_INT);
    CHECK(filled(more, 4, left));
    expect("MPI_Pack", 28, 0);
    expect("MPI_Unpack", 0, 28);
    expect("MPI_Sendrecv", packed, packed);
    expect("MPI_Pack_external", 16, 0);
    expect("MPI_Unpack_external", 0, 16);
}
