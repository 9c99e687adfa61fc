#pragma once
/* Joins operations of a stream into fewer launches. A launch costs a device some microseconds, more than most
 * operations of a decode batch: products of the same rows become one OP_JOIN, consecutive operations on few numbers one
 * OP_CHAIN. Operations wait in a window until one arrives that cannot join. One is moved before others only if neither
 * side reads or writes what the other writes, so the bits are those of one launch per operation. With `epilogues`
 * products and the chain after them become one OP_EPILOGUE. Pure: no locks, no memory. */
#include "gpu/op.h"

enum { FUSE_WINDOW = 8, FUSE_NUMBERS = 16384 /* most numbers of an operation in a chain, which one SM runs */ };
struct fuse {
    bool epilogues; /* set by the owner */
    int n;
    struct fuse_entry {
        enum op_code code; /* OP_JOIN or OP_CHAIN; all operations in entries before it come first */
        union {
            struct op_join join;
            struct op_chain chain;
        } with;
    } entry[FUSE_WINDOW];
};
/* Launches an operation. Returns 0 or its error code. */
typedef int (*fuse_launch)(void *ctx, enum op_code code, const union op_args *a);
/* Adds an operation, which may stay in the window. Launches those that must come first. Returns the first error code;
 * then the window is empty. */
int fuse_add(struct fuse *f, enum op_code code, const union op_args *a, fuse_launch launch, void *ctx);
/* Whether step i of a chain may run beside each of the steps [first, i): it neither reads nor writes what they write,
 * nor they what it writes. */
bool fuse_steps_are_apart(const struct op_chain *c, int first, int i);
int fuse_flush(struct fuse *f, fuse_launch launch, void *ctx); /* launches the window's operations */
