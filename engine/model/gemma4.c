/* Gemma 4 (26B-A4B, 31B, E2B, E4B, and 12B, which has no encoders): 5 layers with a window to a global one, whose heads
 * have another size and whose values are the keys' projections; a dense FFN beside the experts, with norms of its own;
 * a factor of the stream after every layer; a cap on the logits. E2B and E4B: each layer adds a part that a table gives
 * for the token, and the last layers take keys and values of earlier ones. The global layers rotate only the first
 * frequencies of the whole head ("proportional"). Reference: transformers, models/gemma4 (language model only).
 */
#include <math.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"
#include "engine/model/overrides.h"

/* Global layers have heads of their own: by global_head_dim and num_global_key_value_heads, or by overrides of these
 * layers, as transformers saves them. */
struct global_heads {
    int dim, kv_heads;
};
static struct global_heads read_global_heads(struct config_reader *r, struct config *c, int dim, bool values_are_keys) {
    static const char *const own[] = {"head_dim", "num_key_value_heads", NULL};
    const int kv_heads = c->n_kv_heads, published_kv = config_int(r, "num_global_key_value_heads", kv_heads, 1, 1024);
    struct global_heads g = {.dim = config_int(r, "global_head_dim", 512, 2, 1024),
                             .kv_heads = values_are_keys ? published_kv : kv_heads};
    if (!config_has(r, "per_layer_config")) return g;
    const struct global_heads published = g;
    overrides_check(r, c, own);
    for (int i = c->n_layers - 1; i >= 0; i--) {
        const struct global_heads l = {.dim = overrides_int(r, "head_dim", i, dim, 2, 1024),
                                       .kv_heads = overrides_int(r, "num_key_value_heads", i, kv_heads, 1, 1024)};
        if (i == c->n_layers - 1) g = l; /* always a global one */
        const bool global = !c->layer[i].window;
        if (l.dim != (global ? g.dim : dim) || l.kv_heads != (global ? g.kv_heads : kv_heads))
            config_fail(r,
                        "'per_layer_config' of layer %d differs from that of others of its kind: hearth supports two "
                        "kinds of layers",
                        i);
    }
    if ((config_has(r, "global_head_dim") && published.dim != g.dim) ||
        (config_has(r, "num_global_key_value_heads") && published.kv_heads != g.kv_heads))
        config_fail(r, "'per_layer_config' differs from 'global_head_dim' or 'num_global_key_value_heads'");
    return g;
}

/* Without a list the first five of each six layers have a window. The last layer has none, whatever the list says. */
static void read_layers(struct config_reader *r, struct config *c, int default_window) {
    const int window = config_int(r, "sliding_window", default_window, 1, 1 << 24),
              dim = config_int(r, "head_dim", 256, 2, 1024), heads = c->n_heads, kv_heads = c->n_kv_heads;
    const bool values_are_keys = config_bool(r, "attention_k_eq_v", false), listed = config_has(r, "layer_types");
    if (listed) config_read_windows(r, c, window, 0);
    for (int i = 0; i < c->n_layers; i++)
        if (!listed) c->layer[i].window = (i + 1) % 6 ? window : 0;
    c->layer[c->n_layers - 1].window = 0;
    const struct global_heads g = read_global_heads(r, c, dim, values_are_keys);
    const int global_dim = g.dim;
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        const bool global = !c->layer[i].window;
        config_set_heads(r, c, i, heads, global ? g.kv_heads : kv_heads);
        c->layer[i].head_dim = global ? global_dim : dim;
        c->layer[i].v_is_k = global && values_are_keys;
        c->layer[i].rope = global ? LAYER_ROPE_FIRST : LAYER_ROPE_SECOND;
    }
    c->head_dim = c->v_dim = global_dim > dim ? global_dim : dim;
    struct config_reader in;
    config_open(r, "rope_parameters", &in);
    config_read_rope_object(&in, c, "sliding_attention", dim, 10000);
    c->second_rope = c->rope;
    const bool given = config_has(&in, "full_attention");
    config_read_rope_object(&in, c, "full_attention", global_dim, 1000000);
    config_close(r, "rope_parameters", &in);
    if (!given) c->rope.kind = ROPE_PROPORTIONAL, c->rope.factor = 1, c->rope.turning_pairs = global_dim / 8;
}

/* The last layers take the keys and values of the last layer of their kind before them. */
static void read_shared_keys(struct config_reader *r, struct config *c) {
    const int shared = config_int(r, "num_kv_shared_layers", 0, 0, c->n_layers - 1), first = c->n_layers - shared;
    const bool wide = config_bool(r, "use_double_wide_mlp", false);
    int source[2] = {-1, -1}; /* global, with a window */
    for (int i = 0; i < first; i++) source[c->layer[i].window > 0] = i;
    for (int i = first; i < c->n_layers && !r->rc; i++) {
        const int from = source[c->layer[i].window > 0];
        if (from < 0) {
            config_fail(r, "'num_kv_shared_layers' is %d: no layer of the kind of layer %d has keys of its own", shared,
                        i);
            return;
        }
        struct layer_config *y = &c->layer[from];
        if (y->passes_kv == KV_OWN)
            y->passes_kv = KV_PASSED, y->carried_at = c->carried,
            c->carried += 2 * config_kv_heads(c, from) * config_head_dim(c, from);
        c->layer[i].passes_kv = KV_TAKEN, c->layer[i].carried_at = y->carried_at, c->layer[i].kv_source = from;
        if (wide) c->layer[i].dense_inter = 2 * c->dense_inter;
    }
}

static void read_experts(struct config_reader *r, struct config *c) {
    c->parallel_dense = true;
    c->n_experts = config_int(r, "num_experts", 0, 1, 4096);
    c->topk = config_int(r, "top_k_experts", 0, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 0, 1, 1 << 20);
    c->score = SCORE_SOFTMAX;
    c->norm_topk = true;
    c->routed_scale = 1;
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = true;
}

/* Reads what the generations with and without encoders share. window, per_layer: defaults of the window and of the
 * width of per-layer embeddings. */
static void parse_common(struct config_reader *r, struct config *c, int window, int per_layer) {
    static const char *const directions[] = {"vision", NULL};
    config_read_dense(r, c);
    read_layers(r, c, window);
    c->attn_scale = 1;
    c->qk_norm = QK_NORM_HEAD;
    c->v_norm = true;
    c->embed_scale = sqrtf((float)c->hidden);
    c->logit_cap = (float)config_num(r, "final_logit_softcapping", 0, 0, 1e6);
    c->output_norm = OUTPUT_NORM_BLOCKS;
    c->stream_scale = true;
    config_keep_stream(c);
    if (config_bool(r, "enable_moe_block", false)) read_experts(r, c);
    /* a dense model may have them and uses none */
    config_ignore(r, "num_experts"), config_ignore(r, "top_k_experts"), config_ignore(r, "moe_intermediate_size");
    c->sees_whole_images =
        config_has(r, "use_bidirectional_attention") && !config_is_null(r, "use_bidirectional_attention");
    config_choice(r, "use_bidirectional_attention", directions, 0); /* images only */
    if (config_bool(r, "attention_bias", false))
        config_fail(r, "'attention_bias' is true: hearth reads no such tensors of Gemma 4");
    c->token_dim = config_int(r, "hidden_size_per_layer_input", per_layer, 0, 65536);
    c->carried = c->token_dim ? c->hidden : 0;
    if (config_int(r, "vocab_size_per_layer_input", c->vocab, 1, 1 << 22) != c->vocab && c->token_dim)
        config_fail(r, "'vocab_size_per_layer_input' is not 'vocab_size': hearth needs a row of each token");
    read_shared_keys(r, c);
}
static void parse_text(struct config_reader *r, struct config *c) { parse_common(r, c, 512, 256); }
static void skip_media(struct config_reader *r, struct config *c) {
    static const char *const media[] = {
        "audio_config", "audio_token_id",  "boa_token_id", "boi_token_id",
        "eoa_token_id", "eoa_token_index", "eoi_token_id", "vision_soft_tokens_per_image"};
    config_skip_vision(r, c);
    for (size_t i = 0; i < sizeof media / sizeof *media; i++) config_ignore(r, media[i]);
}
static void parse(struct config_reader *r, struct config *c) {
    skip_media(r, c);
    parse_text(r, c);
}
static void parse_unified(struct config_reader *r, struct config *c) {
    skip_media(r, c);
    parse_common(r, c, 1024, 0);
}

static const char *const with_media[] = {"gemma4", NULL}, *const text[] = {"gemma4_text", NULL},
                         *const unified[] = {"gemma4_unified", NULL},
                         *const unified_text[] = {"gemma4_unified_text", NULL};
/* Tensors of layers that take keys and values of other layers; some checkpoints have them. */
static const char *const unused[] = {
    "self_attn.k_proj.", "self_attn.v_proj.", "self_attn.k_norm.", "attn_k.", "attn_v.", "attn_k_norm.", NULL};
static const char *const keys[][2] = {{"hidden_act", "hidden_activation"}, {NULL, NULL}};
/* m: prefix of the language model's tensor names */
#define NAMES(m) \
    NAMES_ATTENTION(m), NAMES_NORMS_AROUND(m), NAMES_QK_NORM(m), NAMES_DENSE(m), \
        .stream_scale = m "layers.%d.layer_scalar", .dense_out_norm = m "layers.%d.post_feedforward_layernorm_1", \
        .experts_out_norm = m "layers.%d.post_feedforward_layernorm_2", \
        .experts_norm = m "layers.%d.pre_feedforward_layernorm_2", .token_table = m "embed_tokens_per_layer", \
        .token_from_embed = m "per_layer_model_projection", .token_from_embed_norm = m "per_layer_projection_norm", \
        .token_gate = m "layers.%d.per_layer_input_gate", .token_out = m "layers.%d.per_layer_projection", \
        .token_out_norm = m "layers.%d.post_per_layer_input_norm", .router_norm = m "layers.%d.router.scale", \
        .router = m "layers.%d.router.proj", .expert_scale = m "layers.%d.router.per_expert_scale"
#define STACKED(m) \
    .expert_gate = m "layers.%d.experts.gate_up_proj", .expert_up = m "layers.%d.experts.gate_up_proj", \
    .expert_down = m "layers.%d.experts.down_proj"
#define APART(m) \
    .expert_gate = m "layers.%d.experts.%d.gate_proj", .expert_up = m "layers.%d.experts.%d.up_proj", \
    .expert_down = m "layers.%d.experts.%d.down_proj"
#define ARCH(types, member, parser, m, experts, ...) \
    { \
        .model_types = types, .title = "Gemma 4", .text_config_key = member, .parse = parser, \
        .names = {NAMES(m), experts(m)}, .key_aliases = keys, .skipped_tensors = unused, \
        .defaults = {.vocab = 262144, \
                     .hidden = 2304, \
                     .layers = 30, \
                     .context = 131072, \
                     .inter = 9216, \
                     .heads = 8, \
                     .kv_heads = 4, \
                     .head_dim = 256, \
                     .tied = true, \
                     .is_gelu = true}, \
        __VA_ARGS__ \
    }
#define STACKED_OR_APART(name, ...) \
    static const struct arch name##_apart = ARCH(__VA_ARGS__, APART, .layout = {0}); \
    const struct arch name = ARCH(__VA_ARGS__, STACKED, .layout = {.experts = true, .gate_up = GATE_UP_STACKED}, \
                                  .unstacked = &name##_apart)
STACKED_OR_APART(arch_gemma4, with_media, "text_config", parse, "model.language_model.");
const struct arch arch_gemma4_unified =
    ARCH(unified, "text_config", parse_unified, "model.language_model.", STACKED, .layout = {0});
const struct arch arch_gemma4_unified_text = ARCH(unified_text, NULL, parse_unified, "model.", STACKED, .layout = {0});
STACKED_OR_APART(arch_gemma4_text, text, NULL, parse_text, "model.");
