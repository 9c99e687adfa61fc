#include "engine/layer/attention_kinds.h"

#include "engine/layer/short_conv.h"

static int no_planes(const struct config *c, int layer, struct cache_desc *out) {
    return config_is_bare(c, layer) ? out[0] = short_conv_plane(c, layer), 1 : 0;
}
static int no_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                 const struct span *spans, int n_spans, int n) {
    return 0;
}
static int no_attention(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                        const struct span *s, struct key_range keys) {
    return 0;
}
const struct attention_kind attention_none = {.name = "none",
                                              .is_recordable = true,
                                              .cache_planes = no_planes,
                                              .store_kv = no_kv,
                                              .make_queries = attention_no_queries,
                                              .attended = (const size_t[]){0},
                                              .attend = no_attention};

static const struct attention_kind *const mixers[] = {
    [MIXER_DELTA] = &attention_delta,   [MIXER_CONV] = &attention_conv, [MIXER_LIGHTNING] = &attention_lightning,
    [MIXER_MAMBA2] = &attention_mamba2, [MIXER_KDA] = &attention_kda,   [MIXER_MAMBA1] = &attention_mamba1,
    [MIXER_NONE] = &attention_none};
static const struct attention_kind *const kinds[] = {[ATTN_GQA] = &attention_gqa,
                                                     [ATTN_MLA] = &attention_mla,
                                                     [ATTN_DSA] = &attention_dsa,
                                                     [ATTN_COMPRESSED] = &attention_compressed,
                                                     [ATTN_CCA] = &attention_cca};
const struct attention_kind *attention_of(const struct config *c, int layer) {
    if (c->layer[layer].mixer) return mixers[c->layer[layer].mixer];
    if (config_selects_blocks(c, layer)) return c->index_by_group ? &attention_group_blocks : &attention_blocks;
    return c->attn == ATTN_DSA && c->layer[layer].index == INDEX_NONE ? &attention_mla : kinds[c->attn];
}
