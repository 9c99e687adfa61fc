#include "engine/layer/block_apart.h"

#include "engine/layer/attention_kinds.h"
#include "engine/layer/kv_planes.h"

bool block_attends_apart(const struct config *c, int layer) {
    struct cache_desc d[CACHE_PLANES];
    const uint8_t mixer = c->layer[layer].mixer;
    bool is_apart = attention_of(c, layer)->attended && !c->layer[layer].ngram; /* n-grams have a state, too */
    for (int i = kv_planes(c, layer, d); i-- > 0;)
        is_apart &= !d[i].fixed_rows || (mixer != MIXER_ATTENTION && mixer != MIXER_NONE);
    return is_apart;
}

bool block_attends(const struct config *c, int layer, const struct work_row *k) {
    const bool is_gate = k->at == offsetof(struct work, fused) && c->layer[layer].mixer == MIXER_ATTENTION;
    const size_t *at = attention_of(c, layer)->attended;
    if (is_gate && !c->attn_gate) return false;
    while (at && *at && *at != k->at) at++;
    return at && *at;
}
