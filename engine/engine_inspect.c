/* Reports that run nothing: --inspect, --verify, --version. */
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "cpu/autotune.h"
#include "engine/layer/attention.h"
#include "engine/layer/attention_kinds.h"
#include "engine/layer/kv_planes.h"
#include "engine/model/arch.h"
#include "engine/model/gguf_config.h"
#include "engine/session/engine_check.h"
#include "engine/session/engine_state.h"
#include "engine/session/speeds.h"
#include "engine/vision/tower_mmproj.h"
#include "engine/weights/weights_open.h"

int engine_describe(const struct engine_params *p, struct buf *out, struct error *e) {
    int rc = engine_check_level(p, e);
    if (rc) return rc;
    char devices[600];
    gpu_describe(devices, sizeof devices);
    buf_fmt(out, "cpu: %s\n", cpu_describe());
    if (*autotune_describe()) buf_fmt(out, "kernels: %s\n", autotune_describe());
    if (p->cpu_level) buf_fmt(out, "level: %s\n", cpu_level_name((enum cpu_level)(p->cpu_level - 1)));
    buf_fmt(out, "devices: %s\nfamilies: ", devices);
    arch_list(out);
    buf_fmt(out, "\ngguf: ");
    gguf_list(out);
    buf_char(out, '\n');
    return out->failed ? error_set(e, ERR_MEMORY, "no memory") : 0;
}

void engine_find_gpus(struct engine_gpus *out) {
    struct gpu_found found;
    gpu_find(&found);
    *out = (struct engine_gpus){.is_tried = found.is_tried};
    memcpy(out->list, found.list, sizeof out->list);
    memcpy(out->trouble, found.trouble, sizeof out->trouble);
    gpu_describe(out->text, sizeof out->text);
}

/* --- --inspect and --verify ------------------------------------------------------------------- */

static void json_mat(struct buf *b, const char *key, const struct mat *m) {
    if (!m->data || !b->len) return;
    buf_str(b, b->data[b->len - 1] == '{' ? "" : ",");
    buf_fmt(b, "\"%s\":{\"dtype\":\"%s\",\"shape\":[%d,%d]", key, dtype_name(m->dtype), m->rows, m->cols);
    if (m->scale)
        buf_fmt(b, ",\"block\":[%d,%d],\"scale_dtype\":\"%s\"", m->block_rows, m->block_cols,
                dtype_name(m->scale_dtype));
    buf_str(b, "}");
}

struct weight_mix {
    uint64_t weights, bytes; /* numbers, and their bytes with scales */
};
/* Returns the number of weights; adds those that a token does not read, of tables and value experts, to *tables. */
static uint64_t count_matrices(struct weight_mix mix[DT_COUNT], const void *base, const struct param *list, int n,
                               uint64_t *tables) {
    uint64_t all = 0;
    for (int i = 0; i < n; i++) {
        const struct mat *m = params_mat(base, &list[i]);
        if (!list[i].cols || !m->data) continue;
        const uint64_t weights = (uint64_t)m->rows * (uint64_t)m->cols;
        mix[m->dtype].weights += weights, mix[m->dtype].bytes += mat_bytes(m), all += weights;
        if (list[i].is_table) *tables += weights;
        if (list[i].used_of[1])
            *tables += weights / (uint64_t)list[i].used_of[1] * (uint64_t)(list[i].used_of[1] - list[i].used_of[0]);
    }
    return all;
}
/* Appends the number of weights in matrices, how many of them a token uses, the mean bits per weight, scales included,
 * and how many weights are stored in each format, the most frequent first. */
static void json_mix(struct buf *b, const struct weights *w) {
    const struct config *c = &w->config;
    struct param list[PARAMS_MAX];
    struct weight_mix mix[DT_COUNT] = {{0}}, all = {0};
    uint64_t routed = 0, tables = 0;
    count_matrices(mix, w, list, params_list(c, 0, MODULE_EMBED | (c->tied ? 0 : MODULE_HEAD), list), &tables);
    for (int l = 0; l < c->n_layers; l++) {
        count_matrices(mix, &w->layers[l], list, params_list(c, l, MODULE_LAYER, list), &tables);
        const int n = w->layers[l].experts ? params_list(c, l, MODULE_EXPERT, list) : 0;
        for (int k = 0; n && k < c->n_experts; k++)
            routed += count_matrices(mix, &w->layers[l].experts[k], list, n, &tables);
    }
    for (int t = 0; t < DT_COUNT; t++) all.weights += mix[t].weights, all.bytes += mix[t].bytes;
    const uint64_t active =
        all.weights - routed - tables + (c->n_experts ? routed / (uint64_t)c->n_experts * (uint64_t)c->topk : 0);
    buf_fmt(b, ",\"parameters\":{\"all\":%llu,\"active\":%llu}", (unsigned long long)all.weights,
            (unsigned long long)active);
    buf_fmt(b, ",\"bits_per_weight\":%.2f,\"mix\":[", all.weights ? 8.0 * (double)all.bytes / (double)all.weights : 0);
    for (int shown = 0;; shown++) {
        int most = 0;
        for (int t = 0; t < DT_COUNT; t++)
            if (mix[t].weights > mix[most].weights) most = t;
        if (!mix[most].weights) break;
        buf_fmt(b, "%s{\"dtype\":\"%s\",\"weights\":%llu,\"bits\":%.2f,\"bytes\":%llu}", shown ? "," : "",
                dtype_name((enum dtype)most), (unsigned long long)mix[most].weights,
                8.0 * (double)mix[most].bytes / (double)mix[most].weights, (unsigned long long)mix[most].bytes);
        mix[most].weights = 0;
    }
    buf_str(b, "]");
}

static void json_skipped(struct buf *b, const struct checkpoint *f) {
    int shown = 0;
    for (size_t i = 0; i < f->n_tensors && shown < 8; i++)
        if (!f->tensors[i].is_claimed) {
            buf_str(b, shown++ ? "," : "");
            json_quote(b, f->tensors[i].name, strlen(f->tensors[i].name));
        }
}

/* Appends the placement of the weights during decode, with reasons. each: as of arch_sublayers(). */
static void json_placement(struct buf *b, const struct decode *s, int each) {
    struct placement_report list;
    decode_placement(s, &list);
    buf_str(b, ",\"where\":[");
    for (int i = 0; i < list.n; i++) {
        const struct placement_row *r = &list.row[i];
        buf_fmt(b, "%s{\"what\":\"%s\",\"in\":", i ? "," : "", placement_report_name(r->item));
        if (r->device < 0) buf_str(b, "\"host memory\"");
        else buf_fmt(b, "\"device %d\"", r->device);
        if (r->last) buf_fmt(b, ",\"layers\":[%d,%d]", r->first / each, (r->last - 1) / each);
        if (r->item == PLACED_EXPERTS) buf_fmt(b, ",\"each\":%d", r->per_layer);
        if (r->item == PLACED_EXPERTS && r->device >= 0)
            buf_fmt(b, ",\"class\":\"%s\",\"choices\":%.3f",
                    r->is_sent     ? "sent"
                    : r->is_cached ? "cached"
                    : r->is_pinned ? "pinned"
                                   : "resident",
                    r->choices);
        buf_fmt(b, ",\"bytes\":%zu,\"why\":", r->bytes);
        json_quote(b, r->why, strlen(r->why));
        buf_str(b, "}");
    }
    buf_str(b, "]");
}

/* Appends the devices that would be used and the weights resident on them during decode. As in engine_open(), devices
 * that cannot be opened are left out with a warning. */
static int json_devices(struct buf *b, const struct engine_params *p, const struct weights *w, enum dtype kv,
                        struct error *e) {
    const enum cpu_level level = p->cpu_level ? (enum cpu_level)(p->cpu_level - 1) : cpu_level_best();
    struct cost_machine cost;
    struct cost_model cost_model;
    struct pool *pool = NULL;
    struct numa nodes;
    const char *usage_dir;
    struct runtime m = {.w = w, .expert_bytes = weights_expert_bytes(w)};
    m.expert_cache = engine_expert_cache(p, w->files.fingerprint, &usage_dir, m.expert_cache_why);
    int rc = w->config.n_experts && usage_dir
                 ? usage_profile_open(&m.usage, &w->config, usage_dir, w->files.fingerprint, e)
                 : 0;
    if (!rc) rc = gpu_set_open(&m.gpus, p->gpus, e);
    if (rc == ERR_RUNTIME && !exec_modes[p->prefill].min_devices && !exec_modes[p->decode].min_devices) {
        log_say(LOG_WARN, "devices %s: %s", p->gpus, e->text);
        *e = (struct error){0};
        rc = 0;
    }
    for (int i = 0; m.gpus && i < m.gpus->n; i++) {
        const struct gpu_info *g = gpu_info(m.gpus->gpu[i]);
        buf_fmt(b, "%s{\"name\":", i ? "," : "");
        json_quote(b, g->name, strlen(g->name));
        buf_fmt(b, ",\"backend\":\"%s\",\"bytes\":%zu,\"free\":%zu}", g->backend, g->mem, gpu_mem_free(m.gpus->gpu[i]));
    }
    if (!rc) rc = engine_read_topology(&nodes, p->topology, e);
    if (!rc && m.gpus && !(rc = pool_open_nodes(&pool, p->threads, false, &nodes, e))) {
        cost_model_of(&cost_model, &w->config, weights_dense_dtype(w), weights_ffn_dtype(w), kv);
        speeds_assumed(&cost, m.gpus, pool_threads(pool), level);
        cost.is_deterministic = p->deterministic;
        m.cost = &cost, m.cost_model = &cost_model;
    }
    if (!rc) rc = decode_open(&m.decode, &m, kv, e);
    pool_close(&pool);
    buf_str(b, "],\"resident\":");
    json_quote(b, rc ? "" : decode_placement_why(m.decode), rc ? 0 : strlen(decode_placement_why(m.decode)));
    if (!rc) json_placement(b, m.decode, arch_sublayers(w->config.arch));
    if (!rc && m.gpus) {
        const struct gpu_info *g = gpu_info(m.gpus->gpu[0]);
        struct pin_choice way = pin_choose(m.gpus->gpu[0], w, &nodes);
        struct cost_machine link;
        cost_assumed(&link, 1, CPU_SCALAR, 1, g->h2d, g->d2h, 0);
        buf_fmt(b, ",\"weights\":{\"way\":\"%s\",\"bytes_a_second\":%.0f,\"why\":", pin_name(way.path),
                pin_rate(way.path, link.domain[1].link[COST_H2D].rate));
        json_quote(b, way.why, strlen(way.why));
        buf_str(b, "}");
    }
    decode_close(&m.decode);
    gpu_set_close(&m.gpus);
    usage_profile_close(&m.usage);
    return rc;
}

/* Whether the model reads images, and the file of its tower if that is one of its own; else why not. */
static void json_images(struct buf *b, const struct tower *t, const char *why) {
    const char *file = t && t->beside ? t->beside->files.shards[0].name : NULL;
    buf_fmt(b, ",\"images\":{\"read\":%s", t ? "true" : "false");
    if (!t || file) buf_str(b, t ? ",\"file\":" : ",\"why\":");
    if (!t || file) json_quote(b, t ? file : why, strlen(t ? file : why));
    buf_str(b, "}");
}

int engine_inspect(const struct engine_params *p, struct buf *b, struct error *e) {
    struct weights w;
    struct tower *tower = NULL;
    char no_images[400];
    int rc = engine_check_modes(p, e);
    if (!rc) rc = weights_open(&w, p->dir, p->force, e);
    if (rc) return rc;
    if ((rc = tower_open(&tower, &w, p->mmproj, no_images, sizeof no_images, e))) {
        weights_close(&w);
        return rc;
    }
    const struct config *c = &w.config;
    enum dtype kv = p->kv ? p->kv : DT_BF16;
    enum cpu_level level = p->cpu_level ? (enum cpu_level)(p->cpu_level - 1) : cpu_level_best();
    const int layers = c->n_layers - config_is_bare(c, c->n_layers - 1), published = layers / arch_sublayers(c->arch);
    int moe = 0, ffns = 0, first = -1, kind = 0, states = 0, mixer = 0, window = 0, windows = 0, dense = 0;
    for (int i = 0; i < layers; i++) {
        moe += c->layer[i].moe, ffns += !c->layer[i].no_ffn;
        if (config_is_stateful(c, i)) states++, mixer = i;
        windows += c->layer[i].window > 0;
        if (c->layer[i].window > window) window = c->layer[i].window;
        if (c->layer[i].moe && first < 0) first = i;
    }
    /* first layer with attention, if any */
    while (kind < c->n_layers - 1 && c->layer[kind].mixer) kind++;
    while (dense < layers && (c->layer[dense].moe || c->layer[dense].no_ffn)) dense++; /* first layer without experts */
    buf_str(b, "{\"path\":");
    json_quote(b, p->dir, strlen(p->dir));
    buf_fmt(b, ",\"family\":\"%s\",\"model_type\":", c->arch->title);
    json_quote(b, c->model_type, strlen(c->model_type));
    buf_fmt(b, ",\"layers\":%d,\"layers_with_experts\":%d,\"hidden\":%d,\"vocab\":%d,\"context\":%d", published, moe,
            c->hidden, c->vocab, c->max_context);
    buf_fmt(b, ",\"attention\":{\"kind\":\"%s\",\"heads\":%d,\"kv_heads\":%d,\"head_dim\":%d,\"v_dim\":%d",
            attention_of(c, kind)->name, c->n_heads, c->kv_lora ? c->n_heads : c->n_kv_heads, c->head_dim, c->v_dim);
    if (config_has_mixer(c, MIXER_DELTA))
        buf_fmt(b,
                ",\"deltanet\":{\"layers\":%d,\"key_heads\":%d,\"value_heads\":%d,\"key_dim\":%d,\"value_dim\":%d,"
                "\"state_bytes\":%zu}",
                states, c->delta.k_heads, c->delta.v_heads, c->delta.k_dim, c->delta.v_dim, kv_state_bytes(c));
    else if (states)
        buf_fmt(b, ",\"%s\":{\"layers\":%d,\"state_bytes\":%zu}", attention_of(c, mixer)->name, states,
                kv_state_bytes(c));
    if (c->kv_lora)
        buf_fmt(b, ",\"q_lora_rank\":%d,\"kv_lora_rank\":%d,\"qk_nope\":%d,\"qk_rope\":%d", c->q_lora, c->kv_lora,
                c->qk_nope, c->qk_rope);
    if (c->attn == ATTN_COMPRESSED) {
        buf_fmt(b, ",\"q_lora_rank\":%d,\"o_groups\":%d,\"o_lora_rank\":%d,\"tokens_a_key\":[", c->q_lora, c->o_groups,
                c->o_lora);
        for (int i = 0; i < c->n_layers; i++) buf_fmt(b, "%s%d", i ? "," : "", c->layer[i].ratio);
        buf_str(b, "]");
    }
    if (c->attn == ATTN_DSA || c->attn == ATTN_COMPRESSED)
        buf_fmt(b, ",\"index_heads\":%d,\"index_head_dim\":%d,\"index_topk\":%d", c->index_heads, c->index_dim,
                c->index_topk);
    static const char *const ropes[] = {"default", "linear", "yarn", "llama3", "longrope", "factors", "proportional"};
    static const char *const scores[] = {[SCORE_SOFTMAX] = "softmax",
                                         [SCORE_SIGMOID] = "sigmoid",
                                         [SCORE_MIXER] = "mixer",
                                         [SCORE_SQRT_SOFTPLUS] = "sqrtsoftplus",
                                         [SCORE_SIGMOID_BY_LOGIT] = "sigmoid"};
    buf_fmt(b, ",\"window\":%d,\"layers_with_window\":%d},\"rope\":{\"kind\":\"%s\",\"dim\":%d,\"theta\":%.10g", window,
            windows, ropes[c->rope.kind], c->rope.dim, c->rope.theta);
    if (c->rope.kind) buf_fmt(b, ",\"factor\":%g", c->rope.factor);
    buf_fmt(
        b,
        "},\"experts\":{\"routed\":%d,\"active\":%d,\"groups\":%d,\"inter\":%d,\"shared_inter\":%d,\"score\":\"%s\"}",
        c->n_experts, c->topk, c->n_group > 1 ? c->n_group : 1, c->moe_inter, c->shared_inter, scores[c->score]);
    if (moe < ffns) buf_fmt(b, ",\"dense\":{\"layers\":%d,\"inter\":%d}", ffns - moe, c->dense_inter);
    if (c->streams.n && !c->streams.is_plain) buf_fmt(b, ",\"residual_streams\":%d", c->streams.n);
    buf_str(b, ",\"formats\":{");
    json_mat(b, "embedding", &w.embed);
    json_mat(b, "head", &w.head);
    json_mat(b, "attention_out", &w.layers[kind].o);
    if (first >= 0) {
        json_mat(b, "router", &w.layers[first].router);
        json_mat(b, "expert_gate", &w.layers[first].experts[0].gate);
        json_mat(b, "expert_down", &w.layers[first].experts[0].down);
    }
    if (dense < layers) {
        json_mat(b, "dense_gate", &w.layers[dense].dense.gate);
        json_mat(b, "dense_down", &w.layers[dense].dense.down);
    }
    buf_str(b, "}");
    json_mix(b, &w);
    buf_fmt(b,
            ",\"bytes\":{\"routed\":%zu,\"dense\":%zu,\"embedding\":%zu,\"vision\":%zu,\"skipped\":%zu,\"all\":%zu,"
            "\"repacked\":%zu,"
            "\"per_token\":%zu,\"kv_per_token\":%zu}",
            w.bytes_routed, w.bytes_dense, w.bytes_embed, tower ? tower->bytes : 0, w.bytes_skipped, w.files.bytes,
            w.bytes_repacked, weights_token_bytes(&w), kv_token_bytes(c, kv));
    json_images(b, tower, no_images);
    buf_fmt(b, ",\"files\":%d,\"tensors\":%zu,\"skipped\":{\"tensors\":%zu,\"prediction_layers\":%zu,\"first\":[",
            w.files.n_shards, w.files.n_tensors, w.n_skipped, w.n_mtp_tensors);
    json_skipped(b, &w.files);
    buf_fmt(b, "]},\"runs\":{\"attention\":\"cpu %s\",\"experts\":\"cpu %s\",\"kv\":\"%s\",\"gpus\":[",
            cpu_level_name(level), cpu_level_name(level), dtype_name(kv));
    rc = json_devices(b, p, &w, kv, e);
    buf_str(b, "}}");
    tower_close(&tower);
    weights_close(&w);
    if (rc) return rc;
    return b->failed ? error_set(e, ERR_MEMORY, "no memory for the report") : 0;
}

struct verify_span { /* of the bytes of all files, those of one checkpoint */
    const struct engine_params *p;
    double before, bytes, all;
};
static int verify_progress(void *ctx, double share) {
    const struct verify_span *s = ctx;
    const struct engine_params *p = s->p;
    return p->progress ? p->progress(p->progress_ctx, "verify", (s->before + share * s->bytes) / s->all) : 0;
}

/* Refuses a file of --mmproj that is none of this model's, as opening does. */
static int check_mmproj(struct weights *w, const char *file, struct error *e) {
    struct tower *tower = NULL;
    char why[400];
    int rc = file ? tower_open(&tower, w, file, why, sizeof why, e) : 0;
    tower_close(&tower);
    return rc;
}

int engine_verify(const struct engine_params *p, struct error *e) {
    struct weights w;
    struct checkpoint beside[TOWER_MMPROJ_MOST];
    struct verify_span s = {.p = p};
    int rc = engine_check_modes(p, e), n = 0;
    if (!rc) rc = weights_open(&w, p->dir, p->force, e);
    if (rc) return rc;
    rc = check_mmproj(&w, p->mmproj, e);
    if (!rc && w.files.gguf) n = tower_mmproj_files(beside, &w, p->mmproj, e);
    if (n < 0) rc = n, n = 0;
    s.all = s.bytes = (double)w.files.bytes;
    for (int i = 0; i < n; i++) s.all += (double)beside[i].bytes;
    if (!rc) rc = weights_verify(&w.files, verify_progress, &s, e);
    for (int i = 0; i < n && !rc; i++) {
        s.before += s.bytes, s.bytes = (double)beside[i].bytes;
        rc = weights_verify(&beside[i], verify_progress, &s, e);
    }
    while (n-- > 0) checkpoint_close(&beside[n]);
    weights_close(&w);
    return rc;
}
