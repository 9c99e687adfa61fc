#include "cli/modes/models.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/modes/bandwidth.h"
#include "cli/options/model_path.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/turn/engine_client_local.h"

struct model_facts {
    char family[64];
    int64_t bytes, token_bytes; /* all weights; those read for one generated token */
    struct error error;
    int rc;
};
static void inspect_facts(struct app *a, const struct model *m, struct model_facts *f) {
    struct engine_params p;
    struct buf json = {0};
    struct arena arena = {0};
    struct json root;
    *f = (struct model_facts){0};
    engine_client_local_params(a, &p);
    p = (struct engine_params){.dir = m->dir, .kv = p.kv, .force = true};
    f->rc = engine_inspect(&p, &json, &f->error);
    if (!f->rc) f->rc = json_parse(&arena, json.data, json.len, 0, "inspection", &root, &f->error);
    if (!f->rc) {
        const struct json *family = json_get(&root, "family");
        if (family && family->type == JSON_STRING)
            snprintf(f->family, sizeof f->family, "%.*s", (int)family->n, family->string);
        f->bytes = json_int(json_path(&root, "bytes.all"), 0);
        f->token_bytes = json_int(json_path(&root, "bytes.per_token"), 0);
    }
    arena_free(&arena);
    buf_free(&json);
}

/* Whether another program keeps the model, in a place of its own. */
static bool is_elsewhere(const struct model *m) {
    static const char *const ours[] = {"built in", "model path", "default", "beside -m", "Hugging Face cache"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (!strcmp(m->source, ours[i])) return false;
    return true;
}

static void put_model_row(const struct model *m, int width, const struct model_facts *f, double rate, bool is_default,
                          bool json, struct buf *out) {
    char bytes[32], number[32];
    bool fits = (uint64_t)f->bytes < mem_total();
    double speed = fits && f->token_bytes > 0 && rate > 0 ? rate / (double)f->token_bytes : 0;
    if (json) {
        buf_str(out, "{\"name\": ");
        out_json_string(out, m->name, strlen(m->name));
        buf_str(out, ", \"dir\": ");
        out_json_string(out, m->dir, strlen(m->dir));
        buf_fmt(out, ", \"source\": \"%s\"", m->source);
        if (f->rc) {
            buf_str(out, ", \"error\": ");
            out_json_string(out, f->error.text, strlen(f->error.text));
        } else
            buf_fmt(out,
                    ", \"family\": \"%s\", \"bytes\": %lld, \"token_bytes\": %lld, \"fits\": %s, "
                    "\"tokens_per_s_at_most\": %.3f",
                    f->family, (long long)f->bytes, (long long)f->token_bytes, fits ? "true" : "false", speed);
        buf_str(out, is_default ? ", \"default\": true}" : "}");
    } else if (f->rc) buf_fmt(out, "%-*s  cannot be opened: %s", width, m->name, f->error.text);
    else {
        buf_fmt(out, "%-*s  %-14s %8s  ", width, m->name, f->family,
                amount_bytes((uint64_t)f->bytes, bytes, sizeof bytes));
        if (fits) buf_fmt(out, "fits, up to %s tok/s", amount_rate(speed, number, sizeof number));
        else
            buf_fmt(out, "larger than the %s of memory: read from disk",
                    amount_bytes(mem_total(), bytes, sizeof bytes));
    }
    if (!json && is_elsewhere(m)) buf_fmt(out, " (%s)", m->source);
    if (!json && is_default) buf_str(out, " (default)");
}

/* Lists all models. Sets *chosen to the index of the default model; to the number of models without a default, or if -m
 * overrides it. */
static int list_models(struct app *a, struct model_list *l, size_t *chosen, struct error *e) {
    const struct opt_value *m = &a->opts.v[OPT_MODEL];
    char dir[PATHS_MAX];
    int rc = model_path_list(&a->opts, l, e);
    *chosen = l->n;
    if (rc || !m->text || m->origin == ORIGIN_FLAG || model_path_is_url(m->text) ||
        model_path_find(&a->opts, dir, sizeof dir, &(struct error){0}))
        return rc;
    for (*chosen = 0; *chosen < l->n && strcmp(l->v[*chosen].dir, dir) != 0;) ++*chosen;
    return 0;
}

static int put_model_rows(struct app *a, bool json, bool numbered, struct buf *out, struct error *e) {
    struct model_list l;
    struct model_facts f;
    size_t chosen;
    int rc = list_models(a, &l, &chosen, e);
    if (rc) return rc;
    progress_begin("looking for models");
    double rate = bandwidth_of_machine(a);
    int width = 0;
    for (size_t i = 0; i < l.n; i++)
        if ((int)strlen(l.v[i].name) > width) width = (int)strlen(l.v[i].name);
    for (size_t i = 0; i < l.n; i++) {
        inspect_facts(a, &l.v[i], &f);
        buf_str(out, json && i ? ",\n " : "");
        if (numbered) buf_fmt(out, "%2zu  ", i + 1);
        put_model_row(&l.v[i], width, &f, rate, i == chosen, json, out);
        if (!json) buf_char(out, '\n');
    }
    progress_clear();
    model_list_free(&l);
    return out->failed ? error_set(e, ERR_MEMORY, "no memory for the list") : 0;
}

int models_text(struct app *a, struct buf *out, struct error *e) { return put_model_rows(a, false, true, out, e); }

int models_print(struct app *a, struct error *e) {
    struct buf b = {0};
    bool json = a->opts.v[OPT_JSON].on;
    if (json) buf_char(&b, '[');
    int rc = put_model_rows(a, json, false, &b, e);
    if (json) buf_str(&b, "]\n");
    if (!rc) out_write(b.data, b.len);
    buf_free(&b);
    return rc;
}
