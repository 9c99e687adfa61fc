#include "engine/model/config_read.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

/* --- Reading keys and marking them as known --------------------------------------------------- */

int config_fail(struct config_reader *r, const char *fmt, ...) {
    if (r->rc) return r->rc;
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return r->rc = error_set(r->e, ERR_MODEL, "%s: %s", r->what, text);
}

static const char *family_key(const struct config_reader *r, const char *key) { /* the family's name of a key */
    for (int i = 0; r->key_aliases && r->key_aliases[i][0]; i++)
        if (!strcmp(key, r->key_aliases[i][0])) return r->key_aliases[i][1];
    return key;
}

static const struct json *find_and_mark(const struct json *root, uint64_t seen[CONFIG_MEMBERS_MOST / 64],
                                        const char *key) {
    const struct json *v = root ? json_get(root, key) : NULL;
    if (v) {
        size_t i = (size_t)(v - root->items) / 2;
        if (i < CONFIG_MEMBERS_MOST) seen[i / 64] |= (uint64_t)1 << i % 64;
    }
    return v && v->type != JSON_NULL ? v : NULL;
}
/* Other names of keys, {common, other}: of transformers 5, and Sarvam's of experts. transformers saves common names,
 * too, where the family's published configs have names of their own. */
static const char *const other_names[][2] = {{"num_experts", "num_local_experts"},
                                             {"num_experts_per_tok", "num_experts_per_token"},
                                             {"n_group", "num_expert_group"},
                                             {"norm_topk_prob", "moe_renormalize"},
                                             {"max_position_embeddings", "model_max_length"},
                                             {"n_routed_experts", "num_experts"},
                                             {"n_shared_experts", "num_shared_experts"}};
static const struct json *read_key(struct config_reader *r, const char *key) {
    const char *name = family_key(r, key);
    const struct json *inner = find_and_mark(r->root, r->seen, name),
                      *outer = find_and_mark(r->outer, r->outer_seen, name);
    if (!inner && !outer && name != key) inner = find_and_mark(r->root, r->seen, key);
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names && !inner && !outer; i++)
        if (!strcmp(key, other_names[i][0])) inner = find_and_mark(r->root, r->seen, other_names[i][1]);
    return inner ? inner : outer;
}

const struct json *config_get(struct config_reader *r, const char *key) { return read_key(r, key); }
bool config_has(struct config_reader *r, const char *key) { return read_key(r, key) != NULL; }
void config_ignore(struct config_reader *r, const char *key) { read_key(r, key); }
bool config_is_null(const struct config_reader *r, const char *key) {
    const struct json *v = r->root ? json_get(r->root, family_key(r, key)) : NULL;
    return v && v->type == JSON_NULL;
}

int config_int(struct config_reader *r, const char *key, int default_value, int min, int max) {
    const struct json *v = read_key(r, key);
    if (!v) {
        if (default_value < min) config_fail(r, "'%s' is missing", family_key(r, key));
        return default_value < min ? min : default_value;
    }
    int64_t n = json_int(v, INT64_MIN);
    if (n == INT64_MIN) config_fail(r, "'%s' is not a whole number", family_key(r, key));
    else if (n < min || n > max)
        config_fail(r, "'%s' is %lld; hearth takes %d to %d", family_key(r, key), (long long)n, min, max);
    else return (int)n;
    return min;
}

double config_num(struct config_reader *r, const char *key, double default_value, double min, double max) {
    const struct json *v = read_key(r, key);
    if (!v) return default_value;
    double x = json_num(v, NAN);
    if (isnan(x)) config_fail(r, "'%s' is not a number", family_key(r, key));
    else if (!(x >= min && x <= max))
        config_fail(r, "'%s' is %g; hearth takes %g to %g", family_key(r, key), x, min, max);
    else return x;
    return min;
}

bool config_bool(struct config_reader *r, const char *key, bool default_value) {
    const struct json *v = read_key(r, key);
    if (v && v->type != JSON_BOOL) config_fail(r, "'%s' is neither true nor false", family_key(r, key));
    return json_bool(v, default_value);
}

int config_choice(struct config_reader *r, const char *key, const char *const *options, int default_value) {
    const struct json *v = read_key(r, key);
    if (!v) return default_value;
    char known_options[200] = "";
    for (int i = 0; options[i]; i++) {
        if (json_is(v, options[i])) return i;
        size_t at = strlen(known_options);
        snprintf(known_options + at, sizeof known_options - at, "%s%s", i ? ", " : "", options[i]);
    }
    if (v->type == JSON_STRING)
        config_fail(r, "'%s' is \"%.*s\"; hearth supports %s", family_key(r, key), (int)(v->n < 80 ? v->n : 80),
                    v->string, known_options);
    else config_fail(r, "'%s' is not a text; hearth supports %s", family_key(r, key), known_options);
    return 0;
}

static bool is_same(const struct json *a, const struct json *b) { /* scalars, and lists of them */
    if (a->type == JSON_ARRAY || b->type == JSON_ARRAY) {
        if (a->type != b->type || a->n != b->n) return false;
        for (uint32_t i = 0; i < a->n; i++)
            if (!is_same(json_at(a, i), json_at(b, i))) return false;
        return true;
    }
    if (a->type == JSON_STRING || b->type == JSON_STRING)
        return a->type == b->type && a->n == b->n && !memcmp(a->string, b->string, a->n);
    if (a->type == JSON_BOOL || b->type == JSON_BOOL) return a->type == b->type && a->boolean == b->boolean;
    return json_num(a, NAN) == json_num(b, NAN);
}
const char *config_either(struct config_reader *r, const char *published, const char *saved) {
    const struct json *p = read_key(r, published), *s = read_key(r, saved);
    if (p && s && !is_same(p, s))
        config_fail(r, "'%s' and '%s' differ, which are names of the same", family_key(r, published),
                    family_key(r, saved));
    return s ? saved : published;
}

/* --- Members that no parser reads ------------------------------------------------------------- */

/* Keys about training, storage or other programs that do not affect the forward pass. */
static const char *const ignored_keys[] = {
    "architectures",
    "attention_dropout",
    "auto_map",
    "aux_loss_alpha",
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_implementation",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "ep_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "hidden_dropout",
    "hidden_dropout_prob",
    "id2label",
    "initializer_range",
    "keep_prefix",
    "label2id",
    "language",
    "length_penalty",
    "library_name",
    "max_length",
    "min_length",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "quantization_config",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sep_token_id",
    "seq_aux",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "use_bfloat16",
    "use_cache",
    "use_mrope",
    NULL,
};

/* Whether an unknown key with this value is taken for a feature that the model does not use. */
static bool is_inactive(const struct json *v) {
    switch (v->type) {
    case JSON_NULL: return true;
    case JSON_BOOL: return !v->boolean;
    case JSON_INT: return v->integer == 0;
    case JSON_FLOAT: return json_num(v, 0) == 0;
    default: return v->n == 0;
    }
}

/* Parts of names of members that say how the model was trained or is stored, or describe its other parts. */
static const char idle_words[] =
    "dropout loss initializ train optim warmup jitter checkpoint vision visual image img video audio speech "
    "media pixel token_id token_index special_token unsloth version _aux aux_ mtp nextn draft specul "
    "backend _kernels cache implement fused fusion export quantiz tensor_parallel expert_parallel "
    "sequence_parallel parallel_embedding tp_size ep_size pipeline evaluat debug seed deepspeed compile "
    "tokenizer template reward classif label projector mm_ tower batch padding";
/* Parts of names of members that change results if they are numbers or true. */
static const char effect_words[] =
    "attn attention head kv qk query rout expert moe topk top_k gate gating rope rot theta yarn freq "
    "position norm eps scal mult alpha beta gamma temperature act glu softmax cap clamp clip limit bound "
    "logit window sliding chunk layer block sparse index bias residual stream hyper mamba ssm conv linear "
    "latent lora rank shared sink mask pattern period interval compress memory hash gram emb recurr loop skip "
    "delta decay hidden intermediate width group hc_ ratio";
/* Whether a key contains one of the words, which spaces separate. */
static bool has_word(const char *key, const char *words) {
    char word[40];
    for (size_t n; *words; words += n + (words[n] == ' ')) {
        n = strcspn(words, " ");
        snprintf(word, sizeof word, "%.*s", (int)n, words);
        if (strcasestr(key, word)) return true;
    }
    return false;
}
/* Whether a value, or one inside it, is a number other than 0, or true; or a list, as of kinds of layers. */
static bool is_active(const struct json *v) {
    if (v->type == JSON_STRING || is_inactive(v)) return false;
    if (v->type != JSON_OBJECT) return true;
    for (uint32_t i = 0; i < v->n; i++)
        if (is_active(&v->items[2 * i + 1])) return true;
    return false;
}
enum config_effect config_read_effect(const char *key, const struct json *v) {
    const char *const dot = strrchr(key, '.'), *const name = dot ? dot + 1 : key;
    if (is_inactive(v) || *name == '_') return EFFECT_NONE;
    for (const char *const *h = ignored_keys; *h; h++)
        if (!strcmp(name, *h)) return EFFECT_NONE;
    /* a text may list the kinds of layers */
    const bool is_pattern = v->type == JSON_STRING && has_word(name, "pattern");
    if (!(is_active(v) || is_pattern) || has_word(name, idle_words)) return EFFECT_UNLIKELY;
    /* a parser reads an object because it describes a part of the computation */
    return dot || has_word(key, effect_words) ? EFFECT_POSSIBLE : EFFECT_UNLIKELY;
}

void config_read_unknown(struct config_reader *r, const char *key, const struct json *v) {
    const enum config_effect effect = config_read_effect(key, v);
    if (effect == EFFECT_POSSIBLE && !r->force)
        config_fail(r, "'%s' is unknown to hearth%s%s and may change the computation (--force ignores it)", key,
                    r->family ? " for the family " : "", r->family ? r->family : "");
    else if (effect != EFFECT_NONE)
        log_say(effect == EFFECT_POSSIBLE ? LOG_WARN : LOG_INFO, "%s: '%s' is unknown to hearth and ignored", r->what,
                key);
}

/* --- Nested objects --------------------------------------------------------------------------- */

void config_open(struct config_reader *r, const char *key, struct config_reader *in) {
    static const struct json none = {.type = JSON_OBJECT};
    const struct json *v = read_key(r, key);
    *in = (struct config_reader){.root = v && v->type == JSON_OBJECT ? v : &none,
                                 .what = r->what,
                                 .family = r->family,
                                 .e = r->e,
                                 .rc = r->rc,
                                 .force = r->force};
    if (v && v->type != JSON_OBJECT) config_fail(in, "'%s' is not an object", key);
    else if (in->root->n > CONFIG_MEMBERS_MOST)
        config_fail(in, "'%s' has %u members, more than any kind of it", key, in->root->n);
}

void config_close(struct config_reader *r, const char *key, struct config_reader *in) {
    const struct json *s = in->root;
    for (uint32_t i = 0; i < s->n && !in->rc; i++) {
        char name[200];
        if (in->seen[i / 64] >> i % 64 & 1) continue;
        snprintf(name, sizeof name, "%s.%.*s", key, (int)(s->items[2 * i].n < 80 ? s->items[2 * i].n : 80),
                 s->items[2 * i].string);
        config_read_unknown(in, name, &s->items[2 * i + 1]);
    }
    r->rc = in->rc;
}
