/* The list of models. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "cli/options/model_path.h"
#include "cli/server/server.h"
#include "cli/turn/engine_client_local.h"

enum { MOST_MODELS = 4096, REFRESH_S = 5 };

static int add_bytes(void *ctx, const char *name) {
    const char *dir = ((const char **)ctx)[0];
    uint64_t *n = ((uint64_t **)ctx)[1];
    char path[PATHS_MAX];
    struct stat s;
    if (!file_join(path, sizeof path, dir, name, NULL) && !stat(path, &s) && S_ISREG(s.st_mode))
        *n += (uint64_t)s.st_size;
    return 0;
}

static uint64_t bytes_of(const char *dir) {
    struct stat s;
    uint64_t n = 0;
    const void *ctx[2] = {dir, &n};
    if (!strncmp(dir, "ember:", 6) || stat(dir, &s)) return 0;
    if (S_ISREG(s.st_mode)) return (uint64_t)s.st_size;
    file_list(dir, add_bytes, ctx, &(struct error){0});
    return n;
}

int serve_model_add(struct server *s, const char *name, const char *dir, bool own, struct error *e) {
    struct serve_model *m = mem_calloc(1, sizeof *m);
    if (!m || mem_grow(&s->models, &s->cap_models, s->n_models + 1, sizeof *s->models)) {
        mem_free(m);
        return error_set(e, ERR_MEMORY, "no memory for the list of models");
    }
    snprintf(m->name, sizeof m->name, "%s", name);
    m->app = s->app;
    m->keep_s = s->has_models ? s->keep_s : -1;
    m->job_app = mem_calloc(1, sizeof *m->job_app);
    if (own) m->own = m->app = mem_calloc(1, sizeof *m->own);
    if (!m->app || !m->job_app) {
        mem_free(m->own);
        mem_free(m->job_app);
        mem_free(m);
        return error_set(e, ERR_MEMORY, "no memory for the list of models");
    }
    m->app->stop_opening = &m->cancelled;
    if (own) {
        m->own->opts = s->app->opts; /* reads them only */
        m->own->backend = &backend_local;
        snprintf(m->own->model_dir, sizeof m->own->model_dir, "%s", dir);
        snprintf(m->own->model_name, sizeof m->own->model_name, "%s", name);
        m->bytes = bytes_of(dir);
    }
    s->models[s->n_models++] = m;
    return 0;
}

int serve_model_add_listed(struct server *s, struct error *e) {
    struct model_list l = {0};
    int rc = model_path_list(&s->app->opts, &l, e);
    for (size_t i = 0; i < l.n && !rc && s->n_models < MOST_MODELS; i++)
        if (!serve_model_find(s, l.v[i].name, strlen(l.v[i].name)))
            rc = serve_model_add(s, l.v[i].name, l.v[i].dir, true, e);
    model_list_free(&l);
    return rc;
}

void serve_model_refresh(struct server *s, double now) {
    if (!s->has_models || now < s->listed_s + REFRESH_S) return;
    s->listed_s = now;
    error_ignore(serve_model_add_listed(s, &(struct error){0})); /* those that are known stay */
}

/* Finds a model by its name, also with Ollama's tag, or the last part of a name that only one has. */
struct serve_model *serve_model_find(struct server *s, const char *name, size_t n) {
    static const char tag[] = ":latest";
    struct serve_model *found = NULL;
    size_t n_found = 0;
    for (size_t i = 0; i < s->n_models; i++)
        if (strlen(s->models[i]->name) == n && !memcmp(s->models[i]->name, name, n)) return s->models[i];
    if (n > sizeof tag - 1 && !memcmp(name + n - (sizeof tag - 1), tag, sizeof tag - 1))
        return serve_model_find(s, name, n - (sizeof tag - 1));
    for (size_t i = 0; i < s->n_models; i++) {
        const char *last = strrchr(s->models[i]->name, '/');
        if (last && strlen(last + 1) == n && !memcmp(last + 1, name, n)) found = s->models[i], n_found++;
    }
    return n_found == 1 ? found : NULL;
}

const struct serve_model *serve_model_current(const struct server *s) {
    const struct serve_model *best = s->default_model;
    for (size_t i = 0; i < s->n_models; i++)
        if (s->models[i]->is_open && (!best->is_open || s->models[i]->last_used > best->last_used)) best = s->models[i];
    return best;
}

void serve_model_keep(struct http_request *x) {
    if (x->server->has_models) x->model->keep_s = x->request.has_keep ? x->request.keep_s : x->server->keep_s;
}
