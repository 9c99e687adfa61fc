/* Turns: a queue of prefills (first come, first served), a batch of decodes, and the events they send. The engine's thread
 * is the only one that computes; while it prefills one session it lets the others decode between layers. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/internal.h"

/* --- Events: a bounded ring; the engine waits when nobody reads ------------------------------------------------------- */

void engine_emit(struct engine *e, const struct event *ev) {
    pthread_mutex_lock(&e->lock);
    while (e->count == ENGINE_EVENTS && !atomic_load(&e->closing)) pthread_cond_wait(&e->room, &e->lock);
    if (e->count < ENGINE_EVENTS) {
        e->ring[(e->head + e->count++) % ENGINE_EVENTS] = *ev;
        uint64_t one = 1;
        if (write(e->fd, &one, sizeof one) < 0) {} /* full counter: it is readable already */
        pthread_cond_signal(&e->event);
    }
    pthread_mutex_unlock(&e->lock);
}

bool engine_poll(struct engine *e, struct event *out, int timeout_ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    if (timeout_ms > 0) {
        until.tv_sec += timeout_ms / 1000;
        until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&e->lock);
    while (!e->count && timeout_ms) {
        if (timeout_ms < 0) pthread_cond_wait(&e->event, &e->lock);
        else if (pthread_cond_timedwait(&e->event, &e->lock, &until)) break;
    }
    bool got = e->count > 0;
    if (got) {
        *out = e->ring[e->head];
        e->head = (e->head + 1) % ENGINE_EVENTS;
        e->count--;
        pthread_cond_signal(&e->room);
    }
    if (!e->count) {
        uint64_t drop;
        if (read(e->fd, &drop, sizeof drop) < 0) {} /* already empty */
    }
    pthread_mutex_unlock(&e->lock);
    return got;
}

/* --- Sessions ------------------------------------------------------------------------------------------------------------- */

int session_open(struct engine *e, struct session **out, struct error *err) {
    struct session *s = mem_calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return error_set(err, ERR_MEMORY, "no memory for a session");
    s->engine = e;
    int rc = kv_open(&s->kv, &e->weights.config, e->info.context, e->params.kv, err);
    if (rc) {
        mem_free(s);
        return rc;
    }
    pthread_mutex_lock(&e->lock);
    s->next = e->sessions;
    e->sessions = s;
    pthread_mutex_unlock(&e->lock);
    *out = s;
    return 0;
}

static void free_request(struct session *s) {
    mem_free(s->stop_ids);
    s->stop_ids = NULL;
}

void session_close(struct session **sp) {
    struct session *s = *sp;
    if (!s) return;
    struct engine *e = s->engine;
    session_cancel(s);
    pthread_mutex_lock(&e->lock);
    while (atomic_load(&s->state) != SESSION_IDLE && e->started && !atomic_load(&e->closing)) {
        /* The turn ends with an event; make room for it if nobody reads any more. */
        while (e->count == ENGINE_EVENTS) e->head = (e->head + 1) % ENGINE_EVENTS, e->count--;
        pthread_cond_signal(&e->room);
        pthread_mutex_unlock(&e->lock);
        usleep(1000);
        pthread_mutex_lock(&e->lock);
    }
    for (struct session **p = &e->sessions; *p; p = &(*p)->next)
        if (*p == s) {
            *p = s->next;
            break;
        }
    /* Events of a session that is gone would point nowhere. */
    size_t kept = 0;
    for (size_t i = 0; i < e->count; i++) {
        struct event ev = e->ring[(e->head + i) % ENGINE_EVENTS];
        if (ev.session != s) e->ring[(e->head + kept++) % ENGINE_EVENTS] = ev;
    }
    e->count = kept;
    pthread_mutex_unlock(&e->lock);
    free_request(s);
    kv_close(&s->kv);
    mem_free(s->tokens);
    mem_free(s);
    *sp = NULL;
}

void session_cancel(struct session *s) { atomic_store(&s->cancel, 1); }
bool session_busy(const struct session *s) { return atomic_load(&s->state) != SESSION_IDLE; }
int session_tokens(const struct session *s, const int32_t **tokens) {
    *tokens = s->tokens;
    return s->n_kv;
}

static int check_request(const struct engine *e, const struct request *r, struct error *err) {
    int room = e->info.context - r->n;
    if (r->n < 1) return error_set(err, ERR_USAGE, "the prompt is empty");
    for (int i = 0; i < r->n; i++)
        if (r->tokens[i] < 0 || r->tokens[i] >= e->info.vocab)
            return error_set(err, ERR_USAGE, "token %d is %d; the vocabulary has 0 to %d", i, r->tokens[i], e->info.vocab - 1);
    if (room < 0 || (room == 0 && r->max_tokens))
        return error_set(err, ERR_CONTEXT, "the prompt has %d tokens, the context holds %d%s", r->n, e->info.context,
                         e->info.context < e->info.max_context ? "; a larger one can be asked for with -c" : "");
    return 0;
}

int session_submit(struct session *s, const struct request *r, struct error *err) {
    struct engine *e = s->engine;
    if (session_busy(s)) return error_set(err, ERR_RUNTIME, "the session is still busy with its last turn");
    int rc = check_request(e, r, err);
    if (rc) return rc;
    int keep = 0;
    while (keep < s->n_kv && keep < r->n - 1 && s->tokens[keep] == r->tokens[keep]) keep++;
    if (r->logits) keep = 0;
    int room = e->info.context - r->n, answer = r->max_tokens < 0 || r->max_tokens > room ? room : r->max_tokens;
    size_t need = (size_t)(r->n - keep + (answer < 4096 ? answer : 4096)) * e->info.kv_token_bytes, have = mem_available();
    if (have && need > have && !e->params.force)
        return error_set(err, ERR_MEMORY, "the KV cache of %d tokens needs %zu MB, %zu MB are free; --kv fp8 halves it, --force overrides", r->n, need >> 20, have >> 20);
    int32_t *stop = mem_alloc(((size_t)r->n_stop_ids + 1) * sizeof *stop);
    if (!stop || mem_grow(&s->tokens, &s->cap, (size_t)r->n + 1, sizeof *s->tokens)) {
        mem_free(stop);
        return error_set(err, ERR_MEMORY, "no memory for a prompt of %d tokens", r->n);
    }
    if (r->n_stop_ids) memcpy(stop, r->stop_ids, (size_t)r->n_stop_ids * sizeof *stop);
    memmove(s->tokens, r->tokens, (size_t)r->n * sizeof *s->tokens);
    s->request = *r;
    s->request.tokens = NULL;
    s->request.stop_ids = s->stop_ids = stop;
    s->request.max_tokens = answer;
    s->n_kv = keep;
    s->n = r->n;
    s->answered = 0;
    s->submitted = clock_now();
    s->stats = (struct turn_stats){.prompt_tokens = r->n, .cached_tokens = keep, .prefill_mode = "cpu", .decode_mode = "single"};
    atomic_store(&s->cancel, 0);
    pthread_mutex_lock(&e->lock);
    s->order = ++e->orders;
    atomic_store(&s->state, SESSION_QUEUED);
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
    return 0;
}

/* --- How a turn ends ------------------------------------------------------------------------------------------------------ */

static void finish(struct session *s, enum done_reason reason, int rc, const struct error *why) {
    struct engine *e = s->engine;
    double now = clock_now();
    s->stats.answer_tokens = s->answered;
    if (s->answered) s->stats.decode_s = now - s->first;
    s->stats.bytes_read = atomic_load(&e->machine.bytes_read) - s->bytes_before;
    struct event ev = {.kind = rc ? EVENT_ERROR : EVENT_DONE, .session = s, .reason = reason, .stats = s->stats};
    if (rc) ev.error = *why;
    free_request(s);
    atomic_store(&s->state, SESSION_IDLE); /* before the event: who reads it may submit the next turn at once */
    engine_emit(e, &ev);
}

static bool is_stop(const struct session *s, int32_t id) {
    const struct engine_info *f = &s->engine->info;
    if (!(s->request.flags & REQUEST_NO_EOS))
        for (int i = 0; i < f->n_eos; i++)
            if (f->eos[i] == id) return true;
    for (int i = 0; i < s->request.n_stop_ids; i++)
        if (s->stop_ids[i] == id) return true;
    return false;
}

/* Draws the next token and tells it. top: the largest logit's, or -1 where that is not known. Returns false when the turn is
 * over (finish was called). */
static bool draw(struct session *s, float *logits, int32_t top) {
    struct engine *e = s->engine;
    int32_t id = top >= 0 && sample_is_top(&s->request.sampling) ? top : sample_token(logits, e->info.vocab, &s->request.sampling, s->tokens, s->n, (uint64_t)s->n, e->scratch);
    double now = clock_now();
    if (!s->answered) {
        s->first = now;
        s->stats.ttft_s = now - s->submitted;
    }
    if (is_stop(s, id)) {
        finish(s, DONE_STOP, 0, NULL);
        return false;
    }
    if (mem_grow(&s->tokens, &s->cap, (size_t)s->n + 1, sizeof *s->tokens)) {
        struct error err = {0};
        error_set(&err, ERR_MEMORY, "no memory for %d tokens", s->n + 1);
        finish(s, DONE_STOP, ERR_MEMORY, &err);
        return false;
    }
    s->tokens[s->n++] = id;
    s->answered++;
    engine_emit(e, &(struct event){.kind = EVENT_TOKEN, .session = s, .token = id});
    if (s->answered >= s->request.max_tokens) {
        finish(s, s->n >= e->info.context ? DONE_CONTEXT : DONE_LENGTH, 0, NULL);
        return false;
    }
    return true;
}

/* --- Decode: one token for every session that answers ---------------------------------------------------------------------- */

static void decode_all(struct engine *e) {
    struct session *batch[ENGINE_BATCH];
    struct span spans[ENGINE_BATCH];
    int32_t tokens[ENGINE_BATCH];
    int n = 0;
    pthread_mutex_lock(&e->lock);
    for (struct session *s = e->sessions; s && n < ENGINE_BATCH; s = s->next)
        if (atomic_load(&s->state) == SESSION_DECODE) batch[n++] = s;
    pthread_mutex_unlock(&e->lock);
    int live = 0;
    for (int i = 0; i < n; i++) {
        struct session *s = batch[i];
        if (atomic_load(&s->cancel)) {
            finish(s, DONE_CANCELLED, 0, NULL);
            continue;
        }
        batch[live] = s;
        spans[live] = (struct span){.k = s->kv.k, .v = s->kv.v, .row = live, .n = 1, .pos = s->n - 1};
        tokens[live++] = s->tokens[s->n - 1];
    }
    if (!live) return;
    struct error err = {0};
    int32_t top[ENGINE_BATCH];
    int rc = decode_step(&e->machine, spans, tokens, live, e->logits, top, live == 1 ? &batch[0]->cancel : &e->closing, &err);
    e->last_decode = clock_now();
    for (int i = 0; i < live; i++) {
        struct session *s = batch[i];
        if (rc == ERR_CANCELLED) finish(s, DONE_CANCELLED, 0, NULL);
        else if (rc) finish(s, DONE_STOP, rc, &err);
        else {
            s->n_kv = s->n;
            draw(s, e->logits + (size_t)i * (size_t)e->info.vocab, top[i]);
        }
    }
}

/* --- Prefill ---------------------------------------------------------------------------------------------------------------- */

static void on_progress(void *ctx, const char *what, double done, double total) {
    struct session *s = ctx;
    struct engine *e = s->engine;
    double now = clock_now(), spent = now - s->prefill_begin, share = total > 0 ? done / total : 1;
    if (now - s->told >= 0.1) {
        s->told = now;
        int whole = s->n - s->stats.cached_tokens;
        engine_emit(e, &(struct event){.kind = EVENT_PROGRESS, .session = s, .what = what, .done = (int)(share * whole), .total = whole,
                                       .left_s = share > 0 ? spent * (1 - share) / share : -1});
    }
    decode_all(e); /* the others go on answering */
}

/* Nobody measured this machine: a guess, which use corrects. */
static void know_machine(struct engine *e) {
    const struct gpu_set *g = e->machine.gpus;
    const struct gpu_info *info = g ? gpu_info(g->gpu[0]) : NULL;
    const struct layer *last = &e->weights.layers[e->weights.config.n_layers - 1];
    enum dtype dense = (enum dtype)last->o.dtype, experts = (enum dtype)(last->experts ? last->experts[0].gate.dtype : last->dense.gate.dtype);
    cost_guess(&e->cost, e->info.threads, (int)e->params.cpu_level ? (int)e->params.cpu_level - 1 : (int)cpu_level_best(), g ? g->n : 0, info ? info->h2d : 0,
               info ? info->d2h : 0, 0);
    cost_model_of(&e->model, &e->weights.config, dense, experts, (enum dtype)(e->params.kv ? e->params.kv : DT_BF16));
}

static const struct mode *choose(struct session *s, int n) {
    static const enum policy_mode asks[] = {[PREFILL_AUTO] = POLICY_AUTO, [PREFILL_CPU] = POLICY_CPU, [PREFILL_SLP] = POLICY_SLP, [PREFILL_DSLP] = POLICY_DSLP};
    static const struct mode *const modes[] = {[POLICY_CPU] = &mode_cpu, [POLICY_SLP] = &mode_slp, [POLICY_DSLP] = &mode_dslp};
    struct engine *e = s->engine;
    const struct gpu_set *g = e->machine.gpus;
    if (!e->cost.n_domains) know_machine(e);
    struct policy_machine m = {.cost = &e->cost, .model = &e->model, .n_devices = g ? g->n : 0, .lost = g && g->lost, .prefills = 1u << POLICY_SLP | 1u << POLICY_DSLP,
                               .ask = asks[e->params.prefill]};
    struct policy_in in = {.n_new = n, .n_cached = s->n_kv, .since_decode_s = e->last_decode > 0 ? clock_now() - e->last_decode : -1};
    for (struct session *o = e->sessions; o; o = o->next) in.decoding += atomic_load(&o->state) == SESSION_DECODE;
    struct policy_out out;
    policy_prefill(&m, &in, &out);
    const struct mode *mode = modes[out.mode];
    e->expected = out.seconds[out.mode];
    if (mode == &mode_cpu) snprintf(s->stats.why, sizeof s->stats.why, "%d new tokens on the processor (%s, %d threads): %.160s", n, e->info.level, e->info.threads, out.why);
    else snprintf(s->stats.why, sizeof s->stats.why, "%d new tokens stream-loaded on %d of %d devices (%.40s): %.130s", n, mode == &mode_dslp ? g->n : 1, g->n,
                  gpu_info(g->gpu[0])->name, out.why);
    s->stats.prefill_mode = mode->name;
    return mode;
}

static void prefill(struct session *s) {
    struct engine *e = s->engine;
    s->prefill_begin = clock_now();
    s->told = s->prefill_begin;
    s->stats.queue_s = s->prefill_begin - s->submitted;
    s->bytes_before = atomic_load(&e->machine.bytes_read);
    int n = s->n - s->n_kv;
    pthread_mutex_lock(&e->lock);
    const struct mode *mode = choose(s, n);
    pthread_mutex_unlock(&e->lock);
    struct prefill_job j = {
        .kv = &s->kv, .tokens = s->tokens + s->n_kv, .pos = s->n_kv, .n = n, .last = e->logits + (size_t)(ENGINE_BATCH - 1) * (size_t)e->info.vocab,
        .all = s->request.logits, .all_ctx = s->request.logits_ctx, .cancel = &s->cancel, .progress = on_progress, .progress_ctx = s,
    };
    struct error err = {0};
    float *own = mem_alloc((size_t)e->info.vocab * sizeof *own); /* decodes in between use e->logits */
    int rc = own ? 0 : error_set(&err, ERR_MEMORY, "no memory for logits");
    j.last = own;
    if (!rc) rc = mode->prefill(&e->machine, &j, &err);
    if (rc && mode != &mode_cpu && (rc == ERR_MEMORY || rc == ERR_RUNTIME)) { /* the device cannot; the processor can */
        log_say(LOG_WARN, "%s prefill: %s; reading the prompt on the processor instead", mode->name, err.text);
        snprintf(s->stats.why, sizeof s->stats.why, "%s failed: %.200s", mode->name, err.text);
        s->stats.prefill_mode = mode_cpu.name;
        err = (struct error){0};
        rc = mode_cpu.prefill(&e->machine, &j, &err);
    }
    s->stats.prefill_s = clock_now() - s->prefill_begin;
    if (!rc && !strcmp(s->stats.prefill_mode, mode->name) && !s->request.logits) { /* the next choice knows what this one took */
        enum cost_whole how = mode == &mode_cpu ? COST_PREFILL_CPU : mode == &mode_slp ? COST_PREFILL_SLP : COST_PREFILL_DSLP;
        cost_observe(&e->cost, &e->cost.seen[how], n, e->expected, s->stats.prefill_s);
    }
    if (rc == ERR_CANCELLED) finish(s, DONE_CANCELLED, 0, NULL);
    else if (rc) finish(s, DONE_STOP, rc, &err);
    else {
        s->n_kv = s->n;
        if (!s->request.max_tokens) {
            s->stats.ttft_s = clock_now() - s->submitted;
            finish(s, s->n >= e->info.context ? DONE_CONTEXT : DONE_LENGTH, 0, NULL);
        } else if (draw(s, own, -1)) atomic_store(&s->state, SESSION_DECODE);
    }
    mem_free(own);
}

/* --- The engine's thread ------------------------------------------------------------------------------------------------------ */

void *engine_thread(void *arg) {
    struct engine *e = arg;
    pool_enter(e->pool);
    for (;;) {
        struct session *first = NULL;
        bool decoding = false;
        pthread_mutex_lock(&e->lock);
        for (;;) {
            first = NULL;
            decoding = false;
            for (struct session *s = e->sessions; s; s = s->next) {
                int state = atomic_load(&s->state);
                decoding |= state == SESSION_DECODE;
                if (state == SESSION_QUEUED && (!first || s->order < first->order)) first = s;
            }
            if (first || decoding || atomic_load(&e->closing)) break;
            pthread_cond_wait(&e->work, &e->lock);
        }
        if (first) atomic_store(&first->state, SESSION_PREFILL);
        pthread_mutex_unlock(&e->lock);
        if (atomic_load(&e->closing)) return NULL;
        if (first && atomic_load(&first->cancel)) finish(first, DONE_CANCELLED, 0, NULL);
        else if (first) prefill(first);
        else decode_all(e);
    }
}
