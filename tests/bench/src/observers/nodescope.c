/* Two observers that count references by kind: of misses of the first level, and of every reference. */
#include <nodescope_models.h>
#include <stdlib.h>

static void *make(void *data, const nodescope_shape *shape, const uint64_t *values)
{
    return malloc(1);
}

static void observe(void *userdata, const nodescope_batch *batch, uint64_t *counts)
{
    for (size_t at = 0; at < batch->count; at++)
        counts[nodescope_reason(&batch->events[at])]++;
}

#define EVENT(name, line) { sizeof(nodescope_event_kind), name, line }
static const nodescope_event_kind events[] = {
    EVENT("reads", "data reads"),
    EVENT("writes", "data writes"),
    EVENT("fetches", "fetches"),
    EVENT("prefetches", "prefetches"),
};
#define MODEL(identifier, needs_)                                                                          \
    { .size = sizeof(nodescope_model), .name = identifier, .line = "References by kind.", .events = events, \
      .event_count = 4, .kind = NODESCOPE_OBSERVER, .needs = needs_, .make = make, .drop = free, .observe = observe }
static const nodescope_model misses = MODEL("misses", 0);
static const nodescope_model every = MODEL("every", NODESCOPE_EVERY_REFERENCE);
static const nodescope_model *const models[] = { &misses, &every };
static const nodescope_library library = { sizeof library, NODESCOPE_VERSION, 0, models, 2 };

const nodescope_library *nodescope_models(const nodescope_host *host)
{
    return &library;
}
