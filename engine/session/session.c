/* Sessions: state transitions and event queues. engine_thread.c decides when sessions compute. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/layer/kv_planes.h"
#include "engine/session/engine_tasks.h"
#include "engine/session/image_queue.h"
#include "engine/session/prefill_list.h"
#include "engine/session/prefix.h"
#include "engine/session/session.h"

/* --- States ----------------------------------------------------------------------------------- */

void session_set_state(struct session *s, enum session_state to) {
    static const int may_follow[] = {
        [SESSION_IDLE] = 1 << SESSION_QUEUED | 1 << SESSION_ENDED, /* ENDED: session_submit_answer() */
        [SESSION_QUEUED] = 1 << SESSION_PREFILL | 1 << SESSION_ENDED,
        [SESSION_PREFILL] = 1 << SESSION_DECODE | 1 << SESSION_QUEUED | 1 << SESSION_ENDED,
        /* QUEUED: the RoPE factors changed, prefill everything again */
        [SESSION_DECODE] = 1 << SESSION_QUEUED | 1 << SESSION_ENDED,
        [SESSION_ENDED] = 1 << SESSION_IDLE,
    };
    struct engine *eng = s->engine;
    int from = atomic_load(&s->state);
    assert(may_follow[from] >> to & 1);
    assert(0 <= s->n_kv && s->n_kv <= s->n_tokens && s->n_tokens <= eng->info.context);
    assert(from != SESSION_PREFILL || prefill_list_has(s));
    if (from == SESSION_PREFILL && !s->prefill.is_abandoned) prefill_list_remove(s);
    if (from == SESSION_QUEUED) fair_queue_remove(&eng->prefill_queue, &s->queue_entry);
    if (to == SESSION_QUEUED) fair_queue_push(&eng->prefill_queue, &s->queue_entry, s->request.client, s->turn_id);
    switch (to) {
    case SESSION_IDLE:
        assert(!s->n_unread && !s->progress_serial && !s->end_serial && s->hold != HOLD_CLAIMED &&
               s->hold != HOLD_BATCH);
        break;
    case SESSION_QUEUED:
        assert(s->n_kv < s->n_tokens && (!s->n_answered || !s->n_kv) && (s->n_answered || !s->n_unread) &&
               !s->end_serial);
        break;
    case SESSION_PREFILL:
        assert(!prefill_list_has(s));
        prefill_list_push(s);
        break;
    case SESSION_DECODE: assert(s->n_kv == s->n_tokens - 1 && s->n_answered >= 1); break;
    case SESSION_ENDED:
        assert(s->end_serial && s->hold != HOLD_CLAIMED && s->hold != HOLD_BATCH && !s->stop_ids);
        break;
    }
    atomic_store(&s->state, (int)to);
}

void session_set_hold(struct session *s, enum session_hold to) {
    static const int may_follow[] = {
        [HOLD_NONE] = 1 << HOLD_CLAIMED | 1 << HOLD_BATCH | 1 << HOLD_DRAINING,
        [HOLD_CLAIMED] = 1 << HOLD_NONE | 1 << HOLD_BATCH,
        [HOLD_BATCH] = 1 << HOLD_NONE | 1 << HOLD_CLAIMED | 1 << HOLD_DRAINING,
        [HOLD_DRAINING] = 1 << HOLD_NONE,
    };
    assert(to == s->hold || may_follow[s->hold] >> to & 1);
    s->hold = to;
}

/* Counts one more unread event and returns its serial number. */
static uint64_t next_serial(struct engine *eng) {
    if (!eng->n_unread++) engine_signal_fd(eng->event_fd);
    return ++eng->n_events;
}

void session_end_turn(struct session *s, enum done_reason reason, int rc, const struct error *why) {
    struct engine *eng = s->engine;
    s->stats.answer_tokens = s->n_answered;
    if (s->n_answered) s->stats.decode_s = clock_now() - s->first_token_at;
    s->end = (struct event){.kind = rc ? EVENT_ERROR : EVENT_DONE, .session = s, .reason = reason, .stats = s->stats};
    if (rc) s->end.error = *why;
    mem_free(s->stop_ids);
    s->stop_ids = NULL;
    session_set_hold(s, s->hold == HOLD_BATCH || s->hold == HOLD_DRAINING ? HOLD_DRAINING : HOLD_NONE);
    s->end_serial = next_serial(eng);
    session_set_state(s, SESSION_ENDED);
    pthread_cond_broadcast(&eng->ended_cond);
}

static const struct session *leader_of(const struct session *s) { return s->prefill.leader ? s->prefill.leader : s; }
/* Whether a lock holder may end the turn. */
static bool may_end_turn(const struct session *s) {
    switch (atomic_load(&s->state)) {
    case SESSION_QUEUED: return true;
    /* request.logits runs the caller's code, which must not outlive the turn */
    case SESSION_PREFILL: return s->engine->advancing != leader_of(s) && !s->request.logits;
    case SESSION_DECODE: return s->hold != HOLD_CLAIMED;
    default: return false;
    }
}

/* Ends a turn whose prefill waits, or runs in a thread of its own; the prefill stops later. */
static void abandon_prefill(struct session *s) {
    if (!s->prefill.driver) return; /* not begun */
    s->n_kv += s->prefill.job.n_complete;
    if (!s->n_answered) s->stats.prefill_s = clock_now() - s->prefill.began;
    session_set_hold(s, HOLD_DRAINING);
    s->prefill.is_abandoned = true;
}

void session_reap_cancelled(struct engine *eng) {
    for (struct session *s = eng->sessions; s; s = s->next) {
        if (!may_end_turn(s) || !atomic_load(session_cancel_flag(s))) continue;
        if (atomic_load(&s->state) == SESSION_PREFILL) abandon_prefill(s);
        session_end_turn(s, DONE_CANCELLED, 0, NULL);
    }
}

/* --- Events: each session stores its own until they are polled -------------------------------- */

void session_emit_token(struct session *s, int32_t id, const struct token_logprobs *probs) {
    assert(s->n_unread < ENGINE_MAX_UNREAD);
    int at = (s->first_unread + s->n_unread++) % ENGINE_MAX_UNREAD;
    s->unread[at].serial = next_serial(s->engine);
    s->unread[at].token = id;
    if (probs) s->unread_logprobs[at] = *probs;
}

void session_emit_progress(struct session *s, const struct event *ev) {
    s->progress = *ev; /* replaces an unread one */
    if (!s->progress_serial) s->progress_serial = next_serial(s->engine);
}

/* Serial number of the session's next event; progress, tokens and end follow each other. */
static uint64_t next_event_serial(const struct session *s) {
    return s->progress_serial ? s->progress_serial : s->n_unread ? s->unread[s->first_unread].serial : s->end_serial;
}

static void take_event(struct session *s, struct event *out) {
    struct engine *eng = s->engine;
    eng->n_unread--;
    if (s->progress_serial) {
        *out = s->progress;
        s->progress_serial = 0;
    } else if (s->n_unread) {
        *out = (struct event){.kind = EVENT_TOKEN, .session = s, .token = s->unread[s->first_unread].token};
        if (s->request.wants_logprobs) out->logprobs = s->unread_logprobs[s->first_unread];
        s->first_unread = (s->first_unread + 1) % ENGINE_MAX_UNREAD;
        if (s->n_unread-- == ENGINE_MAX_UNREAD) engine_wake(eng); /* the session paused for lack of room */
    } else {
        *out = s->end;
        s->end_serial = 0;
        session_set_state(s, SESSION_IDLE);
    }
}

bool engine_poll(struct engine *eng, struct event *out, int timeout_ms) {
    double until = clock_now() + timeout_ms * 1e-3;
    for (;;) {
        struct session *next = NULL;
        uint64_t drop;
        pthread_mutex_lock(&eng->lock);
        session_reap_cancelled(eng); /* also here, as the engine thread may be busy for long */
        for (struct session *s = eng->sessions; s; s = s->next)
            if (next_event_serial(s) && (!next || next_event_serial(s) < next_event_serial(next))) next = s;
        if (next) take_event(next, out);
        /* a cancel may have signalled: look again */
        bool signalled = !next && read(eng->event_fd, &drop, sizeof drop) > 0;
        pthread_mutex_unlock(&eng->lock);
        if (next) return true;
        if (signalled) continue;
        double left = until - clock_now();
        if (timeout_ms >= 0 && left <= 0) return false;
        poll(&(struct pollfd){.fd = eng->event_fd, .events = POLLIN}, 1, timeout_ms < 0 ? -1 : (int)(left * 1e3) + 1);
    }
}

/* --- Sessions --------------------------------------------------------------------------------- */

int session_open(struct engine *eng, struct session **out, struct error *e) {
    struct session *s = mem_calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return error_set(e, ERR_MEMORY, "no memory for a session");
    s->engine = eng;
    int rc = kv_open(&s->kv, &eng->weights.config, kv_planes, eng->info.context, eng->params.kv, e);
    if (rc) {
        mem_free(s);
        return rc;
    }
    pthread_mutex_lock(&eng->lock);
    s->next = eng->sessions;
    eng->sessions = s;
    pthread_mutex_unlock(&eng->lock);
    *out = s;
    return 0;
}

void session_close(struct session **sp) {
    struct session *s = *sp;
    if (!s) return;
    struct engine *eng = s->engine;
    session_cancel(s);
    pthread_mutex_lock(&eng->lock);
    session_reap_cancelled(eng);
    int state;
    while (((state = atomic_load(&s->state)) != SESSION_IDLE && state != SESSION_ENDED) || s->hold || s->n_borrowers)
        pthread_cond_wait(&eng->ended_cond, &eng->lock);
    while (next_event_serial(s)) take_event(s, &(struct event){0}); /* events must not point to a closed session */
    struct session **p = &eng->sessions;
    while (*p != s) p = &(*p)->next;
    *p = s->next;
    pthread_mutex_unlock(&eng->lock);
    decode_forget(eng->machine.decode, &s->kv);
    prefix_save_all(s);
    kv_close(&s->kv);
    prefix_free(s);
    mtp_session_close(&s->mtp);
    if (eng->draft_model.ctx) eng->draft_model.close_chat(eng->draft_model.ctx, &s->draft_chat);
    image_queue_drop(s);
    image_queue_forget(s);
    mem_free(s->disk_keys.v);
    mem_free(s->tokens);
    mem_free(s->raw_logits);
    mem_free(s->unread_logprobs);
    mem_free(s);
    *sp = NULL;
}

int session_fork(struct session *from, struct session *to, struct error *err) {
    if (session_busy(from) || session_busy(to))
        return error_set(err, ERR_RUNTIME, "the session is still busy with its last turn");
    return prefix_fork(from, to, err);
}

void session_cancel(struct session *s) {
    atomic_store(session_cancel_flag(s), 1);
    engine_wake(s->engine);
    engine_signal_fd(s->engine->event_fd); /* the thread that polls events may react sooner than the engine thread */
}
bool session_busy(const struct session *s) { return atomic_load(&s->state) != SESSION_IDLE; }
int session_tokens(const struct session *s, const int32_t **tokens) {
    *tokens = s->tokens;
    return s->n_kv;
}

size_t session_disk_keys(const struct session *s, const uint64_t **keys) {
    *keys = s->disk_keys.v;
    return s->disk_keys.n;
}

static int request_check(const struct engine *eng, const struct request *r, struct error *e) {
    int room = eng->info.context - r->n;
    if (r->n < 1) return error_set(e, ERR_USAGE, "the prompt is empty");
    for (int i = 0; i < r->n; i++)
        if ((r->tokens[i] < 0 && !r->n_images) || r->tokens[i] >= eng->info.vocab)
            return error_set(e, ERR_USAGE, "token %d is %d; the vocabulary has 0 to %d", i, r->tokens[i],
                             eng->info.vocab - 1);
    TRY(image_queue_check(eng, r, e));
    if (room < 0 || (room == 0 && r->max_tokens))
        return error_set(
            e, ERR_CONTEXT, "the prompt is %d tokens; this model's context is %d%s", r->n, eng->info.context,
            eng->info.context < eng->info.max_context ? "; a larger one may hold it (--context)" : " at most");
    return 0;
}

int session_submit(struct session *s, const struct request *r, struct error *e) {
    enum { CHECKED_ANSWER = 4096 }; /* answer tokens that must fit free memory; few answers are longer */
    struct engine *eng = s->engine;
    if (session_busy(s)) return error_set(e, ERR_RUNTIME, "the session is still busy with its last turn");
    int rc = request_check(eng, r, e);
    if (rc) return rc;
    int n_kept = 0; /* rows of the KV cache that the prompt reuses */
    while (n_kept < s->n_kv && n_kept < r->n - 1 && s->tokens[n_kept] == r->tokens[n_kept]) n_kept++;
    if (r->logits || config_long_rope(&eng->weights.config, r->n) != s->is_long_rope) n_kept = 0;
    n_kept = prefix_tokens_to_keep(s, n_kept, r->n, r->flags);
    pthread_mutex_lock(&eng->lock);
    /* otherwise a batch may still change the last turn's states; begin_turn() decides */
    const bool has_stopped = s->hold == HOLD_NONE;
    pthread_mutex_unlock(&eng->lock);
    if (has_stopped) n_kept = kv_resume_pos(&s->kv, n_kept);
    int room = eng->info.context - r->n, answer = r->max_tokens < 0 || r->max_tokens > room ? room : r->max_tokens;
    size_t need =
               (size_t)(r->n - n_kept + (answer < CHECKED_ANSWER ? answer : CHECKED_ANSWER)) * eng->info.kv_token_bytes,
           have = mem_available();
    if (!s->n_kv) need += KV_STATES * kv_state_bytes(&eng->weights.config);
    if (have && need > have && !eng->params.force)
        return error_set(e, ERR_MEMORY,
                         "the KV cache of %d tokens needs %zu MB, %zu MB are free; a KV cache of FP8 needs half (--kv "
                         "fp8; --force overrides)",
                         r->n, need >> 20, have >> 20);
    int32_t *stop = mem_alloc(((size_t)r->n_stop_ids + 1) * sizeof *stop);
    if (r->wants_logprobs && !s->unread_logprobs)
        s->unread_logprobs = mem_alloc(ENGINE_MAX_UNREAD * sizeof *s->unread_logprobs);
    if (r->wants_logprobs && !s->raw_logits) s->raw_logits = mem_alloc((size_t)eng->info.vocab * sizeof *s->raw_logits);
    if (!stop || (r->wants_logprobs && (!s->unread_logprobs || !s->raw_logits)) ||
        mem_grow(&s->tokens, &s->tokens_cap, (size_t)r->n + 1, sizeof *s->tokens) || image_queue_keep(s, r)) {
        mem_free(stop);
        return error_set(e, ERR_MEMORY, "no memory for a prompt of %d tokens", r->n);
    }
    if (r->n_stop_ids) memcpy(stop, r->stop_ids, (size_t)r->n_stop_ids * sizeof *stop);
    memmove(s->tokens, r->tokens, (size_t)r->n * sizeof *s->tokens);
    s->request = *r;
    s->request.tokens = NULL;
    s->request.images = NULL;
    s->request.stop_ids = s->stop_ids = stop;
    s->request.max_tokens = answer;
    s->request.sampling.answer_from = r->n;
    s->n_kv = n_kept;
    s->n_tokens = r->n;
    s->n_answered = 0;
    /* the caller must know the keys of what is written, to delete it */
    if (prefix_disk_keys(s, &s->disk_keys)) s->request.flags |= REQ_NO_DISK_CACHE;
    s->drafts[0].n = s->drafts[1].n = 0;
    s->submitted_at = clock_now();
    s->stats = (struct turn_stats){
        .prompt_tokens = r->n, .cached_tokens = n_kept, .prefill_mode = "cpu", .decode_mode = "cpu"};
    pthread_mutex_lock(&eng->lock);
    int live = s->prefill.is_abandoned && s->prefill.job.cancel == &s->cancel[0];
    atomic_store(&s->cancel[live], 0);
    atomic_store(&s->live_cancel, live);
    s->turn_id = ++eng->n_turns;
    session_set_state(s, SESSION_QUEUED);
    pthread_mutex_unlock(&eng->lock);
    engine_wake(eng);
    return 0;
}

int session_submit_answer(struct session *s, int n_prompt, const int32_t *tokens, int n, int max_tokens,
                          struct error *e) {
    struct engine *eng = s->engine;
    if (session_busy(s)) return error_set(e, ERR_RUNTIME, "the session is still busy with its last turn");
    if (n > ENGINE_MAX_UNREAD)
        return error_set(e, ERR_RUNTIME, "a known answer has %d tokens, the limit is %d", n, ENGINE_MAX_UNREAD);
    bool cut = max_tokens >= 0 && max_tokens < n;
    pthread_mutex_lock(&eng->lock);
    s->submitted_at = s->first_token_at = clock_now();
    s->stats = (struct turn_stats){.prompt_tokens = n_prompt};
    snprintf(s->stats.prefill_why, sizeof s->stats.prefill_why, "the answer was known without the model");
    s->n_answered = cut ? max_tokens : n;
    s->request.wants_logprobs = false;
    for (int i = 0; i < s->n_answered; i++) session_emit_token(s, tokens[i], NULL);
    s->stats.ttft_s = clock_now() - s->submitted_at;
    session_end_turn(s, cut ? DONE_LENGTH : DONE_STOP, 0, NULL);
    pthread_mutex_unlock(&eng->lock);
    return 0;
}
