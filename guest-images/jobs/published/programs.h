/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The reference programs. In each, the measured part lies between its second and its third MPI_Barrier; before it, one iteration
   opens the connections between its ranks and touches its memory, and one rank is late. */
void heat(int size, int steps);
void jacobi(int size, int iterations);
void grid(int size, int sweeps);

/* Lets one rank come 10 ms after the others: another one each time. Who leaves a barrier when follows from who came last, and how long
   programs take may follow from that for all their time. How ranks are apart otherwise depends on how connections were opened. */
void one_is_late(void);
