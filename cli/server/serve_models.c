#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/test_limits.h"
#include "cli/open.h"
#include "cli/report.h"
#include "cli/server/resident.h"
#include "cli/server/server.h"
#include "cli/terminal/sig.h"
#include "cli/turn/engine_client_local.h"

enum { MOST_COUNTED = 64, NAMES_SHOWN = 300 };
#define KEEP_MINUTES 5.0 /* as Ollama */

/* --- jobs ------------------------------------------------------------------------------------- */

/* Reads what a model is, for those who ask before it is open. Any answer will do if the file does not say. */
static void inspect(struct serve_model *m) {
    struct engine_params p;
    struct buf json = {0};
    struct arena arena = {0};
    struct json root;
    engine_client_local_params(m->app, &p);
    p = (struct engine_params){.dir = m->app->model_dir, .kv = p.kv, .force = true};
    m->facts = (struct engine_info){.model_type = m->type, .name = m->name, .no_images = "it reads none"};
    if (!engine_inspect(&p, &json, NULL) && !json_parse(&arena, json.data, json.len, 0, "inspection", &root, NULL)) {
        const struct json *type = json_get(&root, "model_type");
        if (!type) type = json_get(&root, "family");
        if (type && type->type == JSON_STRING) snprintf(m->type, sizeof m->type, "%.*s", (int)type->n, type->string);
        m->facts.context = m->facts.max_context = (int)json_int(json_get(&root, "context"), 0);
        const struct opt_value *given = &m->app->opts.v[OPT_CONTEXT];
        if (given->text && (!m->facts.context || given->integer < m->facts.context))
            m->facts.context = (int)given->integer;
        if (json_bool(json_path(&root, "images.read"), false)) m->facts.no_images = NULL;
        m->facts.hidden = (int)json_int(json_get(&root, "hidden"), 0);
        m->facts.n_layers = (int)json_int(json_get(&root, "layers"), 0);
        m->facts.weight_bytes = (uint64_t)json_int(json_path(&root, "bytes.all"), 0);
    }
    arena_free(&arena);
    buf_free(&json);
}

static void *run_job(void *model) {
    struct serve_model *m = model;
    const uint64_t one = 1;
    struct app *a = m->app;
    if (m->job == SERVE_JOB_TEXT) {
        if ((m->rc = backend_local.open_text(a, &m->error))) {
            chat_template_close(&a->template);
            tokenizer_close(&a->tokenizer);
        } else inspect(m);
    } else if (m->job == SERVE_JOB_ENGINE) {
        if ((m->rc = backend_local.open_engine(m->job_app, &m->error))) engine_close(&m->job_app->engine);
    } else engine_close(&m->job_app->engine);
    atomic_store(&m->done, true);
    error_ignore(write(m->event_fd, &one, sizeof one)); /* fails only when the counter is full */
    sig_wake();
    return NULL;
}

static int start_job(struct server *s, struct serve_model *m, enum serve_job job, struct error *e) {
    m->job = job;
    m->rc = 0;
    *m->job_app = *m->app; /* the thread changes nothing that is read meanwhile */
    if (job == SERVE_JOB_CLOSE) m->app->engine = NULL;
    m->error = (struct error){0};
    m->event_fd = s->model_fd;
    atomic_store(&m->done, false);
    atomic_store(&m->cancelled, false);
    if (sig_start_thread(&m->thread, run_job, m)) return 0;
    m->app->engine = m->job_app->engine;
    m->job = SERVE_JOB_NONE;
    return error_set(e, ERR_MEMORY, "no thread to open the model %.100s", m->name);
}

/* --- requests --------------------------------------------------------------------------------- */

static int refuse_name(struct server *s, const struct json *name, struct error *e) {
    char names[NAMES_SHOWN + 4] = "";
    size_t n = 0, i = 0;
    for (; i < s->n_models && n + strlen(s->models[i]->name) + 2 < NAMES_SHOWN; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", s->models[i]->name);
    if (i < s->n_models) snprintf(names + n, sizeof names - n, ", …");
    return error_set(e, ERR_MODEL, "no model %.*s; there are %s", (int)(name->n < 100 ? name->n : 100), name->string,
                     names);
}

/* Finds the model that a body names; the default one without a name, or in a body that its protocol will refuse. */
static int choose(struct http_request *x, struct error *e) {
    struct server *s = x->server;
    struct arena arena = {0};
    struct json root;
    int rc = 0;
    x->model = s->default_model;
    if (!s->has_models || !x->body.len) return 0;
    if (!json_parse(&arena, x->body.data, x->body.len, 0, "request", &root, NULL)) {
        const struct json *name = json_get(&root, "model");
        if (!name) name = json_get(&root, "name"); /* of /api/show */
        if (name && name->type == JSON_STRING && name->n) {
            struct serve_model *m = serve_model_find(s, name->string, name->n);
            if (!m) serve_model_refresh(s, clock_now()), m = serve_model_find(s, name->string, name->n);
            if (m) x->model = m;
            else rc = refuse_name(s, name, e);
        }
    }
    arena_free(&arena);
    return rc;
}

int serve_models_take(struct http_request *x, struct error *e) {
    if (!x->model) TRY(choose(x, e));
    if (x->model->has_text) return 0;
    if (x->server->stopping) return error_set(e, ERR_MEMORY, "the server is shutting down");
    if (x->model->job == SERVE_JOB_NONE) TRY(start_job(x->server, x->model, SERVE_JOB_TEXT, e));
    x->waits_for_model = true;
    return 1;
}

/* Whether answers of a model, or threads that open images for its prompts, use what the engine says about itself. */
static bool has_running(const struct server *s, const struct serve_model *m) {
    for (const struct http_request *x = s->requests; x; x = x->next)
        if (x->model == m && x->state == HTTP_REQUEST_COMPILING) return true;
    for (int i = 0; i < s->n_sessions; i++)
        if (s->sessions[i].choice && s->sessions[i].client->app == m->app) return true;
    return false;
}

/* Returns the arrival number of the oldest request that waits for the engine of a model; 0: none. */
static uint64_t oldest_waiting(const struct server *s, const struct serve_model *m) {
    uint64_t oldest = m->queue.first ? m->queue.first->order : 0;
    for (const struct http_request *x = s->requests; x; x = x->next) /* that ask only for loading */
        if (x->state == HTTP_REQUEST_LOADING && x->model == m && (!oldest || x->order < oldest)) oldest = x->order;
    return oldest ? oldest : m->is_wanted ? 1 : 0;
}

static bool is_used(const struct server *s, const struct serve_model *m) {
    for (const struct http_request *x = s->requests; x; x = x->next)
        if (x->model == m && x->state != HTTP_REQUEST_DONE && x->state != HTTP_REQUEST_REFUSED &&
            (x->state != HTTP_REQUEST_READING || x->waits_for_model))
            return true;
    return has_running(s, m);
}

/* --- opening and closing ---------------------------------------------------------------------- */

static void wake_readers(struct server *s, struct serve_model *m) {
    for (struct http_request *x = s->requests; x; x = x->next) {
        if (x->model != m ||
            (x->state == HTTP_REQUEST_READING ? !x->waits_for_model : x->state != HTTP_REQUEST_LOADING))
            continue;
        if (m->rc) x->state = HTTP_REQUEST_REFUSED, x->refused = m->error;
        else if (x->state == HTTP_REQUEST_LOADING && !m->is_open) continue;
        x->waits_for_model = false;
        serve_connection_wake(x);
    }
}

static size_t n_open(const struct server *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->n_models; i++)
        n += s->models[i]->is_open || s->models[i]->job == SERVE_JOB_ENGINE || s->models[i]->job == SERVE_JOB_CLOSE;
    return n;
}

static void finish_job(struct server *s, struct serve_model *m, double now) {
    const enum serve_job job = m->job;
    pthread_join(m->thread, NULL);
    m->job = SERVE_JOB_NONE;
    if (job == SERVE_JOB_TEXT) {
        m->has_text = !m->rc;
        if (m->has_text) m->app->info = &m->facts;
        else if (m->is_wanted) m->is_wanted = false, report_note("%s does not open: %s", m->name, m->error.text);
        wake_readers(s, m);
    } else if (job == SERVE_JOB_CLOSE) return;
    else if (!m->rc) {
        m->app->engine = m->job_app->engine;
        m->app->info = m->job_app->info;
        m->app->has_unused_gpus = m->job_app->has_unused_gpus;
        memcpy(m->app->gpu_trouble, m->job_app->gpu_trouble, sizeof m->app->gpu_trouble);
        m->app->gpus_failed = m->job_app->gpus_failed;
        m->is_open = true;
        m->is_wanted = m->needs_memory = false;
        m->idle_s = now;
        m->last_used = ++s->n_orders;
        m->opened_at = (long long)time(NULL);
        wake_readers(s, m);
    } else {
        if (m->rc == ERR_MEMORY && n_open(s)) { /* others are closed for it */
            m->needs_memory = true;
            return;
        }
        m->is_wanted = m->needs_memory = false;
        report_note("%s does not open: %s", m->name, m->error.text);
        wake_readers(s, m);
        serve_fail_waiting(s, m, &m->error);
    }
}

/* Closes the engine of a model whose answers have ended. */
static void close_engine(struct server *s, struct serve_model *m) {
    struct error e;
    serve_drop_sessions(s, m);
    m->facts = *m->app->info;
    snprintf(m->type, sizeof m->type, "%s", m->app->info->model_type);
    m->facts.model_type = m->type, m->facts.name = m->name, m->facts.eos = NULL, m->facts.n_eos = 0;
    if (m->facts.no_images) m->facts.no_images = "it reads none"; /* the engine's text goes with it */
    m->app->info = &m->facts;
    m->is_open = m->is_draining = m->is_outdated = false;
    if (start_job(s, m, SERVE_JOB_CLOSE, &e)) engine_close(&m->app->engine);
}

/* Whether one more fits beside those that are open. */
static bool has_room(const struct server *s, const struct serve_model *m) {
    const size_t n = n_open(s);
    uint64_t bytes = m->bytes;
    if (!n) return true;
    if (m->needs_memory) return false;
    if (s->max_models <= MOST_COUNTED) return n < s->max_models;
    for (size_t i = 0; i < s->n_models; i++) bytes += s->models[i]->is_open ? s->models[i]->bytes : 0;
    return bytes <= s->max_models;
}

/* Closes a model for another one: the one used least recently, as soon as its answers have ended. What came before the
 * other's request is answered first. */
static void make_room(struct server *s, uint64_t order) {
    struct serve_model *victim = NULL;
    for (size_t i = 0; i < s->n_models; i++) {
        struct serve_model *m = s->models[i];
        const uint64_t waiting = m->is_open ? oldest_waiting(s, m) : 0;
        if (!m->is_open || m->job != SERVE_JOB_NONE || (waiting && waiting < order)) continue;
        if (!victim || m->last_used < victim->last_used) victim = m;
    }
    if (!victim) return;
    victim->is_draining = true;
    if (!has_running(s, victim)) close_engine(s, victim);
}

/* Opens the model whose request came first. */
static void open_wanted(struct server *s) {
    struct serve_model *wanted = NULL;
    uint64_t first = 0;
    bool is_busy = false;
    struct error e;
    for (size_t i = 0; i < s->n_models; i++) {
        struct serve_model *m = s->models[i];
        const uint64_t order = m->is_open ? 0 : oldest_waiting(s, m);
        m->is_draining = false;
        is_busy |= m->job == SERVE_JOB_ENGINE || m->job == SERVE_JOB_CLOSE;
        if (order && (!wanted || order < first)) wanted = m, first = order;
    }
    if (!wanted || is_busy || wanted->job != SERVE_JOB_NONE || s->stopping) return;
    if (!wanted->has_text) { /* at the start */
        if (start_job(s, wanted, SERVE_JOB_TEXT, &e)) wanted->is_wanted = false;
    } else if (!has_room(s, wanted)) make_room(s, first);
    else if (start_job(s, wanted, SERVE_JOB_ENGINE, &e)) {
        wanted->is_wanted = false;
        serve_fail_waiting(s, wanted, &e);
    }
}

/* Closes a model that opens again. */
static void reopen(struct server *s, struct serve_model *m) {
    m->is_draining = true;
    if (has_running(s, m) || m->job != SERVE_JOB_NONE) return;
    close_engine(s, m);
    m->is_wanted = true;
}

double serve_models_step(struct server *s, double now) {
    const double second = 1e-3 * (double)test_limits_get(TEST_LIMIT_SERVE_SECOND_MS, 1000);
    double next = -1;
    uint64_t n;
    error_ignore(read(s->model_fd, &n, sizeof n)); /* only wakes */
    for (size_t i = 0; i < s->n_models; i++) {
        struct serve_model *m = s->models[i];
        if (m->job != SERVE_JOB_NONE && atomic_load(&m->done)) finish_job(s, m, now);
        if (!m->is_open || m->job != SERVE_JOB_NONE) continue;
        if (is_used(s, m)) m->idle_s = now;
        else if (m->keep_s >= 0 && now >= m->idle_s + m->keep_s * second) close_engine(s, m);
        else if (m->keep_s >= 0 && (next < 0 || m->idle_s + m->keep_s * second - now < next))
            next = m->idle_s + m->keep_s * second - now;
    }
    open_wanted(s);
    for (size_t i = 0; i < s->n_models; i++)
        if (s->models[i]->is_open && s->models[i]->is_outdated && !s->stopping) reopen(s, s->models[i]);
    return next;
}

/* --- start and end ---------------------------------------------------------------------------- */

int serve_models_open(struct server *s, struct error *e) {
    const struct opt_value *most = &s->app->opts.v[OPT_MAX_MODELS], *keep = &s->app->opts.v[OPT_KEEP_ALIVE];
    struct app *a = s->app;
    s->has_models = most->text != NULL;
    s->max_models = (uint64_t)most->integer;
    s->keep_s = (keep->text ? keep->num : KEEP_MINUTES) * 60;
    if (keep->text && !s->has_models) return error_set(e, ERR_USAGE, "--keep-alive needs --max-models");
    if (s->has_models && !s->max_models)
        return error_set(e, ERR_USAGE, "--max-models: 1 or more, or a size, is required");
    s->model_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->model_fd < 0) return error_set(e, ERR_RUNTIME, "--serve: %s", error_reason(errno));
    TRY(open_find_model(a, e));
    if (!s->has_models) {
        TRY(resident_identity(a, &s->identity, e));
        TRY(backend_local.open_text(a, e));
        TRY(backend_local.open_engine(a, e));
        TRY(serve_model_add(s, a->info->name, a->model_dir, false, e));
        s->default_model = s->models[0];
        s->default_model->has_text = s->default_model->is_open = true;
        s->default_model->opened_at = (long long)time(NULL);
        return 0;
    }
    TRY(serve_model_add_listed(s, e));
    for (size_t i = 0; i < s->n_models; i++)
        if (!strcmp(s->models[i]->app->model_dir, a->model_dir)) s->default_model = s->models[i];
    if (!s->default_model) {
        TRY(serve_model_add(s, a->model_name, a->model_dir, true, e));
        s->default_model = s->models[s->n_models - 1];
    }
    s->default_model->is_wanted = a->opts.v[OPT_MODEL].text != NULL;
    s->listed_s = clock_now();
    return 0;
}

void serve_models_close(struct server *s) {
    for (size_t i = 0; i < s->n_models; i++) atomic_store(&s->models[i]->cancelled, true);
    for (size_t i = 0; i < s->n_models; i++) {
        struct serve_model *m = s->models[i];
        if (m->job != SERVE_JOB_NONE) pthread_join(m->thread, NULL);
        if (m->job == SERVE_JOB_ENGINE) engine_close(&m->job_app->engine);
        if (m->own) backend_local.close(m->own);
        else m->app->stop_opening = NULL, m->app->info = m->is_open ? m->app->info : NULL;
        mem_free(m->own);
        mem_free(m->job_app);
        mem_free(m);
    }
    mem_free(s->models);
    if (s->model_fd >= 0) close(s->model_fd);
}
