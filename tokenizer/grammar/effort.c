#include "tokenizer/grammar/effort.h"

void effort_begin(struct effort *f, const struct effort_guard *guard) {
    *f = (struct effort){
        .arena.limit = EFFORT_MAX_BYTES, .guard = guard, .left = EFFORT_MAX_STEPS, .until_call = EFFORT_STEPS_PER_CALL};
}

void effort_end(struct effort *f) { arena_free(&f->arena); }

int effort_spend_slowly(struct effort *f, uint64_t n) {
    const uint64_t spent = EFFORT_STEPS_PER_CALL - f->until_call + n;
    if (f->failed) return f->failed;
    f->until_call = EFFORT_STEPS_PER_CALL;
    if (spent >= f->left) f->failed = ERR_USAGE;
    else f->left -= spent;
    if (!f->failed && f->guard && !f->guard->may_go_on(f->guard->ctx)) f->failed = ERR_CANCELLED;
    if (f->failed) f->until_call = 0;
    return f->failed;
}

int effort_error(const struct effort *f, struct error *e) {
    if (f->failed == ERR_USAGE)
        return error_set(e, ERR_USAGE,
                         "too complex: its grammar takes more than %d million steps; use fewer alternatives within "
                         "alternatives, or shorter patterns",
                         EFFORT_MAX_STEPS / 1000000);
    if (f->failed) return error_set(e, ERR_CANCELLED, "the compilation of the grammar was stopped");
    if (f->arena.limit && f->arena.total + (f->arena.total >> 2) > f->arena.limit)
        return error_set(e, ERR_USAGE, "too complex: its grammar takes more than %d MB of working memory",
                         EFFORT_MAX_BYTES >> 20);
    return 0;
}
