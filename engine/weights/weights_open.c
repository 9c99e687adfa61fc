#include "engine/weights/weights_open.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/gguf_file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/minifloat.h"
#include "engine/model/config_parse.h"
#include "engine/model/gguf_config.h"
#include "engine/model/params_json.h"
#include "engine/model/rope.h"
#include "engine/weights/checkpoint_names.h"
#include "engine/weights/column_order.h"
#include "engine/weights/loader.h"
#include "engine/weights/matrix.h"
#include "engine/weights/mlx.h"
#include "engine/weights/ngram_ids.h"
#include "engine/weights/vector.h"

/* --- Loading: one tensor after another, claimed by name and checked against the config -------- */

/* Loads the tensors of these modules into the fields of base; returns their bytes. */
static size_t load_modules(struct loader *l, unsigned modules, void *base, int layer, int expert) {
    const struct config *c = &l->w->config;
    struct param list[PARAMS_MAX];
    const int parts = arch_sublayers(c->arch);
    int n = params_list(c, layer, modules, list);
    if (!(modules & MODULE_EXPERT)) expert = layer % parts; /* the second number in a name */
    layer /= parts;
    struct tensor_names names = *c->names;
    l->n_stacked = 0;
    if (modules & MODULE_EXPERT && c->n_always) { /* the last experts are the family's shared ones, stacked apart */
        const int routed = c->n_experts - c->n_always;
        l->n_stacked = expert < routed ? routed : c->n_always;
        if (expert >= routed) {
            expert -= routed, names.expert_gate = names.shared_gate_proj, names.expert_up = names.shared_up,
                              names.expert_down = names.shared_down;
            params_order_as_shared(c, list, n);
        }
    }
    for (int i = 0; i < n; i++) {
        const struct param *p = &list[i];
        const char *pattern = *(const char *const *)((const char *)&names + p->name_offset);
        const int at =
            (parts > 1 ? layer + p->layer_shift : config_stored_layer(c, layer + p->layer_shift)) + p->name_shift;
        if (p->cols) *params_mat(base, p) = matrix_load(l, p, pattern, at, expert);
        else *params_vector(base, p) = vector_load(l, p, pattern, at, expert);
    }
    column_order_settle(l, modules, base);
    return l->rc ? 0 : params_bytes(base, list, n);
}

/* Compares the published numbers of a layer's hashes with those that the config gives. */
static void check_hashes(struct loader *l, int layer, const struct ngram_config *g) {
    const char *const *patterns = l->w->config.arch->ngram_numbers; /* multipliers, vocabularies, offsets */
    for (int k = 0; k < 3 && patterns; k++) {
        const struct tensor *t = loader_find(l, patterns[k], layer, 0, "");
        const int n = k ? config_ngram_hashes(g) : g->size;
        bool same = t && t->dtype == DT_I64 && t->ndim == 1 && t->shape[0] == n;
        for (int i = 0; i < n && same; i++) {
            uint64_t v;
            memcpy(&v, t->data + (size_t)i * sizeof v, sizeof v);
            same = v == (k == 0 ? g->multiplier[i] : k == 1 ? g->vocab[i] : g->offset[i]);
        }
        if (t && !same) loader_fail(l, t, "the numbers of the hashes differ from those that config.json gives");
    }
}

/* CCA: adds what the second convolution makes of the first's bias to its own. */
static void fold_bias(const struct config *c, struct layer *y) {
    const int dim = c->head_dim, rows = (c->n_heads + c->n_kv_heads) * dim;
    for (int j = 0; j < c->cca.taps[1]; j++)
        for (int r = 0; r < rows; r++) {
            double sum = 0;
            for (int i = 0; i < dim; i++)
                sum += (double)y->cca_taps[((size_t)j * (size_t)rows + (size_t)r) * (size_t)dim + (size_t)i] *
                       y->mix_conv_bias[r / dim * dim + i];
            y->cca_bias[r] += (float)sum;
        }
}

static float softplus(float v) { return v > 20 ? v : log1pf(expf(v)); }
/* The layer's own activation (config.learned_xielu). */
static void set_xielu(struct layer *y, const float numbers[3]) {
    struct glu *g = &y->dense.glu;
    const float *const p = y->xielu[0] ? y->xielu[0] : &numbers[0], *const n = y->xielu[0] ? y->xielu[1] : &numbers[1],
                       *const beta = y->xielu[0] ? y->xielu[2] : &numbers[2];
    g->xielu_beta = beta ? *beta : 0.5f;
    g->xielu_p = softplus(*p), g->xielu_n = g->xielu_beta + softplus(*n);
}

static void load_layer(struct loader *l, struct layer *y, int i) {
    struct weights *w = l->w;
    const struct config *c = &w->config;
    load_modules(l, MODULE_LAYER, y, i, 0);
    y->dense.glu = y->parallel_dense.glu = config_glu(c, i, false);
    if (c->learned_xielu && !l->rc && (y->xielu[0] || c->layer[i].xielu[2] > 0)) set_xielu(y, c->layer[i].xielu);
    if (c->layer[i].ngram && !l->rc) check_hashes(l, i, config_ngram(c, i));
    if (!l->rc && c->attn == ATTN_CCA) fold_bias(c, y);
    if (l->rc || !c->layer[i].moe) return;
    if (!(y->experts = arena_calloc(&w->arena, (size_t)c->n_experts, sizeof *y->experts))) {
        l->rc = error_set(l->e, ERR_MEMORY, "%s: no memory for its list of experts", w->files.dir);
        return;
    }
    for (int k = 0; k < c->n_experts && !l->rc; k++) {
        const size_t bytes = load_modules(l, MODULE_EXPERT, &y->experts[k], i, k);
        if (!c->layer[i].pass) w->bytes_routed += bytes; /* later passes have the same */
        params_set_traits(c, i, &y->experts[k]);
    }
}
/* Names of the MTP layer's own tensors in DeepSeek-V3's layout, the only one that is loaded: all families with it
 * agree. */
static const struct {
    const char *eh, *head, *enorm, *hnorm, *norm;
} mtp_names = {.eh = "model.layers.%d.eh_proj",
               .head = "model.layers.%d.shared_head.head",
               .enorm = "model.layers.%d.enorm",
               .hnorm = "model.layers.%d.hnorm",
               .norm = "model.layers.%d.shared_head.norm"};

/* Loads the first MTP layer in DeepSeek-V3's layout. If it is absent or incomplete, the model has no MTP draft. */
static void load_mtp(struct weights *w) {
    struct config *c = &w->config;
    struct mtp_weights *p = &w->prediction;
    struct error e = {0};
    struct loader l = {.w = w, .e = &e, .is_optional_part = true};
    const struct param eh = {.rows = c->hidden, .cols = 2 * c->hidden, .suffix = ".weight"},
                       head = {.rows = c->vocab, .cols = c->hidden, .suffix = ".weight", .optional = true},
                       norm = {.rows = c->hidden, .suffix = ".weight"};
    const size_t routed = w->bytes_routed;
    const int i = c->n_layers;
    if (!c->n_mtp || i >= CONFIG_MAX_LAYERS || c->streams.n || config_has_states(c) || config_has_single_blocks(c) ||
        c->moe_latent || (c->attn != ATTN_GQA && c->attn != ATTN_MLA) ||
        !loader_find(&l, mtp_names.eh, i, 0, ".weight"))
        return;
    c->layer[i] = c->layer[i - 1];
    load_layer(&l, &p->layer, i);
    p->eh = matrix_load(&l, &eh, mtp_names.eh, i, 0);
    p->head = matrix_load(&l, &head, mtp_names.head, i, 0);
    p->enorm = vector_load(&l, &norm, mtp_names.enorm, i, 0);
    p->hnorm = vector_load(&l, &norm, mtp_names.hnorm, i, 0);
    p->norm = vector_load(&l, &norm, mtp_names.norm, i, 0);
    if (!p->head.data) p->head = w->head;
    p->is_present = !l.rc;
    w->bytes_routed = routed;
    if (l.rc) log_say(LOG_INFO, "MTP layer skipped: %s", e.text);
}

/* Whether a tensor belongs to an expert that a text model does not compute: one for images, or one that returns its
 * input, to which transformers gives weights.
 */
static bool is_of_unused_expert(const struct config *c, const char *name) {
    const int end = c->layout->image_experts ? 2 * c->n_experts : c->n_experts + c->n_idle_experts;
    int layer, expert;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    return end > c->n_experts && sscanf(name, c->names->expert_gate, &layer, &expert) == 2 && expert >= c->n_experts &&
           expert < end;
#pragma GCC diagnostic pop
}
/* Whether a tensor of a layer may stay unclaimed: it does not change the computation, or the family's reference ignores
 * it. */
static bool is_harmless(const struct config *c, const char *name) {
    static const char *const parts[] = {"rotary_emb.inv_freq", ".k_scale",         ".v_scale",    ".q_scale",
                                        "input_scale",         "activation_scale", ".qscale_act", ".input_quantizer.",
                                        ".output_quantizer."};
    /* scales and zero points of caches, outputs and probabilities that other programs keep in few bits */
    static const char *const ends[] = {".kv_scale",          ".output_scale",     ".prob_scale",
                                       ".prob_output_scale", ".k_zero_point",     ".v_zero_point",
                                       ".q_zero_point",      ".kv_zero_point",    ".kv_cache_scale",
                                       ".input_zero_point",  ".output_zero_point"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i])) return true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n > strlen(ends[i]) && !strcmp(name + n - strlen(ends[i]), ends[i])) return true;
    for (const char *const *p = c->arch->skipped_tensors; p && *p; p++)
        if (strstr(name, *p)) return true;
    return is_of_unused_expert(c, name) || (c->layout->skipped && strstr(name, c->layout->skipped));
}

/* Whether a tensor belongs to a tower for images or sound, which ollama's converter put into the same file. */
static bool is_of_tower(const char *name) {
    static const char *const prefixes[] = {"v.", "mm.", "a.", "model.vision_tower."};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i]))) return true;
    return false;
}

/* Counts unclaimed tensors, parts that hearth skips on purpose (MTP layers, other towers). Refuses those of layers,
 * which would compute something that this family does not implement; force: logs them. */
static void check_left_over(struct loader *l, bool force) {
    struct weights *w = l->w;
    const char *pattern = w->config.names->attn_norm, *number = strstr(pattern, "%d.");
    const size_t prefix = (size_t)(number - pattern); /* length of the layer prefix */
    for (size_t i = 0; i < w->files.n_tensors && !l->rc; i++) {
        const struct tensor *t = &w->files.tensors[i];
        /* transformers writes empty matrices for the shared experts of a model without them */
        if (t->is_claimed || !t->size) continue;
        w->n_skipped++;
        w->bytes_skipped += t->size;
        int k, at = 0;
        if (!strncmp(t->name, pattern, prefix) && sscanf(t->name + prefix, "%d.%n", &k, &at) == 1 && at) {
            if (k >= w->config.n_layers) w->n_mtp_tensors++;
            else if (!is_harmless(&w->config, t->name)) {
                if (force) log_say(LOG_WARN, "%s: tensor %s is unknown to hearth and ignored", w->files.dir, t->name);
                else loader_fail(l, t, "unknown tensor for this family (--force ignores it)");
            }
        } else if (!strncmp(t->name, "mtp.", 4)) w->n_mtp_tensors++;
        else if (w->files.gguf && !is_of_tower(t->name)) { /* e.g. rotary factors: a GGUF file holds one model and
                                                              nothing else */
            if (force) log_say(LOG_WARN, "%s: tensor %s is unknown to hearth and ignored", w->files.dir, t->name);
            else loader_fail(l, t, "unknown tensor for this family (--force ignores it)");
        }
    }
}

static bool ends_params(const char *path) {
    const char *slash = strrchr(path, '/');
    return !strcmp(slash ? slash + 1 : path, "params.json");
}
static int read_config(struct weights *w, const char *dir, bool force, struct error *e) {
    char path[4096], *text = NULL;
    size_t n;
    int rc = file_config(path, sizeof path, dir, e);
    if (rc) return rc;
    if (!file_is_dir(dir))
        return error_set(e, ERR_MODEL,
                         "%s: no such directory; a model is a checkpoint directory as published, or a GGUF file (-m)",
                         dir);
    if (!file_exists(path))
        return error_set(e, ERR_MODEL,
                         "%s: missing; a model is a checkpoint directory as published, or a GGUF file (-m)", path);
    if ((rc = file_read(path, 4u << 20, &text, &n, e))) return rc;
    struct arena a = {0};
    struct json root, params;
    rc = json_parse(&a, text, n, JSON_PYTHON, path, &root, e);
    if (!rc && ends_params(path)) params = root, rc = params_json_config(&a, &params, path, &root, e);
    if (!rc) rc = config_parse(&w->config, &root, path, force, e);
    arena_free(&a);
    mem_free(text);
    return rc;
}

/* Whether a layer's stacked experts have the shape [n, cols, rows] and not [n, rows, cols]. */
static bool is_stored_transposed(const struct weights *w, const char *pattern, int layer, int rows, int cols) {
    char name[512];
    loader_name(name, sizeof name, pattern, layer, 0, "");
    const struct tensor *t = checkpoint_find(&w->files, name);
    return t && t->ndim == 3 && rows != cols && t->shape[1] == cols && t->shape[2] == rows;
}
/* Chooses by the shapes of gate and up together, and of down: one of the two is square, or none. */
static bool prefers_transposed(const struct weights *w, int layer) {
    const struct config *c = &w->config;
    const struct layout *y = &c->arch->layout;
    const int width = config_routed_width(c), pair = 2 * c->moe_inter;
    return is_stored_transposed(w, c->arch->names.expert_down, layer, y->transposed_down ? c->moe_inter : width,
                                y->transposed_down ? width : c->moe_inter) ||
           is_stored_transposed(w, c->arch->names.expert_gate, layer, y->transposed_gate_up ? width : pair,
                                y->transposed_gate_up ? pair : width);
}

/* Chooses what the tensors present decide: the layout of a family whose experts are published both stacked and one by
 * one, for example. */
static void choose_layout(struct weights *w) {
    struct config *c = &w->config;
    char name[512];
    int first = 0;
    while (first < c->n_layers - 1 && !c->layer[first].moe) first++;
    if (c->arch->unstacked) {
        loader_name(name, sizeof name, c->arch->names.expert_gate, first, 0, "");
        if (!checkpoint_find(&w->files, name)) c->arch = c->arch->unstacked;
    }
    if (c->arch->transposed && prefers_transposed(w, first)) c->arch = c->arch->transposed;
    for (int i = 0; c->arch->variant && i < c->n_layers; i++) { /* a variant may have one of its own */
        loader_name(name, sizeof name, c->arch->variant_tensor, i, 0, "");
        if (checkpoint_find(&w->files, name)) c->arch = c->arch->variant, i = -1;
    }
    c->names = &c->arch->names, c->layout = &c->arch->layout;
    if (c->arch->has_optional_bias) {
        loader_name(name, sizeof name, c->names->router_bias, first, 0, "");
        c->router_bias = checkpoint_find(&w->files, name) != NULL;
    }
}

/* Rotary factors, which GGUF stores as a tensor. Other dtypes and sizes stay unclaimed and are refused later. */
static struct gguf_factors rotary_factors(struct checkpoint *f, const char *name) {
    struct tensor *t = checkpoint_find(f, name);
    if (!t || t->dtype != DT_F32 || t->ndim != 1 || t->shape[0] > UINT32_MAX) return (struct gguf_factors){0};
    t->is_claimed = true;
    return (struct gguf_factors){(const float *)t->data, (uint32_t)t->shape[0]};
}
/* Reads the config of a GGUF file from its metadata; its tensors supply the rest. */
static int read_metadata(struct weights *w, bool force, struct error *e) {
    struct checkpoint *f = &w->files;
    const struct tensor *embed = checkpoint_find(f, "token_embd.weight");
    struct gguf_facts facts = {.vocab = embed ? embed->shape[0] : 1,
                               .tied = !checkpoint_find(f, "output.weight"),
                               .head_bias = checkpoint_find(f, "output.bias") != NULL,
                               .freqs = rotary_factors(f, "rope_freqs.weight"),
                               .short_factors = rotary_factors(f, "rope_factors_short.weight"),
                               .long_factors = rotary_factors(f, "rope_factors_long.weight")};
    for (size_t i = 0; i < f->n_tensors; i++)
        gguf_note(&facts, f->tensors[i].name, f->tensors[i].ndim ? f->tensors[i].shape[0] : 0);
    char what[4352];
    snprintf(what, sizeof what, "%s/%s", f->dir, f->shards[0].name);
    struct arena a = {0};
    struct json root;
    int rc = gguf_config(&a, &f->meta, &facts, what, &root, e);
    if (!rc) rc = config_parse(&w->config, &root, what, force, e);
    if (!rc) rc = gguf_names(&w->config, &w->arena, &f->meta, &facts, e);
    w->sampling = gguf_read_sampling(&f->meta);
    arena_free(&a);
    checkpoint_free_metadata(f);
    return rc;
}

/* Reads the config and opens the checkpoint, in the order that the format asks for. */
static int open_files(struct weights *w, const char *dir, bool force, struct error *e) {
    char file[4096];
    int gguf = gguf_find(dir, file, sizeof file, e), rc;
    if (gguf < 0) return gguf;
    if (!gguf && (rc = read_config(w, dir, force, e))) return rc;
    if ((rc = checkpoint_open(&w->files, dir, e))) return rc;
    if (gguf) return read_metadata(w, force, e);
    if ((rc = checkpoint_name_experts(&w->files, e))) return rc;
    if ((rc = checkpoint_name_text(&w->files, w->config.arch, e))) return rc;
    choose_layout(w);
    return w->files.mlx ? mlx_names(w, e) : 0;
}

/* Multiplies the final norm by the factor of the logits, to which they are linear. */
static void scale_logits(struct weights *w) {
    const struct config *c = &w->config;
    const float by = c->logit_scale, add = c->norm == NORM_RMS_PLUS_ONE ? 1 : 0;
    for (int i = 0; i < c->hidden && by > 0 && w->norm; i++) {
        w->norm[i] = (w->norm[i] + add) * by - add;
        if (w->norm_bias) w->norm_bias[i] *= by;
    }
}

int weights_open(struct weights *w, const char *dir, bool force, struct error *e) {
    *w = (struct weights){0};
    struct loader l = {.w = w, .e = e};
    struct config *c = &w->config;
    if ((l.rc = open_files(w, dir, force, e))) goto out;
    load_modules(&l, MODULE_MODEL, w, 0, 0);
    if (!l.rc) scale_logits(w);
    c->tied &= !w->head.data; /* a head in the checkpoint overrides tying, as in transformers */
    if (c->tied) w->head = w->embed;
    w->layers = arena_calloc(&w->arena, (size_t)c->n_layers, sizeof *w->layers);
    w->inv_freq = arena_alloc(&w->arena, (size_t)rope_floats(c) * sizeof(float));
    if (!w->layers || !w->inv_freq) {
        l.rc = error_set(e, ERR_MEMORY, "%s: no memory for its layers", dir);
        goto out;
    }
    w->rope_mscale[0] = rope_frequencies(&c->rope, w->inv_freq);
    for (int j = 0; w->rope_alpha && j < c->rope.dim / 2; j++) w->inv_freq[j] *= expf(w->rope_alpha[j]);
    if (!l.rc && c->rope.fope_pairs)
        rope_fill_fope(c, (const float *const[2]){w->fope[0], w->fope[1]}, w->inv_freq + rope_fope_at(c));
    if (c->second_rope.dim) w->rope_mscale[1] = rope_frequencies(&c->second_rope, w->inv_freq + rope_first_floats(c));
    if (c->ngram_numbers) l.rc = ngram_ids_load(w, dir, e);
    for (int i = 0; i < c->n_layers && !l.rc; i++) load_layer(&l, &w->layers[i], i);
    if (l.rc) goto out;
    load_mtp(w);
    check_left_over(&l, force);
    w->bytes_embed = mat_bytes(&w->embed) + (c->tied ? 0 : mat_bytes(&w->head));
    for (int i = 0; i < c->n_layers; i++) /* a token reads a few rows */
        w->bytes_embed += mat_bytes(&w->layers[i].ngram_table) + mat_bytes(&w->layers[i].previous_token_input.table);
    w->bytes_embed += mat_bytes(&w->last_token_input.table);
    for (int k = 0; k < config_input_hashes(c); k++) w->bytes_embed += mat_bytes(&w->ngram_table[k]);
    w->bytes_dense =
        w->files.bytes + w->bytes_repacked - w->bytes_replaced - w->bytes_skipped - w->bytes_routed - w->bytes_embed;
out:
    if (l.rc) weights_close(w);
    return l.rc;
}
