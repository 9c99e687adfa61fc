/* Encoders: the state of a call, pooled in the tokenizer. */
#include "base/mem.h"
#include "tokenizer/tokenizer_internal.h"

/* An idle encoder does not keep the memory of one huge text. */
enum { IDLE_BYTES = 4 << 20 };

int encoder_acquire(const struct tokenizer *t, struct encoder **out, struct error *e) {
    pthread_mutex_lock(t->lock);
    struct encoder *x = *t->idle;
    if (x) *t->idle = x->next;
    pthread_mutex_unlock(t->lock);
    if (!x) {
        if (!(x = mem_calloc(1, sizeof *x))) return error_set(e, ERR_MEMORY, "no memory to tokenize");
        int rc = pattern_matcher_open(&x->matcher, e);
        if (rc) {
            mem_free(x);
            return rc;
        }
        x->t = t;
    }
    *out = x;
    return 0;
}

static void trim_buf(struct buf *b) {
    if (b->cap > IDLE_BYTES) buf_free(b);
    b->failed = false;
}

static void trim_ranges(struct word_ranges *r) {
    if (r->cap <= IDLE_BYTES / sizeof *r->v) return;
    mem_free(r->v);
    *r = (struct word_ranges){0};
}

static void trim_matches(struct added_matches *m) {
    if (m->cap <= IDLE_BYTES / sizeof *m->v) return;
    mem_free(m->v);
    *m = (struct added_matches){0};
}

void encoder_release(struct encoder *x) {
    const struct tokenizer *t = x->t;
    for (int i = 0; i < 2; i++) {
        trim_buf(&x->norm[i].s);
        trim_buf(&x->norm[i].origin);
        trim_ranges(&x->ranges[i]);
        trim_matches(&x->added_matches[i]);
    }
    trim_buf(&x->text), trim_buf(&x->char_map), trim_buf(&x->clean), trim_buf(&x->origin), trim_buf(&x->rewritten);
    if (x->cap_symbols > 1 << 18 || x->cap_heap > 1 << 18) {
        mem_free(x->symbols);
        mem_free(x->heap);
        x->symbols = x->heap = NULL;
        x->cap_symbols = x->cap_heap = 0;
    }
    pthread_mutex_lock(t->lock);
    x->next = *t->idle;
    *t->idle = x;
    pthread_mutex_unlock(t->lock);
}

void encoder_free(struct encoder *x) {
    pattern_matcher_close(&x->matcher);
    for (int i = 0; i < 2; i++) {
        buf_free(&x->norm[i].s);
        buf_free(&x->norm[i].origin);
        mem_free(x->ranges[i].v);
        mem_free(x->added_matches[i].v);
    }
    buf_free(&x->text);
    buf_free(&x->char_map);
    buf_free(&x->clean);
    buf_free(&x->origin);
    buf_free(&x->rewritten);
    mem_free(x->cache);
    mem_free(x->symbols);
    mem_free(x->heap);
    mem_free(x);
}
