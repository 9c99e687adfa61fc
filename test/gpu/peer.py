#!/usr/bin/env python3
"""What the torch of a card's machine makes of the shapes that first-light measures: attention of whole prompts (cuDNN's kernel and FlashAttention), experts
as grouped products in BF16, and dense products. Random values; medians of five runs. Prints rows of a Markdown table; what this torch lacks says SKIPPED."""
import statistics
import sys

import torch
import torch.nn.functional as F

HEADS, KV_HEADS, DIM = 32, 4, 128
EXPERTS, ROWS, INTER, HIDDEN = 128, 500, 768, 2048


def seconds(run):
    run()  # one-time setup
    took = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        took.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(took)


def row(what, flops, run):
    try:
        took = seconds(run)
        print(f"| {what} | {flops / took * 1e-12:.1f} TFLOP/s, {took * 1e3:.3f} ms |", flush=True)
    except Exception as why:  # a backend that refuses the shape, or a function that this torch does not have
        print(f"| {what} | SKIPPED: {type(why).__name__}: {str(why).splitlines()[0][:120] if str(why) else ''} |", flush=True)
    torch.cuda.empty_cache()


def attention(n):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def random(heads):
        return torch.randn(1, heads, n, DIM, device="cuda", dtype=torch.bfloat16)

    q, k, v = random(HEADS), random(KV_HEADS), random(KV_HEADS)
    for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FlashAttention", SDPBackend.FLASH_ATTENTION)):

        def run():
            with sdpa_kernel(backend):
                F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        row(f"attention of {n} tokens, 32 heads over 4, {name}", 2.0 * n * n * HEADS * DIM, run)


def experts(rows):
    x = torch.randn(EXPERTS * rows, HIDDEN, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(EXPERTS, HIDDEN, INTER, device="cuda", dtype=torch.bfloat16)
    ends = torch.arange(1, EXPERTS + 1, device="cuda", dtype=torch.int32) * rows
    row(f"128 experts of 768 x 2,048, {rows} rows each, BF16", 2.0 * EXPERTS * rows * HIDDEN * INTER, lambda: torch._grouped_mm(x, w, offs=ends))


def dense(rows, n=7168, m=2048):
    x = torch.randn(rows, m, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(n, m, device="cuda", dtype=torch.bfloat16)
    row(f"7,168 x 2,048 by {rows} rows, BF16", 2.0 * rows * n * m, lambda: x @ w.T)


if not torch.cuda.is_available():
    sys.exit("no card")
print(f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}\n\n| what | speed |\n|---|---|")
for tokens in (2048, 8192, 32768):
    attention(tokens)
for each in (32, 128, ROWS):
    experts(each)
for each in (1024, 4096):
    dense(each)
