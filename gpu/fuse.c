#include "gpu/fuse.h"

#include <string.h>

/* --- Accesses of operations ------------------------------------------------------------------- */

enum { RANGES = 16 };
struct ranges {
    int n;
    struct {
        const char *p;
        size_t bytes;
        bool is_written;
    } r[RANGES];
};
static int add_range(void *ctx, void **p, size_t bytes, enum visit_kind kind) {
    struct ranges *all = ctx;
    if (all->n == RANGES) return 1;
    all->r[all->n].p = *p, all->r[all->n].bytes = bytes,
    all->r[all->n++].is_written = kind != VISIT_IN && kind != VISIT_CONST;
    return 0;
}
/* Lists what an operation reads and writes; false: too many ranges. Omits KV rows that are addressed through memory,
 * which no product accesses. */
static bool list_ranges(struct ranges *all, enum op_code code, const union op_args *a) {
    union op_small copy; /* large enough for products too */
    struct op_linear linear;
    void *own = code == OP_LINEAR ? (void *)&linear : (void *)&copy;
    memcpy(own, a, op_size(code));
    all->n = 0;
    return !op_visit(code, own, add_range, all);
}
static bool overlap(const struct ranges *a, const struct ranges *b) {
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < b->n; k++)
            if ((a->r[i].is_written || b->r[k].is_written) && a->r[i].p < b->r[k].p + b->r[k].bytes &&
                b->r[k].p < a->r[i].p + a->r[i].bytes)
                return true;
    return false;
}
/* Whether an operation must stay after those of an entry. */
static bool must_follow(const struct fuse_entry *e, const struct ranges *own) {
    const union op_args *all = (const union op_args *)&e->with;
    struct ranges before;
    for (int i = 0; i < op_parts(e->code, all); i++) {
        enum op_code part;
        const union op_args *a = op_part(e->code, all, i, &part);
        if (!list_ranges(&before, part, a) || overlap(&before, own)) return true;
    }
    return false;
}

static bool same_plane(const struct op_kv_store *a, const struct op_kv_store *b) {
    return kv_planes_equal(&a->plane, &b->plane) && a->at == b->at;
}
bool fuse_steps_are_apart(const struct op_chain *c, int first, int i) {
    const struct op_step *own = &c->step[i];
    struct ranges own_ranges, ranges;
    if (i > first && !list_ranges(&own_ranges, own->code, (const union op_args *)&own->args)) return false;
    for (int k = first; k < i; k++) {
        const struct op_step *s = &c->step[k];
        if (!list_ranges(&ranges, s->code, (const union op_args *)&s->args) || overlap(&ranges, &own_ranges))
            return false;
        if (s->code == OP_CONV || own->code == OP_CONV) return false; /* states may be addressed through memory */
        if (s->code == OP_KV_STORE && own->code == OP_KV_STORE && same_plane(&s->args.kv_store, &own->args.kv_store))
            return false;
    }
    return true;
}

/* --- Operations that may join ----------------------------------------------------------------- */

/* A matrix product of few rows. */
static bool is_product(enum op_code code, const union op_args *a) {
    return code == OP_LINEAR && a->linear.n > 0 && a->linear.n <= BATCH_INVARIANT_ROWS;
}
static bool may_join(const struct op_linear *a) { return !a->transposed && a->batch <= 1 && !a->top && !a->w.order; }
static bool reads_same(const struct op_linear *a, const struct op_linear *b) {
    return a->x == b->x && a->n == b->n && (a->ldx == b->ldx || a->n == 1) && a->w.cols == b->w.cols;
}

/* Operations that may be steps of a chain (base/op_list.h). */
static const bool fits_chain[OP_COUNT] = {
#define X(name, CODE, class, ...) OP_IF_SMALL_##class([OP_##CODE] = true, )
    OPS_ALL(X)
#undef X
};
static bool is_small(enum op_code code, const union op_args *a) {
    if (!fits_chain[code] || (code == OP_ROUTE && a->route.n > OP_CHAIN_ROWS)) return false;
    const size_t n = op_numbers(code, a);
    return n > 0 && n <= FUSE_NUMBERS;
}

/* The entry that takes an operation: the last with room that it may move to. NULL: none. */
static struct fuse_entry *find_entry(struct fuse *f, enum op_code code, const union op_args *a,
                                     const struct ranges *own) {
    for (int i = f->n - 1; i >= 0; i--) {
        struct fuse_entry *e = &f->entry[i];
        const bool must = must_follow(e, own);
        /* chains stay in order, because of KV rows */
        if (code != OP_LINEAR && e->code == OP_CHAIN) return e->with.chain.n < OP_CHAIN_MAX ? e : NULL;
        if (must) return NULL;
        const struct op_join *j = &e->with.join;
        if (code == OP_LINEAR && e->code == OP_JOIN && may_join(&a->linear) && may_join(&j->linear[0]) &&
            reads_same(&a->linear, &j->linear[0]) && j->n < OP_JOIN_MAX)
            return e;
    }
    return NULL;
}

static int launch_epilogue(struct fuse *f, fuse_launch launch, void *ctx) {
    const struct op_epilogue both = {f->entry[0].with.join, f->entry[1].with.chain};
    f->n -= 2;
    memmove(f->entry, f->entry + 2, (size_t)f->n * sizeof *f->entry);
    return launch(ctx, OP_EPILOGUE, (const union op_args *)&both);
}
static int launch_first(struct fuse *f, fuse_launch launch, void *ctx) {
    if (f->epilogues && f->n > 1 && f->entry[0].code == OP_JOIN && f->entry[1].code == OP_CHAIN &&
        may_join(&f->entry[0].with.join.linear[0]))
        return launch_epilogue(f, launch, ctx);
    const struct fuse_entry e = f->entry[0];
    const union op_args *all = (const union op_args *)&e.with;
    enum op_code part;
    memmove(f->entry, f->entry + 1, (size_t)--f->n * sizeof *f->entry);
    if (op_parts(e.code, all) > 1) return launch(ctx, e.code, all);
    const union op_args *one = op_part(e.code, all, 0, &part);
    return launch(ctx, part, one);
}
int fuse_flush(struct fuse *f, fuse_launch launch, void *ctx) {
    int r = 0;
    while (f->n && !r) r = launch_first(f, launch, ctx);
    f->n = 0;
    return r;
}

int fuse_add(struct fuse *f, enum op_code code, const union op_args *a, fuse_launch launch, void *ctx) {
    struct ranges own;
    int r = 0;
    if (!(is_product(code, a) || is_small(code, a)) || !list_ranges(&own, code, a))
        return (r = fuse_flush(f, launch, ctx)) ? r : launch(ctx, code, a);
    struct fuse_entry *e = find_entry(f, code, a, &own);
    if (!e) {
        if (f->n == FUSE_WINDOW && (r = launch_first(f, launch, ctx))) return f->n = 0, r;
        e = &f->entry[f->n++];
        e->code = code == OP_LINEAR ? OP_JOIN : OP_CHAIN;
        e->with.join.n = e->with.chain.n = 0;
    }
    if (code == OP_LINEAR) {
        e->with.join.linear[e->with.join.n++] = a->linear;
    } else {
        struct op_step *s = &e->with.chain.step[e->with.chain.n++];
        s->code = code;
        memcpy(&s->args, a, op_size(code));
    }
    return 0;
}
