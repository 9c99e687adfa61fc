#include "cli/app.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "cli/modes/models.h"
#include "cli/remote/remote.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "engine/base/file.h"

/* --- messages -------------------------------------------------------------------------------------------------------- */

int report_error(const struct app *a, const struct error *e) {
    char text[sizeof e->text + 16];
    snprintf(text, sizeof text, "hearth: %s", e->text);
    progress_print(text);
    return error_exit_code(e->code);
}

void report_note(const struct app *a, const char *fmt, ...) {
    char text[1024] = "hearth: ";
    if (a->quiet) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + 8, sizeof text - 8, fmt, ap);
    va_end(ap);
    progress_print(text);
}

bool open_is_builtin(const struct app *a) { return !strncmp(a->model_dir, "ember:", 6) && !strcmp(a->info->name, "ember"); }

const char *report_bytes(uint64_t n, char *buf, size_t cap) {
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB"};
    double v = (double)n;
    int u = 0;
    while (v >= 1000 && u < 4) v /= 1000, u++;
    snprintf(buf, cap, u && v < 100 ? "%.1f %s" : "%.0f %s", v, unit[u]);
    return buf;
}

static const char *format_seconds(double s, char *out, size_t size) {
    snprintf(out, size, s < 1 ? "%.3g ms" : "%.3g s", s < 1 ? s * 1e3 : s);
    return out;
}

static void put_expert_stats(const struct expert_stats *x, struct buf *out) {
    char text[32], other[32];
    if (!x->chosen) return;
    buf_fmt(out, "; %.0f%% of its experts on a device, %llu uploaded (%s), %llu unused", 100.0 * (double)x->hits / (double)x->chosen,
            (unsigned long long)x->uploaded, report_bytes(x->upload_bytes, text, sizeof text), (unsigned long long)x->wasted);
    if (x->predicted[0]) {
        buf_str(out, "; expert predictions correct:");
        for (int i = 0; i < 3; i++)
            if (x->predicted[i]) buf_fmt(out, "%s %.0f%% (%d ahead)", i ? "," : "", 100.0 * (double)x->predicted_chosen[i] / (double)x->predicted[i], i + 1);
        buf_fmt(out, "; %llu uploaded for them, %llu unused", (unsigned long long)x->predicted_uploads, (unsigned long long)x->predicted_wasted);
    }
    buf_fmt(out, "; expert time: CPU %s, devices %s", format_seconds(x->cpu_s, text, sizeof text), format_seconds(x->device_s, other, sizeof other));
    if (x->n_placements) buf_fmt(out, ", placement %s per layer", format_seconds(x->placement_s / (double)x->n_placements, text, sizeof text));
}

void report_stats_text(const struct turn_stats *s, struct buf *out) {
    char text[32];
    int fresh = s->prompt_tokens - s->cached_tokens, steps = s->answer_tokens - 1;
    buf_fmt(out, "prompt: %d tokens", s->prompt_tokens);
    if (s->cached_tokens) buf_fmt(out, ", %d of them cached", s->cached_tokens);
    if (s->ttft_s <= 0) buf_str(out, ", stopped during prefill");
    else if (s->prefill_s > 0 && fresh > 0)
        buf_fmt(out, ", prefilled in %s (%.0f tokens/s)", format_seconds(s->prefill_s, text, sizeof text), fresh / s->prefill_s);
    if (s->ttft_s > 0) buf_fmt(out, "; first token after %s", format_seconds(s->ttft_s, text, sizeof text));
    buf_fmt(out, "; answer: %d tokens", s->answer_tokens);
    if (steps > 0 && s->decode_s > 0) buf_fmt(out, " in %s (%.1f tokens/s)", format_seconds(s->decode_s, text, sizeof text), steps / s->decode_s);
    buf_fmt(out, "; %s of weights read", report_bytes(s->bytes_read, text, sizeof text));
    if (s->prefill_mode) buf_fmt(out, "; prefill by %s", s->prefill_mode);
    if (s->decode_mode) buf_fmt(out, ", decode by %s", s->decode_mode);
    if (s->drafted) buf_fmt(out, "; %d of %d drafted tokens accepted", s->accepted, s->drafted);
    put_expert_stats(&s->experts, out);
}

void report_stats(const struct app *a, const struct turn_stats *s) {
    struct buf b = {0};
    report_stats_text(s, &b);
    if (b.data) progress_print(b.data);
    buf_free(&b);
}

void report_explain_text(const struct turn_stats *s, struct buf *out) {
    char expected[32], took[32];
    buf_str(out, *s->prefill_why ? s->prefill_why : "the engine gave no reason");
    if (s->prefill_expected_s > 0 && s->prefill_s > 0)
        buf_fmt(out, " (expected %s, took %s)", format_seconds(s->prefill_expected_s, expected, sizeof expected),
                format_seconds(s->prefill_s, took, sizeof took));
    if (!s->decode_mode || !*s->decode_why) return;
    buf_fmt(out, "; decoded by %s: %s", s->decode_mode, s->decode_why);
    if (s->batch_expected_s > 0)
        buf_fmt(out, " (a decode step: expected %s, took %s)", format_seconds(s->batch_expected_s, expected, sizeof expected),
                format_seconds(s->batch_s, took, sizeof took));
    put_expert_stats(&s->experts, out);
    if (!s->draft) return;
    if (!s->drafted) buf_fmt(out, "; drafts by %s: none, not expected to pay off", s->draft);
    else
        buf_fmt(out, "; drafts by %s: %d of %d drafted tokens accepted, up to %d per step, about %.2f times as fast as without", s->draft, s->accepted,
                s->drafted, s->max_drafted, s->decode_s > 0 ? fmax(1 + s->draft_saved_s / s->decode_s, 0) : 1);
}

void report_explain(const struct app *a, const struct turn_stats *s) {
    struct buf b = {0};
    report_explain_text(s, &b);
    if (b.data && *s->prefill_why) report_note(a, "%s", b.data);
    buf_free(&b);
}

/* --- the model ------------------------------------------------------------------------------------------------------- */

bool open_model_path_entry(const struct opts *o, int i, char *out, size_t cap) {
    const char *s = o->v[OPT_MODEL_PATH].text;
    for (; s && i > 0; i--) {
        s = strchr(s, ':');
        if (s) s++;
    }
    if (!s || !*s) return false;
    snprintf(out, cap, "%.*s", (int)strcspn(s, ":"), s);
    return true;
}

static bool is_gguf_file(const char *path) {
    size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".gguf") && file_exists(path);
}

int open_find_model(struct app *a, struct error *e) {
    const char *m = a->opts.v[OPT_MODEL].text;
    if (remote_is_url(m)) return error_set(e, ERR_USAGE, "-m %.200s: a remote engine cannot be used here; give a model on this machine", m);
    if (!m) m = "ember:";
    if (strlen(m) >= sizeof a->model_dir) return error_set(e, ERR_USAGE, "-m: the path is too long");
    snprintf(a->model_dir, sizeof a->model_dir, "%s", m);
    if (file_is_dir(m)) return models_resolve_dir(m, a->model_dir, sizeof a->model_dir, e);
    if (!strncmp(m, "ember:", 6)) return error_set(e, ERR_MODEL, "this build has no built-in model; give one with -m DIR");
    if (is_gguf_file(m)) return 0;
    if (file_exists(m)) return error_set(e, ERR_MODEL, "%s: not a GGUF file; -m takes a GGUF file or a checkpoint directory", m);
    char dir[PATHS_MAX];
    for (int i = 0; !strchr(m, '/') && open_model_path_entry(&a->opts, i, dir, sizeof dir); i++)
        if (!file_join(a->model_dir, sizeof a->model_dir, dir, m, NULL) && (file_is_dir(a->model_dir) || is_gguf_file(a->model_dir))) return 0;
    if (!strcmp(m, "ember")) { /* the name in /model and --models */
        snprintf(a->model_dir, sizeof a->model_dir, "ember:");
        if (file_is_dir(a->model_dir)) return 0;
    }
    int rc = models_resolve_snapshot(m, a->model_dir, sizeof a->model_dir, e);
    if (rc != ERR_CANCELLED) return rc;
    if (!strchr(m, '/') && a->opts.v[OPT_MODEL_PATH].text)
        return error_set(e, ERR_MODEL, "%s: no such directory or GGUF file, nor one in the model path %s", m, a->opts.v[OPT_MODEL_PATH].text);
    bool like_hub = strchr(m, '/') && strchr(m, '/') == strrchr(m, '/') && !strchr("/.~", *m); /* ORG/NAME */
    return error_set(e, ERR_MODEL, "%s: no such directory or GGUF file%s", m,
                     like_hub ? ", and not in the Hugging Face cache; hearth does not download models" : "");
}

/* Shows progress before anything slow starts. */
static void show_opening(const struct app *a) {
    char what[64];
    const char *slash = strrchr(a->model_dir, '/');
    snprintf(what, sizeof what, "opening %.40s", !strncmp(a->model_dir, "ember:", 6) ? "ember" : slash && slash[1] ? slash + 1 : a->model_dir);
    progress_begin(what);
}

int open_tokenizer(struct app *a, struct error *e) {
    int rc = tokenizer_open(&a->tokenizer, a->model_dir, e);
    return rc == ERR_RUNTIME ? (e->code = ERR_MODEL) : rc; /* a checkpoint without a tokenizer is a bad model */
}

int open_text_local(struct app *a, struct error *e) {
    show_opening(a);
    int rc = open_tokenizer(a, e);
    if (rc) return rc;
    if (a->opts.v[OPT_RAW].on) return 0;
    rc = chat_template_open(&a->template, a->model_dir, a->opts.v[OPT_TEMPLATE].text, e);
    if (rc == ERR_MODEL && !a->opts.v[OPT_TEMPLATE].text) error_prefix(e, "chat template (use --template FILE, or --raw for none)");
    return rc;
}

static int on_progress(void *ctx, const char *what, double share) {
    progress_update(what, share, -1);
    return 0;
}

void open_engine_params(struct app *a, struct engine_params *p) {
    const struct opt_value *v = a->opts.v;
    static const char *const levels[] = {"scalar", "avx2", "avx512", "amx"}, *const prefills[] = {"auto", "cpu", "blend", "slp", "dslp"},
                             *const decodes[] = {"auto", "cpu", "hybrid", "dual", "paged"}, *const drafts[] = {"none", "auto", "lookup", "mtp", "int4"};
    *p = (struct engine_params){.dir = a->model_dir,
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
    if (v[OPT_DRAFT_LEN].text) p->max_drafted = (int)v[OPT_DRAFT_LEN].integer;
    p->split = v[OPT_SPLIT].text;
    p->expert_cache = v[OPT_EXPERT_CACHE].text;
    p->evict = v[OPT_EVICT].text;
    p->deterministic = v[OPT_DETERMINISTIC].on;
    p->kv = !strcmp(v[OPT_KV].text, "f32") ? DT_F32 : !strcmp(v[OPT_KV].text, "fp8") ? DT_E4M3 : DT_BF16;
}

int open_engine_local(struct app *a, struct error *e) {
    struct engine_params p;
    open_engine_params(a, &p);
    char kept[PATHS_MAX]; /* without a home directory calibration is neither run nor stored */
    if (p.gpus && strcmp(p.gpus, "none") && !paths_make(PATHS_CACHE, "machine", kept, sizeof kept, &(struct error){0}))
        *strrchr(kept, '/') = 0, p.calibration_dir = kept;
    char prompts[PATHS_MAX]; /* benchmarks and inspections store no prompts */
    const struct opt_value *v = a->opts.v;
    bool chats = !v[OPT_TOKENS].text && !v[OPT_BENCH].text && !v[OPT_VERIFY].on && (!v[OPT_KV_CACHE].text || v[OPT_KV_CACHE].integer);
    if (chats && !paths_make(PATHS_CACHE, "kv", prompts, sizeof prompts, &(struct error){0}))
        p.kv_dir = prompts, p.kv_limit = (uint64_t)v[OPT_KV_CACHE].integer;
    char kept_drafts[PATHS_MAX];
    if (p.draft == DRAFT_INT4 && !paths_make(PATHS_CACHE, "draft", kept_drafts, sizeof kept_drafts, &(struct error){0})) p.draft_dir = kept_drafts;
    show_opening(a);
    int rc = engine_open(&a->engine, &p, e);
    progress_clear();
    if (!rc) a->info = engine_info(a->engine);
    return rc;
}

int open_text(struct app *a, struct error *e) {
    a->backend = &backend_local;
    int rc = remote_is_url(a->opts.v[OPT_MODEL].text) ? remote_select(a, e) : open_find_model(a, e);
    if (!rc && a->backend == &backend_local) remote_attach(a);
    return rc ? rc : a->backend->open_text(a, e);
}
int open_engine(struct app *a, struct error *e) { return a->backend->open_engine(a, e); }
void open_close(struct app *a) {
    a->backend->close(a);
    a->info = NULL;
}

int open_other_model(struct app *a, const char *name, struct error *e) {
    struct opt_value was = a->opts.v[OPT_MODEL];
    struct error again;
    int rc = opt_set(&a->opts, OPT_MODEL, name, ORIGIN_CHAT, "/model", e);
    if (!rc && !remote_is_url(name)) rc = open_find_model(a, e);
    if (!rc) {
        open_close(a);
        rc = open_text(a, e);
        if (!rc) rc = open_engine(a, e);
        if (!rc) return 0;
        open_close(a);
    }
    a->opts.v[OPT_MODEL] = was;
    if (a->info) return rc;
    if (open_text(a, &again) || open_engine(a, &again)) open_close(a);
    return rc;
}

void open_sampling(const struct app *a, const struct opts *o, struct sampling *s) {
    const struct opt_value *v = o->v;
    const struct engine_info *i = a->info;
    *s = (struct sampling){.temperature = 1, .top_p = 1, .repeat_penalty = 1};
    if (a->backend->omits_unset_sampling) *s = (struct sampling){.temperature = NAN, .top_p = NAN, .min_p = NAN, .repeat_penalty = NAN, .top_k = -1};
    if (!isnan(i->temperature)) s->temperature = (float)i->temperature;
    if (!i->do_sample) s->temperature = 0;
    if (!isnan(i->top_p)) s->top_p = (float)i->top_p;
    if (!isnan(i->min_p)) s->min_p = (float)i->min_p;
    if (!isnan(i->repeat_penalty)) s->repeat_penalty = (float)i->repeat_penalty;
    if (!a->backend->omits_unset_sampling) s->top_k = i->top_k;
    if (v[OPT_TEMP].text) s->temperature = (float)v[OPT_TEMP].num;
    if (v[OPT_TOP_P].text) s->top_p = (float)v[OPT_TOP_P].num;
    if (v[OPT_MIN_P].text) s->min_p = (float)v[OPT_MIN_P].num;
    if (v[OPT_REPEAT_PENALTY].text) s->repeat_penalty = (float)v[OPT_REPEAT_PENALTY].num;
    if (v[OPT_TOP_K].text) s->top_k = (int)v[OPT_TOP_K].integer;
    if (v[OPT_SEED].text) s->seed = (uint64_t)v[OPT_SEED].integer;
    else if (getrandom(&s->seed, sizeof s->seed, GRND_NONBLOCK) == (ssize_t)sizeof s->seed) s->seed >>= 11; /* exact in any JSON reader */
}
