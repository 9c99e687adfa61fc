/* Inkling 2 (text): as Inkling, with attention residuals instead of one stream, heads that are shortened instead of
 * normed, gates and projected sinks of the attention output, and in layers without a window inputs of their own for
 * keys and values, whose convolutions have taps per row. Reference: transformers, models/inkling2 (language model
 * only). */
#include <math.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/inkling.h"

/* A key's other name, if the config has that one. */
static const char *either(struct config_reader *r, const char *key, const char *other) {
    return config_has(r, other) && !config_has(r, key) ? other : key;
}

static void read_experts(struct config_reader *r, struct config *c, int layers) {
    static const char *const scores[] = {"sigmoid", "sqrtsoftplus", NULL};
    const bool loop = c->arch->names.message_query;
    c->moe_inter =
        config_int(r, either(r, "moe_intermediate_size", "intermediate_size"), loop ? 1152 : 2304, 1, 1 << 20);
    c->n_experts = config_int(r, either(r, "n_routed_experts", "num_local_experts"), loop ? 128 : 384, 1, 4000);
    c->topk = config_int(r, "num_experts_per_tok", 8, 1, 64);
    c->score = config_choice(r, "scoring_func", scores, 0) ? SCORE_SQRT_SOFTPLUS : SCORE_SIGMOID;
    c->router_bias = c->norm_topk = true;
    c->routed_scale = (float)config_num(r, either(r, "route_scale", "routed_scaling_factor"), 8, 0, 1e4);
    c->glu = (struct glu){.gate_cap = (float)config_num(r, "mlp_gate_softcap", 4, 1e-3, 1e6),
                          .up_cap = (float)config_num(r, "mlp_up_softcap", 25, 1e-3, 1e6)};
    for (int i = 0; i < layers; i++) c->layer[i].moe = true;
}

static void read_attention(struct config_reader *r, struct config *c, int layers) {
    const bool loop = c->arch->names.message_query;
    const int heads = loop ? 24 : 48;
    inkling_read_layers(r, c, layers,
                        &(struct inkling_defaults){
                            .window = 1024, .heads = heads, .near_heads = heads, .near_kv = 8, .scales_by_root = true});
    for (int i = 0; i < layers; i++) c->layer[i].mixes_kv = !c->layer[i].window;
    c->rel_dim = config_int(r, "d_rel", 16, 1, 1024);
    c->short_taps = config_int(r, either(r, "conv_kernel_size", "sconv_kernel_size"), 4, 2, 64);
    c->scales_short = true;
    c->qk_norm = QK_NORM_CLIP;
    c->qk_limit = (float)config_num(r, "qk_l2_clip_threshold", 22.627416997969522, 1e-6, 1e6);
    c->rel_limit = (float)config_num(r, "rel_l2_clip_threshold", 8, 1e-6, 1e6);
    c->v_norm = c->projects_sinks = true;
    c->attn_gate = ATTN_GATE_ELEMENT, c->attn_gate_kind = GATE_SIGMOID;
    c->query_scale =
        (struct query_scale){.slope = (float)config_num(r, "log_scaling_alpha", 0.1, 0, 1e3),
                             .every = config_int(r, "log_scaling_n_floor", loop ? 8192 : 128000, 1, 1 << 24),
                             .shift = 1,
                             .kind = SCALE_SMOOTH};
}

/* inkling2_loop: some layers run several times. Each pass over them is a layer of struct config with caches of its
 * own. */
static void read_loop(struct config_reader *r, struct config *c, int layers) {
    struct residual_streams *s = &c->streams;
    struct config_reader in;
    config_open(r, "loop_config", &in); /* published names come before those of transformers */
    const int from = config_int(r, "loop_layer_index_start", 6, 1, CONFIG_MAX_LAYERS),
              to = config_int(r, "loop_layer_index_end", 18, 1, CONFIG_MAX_LAYERS),
              passes = config_int(r, "loop_num_passes", 3, 1, 64),
              rank = config_int(r, "loop_gate_rank", 64, 1, 1 << 14);
    s->loop_from = config_int(&in, "core_start", from, 1, CONFIG_MAX_LAYERS),
    s->loop_to = config_int(&in, "core_end", to, 1, CONFIG_MAX_LAYERS);
    s->loop_passes = config_int(&in, "num_passes", passes, 1, 64),
    s->message_rank = config_int(&in, "gate_rank", rank, 1, 1 << 14);
    config_close(r, "loop_config", &in);
    if (r->rc) return;
    if (s->loop_from >= s->loop_to || s->loop_to > layers) {
        config_fail(r, "the loop from layer %d to %d is not within %d layers", s->loop_from, s->loop_to, layers);
        return;
    }
    if (s->loop_from % s->block_layers || s->loop_to % s->block_layers) {
        config_fail(r, "the loop from layer %d to %d cuts blocks of %d layers", s->loop_from, s->loop_to,
                    s->block_layers);
        return;
    }
    const int each = s->loop_to - s->loop_from, more = (s->loop_passes - 1) * each, all = layers + more;
    if (all >= CONFIG_MAX_LAYERS) {
        config_fail(r, "%d layers and %d passes over %d of them; hearth takes up to %d layers", layers, s->loop_passes,
                    each, CONFIG_MAX_LAYERS - 1);
        return;
    }
    for (int i = all; i >= s->loop_to; i--) { /* and the bare layer */
        const bool after = i >= s->loop_to + more;
        const int stored = after ? i - more : s->loop_from + (i - s->loop_from) % each;
        c->layer[i] = c->layer[stored];
        c->layer[i].repeats = i - stored;
        if (!after) c->layer[i].pass = (i - s->loop_from) / each;
    }
    c->n_layers = all + 1;
    if (s->loop_passes > 1)
        s->n = s->loop_from / s->block_layers + 1 +
               (2 * each + layers - s->loop_to + s->block_layers - 1) / s->block_layers;
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const media[] = {"vision_config", "image_token_id", "sliding_window"};
    const int layers = inkling_append_bare(r, c);
    if (!layers) return;
    for (size_t i = 0; i < sizeof media / sizeof *media; i++) config_ignore(r, media[i]);
    read_attention(r, c, layers);
    read_experts(r, c, layers);
    c->embed_norm = true;
    c->logit_cap = (float)config_num(r, "final_logit_softcapping", 30, 1e-6, 1e6);
    c->streams.block_layers = config_int(r, "n_layers_per_attn_res_block", 6, 1, CONFIG_MAX_LAYERS);
    c->streams.n = (layers + c->streams.block_layers - 1) / c->streams.block_layers + 1;
    if (c->arch->names.message_query) read_loop(r, c, layers);
    if (!r->rc && c->streams.n > POOL_SOURCES_MOST)
        config_fail(r, "%d layers in blocks of %d: attention residuals of %d sources; hearth takes up to %d", layers,
                    c->streams.block_layers, c->streams.n, POOL_SOURCES_MOST);
    const int rows = config_int(r, "unpadded_vocab_size", 200058 < c->vocab ? 200058 : c->vocab, 1, c->vocab);
    if (rows < c->vocab) c->embed_rows = c->vocab, c->vocab = rows, c->head_is_padded = true;
}

#define M "model.llm."
#define L M "layers.%d."
static const char *const types[] = {"inkling2", NULL}, *const text[] = {"inkling2_text", NULL},
                         *const loop_types[] = {"inkling2_loop", NULL},
                         *const loop_text[] = {"inkling2_loop_text", NULL};
/* Of loops with one pass. */
static const char *const unused[] = {".controllers.", "middle_cycle_cross_pass_", NULL};
#define LOOP_NAMES \
    .message_query = M "middle_cycle_cross_pass_queries", .message_kv_query = M "middle_cycle_cross_pass_kv_queries", \
    .message_gate = {L "controllers.attn", L "controllers.k", L "controllers.v", L "controllers.mlp"},
#define ARCH(model_types_, title_, text_config_key_, hidden_, layers_, more_names) \
    { \
        .model_types = model_types_, .title = title_, .text_config_key = text_config_key_, .parse = parse, \
        .skipped_tensors = unused, \
        .defaults = {.vocab = 201024, .hidden = hidden_, .layers = layers_, .context = 1048576}, \
        .names = {more_names.embed = M "embed", \
                  .embed_norm = M "embed_norm", \
                  .norm = M "norm", \
                  .head = M "unembed", \
                  .attn_norm = L "attn_norm", \
                  .q_in_norm = L "q_input_norm", \
                  .k_in_norm = L "k_input_norm", \
                  .v_in_norm = L "v_input_norm", \
                  .ffn_norm = L "mlp_norm", \
                  .attn_pool = M "attn_res.attn_queries.%d", \
                  .ffn_pool = M "attn_res.mlp_queries.%d", \
                  .head_pool = M "attn_res.output_query", \
                  .q = L "attn.wq_du", \
                  .k = L "attn.wk_dv", \
                  .v = L "attn.wv_dv", \
                  .o = L "attn.wo_ud", \
                  .q_scale = L "attn.q_l2_clip.scale", \
                  .attn_gate = L "attn.gate_attn", \
                  .sink_proj = L "attn.attn_sink_proj", \
                  .rel = L "attn.wr_du", \
                  .rel_scale = L "attn.rel_l2_clip.scale", \
                  .rel_table = L "attn.rel_logits_proj.proj", \
                  .k_conv = L "attn.k_sconv", \
                  .v_conv = L "attn.v_sconv", \
                  .k_taps = L "attn.k_sconv.static_w", \
                  .v_taps = L "attn.v_sconv.static_w", \
                  .k_row_taps = L "attn.k_sconv.weight_proj", \
                  .v_row_taps = L "attn.v_sconv.weight_proj", \
                  .attn_conv = L "attn_sconv", \
                  .ffn_conv = L "mlp_sconv", \
                  .router = L "mlp.gate", \
                  .router_bias = L "mlp.gate.bias", \
                  .expert_gate = L "mlp.experts.w13_weight", \
                  .expert_up = L "mlp.experts.w13_weight", \
                  .expert_down = L "mlp.experts.w2_weight"}, \
        .layout = {.experts = true, .gate_up = GATE_UP_INTERLEAVED}, \
    }
const struct arch arch_inkling2 = ARCH(types, "Inkling 2", "text_config", 4608, 48, ),
                  arch_inkling2_text = ARCH(text, "Inkling 2", NULL, 4608, 48, );
const struct arch arch_inkling2_loop = ARCH(loop_types, "Inkling 2 Loop", "text_config", 2304, 24, LOOP_NAMES),
                  arch_inkling2_loop_text = ARCH(loop_text, "Inkling 2 Loop", NULL, 2304, 24, LOOP_NAMES);
