#include "engine/store/params.h"

#include "engine/model/arch.h"
#include "engine/store/weights.h"

#define OF(type, field_, name_, module_) .at = offsetof(struct type, field_), .name = offsetof(struct tensor_names, name_), .module = MODULE_##module_
/* A row: where it goes, what it is called, its module and shape, and whether a layer has it. */
#define MAT(type, field, name, module, r, c, when) \
    { {OF(type, field, name, module), .ending = ".weight", .rows = r, .cols = c}, when }
#define VEC(type, field, name, end, module, n, when) \
    { {OF(type, field, name, module), .ending = end, .rows = n}, when }

int params_list(const struct config *c, int layer, unsigned modules, struct param out[PARAMS_MAX]) {
    const int hidden = c->hidden, q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, latent = c->kv_lora + c->qk_rope;
    const bool gqa = c->attn == ATTN_GQA, mla = c->attn == ATTN_MLA, low_q = mla && c->q_lora, bias = c->qkv_bias;
    const bool moe = c->layer[layer].moe, shared = moe && c->shared_inter;
    const struct {
        struct param p;
        bool when;
    } all[] = {
        MAT(weights, embed, embed, MODEL, c->vocab, hidden, true),
        VEC(weights, norm, norm, ".weight", MODEL, hidden, true),
        {{OF(weights, head, head, MODEL), .ending = ".weight", .rows = c->vocab, .cols = hidden, .optional = c->tied}, true},

        VEC(layer, attn_norm, attn_norm, ".weight", ATTENTION, hidden, true),
        MAT(layer, q, q, ATTENTION, q, hidden, !low_q),
        VEC(layer, q_bias, q, ".bias", ATTENTION, q, gqa && bias),
        VEC(layer, q_norm, q_norm, ".weight", ATTENTION, c->head_dim, gqa && c->qk_norm),
        MAT(layer, k, k, ATTENTION, kv, hidden, gqa),
        VEC(layer, k_bias, k, ".bias", ATTENTION, kv, gqa && bias),
        VEC(layer, k_norm, k_norm, ".weight", ATTENTION, c->head_dim, gqa && c->qk_norm),
        MAT(layer, v, v, ATTENTION, kv, hidden, gqa),
        VEC(layer, v_bias, v, ".bias", ATTENTION, kv, gqa && bias),
        MAT(layer, q_a, q_a, ATTENTION, c->q_lora, hidden, low_q),
        VEC(layer, q_a_bias, q_a, ".bias", ATTENTION, c->q_lora, low_q && bias),
        VEC(layer, q_a_norm, q_a_norm, ".weight", ATTENTION, c->q_lora, low_q),
        MAT(layer, q_b, q_b, ATTENTION, q, c->q_lora, low_q),
        MAT(layer, kv_a, kv_a, ATTENTION, latent, hidden, mla),
        VEC(layer, kv_a_bias, kv_a, ".bias", ATTENTION, latent, mla && bias),
        VEC(layer, kv_a_norm, kv_a_norm, ".weight", ATTENTION, c->kv_lora, mla),
        MAT(layer, kv_b, kv_b, ATTENTION, c->n_heads * (c->qk_nope + c->v_dim), c->kv_lora, mla),
        MAT(layer, o, o, ATTENTION, hidden, c->n_heads * c->v_dim, true),
        VEC(layer, o_bias, o, ".bias", ATTENTION, hidden, c->o_bias),

        VEC(layer, ffn_norm, ffn_norm, ".weight", ROUTER, hidden, true),
        MAT(layer, router, router, ROUTER, c->n_experts, hidden, moe),
        VEC(layer, router_bias, router_bias, "", ROUTER, c->n_experts, moe && c->router_bias),
        MAT(layer, shared_gate, shared_gate, ROUTER, 1, hidden, moe && c->shared_gate),

        MAT(layer, dense.gate, dense_gate, SHARED, c->dense_inter, hidden, !moe),
        MAT(layer, dense.up, dense_up, SHARED, c->dense_inter, hidden, !moe),
        MAT(layer, dense.down, dense_down, SHARED, hidden, c->dense_inter, !moe),
        MAT(layer, dense.gate, shared_gate_proj, SHARED, c->shared_inter, hidden, shared),
        MAT(layer, dense.up, shared_up, SHARED, c->shared_inter, hidden, shared),
        MAT(layer, dense.down, shared_down, SHARED, hidden, c->shared_inter, shared),

        MAT(expert, gate, expert_gate, EXPERT, c->moe_inter, hidden, moe),
        MAT(expert, up, expert_up, EXPERT, c->moe_inter, hidden, moe),
        MAT(expert, down, expert_down, EXPERT, hidden, c->moe_inter, moe),
    };
    _Static_assert(sizeof all / sizeof *all <= PARAMS_MAX, "PARAMS_MAX");
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].when && all[i].p.module & modules) out[n++] = all[i].p;
    return n;
}

size_t params_bytes(const void *base, const struct param *list, int n) {
    size_t sum = 0;
    for (int i = 0; i < n; i++) sum += list[i].cols ? mat_bytes(params_mat(base, &list[i])) : (size_t)list[i].rows * sizeof(float);
    return sum;
}
