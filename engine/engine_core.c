/* Opens and closes an engine: weights, CPU, devices, thread. */
#include "engine/engine_core.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/test_limits.h"
#include "engine/experts/score.h"
#include "engine/generation_config.h"
#include "engine/layer/kv_planes.h"
#include "engine/layer/work_open.h"
#include "engine/sampling/sample.h"
#include "engine/session/engine_check.h"
#include "engine/session/engine_state.h"
#include "engine/session/engine_tasks.h"
#include "engine/session/engine_thread.h"
#include "engine/session/prefix.h"
#include "engine/session/speeds.h"
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
    if (e->params.trace_values) {
        if (e->machine.gpus) return error_set(err, ERR_USAGE, "--trace-values reads the CPU's results: use --gpus none");
        e->params.draft = DRAFT_NONE;
        if ((rc = values_trace_open(&e->machine.values, e->params.trace_values, e->machine.cpu, err))) return rc;
    }
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
    speeds_assume(e, level);
    e->machine.no_device_decode = e->params.decode == DECODE_CPU && e->params.prefill != MODE_AUTO && e->params.prefill != PREFILL_BLEND;
    e->machine.whole_layers = e->params.prefill == PREFILL_BLEND;
    if ((rc = decode_open(&e->machine.decode, &e->machine, (enum dtype)e->params.kv, err))) return rc;
    if ((e->params.draft == DRAFT_MTP || e->params.draft == DRAFT_AUTO) && !e->params.custom_draft &&
        (rc = mtp_open(&e->mtp, &e->weights, e->machine.cpu, e->info.context, (enum dtype)e->params.kv, err)))
        return rc;
    if (e->params.draft == DRAFT_MTP && !e->mtp) return error_set(err, ERR_USAGE, "--draft mtp: %s has no supported prediction layer", e->name);
    if (e->params.draft == DRAFT_INT4 && !e->params.custom_draft && (rc = open_int4(e, level, err))) return rc;
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

int engine_core_open(struct engine **out, const struct engine_params *p, struct error *err) {
    *out = NULL;
    struct engine *e = mem_calloc(1, sizeof *e);
    if (!e) return error_set(err, ERR_MEMORY, "no memory for the engine");
    e->params = *p;
    if (!e->params.kv) e->params.kv = DT_BF16;
    e->event_fd = e->wake_fd = e->kv_store.fd = -1;
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
    if (e->draft_model.ctx) e->draft_model.close(e->draft_model.ctx);
    mem_free(e->lookahead_mem);
    trace_save(e->machine.trace, e->params.trace, true);
    trace_close(&e->machine.trace);
    routing_trace_close(&e->machine.routing);
    values_trace_close(&e->machine.values);
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
int engine_forget(const char *kv_dir, const uint64_t *keys, size_t n, struct error *e) { return kv_disk_forget(kv_dir, keys, n, e); }
