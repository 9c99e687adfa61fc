/* The body of a chat-completions request. */
#include <math.h>
#include <string.h>

#include "cli/app.h"
#include "cli/remote/remote_connection.h"
#include "cli/terminal/out.h"
#include "cli/turn/constraint.h"
#include "cli/turn/prompt.h"

static void put_number_member(struct buf *b, const char *name, double v) {
    if (!isnan(v)) buf_fmt(b, ", \"%s\": %.9g", name, v);
}

/* Writes the members of llama.cpp's server. Another hearth gets them all, since its own options may differ; other
 * servers those that were set. */
static void put_dry(struct buf *b, const struct remote *r, const struct sampling *s) {
    const struct opt_value *v = r->app->opts.v;
    const bool all = r->resident;
    if (all || v[OPT_TOP_N_SIGMA].text) put_number_member(b, "top_n_sigma", s->top_n_sigma);
    if (all || v[OPT_DRY_MULTIPLIER].text) put_number_member(b, "dry_multiplier", s->dry.multiplier);
    if (all || v[OPT_DRY_BASE].text) put_number_member(b, "dry_base", s->dry.base);
    if (all || v[OPT_DRY_ALLOWED_LENGTH].text) buf_fmt(b, ", \"dry_allowed_length\": %d", s->dry.allowed_length);
    if (all || v[OPT_DRY_PENALTY_LAST_N].text) buf_fmt(b, ", \"dry_penalty_last_n\": %d", s->dry.last_n);
    if (!all && !v[OPT_DRY_SEQUENCE_BREAKERS].text) return;
    buf_str(b, ", \"dry_sequence_breakers\": [");
    for (const char *text = s->dry.breakers; *text; text += strlen(text) + 1) {
        if (text > s->dry.breakers) buf_str(b, ", ");
        out_json_string(b, text, strlen(text));
    }
    buf_char(b, ']');
}

void remote_body_put(const struct remote *r, const struct prompt *p, const struct request *q, struct buf *b) {
    const struct opt_value *until = &r->app->opts.v[OPT_UNTIL];
    const struct sampling *s = &q->sampling;
    buf_str(b, "{\"model\": ");
    out_json_string(b, r->model, strlen(r->model));
    buf_fmt(b, ", %s, \"stream\": true, \"stream_options\": {\"include_usage\": true}", p->body.data);
    if (p->source) {
        buf_str(b, ", ");
        constraint_put_request(p->source, b);
    }
    put_number_member(b, "temperature", s->temperature);
    put_number_member(b, "top_p", s->top_p);
    put_number_member(b, "min_p", s->min_p);
    put_number_member(b, "repetition_penalty", s->repeat_penalty);
    put_number_member(b, "presence_penalty", s->presence_penalty);
    put_number_member(b, "frequency_penalty", s->frequency_penalty);
    put_dry(b, r, s);
    if (s->top_k >= 0) buf_fmt(b, ", \"top_k\": %d", s->top_k);
    buf_fmt(b, ", \"seed\": %llu", (unsigned long long)s->seed);
    if (q->max_tokens > 0) buf_fmt(b, ", \"max_tokens\": %d", q->max_tokens);
    for (size_t i = 0; i < until->n_items; i++) {
        buf_str(b, i ? ", " : ", \"stop\": [");
        out_json_string(b, until->items[i], strlen(until->items[i]));
    }
    if (until->n_items) buf_char(b, ']');
    for (size_t i = 0; i < p->ids.n; i++) buf_fmt(b, "%s%d", i ? "," : ", \"generated\": [", p->ids.data[i]);
    if (p->ids.n) buf_fmt(b, "], \"generated_whole\": %s", p->is_cut ? "false" : "true");
    if (r->resident && r->app->opts.v[OPT_EXPLAIN].on) buf_str(b, ", \"explain\": true");
    if (r->resident)
        buf_str(b, q->flags & REQ_NO_DISK_CACHE ? ", \"markup\": true, \"store\": false"
                                                : ", \"markup\": true, \"kept\": true");
    buf_char(b, '}');
}
