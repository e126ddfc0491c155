/* An observer that counts events, and does something wrong in its third call. BAD says what. */
#include <nodescope_models.h>
#include <stdlib.h>

static const nodescope_host *host;

typedef struct {
    int calls;
} state;

static void *make(void *data, const nodescope_shape *shape, const uint64_t *values)
{
    if (BAD == 10) {
        host->fail("wants another node");
        return NULL;
    }
    return calloc(1, sizeof(state));
}

static int overflow(volatile char *before)
{
    volatile char here[4096];
    here[0] = before ? before[0] : 0;
    return overflow(here) + here[0];
}

static void observe(void *userdata, const nodescope_batch *batch, uint64_t *counts)
{
    state *this = userdata;
    counts[0] += batch->count;
    for (size_t at = 0; at < batch->count; at++)
        counts[1] += nodescope_reason(&batch->events[at]) == NODESCOPE_WRITE;
    if (++this->calls < 3)
        return;
    switch (BAD) {
    case 1:
        abort();
    case 2:
        for (;;)
            __asm__ volatile("");
    case 3:
        *(volatile int *)16 = 1;
        break;
    case 4:
        exit(3);
    case 5:
        host->fail("wants no more\nevents");
        break;
    case 6:
        overflow(NULL);
        break;
    case 7:
        this->calls = this->calls / (this->calls - 3);
        break;
    case 8:
        __builtin_trap();
    }
}

static const nodescope_parameter parameters[] = {
    { sizeof(nodescope_parameter), "size", "a size", 4096, 64, 1 << 20, NODESCOPE_BYTES, 0 },
};
static const nodescope_event_kind events[] = {
    { sizeof(nodescope_event_kind), "seen", "events" },
    { sizeof(nodescope_event_kind), BAD == 11 ? "seen" : "written", "writes" },
};
static const nodescope_model model = {
    .size = sizeof model,
    .name = "misbehaving",
    .line = "Counts, and does something wrong.",
    .parameters = parameters,
    .parameter_count = 1,
    .events = events,
    .event_count = 2,
    .kind = BAD == 12 ? NODESCOPE_MEMORY : NODESCOPE_OBSERVER,
    .make = make,
    .drop = free,
    .observe = observe,
};
static const nodescope_model *const models[] = { &model };
static const nodescope_library library = { sizeof library, NODESCOPE_VERSION + (BAD == 9), 0, models, BAD == 13 ? 0 : 1 };

const nodescope_library *nodescope_models(const nodescope_host *given)
{
    host = given;
    if (BAD == 14)
        return NULL;
    if (BAD == 15)
        abort();
    if (host->capability("stream") != NODESCOPE_STREAM_VERSION || host->capability("no such") != 0)
        return NULL;
    return &library;
}
