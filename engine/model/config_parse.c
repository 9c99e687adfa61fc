#include "engine/model/config_parse.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/arch.h"
#include "engine/model/gguf_build.h"
#include "engine/model/quantization.h"

/* Layers before the first with experts. */
static double leading_dense(const struct config *c) {
    int n = 0;
    while (n < c->n_layers && !c->layer[n].moe) n++;
    return n;
}
/* Whether a list of kinds of layers says that all attend to all tokens, as all layers of the config do. */
static bool lists_plain_layers(const struct config *c, const struct json *v) {
    for (uint32_t i = 0; i < v->n; i++)
        if (v->type != JSON_ARRAY || !json_is(&v->items[i], "full_attention")) return false;
    for (int i = 0; i < c->n_layers; i++)
        if (c->layer[i].mixer != MIXER_ATTENTION || c->layer[i].window) return false;
    return true;
}
static int gguf_gating(uint8_t score) { /* as GGUF files number scores; 0: not at all */
    return score == SCORE_SOFTMAX         ? GATING_SOFTMAX
           : score == SCORE_SQRT_SOFTPLUS ? GATING_SQRT_SOFTPLUS
           : score == SCORE_MIXER         ? GATING_UNSET
                                          : GATING_SIGMOID;
}
/* Whether a member that no parser reads states what the config already says. */
static bool is_stated(const struct config *c, const char *key, const struct json *v) {
    const struct {
        const char *keys[4];
        double value;
    } stated[] = {
        {{"hidden_dim", "d_model", "n_embd", "dim"}, c->hidden},
        {{"num_layers", "n_layers", "n_layer"}, c->n_layers},
        {{"num_heads", "n_heads", "n_head"}, c->n_heads},
        {{"num_key_value_heads", "num_kv_heads", "n_kv_heads", "num_attention_groups"}, c->n_kv_heads},
        {{"head_dim", "qk_head_dim", "attention_head_dim", "kv_channels"}, c->head_dim},
        {{"v_head_dim", "value_head_dim"}, c->v_dim},
        {{"kv_lora_rank"}, c->kv_lora},
        {{"q_lora_rank"}, c->q_lora},
        {{"rotary_dim", "rope_dim", "qk_rope_head_dim"}, c->rope.dim},
        {{"rope_theta", "rotary_emb_base"}, c->rope.theta},
        {{"norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps"}, (double)c->norm_eps},
        {{"use_qk_norm", "qk_norm", "use_qk_layernorm"}, c->qk_norm != QK_NORM_NONE},
        {{"attention_bias", "qkv_bias", "use_qkv_bias"}, c->qkv_bias},
        {{"intermediate_size", "dense_intermediate_size", "ffn_dim"}, c->dense_inter},
        {{"num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"}, c->n_experts},
        {{"num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k"}, c->topk},
        {{"moe_intermediate_size", "expert_dim"}, c->moe_inter},
        {{"shared_expert_intermediate_size", "share_expert_dim", "shared_intermediate_size"}, c->shared_inter},
        {{"n_shared_experts", "num_shared_experts", "num_shared_expert"},
         c->moe_inter ? (double)c->shared_inter / c->moe_inter : 0},
        {{"first_k_dense_replace", "num_dense_layers"}, leading_dense(c)},
        {{"moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step"}, 1},
        {{"norm_topk_prob", "moe_renormalize"}, c->norm_topk},
        {{"routed_scaling_factor", "moe_router_scaling_factor"}, c->n_experts ? (double)c->routed_scale : 1},
        {{"expert_gating_func"}, gguf_gating(c->score)},
        {{"n_group", "num_expert_group"}, c->n_group > 1 ? c->n_group : 1},
        {{"topk_group"}, c->n_group > 1 ? c->topk_group : 1},
        {{"use_moe_router_bias", "use_routing_bias", "moe_router_enable_expert_bias"}, c->router_bias},
    };
    if (!strcmp(key, "layer_types")) return lists_plain_layers(c, v);
    const double number = v->type == JSON_BOOL ? v->boolean : json_num(v, NAN);
    for (size_t i = 0; i < sizeof stated / sizeof *stated; i++)
        for (int k = 0; k < 4 && stated[i].keys[k]; k++)
            if (!strcmp(key, stated[i].keys[k])) return fabs(number - stated[i].value) <= 1e-6 * fabs(number);
    return false;
}
/* Whether a later member has the key of member i. */
static bool is_repeated(const struct json *root, uint32_t i) {
    const struct json *k = &root->items[2 * i];
    for (uint32_t j = i + 1; j < root->n; j++)
        if (root->items[2 * j].n == k->n && !memcmp(root->items[2 * j].string, k->string, k->n)) return true;
    return false;
}
static void read_unknown(struct config_reader *r, const struct config *c, const struct json *root,
                         const uint64_t seen[CONFIG_MEMBERS_MOST / 64]) {
    for (uint32_t i = 0; root && i < root->n && !r->rc; i++) {
        const struct json *k = &root->items[2 * i];
        char name[81];
        if (i < CONFIG_MEMBERS_MOST && seen[i / 64] >> i % 64 & 1) continue;
        if (is_repeated(root, i)) continue; /* the last one counts */
        snprintf(name, sizeof name, "%.*s", (int)(k->n < 80 ? k->n : 80), k->string);
        if (!is_stated(c, name, k + 1)) config_read_unknown(r, name, k + 1);
    }
}

static void read_tokens(struct config_reader *r, struct config *c) {
    c->bos = config_int(r, "bos_token_id", -1, -1, c->vocab - 1);
    const struct json *eos = config_get(r, "eos_token_id");
    uint32_t n = !eos ? 0 : eos->type == JSON_ARRAY ? eos->n : 1;
    if (n > CONFIG_MAX_EOS) config_fail(r, "'eos_token_id' lists %u ids; hearth takes up to %d", n, CONFIG_MAX_EOS);
    for (uint32_t i = 0; i < n && !r->rc; i++) {
        const struct json *one = eos->type == JSON_ARRAY ? json_at(eos, i) : eos;
        const int64_t id = json_int(one, INT64_MIN);
        if (id == -1 || one->type == JSON_NULL) continue; /* none */
        if (id == INT64_MIN) config_fail(r, "'eos_token_id' is not a whole number, nor a list of such");
        else if (id < 0 || id >= c->vocab)
            config_fail(r, "'eos_token_id' is %lld in a vocabulary of %d", (long long)id, c->vocab);
        else c->eos[c->n_eos++] = (int)id;
    }
}

static void check_direction(struct config_reader *r) {
    if (!config_bool(r, "is_causal", true))
        config_fail(r, "'is_causal' is false: each token sees the later ones, too, as in models that embed texts; "
                       "hearth computes causal attention");
}

/* Families with an activation of their own overwrite c->glu. */
static void read_activation(struct config_reader *r, struct config *c) {
    static const char *const acts[] = {"silu", "gelu_pytorch_tanh", "gelu", NULL};
    if (c->arch->defaults.own_activation) return;
    const float alpha = 2 * sqrtf(2 / (float)M_PI);
    const int act = config_choice(r, "hidden_act", acts, c->arch->defaults.is_gelu);
    if (act == 1) c->glu = (struct glu){.alpha = alpha, .cubic = 0.044715f * alpha};
    if (act == 2) c->glu = (struct glu){.is_erf = true};
}

/* Continues with the member that describes the text model; keys that it lacks are read from the outermost object. */
static int enter_text_config(struct config_reader *r, const char *member) {
    char first[40];
    const char *dot = strchr(member, '.'); /* a member of a member, whose other keys are of other parts */
    snprintf(first, sizeof first, "%.*s", dot ? (int)(dot - member) : (int)strlen(member), member);
    const struct json *inner = config_get(r, first);
    if (dot) inner = inner && inner->type == JSON_OBJECT ? json_get(inner, dot + 1) : NULL;
    if (!inner || inner->type != JSON_OBJECT) return config_fail(r, "'%s' is missing or not an object", member);
    if (inner->n > CONFIG_MEMBERS_MOST)
        return config_fail(r, "'%s' has %u keys, more than a model's config has", member, inner->n);
    r->outer = r->root;
    memcpy(r->outer_seen, r->seen, sizeof r->seen);
    memset(r->seen, 0, sizeof r->seen);
    r->root = inner;
    return 0;
}

/* Refuses tensors and states whose sizes, products of several keys, exceed an int. Other products do not by the limits
 * of their keys. */
static void check_products(struct config_reader *r, const struct config *c) {
    const int64_t inner = (int64_t)c->mamba.heads * c->mamba.head_dim,
                  qk = ((int64_t)c->n_heads + c->n_kv_heads) * c->head_dim;
    if (inner * c->mamba.state > INT32_MAX)
        config_fail(r, "Mamba with %lld channels and states of %d: larger than hearth takes", (long long)inner,
                    c->mamba.state);
    if (qk * c->head_dim * c->cca.taps[1] > INT32_MAX)
        config_fail(r, "convolutions of %lld channels in heads of %d with %d taps: larger than hearth takes",
                    (long long)qk, c->head_dim, c->cca.taps[1]);
}

static void check_experts(struct config_reader *r, const struct config *c) {
    if (c->topk > c->n_experts) config_fail(r, "%d experts a token of %d", c->topk, c->n_experts);
    if (c->topk > 64) config_fail(r, "%d experts a token; hearth takes up to 64", c->topk);
    if (c->n_group > 1) {
        if (c->n_experts % c->n_group)
            config_fail(r, "%d experts do not divide into %d groups", c->n_experts, c->n_group);
        else if (c->topk_group < 1 || c->topk_group > c->n_group)
            config_fail(r, "'topk_group' is %d of %d groups", c->topk_group, c->n_group);
        else if (c->topk > c->n_experts / c->n_group * c->topk_group)
            config_fail(r, "%d experts a token out of %d groups of %d", c->topk, c->topk_group,
                        c->n_experts / c->n_group);
    }
}

/* A model whose layers are all dense has no experts, whatever its config says of them. */
static void drop_unused_experts(struct config *c) {
    for (int i = 0; i < c->n_layers; i++)
        if (c->layer[i].moe) return;
    c->n_experts = c->topk = c->moe_latent = 0;
    c->expert_out_norm = c->routed_sum_norm = false;
}

/* Fails because of a model that no family opens. type: its 'model_type', or NULL; why: NULL, or a reason to add. */
static int fail_no_family(const struct json *root, const struct json *type, const char *what, const char *why,
                          struct error *e) {
    const struct json *classes = type ? NULL : json_get(root, "architectures");
    static const char list[] = "hearth lists the architectures that it opens (hearth --version -v)";
    const struct json *name = classes && classes->type == JSON_ARRAY && classes->n ? json_at(classes, 0) : NULL;
    if (name && name->type == JSON_STRING)
        return error_set(e, ERR_MODEL,
                         "%s: 'model_type' is missing, and hearth does not support 'architectures' '%.*s'; %s", what,
                         (int)(name->n < 60 ? name->n : 60), name->string, list);
    if (!type || type->type != JSON_STRING)
        return error_set(e, ERR_MODEL, "%s: 'model_type' is missing; %s", what, list);
    const struct json *text = arch_text_type(root);
    return error_set(e, ERR_MODEL,
                     "%s: hearth cannot open the architecture '%.*s'%s%.*s%s, which llama.cpp or vLLM may run%s%s; %s",
                     what, (int)(type->n < 60 ? type->n : 60), type->string, text ? " with '" : "",
                     text ? (int)(text->n < 60 ? text->n : 60) : 0, text ? text->string : "", text ? "'" : "",
                     why ? ": " : "", why ? why : "", list);
}

int config_parse(struct config *c, const struct json *root, const char *what, bool force, struct error *e) {
    *c = (struct config){0};
    if (root->type != JSON_OBJECT) return error_set(e, ERR_MODEL, "%s: not a JSON object", what);
    struct config_reader r = {.root = root, .what = what, .family = c->model_type, .e = e, .force = force};
    if (root->n > CONFIG_MEMBERS_MOST)
        return error_set(e, ERR_MODEL, "%s: %u keys, more than a model's config has", what, root->n);
    const struct json *type = config_get(&r, "model_type");
    int rc;
    c->arch = type ? arch_find(type, root) : arch_find_class(json_get(root, "architectures"));
    const char *member = c->arch ? c->arch->text_config_key : NULL, *why = NULL;
    /* some uploads have the text model's keys beside the type of the whole */
    if (member && !strchr(member, '.') && !json_get(root, member) && json_get(root, "num_hidden_layers")) member = NULL;
    if (!c->arch && type) c->is_part = (c->arch = arch_find_text(type, root, &member, &why)) != NULL;
    /* or a type of their own, and the class of a family */
    if (!c->arch && !why) c->arch = arch_find_class(json_get(root, "architectures"));
    if (!c->arch) return fail_no_family(root, type, what, why, e);
    c->names = &c->arch->names, c->layout = &c->arch->layout;
    r.key_aliases = c->arch->key_aliases;
    if (member && (rc = enter_text_config(&r, member))) return rc;
    if (c->is_part) type = json_get(r.root, "model_type");
    if (type) snprintf(c->model_type, sizeof c->model_type, "%.*s", (int)type->n, type->string);
    else snprintf(c->model_type, sizeof c->model_type, "%s", c->arch->model_types[0]);
    const struct config_defaults *d = &c->arch->defaults;
    c->vocab = config_int(&r, "vocab_size", d->vocab, 1, 1 << 22);
    c->hidden = config_int(&r, "hidden_size", d->hidden, 1, 65536);
    c->n_layers = config_int(&r, "num_hidden_layers", d->layers, 1, CONFIG_MAX_LAYERS);
    c->n_layers *= arch_sublayers(c->arch);
    if (c->n_layers > CONFIG_MAX_LAYERS)
        config_fail(&r, "%d layers; hearth takes up to %d", c->n_layers, CONFIG_MAX_LAYERS);
    c->max_context = config_int(&r, "max_position_embeddings", d->context, 1, 1 << 24);
    c->norm_eps = (float)config_num(&r, "rms_norm_eps", c->arch->norm_eps > 0 ? c->arch->norm_eps : 1e-6, 0, 1);
    c->tied = config_bool(&r, "tie_word_embeddings", d->tied);
    /* the whole model's key decides */
    if (c->is_part) c->tied = json_bool(json_get(r.outer, "tie_word_embeddings"), c->tied);
    c->n_mtp = config_int(&r, "num_nextn_predict_layers", 0, 0, 16);
    if (r.outer) config_get(&r, "model_type"); /* the text model's own type adds nothing */
    read_activation(&r, c);
    quantization_read(&r, c);
    if (!r.rc) read_tokens(&r, c);
    if (!r.rc) check_direction(&r);
    if (!r.rc) c->arch->parse(&r, c);
    if (!r.rc) check_products(&r, c);
    if (!r.rc) check_experts(&r, c);
    if (!r.rc) drop_unused_experts(c);
    if (!r.rc) read_unknown(&r, c, r.root, r.seen);
    /* else those are of images or sound */
    if (!r.rc && !c->is_part) read_unknown(&r, c, r.outer, r.outer_seen);
    return r.rc;
}
