#include "cli/open.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "cli/hub/hub.h"
#include "cli/options/breakers.h"
#include "cli/options/model_path.h"
#include "cli/remote/remote.h"
#include "cli/report.h"
#include "cli/tools/tool_set.h"
#include "cli/turn/engine_client.h"
#include "cli/turn/engine_client_local.h"

void open_init(struct app *a) { a->backend = &backend_local; }

int open_find_model(struct app *a, struct error *e) {
    char dir[PATHS_MAX];
    int rc = model_path_find(&a->opts, dir, sizeof dir, e);
    const struct opt_value *m = &a->opts.v[OPT_MODEL];
    if (rc == ERR_MODEL && m->text && (m->origin == ORIGIN_FILE || m->origin == ORIGIN_ENV))
        error_prefix(e, "the default model (%s)",
                     m->origin == ORIGIN_ENV ? "HEARTH_MODEL" : "configuration file; hearth --use NAME changes it");
    if (rc) return rc;
    snprintf(a->model_dir, sizeof a->model_dir, "%s", dir);
    model_path_name(dir, a->model_name, sizeof a->model_name);
    return 0;
}

/* Finds the model; offers to download one that is not on this machine. */
static int find_or_pull(struct app *a, struct error *e) {
    int rc = open_find_model(a, e);
    if (rc != ERR_MODEL || !a->opts.v[OPT_MODEL].text) return rc;
    struct error offer = {0};
    const int offered = hub_pull_offer(a, a->opts.v[OPT_MODEL].text, &offer);
    if (offered == ERR_CANCELLED) return rc;
    if (offered) *e = offer;
    return offered ? offered : open_find_model(a, e);
}

bool open_is_builtin(const struct app *a) {
    return !strncmp(a->model_dir, "ember:", 6) && !strcmp(a->info->name, "ember");
}

/* Without -m or HEARTH_MODEL: attaches to a running resident engine, whatever its model. */
static bool attach_by_default(struct app *a) {
    struct opt_value *model = &a->opts.v[OPT_MODEL], was = *model;
    char default_dir[PATHS_MAX], resident[PATHS_MAX];
    if (model->origin > ORIGIN_FILE || !remote_resident_model(a, resident, sizeof resident)) return false;
    bool no_default = open_find_model(a, &(struct error){0}) ||
                      (snprintf(default_dir, sizeof default_dir, "%s", a->model_dir), false);
    if (!opt_set(&a->opts, OPT_MODEL, resident, (enum opt_origin)was.origin, "the resident engine", NULL) &&
        !open_find_model(a, NULL) && remote_attach(a)) {
        if (no_default || strcmp(default_dir, a->model_dir))
            report_note("the resident engine answers, with its model %s; -m NAME opens another", a->model_name);
        return true;
    }
    *model = was;
    if (!no_default && strcmp(default_dir, resident))
        report_note("the resident engine, with its model %s, has other options; opening %s in this process, -m NAME "
                    "opens another",
                    resident, default_dir);
    return false;
}

/* Chooses the engine and opens what its prompts are made with. */
static int open_prompts(struct app *a, struct error *e) {
    const bool url = model_path_is_url(a->opts.v[OPT_MODEL].text);
    if (!url && attach_by_default(a)) {
        a->backend = &backend_attached;
        return a->backend->open_text(a, e);
    }
    int rc = url ? remote_check_options(a, e) : find_or_pull(a, e);
    a->backend = &backend_local;
    if (rc) return rc;
    if (url) a->backend = &backend_remote;
    else if (remote_attach(a)) a->backend = &backend_attached;
    return a->backend->open_text(a, e);
}

int open_tools(struct app *a, struct error *e) {
    tool_set_set_reader(a, remote_host(a));
    return tool_set_check_model(a, e);
}
int open_text(struct app *a, struct error *e) {
    int rc = open_prompts(a, e);
    return rc ? rc : open_tools(a, e);
}
int open_engine(struct app *a, struct error *e) { return a->backend->open_engine(a, e); }
void open_close(struct app *a) {
    a->backend->close(a);
    a->info = NULL;
}

int open_again(struct app *a, struct error *e) {
    open_close(a);
    int rc = open_text(a, e);
    if (!rc) rc = open_engine(a, e);
    if (rc) open_close(a);
    return rc;
}

int open_other_model(struct app *a, const char *name, struct error *e) {
    struct opt_value was = a->opts.v[OPT_MODEL];
    struct error reopen_error;
    int rc = opt_set(&a->opts, OPT_MODEL, name, ORIGIN_CHAT, "/model", e);
    if (!rc && !model_path_is_url(name)) rc = open_find_model(a, e);
    if (!rc && !(rc = open_again(a, e))) return 0;
    a->opts.v[OPT_MODEL] = was;
    if (!a->info) open_again(a, &reopen_error);
    return rc;
}

_Static_assert((int)BREAKERS_BYTES == (int)DRY_BREAKER_BYTES, "breakers_parse() fills struct dry");
static const char *text_of_token(const void *tokenizer, int32_t id, size_t *n) {
    return tokenizer_token_bytes(tokenizer, id, n, NULL);
}

void open_sampling(const struct app *a, const struct opts *o, struct sampling *s) {
    const struct opt_value *v = o->v;
    const struct engine_info *i = a->info;
    *s = (struct sampling){.temperature = 1, .top_p = 1, .repeat_penalty = 1};
    if (a->backend->omits_unset_sampling)
        *s = (struct sampling){.temperature = NAN,
                               .top_p = NAN,
                               .min_p = NAN,
                               .repeat_penalty = NAN,
                               .presence_penalty = NAN,
                               .frequency_penalty = NAN,
                               .top_n_sigma = NAN,
                               .top_k = -1,
                               .dry = {.multiplier = NAN}};
    s->dry.base = 1.75f, s->dry.allowed_length = 2, s->dry.last_n = -1;
    breakers_parse(v[OPT_DRY_SEQUENCE_BREAKERS].text, s->dry.breakers, &(struct error){0}); /* opt_set() checked it */
    s->texts = (struct token_texts){a->tokenizer ? text_of_token : NULL, a->tokenizer};
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
    if (v[OPT_PRESENCE_PENALTY].text) s->presence_penalty = (float)v[OPT_PRESENCE_PENALTY].num;
    if (v[OPT_FREQUENCY_PENALTY].text) s->frequency_penalty = (float)v[OPT_FREQUENCY_PENALTY].num;
    if (v[OPT_DRY_MULTIPLIER].text) s->dry.multiplier = (float)v[OPT_DRY_MULTIPLIER].num;
    if (v[OPT_DRY_BASE].text) s->dry.base = (float)v[OPT_DRY_BASE].num;
    if (v[OPT_DRY_ALLOWED_LENGTH].text) s->dry.allowed_length = (int)v[OPT_DRY_ALLOWED_LENGTH].integer;
    if (v[OPT_DRY_PENALTY_LAST_N].text) s->dry.last_n = (int)v[OPT_DRY_PENALTY_LAST_N].integer;
    if (v[OPT_TOP_N_SIGMA].text) s->top_n_sigma = (float)v[OPT_TOP_N_SIGMA].num;
    if (v[OPT_TOP_K].text) s->top_k = (int)v[OPT_TOP_K].integer;
    if (v[OPT_SEED].text) s->seed = (uint64_t)v[OPT_SEED].integer;
    /* exact in any JSON reader */
    else if (getrandom(&s->seed, sizeof s->seed, GRND_NONBLOCK) == (ssize_t)sizeof s->seed) s->seed >>= 11;
}
