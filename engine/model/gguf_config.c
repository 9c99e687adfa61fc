#include "engine/model/gguf_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/gguf_tokens.h"
#include "engine/model/gguf_build.h"
#include "engine/model/gguf_layers.h"

/* Keys that correspond to config.json keys. name NULL: read elsewhere in this file, or irrelevant. */
static const struct gguf_key common[] = {
    {"attention.causal", "is_causal"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.layer_norm_epsilon", NULL}, /* of layer norms; families with those have it in a list of their own */
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {"block_count", NULL},
    {"context_length", "max_position_embeddings"},
    {"embedding_length", "hidden_size"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_gating_func", "expert_gating_func"}, /* config_parse.c knows it */
    {"expert_group_count", "n_group"},            /* converters write 1 for every family whose config says so */
    {"expert_group_used_count", "topk_group"},
    {"expert_used_count", "num_experts_per_tok"},
    {"expert_weights_scale", "routed_scaling_factor"},
    {"feed_forward_length", "intermediate_size"},
    {"nextn_predict_layers", "num_nextn_predict_layers"},
    {"rope.dimension_count", NULL},
    {"rope.freq_base", "rope_theta"},
    {"rope.scale_linear", NULL},
    {"rope.scaling.attn_factor", NULL},
    {"rope.scaling.factor", NULL},
    {"rope.scaling.finetuned", NULL},
    {"rope.scaling.original_context_length", NULL},
    {"rope.scaling.type", NULL},
    {"rope.scaling.yarn_attn_factor", NULL},
    {"rope.scaling.yarn_beta_fast", NULL},
    {"rope.scaling.yarn_beta_slow", NULL},
    {"rope.scaling.yarn_ext_factor", NULL},
    {"rope.scaling.yarn_log_multiplier", NULL},
    {"vocab_size", NULL}, /* redundant: the number of embedding rows */
    {NULL, NULL},
};

static const struct gguf_arch *const tables[] = {gguf_archs,  gguf_layered, gguf_windowed, gguf_normed,
                                                 gguf_blocks, gguf_streams, gguf_kda,      gguf_minimax};

static const struct gguf_arch *find_arch(const struct json *meta) {
    const struct json *arch = json_get(meta, "general.architecture");
    for (size_t k = 0; k < sizeof tables / sizeof *tables; k++)
        for (const struct gguf_arch *a = tables[k]; a->name; a++)
            if (json_is(arch, a->name)) return a;
    return NULL;
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), k = strlen(end);
    return n >= k && !strcmp(name + n - k, end);
}
void gguf_note(struct gguf_facts *f, const char *name, int64_t rows) {
    const struct {
        const char *end;
        bool *flag;
    } flags[] = {
        {".exp_probs_b.bias", &f->router_bias},
        {".exp_probs_b", &f->bare_router_bias},
        {".attn_k_b.weight", &f->split_kv_b},
        {".attn_q.bias", &f->qkv_bias},
        {".attn_qkv.bias", &f->qkv_bias},
        {".attn_q_norm.weight", &f->qk_norm},
        {".attn_norm_2.weight", &f->second_norm},
        {".ffn_norm.weight", &f->ffn_norm},
        {".ssm_norm.weight", &f->mixer_norm},
        {".ffn_gate_up_exps.weight", &f->gate_up},
        {".attn_qkv.weight", &f->qkv},
        {".ssm_in.weight", &f->delta_in},
        {".ssm_conv1d.bias", &f->conv_bias},
        {".ffn_gate.weight", &f->dense_gate},
        {".layer_output_norm.weight", &f->layer_out_norm},
        {".ffn_routed_norm.weight", &f->routed_norm},
        {".ffn_gate_shexp.weight", &f->shared_gate},
    };
    static const struct {
        const char *rest;
        uint8_t part;
    } parts[] = {
        {"ffn_gate_inp.weight", GGUF_HAS_ROUTER}, {"ffn_up.weight", GGUF_HAS_FFN},
        {"attn_q.weight", GGUF_HAS_QUERIES},      {"attn_qkv.weight", GGUF_HAS_QUERIES | GGUF_HAS_VALUES},
        {"attn_v.weight", GGUF_HAS_VALUES},       {"attn_sinks.weight", GGUF_HAS_SINKS},
        {"attn_gate.weight", GGUF_HAS_GATE},      {"indexer.q_proj.weight", GGUF_HAS_INDEXER},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) *flags[i].flag |= ends_with(name, flags[i].end);
    f->router_bias |= f->bare_router_bias;
    if (!strcmp(name, "per_layer_token_embd.weight")) f->table_rows = rows;
    int layer, at = 0;
    if (sscanf(name, "blk.%d.%n", &layer, &at) != 1 || !at || layer < 0) return;
    if (layer > f->last_layer) f->last_layer = layer;
    if (layer >= CONFIG_MAX_LAYERS) return;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strcmp(name + at, parts[i].rest)) f->layer[layer] |= parts[i].part;
    if (!strcmp(name + at, "attn_gate.weight")) f->gate_rows[layer] = rows;
}

int gguf_names(struct config *c, struct arena *a, const struct json *meta, const struct gguf_facts *f,
               struct error *e) {
    struct tensor_names *names = arena_alloc(a, sizeof *names);
    struct layout *layout = arena_alloc(a, sizeof *layout);
    if (!names || !layout) return error_set(e, ERR_MEMORY, "no memory for the names of tensors");
    *names = *find_arch(meta)->names;
    *layout = (struct layout){.experts = true,
                              .value_experts = true,
                              .has_suffix = true,
                              .qkv = f->qkv && !c->delta.taps && !config_has_mixer(c, MIXER_LIGHTNING),
                              .gate_up = f->gate_up ? GATE_UP_STACKED : GATE_UP_SEPARATE};
    if (layout->qkv) names->q = names->k = names->v = GGUF_LAYER "attn_qkv";
    c->qkv_pieces = 0; /* converters order the rows */
    if (c->parallel_block && !f->ffn_norm) names->ffn_norm = GGUF_LAYER "attn_norm";
    if (c->parallel_block && f->second_norm)
        names->attn_norm = GGUF_LAYER "attn_norm_2"; /* Falcon 40B; attn_norm is the FFN's */
    if (f->bare_router_bias) names->router_bias = GGUF_LAYER "exp_probs_b";
    if (f->layer_out_norm && names->ffn_out_norm) names->ffn_out_norm = GGUF_LAYER "layer_output_norm";
    if (f->gate_up) names->expert_gate = names->expert_up = GGUF_LAYER "ffn_gate_up_exps";
    /* Shared experts have separate gate and up tensors, except in Granite SWA. */
    const bool joined_shared = c->n_experts && c->shared_inter > 0 && !f->shared_gate && f->gate_up;
    layout->dense_gate_up =
        (c->n_experts && !joined_shared) || f->dense_gate ? GATE_UP_SEPARATE : c->arch->layout.dense_gate_up;
    if (joined_shared && layout->dense_gate_up) names->shared_gate_proj = names->shared_up;
    if (layout->dense_gate_up) names->dense_gate = names->dense_up;
    if (c->norm == NORM_RMS_PLUS_ONE) c->norm = NORM_RMS; /* the files' weights include the 1 */
    c->centered_norms = c->centered_head_norm = false;
    if (c->delta.taps) { /* q, k, v and z are split unless the file is old */
        /* Qwen3.5 */
        c->delta.fused = f->delta_in, c->delta.fused_ba = !names->delta_b, c->delta.is_tiled = names->delta_b != NULL;
    }
    c->delta.rates_converted = true;
    layout->skipped = names->index_k && !c->index_heads ? "indexer." : NULL;
    c->names = names;
    c->layout = layout;
    return 0;
}

static double number_in(const struct json *meta, const char *key, double least, double most) {
    const double v = json_num(json_get(meta, key), NAN);
    return v >= least && v <= most ? v : NAN;
}
struct gguf_sampling gguf_read_sampling(const struct json *meta) {
    struct gguf_sampling s = {.temperature = number_in(meta, "general.sampling.temp", 0, 100),
                              .top_p = number_in(meta, "general.sampling.top_p", 1e-6, 1),
                              .min_p = number_in(meta, "general.sampling.min_p", 0, 1),
                              .repeat_penalty = number_in(meta, "general.sampling.penalty_repeat", 1e-3, 100),
                              .top_k = json_int(json_get(meta, "general.sampling.top_k"), 0)};
    s.is_given = !isnan(s.temperature) || !isnan(s.top_p) || !isnan(s.min_p) || !isnan(s.repeat_penalty) || s.top_k > 0;
    return s;
}

void gguf_list(struct buf *out) {
    for (size_t k = 0; k < sizeof tables / sizeof *tables; k++)
        for (const struct gguf_arch *a = tables[k]; a->name; a++)
            buf_fmt(out, "%s%s", k || a != tables[k] ? ", " : "", a->name);
}

static void put_tokens(struct config_builder *t) {
    const struct json *bos = json_get(t->meta, "tokenizer.ggml.bos_token_id");
    int64_t ends[CONFIG_MAX_EOS];
    const uint32_t n = gguf_token_ends(t->meta, ends, CONFIG_MAX_EOS);
    struct json *ids = n ? gguf_build_list(t, "eos_token_id", n) : NULL;
    for (uint32_t i = 0; ids && i < n; i++) ids[i] = (struct json){.type = JSON_INT, .integer = ends[i]};
    if (bos && json_int(bos, -1) != GGUF_TOKEN_NONE) gguf_build_json(t, "bos_token_id", *bos);
}

/* Renames members whose names differ in this family's config.json. */
static void apply_key_aliases(struct config_builder *t) {
    const struct arch *arch = arch_find(&t->items[1], NULL); /* model_type is the first entry */
    for (int k = 0; arch && arch->key_aliases && arch->key_aliases[k][0]; k++)
        for (uint32_t i = 0; i < t->n; i++)
            if (json_is(&t->items[2 * i], arch->key_aliases[k][0]))
                t->items[2 * i] = (struct json){.type = JSON_STRING,
                                                .n = (uint32_t)strlen(arch->key_aliases[k][1]),
                                                .string = arch->key_aliases[k][1]};
}

/* Puts all members in the object that holds the text model's in a multimodal family's config. */
static void nest_text_model(struct config_builder *t) {
    const struct arch *arch = arch_find(&t->items[1], NULL);
    struct config_builder out;
    if (!arch || !arch->text_config_key || !gguf_build_open(t, &out)) return;
    gguf_build_json(&out, "model_type", t->items[1]);
    if (arch->text_type) gguf_build_text(t, "model_type", arch->text_type);
    gguf_build_close(&out, t, arch->text_config_key);
    *t = out;
}

/* Whether a key, without the architecture, is of a tower for images or sound in the same file. */
static bool is_of_tower(const char *key, size_t n) {
    static const char *const prefixes[] = {"vision.", "audio.", "mm."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (n > strlen(prefixes[i]) && !memcmp(key, prefixes[i], strlen(prefixes[i]))) return true;
    return false;
}

/* Keys whose absence from a file means these values, whatever the family's config.json means by it (converters leave
 * out what has no effect). */
static void put_absent(struct config_builder *t, const struct gguf_key *keys) {
    static const struct {
        const char *key;
        int value;
    } absent[] = {{"expert_shared_count", 0}, {"expert_weights_scale", 1}};
    if (json_int(gguf_build_meta(t, "expert_count"), 0) <= 0) return;
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        for (const struct gguf_key *k = keys; k->key; k++)
            if (k->name && !strcmp(k->key, absent[i].key) && !gguf_build_meta(t, k->key))
                gguf_build_int(t, k->name, absent[i].value);
}

/* Files that are no models say so. */
static int check_kind(const struct json *meta, const char *what, struct error *e) {
    static const struct {
        const char *name, *text;
    } kinds[] = {
        {"adapter",
         "a LoRA adapter, which changes a model; hearth does not apply any. Merge it into the model's weights"},
        {"mmproj", "the vision tower of a model; give the model's own file with -m and this one with --mmproj"},
        {"imatrix", "statistics for quantizing a model, not a model"},
        {"dataset", "data for training, not a model"}};
    const struct json *kind = json_get(meta, "general.type");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (json_is(kind, kinds[i].name)) return error_set(e, ERR_MODEL, "%s: %s", what, kinds[i].text);
    return 0;
}

/* By how much YaRN turns low frequencies slower: wholly, if it is 1 or below 0, llama.cpp's default. */
static void check_extrapolation(struct config_builder *t) {
    const struct json *v = gguf_build_meta(t, "rope.scaling.yarn_ext_factor"),
                      *type = gguf_build_meta(t, "rope.scaling.type");
    if (type && !json_is(type, "yarn")) return;
    if (v && json_num(v, 0) != 1 && !(json_num(v, 0) < 0))
        gguf_build_fail(t, "metadata '%s.rope.scaling.yarn_ext_factor' is %g; hearth supports 1", t->arch,
                        json_num(v, 0));
}

int gguf_config(struct arena *a, const struct json *meta, const struct gguf_facts *f, const char *what,
                struct json *config, struct error *e) {
    const struct json *arch = json_get(meta, "general.architecture");
    const struct gguf_arch *k = find_arch(meta);
    TRY(check_kind(meta, what, e));
    if (!k) {
        static const char list[] = "hearth lists the architectures that it opens (hearth --version -v)";
        if (!arch || arch->type != JSON_STRING)
            return error_set(e, ERR_MODEL, "%s: metadata 'general.architecture' is missing; %s", what, list);
        return error_set(e, ERR_MODEL, "%s: the architecture '%.*s' is unknown to hearth (llama.cpp may run it); %s",
                         what, (int)(arch->n < 60 ? arch->n : 60), arch->string, list);
    }
    enum { MAX_MEMBERS = 128 };
    struct config_builder t = {
        .arena = a, .meta = meta, .facts = f, .what = what, .arch = k->name, .capacity = MAX_MEMBERS, .e = e};
    if (!(t.items = arena_alloc(a, 2 * MAX_MEMBERS * sizeof *t.items)))
        return error_set(e, ERR_MEMORY, "%s: no memory for its metadata", what);
    if (!gguf_layers_count(&t)) return t.rc; /* first: many of the following functions visit each layer */
    const int64_t count = json_int(gguf_build_meta(&t, "block_count"), 0);
    if (f->last_layer >= count)
        return gguf_build_fail(&t,
                               "tensors of layer %d, and metadata '%s.block_count' is %lld, which counts all layers: "
                               "the file is damaged or was cut wrongly",
                               f->last_layer, t.arch, (long long)count);
    gguf_build_text(&t, "model_type", k->family ? k->family(&t) : k->model_type);
    gguf_build_int(&t, "vocab_size", f->vocab);
    gguf_build_int(&t, "num_hidden_layers", gguf_build_layers(&t));
    gguf_build_bool(&t, "tie_word_embeddings", f->tied);
    put_tokens(&t);
    check_extrapolation(&t);
    k->derive(&t);
    size_t prefix = strlen(t.arch);
    for (uint32_t i = 0; i < meta->n && !t.rc; i++) {
        const struct json *key = &meta->items[2 * i], *v = key + 1;
        if (key->n <= prefix + 1 || memcmp(key->string, t.arch, prefix) || key->string[prefix] != '.') continue;
        if (is_of_tower(key->string + prefix + 1, key->n - prefix - 1)) continue;
        const struct gguf_key *r = NULL, *lists[] = {k->keys, common};
        for (int l = 0; l < 2 && !r; l++)
            for (const struct gguf_key *at = lists[l]; at->key && !r; at++)
                if (key->n - prefix - 1 == strlen(at->key) &&
                    !memcmp(key->string + prefix + 1, at->key, strlen(at->key)))
                    r = at;
        if (!r) gguf_build_member(&t, key->string, key->n, *v);
        else if (r->name) gguf_build_json(&t, r->name, gguf_build_uniform(&t, r->key, v));
    }
    put_absent(&t, k->keys);
    apply_key_aliases(&t);
    nest_text_model(&t);
    *config = (struct json){.type = JSON_OBJECT, .n = t.n, .items = t.items};
    return t.rc;
}
