#include "cli/turn/engine_client_local.h"

#include <stdio.h>
#include <string.h>

#include "base/cpu_level.h"
#include "base/file.h"
#include "cli/app.h"
#include "cli/options/paths.h"
#include "cli/report.h"
#include "cli/terminal/progress.h"
#include "cli/turn/engine_client.h"
#include "cli/turn/gpus.h"
#include "cli/turn/prompt.h"
#include "engine/ember/topic.h"

/* --- opening ---------------------------------------------------------------------------------- */

/* Shows progress before anything slow starts. */
static void show_opening(const struct app *a) {
    char what[64];
    snprintf(what, sizeof what, "opening %.40s", a->model_name);
    progress_begin(what);
}

int engine_client_local_tokenizer(struct app *a, struct error *e) {
    int rc = tokenizer_open(&a->tokenizer, a->model_dir, e);
    return rc == ERR_RUNTIME ? (e->code = ERR_MODEL) : rc; /* a checkpoint without a tokenizer is a bad model */
}

/* Replaces the error of a tokenizer by that of a model which would not open with one. */
static int blame_model(struct app *a, struct error *e) {
    struct engine_params p;
    struct buf report = {0};
    struct error why = {0};
    engine_client_local_params(a, &p);
    if (engine_inspect(&p, &report, &why) == ERR_MODEL) *e = why;
    buf_free(&report);
    return e->code;
}
static int local_open_text(struct app *a, struct error *e) {
    show_opening(a);
    int rc = engine_client_local_tokenizer(a, e);
    if (rc) return blame_model(a, e);
    if (a->opts.v[OPT_RAW].on) return 0;
    return chat_template_open(&a->template, a->model_dir, a->opts.v[OPT_TEMPLATE].text, e);
}

static int on_progress(void *ctx, const char *what, double share) {
    const struct app *a = ctx;
    progress_update(what, share, -1);
    return a->stop_opening && atomic_load(a->stop_opening);
}

void engine_client_local_params(struct app *a, struct engine_params *p) {
    const struct opt_value *v = a->opts.v;
    *p = (struct engine_params){.dir = a->model_dir,
                                .name = *a->model_name ? a->model_name : NULL,
                                .gpus = gpus_of_option(a),
                                .trace = v[OPT_TRACE].text,
                                .trace_routing = v[OPT_TRACE_ROUTING].text,
                                .trace_values = v[OPT_TRACE_VALUES].text,
                                .force = v[OPT_FORCE].on,
                                .hugepages = v[OPT_HUGEPAGES].on,
                                .topology = v[OPT_TOPOLOGY].text,
                                .mmproj = v[OPT_MMPROJ].text,
                                .progress = on_progress,
                                .progress_ctx = a};
    if (v[OPT_CONTEXT].text) p->context = (int)v[OPT_CONTEXT].integer;
    p->image_tokens = v[OPT_IMAGE_TOKENS].text ? (int)v[OPT_IMAGE_TOKENS].integer : 4096;
    if (v[OPT_THREADS].text) p->threads = (int)v[OPT_THREADS].integer;
    if (v[OPT_CPU].text) p->cpu_level = (int)cpu_level_find(v[OPT_CPU].text) + 1;
    p->draft = draft_kind_find(v[OPT_DRAFT].text);
    p->prefill = exec_mode_find(STAGE_PREFILL, v[OPT_PREFILL].text);
    p->decode = exec_mode_find(STAGE_DECODE, v[OPT_DECODE].text);
    if (strchr(v[OPT_DRAFT].text, '/')) p->draft = DRAFT_MODEL, p->draft_model = v[OPT_DRAFT].text;
    /* synthetic text repeats itself; the benchmark measures plain decode steps */
    if (v[OPT_BENCH].on) p->draft = DRAFT_NONE;
    if (v[OPT_DRAFT_LEN].text) p->max_drafted = (int)v[OPT_DRAFT_LEN].integer;
    p->split = v[OPT_SPLIT].text;
    p->expert_cache = v[OPT_EXPERT_CACHE].text;
    p->evict = v[OPT_EVICT].text;
    p->deterministic = v[OPT_DETERMINISTIC].on;
    p->max_tpot_s = v[OPT_MAX_TPOT].text ? v[OPT_MAX_TPOT].num * 1e-3 : 0;
    p->kv = !strcmp(v[OPT_KV].text, "f32") ? DT_F32 : !strcmp(v[OPT_KV].text, "fp8") ? DT_E4M3 : DT_BF16;
}

/* A draft model must give the same ids to the same text. Ids that one of the two lacks are never drafted or read by
 * it. */
static int check_draft_tokenizer(const struct app *a, const char *draft, struct error *e) {
    struct tokenizer *tokenizer = NULL, *other = NULL;
    if (!file_exists(draft) && !file_is_dir(draft))
        return error_set(e, ERR_MODEL, "--draft %s: no such directory or GGUF file", draft);
    int rc = tokenizer_open(&tokenizer, a->model_dir, e);
    if (!rc && (rc = tokenizer_open(&other, draft, e))) error_prefix(e, "--draft");
    const int n = rc                                                    ? 0
                  : tokenizer_n_ids(tokenizer) < tokenizer_n_ids(other) ? tokenizer_n_ids(tokenizer)
                                                                        : tokenizer_n_ids(other);
    for (int32_t i = 0; i < n && !rc; i++) {
        size_t n_own = 0, n_draft = 0;
        bool sa = false, sb = false;
        const char *own_text = tokenizer_token_bytes(tokenizer, i, &n_own, &sa),
                   *draft_text = tokenizer_token_bytes(other, i, &n_draft, &sb);
        if (own_text && draft_text && (n_own != n_draft || memcmp(own_text, draft_text, n_own)))
            rc = error_set(e, ERR_USAGE,
                           "--draft %s: token %d is another text than in %s; a draft needs the model's own tokenizer",
                           draft, i, a->model_dir);
    }
    tokenizer_close(&tokenizer);
    tokenizer_close(&other);
    return rc;
}

/* Adds the stop ids that config.json and generation_config.json may lack: fine-tunes often change only the tokenizer.
 */
static int add_stop_ids(struct app *a, struct error *e) {
    int32_t end = -1;
    int rc = 0;
    if (a->tokenizer) rc = engine_add_eos(a->engine, tokenizer_eos(a->tokenizer), e);
    if (!rc && a->tokenizer && a->template) rc = chat_template_end(a->template, a->tokenizer, &end, e);
    return rc ? rc : engine_add_eos(a->engine, end, e);
}

static int local_open_engine(struct app *a, struct error *e) {
    struct engine_params p;
    if (a->engine) return 0; /* for the images of a prompt */
    engine_client_local_params(a, &p);
    if (p.draft == DRAFT_MODEL && check_draft_tokenizer(a, p.draft_model, e)) return e->code;
    const struct opt_value *v = a->opts.v;
    const bool measures = v[OPT_TOKENS].text || v[OPT_BENCH].text || v[OPT_VERIFY].on;
    if (!measures && !p.gpus) p.gpus = gpus_by_default(a);
    char machine_dir[PATHS_MAX]; /* without a home directory calibration is neither run nor stored */
    if (p.gpus && strcmp(p.gpus, "none") &&
        !paths_make(PATHS_CACHE, "machine", machine_dir, sizeof machine_dir, &(struct error){0}))
        *strrchr(machine_dir, '/') = 0, p.calibration_dir = machine_dir;
    char kv_dir[PATHS_MAX]; /* benchmarks and inspections store no prompts */
    bool chats = !measures && (!v[OPT_KV_CACHE].text || v[OPT_KV_CACHE].integer);
    if (chats && !paths_make(PATHS_CACHE, "kv", kv_dir, sizeof kv_dir, &(struct error){0}))
        p.kv_dir = kv_dir, p.kv_limit = (uint64_t)v[OPT_KV_CACHE].integer;
    char draft_dir[PATHS_MAX];
    if (p.draft == DRAFT_INT4 && !paths_make(PATHS_CACHE, "draft", draft_dir, sizeof draft_dir, &(struct error){0}))
        p.draft_dir = draft_dir;
    char usage_dir[PATHS_MAX];
    if (p.calibration_dir && !v[OPT_BENCH].text && !v[OPT_NO_SAVE].on &&
        !paths_make(PATHS_CACHE, "usage", usage_dir, sizeof usage_dir, &(struct error){0}))
        p.usage_dir = usage_dir;
    char tuned_dir[PATHS_MAX], machine[MACHINE_LINE];
    gpus_set_tuned(&p, tuned_dir, machine, sizeof machine);
    show_opening(a);
    int rc = engine_open(&a->engine, &p, e);
    if ((rc == ERR_RUNTIME || rc == ERR_MEMORY) && p.gpus && strcmp(p.gpus, "none") && gpus_are_automatic(a)) {
        struct error without;
        p.gpus = NULL;
        if (engine_open(&a->engine, &p, &without)) return rc; /* the first error */
        report_note("GPUs are not used: %s", e->text);
        a->gpus_failed = true;
        rc = 0;
    }
    progress_clear();
    if (rc) return rc;
    a->info = engine_info(a->engine);
    return add_stop_ids(a, e);
}

/* --- clients ---------------------------------------------------------------------------------- */

static void local_close(struct app *a) {
    engine_close(&a->engine);
    chat_template_close(&a->template);
    topic_close(&a->topic);
    token_trie_close(&a->trie);
    tokenizer_close(&a->tokenizer);
}
static int local_client_open(struct engine_client *s, struct error *e) {
    return session_open(s->app->engine, &s->session, e);
}
static void local_client_close(struct engine_client *s) { session_close(&s->session); }
static void local_cancel(struct engine_client *s) { session_cancel(s->session); }
static int local_fd(const struct app *a) { return engine_event_fd(a->engine); }

static int local_submit(struct engine_client *s, const struct prompt *p, const struct request *r, struct error *e) {
    struct request q = *r;
    if (p->fixed_answer.n && !p->source)
        return session_submit_answer(s->session, (int)p->ids.n, p->fixed_answer.data, (int)p->fixed_answer.n,
                                     r->max_tokens, e);
    if (p->document_dropped) prompt_note_dropped_document();
    q.tokens = p->ids.data;
    q.n = (int)p->ids.n;
    q.images = p->images.v;
    q.n_images = (int)p->images.n;
    q.n_shared = p->n_shareable;
    return session_submit(s->session, &q, e);
}

static size_t local_disk_keys(const struct engine_client *s, const uint64_t **keys) {
    return session_disk_keys(s->session, keys);
}

static int local_count_tokens(struct app *a, const struct prompt *p, size_t *n, struct error *e) {
    *n = p->ids.n;
    return 0;
}

static bool local_poll(struct app *a, struct engine_event *out, int timeout_ms) {
    *out = (struct engine_event){0};
    if (!engine_poll(a->engine, &out->event, timeout_ms)) return false;
    out->client = a->clients;
    while (out->client && out->client->session != out->event.session) out->client = out->client->next;
    return true;
}

const struct backend backend_local = {.name = "local",
                                      .is_local = true,
                                      .can_continue = true,
                                      .open_text = local_open_text,
                                      .open_engine = local_open_engine,
                                      .close = local_close,
                                      .make_prompt = prompt_from_json_local,
                                      .count_tokens = local_count_tokens,
                                      .client_open = local_client_open,
                                      .client_close = local_client_close,
                                      .submit = local_submit,
                                      .cancel = local_cancel,
                                      .disk_keys = local_disk_keys,
                                      .poll = local_poll,
                                      .fd = local_fd};
