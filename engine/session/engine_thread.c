/* The engine thread, which owns the CPU executor. Each round it does one unit of ready work: a decode batch of all
 * decoding sessions, a unit of a prefill (a layer; clients take turns, short prompts are read together and pass long
 * ones), or a task from another thread. When decode competes with the rest, each gets half of the time. A prefill on
 * devices has its own thread and overlaps with decode batches. */
#include <math.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/session/batch_entry.h"
#include "engine/session/decode_batch.h"
#include "engine/session/drafts.h"
#include "engine/session/engine_tasks.h"
#include "engine/session/engine_thread.h"
#include "engine/session/prefill_list.h"
#include "engine/session/prefill_queue.h"
#include "engine/session/prefix.h"
#include "engine/session/session.h"
#include "engine/session/speeds.h"
#include "engine/session/throughput.h"
#include "engine/session/tpot.h"
#include "engine/transfer/gpu_set.h"
#include "engine/transfer/trace.h"

/* Work that is ready in this round, by priority. One unit of it runs. */
struct loop_round {
    struct batch_entry rows[ENGINE_MAX_BATCH]; /* [n_batch] entries of the decode batch */
    /* n_batch 0: no batch this round; n_decoding: sessions that could be in it */
    int n_batch, n_decoding;
    enum throughput_next throughput;
    struct engine_task *task;
    struct session *prefill; /* a unit of its prefill can run; NULL: none */
    bool prefill_active;     /* a prefill runs or is stopping */
};
enum loop_action { LOOP_EXIT, LOOP_CALIBRATE, LOOP_WORK }; /* EXIT: the engine closes and no work is left */

static enum loop_action choose_work(struct engine *eng, struct loop_round *r) {
    struct session *batch[ENGINE_MAX_BATCH];
    eng->advancing = NULL;
    session_reap_cancelled(eng);
    r->throughput = throughput_ready(eng);
    if (!r->throughput) prefill_queue_pick(eng);
    const int n = r->throughput ? 0 : decode_batch_pick(eng, batch);
    if (!eng->is_calibrated && !prefill_list_has_begun(eng) &&
        ((n && eng->params.decode == MODE_AUTO) || (eng->prefilling && eng->params.prefill == MODE_AUTO)))
        return LOOP_CALIBRATE;
    r->task = eng->tasks;
    r->prefill = prefill_queue_ready(eng);
    r->prefill_active = eng->prefilling;
    r->n_decoding = n;
    const bool other_work = r->task || (r->prefill && (!n || tpot_has_room(eng, eng->tpot.unit_s)));
    r->n_batch = n && !(other_work && eng->decode_lead_s > 0) ? decode_batch_fill(eng, batch, n, r->rows) : 0;
    if (!r->n_batch && r->task) eng->tasks = r->task->next;
    else if (!r->n_batch) eng->advancing = r->prefill;
    return atomic_load(&eng->closing) && !n && !other_work && !r->prefill_active && !r->throughput ? LOOP_EXIT
                                                                                                   : LOOP_WORK;
}

static void run_decode_batch(struct engine *eng, struct loop_round *r) {
    if (eng->params.draft) drafts_add(eng, r->rows, r->n_batch);
    pthread_mutex_lock(&eng->lock);
    for (int i = 0; i < r->n_batch; i++) session_set_hold(r->rows[i].s, HOLD_BATCH);
    session_reap_cancelled(eng); /* cancelled turns need not wait for the batch */
    pthread_mutex_unlock(&eng->lock);
    decode_batch_run(eng, r->rows, r->n_batch);
    /* Copying one chunk of KV for the disk is spread over batches: 4 MB (1 << 22 bytes) per batch, about 1 ms. */
    if (eng->n_batches % (1 + ((uint64_t)eng->prefill_work.rows * eng->info.kv_token_bytes >> 22)) == 0)
        prefix_save_one(eng);
}

/* Tells the INT4 draft whether the engine thread is busy. While it is, weights are converted for the draft slowly,
 * unless there is a spare core or drafts are forced. */
static void set_cpu_busy(struct engine *eng, bool busy) {
    if (eng->int4) int4_set_cpu_busy(eng->int4, busy && !eng->params.max_drafted && pool_is_saturated(eng->pool));
}

static void run_idle(struct engine *eng, const struct loop_round *r) {
    uint64_t wakes;
    if (prefix_save_one(eng)) return;
    if (!r->prefill_active) trace_save(eng->machine.trace, eng->params.trace, false);
    set_cpu_busy(eng, false);
    error_ignore(read(eng->wake_fd, &wakes, sizeof wakes)); /* interrupted: look again */
    set_cpu_busy(eng, true);
}

static bool run_round(struct engine *eng) {
    struct loop_round r;
    pthread_mutex_lock(&eng->lock);
    const enum loop_action action = choose_work(eng, &r);
    pthread_mutex_unlock(&eng->lock);
    if (action == LOOP_CALIBRATE) speeds_calibrate(eng);
    if (action != LOOP_WORK) return action != LOOP_EXIT;
    if (eng->machine.gpus) pin_hold(eng->machine.gpus->pin, r.n_decoding > 0);
    const double begin = clock_now();
    if (r.n_batch) run_decode_batch(eng, &r);
    else if (r.task) engine_run_task(eng, r.task);
    else if (r.throughput == THROUGHPUT_RUN) throughput_run(eng);
    else if (r.prefill) prefill_queue_advance(r.prefill);
    else run_idle(eng, &r);
    const double t = clock_now() - begin;
    /* Decode and the other work share the time. The lead of either is at most this unit, so that neither waits long. */
    if (r.n_batch) eng->decode_lead_s = fmin(eng->decode_lead_s + t, t);
    else if (r.task || r.prefill) eng->decode_lead_s = r.n_decoding ? fmax(eng->decode_lead_s - t, -t) : 0;
    if (r.n_batch) tpot_batch_done(eng, r.n_decoding, eng->n_batch_tokens, t);
    else if (r.prefill && !r.task && r.n_decoding) tpot_charge(eng, eng->tpot.unit_s = t);
    if (r.n_batch && eng->machine.gpus && !prefill_list_streams(eng)) gpu_set_check_memory(eng->machine.gpus);
    if (r.prefill_active) prefill_queue_emit_progress(eng);
    return true;
}

void *engine_thread(void *engine) {
    struct engine *eng = engine;
    pool_pin_caller(eng->pool);
    set_cpu_busy(eng, true);
    while (run_round(eng)) {
    }
    return NULL;
}
