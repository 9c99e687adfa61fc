#include "engine/weights/weight_state.h"

#include "base/mem.h"

int weight_state_open(struct weight_state *r, const struct config *c, struct error *e) {
    *r = (struct weight_state){.n_experts = c->n_experts,
                               .flags = mem_calloc((size_t)c->n_layers, (size_t)c->n_experts + 1)};
    return r->flags ? 0 : error_set(e, ERR_MEMORY, "no memory for %d layers", c->n_layers);
}
void weight_state_close(struct weight_state *r) {
    mem_free((void *)r->flags);
    *r = (struct weight_state){0};
}
