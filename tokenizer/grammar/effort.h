#pragma once
/* What the compilation of one grammar may use: memory, steps, and the time that its owner leaves it. Every loop whose
 * length a client chooses spends steps, so that a small text cannot occupy a thread. */
#include "base/error.h"
#include "base/mem.h"

enum {
    EFFORT_MAX_BYTES = 256 << 20,    /* of working memory */
    EFFORT_MAX_STEPS = 200000000,    /* about two seconds of a processor */
    EFFORT_STEPS_PER_CALL = 1 << 20, /* between two calls of may_go_on */
};

/* Asked from the thread that compiles. */
struct effort_guard {
    bool (*may_go_on)(void *ctx); /* false: the compilation fails with ERR_CANCELLED */
    void *ctx;
};
struct effort {
    struct arena arena;               /* working memory */
    const struct effort_guard *guard; /* NULL: none */
    uint64_t left, until_call;        /* steps */
    int failed;                       /* the first failure: ERR_USAGE, no steps are left; ERR_CANCELLED, the guard */
};
void effort_begin(struct effort *f, const struct effort_guard *guard);
void effort_end(struct effort *f); /* frees the working memory */
/* Spends n steps. Returns 0, or the code in f->failed, with which every later call fails too. */
int effort_spend_slowly(struct effort *f, uint64_t n);
static inline int effort_spend(struct effort *f, uint64_t n) {
    if (n >= f->until_call) return effort_spend_slowly(f, n);
    f->until_call -= n;
    return 0;
}
/* Sets the error of a failure; call it after the compilation has failed. Returns the code, or 0: the effort is not the
 * cause. */
int effort_error(const struct effort *f, struct error *e);
