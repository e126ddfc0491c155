/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Preloaded into MPICH's ranks: keeps MPICH 4.0.2 over UCX's TCP from hanging in MPI_Finalize.
 *
 * There a rank closes its endpoints, waits until the peers have acknowledged all that it sent, and then for the launcher's barrier.
 * Peers acknowledge while they make progress, which those that are in the barrier no longer do: a rank that closes its
 * endpoints after a peer has come so far waits for ever. Here a rank goes on making progress until the barrier's answer is there. The
 * barrier is no function that could be replaced; its wait for the answer, a read() from the launcher's socket, is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* One for each of MPICH's VCIs: one, unless MPIR_CVAR_CH4_NUM_VCIS wants more. */
enum { WORKERS = 64 };
static void *workers[WORKERS];
static int number, closing, launcher = -1;

/* Whoever calls UCX has loaded it, if not always where RTLD_NEXT would look. */
static void *ucx(const char *name) { return dlsym(dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD), name); }

/* UCX's status is an enumeration of one byte. */
EXPORT signed char ucp_worker_create(void *context, const void *parameters, void **worker) {
    signed char (*next)(void *, const void *, void **) = ucx("ucp_worker_create");
    signed char status = next(context, parameters, worker);
    if (status == 0 && number < WORKERS)
        workers[number++] = *worker;
    return status;
}

EXPORT void *ucp_disconnect_nb(void *endpoint) {
    void *(*next)(void *) = ucx("ucp_disconnect_nb");
    const char *text = getenv("PMI_FD");
    launcher = text ? atoi(text) : -1;
    closing = 1;
    return next(endpoint);
}

EXPORT void ucp_worker_destroy(void *worker) {
    void (*next)(void *) = ucx("ucp_worker_destroy");
    closing = number = 0;
    next(worker);
}

EXPORT ssize_t read(int file, void *buffer, size_t size) {
    static ssize_t (*next)(int, void *, size_t);
    static unsigned (*progress)(void *);
    if (!next)
        next = dlsym(RTLD_NEXT, "read");
    if (closing && file >= 0 && file == launcher) {
        if (!progress)
            progress = ucx("ucp_worker_progress");
        struct pollfd answer = {file, POLLIN, 0};
        int ready;
        do {
            unsigned events = 0;
            for (int i = 0; i < number; i++)
                events += progress(workers[i]);
            /* Not spinning: the launcher may need this processor. */
            ready = poll(&answer, 1, events ? 0 : 1);
        } while (ready == 0 || (ready < 0 && errno == EINTR));
    }
    return next(file, buffer, size);
}
