/* Opens and closes an engine: weights, CPU, devices, thread. */
#include "engine/engine_core.h"

#include <errno.h>
#include <stdio.h>
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

/* --- Open and close --------------------------------------------------------------------------- */

static char *dir_basename(const char *dir) {
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    size_t at = n;
    while (at > 0 && dir[at - 1] != '/') at--;
    return !strcmp(dir, "ember:") ? mem_strdup("ember") : mem_strndup(dir + at, n - at);
}

/* Rows of a prefill batch: enough that each expert gets many tokens, few enough that the workspace stays small. */
static int prefill_batch_rows(const struct config *c, const struct tower *t, int context) {
    int rows = (int)test_limits_get(TEST_LIMIT_PREFILL_ROWS, 1024);
    while (rows > 64 && work_bytes(c, rows) > (size_t)1 << 30) rows /= 2;
    if (t && c->sees_whole_images && rows < tower_most_tokens(t)) rows = tower_most_tokens(t); /* none is split */
    return rows < context ? rows : context;
}

static int open_int4(struct engine *eng, enum cpu_level level, struct error *e) {
    const struct config *c = &eng->weights.config;
    int rc = int4_open(&eng->int4, &eng->weights, level, eng->params.draft_dir, eng->params.force, e);
    if (rc) return rc;
    if (eng->machine.disk_prefetch) disk_prefetch_reserve(eng->machine.disk_prefetch, int4_bytes(eng->int4));
    if (!(eng->lookahead_mem = mem_alloc(lookahead_bytes(c->n_layers, c->topk))))
        return error_set(e, ERR_MEMORY, "no memory for an INT4 draft");
    lookahead_open(&eng->lookahead, c->n_layers, c->topk, eng->lookahead_mem);
    return 0;
}

static int open_runtime(struct engine *eng, struct error *e) {
    const struct config *c = &eng->weights.config;
    enum cpu_level level = eng->params.cpu_level ? (enum cpu_level)(eng->params.cpu_level - 1) : cpu_level_best();
    int rc;
    if ((rc = engine_read_topology(&eng->numa, eng->params.topology, e))) return rc;
    if ((rc = pool_open_nodes(&eng->pool, eng->params.threads, true, &eng->numa, e))) return rc;
    if (!(eng->machine.cpu = cpu_exec_open(eng->pool, level, e))) return ERR_MEMORY;
    if ((rc = work_open(&eng->prefill_work, c, prefill_batch_rows(c, eng->tower, eng->info.context), NULL, NULL, NULL,
                        e)))
        return rc;
    eng->logits = mem_alloc((size_t)c->vocab * sizeof *eng->logits);
    eng->passing_logits = mem_alloc((size_t)c->vocab * sizeof *eng->passing_logits);
    eng->sample_scratch = mem_alloc(SAMPLE_SCRATCH(c->vocab, eng->info.context) * sizeof *eng->sample_scratch);
    eng->machine.expert_touched = mem_calloc((size_t)c->n_experts + 1, 1);
    if (!eng->logits || !eng->passing_logits || !eng->sample_scratch || !eng->machine.expert_touched)
        return error_set(e, ERR_MEMORY, "no memory for logits over %d tokens", c->vocab);
    rc = gpu_set_open(&eng->machine.gpus, eng->params.gpus, e);
    if (rc == ERR_RUNTIME && !exec_modes[eng->params.prefill].min_devices &&
        !exec_modes[eng->params.decode].min_devices) {
        log_say(LOG_WARN, "devices %s: %s; continuing on the CPU (--gpus)", eng->params.gpus, e->text);
        *e = (struct error){0};
        rc = 0;
    }
    if (!rc && eng->machine.gpus) rc = gpu_set_pin(eng->machine.gpus, &eng->weights, &eng->numa, e);
    if (!rc && eng->machine.gpus) gpu_set_choose_math(eng->machine.gpus, c);
    if (rc) return rc;
    if (eng->params.trace && !(eng->machine.trace = trace_open()))
        return error_set(e, ERR_MEMORY, "no memory for a trace");
    if (eng->params.trace_routing &&
        (rc = routing_trace_open(&eng->machine.routing, eng->params.trace_routing, &eng->weights, eng->name, e)))
        return rc;
    if (eng->params.trace_values) {
        if (eng->machine.gpus)
            return error_set(e, ERR_USAGE, "the trace of values holds the CPU's results: use no devices (--gpus none)");
        eng->params.draft = DRAFT_NONE;
        if ((rc = values_trace_open(&eng->machine.values, eng->params.trace_values, eng->machine.cpu, e))) return rc;
    }
    if (eng->machine.gpus) trace_align_clock(eng->machine.trace, eng->machine.gpus->gpu[0]);
    if ((rc = weight_state_open(&eng->machine.weight_state, c, e))) return rc;
    eng->machine.scan = (struct nan_scan){&eng->weights, eng->pool, &eng->machine.weight_state};
    size_t bytes = weights_needed_bytes(&eng->weights) - (c->tied ? 0 : mat_bytes(&eng->weights.embed));
    /* a device streams whole experts from the mapping, whose pages pin.h places: do not split these into node copies */
    bool copies = !eng->machine.gpus && numa_copy_fits(&eng->numa, bytes, eng->params.hugepages);
    bool cut = copies || (eng->machine.gpus && eng->numa.n_nodes > 1);
    if (cut && (rc = numa_copy_open(&eng->machine.numa_copy, &eng->weights, &eng->numa, copies, eng->params.hugepages,
                                    &eng->machine.weight_state, e)))
        return rc;
    if (!copies && (eng->params.hugepages || eng->numa.n_nodes > 1) &&
        !(eng->machine.gpus && pin_get_choice(eng->machine.gpus->pin)->by_node))
        log_say(LOG_INFO, "weights stay mapped from their files: %s",
                eng->machine.gpus ? "devices read the mapping" : "a copy does not fit in memory");
    const char *evict = eng->params.evict ? eng->params.evict : "auto";
    eng->machine.evict_policy =
        score_find(eng->params.draft == DRAFT_INT4 && !strcmp(evict, "auto") ? "lookahead" : evict);
    if (!copies && disk_prefetch_is_needed(&eng->weights)) {
        log_say(LOG_INFO, "%zu MB of weights, %zu MB of memory: reading experts from disk on demand", bytes >> 20,
                mem_available() >> 20);
        if ((rc = work_open(&eng->lookahead_work, c, ENGINE_MAX_BATCH, NULL, NULL, NULL, e)) ||
            (rc = disk_prefetch_open(&eng->machine.disk_prefetch, &eng->weights, &eng->machine.weight_state,
                                     eng->machine.evict_policy, e)))
            return rc;
        eng->machine.lookahead_work = &eng->lookahead_work;
    }
    if (!eng->machine.gpus && !eng->machine.numa_copy && !eng->machine.disk_prefetch)
        huge_pages_open(&eng->huge_pages, &eng->weights.files); /* no other part replaces pages of the maps */
    eng->machine.w = &eng->weights;
    eng->machine.run_on_engine = engine_run_on_thread;
    eng->machine.wake_engine = engine_wake;
    eng->machine.kv_common_rows = prefix_common_rows;
    eng->machine.owner = eng;
    eng->machine.prefill_work = &eng->prefill_work;
    eng->machine.cost = &eng->cost;
    eng->machine.cost_model = &eng->cost_model;
    eng->machine.split_policy = eng->params.split ? split_find(eng->params.split) : &split_policies[0];
    const char *usage_dir;
    eng->machine.expert_cache =
        engine_expert_cache(&eng->params, eng->weights.files.fingerprint, &usage_dir, eng->machine.expert_cache_why);
    if (c->n_experts && eng->machine.gpus &&
        (rc = usage_profile_open(&eng->machine.usage, c, usage_dir, eng->weights.files.fingerprint, e)))
        return rc;
    eng->machine.expert_bytes = weights_expert_bytes(&eng->weights);
    eng->machine.image_token = eng->tower ? eng->tower->config.table_token : 0;
    eng->info.threads = pool_threads(eng->pool);
    eng->info.level = cpu_level_name(level);
    speeds_assume(eng, level);
    eng->machine.no_device_decode =
        eng->params.decode == DECODE_CPU && eng->params.prefill != MODE_AUTO && eng->params.prefill != PREFILL_BLEND;
    eng->machine.whole_layers = eng->params.prefill == PREFILL_BLEND;
    if ((rc = decode_open(&eng->machine.decode, &eng->machine, (enum dtype)eng->params.kv, e))) return rc;
    if (decode_pinned_share(eng->machine.decode) > 0 || decode_sends_experts(eng->machine.decode))
        eng->cost.is_deterministic = true;
    if ((eng->params.draft == DRAFT_MTP || eng->params.draft == DRAFT_AUTO) && !eng->params.custom_draft &&
        (rc = mtp_open(&eng->mtp, &eng->weights, eng->machine.cpu, eng->info.context, (enum dtype)eng->params.kv, e)))
        return rc;
    if (eng->params.draft == DRAFT_MTP && !eng->mtp)
        return error_set(e, ERR_USAGE, "draft mtp: %s has no supported prediction layer (--draft)", eng->name);
    if (eng->params.draft == DRAFT_INT4 && !eng->params.custom_draft && (rc = open_int4(eng, level, e))) return rc;
    decode_want_hidden(eng->machine.decode, eng->mtp);
    int lacks = eng->machine.gpus && eng->machine.gpus->is_lost ? ERR_RUNTIME : ERR_MEMORY;
    if (eng->params.prefill == PREFILL_BLEND && decode_tp_ranks(eng->machine.decode) > 1)
        return error_set(e, ERR_USAGE,
                         "a blended prefill cannot be combined with tensor parallelism (--prefill blend, "
                         "parallel=tensor in --gpus)");
    if (eng->params.prefill == PREFILL_BLEND && !decode_can_blend(eng->machine.decode))
        return error_set(e, lacks, "a blended prefill needs room for all layers on devices: %s (--prefill blend)",
                         decode_placement_why(eng->machine.decode));
    if ((eng->params.decode == DECODE_HYBRID || eng->params.decode == DECODE_DUAL) &&
        !decode_resident_layers(eng->machine.decode))
        return error_set(e, lacks, "decoding in mode %s: %s (--decode)", exec_mode_name(eng->params.decode),
                         decode_placement_why(eng->machine.decode));
    return throughput_open(eng, e);
}

static int start_thread(struct engine *eng, struct error *e) {
    eng->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (eng->event_fd >= 0) eng->wake_fd = eventfd(0, EFD_CLOEXEC);
    const int failed =
        eng->event_fd < 0 || eng->wake_fd < 0 ? errno : pthread_create(&eng->thread, NULL, engine_thread, eng);
    if (failed) return error_set(e, ERR_RUNTIME, "cannot start the engine's thread: %s", error_reason(failed));
    eng->started = true;
    return 0;
}

int engine_core_open(struct engine **out, const struct engine_params *p, struct error *err) {
    *out = NULL;
    struct engine *e = mem_calloc(1, sizeof *e);
    if (!e) return error_set(err, ERR_MEMORY, "no memory for the engine");
    e->params = *p;
    if (!e->params.kv) e->params.kv = DT_BF16;
    e->event_fd = e->wake_fd = e->kv_store.fd = -1;
    pthread_mutex_init(&e->lock, NULL);
    image_cache_init(&e->image_cache);
    pthread_cond_init(&e->ended_cond, NULL);
    mem_prefer_huge(p->hugepages);
    int rc = engine_check_modes(p, err);
    e->dir = mem_strdup(p->dir);
    if (p->kv_dir) e->params.kv_dir = e->kv_dir = mem_strdup(p->kv_dir);
    if (p->calibration_dir) e->params.calibration_dir = e->calibration_dir = mem_strdup(p->calibration_dir);
    e->name = p->name ? mem_strdup(p->name) : dir_basename(p->dir);
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
        .weight_bytes = e->weights.files.bytes,
        .fingerprint = e->weights.files.fingerprint,
    };
    if (p->context < 0 || (p->context > c->max_context && !p->force)) {
        rc = error_set(err, ERR_USAGE, "a context of %d tokens: %s supports up to %d (--context; --force overrides)",
                       p->context, e->name, c->max_context);
        goto fail;
    }
    size_t have = mem_available(), need = p->context ? (size_t)p->context * e->info.kv_token_bytes : 0;
    if (have && need > have && !p->force) {
        rc = error_set(err, ERR_MEMORY,
                       "a context of %d tokens needs %zu MB for its KV cache, %zu MB are free; a smaller context or KV "
                       "cache of FP8 needs less (--context, --kv fp8)",
                       p->context, need >> 20, have >> 20);
        goto fail;
    }
    e->info.no_images = e->no_images;
    if ((rc = tower_open(&e->tower, &e->weights, p->mmproj, e->no_images, sizeof e->no_images, err))) goto fail;
    if (e->tower && p->image_tokens) tower_limit(e->tower, p->image_tokens);
    if (e->tower) e->info.no_images = NULL, e->info.image_token = e->tower->config.image_token;
    if (e->tower)
        e->info.image_marks[0] = e->tower->config.marks[0], e->info.image_marks[1] = e->tower->config.marks[1];
    if ((rc = generation_config_read(e, err)) || (rc = open_runtime(e, err))) goto fail;
    prefix_open(e);
    if ((rc = start_thread(e, err))) goto fail;
    *out = e;
    return 0;
fail:
    if (!err->code) error_set(err, rc, "the engine could not be opened");
    engine_close(&e);
    return rc;
}

static void save_usage(struct engine *eng) {
    struct error e = {0};
    if (eng->machine.usage && eng->machine.decode && !usage_profile_is_kept(eng->machine.usage) &&
        usage_profile_save(eng->machine.usage, decode_expert_rows(eng->machine.decode), &e))
        log_say(LOG_INFO, "the usage profile is not saved: %s", e.text);
    usage_profile_close(&eng->machine.usage);
}

static void close_disk_prefetch(struct engine *eng) {
    struct disk_prefetch_counts n;
    if (!eng->machine.disk_prefetch) return;
    disk_prefetch_counts(eng->machine.disk_prefetch, &n);
    log_say(LOG_INFO,
            "of %llu chosen experts %llu were not in memory; %llu were prefetched, %llu of them unused; memory has %d "
            "slots per layer, %llu experts were "
            "evicted",
            (unsigned long long)n.selected, (unsigned long long)n.missing, (unsigned long long)n.read_ahead,
            (unsigned long long)(n.read_ahead - n.read_ahead_hits), n.slots_per_layer, (unsigned long long)n.evicted);
    if (n.announced)
        log_say(LOG_INFO, "the draft predicted %llu experts that were not in memory, %llu of them were chosen",
                (unsigned long long)n.announced, (unsigned long long)n.announced_hits);
    disk_prefetch_close(&eng->machine.disk_prefetch);
}

void engine_close(struct engine **ep) {
    struct engine *eng = *ep;
    if (!eng) return;
    *ep = NULL;
    atomic_store(&eng->closing, 1);
    huge_pages_close(&eng->huge_pages);
    for (struct session *s = eng->sessions; s; s = s->next) session_cancel(s);
    if (eng->wake_fd >= 0) engine_wake(eng);
    if (eng->started) pthread_join(eng->thread, NULL);
    eng->started = false;
    while (eng->sessions) {
        struct session *s = eng->sessions;
        session_close(&s);
    }
    prefix_close(eng);
    throughput_close(eng);
    save_usage(eng);
    decode_close(&eng->machine.decode);
    mtp_close(&eng->mtp);
    int4_close(&eng->int4);
    if (eng->draft_model.ctx) eng->draft_model.close(eng->draft_model.ctx);
    mem_free(eng->lookahead_mem);
    trace_save(eng->machine.trace, eng->params.trace, true);
    trace_close(&eng->machine.trace);
    routing_trace_close(&eng->machine.routing);
    values_trace_close(&eng->machine.values);
    gpu_set_close(&eng->machine.gpus);
    close_disk_prefetch(eng);
    numa_copy_close(&eng->machine.numa_copy);
    weight_state_close(&eng->machine.weight_state);
    work_close(&eng->prefill_work);
    work_close(&eng->lookahead_work);
    cpu_exec_close(&eng->machine.cpu);
    pool_close(&eng->pool);
    tower_close(&eng->tower);
    image_cache_free(&eng->image_cache);
    weights_close(&eng->weights);
    if (eng->event_fd >= 0) close(eng->event_fd);
    if (eng->wake_fd >= 0) close(eng->wake_fd);
    pthread_mutex_destroy(&eng->lock);
    pthread_cond_destroy(&eng->ended_cond);
    mem_free(eng->machine.expert_touched);
    mem_free(eng->logits);
    mem_free(eng->passing_logits);
    mem_free(eng->joined_logits);
    mem_free(eng->sample_scratch);
    mem_free(eng->eos);
    mem_free(eng->dir);
    mem_free(eng->calibration_dir);
    mem_free(eng->kv_dir);
    mem_free(eng->name);
    mem_free(eng);
}

int engine_image_open(struct engine *eng, const void *data, size_t n, const char *what, struct engine_image **out,
                      struct error *e) {
    *out = NULL;
    if (eng->tower) return image_cache_open(&eng->image_cache, out, eng->tower, data, n, what, e);
    return error_set(e, ERR_USAGE, "%s: %s cannot read images: %s", what, eng->info.name, eng->info.no_images);
}
const char *engine_image_kind(const void *data, size_t n) { return picture_kind(data, n); }
void engine_image_close(struct engine_image **image) { image_unref(image); }
struct engine_image_info engine_image_info(const struct engine_image *i) {
    return (struct engine_image_info){
        .width = i->width, .height = i->height, .tokens = image_tokens(i), .hash = i->hash};
}
void engine_image_ids(const struct engine_image *image, int32_t *out) {
    for (int i = 0; i < image_tokens(image); i++) out[i] = image_id(image, i);
}

struct expert_map_call {
    struct engine *e;
    struct expert_map *m;
};
_Static_assert((int)ENGINE_MAX_DEVICES == (int)GPU_MAX, "an expert map has an entry for each device");
static int fill_expert_map(void *arg) {
    const struct expert_map_call *p = arg;
    decode_expert_map(p->e->machine.decode, p->m->n_used, p->m->device_rank);
    struct decode_expert_device d[GPU_MAX];
    p->m->n_devices = decode_expert_devices(p->e->machine.decode, d);
    snprintf(p->m->tuned, sizeof p->m->tuned, "%s", p->e->machine.expert_cache_why);
    for (int i = 0; i < p->m->n_devices; i++)
        p->m->device[i] = (struct expert_device){.rank = d[i].rank,
                                                 .layers = d[i].layers,
                                                 .resident_layers = d[i].resident_layers,
                                                 .cached = d[i].cached,
                                                 .resident_bytes = d[i].resident_bytes,
                                                 .cached_bytes = d[i].cached_bytes,
                                                 .pinned = d[i].pinned,
                                                 .pinned_bytes = d[i].pinned_bytes,
                                                 .chosen = d[i].selected,
                                                 .hits = d[i].hits};
    return 0;
}
int engine_expert_map(struct engine *eng, struct expert_map *out, struct error *e) {
    size_t n = (size_t)eng->info.n_layers * (size_t)eng->info.n_experts;
    *out = (struct expert_map){.n_layers = eng->info.n_layers,
                               .n_experts = eng->info.n_experts,
                               .n_used = mem_alloc(n * sizeof *out->n_used + 1),
                               .device_rank = mem_alloc(n + 1)};
    if (!out->n_used || !out->device_rank) {
        engine_expert_map_free(out);
        return error_set(e, ERR_MEMORY, "no memory for a map of the experts");
    }
    return engine_run_on_thread(eng, fill_expert_map, &(struct expert_map_call){eng, out});
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
int engine_announce(struct engine *eng, const struct announced_load *load) {
    struct load l = {eng, load, 0};
    engine_run_on_thread(eng, announce_on_thread, &l);
    return l.n;
}

const struct engine_info *engine_info(const struct engine *eng) { return &eng->info; }
int engine_event_fd(const struct engine *eng) { return eng->event_fd; }
uint64_t engine_token_bytes(const struct engine *eng) { return weights_token_bytes(&eng->weights); }
uint64_t engine_token_flops(const struct engine *eng) { return weights_token_flops(&eng->weights); }
int engine_forget(const char *kv_dir, const uint64_t *keys, size_t n, struct error *e) {
    return kv_disk_forget(kv_dir, keys, n, e);
}
