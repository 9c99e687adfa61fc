/* The status of --serve as JSON: for hearth --status, and for attached processes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/options/hub_cache.h"
#include "cli/server/resident.h"
#include "cli/server/server.h"
#include "cli/terminal/out.h"

uint64_t serve_status_resident_bytes(void) {
    char text[128] = "";
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fgets(text, sizeof text, f)) sscanf(text, "%*u %llu", &pages);
    if (f) fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Of n cached tokens, returns those that are not shared. */
static size_t unshared_tokens(const struct serve_session *k, size_t n) {
    size_t shared = (size_t)session_shared_tokens(k->client->session);
    return n > shared ? n - shared : 0;
}

/* Tokens in the KV cache of a running answer, apart from shared ones. */
static size_t choice_tokens(const struct http_choice *c) {
    const struct turn *t = &c->turn;
    const int prompt = (int)c->n_prompt;
    if (t->n_tokens) return unshared_tokens(c->session, (size_t)prompt + (size_t)t->n_tokens);
    /* the cached prefix, and what is prefilled */
    return unshared_tokens(c->session, t->prefill_total && t->prefill_total <= prompt
                                           ? (size_t)(prompt - t->prefill_total + t->prefill_done)
                                           : 0);
}

static size_t idle_tokens(const struct serve_session *k) {
    const int32_t *tokens;
    return (size_t)session_tokens(k->client->session, &tokens);
}

uint64_t serve_status_kv_bytes(const struct server *s) {
    uint64_t n = 0;
    for (int i = 0; i < s->n_sessions; i++) {
        const struct serve_session *k = &s->sessions[i];
        n += (k->choice ? choice_tokens(k->choice) : unshared_tokens(k, idle_tokens(k))) *
             k->client->app->info->kv_token_bytes;
    }
    for (size_t i = 0; i < s->n_models; i++)
        if (s->models[i]->is_open) n += engine_shared_bytes(s->models[i]->app->engine);
    return n;
}

static void put_choice_status(struct buf *b, const struct http_choice *c) {
    const struct http_request *x = c->request;
    const struct turn *t = &c->turn;
    int prompt = (int)c->n_prompt;
    buf_str(b, "{");
    if (x->pid) buf_fmt(b, "\"process\": %ld, ", (long)x->pid);
    if (c->state == HTTP_CHOICE_WAITING) buf_fmt(b, "\"state\": \"waiting\", \"prompt_tokens\": %d}", prompt);
    else if (t->n_tokens) {
        double s = t->last_token_at - t->first_token_at;
        buf_fmt(b, "\"state\": \"decode\", \"prompt_tokens\": %d, \"tokens\": %d, \"tokens_per_s\": %.3f}", prompt,
                t->n_tokens, t->n_tokens > 1 && s > 0 ? (t->n_tokens - 1) / s : 0.0);
    } else {
        buf_fmt(b, "\"state\": \"prefill\", \"prompt_tokens\": %d, \"share\": %.4f, \"left_s\": ", prompt,
                t->prefill_total ? (double)t->prefill_done / t->prefill_total : 0.0);
        if (t->prefill_total && t->prefill_left_s >= 0) buf_fmt(b, "%.3f}", t->prefill_left_s);
        else buf_str(b, "null}");
    }
}

/* With --max-models: the models that are open. */
static void put_open_models(const struct server *s, struct buf *b) {
    bool first = true;
    buf_str(b, ", \"models\": [");
    for (size_t i = 0; i < s->n_models; i++) {
        if (!s->models[i]->is_open) continue;
        if (!first) buf_str(b, ", ");
        out_json_string(b, s->models[i]->name, strlen(s->models[i]->name));
        first = false;
    }
    buf_char(b, ']');
}

void serve_status_put(struct server *s, struct buf *b) {
    static const struct engine_info unknown = {.model_type = "", .name = ""};
    const struct serve_model *m = serve_model_current(s);
    const struct engine_info *i = m->app->info ? m->app->info : &unknown;
    struct buf own = {0};
    bool first = true;
    buf_str(b, "{\"model\": ");
    out_json_string(b, m->name, strlen(m->name));
    char name[PATHS_MAX];
    char *real = hub_cache_name(m->app->model_dir, name, sizeof name) ? NULL : realpath(m->app->model_dir, NULL);
    const char *dir = real ? real : hub_cache_name(m->app->model_dir, name, sizeof name) ? name : m->app->model_dir;
    buf_str(b, ", \"dir\": ");
    out_json_string(b, dir, strlen(dir));
    free(real);
    buf_str(b, ", \"identity\": ");
    if (!s->has_models) buf_add(b, s->identity.data, s->identity.len);
    else if (m->is_open && !resident_identity(m->app, &own, &(struct error){0})) buf_add(b, own.data, own.len);
    else buf_str(b, "\"\""); /* nobody attaches: what its sampling is, is not known before it is open */
    buf_free(&own);
    if (s->has_models) put_open_models(s, b);
    if (i->n_experts) buf_fmt(b, ", \"experts\": %d", i->n_experts);
    buf_str(b, ", \"build\": ");
    resident_build(b);
    buf_fmt(b,
            ", \"pid\": %ld, \"up_s\": %.3f, \"context\": %d, \"max_context\": %d, \"kv_token_bytes\": %llu, "
            "\"fingerprint\": \"%016llx\", \"parallel\": %d, "
            "\"answered\": %llu, ",
            (long)getpid(), clock_now() - s->started_s, i->context, i->max_context,
            (unsigned long long)i->kv_token_bytes, (unsigned long long)i->fingerprint, s->parallel,
            (unsigned long long)s->n_answered);
    buf_str(b, "\"sampling\": {");
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"temperature", i->temperature},
                   {"top_p", i->top_p},
                   {"min_p", i->min_p},
                   {"repeat_penalty", i->repeat_penalty}};
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        if (numbers[k].value == numbers[k].value) buf_fmt(b, "\"%s\": %.17g, ", numbers[k].name, numbers[k].value);
    buf_fmt(b, "\"top_k\": %d, \"do_sample\": %s, \"own\": %s}, \"sessions\": [", i->top_k,
            i->do_sample ? "true" : "false", i->is_own_sampling ? "true" : "false");
    for (const struct http_request *x = s->requests; x; x = x->next)
        for (int k = 0; k < x->n_choices; k++) {
            if (x->choices[k].state == HTTP_CHOICE_DONE) continue;
            buf_str(b, first ? "" : ", ");
            put_choice_status(b, &x->choices[k]);
            first = false;
        }
    for (int k = 0; k < s->n_sessions; k++) {
        if (s->sessions[k].choice) continue;
        buf_fmt(b, "%s{\"state\": \"idle\", \"tokens\": %zu}", first ? "" : ", ", idle_tokens(&s->sessions[k]));
        first = false;
    }
    buf_fmt(b, "], \"memory\": {\"resident_bytes\": %llu, \"kv_bytes\": %llu}}\n",
            (unsigned long long)serve_status_resident_bytes(), (unsigned long long)serve_status_kv_bytes(s));
}
