#include "cli/turn/think_limit.h"

#include <string.h>

#include "cli/report.h"
#include "tokenizer/chat/dialects.h"

struct think_limit {
    struct token_filter filter;
    const struct tokenizer *tokenizer;
    struct output_parser *parser;
    struct ids close;       /* tokens of the mark that ends thinking */
    size_t n_closed;        /* of these, emitted since the limit was reached */
    int limit, n_thought;   /* tokens */
    bool thinks, is_ending; /* the last token was thinking; the mark must follow */
    uint64_t *bits;         /* [n_ids] mask of the next token of the mark */
    int n_ids;
};

static int on_part(void *ctx, enum output_kind part, const char *data, size_t n) {
    struct think_limit *t = ctx;
    t->thinks = part == OUTPUT_THINKING;
    return 0;
}

static int filter_allowed(void *ctx, int left, const uint64_t **bits, int *n_ids, struct error *e) {
    struct think_limit *t = ctx;
    *bits = NULL;
    *n_ids = t->n_ids;
    if (!t->is_ending) return 0;
    const int32_t id = t->close.data[t->n_closed];
    memset(t->bits, 0, ((size_t)t->n_ids + 63) / 64 * sizeof *t->bits);
    t->bits[id >> 6] |= 1ull << (id & 63);
    *bits = t->bits;
    return 0;
}

static bool filter_fits(void *ctx, int32_t id, int left) { return true; }
static int filter_least(void *ctx) { return 1; }

static int filter_accept(void *ctx, int32_t id, struct error *e) {
    struct think_limit *t = ctx;
    bool special = false;
    size_t n = 0;
    const char *s = tokenizer_token_bytes(t->tokenizer, id, &n, &special);
    if (t->is_ending && id == t->close.data[t->n_closed] && ++t->n_closed == t->close.n) t->is_ending = false;
    if (s && output_parser_feed(t->parser, s, n, special, on_part, t)) return error_set(e, ERR_MEMORY, "no memory");
    const bool is_outside = output_parser_in_answer(t->parser);
    if (is_outside) t->thinks = false;
    if (t->thinks && !t->is_ending && ++t->n_thought >= t->limit && t->n_closed < t->close.n) t->is_ending = true;
    return 0;
}

/* A stop id must not take the place of the mark. */
static enum filter_state filter_state(const void *ctx) {
    return ((const struct think_limit *)ctx)->is_ending ? FILTER_OPEN : FILTER_COMPLETE;
}
static int filter_forced(void *ctx, int most, int32_t *out) { return 0; }

/* Encodes the mark that ends the thinking of this template. */
static int find_close(struct think_limit *t, struct app *a, struct error *e) {
    const struct dialect_set *s = chat_template_dialects(a->template);
    for (const struct dialect *const *d = s->headers ? NULL : s->active; d && *d; d++)
        if ((*d)->kind == OUTPUT_THINKING && (*d)->close)
            return tokenizer_encode(t->tokenizer, (*d)->close, strlen((*d)->close), TEXT_TEMPLATE, &t->close, e);
    return 0;
}

int think_limit_open(struct think_limit **out, struct app *a, int limit, const char *tail, size_t n, struct error *e) {
    struct think_limit *t = *out = mem_calloc(1, sizeof *t);
    if (!t) return error_set(e, ERR_MEMORY, "no memory");
    t->filter = (struct token_filter){.ctx = t,
                                      .allowed = filter_allowed,
                                      .fits = filter_fits,
                                      .least = filter_least,
                                      .accept = filter_accept,
                                      .state = filter_state,
                                      .forced = filter_forced};
    t->tokenizer = a->tokenizer;
    t->limit = limit;
    t->n_ids = tokenizer_n_ids(a->tokenizer);
    int rc = find_close(t, a, e);
    if (!rc && !t->close.n) {
        if (!a->noted_limit) report_note("--think-limit: the model's chat template has no mark that ends thinking");
        a->noted_limit = true;
        think_limit_close(out);
        return 0;
    }
    if (!rc && !((t->parser = output_parser_open(a->template, tail, n)) &&
                 (t->bits = mem_calloc((size_t)t->n_ids / 64 + 1, sizeof *t->bits))))
        rc = error_set(e, ERR_MEMORY, "no memory");
    if (rc) think_limit_close(out);
    return rc;
}

void think_limit_close(struct think_limit **at) {
    struct think_limit *t = *at;
    *at = NULL;
    if (!t) return;
    output_parser_close(&t->parser);
    ids_free(&t->close);
    mem_free(t->bits);
    mem_free(t);
}

const struct token_filter *think_limit_filter(const struct think_limit *t) { return &t->filter; }
