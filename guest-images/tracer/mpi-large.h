/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* From here on functions with counts are defined in the form for large ones, MPI_X_c. They are recorded as MPI_X with a flag. */
#undef SUFFIX
#undef FORM
#undef COUNT
#undef PLACE
#define SUFFIX _c
#define FORM NODESCOPE_FLAG_LARGE_COUNT
#define COUNT MPI_Count
#define PLACE MPI_Aint
