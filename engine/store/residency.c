#include "engine/store/residency.h"

#include "engine/base/mem.h"

int residency_open(struct residency *r, const struct config *c, struct error *e) {
    *r = (struct residency){.n_experts = c->n_experts, .known = mem_calloc((size_t)c->n_layers, (size_t)c->n_experts + 1)};
    return r->known ? 0 : error_set(e, ERR_MEMORY, "no memory for %d layers", c->n_layers);
}
void residency_close(struct residency *r) {
    mem_free((void *)r->known);
    *r = (struct residency){0};
}
