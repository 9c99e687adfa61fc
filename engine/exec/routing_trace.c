#include "engine/exec/routing_trace.h"

#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/experts/score.h"

enum { WRITE_BYTES = 1 << 20, NEAR_MOST = 128 }; /* lines are written in pieces of this size; most entries of `near` */

struct routing_trace {
    const struct weights *w;
    char *path;
    struct buf text; /* not written yet */
    struct file_out out;
    bool is_open, has_failed; /* has_failed: nothing more is written */
    uint64_t n_batches;
    const void **chats; /* [n_chats] in order of first use */
    size_t n_chats, cap;
};

static void fail_trace(struct routing_trace *r, const char *why) {
    if (!r->has_failed) log_say(LOG_WARN, "%s", why);
    r->has_failed = true;
    buf_free(&r->text);
}

/* Writes the gathered lines to a regular file, or at the end (last) to anything else. */
static void write_lines(struct routing_trace *r, bool last) {
    struct error e = {0};
    if (r->text.failed) fail_trace(r, "no memory for the routing trace");
    if (!r->has_failed && !r->is_open && file_out_open(&r->out, r->path, 0600, &e)) fail_trace(r, e.text);
    if (r->has_failed) return;
    r->is_open = true;
    if (!last && !r->out.tmp) return;
    int rc = file_write_all(r->out.fd, r->text.data, r->text.len);
    if (rc) {
        error_set(&e, ERR_RUNTIME, "%s: %s", r->path, strerror(-rc));
        fail_trace(r, e.text);
    }
    r->text.len = 0;
}

int routing_trace_open(struct routing_trace **out, const char *path, const struct weights *w, const char *name, struct error *e) {
    struct routing_trace *r = *out = mem_calloc(1, sizeof *r);
    if (!r) return error_set(e, ERR_MEMORY, "no memory for the routing trace");
    r->w = w;
    r->out.fd = -1;
    if (!(r->path = mem_strdup(path))) return error_set(e, ERR_MEMORY, "no memory for the routing trace");
    buf_str(&r->text, "{\"model\":");
    json_quote(&r->text, name, strlen(name));
    buf_fmt(&r->text, ",\"layers\":%d,\"experts\":%d,\"topk\":%d}\n", w->config.n_layers, w->config.n_experts, w->config.topk);
    return 0;
}

void routing_trace_close(struct routing_trace **rp) {
    struct routing_trace *r = *rp;
    struct error e = {0};
    if (!r) return;
    *rp = NULL;
    if (r->path) write_lines(r, true);
    if (r->is_open && file_out_close(&r->out, !r->has_failed, &e)) log_say(LOG_WARN, "%s", e.text);
    buf_free(&r->text);
    mem_free((void *)r->chats);
    mem_free(r->path);
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
    if (!r || r->has_failed) return;
    const struct config *c = &r->w->config;
    const struct layer *y = &r->w->layers[rows->layer];
    size_t chat = chat_number(r, rows->chat);
    int32_t near[NEAR_MOST];
    float chance[NEAR_MOST];
    for (int i = 0; i < rows->n; i++) {
        int n_near = 2 * c->topk < NEAR_MOST ? 2 * c->topk : NEAR_MOST;
        size_t at = (size_t)i * (size_t)c->topk;
        buf_fmt(lines, "{\"step\":%llu,\"chat\":%zu,\"prompt\":%s,\"pos\":%d,\"token\":%d,\"layer\":%d", (unsigned long long)rows->batch, chat,
                rows->is_prefill ? "true" : "false", rows->pos + i, (int)rows->tokens[i], rows->layer);
        add_array(lines, "ids", rows->ids + at, NULL, c->topk);
        add_array(lines, "weights", NULL, rows->weights + at, c->topk);
        if (rows->router && !y->router_table) {
            score_best(c->score, y->router_bias, rows->router + (size_t)i * (size_t)config_n_choices(c), c->n_experts, n_near, near, chance);
            while (n_near && near[n_near - 1] < 0) n_near--; /* fewer experts than that */
            add_array(lines, "near", near, NULL, n_near);
            add_array(lines, "chances", NULL, chance, n_near);
        }
        buf_str(lines, "}\n");
    }
}

void routing_trace_end(struct routing_trace *r, struct buf *lines, bool keep) {
    if (!r) return;
    if (keep && lines->failed) fail_trace(r, "no memory for the routing trace");
    if (keep && lines->len && !r->has_failed) buf_add(&r->text, lines->data, lines->len);
    lines->len = 0;
    lines->failed = false;
    if (r->text.len >= WRITE_BYTES || r->text.failed) write_lines(r, false);
}
