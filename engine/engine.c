#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/limit.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/internal.h"
#include "engine/model/arch.h"

/* --- generation_config.json: stop ids and the vendor's sampling ------------------------------------------------------- */

static int add_eos(struct engine *e, int64_t id) {
    if (id < 0 || id >= e->info.vocab) return 0; /* some vendors list ids that their vocabulary lacks */
    for (int i = 0; i < e->info.n_eos; i++)
        if (e->eos[i] == id) return 0;
    int32_t *more = mem_realloc(e->eos, ((size_t)e->info.n_eos + 1) * sizeof *more);
    if (!more) return ERR_MEMORY;
    e->eos = more;
    e->eos[e->info.n_eos++] = (int32_t)id;
    e->info.eos = e->eos;
    return 0;
}

static int read_generation(struct engine *e, struct error *err) {
    const struct config *c = &e->weights.config;
    struct engine_info *f = &e->info;
    int rc = 0;
    for (int i = 0; i < c->n_eos && !rc; i++) rc = add_eos(e, c->eos[i]);
    f->temperature = f->top_p = f->min_p = f->repeat_penalty = NAN;
    char path[4096], *text = NULL;
    size_t n;
    if (!rc) rc = file_join(path, sizeof path, e->dir, "generation_config.json", err);
    if (rc || !file_exists(path)) return rc;
    if ((rc = file_read(path, 1u << 20, &text, &n, err))) return rc;
    struct arena a = {0};
    struct json root;
    rc = json_parse(&a, text, n, 0, path, &root, err);
    if (!rc) {
        const struct json *eos = json_get(&root, "eos_token_id");
        for (uint32_t i = 0; !rc && eos && i < (eos->type == JSON_ARRAY ? eos->n : 1); i++)
            rc = add_eos(e, json_int(eos->type == JSON_ARRAY ? json_at(eos, i) : eos, -1));
        f->temperature = json_num(json_get(&root, "temperature"), NAN);
        f->top_p = json_num(json_get(&root, "top_p"), NAN);
        f->min_p = json_num(json_get(&root, "min_p"), NAN);
        f->repeat_penalty = json_num(json_get(&root, "repetition_penalty"), NAN);
        int64_t k = json_int(json_get(&root, "top_k"), 0);
        f->top_k = k > 0 && k < f->vocab ? (int)k : 0;
        f->do_sample = json_bool(json_get(&root, "do_sample"), false);
    }
    arena_free(&a);
    mem_free(text);
    return rc;
}

/* --- Open and close ------------------------------------------------------------------------------------------------------ */

static char *last_part(const char *dir) {
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    size_t at = n;
    while (at > 0 && dir[at - 1] != '/') at--;
    return !strcmp(dir, "ember:") ? mem_strdup("ember") : mem_strndup(dir + at, n - at);
}

/* Rows of a prefill batch: enough that each expert sees many tokens, few enough that the workspace stays small. */
static int batch_rows(const struct config *c, int context) {
    int rows = (int)limit_get(LIMIT_ROWS, 1024);
    while (rows > 64 && work_bytes(c, rows) > (size_t)1 << 30) rows /= 2;
    return rows < context ? rows : context;
}

static int check_modes(const struct engine_params *p, struct error *e) {
    bool none = !p->gpus || !*p->gpus || !strcmp(p->gpus, "none");
    struct gpu_spec spec = {0};
    int rc = none ? 0 : gpu_parse(&spec, p->gpus, e);
    if (rc) return rc;
    if (spec.is_virtual) return error_set(e, ERR_USAGE, "--gpus %s: in virtual time nothing is computed", p->gpus);
    if (p->prefill == PREFILL_DSLP && spec.n == 1) return error_set(e, ERR_USAGE, "--prefill dslp needs two devices or more; --gpus names one");
    if (none && (p->prefill == PREFILL_SLP || p->prefill == PREFILL_DSLP))
        return error_set(e, ERR_RUNTIME, "--prefill %s streams weights to a device: name one with --gpus", p->prefill == PREFILL_SLP ? "slp" : "dslp");
    if (p->decode == DECODE_DUAL)
        return error_set(e, ERR_RUNTIME, "--decode dual: overlapping two batches is not in this version; sessions that answer together share each reading of the weights without it");
    return 0;
}

static int read_nodes(struct engine *e, struct error *err) {
    if (!e->params.topology) {
        numa_read(&e->nodes);
        return 0;
    }
    char *text;
    size_t n;
    int rc = file_read(e->params.topology, 1u << 20, &text, &n, err);
    if (!rc) rc = numa_parse(&e->nodes, text, err);
    mem_free(text);
    return rc;
}

static int open_machine(struct engine *e, struct error *err) {
    const struct config *c = &e->weights.config;
    enum cpu_level level = e->params.cpu_level ? (enum cpu_level)(e->params.cpu_level - 1) : cpu_level_best();
    int rc;
    if (!cpu_level_has(level))
        return error_set(err, ERR_USAGE, "--cpu %s: this processor has up to %s", cpu_level_name(level), cpu_level_name(cpu_level_best()));
    if ((rc = read_nodes(e, err))) return rc;
    if ((rc = pool_open_nodes(&e->pool, e->params.threads, true, &e->nodes, err))) return rc;
    if (!(e->machine.cpu = cpu_exec_open(e->pool, level, err))) return ERR_MEMORY;
    if ((rc = work_open(&e->prefill_work, c, batch_rows(c, e->info.context), NULL, NULL, NULL, err))) return rc;
    if ((rc = work_open(&e->decode_work, c, ENGINE_BATCH, NULL, NULL, NULL, err))) return rc;
    e->logits = mem_alloc((size_t)ENGINE_BATCH * (size_t)c->vocab * sizeof *e->logits);
    e->scratch = mem_alloc((size_t)c->vocab * sizeof *e->scratch);
    e->machine.touched = mem_calloc((size_t)c->n_experts + 1, 1);
    if (!e->logits || !e->scratch || !e->machine.touched) return error_set(err, ERR_MEMORY, "no memory for logits over %d tokens", c->vocab);
    rc = gpu_set_open(&e->machine.gpus, e->params.gpus, &e->weights, err);
    if (rc == ERR_RUNTIME && e->params.prefill != PREFILL_SLP && e->params.prefill != PREFILL_DSLP) {
        log_say(LOG_WARN, "--gpus %s: %s; going on with the processor", e->params.gpus, err->text);
        *err = (struct error){0};
        rc = 0;
    }
    if (rc) return rc;
    e->machine.trace = e->params.trace;
    if ((rc = scan_open(&e->machine.scan, &e->weights, e->pool, err))) return rc;
    size_t bytes = e->weights.files.bytes - e->weights.bytes_skipped - (c->tied ? 0 : mat_bytes(&e->weights.embed));
    /* a device streams whole experts from the mapping: these stay one copy */
    bool copies = !e->machine.gpus && place_fits(&e->nodes, bytes, e->params.hugepages);
    if (copies && (rc = place_open(&e->machine.place, &e->weights, &e->nodes, e->params.hugepages, &e->machine.scan, err))) return rc;
    if (!copies && (e->params.hugepages || e->nodes.n_nodes > 1))
        log_say(LOG_INFO, "weights stay mapped from their files: %s", e->machine.gpus ? "a device reads them there" : "a copy does not fit in memory");
    if (!copies && fetch_needed(&e->weights)) {
        log_say(LOG_INFO, "%zu MB of weights, %zu MB of memory: experts are read as they are needed", bytes >> 20, mem_available() >> 20);
        if ((rc = work_open(&e->guess_work, c, ENGINE_BATCH, NULL, NULL, NULL, err)) || (rc = fetch_open(&e->machine.fetch, &e->weights, err))) return rc;
        e->machine.guess = &e->guess_work;
    }
    e->machine.w = &e->weights;
    e->machine.prefill = &e->prefill_work;
    e->machine.decode = &e->decode_work;
    int moe = 0;
    for (int i = 0; i < c->n_layers; i++) moe += c->layer[i].moe;
    e->machine.expert_bytes = moe && c->n_experts ? e->weights.bytes_routed / (uint64_t)moe / (uint64_t)c->n_experts : 0;
    e->info.threads = pool_threads(e->pool);
    e->info.level = cpu_level_name(level);
    return 0;
}

int engine_open(struct engine **out, const struct engine_params *p, struct error *err) {
    *out = NULL;
    struct engine *e = mem_calloc(1, sizeof *e);
    if (!e) return error_set(err, ERR_MEMORY, "no memory for the engine");
    e->params = *p;
    if (!e->params.kv) e->params.kv = DT_BF16;
    e->fd = -1;
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->work, NULL);
    pthread_cond_init(&e->room, NULL);
    pthread_cond_init(&e->event, &attr);
    pthread_condattr_destroy(&attr);
    mem_prefer_huge(p->hugepages);
    int rc = check_modes(p, err);
    e->dir = mem_strdup(p->dir);
    e->name = last_part(p->dir);
    if (!rc && (!e->dir || !e->name)) rc = error_set(err, ERR_MEMORY, "no memory for the engine");
    if (!rc) rc = weights_open(&e->weights, p->dir, p->force, err);
    if (rc) goto fail;
    const struct config *c = &e->weights.config;
    e->info = (struct engine_info){
        .model_type = c->model_type, .name = e->name, .vocab = c->vocab, .n_layers = c->n_layers, .hidden = c->hidden,
        .n_experts = c->n_experts, .topk = c->topk, .max_context = c->max_context, .context = p->context ? p->context : c->max_context,
        .kv_token_bytes = kv_token_bytes(c, e->params.kv), .fingerprint = e->weights.files.fingerprint,
    };
    if (p->context < 0 || (p->context > c->max_context && !p->force)) {
        rc = error_set(err, ERR_USAGE, "-c %d: %s was made for up to %d tokens; --force overrides", p->context, e->name, c->max_context);
        goto fail;
    }
    size_t have = mem_available(), need = p->context ? (size_t)p->context * e->info.kv_token_bytes : 0;
    if (have && need > have && !p->force) {
        rc = error_set(err, ERR_MEMORY, "a context of %d tokens needs %zu MB for its KV cache, %zu MB are free; take a smaller one with -c or --kv fp8", p->context, need >> 20, have >> 20);
        goto fail;
    }
    if ((rc = read_generation(e, err)) || (rc = open_machine(e, err))) goto fail;
    if ((e->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0 || pthread_create(&e->thread, NULL, engine_thread, e)) {
        rc = error_set(err, ERR_RUNTIME, "cannot start the engine's thread");
        goto fail;
    }
    e->started = true;
    *out = e;
    return 0;
fail:
    if (!err->code) error_set(err, rc, "the engine could not be opened");
    engine_close(&e);
    return rc;
}

static void close_fetch(struct engine *e) {
    struct fetch_counts n;
    if (!e->machine.fetch) return;
    fetch_count(e->machine.fetch, &n);
    log_say(LOG_INFO, "of %llu experts chosen %llu were not in memory; %llu were read ahead of it, %llu of these in vain", (unsigned long long)n.chosen,
            (unsigned long long)n.missing, (unsigned long long)n.likely, (unsigned long long)(n.likely - n.guessed));
    fetch_close(&e->machine.fetch);
}

void engine_close(struct engine **ep) {
    struct engine *e = *ep;
    if (!e) return;
    *ep = NULL;
    atomic_store(&e->closing, 1);
    for (struct session *s = e->sessions; s; s = s->next) atomic_store(&s->cancel, 1);
    pthread_mutex_lock(&e->lock);
    pthread_cond_broadcast(&e->work);
    pthread_cond_broadcast(&e->room);
    pthread_mutex_unlock(&e->lock);
    if (e->started) pthread_join(e->thread, NULL);
    while (e->sessions) {
        struct session *s = e->sessions;
        session_close(&s);
    }
    gpu_set_close(&e->machine.gpus);
    close_fetch(e);
    place_close(&e->machine.place);
    scan_close(&e->machine.scan);
    work_close(&e->prefill_work);
    work_close(&e->decode_work);
    work_close(&e->guess_work);
    cpu_exec_close(&e->machine.cpu);
    pool_close(&e->pool);
    weights_close(&e->weights);
    if (e->fd >= 0) close(e->fd);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->work);
    pthread_cond_destroy(&e->room);
    pthread_cond_destroy(&e->event);
    mem_free(e->machine.touched);
    mem_free(e->logits);
    mem_free(e->scratch);
    mem_free(e->eos);
    mem_free(e->dir);
    mem_free(e->name);
    mem_free(e);
}

const struct engine_info *engine_info(const struct engine *e) { return &e->info; }
int engine_fd(const struct engine *e) { return e->fd; }
uint64_t engine_token_bytes(const struct engine *e) { return weights_token_bytes(&e->weights); }

uint64_t engine_token_flops(const struct engine *e) {
    const struct config *c = &e->weights.config;
    uint64_t sum = 0;
    for (int i = 0; i < c->n_layers; i++) {
        const struct layer *y = &e->weights.layers[i];
        const struct mat *all[] = {&y->q, &y->k, &y->v, &y->o, &y->q_a, &y->q_b, &y->kv_a, &y->kv_b, &y->router, &y->dense.gate, &y->dense.up, &y->dense.down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) sum += 2 * (uint64_t)all[k]->rows * (uint64_t)all[k]->cols;
        if (y->experts) sum += 6 * (uint64_t)c->topk * (uint64_t)c->moe_inter * (uint64_t)c->hidden;
    }
    return sum;
}

int engine_describe(struct buf *out) {
    char all[300];
    arch_list(all, sizeof all);
    char devices[400];
    gpu_describe(devices, sizeof devices);
    buf_fmt(out, "cpu: %s\ndevices: %s\nfamilies: %s\n", cpu_describe(), devices, all);
    return out->failed ? ERR_MEMORY : 0;
}

/* --- --inspect and --verify ------------------------------------------------------------------------------------------------ */

static void put_mat(struct buf *b, const char *key, const struct mat *m) {
    if (!m->data || !b->len) return;
    buf_str(b, b->data[b->len - 1] == '{' ? "" : ",");
    buf_fmt(b, "\"%s\":{\"dtype\":\"%s\",\"shape\":[%d,%d]", key, dtype_name(m->dtype), m->rows, m->cols);
    if (m->scale) buf_fmt(b, ",\"block\":[%d,%d],\"scale_dtype\":\"%s\"", m->block_rows, m->block_cols, dtype_name(m->scale_dtype));
    buf_str(b, "}");
}

static void put_skipped(struct buf *b, const struct checkpoint *f) {
    int shown = 0;
    for (size_t i = 0; i < f->n_tensors && shown < 8; i++)
        if (!f->tensors[i].used) {
            buf_str(b, shown++ ? "," : "");
            json_quote(b, f->tensors[i].name, strlen(f->tensors[i].name));
        }
}

int engine_inspect(const struct engine_params *p, struct buf *b, struct error *e) {
    struct weights w;
    int rc = check_modes(p, e);
    if (!rc) rc = weights_open(&w, p->dir, p->force, e);
    if (rc) return rc;
    const struct config *c = &w.config;
    enum dtype kv = p->kv ? p->kv : DT_BF16;
    enum cpu_level level = p->cpu_level ? (enum cpu_level)(p->cpu_level - 1) : cpu_level_best();
    int moe = 0, first = -1;
    for (int i = 0; i < c->n_layers; i++) {
        moe += c->layer[i].moe;
        if (c->layer[i].moe && first < 0) first = i;
    }
    buf_str(b, "{\"path\":");
    json_quote(b, p->dir, strlen(p->dir));
    buf_fmt(b, ",\"family\":\"%s\",\"model_type\":", c->arch->title);
    json_quote(b, c->model_type, strlen(c->model_type));
    buf_fmt(b, ",\"layers\":%d,\"layers_with_experts\":%d,\"hidden\":%d,\"vocab\":%d,\"context\":%d", c->n_layers, moe, c->hidden, c->vocab, c->max_context);
    buf_fmt(b, ",\"attention\":{\"kind\":\"%s\",\"heads\":%d,\"kv_heads\":%d,\"head_dim\":%d,\"v_dim\":%d", c->attn == ATTN_MLA ? "mla" : "gqa", c->n_heads,
            c->attn == ATTN_MLA ? c->n_heads : c->n_kv_heads, c->head_dim, c->v_dim);
    if (c->attn == ATTN_MLA) buf_fmt(b, ",\"q_lora_rank\":%d,\"kv_lora_rank\":%d,\"qk_nope\":%d,\"qk_rope\":%d", c->q_lora, c->kv_lora, c->qk_nope, c->qk_rope);
    static const char *const ropes[] = {"default", "linear", "yarn", "llama3"};
    buf_fmt(b, ",\"window\":%d},\"rope\":{\"kind\":\"%s\",\"dim\":%d,\"theta\":%.10g", c->layer[0].window, ropes[c->rope.kind], c->rope.dim, c->rope.theta);
    if (c->rope.kind) buf_fmt(b, ",\"factor\":%g", c->rope.factor);
    buf_fmt(b, "},\"experts\":{\"routed\":%d,\"active\":%d,\"groups\":%d,\"inter\":%d,\"shared_inter\":%d,\"score\":\"%s\"}", c->n_experts, c->topk,
            c->n_group > 1 ? c->n_group : 1, c->moe_inter, c->shared_inter, c->score == SCORE_SIGMOID ? "sigmoid" : "softmax");
    buf_str(b, ",\"formats\":{");
    put_mat(b, "embedding", &w.embed);
    put_mat(b, "head", &w.head);
    put_mat(b, "attention_out", &w.layers[0].o);
    if (first >= 0) {
        put_mat(b, "router", &w.layers[first].router);
        put_mat(b, "expert_gate", &w.layers[first].experts[0].gate);
        put_mat(b, "expert_down", &w.layers[first].experts[0].down);
    }
    buf_fmt(b, "},\"bytes\":{\"routed\":%zu,\"dense\":%zu,\"embedding\":%zu,\"skipped\":%zu,\"all\":%zu,\"per_token\":%zu,\"kv_per_token\":%zu}", w.bytes_routed,
            w.bytes_dense, w.bytes_embed, w.bytes_skipped, w.files.bytes, weights_token_bytes(&w), kv_token_bytes(c, kv));
    buf_fmt(b, ",\"files\":%d,\"tensors\":%zu,\"skipped\":{\"tensors\":%zu,\"prediction_layers\":%zu,\"first\":[", w.files.n_shards, w.files.n_tensors, w.n_skipped, w.n_mtp);
    put_skipped(b, &w.files);
    buf_fmt(b, "]},\"runs\":{\"attention\":\"cpu %s\",\"experts\":\"cpu %s\",\"kv\":\"%s\",\"gpus\":[]}}", cpu_level_name(level), cpu_level_name(level), dtype_name(kv));
    weights_close(&w);
    return b->failed ? error_set(e, ERR_MEMORY, "no memory for the report") : 0;
}

static int verify_progress(void *ctx, double share) {
    const struct engine_params *p = ctx;
    return p->progress ? p->progress(p->progress_ctx, "verify", share) : 0;
}

int engine_verify(const struct engine_params *p, struct error *e) {
    struct weights w;
    int rc = weights_open(&w, p->dir, p->force, e);
    if (rc) return rc;
    rc = weights_verify(&w, verify_progress, (void *)p, e);
    weights_close(&w);
    return rc;
}
