/* Opens and closes an engine: weights, CPU, devices, thread. Also checks options. */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/test_limits.h"
#include "engine/experts/score.h"
#include "engine/layer/kv_planes.h"
#include "engine/layer/work_open.h"
#include "engine/placement/numa_cost.h"
#include "engine/session/engine_internal.h"
#include "engine/session/throughput.h"
#include "engine/transfer/trace.h"
#include "engine/weights/weights_open.h"

/* --- Open and close ------------------------------------------------------------------------------------------------------ */

static char *dir_basename(const char *dir) {
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    size_t at = n;
    while (at > 0 && dir[at - 1] != '/') at--;
    return !strcmp(dir, "ember:") ? mem_strdup("ember") : mem_strndup(dir + at, n - at);
}

/* Rows of a prefill batch: enough that each expert gets many tokens, few enough that the workspace stays small. */
static int prefill_batch_rows(const struct config *c, int context) {
    int rows = (int)test_limits_get(TEST_LIMIT_PREFILL_ROWS, 1024);
    while (rows > 64 && work_bytes(c, rows) > (size_t)1 << 30) rows /= 2;
    return rows < context ? rows : context;
}

int engine_check_level(const struct engine_params *p, struct error *e) {
    enum cpu_level level = p->cpu_level ? (enum cpu_level)(p->cpu_level - 1) : cpu_level_best();
    if (cpu_level_has(level)) return 0;
    return error_set(e, ERR_USAGE, "--cpu %s: this CPU supports up to %s", cpu_level_name(level), cpu_level_name(cpu_level_best()));
}

int engine_parse_expert_cache(const char *text, enum budget_request *ask, size_t *n) {
    char *end;
    *n = 0;
    *ask = !text || !strcmp(text, "off") ? BUDGET_OFF : !strcmp(text, "layers") ? BUDGET_LAYERS : BUDGET_AUTO;
    if (*ask == BUDGET_OFF || *ask == BUDGET_LAYERS || !strcmp(text, "auto")) return 0;
    double x = strtod(text, &end);
    const char *units = "KMGT", *unit = *end ? strchr(units, *end) : NULL;
    if (!(text[0] >= '0' && text[0] <= '9') || !(x < 1e9) || (*end && (!unit || end[1])) || (!*end && x != (double)(size_t)x)) return ERR_USAGE;
    *ask = unit ? BUDGET_BYTES : x > 0 ? BUDGET_EXPERTS : BUDGET_OFF;
    for (const char *u = units; unit && u <= unit; u++) x *= 1024;
    *n = (size_t)x;
    return 0;
}

int engine_check_modes(const struct engine_params *p, struct error *e) {
    bool none = !p->gpus || !*p->gpus || !strcmp(p->gpus, "none");
    struct gpu_spec spec = {0};
    int rc = engine_check_level(p, e);
    if (!rc && !none) rc = gpu_spec_parse(&spec, p->gpus, e);
    if (rc) return rc;
    if (spec.is_virtual) return error_set(e, ERR_USAGE, "--gpus %s: virtual time is a simulation and computes nothing", p->gpus);
    if (p->prefill == PREFILL_DSLP && spec.n == 1) return error_set(e, ERR_USAGE, "--prefill dslp needs two devices or more; --gpus names one");
    if (none && exec_modes[p->prefill].min_devices)
        return error_set(e, ERR_USAGE, "--prefill %s needs a device: name one with --gpus", exec_mode_name(p->prefill));
    if (none && exec_modes[p->decode].min_devices)
        return error_set(e, ERR_USAGE, "--decode %s needs a device: name one with --gpus", exec_mode_name(p->decode));
    if (p->decode == DECODE_PAGED && p->draft > DRAFT_AUTO)
        return error_set(e, ERR_USAGE, "--decode paged uses no drafts, since a row of another prompt yields more than a drafted token: leave out --draft");
    if (p->decode == DECODE_PAGED && p->defer)
        return error_set(e, ERR_USAGE, "--decode paged cannot be combined with --defer: its devices compute experts for many rows, and nothing waits");
    if (p->defer && spec.parallel == GPU_PARALLEL_TENSOR) return error_set(e, ERR_USAGE, "--defer cannot be combined with parallel=tensor in --gpus");
    enum budget_request ask;
    size_t n;
    if (engine_parse_expert_cache(p->expert_cache, &ask, &n))
        return error_set(e, ERR_USAGE, "--expert-cache %s: use layers, auto, off, experts per layer (8) or memory per device (4G)", p->expert_cache);
    if (p->evict && !score_find(p->evict)) return error_set(e, ERR_USAGE, "--evict %s: unknown policy", p->evict);
    return p->split && !split_find(p->split) ? error_set(e, ERR_USAGE, "--split %s: unknown policy", p->split) : 0;
}

int engine_set_deferral(struct config *c, int n, const char *name, struct error *err) {
    int pairs = 0;
    if (!n) return 0;
    if (n < 0 || n >= c->topk || !c->n_experts)
        return error_set(err, ERR_USAGE,
                         c->n_experts ? "--defer %d: %s chooses %d experts for a token; at most %d can be deferred" : "--defer %d: %s has no experts", n, name,
                         c->topk, c->topk - 1);
    if (c->n_always || c->n_idle_experts) return error_set(err, ERR_USAGE, "--defer %d: the router of %s does not rank all experts that it chooses", n, name);
    if (c->routed_sum_norm) return error_set(err, ERR_USAGE, "--defer %d: %s norms the sum of a token's experts, so that none can be added later", n, name);
    c->n_deferred = n;
    for (int l = 0; l < c->n_layers; l++) pairs += config_defers(c, l);
    return pairs ? 0 : error_set(err, ERR_USAGE, "--defer %d: in %s, no layer with ranked experts is followed by another layer with experts", n, name);
}

int engine_read_topology(struct numa *nodes, const char *topology, struct error *err) {
    if (!topology) {
        numa_read(nodes);
        return 0;
    }
    char *text;
    size_t n;
    int rc = file_read(topology, 1u << 20, &text, &n, err);
    if (!rc) rc = numa_parse(nodes, text, err);
    mem_free(text);
    return rc;
}

/* Enters the NUMA nodes into the cost model: as measured, or else with equal speeds, scaled by CPU count. home: each node computes the weights in its memory.
 */
static void set_numa_nodes(struct engine *e, bool home) {
    const struct numa *n = &e->numa;
    struct cost_machine *m = &e->cost;
    double cpus = 0;
    int measured = m->n_nodes;
    m->n_nodes = 0, m->spread_bw_share = 0;
    for (int a = 0; a < n->n_nodes; a++) cpus += n->cpus[a];
    if (n->n_nodes < 2 || n->n_nodes > COST_NODES || cpus < 1) return;
    if (measured != n->n_nodes) {
        numa_cost_even(m, n->n_nodes, 0);
        for (int a = 0; a < n->n_nodes; a++) m->node[a] = (struct cost_node){(double)n->memory[a], n->cpus[a] / cpus, n->cpus[a] / cpus};
    }
    m->n_nodes = n->n_nodes;
    if (home) return;
    m->spread_bw_share = numa_cost_reach(m, &e->cost_model);
    log_say(LOG_INFO, "%d NUMA nodes, weights are not placed by node: expecting %.0f%% of the bandwidth", m->n_nodes, 100 * m->spread_bw_share);
}

void engine_limit_uploads(struct engine *e) {
    const struct pin *p = e->machine.gpus ? e->machine.gpus->pin : NULL;
    for (int i = 1; p && i <= e->cost.n_devices; i++) {
        double *rate = &e->cost.domain[i].link[COST_H2D].rate;
        *rate = pin_rate(pin_get_choice(p)->path, *rate);
    }
    set_numa_nodes(e, numa_copy_is_copying(e->machine.numa_copy) || (p && pin_get_choice(p)->by_node));
}

/* Sets the speeds that --gpus gave for emulated devices. */
static void apply_emulated_speeds(struct cost_machine *m, const struct gpu_spec *s) {
    for (int d = 1; d <= m->n_devices; d++)
        for (int k = 0; k < COST_KINDS; k++) {
            struct cost_domain *g = &m->domain[d];
            double rate = k == COST_ATTENTION ? s->attn : s->flops;
            for (int i = 0; i < g->bw[k].n && s->bw > 0; i++) g->bw[k].value[i] = (float)s->bw;
            for (int f = 0; f < COST_FORMATS; f++)
                for (int i = 0; i < g->rate[k][f].n && rate > 0; i++) g->rate[k][f].value[i] = (float)rate;
            if (s->launch > 0) g->latency[k] = s->launch;
        }
}

/* Fills the cost model with assumed speeds; engine_calibrate() replaces them and observations correct them. */
static void assume_speeds(struct engine *e, enum cpu_level level) {
    const struct gpu_set *g = e->machine.gpus;
    const struct gpu_info *info = g ? gpu_info(g->gpu[0]) : NULL;
    cost_model_of(&e->cost_model, &e->weights.config, weights_dense_dtype(&e->weights), weights_ffn_dtype(&e->weights), (enum dtype)e->params.kv);
    cost_assumed(&e->cost, pool_threads(e->pool), (int)level, g ? g->n : 0, info ? info->h2d : 0, info ? info->d2h : 0, 0);
    if (g && g->spec.is_emulated) apply_emulated_speeds(&e->cost, &g->spec);
    e->cost.is_deterministic = e->params.deterministic;
    engine_limit_uploads(e);
    e->is_calibrated = !g || g->spec.is_emulated || !e->params.calibration_dir; /* no choice to make; speeds are given; no place to save results */
}

static int open_int4(struct engine *e, enum cpu_level level, struct error *err) {
    const struct config *c = &e->weights.config;
    int rc = int4_open(&e->int4, &e->weights, level, e->params.draft_dir, e->params.force, err);
    if (rc) return rc;
    if (e->machine.disk_prefetch) disk_prefetch_reserve(e->machine.disk_prefetch, int4_bytes(e->int4));
    if (!(e->lookahead_mem = mem_alloc(lookahead_bytes(c->n_layers, c->topk)))) return error_set(err, ERR_MEMORY, "no memory for an INT4 draft");
    lookahead_open(&e->lookahead, c->n_layers, c->topk, e->lookahead_mem);
    return 0;
}

static int open_runtime(struct engine *e, struct error *err) {
    const struct config *c = &e->weights.config;
    enum cpu_level level = e->params.cpu_level ? (enum cpu_level)(e->params.cpu_level - 1) : cpu_level_best();
    int rc;
    if ((rc = engine_read_topology(&e->numa, e->params.topology, err))) return rc;
    if ((rc = pool_open_nodes(&e->pool, e->params.threads, true, &e->numa, err))) return rc;
    if (!(e->machine.cpu = cpu_exec_open(e->pool, level, err))) return ERR_MEMORY;
    if ((rc = work_open(&e->prefill_work, c, prefill_batch_rows(c, e->info.context), NULL, NULL, NULL, err))) return rc;
    e->logits = mem_alloc((size_t)c->vocab * sizeof *e->logits);
    e->sample_scratch = mem_alloc((size_t)c->vocab * sizeof *e->sample_scratch);
    e->machine.expert_touched = mem_calloc((size_t)c->n_experts + 1, 1);
    if (!e->logits || !e->sample_scratch || !e->machine.expert_touched) return error_set(err, ERR_MEMORY, "no memory for logits over %d tokens", c->vocab);
    rc = gpu_set_open(&e->machine.gpus, e->params.gpus, err);
    if (rc == ERR_RUNTIME && !exec_modes[e->params.prefill].min_devices && !exec_modes[e->params.decode].min_devices) {
        log_say(LOG_WARN, "--gpus %s: %s; continuing on the CPU", e->params.gpus, err->text);
        *err = (struct error){0};
        rc = 0;
    }
    if (!rc && e->machine.gpus) rc = gpu_set_pin(e->machine.gpus, &e->weights, &e->numa, err);
    if (rc) return rc;
    if (e->params.trace && !(e->machine.trace = trace_open())) return error_set(err, ERR_MEMORY, "no memory for a trace");
    if (e->params.trace_routing && (rc = routing_trace_open(&e->machine.routing, e->params.trace_routing, &e->weights, e->name, err))) return rc;
    if (e->machine.gpus) trace_align_clock(e->machine.trace, e->machine.gpus->gpu[0]);
    if ((rc = weight_state_open(&e->machine.weight_state, c, err))) return rc;
    e->machine.scan = (struct nan_scan){&e->weights, e->pool, &e->machine.weight_state};
    size_t bytes = weights_needed_bytes(&e->weights) - (c->tied ? 0 : mat_bytes(&e->weights.embed));
    /* a device streams whole experts from the mapping, whose pages pin.h places: do not split these into node copies */
    bool copies = !e->machine.gpus && numa_copy_fits(&e->numa, bytes, e->params.hugepages);
    bool cut = copies || (e->machine.gpus && e->numa.n_nodes > 1);
    if (cut && (rc = numa_copy_open(&e->machine.numa_copy, &e->weights, &e->numa, copies, e->params.hugepages, &e->machine.weight_state, err))) return rc;
    if (!copies && (e->params.hugepages || e->numa.n_nodes > 1) && !(e->machine.gpus && pin_get_choice(e->machine.gpus->pin)->by_node))
        log_say(LOG_INFO, "weights stay mapped from their files: %s", e->machine.gpus ? "devices read the mapping" : "a copy does not fit in memory");
    const char *evict = e->params.evict ? e->params.evict : "auto";
    e->machine.evict_policy = score_find(e->params.draft == DRAFT_INT4 && !strcmp(evict, "auto") ? "lookahead" : evict);
    if (!copies && disk_prefetch_is_needed(&e->weights)) {
        log_say(LOG_INFO, "%zu MB of weights, %zu MB of memory: reading experts from disk on demand", bytes >> 20, mem_available() >> 20);
        if ((rc = work_open(&e->lookahead_work, c, ENGINE_MAX_BATCH, NULL, NULL, NULL, err)) ||
            (rc = disk_prefetch_open(&e->machine.disk_prefetch, &e->weights, &e->machine.weight_state, e->machine.evict_policy, err)))
            return rc;
        e->machine.lookahead_work = &e->lookahead_work;
    }
    if (!e->machine.gpus && !e->machine.numa_copy && !e->machine.disk_prefetch)
        e->huge_pages.files = &e->weights.files; /* no other part holds pointers into the mappings */
    e->machine.w = &e->weights;
    e->machine.run_on_engine = engine_run_on_thread;
    e->machine.wake_engine = engine_wake;
    e->machine.kv_common_rows = prefix_common_rows;
    e->machine.owner = e;
    e->machine.prefill_work = &e->prefill_work;
    e->machine.cost = &e->cost;
    e->machine.cost_model = &e->cost_model;
    e->machine.split_policy = e->params.split ? split_find(e->params.split) : &split_policies[0];
    engine_parse_expert_cache(e->params.expert_cache, &e->machine.pool_request, &e->machine.pool_request_n);
    const char *usage_dir = e->params.deterministic ? NULL : e->params.usage_dir;
    if (c->n_experts && e->machine.gpus && (rc = usage_profile_open(&e->machine.usage, c, usage_dir, e->weights.files.fingerprint, err))) return rc;
    e->machine.expert_bytes = weights_expert_bytes(&e->weights);
    e->info.threads = pool_threads(e->pool);
    e->info.level = cpu_level_name(level);
    assume_speeds(e, level);
    e->machine.no_device_decode = e->params.decode == DECODE_CPU && e->params.prefill != MODE_AUTO && e->params.prefill != PREFILL_BLEND;
    e->machine.whole_layers = e->params.prefill == PREFILL_BLEND || e->params.defer;
    if ((rc = decode_open(&e->machine.decode, &e->machine, (enum dtype)e->params.kv, err))) return rc;
    if ((e->params.draft == DRAFT_MTP || e->params.draft == DRAFT_AUTO) && !e->params.custom_draft &&
        (rc = mtp_open(&e->mtp, &e->weights, e->machine.cpu, e->info.context, (enum dtype)e->params.kv, err)))
        return rc;
    if (e->params.draft == DRAFT_MTP && !e->mtp) return error_set(err, ERR_USAGE, "--draft mtp: %s has no supported prediction layer", e->name);
    if (e->params.draft == DRAFT_INT4 && !e->params.custom_draft && (rc = open_int4(e, level, err))) return rc;
    if (e->params.draft == DRAFT_MODEL && (rc = model_draft_open(&e->model_draft, e->params.draft_model, &e->params, err))) return rc;
    decode_want_hidden(e->machine.decode, e->mtp);
    int lacks = e->machine.gpus && e->machine.gpus->is_lost ? ERR_RUNTIME : ERR_MEMORY;
    if (e->params.prefill == PREFILL_BLEND && decode_tp_ranks(e->machine.decode) > 1)
        return error_set(err, ERR_USAGE, "--prefill blend cannot be combined with parallel=tensor in --gpus");
    if (e->params.prefill == PREFILL_BLEND && !decode_can_blend(e->machine.decode))
        return error_set(err, lacks, "--prefill blend needs room for all layers on devices: %s", decode_placement_why(e->machine.decode));
    if ((e->params.decode == DECODE_HYBRID || e->params.decode == DECODE_DUAL) && !decode_resident_layers(e->machine.decode))
        return error_set(err, lacks, "--decode %s: %s", exec_mode_name(e->params.decode), decode_placement_why(e->machine.decode));
    return throughput_open(e, err);
}

int engine_open(struct engine **out, const struct engine_params *p, struct error *err) {
    *out = NULL;
    struct engine *e = mem_calloc(1, sizeof *e);
    if (!e) return error_set(err, ERR_MEMORY, "no memory for the engine");
    e->params = *p;
    if (!e->params.kv) e->params.kv = DT_BF16;
    e->event_fd = e->wake_fd = e->prefix_store.fd = -1;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->ended_cond, NULL);
    mem_prefer_huge(p->hugepages);
    int rc = engine_check_modes(p, err);
    e->dir = mem_strdup(p->dir);
    if (p->kv_dir) e->params.kv_dir = e->kv_dir = mem_strdup(p->kv_dir);
    if (p->calibration_dir) e->params.calibration_dir = e->calibration_dir = mem_strdup(p->calibration_dir);
    e->name = dir_basename(p->dir);
    if (!rc && (!e->dir || !e->name)) rc = error_set(err, ERR_MEMORY, "no memory for the engine");
    if (!rc) rc = weights_open(&e->weights, p->dir, p->force, err);
    if (!rc) rc = engine_set_deferral(&e->weights.config, p->defer, e->name, err);
    if (rc) goto fail;
    const struct config *c = &e->weights.config;
    e->info = (struct engine_info){
        .model_type = c->model_type,
        .name = e->name,
        .vocab = c->vocab,
        .n_layers = c->n_layers,
        .hidden = c->hidden,
        .n_experts = c->n_experts,
        .topk = c->topk,
        .max_context = c->max_context,
        .context = p->context ? p->context : c->max_context,
        .kv_token_bytes = kv_token_bytes(c, e->params.kv),
        .fingerprint = e->weights.files.fingerprint,
    };
    if (p->context < 0 || (p->context > c->max_context && !p->force)) {
        rc = error_set(err, ERR_USAGE, "-c %d: %s supports up to %d tokens; --force overrides", p->context, e->name, c->max_context);
        goto fail;
    }
    size_t have = mem_available(), need = p->context ? (size_t)p->context * e->info.kv_token_bytes : 0;
    if (have && need > have && !p->force) {
        rc = error_set(err, ERR_MEMORY, "a context of %d tokens needs %zu MB for its KV cache, %zu MB are free; use a smaller -c or --kv fp8", p->context,
                       need >> 20, have >> 20);
        goto fail;
    }
    if ((rc = generation_config_read(e, err)) || (rc = open_runtime(e, err))) goto fail;
    prefix_open(e);
    if ((e->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0 || (e->wake_fd = eventfd(0, EFD_CLOEXEC)) < 0 ||
        pthread_create(&e->thread, NULL, engine_thread, e)) {
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

static void save_usage(struct engine *e) {
    struct error err = {0};
    if (e->machine.usage && e->machine.decode && usage_profile_save(e->machine.usage, decode_expert_rows(e->machine.decode), &err))
        log_say(LOG_INFO, "the usage profile is not saved: %s", err.text);
    usage_profile_close(&e->machine.usage);
}

static void close_disk_prefetch(struct engine *e) {
    struct disk_prefetch_counts n;
    if (!e->machine.disk_prefetch) return;
    disk_prefetch_counts(e->machine.disk_prefetch, &n);
    log_say(LOG_INFO,
            "of %llu chosen experts %llu were not in memory; %llu were prefetched, %llu of them unused; memory has %d slots per layer, %llu experts were "
            "evicted",
            (unsigned long long)n.selected, (unsigned long long)n.missing, (unsigned long long)n.read_ahead,
            (unsigned long long)(n.read_ahead - n.read_ahead_hits), n.slots_per_layer, (unsigned long long)n.evicted);
    if (n.announced)
        log_say(LOG_INFO, "the draft predicted %llu experts that were not in memory, %llu of them were chosen", (unsigned long long)n.announced,
                (unsigned long long)n.announced_hits);
    disk_prefetch_close(&e->machine.disk_prefetch);
}

void engine_close(struct engine **ep) {
    struct engine *e = *ep;
    if (!e) return;
    *ep = NULL;
    atomic_store(&e->closing, 1);
    for (struct session *s = e->sessions; s; s = s->next) session_cancel(s);
    if (e->wake_fd >= 0) engine_wake(e);
    if (e->started) pthread_join(e->thread, NULL);
    e->started = false;
    while (e->sessions) {
        struct session *s = e->sessions;
        session_close(&s);
    }
    prefix_close(e);
    throughput_close(e);
    save_usage(e);
    decode_close(&e->machine.decode);
    mtp_close(&e->mtp);
    int4_close(&e->int4);
    model_draft_close(&e->model_draft);
    mem_free(e->lookahead_mem);
    trace_save(e->machine.trace, e->params.trace, true);
    trace_close(&e->machine.trace);
    routing_trace_close(&e->machine.routing);
    gpu_set_close(&e->machine.gpus);
    close_disk_prefetch(e);
    numa_copy_close(&e->machine.numa_copy);
    weight_state_close(&e->machine.weight_state);
    work_close(&e->prefill_work);
    work_close(&e->lookahead_work);
    cpu_exec_close(&e->machine.cpu);
    pool_close(&e->pool);
    weights_close(&e->weights);
    if (e->event_fd >= 0) close(e->event_fd);
    if (e->wake_fd >= 0) close(e->wake_fd);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->ended_cond);
    mem_free(e->machine.expert_touched);
    mem_free(e->logits);
    mem_free(e->prefill_tokens);
    mem_free(e->sample_scratch);
    mem_free(e->eos);
    mem_free(e->dir);
    mem_free(e->calibration_dir);
    mem_free(e->kv_dir);
    mem_free(e->name);
    mem_free(e);
}

struct expert_map_call {
    struct engine *e;
    struct expert_map *m;
};
static int fill_expert_map(void *arg) {
    const struct expert_map_call *p = arg;
    decode_expert_map(p->e->machine.decode, p->m->n_used, p->m->device_rank);
    struct decode_expert_device d[GPU_MAX];
    p->m->n_devices = decode_expert_devices(p->e->machine.decode, d);
    for (int i = 0; i < p->m->n_devices; i++)
        p->m->device[i] = (struct expert_device){.rank = d[i].rank,
                                                 .layers = d[i].layers,
                                                 .resident_layers = d[i].resident_layers,
                                                 .cached = d[i].cached,
                                                 .resident_bytes = d[i].resident_bytes,
                                                 .cached_bytes = d[i].cached_bytes,
                                                 .chosen = d[i].selected,
                                                 .hits = d[i].hits};
    return 0;
}
int engine_expert_map(struct engine *e, struct expert_map *out, struct error *err) {
    size_t n = (size_t)e->info.n_layers * (size_t)e->info.n_experts;
    *out = (struct expert_map){
        .n_layers = e->info.n_layers, .n_experts = e->info.n_experts, .n_used = mem_alloc(n * sizeof *out->n_used + 1), .device_rank = mem_alloc(n + 1)};
    if (!out->n_used || !out->device_rank) {
        engine_expert_map_free(out);
        return error_set(err, ERR_MEMORY, "no memory for a map of the experts");
    }
    return engine_run_on_thread(e, fill_expert_map, &(struct expert_map_call){e, out});
}
void engine_expert_map_free(struct expert_map *m) {
    mem_free(m->n_used), mem_free(m->device_rank);
    *m = (struct expert_map){0};
}

struct load {
    struct engine *e;
    const struct announced_load *load;
    int n;
};
static int announce_on_thread(void *arg) {
    struct load *l = arg;
    l->n = throughput_announce(l->e, l->load);
    return 0;
}
int engine_announce(struct engine *e, const struct announced_load *load) {
    struct load l = {e, load, 0};
    engine_run_on_thread(e, announce_on_thread, &l);
    return l.n;
}

const struct engine_info *engine_info(const struct engine *e) { return &e->info; }
int engine_event_fd(const struct engine *e) { return e->event_fd; }
uint64_t engine_token_bytes(const struct engine *e) { return weights_token_bytes(&e->weights); }
uint64_t engine_token_flops(const struct engine *e) { return weights_token_flops(&e->weights); }
