/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* One half of the ranks offers a port, the other connects to it. */
#include "conformance.h"
void ports(void) {
    char port[MPI_MAX_PORT_NAME] = "";
    MPI_Comm half, other;
    int value = rank, members;
    MPI_Comm_split(WORLD, rank / 2, rank, &half);
    if (rank == 0) {
        MPI_Open_port(MPI_INFO_NULL, port);
        MPI_Send(port, sizeof port, MPI_CHAR, 2, 1, WORLD);
    }
    if (rank == 2)
        MPI_Recv(port, sizeof port, MPI_CHAR, 0, 1, WORLD, IGNORE);
    if (rank < 2)
        MPI_Comm_accept(port, MPI_INFO_NULL, 0, half, &other);
    else
        MPI_Comm_connect(port, MPI_INFO_NULL, 0, half, &other);
    MPI_Comm_remote_size(other, &members);
    CHECK(members == 2);
    MPI_Sendrecv(&rank, 1, MPI_INT, rank % 2, 1, &value, 1, MPI_INT, rank % 2, 1, other, IGNORE);
    CHECK(value == (rank + 2) % 4);
    MPI_Comm_disconnect(&other);
    if (rank == 0)
        MPI_Close_port(port);
    MPI_Comm_free(&half);
    expect("MPI_Sendrecv", 4, 4);
}
