#include "cli/app.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "cli/models.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "cli/remote.h"
#include "engine/base/file.h"

/* --- messages -------------------------------------------------------------------------------------------------------- */

int app_fail(const struct app *a, const struct error *e) {
    char text[sizeof e->text + 16];
    snprintf(text, sizeof text, "hearth: %s", e->text);
    progress_say(text);
    return error_exit_code(e->code);
}

void app_note(const struct app *a, const char *fmt, ...) {
    char text[1024] = "hearth: ";
    if (a->quiet) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + 8, sizeof text - 8, fmt, ap);
    va_end(ap);
    progress_say(text);
}

bool app_builtin(const struct app *a) { return !strncmp(a->dir, "ember:", 6) && !strcmp(a->info->name, "ember"); }

const char *app_bytes(uint64_t n, char *buf, size_t cap) {
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB"};
    double v = (double)n;
    int u = 0;
    while (v >= 1000 && u < 4) v /= 1000, u++;
    snprintf(buf, cap, u && v < 100 ? "%.1f %s" : "%.0f %s", v, unit[u]);
    return buf;
}

static const char *seconds_text(double s, char *out, size_t size) {
    snprintf(out, size, s < 1 ? "%.3g ms" : "%.3g s", s < 1 ? s * 1e3 : s);
    return out;
}

static void experts_text(const struct expert_stats *x, struct buf *out) {
    char text[32], other[32];
    if (!x->chosen) return;
    buf_fmt(out, "; %.0f%% of its experts on a device, %llu uploaded (%s), %llu unused", 100.0 * (double)x->on_device / (double)x->chosen,
            (unsigned long long)x->moved, app_bytes(x->moved_bytes, text, sizeof text), (unsigned long long)x->in_vain);
    if (x->said[0]) {
        buf_str(out, "; expert predictions correct:");
        for (int i = 0; i < 3; i++)
            if (x->said[i]) buf_fmt(out, "%s %.0f%% (%d ahead)", i ? "," : "", 100.0 * (double)x->right[i] / (double)x->said[i], i + 1);
        buf_fmt(out, "; %llu uploaded for them, %llu unused", (unsigned long long)x->ahead, (unsigned long long)x->ahead_in_vain);
    }
    buf_fmt(out, "; expert time: CPU %s, devices %s", seconds_text(x->processor_s, text, sizeof text), seconds_text(x->device_s, other, sizeof other));
    if (x->decided) buf_fmt(out, ", placement %s per layer", seconds_text(x->deciding_s / (double)x->decided, text, sizeof text));
}

void app_stats_text(const struct turn_stats *s, struct buf *out) {
    char text[32];
    int fresh = s->prompt_tokens - s->cached_tokens, steps = s->answer_tokens - 1;
    buf_fmt(out, "prompt: %d tokens", s->prompt_tokens);
    if (s->cached_tokens) buf_fmt(out, ", %d of them cached", s->cached_tokens);
    if (s->ttft_s <= 0) buf_str(out, ", stopped during prefill");
    else if (s->prefill_s > 0 && fresh > 0)
        buf_fmt(out, ", prefilled in %s (%.0f tokens/s)", seconds_text(s->prefill_s, text, sizeof text), fresh / s->prefill_s);
    if (s->ttft_s > 0) buf_fmt(out, "; first token after %s", seconds_text(s->ttft_s, text, sizeof text));
    buf_fmt(out, "; answer: %d tokens", s->answer_tokens);
    if (steps > 0 && s->decode_s > 0) buf_fmt(out, " in %s (%.1f tokens/s)", seconds_text(s->decode_s, text, sizeof text), steps / s->decode_s);
    buf_fmt(out, "; %s of weights read", app_bytes(s->bytes_read, text, sizeof text));
    if (s->prefill_mode) buf_fmt(out, "; prefill by %s", s->prefill_mode);
    if (s->decode_mode) buf_fmt(out, ", decode by %s", s->decode_mode);
    if (s->drafted) buf_fmt(out, "; %d of %d drafted tokens accepted", s->accepted, s->drafted);
    experts_text(&s->experts, out);
}

void app_stats(const struct app *a, const struct turn_stats *s) {
    struct buf b = {0};
    app_stats_text(s, &b);
    if (b.data) progress_say(b.data);
    buf_free(&b);
}

void app_explain_text(const struct turn_stats *s, struct buf *out) {
    char expected[32], took[32];
    buf_str(out, *s->why ? s->why : "the engine gave no reason");
    if (s->prefill_expected_s > 0 && s->prefill_s > 0)
        buf_fmt(out, " (expected %s, took %s)", seconds_text(s->prefill_expected_s, expected, sizeof expected), seconds_text(s->prefill_s, took, sizeof took));
    if (!s->decode_mode || !*s->decode_why) return;
    buf_fmt(out, "; decoded by %s: %s", s->decode_mode, s->decode_why);
    if (s->step_expected_s > 0)
        buf_fmt(out, " (a decode step: expected %s, took %s)", seconds_text(s->step_expected_s, expected, sizeof expected),
                seconds_text(s->step_s, took, sizeof took));
    experts_text(&s->experts, out);
    if (!s->draft) return;
    if (!s->drafted) buf_fmt(out, "; drafts by %s: none, not expected to pay off", s->draft);
    else
        buf_fmt(out, "; drafts by %s: %d of %d drafted tokens accepted, up to %d per step, about %.2f times as fast as without", s->draft, s->accepted,
                s->drafted, s->draft_most, s->decode_s > 0 ? fmax(1 + s->draft_saved_s / s->decode_s, 0) : 1);
}

void app_explain(const struct app *a, const struct turn_stats *s) {
    struct buf b = {0};
    app_explain_text(s, &b);
    if (b.data && *s->why) app_note(a, "%s", b.data);
    buf_free(&b);
}

/* --- the model ------------------------------------------------------------------------------------------------------- */

bool app_model_dir(const struct opts *o, int i, char *out, size_t cap) {
    const char *s = o->v[OPT_MODEL_PATH].text;
    for (; s && i > 0; i--) {
        s = strchr(s, ':');
        if (s) s++;
    }
    if (!s || !*s) return false;
    snprintf(out, cap, "%.*s", (int)strcspn(s, ":"), s);
    return true;
}

static bool is_gguf(const char *path) {
    size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".gguf") && file_exists(path);
}

int app_find_model(struct app *a, struct error *e) {
    const char *m = a->opts.v[OPT_MODEL].text;
    if (remote_is_url(m)) return error_set(e, ERR_USAGE, "-m %.200s: a remote engine cannot be used here; give a model on this machine", m);
    if (!m) m = "ember:";
    if (strlen(m) >= sizeof a->dir) return error_set(e, ERR_USAGE, "-m: the path is too long");
    snprintf(a->dir, sizeof a->dir, "%s", m);
    if (file_is_dir(m)) return models_within(m, a->dir, sizeof a->dir, e);
    if (!strncmp(m, "ember:", 6)) return error_set(e, ERR_MODEL, "this build has no built-in model; give one with -m DIR");
    if (is_gguf(m)) return 0;
    if (file_exists(m)) return error_set(e, ERR_MODEL, "%s: not a GGUF file; -m takes a GGUF file or a checkpoint directory", m);
    char dir[PATHS_MAX];
    for (int i = 0; !strchr(m, '/') && app_model_dir(&a->opts, i, dir, sizeof dir); i++)
        if (!file_join(a->dir, sizeof a->dir, dir, m, NULL) && (file_is_dir(a->dir) || is_gguf(a->dir))) return 0;
    if (!strcmp(m, "ember")) { /* the name in /model and --models */
        snprintf(a->dir, sizeof a->dir, "ember:");
        if (file_is_dir(a->dir)) return 0;
    }
    int rc = models_snapshot(m, a->dir, sizeof a->dir, e);
    if (rc != ERR_CANCELLED) return rc;
    if (!strchr(m, '/') && a->opts.v[OPT_MODEL_PATH].text)
        return error_set(e, ERR_MODEL, "%s: no such directory or GGUF file, nor one in the model path %s", m, a->opts.v[OPT_MODEL_PATH].text);
    bool like_hub = strchr(m, '/') && strchr(m, '/') == strrchr(m, '/') && !strchr("/.~", *m); /* ORG/NAME */
    return error_set(e, ERR_MODEL, "%s: no such directory or GGUF file%s", m,
                     like_hub ? ", and not in the Hugging Face cache; hearth does not download models" : "");
}

/* Shows progress before anything slow starts. */
static void begin(const struct app *a) {
    char what[64];
    const char *slash = strrchr(a->dir, '/');
    snprintf(what, sizeof what, "opening %.40s", !strncmp(a->dir, "ember:", 6) ? "ember" : slash && slash[1] ? slash + 1 : a->dir);
    progress_begin(what);
}

int app_open_tokenizer(struct app *a, struct error *e) {
    int rc = tokenizer_open(&a->tokenizer, a->dir, e);
    return rc == ERR_RUNTIME ? (e->code = ERR_MODEL) : rc; /* a checkpoint without a tokenizer is a bad model */
}

int app_open_own_text(struct app *a, struct error *e) {
    begin(a);
    int rc = app_open_tokenizer(a, e);
    if (rc) return rc;
    if (a->opts.v[OPT_RAW].on) return 0;
    rc = chat_open(&a->chat, a->dir, a->opts.v[OPT_TEMPLATE].text, e);
    if (rc == ERR_MODEL && !a->opts.v[OPT_TEMPLATE].text) error_prefix(e, "chat template (use --template FILE, or --raw for none)");
    return rc;
}

static int on_progress(void *ctx, const char *what, double share) {
    progress_update(what, share, -1);
    return 0;
}

void app_engine_params(struct app *a, struct engine_params *p) {
    const struct opt_value *v = a->opts.v;
    static const char *const levels[] = {"scalar", "avx2", "avx512", "amx"}, *const prefills[] = {"auto", "cpu", "blend", "slp", "dslp"},
                             *const decodes[] = {"auto", "cpu", "hybrid", "dual", "paged"}, *const drafts[] = {"none", "auto", "lookup", "mtp", "int4"};
    *p = (struct engine_params){.dir = a->dir,
                                .gpus = v[OPT_GPUS].text,
                                .trace = v[OPT_TRACE].text,
                                .trace_routing = v[OPT_TRACE_ROUTING].text,
                                .force = v[OPT_FORCE].on,
                                .hugepages = v[OPT_HUGEPAGES].on,
                                .topology = v[OPT_TOPOLOGY].text,
                                .progress = on_progress};
    if (v[OPT_CONTEXT].text) p->context = (int)v[OPT_CONTEXT].integer;
    if (v[OPT_THREADS].text) p->threads = (int)v[OPT_THREADS].integer;
    for (int i = 0; i < 5; i++) {
        if (i < 4 && v[OPT_CPU].text && !strcmp(v[OPT_CPU].text, levels[i])) p->cpu_level = i + 1;
        if (!strcmp(v[OPT_PREFILL].text, prefills[i])) p->prefill = (enum prefill_mode)i;
        if (!strcmp(v[OPT_DECODE].text, decodes[i])) p->decode = (enum decode_mode)i;
        if (!strcmp(v[OPT_DRAFT].text, drafts[i])) p->draft = (enum draft_kind)i;
    }
    if (v[OPT_BENCH].on) p->draft = DRAFT_NONE; /* synthetic text repeats itself; the benchmark measures plain decode steps */
    if (v[OPT_DRAFT_LEN].text) p->draft_len = (int)v[OPT_DRAFT_LEN].integer;
    p->split = v[OPT_SPLIT].text;
    p->expert_cache = v[OPT_EXPERT_CACHE].text;
    p->evict = v[OPT_EVICT].text;
    p->deterministic = v[OPT_DETERMINISTIC].on;
    p->kv = !strcmp(v[OPT_KV].text, "f32") ? DT_F32 : !strcmp(v[OPT_KV].text, "fp8") ? DT_E4M3 : DT_BF16;
}

int app_open_own_engine(struct app *a, struct error *e) {
    struct engine_params p;
    app_engine_params(a, &p);
    char kept[PATHS_MAX]; /* without a home directory calibration is neither run nor stored */
    if (p.gpus && strcmp(p.gpus, "none") && !paths_make(PATHS_CACHE, "machine", kept, sizeof kept, &(struct error){0}))
        *strrchr(kept, '/') = 0, p.machine = kept;
    char prompts[PATHS_MAX]; /* benchmarks and inspections store no prompts */
    const struct opt_value *v = a->opts.v;
    bool chats = !v[OPT_TOKENS].text && !v[OPT_BENCH].text && !v[OPT_VERIFY].on && (!v[OPT_KV_CACHE].text || v[OPT_KV_CACHE].integer);
    if (chats && !paths_make(PATHS_CACHE, "kv", prompts, sizeof prompts, &(struct error){0}))
        p.kv_dir = prompts, p.kv_limit = (uint64_t)v[OPT_KV_CACHE].integer;
    char kept_drafts[PATHS_MAX];
    if (p.draft == DRAFT_INT4 && !paths_make(PATHS_CACHE, "draft", kept_drafts, sizeof kept_drafts, &(struct error){0})) p.draft_dir = kept_drafts;
    begin(a);
    int rc = engine_open(&a->engine, &p, e);
    progress_clear();
    if (!rc) a->info = engine_info(a->engine);
    return rc;
}

int app_open_text(struct app *a, struct error *e) {
    a->backend = &backend_local;
    int rc = remote_is_url(a->opts.v[OPT_MODEL].text) ? remote_choose(a, e) : app_find_model(a, e);
    if (!rc && a->backend == &backend_local) remote_attach(a);
    return rc ? rc : a->backend->open_text(a, e);
}
int app_open_engine(struct app *a, struct error *e) { return a->backend->open_engine(a, e); }
void app_close(struct app *a) {
    a->backend->close(a);
    a->info = NULL;
}

int app_change_model(struct app *a, const char *name, struct error *e) {
    struct opt_value was = a->opts.v[OPT_MODEL];
    struct error again;
    int rc = opt_set(&a->opts, OPT_MODEL, name, ORIGIN_CHAT, "/model", e);
    if (!rc && !remote_is_url(name)) rc = app_find_model(a, e);
    if (!rc) {
        app_close(a);
        rc = app_open_text(a, e);
        if (!rc) rc = app_open_engine(a, e);
        if (!rc) return 0;
        app_close(a);
    }
    a->opts.v[OPT_MODEL] = was;
    if (a->info) return rc;
    if (app_open_text(a, &again) || app_open_engine(a, &again)) app_close(a);
    return rc;
}

void app_sampling(const struct app *a, const struct opts *o, struct sampling *s) {
    const struct opt_value *v = o->v;
    const struct engine_info *i = a->info;
    *s = (struct sampling){.temperature = 1, .top_p = 1, .repeat_penalty = 1};
    if (a->backend->unsaid) *s = (struct sampling){.temperature = NAN, .top_p = NAN, .min_p = NAN, .repeat_penalty = NAN, .top_k = -1};
    if (!isnan(i->temperature)) s->temperature = (float)i->temperature;
    if (!i->do_sample) s->temperature = 0;
    if (!isnan(i->top_p)) s->top_p = (float)i->top_p;
    if (!isnan(i->min_p)) s->min_p = (float)i->min_p;
    if (!isnan(i->repeat_penalty)) s->repeat_penalty = (float)i->repeat_penalty;
    if (!a->backend->unsaid) s->top_k = i->top_k;
    if (v[OPT_TEMP].text) s->temperature = (float)v[OPT_TEMP].num;
    if (v[OPT_TOP_P].text) s->top_p = (float)v[OPT_TOP_P].num;
    if (v[OPT_MIN_P].text) s->min_p = (float)v[OPT_MIN_P].num;
    if (v[OPT_REPEAT_PENALTY].text) s->repeat_penalty = (float)v[OPT_REPEAT_PENALTY].num;
    if (v[OPT_TOP_K].text) s->top_k = (int)v[OPT_TOP_K].integer;
    if (v[OPT_SEED].text) s->seed = (uint64_t)v[OPT_SEED].integer;
    else if (getrandom(&s->seed, sizeof s->seed, GRND_NONBLOCK) == (ssize_t)sizeof s->seed) s->seed >>= 11; /* exact in any JSON reader */
}
