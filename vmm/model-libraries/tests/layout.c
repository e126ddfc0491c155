/* Prints the size of each structure, and the offset of its last field that is no filler. */
#include <nodescope_models.h>
#include <stdio.h>

#define SHOW(type, field) printf(#type " %zu %zu\n", sizeof(nodescope_##type), offsetof(nodescope_##type, field))

int main(void)
{
    SHOW(parameter, unit);
    SHOW(event_kind, line);
    SHOW(event, filled);
    SHOW(batch, kernel);
    SHOW(reference, large_page);
    SHOW(request, write_back);
    SHOW(set, ways);
    SHOW(access, answer);
    SHOW(vcpu, socket);
    SHOW(shape, line_bytes);
    SHOW(model, prefetch);
    SHOW(library, model_count);
    SHOW(host, capability);
    printf("versions %d %d\n", NODESCOPE_VERSION, NODESCOPE_STREAM_VERSION);
}
