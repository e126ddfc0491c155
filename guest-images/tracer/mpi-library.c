/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The program's MPI library, and the names looked up in it. A program may be linked with its MPI, or open it at run time: a module of
 * Python opens it outside the global scope, where RTLD_NEXT and RTLD_DEFAULT do not look.
 *
 * dlsym is interposed: a program that asks an open library for MPI_X would get the library's own function, and the tracer would miss the
 * call. Such a program gets the tracer's wrapper. Every other look-up jumps to the system's dlsym. The jump leaves arguments and return
 * address in place, because the meaning of RTLD_NEXT depends on the return address.
 */
#define _GNU_SOURCE
#include "mpi-tracer.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STANDARD_SONAME "libmpi_abi.so.1"

#if defined(STANDARD_ABI)
#define SONAME STANDARD_SONAME
#elif defined(OPEN_MPI)
struct predefined predefined;
#define SONAME "libmpi.so.40"
#else
#define SONAME "libmpich.so.12"
#endif

#if defined(REPLAY_LIBRARY)
#define LIBRARY_NAME "the replay library"
#define LIBRARY_FILE "libnodescope-replay"
#else
#define LIBRARY_NAME "the MPI tracer"
#define LIBRARY_FILE "libnodescope-mpi"
#endif

/* A function of every MPI that no preloaded library of ours defines. */
#define LOCAL_FUNCTION "MPI_Get_version"

typedef void *look_up(void *handle, const char *name);

static look_up *system_dlsym;

const char *const library_names[] = {
    [NODESCOPE_FLAVOUR_OPEN_MPI] = "openmpi", [NODESCOPE_FLAVOUR_MPICH] = "mpich", [NODESCOPE_FLAVOUR_STANDARD_ABI] = "abi"};

void give_up(const char *why, const char *what) {
    char text[512];
    int length = snprintf(text, sizeof text, "%s stops this program: %s%s", LIBRARY_NAME, why, what);
    fprintf(stderr, "nodescope: %s\n", text);
    /* A launcher may swallow what its ranks print; the host keeps it. */
    if (nodescope_attach() == NODESCOPE_PRESENT)
        nodescope_call(NODESCOPE_OP_MESSAGE, text, length < (int)sizeof text ? length : (int)sizeof text - 1, 0, NULL, 0);
    _exit(127);
}

/* Every glibc for x86-64 has this version of dlsym; dlvsym is not interposed. */
static look_up *find_dlsym(void) {
    if (!system_dlsym && !(system_dlsym = (look_up *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5")))
        give_up("the system's dlsym cannot be found", "");
    return system_dlsym;
}

/* Names of all loaded objects. */
struct names {
    size_t count, room;
    char **all;
};

static int note_name(struct dl_phdr_info *info, size_t size, void *data) {
    struct names *names = data;
    (void)size;
    if (!info->dlpi_name || !*info->dlpi_name)
        return 0; /* the program, whose handle would stand for all that is global */
    if (names->count == names->room) {
        size_t room = names->room ? 2 * names->room : 64;
        char **more = realloc(names->all, room * sizeof *more);
        if (!more)
            return 1;
        names->all = more;
        names->room = room;
    }
    char *name = strdup(info->dlpi_name);
    if (name)
        names->all[names->count++] = name;
    return 0;
}

/* Finds a symbol in any loaded object but the tracer. Objects are opened after the walk over them: the walk holds a lock that dlopen
 * takes, too. The objects stay open, because the symbol's object must not be unloaded. */
static void *search(const char *name) {
    struct names names = {0};
    void *found = NULL;
    Dl_info own;
    if (!dladdr((void *)search, &own))
        return NULL;
    dl_iterate_phdr(note_name, &names);
    for (size_t i = 0; i < names.count; i++) {
        void *object = found || !strcmp(names.all[i], own.dli_fname) ? NULL : dlopen(names.all[i], RTLD_LAZY | RTLD_NOLOAD);
        if (object && !(found = find_dlsym()(object, name)))
            dlclose(object);
        free(names.all[i]);
    }
    free(names.all);
    return found;
}

void *mpi_symbol(const char *name) {
    void *symbol = find_dlsym()(RTLD_NEXT, name);
    if (symbol)
        return symbol;
    void *library = dlopen(SONAME, RTLD_LAZY | RTLD_NOLOAD);
    if (library && (symbol = find_dlsym()(library, name)))
        return symbol;
    return search(name);
}

void *real_function(const char *name) {
    void *function = mpi_symbol(name);
    if (!function)
        give_up("it finds no loaded MPI library that provides ", name);
    return function;
}

int program_has_mpi(void) {
    return find_dlsym()(RTLD_NEXT, LOCAL_FUNCTION) != NULL;
}

/* The MPI whose ABI the program uses; NODESCOPE_FLAVOUR_NONE as long as no library is loaded. A library of the standard ABI may itself use
 * a library of its implementation's own ABI, so the standard one comes first. */
uint32_t flavour_of_program(void) {
    void *standard = dlopen(STANDARD_SONAME, RTLD_LAZY | RTLD_NOLOAD);
    if (standard) {
        dlclose(standard);
        return NODESCOPE_FLAVOUR_STANDARD_ABI;
    }
    if (mpi_symbol("ompi_mpi_comm_world"))
        return NODESCOPE_FLAVOUR_OPEN_MPI;
    return mpi_symbol(LOCAL_FUNCTION) ? NODESCOPE_FLAVOUR_MPICH : NODESCOPE_FLAVOUR_NONE;
}

static const char *const titles[] = {[NODESCOPE_FLAVOUR_OPEN_MPI] = "Open MPI",
                                     [NODESCOPE_FLAVOUR_MPICH] = "MPICH",
                                     [NODESCOPE_FLAVOUR_STANDARD_ABI] = "the standard ABI of MPI"};

void library_check(void) {
    /* Handles and statuses of the ABIs differ in size, so the wrong library could not even forward the calls. */
    uint32_t flavour = flavour_of_program();
#if defined(REPLAY_LIBRARY)
    /* Which requests several operations share is each implementation's own affair: replay-requests.c. */
    if (flavour == NODESCOPE_FLAVOUR_STANDARD_ABI)
        give_up("it knows no programs of the standard ABI of MPI: link the program with the MPI's own library in place of " STANDARD_SONAME, "");
#endif
    if (flavour != NODESCOPE_FLAVOUR_NONE && flavour != FLAVOUR) {
        char text[256];
        snprintf(text, sizeof text, "%s, the program uses %s: preload " LIBRARY_FILE "-%s.so", titles[FLAVOUR], titles[flavour], library_names[flavour]);
        give_up("it was built for ", text);
    }
#if defined(OPEN_MPI)
    /* A program that is linked with the library may have a copy of the variable (R_X86_64_COPY), which the library uses too: that copy
     * comes first in the global scope. */
#define PREDEFINED_FIND(symbol)                                                                                                \
    if (!(predefined.symbol = find_dlsym()(RTLD_DEFAULT, #symbol)) && !(predefined.symbol = mpi_symbol(#symbol)))              \
        give_up("it finds no loaded MPI library that provides the handle ", #symbol);
    PREDEFINED(PREDEFINED_FIND)
#undef PREDEFINED_FIND
#endif
}

/* ---- dlsym ---- */

/* The tracer's own function of this name, from C or from Fortran. */
static void *wrapper(const char *name) {
    static void *own;
    Dl_info here;
    if (!own && dladdr((void *)wrapper, &here))
        own = dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    return own ? find_dlsym()(own, name) : NULL;
}

static int is_mpi_name(const char *name) {
    static const char *const prefixes[] = {"MPI_", "PMPI_", "MPIX_", "PMPIX_", "mpi_", "pmpi_", "mpix_", "pmpix_"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i])))
            return 1;
    return 0;
}

/* The wrapper to be given to a program that asks an open library for a function of the MPI library; null where the system's dlsym
 * has the answer. A library that has a function of that name of its own keeps it. */
__attribute__((used)) static void *dlsym_wrapper(void *handle, const char *name) {
    /* RTLD_DEFAULT finds the wrapper by itself, RTLD_NEXT is what other interposing libraries use. */
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT || !name || !is_mpi_name(name))
        return NULL;
    void *own = wrapper(name), *there = own ? find_dlsym()(handle, name) : NULL;
    return there && there == mpi_symbol(name) ? own : NULL;
}

__attribute__((used)) static void *dlsym_target(void) {
    return (void *)find_dlsym();
}

/* On entry to a function rsp is 8 modulo 16; two pushes and 8 bytes align it. */
__asm__(".text\n.balign 16\n"
        ".globl dlsym\n.type dlsym, @function\n"
        "dlsym:\n"
        "    endbr64\n"
        "    push %rdi\n    push %rsi\n    sub $8, %rsp\n"
        "    call dlsym_wrapper\n"
        "    test %rax, %rax\n"
        "    jnz 1f\n"
        "    call dlsym_target\n"
        "    add $8, %rsp\n    pop %rsi\n    pop %rdi\n"
        "    jmp *%rax\n"
        "1:  add $24, %rsp\n"
        "    ret\n"
        ".size dlsym, . - dlsym\n");
