#include "gpu/op.h"

static const struct {
    const char *name;
    size_t size;
} op_info[OP_COUNT] = {
#define X(name, CODE, ...) [OP_##CODE] = {#name, sizeof(struct op_##name)},
    OPS_ALL(X)
#undef X
};

const char *op_name(enum op_code c) { return op_info[c].name; }
size_t op_size(enum op_code c) { return op_info[c].size; }

static size_t count_of(int a, int b, int c) { return a < 1 || b < 1 || c < 1 ? 0 : (size_t)a * (size_t)b * (size_t)c; }
#define X(name, CODE, class, kind, bytes, a, b, c) \
    static size_t numbers_##name(const struct op_##name *o) { return count_of(a, b, c); }
OPS_ALL(X)
#undef X
size_t op_numbers(enum op_code code, const union op_args *a) {
    switch (code) {
#define X(name, CODE, ...) \
    case OP_##CODE: return numbers_##name(&a->name);
        OPS_ALL(X)
#undef X
    case OP_COUNT: break;
    }
    return 0;
}

int op_parts(enum op_code code, const union op_args *a) {
    switch (code) {
    case OP_JOIN: return a->join.n;
    case OP_CHAIN: return a->chain.n;
    case OP_EPILOGUE: return a->epilogue.join.n + a->epilogue.chain.n;
    default: return 1;
    }
}
const union op_args *op_part(enum op_code code, const union op_args *a, int i, enum op_code *part) {
    const int n = code == OP_EPILOGUE ? a->epilogue.join.n : 0;
    if (code == OP_EPILOGUE && i < n) return op_part(OP_JOIN, (const union op_args *)&a->epilogue.join, i, part);
    if (code == OP_EPILOGUE) return op_part(OP_CHAIN, (const union op_args *)&a->epilogue.chain, i - n, part);
    *part = code == OP_JOIN ? OP_LINEAR : code == OP_CHAIN ? a->chain.step[i].code : code;
    return code == OP_JOIN    ? (const union op_args *)&a->join.linear[i]
           : code == OP_CHAIN ? (const union op_args *)&a->chain.step[i].args
                              : a;
}

int op_run(struct exec *x, enum op_code code, const void *args) {
    struct op_exec *o = (struct op_exec *)x;
    return o->run(o, code, args);
}

#define X(name, CODE, ...) \
    static int run_##name(struct exec *x, const struct op_##name *a) { return op_run(x, OP_##CODE, a); }
OPS(X)
OPS_OPTIONAL(X)
#undef X

void op_exec_init(struct op_exec *x, const char *name,
                  int (*run)(struct op_exec *, enum op_code, const union op_args *), const _Atomic int *cancel) {
    x->table = (struct ops){.name = name,
#define X(op, ...) .op = run_##op,
                            OPS(X) OPS_OPTIONAL(X)
#undef X
    };
    x->base = (struct exec){.ops = &x->table, .cancel = cancel};
    x->run = run;
}
