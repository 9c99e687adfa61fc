#!/usr/bin/env python3
"""Predictions of virtual time beside what was published; writes foresight.md.

    foresight.py BUILD > foresight.md

This machine, measured and predicted: `BUILD/test/bench/foresight here DIR ROUNDS [GPUS [THREADS]]`.
BUILD has test/bench/foresight. Each published figure stands beside what the preset of its machine says; where that is off by more
than 15 %, beside what it says with the cause of it put in, if there is one that can be."""
import argparse
import os
import subprocess
import sys

A1, A2, V3, KIMI = "paper-a-1", "paper-a-2", "deepseek-v3", "kimi-k2"
# Paper A's program: whole layers of experts go at what table 1 has of its standard kernel. The 947 GB/s beside it are a single matrix's, alone.
PROGRAM = "gemv=678"
# Nor does it say at what rate its card multiplies; 0.8 of the vendor's peak is the preset's. At this one 24K take the 20 s of its section 4.5.
MATRICES = "matrices=190"
PEAKS = "rates are the vendor's peaks (16 and 32 GB/s over the link, 65 and 121 TFLOP/s), with no framework and no stall. With the rate of the link at which the first row would come out"

# what, published (tokens/s where not said), the question, how many tokens its seconds stand for, why it may be off, the same with that put in
WORLD = [
    ("A, DeepSeek-R1 FP8, one session, short", 21.5, f"step {A1} {V3} hybrid 1 100 {PROGRAM}", 1, "", ""),
    ("A, the same at 32K", 20, f"step {A1} {V3} hybrid 1 32768 {PROGRAM}", 1, "", ""),
    ("A, Kimi-K2 FP8, one session", 22.4, f"step {A1} {KIMI} hybrid 1 100 {PROGRAM}", 1, "", ""),
    ("A, two sessions, dual batch", 33.6, f"step {A1} {V3} dual 2 100 {PROGRAM}", 2, "", ""),
    ("A, the same at 32K", 31.1, f"step {A1} {V3} dual 2 32768 {PROGRAM}", 2, "", ""),
    ("A, four sessions (1.58 x 21.5)", 34.0, f"step {A1} {V3} dual 4 100 {PROGRAM}", 4, "", ""),
    ("A, six sessions (1.61 x 21.5)", 34.6, f"step {A1} {V3} dual 6 100 {PROGRAM}", 6, "", ""),
    ("A, DeepSeek-R1 Q4_K_M, 1K to 8K", 28, f"step {A1} {V3} hybrid 1 4096 experts=Q4_K_M {PROGRAM}", 1, "", ""),
    ("A, the same at 128K", 19, f"step {A1} {V3} hybrid 1 131072 experts=Q4_K_M {PROGRAM}", 1, "", ""),
    ("A, SLP, 24K in about 20 s (its section 4.5; what the rate of its matrices is from)", 24576 / 20, f"prefill {A1} {V3} slp 24576 {MATRICES}", 24576, "", ""),
    ("A, SLP, 32K within 30 s", 32768 / 30, f"prefill {A1} {V3} slp 32768 {MATRICES}", 32768, "", ""),
    ("A, SLP, the most (at a length that is not said; here 20K)", 1200, f"prefill {A1} {V3} slp 20480 {MATRICES}", 20480, "", ""),
    ("A, DSLP, 45K within 30 s", 45056 / 30, f"prefill {A2} {V3} dslp 45056 {MATRICES}", 45056, "", ""),
    ("A, DSLP, the most (here 32K)", 1800, f"prefill {A2} {V3} dslp 32768 {MATRICES}", 32768, "", ""),
    ("A, DSLP at 20K, 1.64 times SLP's most", 1.64 * 1200, f"prefill {A2} {V3} dslp 20480 {MATRICES}", 20480,
     "by its Figure 3 a layer takes 0.79 of one card's with standard expert parallelism, 0.31 of that for passing rows, and 0.82 of that with SmallEP: which still takes "
     "0.79 * (0.82 - 0.69) = 0.10 of one card's layer that computes nothing; ours overlaps it (NOTES.md, SmallEP). With that", ("add", 0.79 * (0.82 - 0.69), f"prefill {A1} {V3} slp 20480 {MATRICES}")),
    ("B, T4, MTBench padded (418 + 128), its policy 504 = 14 x 36", 30.12, "paged paper-b-t4 mixtral-8x7b 504 36 418 128", 1, PEAKS, "link=6.6"),
    ("B, the same, the policy found", 30.12, "paged paper-b-t4 mixtral-8x7b 0 0 418 128", 1, PEAKS, ""),
    ("B, T4, synthetic reasoning (256 + 50), its policy 936 = 26 x 36", 26.349, "paged paper-b-t4 mixtral-8x7b 936 36 256 50", 1, PEAKS, "link=6.6"),
    ("B, the same, the policy found", 26.349, "paged paper-b-t4 mixtral-8x7b 0 0 256 50", 1, PEAKS, ""),
    ("B, T4, summarization (1,984 + 64), its policy 76 = 19 x 4", 4.52, "paged paper-b-t4 mixtral-8x7b 76 4 1984 64", 1, PEAKS, "link=6.6"),
    ("B, the same, the policy found", 4.52, "paged paper-b-t4 mixtral-8x7b 0 0 1984 64", 1, PEAKS, ""),
    ("B, L4, synthetic reasoning, its policy 1,500 = 15 x 100", 105.29, "paged paper-b-l4 mixtral-8x7b 1500 100 256 50", 1, PEAKS, ""),
    ("B, the same, the policy found", 105.29, "paged paper-b-l4 mixtral-8x7b 0 0 256 50", 1, PEAKS, ""),
    ("B, L4, summarization, its policy 288 = 36 x 8", 12.393, "paged paper-b-l4 mixtral-8x7b 288 8 1984 64", 1, PEAKS, ""),
    ("B, the same, the policy found", 12.393, "paged paper-b-l4 mixtral-8x7b 0 0 1984 64", 1, PEAKS, ""),
]
# Paper B, section 5.3: four T4 over two, at several lengths of answers. Its tokens/s are bars without numbers.
SCALING = [
    ("B, Mixtral 8x22B, padded (418 + 128)", "2.77 to 3.38", "mixtral-8x22b 0 0 418 128",
     "theirs grows faster than the number of cards, since two leave little room beside the weights and a batch is bound by that; here host memory bounds it with two already, and what doubles are the links"),
    ("B, DBRX (77 + 128)", "2.1 to 2.8", "dbrx 0 0 77 128",
     "the same; and four links take up to 64 of the 100 GB/s that host memory has by the preset, which attention reads from, too. Tensors parted could be a third as fast again there"),
]
# Said, and not asked: what it would take.
NOT_ASKED = [
    ("A, a step beside a prompt", "at most 15 % longer", "2.9 to 4.7 %: host memory is shared by bandwidth alone (NOTES.md, Steps beside a prompt)"),
    ("A, a prompt beside two answers", "TTFT 18 % longer", "not predicted: the link's rate is not taken down by what the processor reads"),
    ("C, Figures 6 to 9", "2.1 to 2.8 times others", "not predicted: units near memory are a domain of the split alone, no step runs on them"),
    ("D, Table III", "TTFT 1.13 s, 0.11 s a token", "not predicted: the table does not say which model, and experts are not cached on a device here"),
    ("E, Figure 13, Table 4", "74 and 163 ms a token, 13 tok/s", "not predicted: a draft under Transformers in Python; no figure without it"),
]


def ask(build, lines):
    p = subprocess.run([os.path.join(build, "test", "bench", "foresight")], input="\n".join(lines) + "\n", stdout=subprocess.PIPE, text=True, check=True)
    return [float(x) for x in p.stdout.split()]


def world(build):
    first = ask(build, [w[2] for w in WORLD])
    theirs = [w[2] for w in WORLD if PROGRAM in w[2] or MATRICES in w[2]]
    ours = dict(zip(theirs, ask(build, [q.replace(PROGRAM, "").replace(MATRICES, "") for q in theirs])))
    causes = [w for w in WORLD if w[5]]
    second = {}
    for w in causes:
        if w[5][0] == "add":  # a share of what another question takes
            second[w[0] + w[2]] = first[[x[2] for x in WORLD].index(w[2])] + w[5][1] * ask(build, [w[5][2]])[0]
        else:
            second[w[0] + w[2]] = ask(build, [f"{w[2]} {w[5]}"])[0]
    print("""# Foresight

Made by `test/bench/foresight.py BUILD`: published figures beside virtual time (the engine's own steps and prefills on the preset of the machine,
`engine/sched/preset.c`), tokens/s. Nothing here ran on a card. Off: how much more is predicted than was published. Aimed at: 15 %.

Paper A's decode is predicted with experts at 678 GB/s, what its table 1 gives its standard kernel; the 947 beside that is one matrix of 14.7 MB
alone, in 15.5 us. The paper does not say which of them its engine has; with 678 one session, two, four and six, both models and both formats come out,
and nothing is fitted. Its prompts are predicted with matrices at 190 TFLOP/s, 0.45 of the card's FP8 peak: fitted to one of its figures, 24K tokens in about
20 s; the others follow. `hearth`: the same question at 947 GB/s and 335 TFLOP/s (0.8), which is what the preset has and --plan says of hearth.

| paper and figure | published | predicted | off | hearth | why, and what then | off then |
|---|---|---|---|---|---|---|""")
    for what, said, query, tokens, why, _ in WORLD:
        t, then = tokens / first[[w[2] for w in WORLD].index(query)], ""
        if what + query in second:
            then = f"{(tokens / second[what + query] / said - 1) * 100:+.0f} %"
        off = t / said - 1
        own = f"{tokens / ours[query]:.4g}" if query in ours else ""
        print(f"| {what} | {said:.4g} | {t:.4g} | {off * 100:+.0f} % | {own} | {why if abs(off) > 0.15 else ''} | {then if abs(off) > 0.15 else ''} |")
    print("\nTwo and four T4 with layers in turn (step/paged.h), the policies found, tokens/s; `one card`: what tensors parted among them could come to if it took "
          "nothing, one card with the memory, the rates and the links of all.\n\n| paper and figure | two | as one card | four | as one card | four over two | published | why |"
          "\n|---|---|---|---|---|---|---|---|")
    for what, said, query, why in SCALING:
        two, two_one, four, four_one = (1 / t for t in ask(build, [f"paged paper-b-{n}t4 {query}{one}" for n in (2, 4) for one in ("", " one")]))
        print(f"| {what} | {two:.4g} | {two_one:.4g} | {four:.4g} | {four_one:.4g} | {four / two:.2f} | {said} | {why} |")
    print("\n| said | figure | here |\n|---|---|---|")
    for row in NOT_ASKED:
        print("| " + " | ".join(row) + " |")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("build")
    world(p.parse_args().build)


if __name__ == "__main__":
    sys.exit(main())
