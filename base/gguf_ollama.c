#include "base/gguf_ollama.h"

#include <string.h>

#include "base/error.h"

struct rewriting {
    struct gguf *g;
    struct arena *arena;
    struct json *items; /* [2 * capacity] keys and values of the new metadata */
    uint32_t n, capacity;
    const char *arch; /* llama.cpp's */
    int rc;
};

/* --- Tables ----------------------------------------------------------------------------------- */

/* pre: the pre-tokenizer if the file names none but "default"; always: in any case. */
static const struct architecture {
    const char *name, *llama, *pre;
    bool always;
} architectures[] = {
    {"gptoss", "gpt-oss", "gpt-4o", true},     {"glm4moelite", "deepseek2", "glm4", true},
    {"olmo3", "olmo2", NULL, false},           {"lfm2", "lfm2", NULL, false},
    {"mistral3", "mistral3", "tekken", false}, {"gemma3", "gemma3", NULL, false},
    {"gemma4", "gemma4", NULL, false},         {"qwen35", "qwen35", NULL, false},
    {"qwen35moe", "qwen35moe", NULL, false},   {"qwen3next", "qwen3next", NULL, false},
    {"laguna", "laguna", NULL, false},         {"nemotron_h_moe", "nemotron_h_moe", NULL, false},
    {"llama", "llama", NULL, false},
};

/* Keys after the architecture's name, by the beginning of that name. to NULL: the key is dropped. */
static const struct {
    const char *arch, *from, *to;
} keys[] = {
    {"gemma3", "rope.global.freq_base", "rope.freq_base"},
    {"gemma3", "rope.local.freq_base", "rope.freq_base_swa"},
    {"gemma3", "rope.scaling.beta_fast", "rope.scaling.yarn_beta_fast"},
    {"gemma3", "rope.scaling.beta_slow", "rope.scaling.yarn_beta_slow"},
    {"mistral3", "rope.scaling.beta_fast", "rope.scaling.yarn_beta_fast"},
    {"mistral3", "rope.scaling.beta_slow", "rope.scaling.yarn_beta_slow"},
    {"mistral3", "rope.scaling.mscale_all_dim", "rope.scaling.yarn_log_multiplier"},
    {"mistral3", "rope.scaling_beta", "attention.temperature_scale"},
    {"mistral3", "spatial_merge_size", NULL},
    {"laguna", "rope.swa.dimension_count", "rope.dimension_count_swa"},
    {"laguna", "rope.swa.freq_base", "rope.freq_base_swa"},
    {"qwen35", "ssm.v_head_reordered", NULL},
    {"qwen35", "rope.mrope_interleaved", NULL},
    {"qwen35", "rope.mrope_section", NULL},
    {"qwen35", "mrope_sections", NULL},
};

/* Ends of tensors' names, likewise. */
static const struct {
    const char *arch, *from, *to;
} tensors[] = {
    {"gpt-oss", ".attn_out.weight", ".attn_output.weight"},
    {"gpt-oss", ".attn_out.bias", ".attn_output.bias"},
    {"gpt-oss", ".attn_sinks", ".attn_sinks.weight"},
    {"gpt-oss", ".ffn_norm.weight", ".post_attention_norm.weight"},
    {"gemma4", ".ffn_gate_inp.per_expert_scale", ".ffn_down_exps.scale"},
    {"qwen35", ".ssm_dt", ".ssm_dt.bias"},
    {"qwen3next", ".ssm_dt", ".ssm_dt.bias"},
    {"laguna", ".attn_g.weight", ".attn_gate.weight"},
    {"nemotron_h_moe", ".ffn_latent_in.weight", ".ffn_latent_down.weight"},
    {"nemotron_h_moe", ".ffn_latent_out.weight", ".ffn_latent_up.weight"},
};

/* --- Metadata --------------------------------------------------------------------------------- */

static bool is_arch(const struct rewriting *w, const char *arch) { return !strcmp(w->arch, arch); }

/* Whether a row of the tables is about this file: no architecture but qwen35moe begins like another. */
static bool is_about(const struct rewriting *w, const char *arch) { return !strncmp(w->arch, arch, strlen(arch)); }

/* Returns ARCH.NAME, or NULL without memory. */
static const char *key_of(struct rewriting *w, const char *name, size_t n) {
    const size_t prefix = strlen(w->arch);
    char *key = arena_alloc(w->arena, prefix + n + 2);
    if (!key) {
        w->rc = ERR_MEMORY;
        return NULL;
    }
    memcpy(key, w->arch, prefix);
    key[prefix] = '.';
    memcpy(key + prefix + 1, name, n);
    key[prefix + 1 + n] = 0;
    return key;
}

static struct json text_of(const char *s) {
    return (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(s), .string = s};
}
static struct json *find(const struct rewriting *w, const char *key) {
    for (uint32_t i = 0; i < w->n; i++)
        if (json_is(&w->items[2 * i], key)) return &w->items[2 * i + 1];
    return NULL;
}
static struct json *find_own(struct rewriting *w, const char *name) {
    const char *key = key_of(w, name, strlen(name));
    return key ? find(w, key) : NULL;
}
static void put(struct rewriting *w, const char *key, struct json v) {
    struct json *old = key ? find(w, key) : NULL;
    if (old) *old = v;
    else if (key && w->n < w->capacity) w->items[2 * w->n] = text_of(key), w->items[2 * w->n++ + 1] = v;
}
static void put_own(struct rewriting *w, const char *name, struct json v) { put(w, key_of(w, name, strlen(name)), v); }
static void put_number(struct rewriting *w, const char *name, double v) {
    put_own(w, name, (struct json){.type = JSON_FLOAT, .number = v});
}
static void put_int(struct rewriting *w, const char *name, int64_t v) {
    put_own(w, name, (struct json){.type = JSON_INT, .integer = v});
}

/* Returns llama.cpp's name for the n bytes of a name, and sets their number. NULL: it has none. */
static const char *name_in_llama(const struct rewriting *w, const char *name, size_t *n) {
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        if (!is_about(w, keys[k].arch) || *n != strlen(keys[k].from) || memcmp(name, keys[k].from, *n) != 0) continue;
        if (keys[k].to) *n = strlen(keys[k].to);
        return keys[k].to;
    }
    return name;
}

/* Copies the members, with llama.cpp's names of keys. */
static void copy_members(struct rewriting *w, const char *from_arch) {
    const size_t prefix = strlen(from_arch);
    const struct json *meta = &w->g->meta;
    for (uint32_t i = 0; i < meta->n && !w->rc; i++) {
        struct json key = meta->items[2 * i];
        bool is_kept = true;
        if (key.n > prefix + 1 && !memcmp(key.string, from_arch, prefix) && key.string[prefix] == '.') {
            size_t n = key.n - prefix - 1;
            const char *to = name_in_llama(w, key.string + prefix + 1, &n), *whole = to ? key_of(w, to, n) : NULL;
            is_kept = to != NULL;
            if (whole) key = text_of(whole);
        }
        for (uint32_t o = 0; o < w->n && is_kept; o++) /* under both names */
            is_kept = w->items[2 * o].n != key.n || memcmp(w->items[2 * o].string, key.string, key.n) != 0;
        if (is_kept) w->items[2 * w->n] = key, w->items[2 * w->n++ + 1] = meta->items[2 * i + 1];
    }
}

/* --- Tensors ---------------------------------------------------------------------------------- */

static const struct gguf_tensor *find_tensor(const struct gguf *g, const char *name) {
    for (size_t i = 0; i < g->n_tensors; i++)
        if (!strcmp(g->tensors[i].name, name)) return &g->tensors[i];
    return NULL;
}
static bool has_prefix(const struct gguf *g, const char *prefix) {
    for (size_t i = 0; i < g->n_tensors; i++)
        if (!strncmp(g->tensors[i].name, prefix, strlen(prefix))) return true;
    return false;
}
/* The rows of the first tensor whose name ends so; 0: none. */
static int64_t rows_of(const struct gguf *g, const char *end) {
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        const size_t n = strlen(t->name), k = strlen(end);
        if (n >= k && !strcmp(t->name + n - k, end)) return t->ndim > 1 ? t->shape[t->ndim - 2] : 0;
    }
    return 0;
}

static void rename_tensors(struct rewriting *w) {
    for (size_t i = 0; i < w->g->n_tensors && !w->rc; i++) {
        struct gguf_tensor *t = &w->g->tensors[i];
        const size_t n = strlen(t->name);
        for (size_t k = 0; k < sizeof tensors / sizeof *tensors; k++) {
            const size_t from = strlen(tensors[k].from), to = strlen(tensors[k].to);
            if (!is_about(w, tensors[k].arch) || n < from || strcmp(t->name + n - from, tensors[k].from) != 0) continue;
            char *name = arena_alloc(w->arena, n - from + to + 1);
            if (!name) {
                w->rc = ERR_MEMORY;
                return;
            }
            memcpy(name, t->name, n - from);
            memcpy(name + n - from, tensors[k].to, to + 1);
            t->name = name;
            break;
        }
    }
}

/* --- Missing keys and tensors ---------------------------------------------------------------- */

/* One number instead of one for each layer, of which those without attention have 0. */
static void join_key_heads(struct rewriting *w) {
    struct json *heads = find_own(w, "attention.head_count_kv");
    int64_t most = 0;
    if (!heads || heads->type != JSON_ARRAY) return;
    for (uint32_t i = 0; i < heads->n; i++) {
        const int64_t n = json_int(&heads->items[i], -1);
        if (n < 0 || (n && most && n != most)) return; /* they differ: the family says so */
        if (n) most = n;
    }
    if (most) *heads = (struct json){.type = JSON_INT, .integer = most};
}

/* Files with images leave out the scaling of the longer context, and have tokens beyond the embeddings. */
static void complete_gemma3(struct rewriting *w) {
    static const char *const lists[] = {"tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"};
    const struct gguf_tensor *embeddings = find_tensor(w->g, "token_embd.weight");
    const bool is_own = !find_own(w, "attention.layer_norm_rms_epsilon") || has_prefix(w->g, "v.") ||
                        has_prefix(w->g, "mm.") || find_own(w, "mm.tokens_per_image");
    if (!is_own) return;
    if (!find_own(w, "attention.layer_norm_rms_epsilon")) put_number(w, "attention.layer_norm_rms_epsilon", 1e-6);
    if (!find_own(w, "rope.freq_base")) put_number(w, "rope.freq_base", 1e6);
    if (!find_own(w, "rope.freq_base_swa")) put_number(w, "rope.freq_base_swa", 1e4);
    if (!find_own(w, "rope.scaling.type") && json_int(find_own(w, "context_length"), 0) >= 131072) {
        put_own(w, "rope.scaling.type", text_of("linear"));
        put_number(w, "rope.scaling.factor", 8);
    }
    for (size_t i = 0; i < sizeof lists / sizeof *lists && embeddings && embeddings->ndim == 2; i++) {
        struct json *list = find(w, lists[i]);
        if (list && list->type == JSON_ARRAY && list->n > embeddings->shape[0])
            list->n = (uint32_t)embeddings->shape[0];
    }
}

/* GLM-4.7-Flash: the sizes of heads are those of the published config, not of latents. */
static void complete_glm4_lite(struct rewriting *w) {
    const int64_t latents = json_int(find_own(w, "attention.kv_lora_rank"), 0),
                  rotated = json_int(find_own(w, "rope.dimension_count"), 0),
                  head = json_int(find_own(w, "attention.key_length"), 0);
    if (latents <= 0 || rotated <= 0 || head <= 0) return;
    put_int(w, "attention.head_count_kv", 1);
    put_int(w, "attention.key_length", latents + rotated);
    put_int(w, "attention.value_length", latents);
    put_int(w, "attention.key_length_mla", head);
    put_int(w, "attention.value_length_mla", head);
    if (!find_own(w, "expert_group_count")) put_int(w, "expert_group_count", 1);
    if (!find_own(w, "expert_group_used_count")) put_int(w, "expert_group_used_count", 1);
}

static void complete_lfm2(struct rewriting *w) {
    const int64_t inner = rows_of(w->g, ".ffn_gate.weight");
    if (find_tensor(w->g, "token_embd_norm.weight")) return;
    for (size_t i = 0; i < w->g->n_tensors; i++)
        if (!strcmp(w->g->tensors[i].name, "output_norm.weight")) w->g->tensors[i].name = "token_embd_norm.weight";
    put(w, "tokenizer.ggml.pre", text_of("lfm2"));
    if (inner) put_int(w, "feed_forward_length", inner);
}

static bool is_token(const struct rewriting *w, uint32_t id, const char *text) {
    const struct json *tokens = find(w, "tokenizer.ggml.tokens");
    return tokens && tokens->type == JSON_ARRAY && id < tokens->n && json_is(&tokens->items[id], text);
}

static void put_pretokenizer(struct rewriting *w, const struct architecture *k) {
    const struct json *pre = find(w, "tokenizer.ggml.pre");
    const bool is_unnamed = !pre || json_is(pre, "") || json_is(pre, "default");
    const bool is_llama3 =
        is_arch(w, "llama") && is_token(w, 128006, "<|start_header_id|>") && is_token(w, 128009, "<|eot_id|>");
    if (k->pre && (k->always || is_unnamed)) put(w, "tokenizer.ggml.pre", text_of(k->pre));
    if (is_llama3 && is_unnamed) put(w, "tokenizer.ggml.pre", text_of("llama-bpe"));
}

static void complete(struct rewriting *w, const struct architecture *k) {
    const struct json *model = find(w, "tokenizer.ggml.model");
    put_pretokenizer(w, k);
    if (is_arch(w, "gpt-oss") && !find_own(w, "expert_feed_forward_length") && rows_of(w->g, ".ffn_gate_exps.weight"))
        put_int(w, "expert_feed_forward_length", rows_of(w->g, ".ffn_gate_exps.weight"));
    if (!strcmp(k->name, "gptoss") && !find_own(w, "rope.scaling.type"))
        put_own(w, "rope.scaling.type", text_of("yarn"));
    if (is_arch(w, "gemma3")) complete_gemma3(w);
    if (is_arch(w, "gemma4") && model && json_is(model, "llama") && find(w, "tokenizer.ggml.merges"))
        put(w, "tokenizer.ggml.model", text_of("gemma4"));
    if (!strncmp(w->arch, "qwen3", 5)) join_key_heads(w);
    if (!strcmp(k->name, "glm4moelite")) complete_glm4_lite(w);
    if (is_arch(w, "lfm2")) complete_lfm2(w);
    if (is_arch(w, "nemotron_h_moe") && !find_own(w, "moe_latent_size") && rows_of(w->g, ".ffn_latent_down.weight"))
        put_int(w, "moe_latent_size", rows_of(w->g, ".ffn_latent_down.weight"));
}

int gguf_ollama_translate(struct gguf *g, struct arena *a) {
    enum { MORE = 16 }; /* members that a file may lack */
    const struct json *arch = json_get(&g->meta, "general.architecture");
    struct rewriting w = {.g = g, .arena = a, .capacity = g->meta.n + MORE};
    const struct architecture *k = NULL;
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures && arch; i++)
        if (json_is(arch, architectures[i].name)) k = &architectures[i];
    if (!k) return 0;
    w.arch = k->llama;
    if (!(w.items = arena_alloc(a, 2 * (size_t)w.capacity * sizeof *w.items))) return ERR_MEMORY;
    copy_members(&w, k->name);
    put(&w, "general.architecture", text_of(k->llama));
    rename_tensors(&w);
    if (!w.rc) complete(&w, k);
    g->meta = (struct json){.type = JSON_OBJECT, .n = w.n, .items = w.items};
    return w.rc;
}
