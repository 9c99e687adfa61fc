#include "engine/transfer/resident_set.h"

#include "base/mem.h"

static size_t expert_index(const struct resident_set *r, int layer, int expert) {
    return (size_t)layer * (size_t)r->n_experts + (size_t)expert;
}

int resident_set_open(struct resident_set *r, const struct config *c, struct error *e) {
    const size_t layers = (size_t)c->n_layers, experts = layers * (size_t)c->n_experts;
    *r = (struct resident_set){.n_layers = c->n_layers, .n_experts = c->n_experts};
    r->layers = mem_alloc(layers * sizeof *r->layers);
    r->experts = mem_alloc(experts * sizeof *r->experts + 1);
    r->has_layer = mem_calloc(layers, 1);
    r->has_expert = mem_calloc(experts + 1, 1);
    return r->layers && r->experts && r->has_layer && r->has_expert
               ? 0
               : error_set(e, ERR_MEMORY, "no memory for a list of resident weights");
}

void resident_set_close(struct resident_set *r) {
    mem_free(r->layers), mem_free(r->experts), mem_free(r->has_layer), mem_free(r->has_expert);
    *r = (struct resident_set){0};
}

void resident_set_add_layer(struct resident_set *r, int layer, const struct layer *view) {
    r->layers[layer] = *view;
    r->has_layer[layer] = 1;
}
void resident_set_add_expert(struct resident_set *r, int layer, int expert, const struct expert *view) {
    r->experts[expert_index(r, layer, expert)] = *view;
    r->has_expert[expert_index(r, layer, expert)] = 1;
}

const struct layer *resident_set_layer(const struct resident_set *r, int layer) {
    return r && r->has_layer && r->has_layer[layer] ? &r->layers[layer] : NULL;
}
const struct expert *resident_set_expert(const struct resident_set *r, int layer, int expert) {
    return r && r->has_expert && r->has_expert[expert_index(r, layer, expert)]
               ? &r->experts[expert_index(r, layer, expert)]
               : NULL;
}

bool resident_set_has_all(const struct resident_set *r, const struct config *c, int first, int last) {
    for (int l = 0; l < c->n_layers; l++)
        for (int x = first; x < last && c->layer[l].moe; x++)
            if (!resident_set_expert(r, l, x)) return false;
    return true;
}
