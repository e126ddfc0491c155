/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* From here on served functions with counts are defined in the form for large ones, MPI_X_c. */
#undef SUFFIX
#undef COUNT
#undef PLACE
#define SUFFIX _c
#define COUNT MPI_Count
#define PLACE MPI_Aint
