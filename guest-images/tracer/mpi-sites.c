/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Where calls are made: a module (the program or one of its libraries) and an address relative to where it is loaded, which is the
 * same in every process and every run. A module's number is a hash of its file name; the name itself travels with the first record
 * of a process that has the module.
 */
#define _GNU_SOURCE
#include "mpi-tracer.h"

#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct module {
    uintptr_t start, end, base;
    uint64_t id; /* 0: the program */
    int fortran; /* an MPI library's Fortran layer */
    int announced;
    char name[128];
};

/* Tables are never changed or freed once they are seen: a program loads libraries a few times at most. */
struct table {
    size_t count, room;
    unsigned long long adds;
    struct module *modules[];
};

__thread uintptr_t fortran_sites[2];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct table *current;

static uint64_t hash(const char *text) {
    uint64_t hash = 0xcbf29ce484222325ull;
    while (*text)
        hash = (hash ^ (unsigned char)*text++) * 0x100000001b3ull;
    return hash | 1ull << 63;
}

static int count_modules(struct dl_phdr_info *info, size_t size, void *data) {
    (void)info, (void)size;
    ++*(size_t *)data;
    return 0;
}

static int count_loads(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    *(unsigned long long *)data = info->dlpi_adds;
    return 1;
}

static int add_module(struct dl_phdr_info *info, size_t size, void *data) {
    struct table *table = data, *before = current;
    (void)size;
    if (table->count == table->room)
        return 1;
    uintptr_t start = UINTPTR_MAX, end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD)
            continue;
        uintptr_t from = info->dlpi_addr + part->p_vaddr;
        start = from < start ? from : start;
        end = from + part->p_memsz > end ? from + part->p_memsz : end;
    }
    table->adds = info->dlpi_adds;
    for (size_t i = 0; before && i < before->count; i++) {
        if (before->modules[i]->start == start && before->modules[i]->end == end) {
            table->modules[table->count++] = before->modules[i];
            return 0;
        }
    }
    struct module *module = calloc(1, sizeof *module);
    if (!module)
        return 1;
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
    *module = (struct module){.start = start, .end = end, .base = info->dlpi_addr};
    strncpy(module->name, name, sizeof module->name - 1);
    if (table->count) /* the first is the program */
        module->id = hash(module->name);
    else
        module->announced = 1;
    module->fortran = !strncmp(name, "libmpi_mpifh", 12) || !strncmp(name, "libmpi_usempi", 13) || !strncmp(name, "libmpichf", 9) ||
                      !strncmp(name, "libmpifort", 10);
    table->modules[table->count++] = module;
    return 0;
}

static struct module *search(const struct table *table, uintptr_t address) {
    for (size_t i = 0; table && i < table->count; i++)
        if (address >= table->modules[i]->start && address < table->modules[i]->end)
            return table->modules[i];
    return NULL;
}

static struct module *module_of(uintptr_t address) {
    static __thread struct module *last __attribute__((tls_model("initial-exec")));
    if (last && address >= last->start && address < last->end)
        return last;
    struct table *table = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
    struct module *found = search(table, address);
    if (!found) {
        unsigned long long adds = 0;
        dl_iterate_phdr(count_loads, &adds);
        pthread_mutex_lock(&lock);
        if (!current || current->adds != adds) {
            size_t count = 0;
            dl_iterate_phdr(count_modules, &count);
            struct table *fresh = calloc(1, sizeof *fresh + (count + 8) * sizeof *fresh->modules);
            if (fresh) {
                fresh->room = count + 8;
                dl_iterate_phdr(add_module, fresh);
                __atomic_store_n(&current, fresh, __ATOMIC_RELEASE);
            }
        }
        found = search(current, address);
        pthread_mutex_unlock(&lock);
    }
    return last = found;
}

struct module *site_of(struct call *call, uintptr_t address) {
    struct module *module = module_of(address);
    for (int i = 0; i < 2 && module && module->fortran && fortran_sites[i]; i++) {
        address = fortran_sites[i];
        module = module_of(address);
    }
    fortran_sites[0] = fortran_sites[1] = 0;
    call->record.call_site = module ? address - module->base : address;
    call->record.call_module = module ? module->id : ~0ull; /* code of no file */
    if (module && !module->id)
        call->record.flags |= NODESCOPE_FLAG_CALL_SITE_IN_PROGRAM;
    return module;
}

const char *module_announces(struct module *module) {
    return module && !__atomic_load_n(&module->announced, __ATOMIC_RELAXED) && !__atomic_exchange_n(&module->announced, 1, __ATOMIC_RELAXED)
               ? module->name
               : NULL;
}
