/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A program that is not linked with MPI: it opens the library outside the global scope and asks it for every function. The second
 * argument is the library, the first the handle of MPI_COMM_WORLD as MPICH has it, or 0. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Handles are integers or addresses: both travel in a register. */
static void *library;

static void *ask(const char *name) {
    void *symbol = dlsym(library, name);
    if (!symbol) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return symbol;
}

int main(int count, char **arguments) {
    if (count != 3 || !(library = dlopen(arguments[2], RTLD_NOW | RTLD_LOCAL)))
        return fprintf(stderr, "%s\n", dlerror()), 1;
    int (*init)(int *, char ***) = ask("MPI_Init"), (*finalize)(void) = ask("MPI_Finalize");
    int (*comm_rank)(uintptr_t, int *) = ask("MPI_Comm_rank"), (*barrier)(uintptr_t) = ask("MPI_Barrier");
    uintptr_t world = strtoul(arguments[1], NULL, 0);
    if (!world)
        world = (uintptr_t)ask("ompi_mpi_comm_world");
    int rank = -1;
    init(NULL, NULL);
    comm_rank(world, &rank);
    for (int i = 0; i < 3; i++)
        barrier(world);
    finalize();
    /* A function that the library lacks is missing, and the error message names it. */
    const char *error;
    dlerror();
    if (dlsym(library, "MPI_Nothing_of_this_name") || !(error = dlerror()) || !strstr(error, "MPI_Nothing_of_this_name"))
        return fputs("a name that does not exist\n", stderr), 1;
    /* RTLD_NEXT in the program means the libraries after the program, not those after the tracer. */
    if (dlsym(RTLD_NEXT, "getpid") != (void *)dlsym(RTLD_DEFAULT, "getpid") || !dlsym(RTLD_DEFAULT, "dlsym"))
        return fputs("a name of the C library\n", stderr), 1;
    return rank < 0;
}
