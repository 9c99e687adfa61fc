#!/usr/bin/env python3
"""Plans of common machines with models beside the bound of their memories; writes plans.md.

    plans.py HEARTH > plans.md

The bound of one answer's tokens/s uses the data sheets' peaks: a token reads its weights, of which each card holds as many bytes as it has memory, those
that every token reads first, and its chosen experts are as likely on a card as any. Host memory and cards read one after the other, since a layer's
attention precedes its experts, except the experts of a layer, which all read at once. A plan above its bound is an error."""
import json
import subprocess
import sys

DRAM = {"laptop-32": 89.6e9, "desktop-ddr5-64": 96e9, "desktop-ddr5-96": 96e9, "desktop-ddr5-192": 83.2e9, "strix-halo-128": 256e9, "threadripper-8ch": 332.8e9,
        "epyc-7002-2s": 409.6e9, "epyc-9004-12ch": 460.8e9, "epyc-9005-2s": 1228.8e9, "xeon-6-2s": 819.2e9}
CARD = {"rtx5090": 1792e9, "rtx4090": 1008e9, "rtx3090": 936e9, "h100pcie": 2039e9}
PAIRS = [("laptop-32", "qwen3-30b:q4_k_m"), ("desktop-ddr5-64", "gpt-oss-20b"), ("desktop-ddr5-64+rtx4090", "qwen3-30b"), ("desktop-ddr5-96+rtx5090", "qwen3-30b"),
         ("desktop-ddr5-96+rtx5090", "gpt-oss-120b"), ("desktop-ddr5-192+rtx5090", "glm-4.5-air"), ("desktop-ddr5-192+2xrtx3090", "qwen3-235b:q4_k_m"),
         ("strix-halo-128", "gpt-oss-120b"), ("threadripper-8ch+rtx5090", "minimax-m2"), ("epyc-9004-12ch+rtx4090", "deepseek-v3"),
         ("epyc-9005-2s+rtx5090", "kimi-k2-thinking"), ("xeon-6-2s+h100pcie", "deepseek-v3.2")]


def bound(machine, fits):
    base, _, card = machine.partition("+")
    read, routed = fits["token_bytes"], fits["routed_bytes"]
    memory, rate = sum(c["bytes"] for c in fits["cards"]), CARD[card.split("x", 1)[1] if card[:1].isdigit() else card] if card else 0
    chosen = fits["routed_token_bytes"]
    always = read - chosen
    share = min(max(memory - always, 0) / routed, 1)
    if not memory:
        return DRAM[base] / read
    on_card = min(memory, always)
    experts = max((1 - share) * chosen / DRAM[base], share * chosen / rate)
    return 1 / (on_card / rate + (always - on_card) / DRAM[base] + experts)


def main():
    print("""# Plans beside the bound of the memories

Made by `test/bench/plans.py HEARTH`. **Modelled, not measured.** One answer, tokens/s. The bound takes the peaks of the data sheets and nothing else: no
start of an operation, no hand-off, no KV cache (`plans.py` has the formula). Limit: what the plan says. The CPU is expected to read at 0.77 of
the peak and a card at 0.85, so 0.77 is the most that a plan without a card reaches.

| machine | model | bits per weight | bound | plan | ratio | limit |
|---|---|---|---|---|---|---|""")
    worst = 0
    for machine, model in PAIRS:
        p = json.loads(subprocess.run([sys.argv[1], "--plan", machine, "--arch", model, "--json"], stdout=subprocess.PIPE, check=True).stdout)
        fits, row = p["fits"], p["decode"][0]
        most = bound(machine, fits)
        worst = max(worst, row["tokens_per_s"] / most)
        bits = fits["host"]["bytes"] * 8 / fits["parameters"]
        print(f"| {machine} | {p['model']} | {bits:.1f} | {most:.4g} | {row['tokens_per_s']:.4g} | {row['tokens_per_s'] / most:.2f} | {row['limit']} |")
    if worst > 1:
        sys.exit("a plan is above its bound")


if __name__ == "__main__":
    main()
