/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The reference programs. In each, the measured part lies between its second and its third MPI_Barrier; before it, one iteration
   opens the connections between its ranks and touches its memory. */
void heat(int size, int steps);
void jacobi(int size, int iterations);
void grid(int size, int sweeps);
