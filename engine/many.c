#include "engine/many.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/loop.h"
#include "engine/sched/batching.h"
#include "engine/sched/search.h"
#include "engine/step/paged.h"

enum { SESSIONS = 4096, READ_ROWS = SEARCH_READ, USUAL_PROMPTS = 64, USUAL_PROMPT = 256, USUAL_ANSWER = 256 };
static const char paged_mode[] = "paged";
static const double leaves = 1.25; /* hysteresis: leave paged batches only if another mode is clearly faster */

struct part { /* a session's entry in a batch */
    struct session *s;
    uint64_t turn;
    int pos, n;
    bool told, said; /* its token was sampled; earlier logits were passed to the caller */
};
struct many {
    bool asked, wanted, held; /* forced by --decode; chosen by the policy for announced prompts; waiting for announced prompts */
    bool refused;             /* paged batches failed: not used again */
    struct engine_load load;
    struct search_out found;
    struct paged *paged;
    struct paged_options options;
    size_t room[GPU_MAX]; /* free memory of each device before paged batches opened */
    char why[400];
    struct part *parts;                   /* [SESSIONS] */
    struct paged_span *spans;             /* [SESSIONS + READ_ROWS] */
    int32_t *length, *micro, *order;      /* [SESSIONS] */
    int *part_of;                         /* [SESSIONS + READ_ROWS] */
    int32_t *tokens;                      /* [SESSIONS + READ_ROWS] */
    int n_parts, n_spans, n_tokens, most; /* most: decoding rows per micro-batch */
    double began, expected;
};

int many_open(struct engine *e, struct error *err) {
    if (!e->machine.gpus) return 0;
    const char *cannot = paged_cannot(&e->machine);
    bool asked = e->params.decode == DECODE_PAGED;
    if (asked && cannot) return error_set(err, ERR_USAGE, "--decode paged: %s", cannot);
    struct many *m = e->many = mem_calloc(1, sizeof *m);
    if (!m) return error_set(err, ERR_MEMORY, "no memory for throughput batches");
    m->asked = asked;
    m->load = (struct engine_load){.prompts = USUAL_PROMPTS, .prompt = USUAL_PROMPT, .answer = USUAL_ANSWER};
    return 0;
}
void many_close(struct engine *e) {
    struct many *m = e->many;
    if (!m) return;
    paged_close(&m->paged);
    mem_free(m->parts), mem_free(m->spans), mem_free(m->length), mem_free(m->micro), mem_free(m->order), mem_free(m->part_of), mem_free(m->tokens);
    mem_free(m);
    e->many = NULL;
}

/* --- The policy ------------------------------------------------------------------------------------------------------------------ */

static struct search_in question(const struct engine *e) {
    const struct many *m = e->many;
    struct gpu_set *g = e->machine.gpus;
    struct search_in in = {.cost = &e->cost,
                           .model = &e->model,
                           .prompt = m->load.prompt,
                           .answer = m->load.answer,
                           .prompts = m->load.prompts,
                           .can = 1u << SEARCH_PROCESSOR,
                           .few = OP_FEW,
                           .read_rows = READ_ROWS};
    in.most[SEARCH_PROCESSOR] = in.most[SEARCH_HYBRID] = ENGINE_BATCH;
    in.most[SEARCH_PAGED] = m->load.most > 0 && m->load.most < SESSIONS ? m->load.most : SESSIONS;
    in.host = (double)mem_available();
    if (!place_copies(e->machine.place))
        in.host += (double)(e->weights.bytes_routed + e->weights.bytes_dense + e->weights.bytes_embed); /* mapped files count as free */
    if (step_resident_layers(e->machine.step)) in.can |= 1u << SEARCH_HYBRID;
    if (!paged_cannot(&e->machine) && !m->refused) in.can |= 1u << SEARCH_PAGED;
    if (m->asked) in.can &= 1u << SEARCH_PAGED;
    in.device = INFINITY;
    for (int i = 0; i < g->n; i++) { /* reserve for buffers that the search does not model */
        size_t room = m->paged ? m->room[i] : gpu_mem_free(g->gpu[i]) + step_held(e->machine.step, i);
        in.device = fmin(in.device, 0.94 * (double)room);
    }
    return in;
}

static void decide(struct engine *e) {
    struct many *m = e->many;
    struct search_in in = question(e);
    search_run(&in, &m->found);
    search_why(&in, &m->found, m->why, sizeof m->why);
    m->wanted = m->found.found && m->found.policy.place == SEARCH_PAGED;
}

/* Returns the device memory to other decode modes. */
static void give_back(struct engine *e) {
    struct many *m = e->many;
    if (m->paged) step_back(e->machine.step);
    paged_close(&m->paged);
    m->wanted = false;
}

int many_load(struct engine *e, const struct engine_load *load) {
    struct many *m = e->many;
    if (!m) return 0;
    m->held = false;
    if (!load) return 0;
    if (!e->measured) engine_measure(e);
    m->load = *load;
    if (!m->asked) give_back(e);
    if (e->params.decode != DECODE_AUTO && !m->asked) return 0;
    decide(e);
    log_say(LOG_INFO, "%d prompts: %s", load->prompts, m->why);
    m->held = m->wanted;
    return m->wanted ? m->found.policy.n : 0;
}

/* Whether a paged batch of this many rows is worth it compared with the other modes. */
static bool pays(struct engine *e, int rows, double keys) {
    struct many *m = e->many;
    struct search_in in = question(e);
    struct search_policy p = m->found.policy;
    struct search_cost c;
    p.n = rows;
    in.prompts = 0, in.device = INFINITY; /* already resident */
    search_cost(&in, &p, &c);
    struct policy_machine pm = {.cost = &e->cost,
                                .model = &e->model,
                                .n_devices = e->machine.gpus->n,
                                .decodes = 1u << POLICY_DECODE_HYBRID,
                                .layers = step_resident_layers(e->machine.step)};
    struct policy_decode_out out;
    policy_step(&pm, &(struct policy_decode_in){.decoding = rows, .most = ENGINE_BATCH, .keys = keys, .context = keys + 1024}, &out);
    return !c.fits || c.step <= leaves * out.seconds[out.mode] * ceil((double)rows / out.batch);
}

/* --- The device ------------------------------------------------------------------------------------------------------------------- */

static void leave(struct engine *e, const char *why) {
    struct many *m = e->many;
    paged_close(&m->paged);
    m->wanted = m->asked = m->held = false;
    m->refused = true;
    struct gpu_set *g = e->machine.gpus;
    for (int i = 0; i < g->n; i++)
        if (gpu_error(g->gpu[i], &(struct error){0}) && gpu_clear(g->gpu[i], &(struct error){0})) g->lost = true;
    if (e->machine.gpus->lost) step_lost(e->machine.step, why);
    step_back(e->machine.step);
}

static void say_open(struct many *m) {
    struct paged *p = m->paged;
    char now[240];
    int n = 0;
    if (paged_devices(p) > 1) n = snprintf(now, sizeof now, "layers alternate over %d cards, ", paged_devices(p));
    snprintf(now + n, sizeof now - (size_t)n,
             "%.0f%% of the experts stay on the card, pages for %d%% of a layer's others; micro-batches of %d, up to %d rows per batch; ", 100 * paged_share(p),
             paged_layers(p), m->options.micro, m->options.rows);
    log_say(LOG_INFO, "paged batches: %s", now);
    size_t len = strlen(now), cap = sizeof m->why - 1;
    memmove(m->why + len, m->why, cap - len); /* facts before predictions */
    memcpy(m->why, now, len);
    m->why[cap] = 0;
}

static int open_paged(struct engine *e, struct error *err) {
    struct many *m = e->many;
    const size_t n = SESSIONS, most = (size_t)SESSIONS + READ_ROWS;
    if (!m->parts) {
        m->parts = mem_alloc(n * sizeof *m->parts), m->spans = mem_alloc(most * sizeof *m->spans), m->part_of = mem_alloc(most * sizeof *m->part_of);
        m->tokens = mem_alloc(most * sizeof *m->tokens);
        m->length = mem_alloc(n * sizeof *m->length), m->micro = mem_alloc(n * sizeof *m->micro), m->order = mem_alloc(n * sizeof *m->order);
    }
    if (!m->parts || !m->spans || !m->tokens || !m->part_of || !m->length || !m->micro || !m->order)
        return error_set(err, ERR_MEMORY, "no memory for throughput batches");
    if (!m->found.found) decide(e);
    struct search_policy p = m->found.found ? m->found.policy : (struct search_policy){.n = USUAL_PROMPTS, .micro = OP_FEW};
    if (p.ring < 2)
        p.n = p.n > USUAL_PROMPTS ? p.n : USUAL_PROMPTS,
        p.micro = p.micro > OP_FEW ? p.micro : OP_FEW; /* the search found no fitting policy: try a minimal one */
    double rows = fmin(READ_ROWS, fmax(p.n, ceil(p.n * m->load.prompt)));
    m->options = (struct paged_options){.devices = p.cards, .micro = p.micro > SEARCH_READ_MICRO ? p.micro : SEARCH_READ_MICRO, .rows = (int)rows, .share = -1};
    if (m->options.micro > m->options.rows) m->options.micro = m->options.rows;
    m->most = p.micro < OP_FEW ? OP_FEW : p.micro; /* extra rows cost a device nothing */
    step_yield(e->machine.step);
    for (int i = 0; i < e->machine.gpus->n; i++) m->room[i] = gpu_mem_free(e->machine.gpus->gpu[i]);
    for (;;) {
        int rc = paged_open(&m->paged, &e->machine, (enum dtype)e->params.kv, &m->options, &e->closing, err);
        if (!rc) say_open(m);
        if (rc != ERR_MEMORY || m->options.rows <= OP_FEW) return rc;
        m->options.rows = m->options.rows / 2 > OP_FEW ? m->options.rows / 2 : OP_FEW; /* retry with fewer rows */
        if (m->options.micro > m->options.rows) m->options.micro = m->options.rows;
        if (m->most > m->options.micro) m->most = m->options.micro;
        *err = (struct error){0};
    }
}

int many_micro(const struct engine *e) { return e->many->most; }
int many_devices(const struct engine *e) { return e->many && e->many->paged ? paged_devices(e->many->paged) : 0; }
double many_share(const struct engine *e) { return e->many && e->many->paged ? paged_share(e->many->paged) : -1; }

/* --- One batch -------------------------------------------------------------------------------------------------------------------------- */

enum many_next many_ready(struct engine *e) {
    struct many *m = e->many;
    int n = 0;
    double keys = 0;
    if (!m || m->refused || !(m->asked || m->wanted) || e->reading || e->left || e->mode || atomic_load(&e->closing)) return MANY_NOT;
    for (struct session *s = e->sessions; s; s = s->next) {
        int state = atomic_load(&s->state);
        if (state != SESSION_QUEUED && state != SESSION_DECODE) continue;
        if (s->request.logits && !m->asked) return MANY_NOT;
        if (s->n_unread < ENGINE_EVENTS) keys += s->n, n++;
    }
    if (!n) return MANY_NOT;
    if (m->held) return MANY_HOLD;
    if (m->paged && !m->asked && !pays(e, n, keys / n)) {
        log_say(LOG_INFO, "%d prompts left: too few for paged batches", n);
        give_back(e);
        return MANY_NOT;
    }
    return MANY_STEP;
}

static void begin_prompt(struct engine *e, struct session *s) {
    if (s->stats.prefill_mode == paged_mode) return;
    step_rewind(e->machine.step, &s->kv, s->n_kv);
    mtp_rewind(&s->mtp, s->n_kv);
    prefix_begin(s);
    s->far = config_far(&e->weights.config, s->n);
    s->stats.prefill_mode = paged_mode;
    if (s->answered) return;
    s->stats.queue_s = clock_now() - s->submitted;
    s->stats.cached_tokens = s->n_kv;
}

/* Under the lock: collects the sessions of this batch, decoding ones first, each kind in order of waiting time. */
static void gather(struct engine *e) {
    struct many *m = e->many;
    m->n_parts = 0;
    for (int pass = 0; pass < 2; pass++)
        for (struct session *s = e->sessions; s && m->n_parts < SESSIONS; s = s->next) {
            int state = atomic_load(&s->state);
            if (state != (pass ? SESSION_QUEUED : SESSION_DECODE) || s->n_unread == ENGINE_EVENTS) continue;
            int i = m->n_parts++;
            while (i > 0 && (atomic_load(&m->parts[i - 1].s->state) == state) && m->parts[i - 1].s->stepped > s->stepped) m->parts[i] = m->parts[i - 1], i--;
            m->parts[i] = (struct part){.s = s, .turn = s->order, .pos = s->n_kv};
            s->held = s->kept = true;
        }
}

static void add_span(struct many *m, int part, int n, int micro) {
    struct part *p = &m->parts[part];
    struct session *s = p->s;
    int32_t *tokens = m->tokens + m->n_tokens; /* a copy: another turn may replace the session's tokens before the batch starts */
    memcpy(tokens, s->tokens + p->pos + p->n, (size_t)n * sizeof *tokens);
    m->n_tokens += n;
    m->part_of[m->n_spans] = part;
    m->spans[m->n_spans++] = (struct paged_span){
        .kv = &s->kv, .tokens = tokens, .pos = p->pos + p->n, .n = n, .total = s->n, .micro = micro, .tell = s->request.logits || p->pos + p->n + n == s->n};
    p->n += n;
}

/* Under the lock: assigns rows to micro-batches. Decoding sessions by KV length, then prompts, which fill the last micro-batch and new ones. */
static void cut(struct engine *e) {
    struct many *m = e->many;
    const int most = m->most, chunk = m->options.micro < SEARCH_READ_MICRO ? m->options.micro : SEARCH_READ_MICRO;
    int n = 0, micros = 0, rows = 0, room = 0;
    m->n_spans = m->n_tokens = 0;
    while (n < m->n_parts && n < m->options.rows && m->parts[n].s->n - m->parts[n].s->n_kv == 1) m->length[n] = m->parts[n].s->n, n++;
    if (n) {
        micros = (n + most - 1) / most;
        if (micros > PAGED_MICROS) micros = PAGED_MICROS;
        batching_assign(&(struct batching_in){.n = n, .length = m->length, .n_micro = micros, .most = most}, m->micro, m->order);
        for (int k = 0; k < micros; k++) {
            room = most;
            for (int i = 0; i < n; i++)
                if (m->micro[i] == k) add_span(m, i, 1, k), rows++, room--;
        }
    }
    double left = (double)mem_available() / (double)e->info.kv_token_bytes; /* KV cache tokens that free memory can hold, for prompts that start now */
    for (int i = n; i < m->n_parts && rows < m->options.rows; i++) {
        struct part *p = &m->parts[i];
        int want = p->s->n - p->pos;
        if (left < want && rows && !e->params.force) continue; /* waits until other turns have ended */
        left -= want;
        begin_prompt(e, p->s);
        while (want) { /* chunk ends depend on positions only: a row's bits depend on the rows of its chunk */
            int at = p->pos + p->n, k = chunk - at % chunk < want ? chunk - at % chunk : want;
            if (p->s->request.logits) k = 1; /* the caller wants the logits of all positions */
            if (k > m->options.rows - rows) return;
            if (k > room) {
                if (micros == PAGED_MICROS) return;
                micros++, room = m->options.micro;
            }
            add_span(m, i, k, micros - 1);
            want -= k, room -= k, rows += k;
        }
    }
}

/* Under the lock: whether the turn is still the entry's. */
static bool lasts(const struct part *p) {
    int state = atomic_load(&p->s->state);
    return (state == SESSION_DECODE || state == SESSION_QUEUED) && p->s->order == p->turn;
}

/* Like entry_still_current() in decode_batch.c. A session whose prompt is complete enters the state to sample in. */
static bool still(struct engine *e, struct part *p, bool draws) {
    struct session *s = p->s;
    pthread_mutex_lock(&e->lock);
    bool same = lasts(p);
    s->kept = false;
    if (same && p->n) s->n_kv = p->pos + p->n;
    if (same && draws && atomic_load(&s->state) == SESSION_QUEUED) session_move(s, SESSION_PREFILL);
    if (same && !draws) s->held = false;
    pthread_cond_broadcast(&e->over);
    pthread_mutex_unlock(&e->lock);
    return same;
}

static bool goes_on(struct engine *e, const struct part *p, bool *reads) {
    pthread_mutex_lock(&e->lock);
    bool same = lasts(p);
    *reads = atomic_load(&p->s->state) == SESSION_QUEUED;
    pthread_mutex_unlock(&e->lock);
    return same;
}

static void tell(void *ctx, int span, float *logits, int32_t top) {
    struct engine *e = ctx;
    struct many *m = e->many;
    struct part *p = &m->parts[m->part_of[span]];
    struct session *s = p->s;
    const struct paged_span *t = &m->spans[span];
    bool reads;
    if (!goes_on(e, p, &reads)) return; /* its turn is over; another one may have begun */
    if (reads && s->request.logits && !s->answered) {
        p->said = true;
        if (s->request.logits(s->request.logits_ctx, t->pos, logits)) atomic_store(&s->cancel[atomic_load(&s->live)], 1);
    }
    if (t->pos + t->n < t->total) return; /* not the last row of the prompt */
    p->told = true;
    if (!still(e, p, true)) return;
    double now = clock_now();
    if (reads && !s->answered) s->stats.prefill_s = now - m->began;
    s->stats.decode_mode = paged_mode;
    s->stats.step_expected_s = m->expected, s->stats.step_s = now - m->began;
    const char *guesses = e->params.draft ? "; no drafts: a row of another prompt yields more than a drafted token" : "";
    snprintf(s->stats.decode_why, sizeof s->stats.decode_why, "%.*s%s", (int)(sizeof s->stats.decode_why - 1 - strlen(guesses)), m->why, guesses);
    snprintf(s->stats.why, sizeof s->stats.why, "%d tokens in paged batches, with %d other prompts and answers", s->stats.prompt_tokens, m->n_parts - 1);
    turn_draw(s, logits, top, -1);
}

/* Stops the batch when no turn needs it any more. */
static int stop(void *ctx) {
    struct engine *e = ctx;
    struct many *m = e->many;
    if (atomic_load(&e->closing)) return 1;
    pthread_mutex_lock(&e->lock);
    session_reap(e);
    bool any = false;
    for (int i = 0; i < m->n_parts && !any; i++) any = lasts(&m->parts[i]);
    pthread_mutex_unlock(&e->lock);
    return !any;
}

void many_step(struct engine *e) {
    struct many *m = e->many;
    struct error err = {0};
    int rc = m->paged ? 0 : open_paged(e, &err);
    pthread_mutex_lock(&e->lock);
    m->n_parts = m->n_spans = 0;
    session_reap(e);
    if (!rc) gather(e), cut(e), e->steps++;
    for (int i = 0; i < m->n_parts; i++) m->parts[i].s->stepped = e->steps;
    pthread_mutex_unlock(&e->lock);
    m->began = clock_now();
    uint64_t bytes = atomic_load(&e->machine.bytes_read);
    struct search_in in = question(e);
    struct search_cost c = {0};
    struct search_policy p = m->found.policy;
    in.prompts = 0, in.device = INFINITY, p.n = m->n_parts;
    if (m->found.found && m->n_parts) search_cost(&in, &p, &c);
    m->expected = c.step;
    if (!rc && m->n_spans) rc = paged_run(m->paged, m->spans, m->n_spans, &(struct paged_calls){.tell = tell, .stop = stop, .ctx = e}, &e->closing, &err);
    bytes = (atomic_load(&e->machine.bytes_read) - bytes) / (uint64_t)(m->n_parts ? m->n_parts : 1);
    for (int i = 0; i < m->n_parts; i++) {
        if (m->parts[i].told) continue;
        struct part *x = &m->parts[i];
        if (rc) x->n = 0;
        if (!still(e, x, false)) continue;
        x->s->stats.bytes_read += bytes;
        if (rc && rc != ERR_CANCELLED && x->said) turn_end(x->s, DONE_STOP, rc, &err); /* some logits were already passed to the caller */
    }
    e->last_decode = clock_now();
    if (!rc || rc == ERR_CANCELLED) return;
    log_say(LOG_WARN, "paged batches failed: %s; continuing without them", err.text);
    leave(e, err.text);
}
