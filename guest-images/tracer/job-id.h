/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The launcher's id of the program that this process is a rank of. */
#ifndef JOB_ID_H
#define JOB_ID_H

#include <stdint.h>

/* Equal on all ranks of one MPI_COMM_WORLD, and another one for another program; 0 if unknown. */
uint64_t job_id(void);

#endif
