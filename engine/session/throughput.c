#include "engine/session/throughput.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/test_limits.h"
#include "engine/exec/throughput/paged.h"
#include "engine/placement/batching.h"
#include "engine/placement/search.h"
#include "engine/session/engine_state.h"
#include "engine/session/policy_machine.h"
#include "engine/session/prefix.h"
#include "engine/session/session.h"
#include "engine/session/session_turn.h"
#include "engine/session/speeds.h"
#include "engine/session/tpot.h"

enum {
    MAX_SESSIONS = 4096,
    MAX_BATCH_ROWS = SEARCH_PREFILL_ROWS_MOST,
    DEFAULT_PROMPTS = 64,
    DEFAULT_PROMPT_TOKENS = 256,
    DEFAULT_ANSWER_TOKENS = 256
};
static const double LEAVE_FACTOR = 1.25; /* hysteresis: leave paged batches only if another mode is clearly faster */

struct paged_entry { /* a session's entry in a batch */
    struct session *s;
    uint64_t turn_id;
    int pos, n;                   /* its rows: positions pos .. pos + n - 1 */
    bool is_sampled, gave_logits; /* its token was sampled; logits of prompt positions were passed to request.logits */
};
struct throughput {
    /* forced by --decode; chosen by the policy for announced prompts; waiting for announced prompts */
    bool is_forced, is_chosen, is_waiting;
    bool has_failed; /* paged batches failed: not used again */
    struct announced_load load;
    struct search_rows rows;
    struct search_out search;
    struct policy_machine machine; /* modes other than paged, with the weights that devices hold for them */
    struct paged *paged;
    struct paged_options options;
    size_t free_bytes[GPU_MAX]; /* free memory of each device before paged batches opened */
    char why[400];
    struct paged_entry *entries;               /* [MAX_SESSIONS] */
    struct paged_span *spans;                  /* [MAX_SESSIONS + MAX_BATCH_ROWS] */
    int32_t *kv_lengths, *micro_batch, *order; /* [MAX_SESSIONS] */
    int *span_entry;                           /* [MAX_SESSIONS + MAX_BATCH_ROWS] */
    int32_t *tokens; /* [MAX_SESSIONS + MAX_BATCH_ROWS, 1 + config_lookback()] of all spans, one after another */
    /* n_decoding: entries that decode; max_micro_rows: most of these per micro-batch */
    int n_entries, n_decoding, n_spans, n_tokens, max_micro_rows;
    double began_at, expected_s;
};

int throughput_open(struct engine *eng, struct error *e) {
    if (!eng->machine.gpus) return 0;
    const char *cannot = paged_why_not(&eng->machine);
    bool asked = eng->params.decode == DECODE_PAGED;
    if (asked && cannot) return error_set(e, ERR_USAGE, "decoding in mode paged: %s (--decode)", cannot);
    struct throughput *m = eng->throughput = mem_calloc(1, sizeof *m);
    if (!m) return error_set(e, ERR_MEMORY, "no memory for throughput batches");
    m->is_forced = asked;
    paged_search_rows(&eng->weights.config, (enum dtype)eng->params.kv, &m->rows);
    m->load = (struct announced_load){
        .n_prompts = DEFAULT_PROMPTS, .prompt_tokens = DEFAULT_PROMPT_TOKENS, .answer_tokens = DEFAULT_ANSWER_TOKENS};
    return 0;
}
void throughput_close(struct engine *eng) {
    struct throughput *m = eng->throughput;
    if (!m) return;
    paged_close(&m->paged);
    mem_free(m->entries), mem_free(m->spans), mem_free(m->kv_lengths), mem_free(m->micro_batch), mem_free(m->order),
        mem_free(m->span_entry), mem_free(m->tokens);
    mem_free(m);
    eng->throughput = NULL;
}

/* --- The policy ------------------------------------------------------------------------------- */

static struct search_in make_search_input(const struct engine *eng) {
    struct throughput *m = eng->throughput;
    struct gpu_set *g = eng->machine.gpus;
    if (!m->paged) m->machine = policy_machine_of(eng);
    struct search_in in = {.cost = &eng->cost,
                           .model = &eng->cost_model,
                           .rows = &m->rows,
                           .machine = &m->machine,
                           .max_tpot_s = eng->params.max_tpot_s,
                           .prompt_tokens = m->load.prompt_tokens,
                           .answer_tokens = m->load.answer_tokens,
                           .n_prompts = m->load.n_prompts,
                           .allowed_mask = 1u << SEARCH_CPU,
                           .max_matrix_rows = BATCH_INVARIANT_ROWS};
    in.max_rows[SEARCH_CPU] = in.max_rows[SEARCH_HYBRID] = ENGINE_MAX_BATCH;
    in.max_rows[SEARCH_PAGED] =
        m->load.max_at_once > 0 && m->load.max_at_once < MAX_SESSIONS ? m->load.max_at_once : MAX_SESSIONS;
    in.host_bytes = (double)(mem_available() + pin_own_bytes(g->pin)); /* mapped files count as available */
    if (decode_resident_layers(eng->machine.decode)) in.allowed_mask |= 1u << SEARCH_HYBRID;
    if (!paged_why_not(&eng->machine) && !m->has_failed) in.allowed_mask |= 1u << SEARCH_PAGED;
    if (m->is_forced) in.allowed_mask &= 1u << SEARCH_PAGED;
    in.device_bytes = INFINITY;
    for (int i = 0; i < g->n; i++) { /* 6% are for buffers that the search does not model */
        size_t room = m->paged ? m->free_bytes[i] : gpu_mem_free(g->gpu[i]) + decode_held_bytes(eng->machine.decode, i);
        in.device_bytes = fmin(in.device_bytes, 0.94 * (double)room);
    }
    return in;
}

static void choose_policy(struct engine *eng) {
    struct throughput *m = eng->throughput;
    struct search_in in = make_search_input(eng);
    search_run(&in, &m->search);
    search_why(&in, &m->search, m->why, sizeof m->why);
    m->is_chosen =
        m->search.is_found && (m->is_forced || !m->search.misses_tpot) && m->search.policy.placement == SEARCH_PAGED;
}

/* Returns the device memory to other decode modes. */
static void release_devices(struct engine *eng) {
    struct throughput *m = eng->throughput;
    if (m->paged) decode_reclaim(eng->machine.decode);
    paged_close(&m->paged);
    m->is_chosen = false;
}

int throughput_announce(struct engine *eng, const struct announced_load *load) {
    struct throughput *m = eng->throughput;
    if (!m) return 0;
    m->is_waiting = false;
    if (!load) return 0;
    if (!eng->is_calibrated) speeds_calibrate(eng);
    m->load = *load;
    if (!m->is_forced) release_devices(eng);
    if (eng->params.decode != MODE_AUTO && !m->is_forced) return 0;
    choose_policy(eng);
    log_say(LOG_INFO, "%d prompts: %s", load->n_prompts, m->why);
    m->is_waiting = m->is_chosen;
    return m->is_chosen ? m->search.policy.n_rows : 0;
}

/* Whether a paged batch of this many rows is worth it compared with the other modes. */
static bool is_worth_it(struct engine *eng, int rows, double keys) {
    struct throughput *m = eng->throughput;
    struct search_in in = make_search_input(eng);
    struct search_policy p = m->search.policy;
    struct search_cost c;
    p.n_rows = rows;
    in.n_prompts = 0, in.device_bytes = INFINITY, in.max_tpot_s = 0; /* the weights are resident already */
    search_cost(&in, &p, &c);
    struct policy_decode_out out;
    policy_decode_batch(&m->machine,
                        &(struct policy_decode_in){.n_decoding = rows,
                                                   .max_rows = ENGINE_MAX_BATCH,
                                                   .keys = keys,
                                                   .context_tokens = keys + POLICY_EXPECTED_GROWTH},
                        &out);
    return !c.fits || c.decode_s <= LEAVE_FACTOR * out.seconds[out.mode] * ceil((double)rows / out.batch);
}

/* --- The device ------------------------------------------------------------------------------- */

static void fail_paged(struct engine *eng, const char *why) {
    struct throughput *m = eng->throughput;
    paged_close(&m->paged);
    m->is_chosen = m->is_forced = m->is_waiting = false;
    m->has_failed = true;
    struct gpu_set *g = eng->machine.gpus;
    for (int i = 0; i < g->n; i++)
        if (gpu_error(g->gpu[i], &(struct error){0}) && gpu_clear(g->gpu[i], &(struct error){0})) g->is_lost = true;
    if (eng->machine.gpus->is_lost) decode_on_device_lost(eng->machine.decode, why);
    decode_reclaim(eng->machine.decode);
}

static void report_open(struct throughput *m) {
    struct paged *p = m->paged;
    char facts[240];
    int n = 0;
    if (paged_n_devices(p) > 1)
        n = snprintf(facts, sizeof facts, "layers alternate over %d cards, ", paged_n_devices(p));
    snprintf(
        facts + n, sizeof facts - (size_t)n,
        "%.0f%% of the %s stay on the card, pages for %d%% of a layer's others; micro-batches of %d, up to %d rows "
        "per batch; ",
        100 * paged_resident_fraction(p), paged_pages_ffns(p) ? "FFNs" : "experts", paged_ring_percent(p),
        m->options.micro, m->options.rows);
    log_say(LOG_INFO, "paged batches: %s", facts);
    size_t len = strlen(facts), cap = sizeof m->why - 1;
    memmove(m->why + len, m->why, cap - len); /* in front of the predictions */
    memcpy(m->why, facts, len);
    m->why[cap] = 0;
}

static int open_paged(struct engine *eng, struct error *e) {
    struct throughput *m = eng->throughput;
    const size_t n = MAX_SESSIONS, max_spans = (size_t)MAX_SESSIONS + MAX_BATCH_ROWS;
    if (!m->entries) {
        m->entries = mem_alloc(n * sizeof *m->entries), m->spans = mem_alloc(max_spans * sizeof *m->spans),
        m->span_entry = mem_alloc(max_spans * sizeof *m->span_entry);
        m->tokens = mem_alloc(max_spans * (size_t)(1 + config_lookback(&eng->weights.config)) * sizeof *m->tokens);
        m->kv_lengths = mem_alloc(n * sizeof *m->kv_lengths), m->micro_batch = mem_alloc(n * sizeof *m->micro_batch),
        m->order = mem_alloc(n * sizeof *m->order);
    }
    if (!m->entries || !m->spans || !m->tokens || !m->span_entry || !m->kv_lengths || !m->micro_batch || !m->order)
        return error_set(e, ERR_MEMORY, "no memory for throughput batches");
    if (!m->search.is_found) choose_policy(eng);
    if (m->search.misses_tpot && !eng->tpot.has_warned) {
        eng->tpot.has_warned = true;
        log_say(LOG_WARN,
                "a limit of %.4g ms per token cannot be met by paged batches: a token takes at least %.3g ms, with %d "
                "prompt%s at once (--max-tpot)",
                eng->params.max_tpot_s * 1e3, m->search.cost.decode_s * 1e3, m->search.policy.n_rows,
                m->search.policy.n_rows > 1 ? "s" : "");
    }
    struct search_policy p =
        m->search.is_found ? m->search.policy
                           : (struct search_policy){.n_rows = DEFAULT_PROMPTS, .micro_rows = BATCH_INVARIANT_ROWS};
    if (p.ring_layers < 2)
        p.n_rows = p.n_rows > DEFAULT_PROMPTS ? p.n_rows : DEFAULT_PROMPTS,
        /* the search found no fitting policy: try a minimal one */
            p.micro_rows = p.micro_rows > BATCH_INVARIANT_ROWS ? p.micro_rows : BATCH_INVARIANT_ROWS;
    const int most = p.read_rows > 0 ? p.read_rows : SEARCH_PREFILL_ROWS;
    double rows = fmin(most, fmax(p.n_rows, ceil(p.n_rows * m->load.prompt_tokens)));
    m->options = (struct paged_options){.devices = (int)test_limits_get(TEST_LIMIT_PAGED_DEVICES, (size_t)p.n_devices),
                                        .micro = p.micro_rows > SEARCH_PREFILL_MICRO_ROWS ? p.micro_rows
                                                                                          : SEARCH_PREFILL_MICRO_ROWS,
                                        .rows = (int)rows,
                                        .resident_fraction = -1};
    if (m->options.micro > m->options.rows) m->options.micro = m->options.rows;
    /* extra rows cost a device nothing */
    m->max_micro_rows = p.micro_rows < BATCH_INVARIANT_ROWS ? BATCH_INVARIANT_ROWS : p.micro_rows;
    decode_yield(eng->machine.decode);
    for (int i = 0; i < eng->machine.gpus->n; i++) m->free_bytes[i] = gpu_mem_free(eng->machine.gpus->gpu[i]);
    for (;;) {
        int rc = paged_open(&m->paged, &eng->machine, (enum dtype)eng->params.kv, &m->options, &eng->closing, e);
        if (!rc) report_open(m);
        if (rc != ERR_MEMORY || m->options.rows <= BATCH_INVARIANT_ROWS) return rc;
        /* retry with fewer rows */
        m->options.rows = m->options.rows / 2 > BATCH_INVARIANT_ROWS ? m->options.rows / 2 : BATCH_INVARIANT_ROWS;
        if (m->options.micro > m->options.rows) m->options.micro = m->options.rows;
        if (m->max_micro_rows > m->options.micro) m->max_micro_rows = m->options.micro;
        *e = (struct error){0};
    }
}

int throughput_micro_rows(const struct engine *eng) { return eng->throughput->max_micro_rows; }
int throughput_devices(const struct engine *eng) {
    return eng->throughput && eng->throughput->paged ? paged_n_devices(eng->throughput->paged) : 0;
}
double throughput_resident_share(const struct engine *eng) {
    return eng->throughput && eng->throughput->paged ? paged_resident_fraction(eng->throughput->paged) : -1;
}

/* --- One batch -------------------------------------------------------------------------------- */

enum throughput_next throughput_ready(struct engine *eng) {
    struct throughput *m = eng->throughput;
    int n = 0;
    double keys = 0;
    if (!m || m->has_failed || !(m->is_forced || m->is_chosen) || eng->prefilling || atomic_load(&eng->closing))
        return THROUGHPUT_NONE;
    for (struct session *s = eng->sessions; s; s = s->next) {
        int state = atomic_load(&s->state);
        if (state != SESSION_QUEUED && state != SESSION_DECODE) continue;
        if (s->n_images || (s->request.logits && !m->is_forced)) return THROUGHPUT_NONE;
        if (s->n_unread < ENGINE_MAX_UNREAD) keys += s->n_tokens, n++;
    }
    if (!n) return THROUGHPUT_NONE;
    if (m->is_waiting) return THROUGHPUT_HOLD;
    if (m->paged && !m->is_forced && !is_worth_it(eng, n, keys / n)) {
        log_say(LOG_INFO, "%d prompts left: too few for paged batches", n);
        release_devices(eng);
        return THROUGHPUT_NONE;
    }
    return THROUGHPUT_RUN;
}

static void begin_prompt(struct engine *eng, struct session *s) {
    const bool long_rope = config_long_rope(&eng->weights.config, s->n_tokens);
    /* the rest of a prompt that has begun */
    if (s->stats.prefill_mode == exec_mode_name(DECODE_PAGED) && s->is_long_rope == long_rope) return;
    decode_rewind(eng->machine.decode, &s->kv, s->n_kv);
    mtp_rewind(&s->mtp, s->n_kv);
    prefix_begin_turn(s);
    s->is_long_rope = long_rope;
    s->stats.prefill_mode = exec_mode_name(DECODE_PAGED);
    if (s->n_answered) return;
    s->stats.queue_s = clock_now() - s->submitted_at;
    s->stats.cached_tokens = s->n_kv;
}

/* Under the lock: collects the sessions of this batch, decoding ones first, each kind in order of waiting time. */
static void collect_entries(struct engine *eng) {
    struct throughput *m = eng->throughput;
    m->n_entries = 0;
    for (int pass = 0; pass < 2; pass++)
        for (struct session *s = eng->sessions; s && m->n_entries < MAX_SESSIONS; s = s->next) {
            int state = atomic_load(&s->state);
            if (state != (pass ? SESSION_QUEUED : SESSION_DECODE) || s->n_unread == ENGINE_MAX_UNREAD) continue;
            int i = m->n_entries++;
            while (i > 0 && (atomic_load(&m->entries[i - 1].s->state) == state) &&
                   m->entries[i - 1].s->last_batch > s->last_batch)
                m->entries[i] = m->entries[i - 1], i--;
            m->entries[i] = (struct paged_entry){.s = s, .turn_id = s->turn_id, .pos = s->n_kv};
            session_set_hold(s, HOLD_BATCH);
        }
}

static void add_span(struct throughput *m, int entry, int n, int micro) {
    struct paged_entry *p = &m->entries[entry];
    struct session *s = p->s;
    /* a copy: another turn may replace the session's tokens before the batch starts */
    const int pos = p->pos + p->n, n_before = config_lookback_at(s->kv.c, pos);
    int32_t *tokens = m->tokens + m->n_tokens + n_before;
    memcpy(tokens - n_before, s->tokens + pos - n_before, (size_t)(n_before + n) * sizeof *tokens);
    m->n_tokens += n_before + n;
    m->span_entry[m->n_spans] = entry;
    m->spans[m->n_spans++] = (struct paged_span){.kv = &s->kv,
                                                 .tokens = tokens,
                                                 .pos = pos,
                                                 .n = n,
                                                 .n_before = n_before,
                                                 .total = s->n_tokens,
                                                 .micro = micro,
                                                 .want_logits = s->request.logits || pos + n == s->n_tokens};
    p->n += n;
}

/* Under the lock: assigns rows to micro-batches. Decoding sessions by KV length, then prompts, which fill the last
 * micro-batch and new ones. With --max-tpot, a prompt starts only if all sessions can then decode within the bound, and
 * prompts get only rows for which answers leave time. */
static void build_spans(struct engine *eng) {
    struct throughput *m = eng->throughput;
    const int max_rows = m->max_micro_rows,
              chunk = m->options.micro < SEARCH_PREFILL_MICRO_ROWS ? m->options.micro : SEARCH_PREFILL_MICRO_ROWS;
    const bool is_bounded = eng->params.max_tpot_s > 0 && m->search.is_found;
    /* entries up to which prompts start; answers that have begun continue */
    const int max_at_once = is_bounded ? m->search.policy.n_rows : MAX_SESSIONS;
    int n = 0, micros = 0, rows = 0, room = 0;
    m->n_spans = m->n_tokens = 0;
    while (n < m->n_entries && n < m->options.rows && m->entries[n].s->n_tokens - m->entries[n].s->n_kv == 1 &&
           (n < max_at_once || atomic_load(&m->entries[n].s->state) == SESSION_DECODE)) {
        struct session *s = m->entries[n].s;
        if (atomic_load(&s->state) == SESSION_QUEUED) begin_prompt(eng, s); /* all but one of its rows are cached */
        m->kv_lengths[n++] = s->n_tokens;
    }
    if (n) {
        micros = (n + max_rows - 1) / max_rows;
        if (micros > PAGED_MAX_MICRO_BATCHES) micros = PAGED_MAX_MICRO_BATCHES;
        batching_assign(
            &(struct batching_in){
                .n = n, .lengths = m->kv_lengths, .n_micro_batches = micros, .max_per_micro_batch = max_rows},
            m->micro_batch, m->order);
        for (int k = 0; k < micros; k++) {
            room = max_rows;
            for (int i = 0; i < n; i++)
                if (m->micro_batch[i] == k) add_span(m, i, 1, k), rows++, room--;
        }
    }
    m->n_decoding = n;
    const double row_s = is_bounded ? m->search.cost.prefill_s / (m->search.policy.n_rows * m->load.prompt_tokens) : 0;
    eng->tpot.unit_s = chunk * row_s;
    double kv_room = (double)mem_available();
    for (int i = n; i < m->n_entries && rows < m->options.rows; i++) {
        struct paged_entry *p = &m->entries[i];
        int want = p->s->n_tokens - p->pos;
        if (i >= max_at_once) return;
        const double kv_bytes = want * (double)eng->info.kv_token_bytes + (p->pos ? 0 : SEARCH_STATES * m->rows.states);
        if (kv_room < kv_bytes && rows && !eng->params.force) continue; /* waits until other turns have ended */
        kv_room -= kv_bytes;
        begin_prompt(eng, p->s);
        while (want) { /* chunk ends depend on positions only: a row's bits depend on the rows of its chunk */
            int at = p->pos + p->n, k = chunk - at % chunk < want ? chunk - at % chunk : want;
            if (p->s->request.logits) k = 1; /* the caller wants the logits of all positions */
            if (k > m->options.rows - rows || (n && !tpot_has_room(eng, (rows - n + k) * row_s))) return;
            if (k > room) {
                if (micros == PAGED_MAX_MICRO_BATCHES) return;
                micros++, room = m->options.micro;
            }
            add_span(m, i, k, micros - 1);
            want -= k, room -= k, rows += k;
        }
    }
}

/* Under the lock: whether the entry's turn is still running. */
static bool is_running_turn(const struct paged_entry *p) {
    int state = atomic_load(&p->s->state);
    return (state == SESSION_DECODE || state == SESSION_QUEUED) && p->s->turn_id == p->turn_id;
}

/* Records the entry's new rows. If its next token will be sampled, claims the session, as claim_entry() in
 * decode_batch.c does, and enters the state that session_turn_sample() expects. Returns false if the turn has ended. */
static bool finish_rows(struct engine *eng, struct paged_entry *p, bool will_sample) {
    struct session *s = p->s;
    pthread_mutex_lock(&eng->lock);
    bool is_running = is_running_turn(p);
    session_set_hold(s, is_running && will_sample ? HOLD_CLAIMED : HOLD_NONE);
    if (is_running && p->n) s->n_kv = p->pos + p->n;
    if (is_running && will_sample && atomic_load(&s->state) == SESSION_QUEUED) {
        session_set_state(s, SESSION_PREFILL);
        fair_queue_charge(&eng->prefill_queue, &s->queue_entry);
    }
    pthread_cond_broadcast(&eng->ended_cond);
    pthread_mutex_unlock(&eng->lock);
    return is_running;
}

static bool entry_is_live(struct engine *eng, const struct paged_entry *p, bool *in_prefill) {
    pthread_mutex_lock(&eng->lock);
    bool is_running = is_running_turn(p);
    *in_prefill = atomic_load(&p->s->state) == SESSION_QUEUED;
    pthread_mutex_unlock(&eng->lock);
    return is_running;
}

static void on_logits(void *ctx, int span, float *logits, int32_t top) {
    struct engine *eng = ctx;
    struct throughput *m = eng->throughput;
    struct paged_entry *p = &m->entries[m->span_entry[span]];
    struct session *s = p->s;
    const struct paged_span *t = &m->spans[span];
    bool in_prefill;
    if (!entry_is_live(eng, p, &in_prefill)) return; /* its turn is over; another one may have begun */
    if (in_prefill && s->request.logits && !s->n_answered) {
        p->gave_logits = true;
        if (s->request.logits(s->request.logits_ctx, t->pos, logits)) atomic_store(session_cancel_flag(s), 1);
    }
    if (t->pos + t->n < t->total) return; /* not the last row of the prompt */
    p->is_sampled = true;
    if (!finish_rows(eng, p, true)) return;
    double now = clock_now();
    if (in_prefill && !s->n_answered) s->stats.prefill_s = now - m->began_at;
    s->stats.decode_mode = exec_mode_name(DECODE_PAGED);
    s->stats.batch_expected_s = m->expected_s, s->stats.batch_s = now - m->began_at;
    const char *no_drafts =
        eng->params.draft ? "; no drafts: a row of another prompt yields more than a drafted token" : "";
    snprintf(s->stats.decode_why, sizeof s->stats.decode_why, "%.*s%s",
             (int)(sizeof s->stats.decode_why - 1 - strlen(no_drafts)), m->why, no_drafts);
    snprintf(s->stats.prefill_why, sizeof s->stats.prefill_why,
             "%d tokens in paged batches, with %d other prompts and answers", s->stats.prompt_tokens, m->n_entries - 1);
    session_turn_sample(s, logits, top, -1);
}

/* Whether no turn needs the batch any more. A session whose token was sampled is no longer held and may be closed. */
static int no_turn_left(void *ctx) {
    struct engine *eng = ctx;
    struct throughput *m = eng->throughput;
    if (atomic_load(&eng->closing)) return 1;
    pthread_mutex_lock(&eng->lock);
    session_reap_cancelled(eng);
    bool any = false;
    for (int i = 0; i < m->n_entries && !any; i++) any = !m->entries[i].is_sampled && is_running_turn(&m->entries[i]);
    pthread_mutex_unlock(&eng->lock);
    return !any;
}

void throughput_run(struct engine *eng) {
    struct throughput *m = eng->throughput;
    struct error e = {0};
    int rc = m->paged ? 0 : open_paged(eng, &e);
    pthread_mutex_lock(&eng->lock);
    m->n_entries = m->n_spans = 0;
    session_reap_cancelled(eng);
    if (!rc) collect_entries(eng), build_spans(eng), eng->n_batches++;
    for (int i = 0; i < m->n_entries; i++)
        m->entries[i].s->last_batch = eng->n_batches, m->entries[i].s->decoded_at = clock_now();
    pthread_mutex_unlock(&eng->lock);
    m->began_at = clock_now();
    uint64_t bytes = atomic_load(&eng->machine.bytes_read);
    struct search_in in = make_search_input(eng);
    struct search_cost c = {0};
    struct search_policy p = m->search.policy;
    in.n_prompts = 0, in.device_bytes = INFINITY, p.n_rows = m->n_entries;
    if (m->search.is_found && m->n_entries) search_cost(&in, &p, &c);
    m->expected_s = c.decode_s;
    if (!rc && m->n_spans)
        rc = paged_run(m->paged, m->spans, m->n_spans,
                       &(struct paged_calls){.on_logits = on_logits, .should_stop = no_turn_left, .ctx = eng},
                       &eng->closing, &e);
    bytes = (atomic_load(&eng->machine.bytes_read) - bytes) / (uint64_t)(m->n_entries ? m->n_entries : 1);
    for (int i = 0; i < m->n_entries; i++) {
        if (m->entries[i].is_sampled) continue;
        struct paged_entry *entry = &m->entries[i];
        if (rc) entry->n = 0;
        if (!finish_rows(eng, entry, false)) continue;
        entry->s->stats.bytes_read += bytes;
        /* some logits were already passed to the caller */
        if (rc && rc != ERR_CANCELLED && entry->gave_logits) session_turn_end(entry->s, DONE_STOP, rc, &e);
    }
    if (m->n_decoding) tpot_charge(eng, clock_now() - m->began_at - eng->params.max_tpot_s);
    if (!rc || rc == ERR_CANCELLED) return;
    log_say(LOG_WARN, "paged batches failed: %s; continuing without them", e.text);
    fail_paged(eng, e.text);
}
