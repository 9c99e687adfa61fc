#include "cli/saved/store_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "cli/options/hub_cache.h"
#include "cli/options/model_path.h"
#include "cli/report.h"
#include "cli/terminal/ask.h"
#include "cli/terminal/out.h"

static bool is_builtin(const char *path) { return !strncmp(path, "ember:", 6); }
static bool is_given(const struct app *a) { return a->opts.v[OPT_MODEL].origin == ORIGIN_FLAG; }

void store_model_place(const struct app *a, char out[PATHS_MAX]) {
    const char *url = a->opts.v[OPT_MODEL].text;
    if (!model_path_is_url(url) && hub_cache_name(a->model_dir, out, PATHS_MAX)) return; /* its files may move */
    char *real = is_builtin(a->model_dir) || model_path_is_url(url) ? NULL : realpath(a->model_dir, NULL);
    snprintf(out, PATHS_MAX, "%s", real ? real : model_path_is_url(url) ? url : a->model_dir);
    free(real);
}

void store_model_write(const struct app *a, struct buf *out) {
    char path[PATHS_MAX], hash[24] = "";
    const char *name = a->model_name;
    store_model_place(a, path);
    if (a->template) snprintf(hash, sizeof hash, "%016llx", (unsigned long long)chat_template_hash(a->template));
    buf_str(out, "\"model\": ");
    out_json_string(out, name, strlen(name));
    buf_str(out, ", \"path\": ");
    out_json_string(out, path, strlen(path));
    buf_fmt(out, ", \"template\": \"%s\", \"fingerprint\": \"%016llx\"", hash,
            a->info ? (unsigned long long)a->info->fingerprint : 0ull);
    if (a->pinned) buf_fmt(out, ", \"experts\": \"%016llx\"", (unsigned long long)a->pinned);
}

static void copy_member(const struct json *body, const char *key, char *out, size_t cap) {
    const struct json *v = json_get(body, key);
    bool usable = v && v->type == JSON_STRING && v->n < cap && !memchr(v->string, 0, v->n);
    snprintf(out, cap, "%.*s", usable ? (int)v->n : 0, usable ? v->string : "");
}

void store_model_parse(const struct json *body, struct store_model *out) {
    char print[24], pinned[24];
    copy_member(body, "model", out->name, sizeof out->name);
    copy_member(body, "path", out->path, sizeof out->path);
    copy_member(body, "template", out->template_hash, sizeof out->template_hash);
    copy_member(body, "fingerprint", print, sizeof print);
    copy_member(body, "experts", pinned, sizeof pinned);
    out->fingerprint = strtoull(print, NULL, 16), out->pinned = strtoull(pinned, NULL, 16);
}

void store_model_note(const struct app *a, const char *what, const struct store_model *m) {
    char path[PATHS_MAX], hash[24];
    store_model_place(a, path);
    if (*m->path ? strcmp(m->path, path) : *m->name && strcmp(m->name, a->model_name))
        report_note("%s: started with the model %s, continues with %s", what, *m->name ? m->name : m->path,
                    a->model_name);
    else if (a->template && *m->template_hash) {
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)chat_template_hash(a->template));
        if (strcmp(m->template_hash, hash)) report_note("%s: the chat template has changed since", what);
    }
}

/* Bytes of a URL before its path: the scheme, the host and the port. */
static size_t server_length(const char *url) {
    const char *host = strstr(url, "://") + 3;
    return (size_t)(host - url) + strcspn(host, "/?#");
}

/* Whether HEARTH_MODEL or the configuration names the server of this URL. */
static bool is_named_server(const struct app *a, const char *url) {
    const char *const named[] = {a->opts.v[OPT_MODEL].text, a->opts.default_model};
    const size_t n = server_length(url);
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (model_path_is_url(named[i]) && server_length(named[i]) == n && !strncasecmp(named[i], url, n)) return true;
    return false;
}

/* Selects the server of a conversation. The file may be anyone's: only the user decides which server gets the
 * conversation and the API key. */
static int select_server(struct app *a, const char *what, const char *url, struct error *e) {
    if (!is_named_server(a, url)) {
        if (!a->tty_in || !a->tty_err)
            return error_set(e, ERR_USAGE,
                             "the conversation '%s' used the server %.200s; -m URL continues it "
                             "there",
                             what, url);
        struct buf question = {0};
        buf_fmt(&question, "The conversation '%s' used the server %s. Continue it there? y: yes, n: no > ", what, url);
        const bool failed = question.failed, agreed = !failed && ask_yes(question.data);
        buf_free(&question);
        if (failed) return error_set(e, ERR_MEMORY, "no memory");
        if (!agreed)
            return error_set(e, ERR_USAGE,
                             "the conversation '%s' was not sent; -m NAME continues it with another model", what);
    }
    return opt_set(&a->opts, OPT_MODEL, url, ORIGIN_CHAT, what, e);
}

int store_model_select(struct app *a, const char *what, const struct store_model *m, struct error *e) {
    char dir[PATHS_MAX], name[PATHS_MAX];
    if (is_given(a) || (!*m->path && !*m->name)) return 0;
    if (model_path_is_url(m->path)) return select_server(a, what, m->path, e);
    if (*m->path) {
        if (is_builtin(m->path) || file_exists(m->path) || file_is_dir(m->path) ||
            !hub_cache_find(m->path, dir, sizeof dir, &(struct error){0}))
            return opt_set(&a->opts, OPT_MODEL, m->path, ORIGIN_CHAT, what, e);
        return error_set(e, ERR_MODEL,
                         "the conversation '%s' used the model %s, which is no longer at %s; -m DIR continues "
                         "it with the model in DIR",
                         what, m->name, m->path);
    }
    /* a file of an earlier version has only the name */
    if (!model_path_find(&a->opts, dir, sizeof dir, &(struct error){0})) {
        model_path_name(dir, name, sizeof name);
        if (!strcmp(name, m->name)) return 0;
    }
    struct opt_value was = a->opts.v[OPT_MODEL];
    int rc = opt_set(&a->opts, OPT_MODEL, m->name, ORIGIN_CHAT, what, e);
    if (rc || !model_path_find(&a->opts, dir, sizeof dir, &(struct error){0})) return rc;
    a->opts.v[OPT_MODEL] = was;
    return error_set(e, ERR_MODEL,
                     "the conversation '%s' used the model %s, which is not in the model path; -m DIR "
                     "continues it with the model in DIR",
                     what, m->name);
}

int store_model_check(const struct app *a, const char *what, const struct store_model *m, struct error *e) {
    char path[PATHS_MAX];
    store_model_place(a, path);
    if (!m->fingerprint || !a->info->fingerprint || m->fingerprint == a->info->fingerprint || strcmp(m->path, path) ||
        is_given(a))
        return 0;
    if (is_builtin(path)) { /* each version of hearth has its own */
        report_note("%s: the built-in model has changed since", what);
        return 0;
    }
    return error_set(
        e, ERR_MODEL,
        "the files of the model %s have changed since the conversation '%s'; -m %s continues it with the new files",
        path, what, path);
}
