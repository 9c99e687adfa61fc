#include "engine/exec/routing_trace.h"

#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/exec/trace_file.h"
#include "engine/experts/score.h"

enum { NEAR_MOST = 128 }; /* most entries of `near` */

struct routing_trace {
    const struct weights *w;
    struct trace_file file;
    uint64_t n_batches;
    const void **chats; /* [n_chats] in order of first use */
    size_t n_chats, cap;
};

int routing_trace_open(struct routing_trace **out, const char *path, const struct weights *w, const char *name,
                       struct error *e) {
    struct routing_trace *r = *out = mem_calloc(1, sizeof *r);
    if (!r) return error_set(e, ERR_MEMORY, "no memory for the routing trace");
    r->w = w;
    int rc = trace_file_open(&r->file, path, "routing trace", e);
    if (rc) return rc;
    buf_str(&r->file.text, "{\"model\":");
    json_quote(&r->file.text, name, strlen(name));
    buf_fmt(&r->file.text, ",\"layers\":%d,\"experts\":%d,\"topk\":%d}\n", w->config.n_layers, w->config.n_experts,
            w->config.topk);
    return 0;
}

void routing_trace_close(struct routing_trace **rp) {
    struct routing_trace *r = *rp;
    if (!r) return;
    *rp = NULL;
    trace_file_close(&r->file);
    mem_free((void *)r->chats);
    mem_free(r);
}

/* Returns the number of a chat, from 1 on; 0: no memory for it. */
static size_t chat_number(struct routing_trace *r, const void *chat) {
    for (size_t i = 0; i < r->n_chats; i++)
        if (r->chats[i] == chat) return i + 1;
    if (mem_grow(&r->chats, &r->cap, r->n_chats + 1, sizeof *r->chats)) return 0;
    r->chats[r->n_chats++] = chat;
    return r->n_chats;
}

uint64_t routing_trace_begin(struct routing_trace *r) { return r ? ++r->n_batches : 0; }

static void add_array(struct buf *b, const char *name, const int32_t *ids, const float *x, int n) {
    buf_fmt(b, ",\"%s\":[", name);
    for (int i = 0; i < n; i++) {
        if (ids) buf_fmt(b, "%s%d", i ? "," : "", (int)ids[i]);
        else buf_fmt(b, "%s%.5g", i ? "," : "", (double)x[i]);
    }
    buf_char(b, ']');
}

void routing_trace_add(struct routing_trace *r, struct buf *lines, const struct routing_trace_rows *rows) {
    if (!r || r->file.has_failed) return;
    const struct config *c = &r->w->config;
    const struct layer *y = &r->w->layers[rows->layer];
    size_t chat = chat_number(r, rows->chat);
    int32_t near[NEAR_MOST];
    float chance[NEAR_MOST];
    for (int i = 0; i < rows->n; i++) {
        int n_near = 2 * c->topk < NEAR_MOST ? 2 * c->topk : NEAR_MOST;
        size_t at = (size_t)i * (size_t)c->topk;
        buf_fmt(lines, "{\"step\":%llu,\"chat\":%zu,\"prompt\":%s,\"pos\":%d,\"token\":%d,\"layer\":%d",
                (unsigned long long)rows->batch, chat, rows->is_prefill ? "true" : "false", rows->pos + i,
                (int)rows->tokens[i], rows->layer);
        add_array(lines, "ids", rows->ids + at, NULL, c->topk);
        add_array(lines, "weights", NULL, rows->weights + at, c->topk);
        if (rows->router && !y->router_table) {
            score_best(c->score, y->router_bias, rows->router + (size_t)i * (size_t)config_n_choices(c), c->n_experts,
                       n_near, near, chance);
            while (n_near && near[n_near - 1] < 0) n_near--; /* fewer experts than that */
            add_array(lines, "near", near, NULL, n_near);
            add_array(lines, "chances", NULL, chance, n_near);
        }
        buf_str(lines, "}\n");
    }
}

void routing_trace_end(struct routing_trace *r, struct buf *lines, bool keep) {
    if (!r) return;
    if (keep && lines->failed) trace_file_fail(&r->file, "no memory for the routing trace");
    if (keep && lines->len && !r->file.has_failed) buf_add(&r->file.text, lines->data, lines->len);
    lines->len = 0;
    lines->failed = false;
    trace_file_flush(&r->file);
}
