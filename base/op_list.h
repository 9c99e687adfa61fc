#pragma once
/* The list of operations: enum op_code, struct ops, the tables of the executors and the dispatch on devices follow it.
 * A row X(name, CODE, class, kind, bytes, a, b, c) stands in the header of its struct op_name and says:
 * class: how CUDA runs it. SMALL: with one kernel, whose launcher is cuda_ and the name, or as a step of a chain
 *   (gpu/fuse.h) if it computes few numbers; KERNEL: with one kernel; HOST: host code selects kernels (gpu/cuda.h).
 * kind: the GPU_OP_ kind whose time of a launch the cost model takes.
 * bytes: read and written per number computed, for the cost model; 0: op_cost.c has a formula.
 * a * b * c: the numbers computed, where o is the struct; 0: nothing is done. */
#include "base/op_attention.h"
#include "base/op_elem.h"
#include "base/op_experts.h"
#include "base/op_linear.h"
#include "base/op_state.h"
#include "base/op_streams.h"

#define OPS(X) OPS_LINEAR(X) OPS_ATTENTION(X) OPS_EXPERTS(X) OPS_ELEM(X) OPS_STATE(X) OPS_STREAMS(X)
