#!/usr/bin/env python3
"""Published speeds of other programs beside plans of the same machines and models; writes published.md. Takes some minutes.

    published.py HEARTH > published.md

Whoever published a figure measured it; hearth's is modelled. Only reports that name the CPU, its memory, the card and the format of the weights are taken. A
factor of more than 1.3 either way gets its cause, as a rate that follows from the published figure: of an answer, the bytes that the CPU read each second,
beside the peak of its memory; of a prompt, the products of its weights each second."""
import json
import subprocess
import sys
import tempfile

# As in a machine file; the peak of the memory in GB/s.
RYZEN = "channels = 2\nddr = 3200\ncores = 12\nisa = avx2\nmemory = 128G\ncard = rtx5080\npcie = 4\n", 51.2
EPYC = ("channels = 8\nddr = 2666\ncores = 64\nisa = avx2\nmemory = 512G\ncards = 1\ncard.memory = 16G\ncard.bandwidth = 224G\ncard.bf16 = 48T\npcie = 4 x8\n", 170.6)
X299 = ("channels = 4\nddr = 3200\ncores = 10\nisa = avx512\nmemory = 64G\ncards = 1\ncard.memory = 8G\ncard.bandwidth = 448G\ncard.bf16 = 40T\npcie = 3\n", 102.4)
XEON = "channels = 8\nddr = 4800\ncores = 32\nisa = avx512\nmemory = 512G\ncard = rtx4090\n", 307.2
XEONS = "sockets = 2\nchannels = 8\nddr = 4800\ncores = 32\nisa = amx\nmemory = 1024G\ncard = rtx4090\n", 614.4
KRASIS, LLAMA, KT = "Krasis, its author, 2026-02", "llama.cpp, users of llmfit, 2026-07", "KTransformers 0.2 and 0.3, its authors, 2025-02"
# Machine, its sheet, model, tokens of the prompt (0: an answer), published tokens/s, by whom; of an answer, which bytes of a token the CPU read: the share of
# routed experts, and whether it read the other weights, too.
ROWS = [
    ("Ryzen 9 5900X, 2 x DDR4-3200, RTX 5080, PCIe 4", RYZEN, "qwen3-next-80b:q4_k_m", 0, 14.9, KRASIS, (1, True)),
    ("the same", RYZEN, "qwen3-next-80b:q4_k_m", 32768, 3324, KRASIS, None),
    ("EPYC 7742, 8 x DDR4-2666, RTX 2000 Ada, PCIe 4 x8", EPYC, "qwen3-235b:q4_k_m", 0, 3.4, KRASIS, (1, True)),
    ("the same", EPYC, "qwen3-235b:q4_k_m", 16384, 289, KRASIS, None),
    ("the same", EPYC, "qwen3.5-35b:q4_k_m", 0, 15.0, KRASIS, (1, True)),
    ("the same", EPYC, "qwen3.5-35b:q4_k_m", 16384, 1374, KRASIS, None),
    ("the same", EPYC, "qwen3-next-80b:q4_k_m", 0, 15.8, KRASIS, (1, True)),
    ("i9-10900X, 4 x DDR4-3200, RTX 2080", X299, "qwen3-30b:q4_k_m", 0, 36.7, LLAMA, (36 / 48, False)),
    ("the same", X299, "gpt-oss-20b", 0, 36.4, LLAMA, (12 / 24, False)),
    ("Xeon 6454S, 8 x DDR5-4800, RTX 4090D", XEON, "deepseek-v3:q4_k_m", 0, 8.73, KT, (1, False)),
    ("two of them", XEONS, "deepseek-v3:q4_k_m", 0, 11.26, KT, (1, False)),
    ("the same", XEONS, "deepseek-v3:q4_k_m", 1024, 255.3, KT, None),
]


def run(*args):
    return json.loads(subprocess.run([sys.argv[1], *args, "--json"], stdout=subprocess.PIPE, check=True).stdout)


def plan(sheet, model):
    with tempfile.NamedTemporaryFile("w", suffix=".machine") as f:
        f.write(sheet)
        f.flush()
        return run("--plan", f.name, "--arch", model)


def main():
    print("""# Published speeds beside plans

Made by `test/bench/published.py HEARTH`. **The published column was measured by those it names; hearth's is modelled, and nothing of hearth ran on these
machines.** Tokens/s. A factor of more than 1.3 either way has its cause: of an answer, at which share of its peak their CPU read memory, where the plan
assumes 0.77, and that here the card keeps as many experts as fit; of a prompt, how many products of weights they computed each second.

| machine | model | what | published | by | plan | factor | cause |
|---|---|---|---|---|---|---|---|""")
    plans, active = {}, {m["name"]: m["active"] for m in run("--plan", "list")["models"]}
    for name, (sheet, peak), model, tokens, published, whose, reads in ROWS:
        if (sheet, model) not in plans:
            plans[sheet, model] = plan(sheet, model)
        p = plans[sheet, model]
        if tokens:
            row = next(r for r in p["prefill"] if r["tokens"] == tokens)
            got = tokens / row["modes"][row["chosen"]]
            theirs, ours = (2e-12 * active[model.split(":")[0]] * rate for rate in (published, got))
            cause = f"they compute {theirs:.3g} TFLOP/s, the plan {ours:.3g}"
        else:
            fits, got = p["fits"], p["decode"][0]["tokens_per_s"]
            read = 1e-9 * published * (fits["routed_token_bytes"] * reads[0] + (fits["token_bytes"] - fits["routed_token_bytes"]) * reads[1])
            cause = f"their CPU reads {read:.0f} GB/s, {read / peak:.2f} of the peak" + (", and has no card's help" if reads[1] else "")
        factor = got / published
        print(f"| {name} | {p['model']} | {f'prompt of {tokens:,}' if tokens else 'one answer'} | {published:.4g} | {whose} | {got:.4g} | {factor:.2f} |"
              f" {cause if not 1 / 1.3 <= factor <= 1.3 else ''} |", flush=True)
    print(f"\n{len(ROWS)} figures of {len(plans)} pairs of machine and model. All plans are faster: they are what the machine's memory and card allow with hearth's"
          "\nassumed rates, and the reports are of the programs of their day.")


if __name__ == "__main__":
    main()
