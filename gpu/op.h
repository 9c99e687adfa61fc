#pragma once
/* Executors that take operations as data (op_args.h), and a visitor, which lists the pointers inside. The emulated
 * device's memory check, its stream queues, the cost model, and SLP (which substitutes device addresses for the model's
 * weights) share that one list. */
#include "base/ops.h"
#include "gpu/op_args.h"

/* The operations that one consists of: those of an OP_JOIN, OP_CHAIN or OP_EPILOGUE, else itself. */
int op_parts(enum op_code code, const union op_args *a);
const union op_args *op_part(enum op_code code, const union op_args *a, int i, enum op_code *part);
const char *op_name(enum op_code c);
size_t op_size(enum op_code c);                            /* sizeof its argument struct */
size_t op_numbers(enum op_code c, const union op_args *a); /* a * b * c of its row */

/* An executor that takes operations as data: op_exec_init points base.ops at a table whose entries all call run. */
struct op_exec {
    struct exec base;
    struct ops table;
    /* a: only the struct of `code` is readable */
    int (*run)(struct op_exec *x, enum op_code code, const union op_args *a);
};
void op_exec_init(struct op_exec *x, const char *name,
                  int (*run)(struct op_exec *, enum op_code, const union op_args *), const _Atomic int *cancel);
/* Runs an operation on an executor made by op_exec_init. */
int op_run(struct exec *x, enum op_code code, const void *args);

enum visit_kind {
    VISIT_IN,
    VISIT_OUT,     /* activations; OUT may also be read */
    VISIT_CONST,   /* weights and tables: never written */
    VISIT_KV,      /* a plane of the KV cache, rows 0 .. the last one used */
    VISIT_COUNTER, /* the counter of op_norm */
};
/* Calls fn for each non-NULL pointer in a; fn may change it. Stops at the first non-zero result and returns it.
 * Does not visit op_experts.experts: the caller owns that array. */
typedef int (*op_visit_fn)(void *ctx, void **p, size_t bytes, enum visit_kind kind);
int op_visit(enum op_code code, union op_args *a, op_visit_fn fn, void *ctx);
int op_visit_mat(struct mat *m, op_visit_fn fn, void *ctx);
int op_visit_expert(struct expert *x, op_visit_fn fn, void *ctx);
