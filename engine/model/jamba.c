/* Jamba: Mamba-1 in most layers, GQA without rotation in the others, experts in some, an FFN in the rest. Reference:
 * transformers, models/jamba. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/rope.h"

/* Reads a period and an offset: layer i is one of them if i % period is the offset. */
struct cycle {
    int period, offset;
};
static struct cycle read_cycle(struct config_reader *r, const char *period, int each, const char *offset, int first) {
    const struct cycle k = {config_int(r, period, each, 1, CONFIG_MAX_LAYERS),
                            config_int(r, offset, first, 0, CONFIG_MAX_LAYERS)};
    if (k.offset >= k.period)
        config_fail(r, "'%s' is %d, '%s' %d: the offset must be smaller", offset, k.offset, period, k.period);
    return k;
}

/* Reads the kinds of layers, Mamba or attention, and whether each has experts: as lists, or as periods and offsets. */
static void read_layers(struct config_reader *r, struct config *c) {
    const struct cycle attention = read_cycle(r, "attn_layer_period", 8, "attn_layer_offset", 4),
                       experts = read_cycle(r, "expert_layer_period", 2, "expert_layer_offset", 1);
    const int n = config_int(r, "num_experts", 16, 1, 4096), topk = config_int(r, "num_experts_per_tok", 2, 1, 64);
    const struct json *counts = config_layer_list(r, c, "layers_num_experts", false);
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        const int own = counts                                 ? (int)json_int(json_at(counts, (uint32_t)i), 0)
                        : i % experts.period == experts.offset ? n
                                                               : 1;
        if (own != 1 && own != n)
            config_fail(r, "'layers_num_experts' of layer %d is %d; hearth takes 1, a dense FFN, or 'num_experts', %d",
                        i, own, n);
        c->layer[i].mixer = i % attention.period == attention.offset ? MIXER_ATTENTION : MIXER_MAMBA1;
        c->layer[i].moe = own > 1;
        if (c->layer[i].moe) c->n_experts = n, c->topk = topk;
    }
    if (config_has(r, "layers_block_type"))
        config_read_mixers(r, c, "layers_block_type", MIXER_MAMBA1, "mamba", "attention");
}

static void read_mamba(struct config_reader *r, struct config *c) {
    struct mamba_config *m = &c->mamba;
    const struct json *rank = config_get(r, "mamba_dt_rank");
    m->heads = m->groups = 1;
    m->head_dim = config_int(r, "mamba_expand", 2, 1, 64) * c->hidden;
    m->state = config_int(r, "mamba_d_state", 16, 1, 1024);
    m->taps = config_int(r, "mamba_d_conv", 4, 2, 64);
    m->rank = !rank || json_is(rank, "auto") ? (c->hidden + 15) / 16 : config_int(r, "mamba_dt_rank", 0, 1, 65536);
    m->conv_bias = config_bool(r, "mamba_conv_bias", true);
    m->projects_bias = config_bool(r, "mamba_proj_bias", false);
    if (!config_bool(r, "mamba_inner_layernorms", true))
        config_fail(r, "'mamba_inner_layernorms' is false; hearth supports Jamba's Mamba with norms of dt, B and C");
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const unused[] = {"use_mamba_kernels",
                                         "use_mambapy",
                                         "use_associative_scan",
                                         "num_logits_to_keep",
                                         "calc_logits_for_entire_prompt",
                                         "n_ctx",
                                         NULL};
    for (int i = 0; unused[i]; i++) config_ignore(r, unused[i]);
    config_read_gqa(r, c);
    rope_set_none(c);
    read_mamba(r, c);
    if (config_has(r, "sliding_window"))
        config_fail(r, "'sliding_window' is set; hearth supports Jamba's attention over all keys");
    read_layers(r, c);
    c->moe_inter = c->dense_inter = config_int(r, "intermediate_size", 14336, 1, 1 << 20);
    c->score = SCORE_SOFTMAX; /* over all experts, not renormalized */
    c->routed_scale = 1;
}

#define L "model.layers.%d."
static const char *const types[] = {"jamba", NULL};
const struct arch arch_jamba = {
    .model_types = types,
    .title = "Jamba",
    .defaults = {.vocab = 65536, .hidden = 4096, .layers = 32, .context = 262144, .heads = 32, .kv_heads = 8},
    .parse = parse,
    .names = {.embed = "model.embed_tokens",
              .norm = "model.final_layernorm",
              .head = "lm_head",
              .q = L "self_attn.q_proj",
              .k = L "self_attn.k_proj",
              .v = L "self_attn.v_proj",
              .o = L "self_attn.o_proj",
              .attn_norm = L "input_layernorm",
              .ffn_norm = L "pre_ff_layernorm",
              .mix_in = L "mamba.in_proj",
              .mix_conv = L "mamba.conv1d",
              .mix_select = L "mamba.x_proj",
              .mix_step = L "mamba.dt_proj",
              .mix_dt = L "mamba.dt_proj.bias",
              .mix_rate = L "mamba.A_log",
              .mix_skip = L "mamba.D",
              .mix_dt_norm = L "mamba.dt_layernorm",
              .mix_b_norm = L "mamba.b_layernorm",
              .mix_c_norm = L "mamba.c_layernorm",
              .mix_out = L "mamba.out_proj",
              .router = L "feed_forward.router",
              .expert_gate = L "feed_forward.experts.%d.gate_proj",
              .expert_up = L "feed_forward.experts.%d.up_proj",
              .expert_down = L "feed_forward.experts.%d.down_proj",
              .dense_gate = L "feed_forward.gate_proj",
              .dense_up = L "feed_forward.up_proj",
              .dense_down = L "feed_forward.down_proj"},
};
