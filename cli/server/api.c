/* Common to all protocols: the life of a request, its effect on sampling, and parts of answers. */
#include "cli/server/api.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "cli/terminal/out.h"

int api_parse_root(struct api_request *r, const char *body, size_t n, struct json *root, struct error *e) {
    *r = (struct api_request){.temperature = NAN,
                              .top_p = NAN,
                              .min_p = NAN,
                              .repeat_penalty = NAN,
                              .presence_penalty = NAN,
                              .frequency_penalty = NAN,
                              .dry_multiplier = NAN,
                              .dry_base = NAN,
                              .top_n_sigma = NAN,
                              .dry_allowed_length = -2,
                              .dry_penalty_last_n = -2,
                              .top_k = -1,
                              .max_tokens = -1,
                              .seed = -1,
                              .n = 1,
                              .n_prompts = 1};
    int rc = json_parse(&r->arena, body, n, 0, "request", root, e);
    if (rc == ERR_MODEL) rc = e->code = ERR_USAGE;
    return !rc && root->type != JSON_OBJECT ? error_set(e, ERR_USAGE, "request: must be an object") : rc;
}

void api_free(struct api_request *r) {
    arena_free(&r->arena);
    *r = (struct api_request){0};
}

int api_n_choices(const struct api_request *r) { return r->n * (int)r->n_prompts; }

int api_answer_make_id(struct api_answer *a, struct error *e) {
    unsigned char id[12];
    if (getrandom(id, sizeof id, 0) != sizeof id) return error_set(e, ERR_RUNTIME, "cannot get random numbers");
    const size_t at = (size_t)snprintf(a->id, sizeof a->id, "%s", a->protocol->id_prefix);
    a->code = a->id + at;
    for (size_t i = 0; i < sizeof id; i++) snprintf(a->id + at + 2 * i, 3, "%02x", id[i]);
    return 0;
}

void api_answer_free(struct api_answer *a) {
    buf_free(&a->text);
    buf_free(&a->items);
    *a = (struct api_answer){0};
}

void api_override_sampling(const struct api_request *r, int choice, struct sampling *s) {
    const struct {
        float given, *to;
    } numbers[] = {{r->temperature, &s->temperature},
                   {r->top_p, &s->top_p},
                   {r->min_p, &s->min_p},
                   {r->repeat_penalty, &s->repeat_penalty},
                   {r->presence_penalty, &s->presence_penalty},
                   {r->frequency_penalty, &s->frequency_penalty},
                   {r->dry_multiplier, &s->dry.multiplier},
                   {r->dry_base, &s->dry.base},
                   {r->top_n_sigma, &s->top_n_sigma}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!isnan(numbers[i].given)) *numbers[i].to = numbers[i].given;
    if (r->dry_allowed_length >= 0) s->dry.allowed_length = r->dry_allowed_length;
    if (r->dry_penalty_last_n >= -1) s->dry.last_n = r->dry_penalty_last_n;
    if (r->dry_breakers) memcpy(s->dry.breakers, r->dry_breakers, sizeof s->dry.breakers);
    if (r->top_k >= 0) s->top_k = r->top_k;
    if (r->seed >= 0) s->seed = (uint64_t)r->seed;
    s->seed += (uint64_t)(choice % r->n); /* an answer of several prompts is as alone */
    s->bias = r->bias, s->n_bias = r->n_bias;
}

const struct json *api_text_tools(const struct api_request *r) {
    return r->markup || r->no_tool_calls || r->has_source ? NULL : r->tools;
}

int api_parse_tools(const struct api_request *r, const struct turn *t, struct tool_calls *out) {
    if (r->markup || r->no_tool_calls) return 0;
    if (turn_calls(t, r->tools, out) == ERR_MEMORY) return ERR_MEMORY;
    if (r->single_tool_call && out->n) tool_calls_truncate(out, 1);
    return 0;
}

void api_put_answer_text(struct buf *b, const struct api_choice *c) {
    const struct turn *t = c->turn;
    struct buf text = {0};
    buf_add(&text, t->text.data ? t->text.data : "", t->text.len);
    if (!c->calls->n && t->tool.len) buf_add(&text, t->tool.data, t->tool.len);
    out_json_string(b, text.data ? text.data : "", text.len);
    b->failed |= text.failed;
    buf_free(&text);
}

void api_put_event(struct buf *b, const char *name) { buf_fmt(b, "event: %s\ndata: {\"type\": \"%s\"", name, name); }

bool api_is_cut(const struct turn *t) { return t->reason == DONE_LENGTH || t->reason == DONE_CONTEXT; }

int api_status(const struct error *e, const char **code) {
    *code = NULL;
    switch (e->code) {
    case ERR_USAGE: return 400;
    case ERR_CONTEXT: *code = "context_length_exceeded"; return 400;
    case ERR_MEMORY: return 503;
    default: return 500;
    }
}

void api_put_text_member(struct buf *b, const char *name, const char *s, size_t n) {
    buf_fmt(b, "\"%s\": ", name);
    out_json_string(b, s ? s : "", n);
}
