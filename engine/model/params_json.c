#include "engine/model/params_json.h"

#include <string.h>

enum { MOST = 128 };
struct object {
    struct json items[2 * MOST]; /* names and values */
    uint32_t n;
};
struct translation {
    const char *what;
    struct object config, rope;
    struct error *e;
    int rc;
};
/* Mistral's key and that of config.json; NULL: dropped. */
struct rename {
    const char *key, *name;
};
static const struct rename top[] = {{"dim", "hidden_size"},
                                    {"norm_eps", "rms_norm_eps"},
                                    {"n_kv_heads", "num_key_value_heads"},
                                    {"n_layers", "num_hidden_layers"},
                                    {"n_heads", "num_attention_heads"},
                                    {"hidden_dim", "intermediate_size"},
                                    {"activation", "hidden_act"},
                                    {"tied_embeddings", "tie_word_embeddings"},
                                    {"head_dim", NULL}, /* MLA's parts say it */
                                    {"max_seq_len", NULL},
                                    {"vision_encoder", NULL}, /* its tensors are skipped */
                                    {"multimodal", NULL},
                                    {NULL, NULL}},
                           moe[] = {{"first_k_dense_replace", "first_k_dense_replace"},
                                    {"num_experts_per_tok", "num_experts_per_tok"},
                                    {"num_experts", "n_routed_experts"},
                                    {"expert_hidden_dim", "moe_intermediate_size"},
                                    {"routed_scale", "routed_scaling_factor"},
                                    {"num_shared_experts", "n_shared_experts"},
                                    {"num_expert_groups", "n_group"},
                                    {"num_expert_groups_per_tok", "topk_group"},
                                    {"expert_parallel", NULL},
                                    {"expert_model_parallel", NULL},
                                    {NULL, NULL}},
                           yarn[] = {{"factor", "factor"},
                                     {"original_max_position_embeddings", "original_max_position_embeddings"},
                                     {"beta", "beta_fast"},
                                     {"alpha", "beta_slow"},
                                     {NULL, NULL}};

static void fail(struct translation *t, const char *in, const struct json *key, const char *why) {
    if (!t->rc)
        t->rc = error_set(t->e, ERR_MODEL, "%s: '%s%.*s' %s", t->what, in, (int)(key->n < 60 ? key->n : 60),
                          key->string, why);
}
static struct json text(const char *s) {
    return (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(s), .string = s};
}
static struct json number(double v) { return (struct json){.type = JSON_FLOAT, .number = v}; }
static void put(struct translation *t, struct object *o, struct json key, struct json v) {
    if (o->n < MOST) o->items[2 * o->n] = key, o->items[2 * o->n++ + 1] = v;
    else if (!t->rc) t->rc = error_set(t->e, ERR_MODEL, "%s: more than %d keys", t->what, MOST);
}
static const struct rename *find(const struct rename *rows, const struct json *key) {
    while (rows->key && !json_is(key, rows->key)) rows++;
    return rows->key ? rows : NULL;
}
static const struct json *object(const struct json *params, const char *key) {
    const struct json *o = json_get(params, key);
    return o && o->type == JSON_OBJECT ? o : NULL;
}

/* The members of an object of params.json, of which all must be known: those of `fixed` have one value. */
static void put_members(struct translation *t, struct object *to, const struct json *from, const char *in,
                        const struct rename *rows, const char *fixed, bool (*is_right)(const struct json *)) {
    for (uint32_t i = 0; from && i < from->n; i++) {
        const struct json *key = &from->items[2 * i], *v = key + 1;
        const struct rename *r = find(rows, key);
        if (r && r->name) put(t, to, text(r->name), *v);
        else if (!r && !json_is(key, fixed)) fail(t, in, key, "is unknown to hearth");
        else if (!r && !is_right(v)) fail(t, in, key, "has a value that hearth does not support");
    }
}
static bool is_one(const struct json *v) { return json_int(v, 0) == 1; }
static bool is_false(const struct json *v) { return v && v->type == JSON_BOOL && !v->boolean; }

/* Without apply_scale rotated vectors keep their lengths, and all scores are multiplied by YaRN's factor squared. */
static void put_rope(struct translation *t, const struct json *params) {
    static const char length[] = "original_max_position_embeddings";
    const struct json *y = object(params, "yarn"), *scaling = object(params, "llama_4_scaling"),
                      *beta = json_get(scaling, "beta");
    if (!is_false(json_get(y, "apply_scale")) || !(json_num(beta, -1) >= 0) ||
        json_int(json_get(scaling, length), -1) != json_int(json_get(y, length), -2)) {
        t->rc = error_set(
            t->e, ERR_MODEL,
            "%s: hearth supports 'yarn' whose 'apply_scale' is false, with a 'llama_4_scaling' of the same '%s'",
            t->what, length);
        return;
    }
    put(t, &t->rope, text("rope_type"), text("yarn"));
    put(t, &t->rope, text("mscale"), number(1));
    put(t, &t->rope, text("mscale_all_dim"), number(1));
    put(t, &t->rope, text("llama_4_scaling_beta"), *beta);
    put_members(t, &t->rope, y, "yarn.", yarn, "apply_scale", is_false);
}

/* Scales of weights are where the tensors say; hearth does not round activations, for which other scales are. */
static void put_quantization(struct translation *t, const struct json *q, struct json *items) {
    if (json_get(q, "quant_method")) {
        put(t, &t->config, text("quantization_config"), *q);
        return;
    }
    if (!json_is(json_get(q, "qformat_weight"), "fp8_e4m3")) {
        t->rc = error_set(t->e, ERR_MODEL,
                          "%s: 'quantization' has neither 'quant_method' nor the 'qformat_weight' fp8_e4m3", t->what);
        return;
    }
    items[0] = text("quant_method"), items[1] = text("fp8");
    put(t, &t->config, text("quantization_config"), (struct json){.type = JSON_OBJECT, .n = 1, .items = items});
}

static void put_config(struct translation *t, const struct json *params, struct json *quantization) {
    put(t, &t->config, text("model_type"), text("mistral_large_3"));
    /* Mistral's tokenizers all have these */
    put(t, &t->config, text("bos_token_id"), (struct json){.type = JSON_INT, .integer = 1});
    put(t, &t->config, text("eos_token_id"), (struct json){.type = JSON_INT, .integer = 2});
    for (uint32_t i = 0; i < params->n && !t->rc; i++) {
        const struct json *key = &params->items[2 * i], *v = key + 1;
        const struct rename *r = find(top, key);
        if (r && r->name) put(t, &t->config, text(r->name), *v);
        else if (r || json_is(key, "yarn") || json_is(key, "llama_4_scaling")) continue;
        else if (json_is(key, "model_type") && json_is(v, "transformer")) continue;
        else if (json_is(key, "moe")) put_members(t, &t->config, v, "moe.", moe, "route_every_n", is_one);
        else if (json_is(key, "rope_theta")) put(t, &t->rope, *key, *v);
        else if (json_is(key, "quantization") && v->type == JSON_OBJECT) put_quantization(t, v, quantization);
        else if (v->type == JSON_NULL) continue;
        else put(t, &t->config, *key, *v);
    }
    if (!t->rc) put_rope(t, params);
    put(t, &t->config, text("rope_parameters"),
        (struct json){.type = JSON_OBJECT, .n = t->rope.n, .items = t->rope.items});
}

int params_json_config(struct arena *a, const struct json *params, const char *what, struct json *config,
                       struct error *e) {
    if (!object(params, "moe") || json_int(json_get(object(params, "moe"), "num_shared_experts"), 0) < 1)
        return error_set(e, ERR_MODEL,
                         "%s: without shared experts in 'moe': of models with a params.json hearth supports Mistral "
                         "Large 3; of others it reads config.json",
                         what);
    struct translation *t = arena_alloc(a, sizeof *t);
    struct json *quantization = arena_alloc(a, 2 * sizeof *quantization);
    if (!t || !quantization) return error_set(e, ERR_MEMORY, "%s: no memory for the config", what);
    *t = (struct translation){.what = what, .e = e};
    put_config(t, params, quantization);
    *config = (struct json){.type = JSON_OBJECT, .n = t->config.n, .items = t->config.items};
    return t->rc;
}
