#!/usr/bin/env python3
"""Trains ember, from nothing or from a published checkpoint, and writes its checkpoint directory: one command does all.

    python3 -m venv venv && venv/bin/pip install torch tokenizers safetensors numpy
    venv/bin/python training/ember/train.py --work scratch
    venv/bin/python training/ember/train.py --work scratch --from engine/ember/model     (after a change of the text)

Steps: check that no held-out question is in the training text, train the tokenizer, train the model (the last stretch
with the weights as FP8 will store them), export the checkpoint that is best on corpus/dev.txt, and score it on
corpus/test.txt. With --from the tokenizer and the first weights are those of a published checkpoint, and a short run at
a lower rate teaches what changed; all topics take part, so that none is forgotten. A run that was interrupted goes on
with --resume. The same seed, options, torch and processor give the same model.
"""

import argparse
import importlib
import json
import math
import os
import random
import subprocess
import sys
import time


def require_packages():
    missing = []
    for name in ("torch", "tokenizers", "safetensors", "numpy"):
        try:
            importlib.import_module(name)
        except ImportError as e:
            missing.append(f"{name} ({e})")
    if missing:
        sys.exit(f"missing: {', '.join(missing)}\ninstall torch tokenizers safetensors numpy in a virtual environment")


# Threads that wait should sleep (other programs run too), and each shape of matrix is prepared only once.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
require_packages()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import corpus  # noqa: E402
import evaluate  # noqa: E402
import export  # noqa: E402
import scope  # noqa: E402
import vocabulary  # noqa: E402
from network import Ember  # noqa: E402

TAIL = 6  # tokens kept of an answer that is cut short: as many as tell all answers apart
STATE = "state.pt"
LENGTH = {False: 75000, True: 18000}  # conversations, from nothing and with --from
RATE = {False: 2e-3, True: 8e-4}  # peak learning rate, likewise
CUT = {False: 0.6, True: 0.95}  # share of the conversations whose last answer is cut short, likewise
LATE = {False: 1.0, True: 0.2}  # what an answer's tokens after the first TAIL weigh, likewise: they follow from these
CUT_WORDS = 0.12  # share of the questions in which a word or two is cut into other tokens
HARD = 5  # how much oftener, with --from, a wording is drawn of whose answer the published checkpoint is not sure at all
WINDOW = 4096  # conversations that are sorted by length together


def options():
    formatter = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=formatter)
    parser.add_argument("--out", default=evaluate.DEFAULT, help="checkpoint directory to write")
    parser.add_argument("--work", required=True, help="scratch directory for training state")
    parser.add_argument("--from", dest="start", metavar="DIR", help="checkpoint directory to begin with, instead of from nothing")
    parser.add_argument("--resume", action="store_true", help="go on from the state in --work")
    parser.add_argument("--examples", type=int, help=f"conversations to train on ({LENGTH[False]}; with --from {LENGTH[True]})")
    parser.add_argument("--minutes", type=float, default=0, help="shrink --examples to train about this long")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vocab", type=int, default=3072)
    parser.add_argument("--batch", type=int, default=2048, help="tokens of a step, padding included")
    parser.add_argument("--rate", type=float, help=f"peak learning rate ({RATE[False]}; with --from {RATE[True]})")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--decay", type=float, default=0.05, help="weight decay")
    parser.add_argument("--quantised", type=float, default=0.12, help="last share of the steps, with FP8 weights")
    parser.add_argument("--every", type=int, default=200, help="steps between evaluations and saved states")
    args = parser.parse_args()
    args.examples = args.examples or LENGTH[bool(args.start)]
    args.rate = args.rate or RATE[bool(args.start)]
    return args


def train_tokenizer(topics, conversations, size):
    """On what is written by hand, and on a sample of what the grammar makes of it."""
    texts = [t.answer for t in topics.values()] * 8 + list(corpus.SYSTEM_TEXTS)
    texts += [text for turns in conversations[:20000] for role, text in turns if role == "user"]
    return vocabulary.train(texts, size)


def pieces(text, rng):
    """Cuts one or two words, so that a word that is strange, and falls into parts, is not strange altogether."""
    inside = [i for i in range(1, len(text)) if text[i - 1].isalpha() and text[i].isalpha()]
    at = [0, *sorted(rng.sample(inside, min(len(inside), rng.randint(1, 2)))), len(text)]
    return [text[a:b] for a, b in zip(at, at[1:])]


def tokenised(conversations, tokenizer, rng=None):
    """[(ids, marks)], encoding each distinct text once; with `rng` words of some questions are cut."""
    texts = {text: [text] for turns in conversations for _, text in turns}
    for text in {text: None for turns in conversations for role, text in turns if role == "user"} if rng else ():
        if rng.random() < CUT_WORDS:
            texts[text] = pieces(text, rng)
    parts = list({part: None for split in texts.values() for part in split})
    ids = dict(zip(parts, (e.ids for e in tokenizer.encode_batch(parts, add_special_tokens=False))))
    return [vocabulary.render(turns, lambda t: [i for part in texts[t] for i in ids[part]]) for turns in conversations]


def cut_short(ids, marks):
    start = len(ids) - 1 - ids[::-1].index(vocabulary.ASSISTANT_ID)
    return ids[: start + 1 + TAIL], marks[: start + 1 + TAIL]


def rounded(width):
    """Few different widths, since matrix libraries prepare a kernel for each new shape."""
    return -(-width // 8) * 8 if width <= 64 else -(-width // 32) * 32


def rows_of(width, budget):
    return max(1, budget // width)


def batches(examples, budget, rng, cut):
    """Lists of examples of similar length, whose padded size is about `budget` tokens."""
    out = []
    for at in range(0, len(examples), WINDOW):
        window = [cut_short(*e) if rng.random() < cut else e for e in examples[at : at + WINDOW]]
        window.sort(key=lambda e: len(e[0]))
        made, batch = [], []
        for example in window:
            batch.append(example)
            if len(batch) >= rows_of(rounded(len(example[0])), budget):
                made.append(batch)
                batch = []
        if batch:
            made.append(batch)
        rng.shuffle(made)
        out += made
    return out


def padded(batch):
    width = rounded(max(len(ids) for ids, _ in batch))
    ids = torch.tensor([ids + [vocabulary.PAD_ID] * (width - len(ids)) for ids, _ in batch])
    marks = torch.tensor([marks + [-1] * (width - len(marks)) for _, marks in batch])
    return ids, marks


def answer_weights(marks, late):
    """marks [B, T] -> what each token counts: 1 for the first TAIL of an answer, `late` for the rest, 0 for what is no answer."""
    inside = marks == 1
    count = inside.cumsum(1)
    place = count - count.masked_fill(inside, 0).cummax(1).values
    return inside * torch.where(place > TAIL, late, 1.0)


def loss_of(model, batch, step, late=1.0):
    """Mean loss over answer tokens; every fourth step questions count a little, every other one the MTP layer."""
    ids, marks = padded(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        raw, normed = model.hidden(ids)
        counts = answer_weights(marks, late)
        weight = counts[:, 1:].clone()
        if step % 4 == 0:
            weight += 0.2 * (marks[:, 1:] == 0).float()
        loss = weighted_loss(model, normed[:, :-1], ids[:, 1:], weight)
        if step % 2 == 0 and ids.shape[1] > 2:
            # Programs differ on whether h(t) is taken before or after the final norm: the layer learns both.
            state = model.predicted(raw if step % 4 == 0 else normed, ids)
            loss = loss + 0.2 * weighted_loss(model, state[:, :-1], ids[:, 2:], counts[:, 2:])
    return loss


def weighted_loss(model, state, targets, weight):
    at = weight.flatten().nonzero()[:, 0]
    at = F.pad(at, (0, -len(at) % 256))  # repeats position 0, which is never an answer
    weight = weight.flatten()[at]
    logits = model.lm_head(state.flatten(0, 1).index_select(0, at))
    losses = F.cross_entropy(logits.float(), targets.flatten()[at], reduction="none")
    return (losses * weight).sum() / weight.sum()


@torch.no_grad()
def exact_share(model, examples):
    """Share of the questions whose canonical answer greedy decoding gives, token for token."""
    model.eval()
    right = 0
    for at in range(0, len(examples), 64):
        ids, marks = padded(examples[at : at + 64])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            best = model(ids)[:, :-1].argmax(-1)
        right += ((best == ids[:, 1:]) | (marks[:, 1:] != 1)).all(dim=1).sum().item()
    model.train()
    return right / len(examples)


@torch.no_grad()
def draw_hard_oftener(directory, topics):
    """Weighs each wording by how little sure the published checkpoint is of the answer's first tokens."""
    model, tokenizer = export.read(directory)
    model.eval()
    items = [(topic, n, q) for topic in topics.values() for n, q in enumerate(topic.plain())]
    examples = tokenised([[("user", q), ("assistant", topic.answer)] for topic, _, q in items], tokenizer)
    examples = [cut_short(*e) for e in examples]
    for topic in topics.values():
        topic.shares = [0.0] * len(topic.plain())
    order = sorted(range(len(items)), key=lambda i: len(examples[i][0]))
    for at in range(0, len(order), 128):
        part = order[at : at + 128]
        ids, marks = padded([examples[i] for i in part])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            chances = model(ids)[:, :-1].float().log_softmax(-1)
        chances = chances.gather(-1, ids[:, 1:, None])[..., 0].masked_fill(marks[:, 1:] != 1, 0.0)
        for i, sure in zip(part, chances.sum(1).exp().tolist()):
            topic, n, _ = items[i]
            topic.shares[n] = 1 + (HARD - 1) * (1 - sure)
    known = sum((HARD - share) / (HARD - 1) for topic in topics.values() for share in topic.shares)
    print(f"{len(items)} wordings, known before: {known / len(items):.3f}", flush=True)


class Run:
    """The state of a training run, which can be saved and taken up again."""

    def __init__(self, args, tokenizer, examples, total):
        self.args, self.tokenizer, self.examples, self.total = args, tokenizer, examples, total
        torch.manual_seed(args.seed)
        self.model = export.read(args.start)[0] if args.start else Ember(export.config(tokenizer.get_vocab_size()))
        self.model.set_dropout(args.dropout)
        matrices = [p for p in self.model.parameters() if p.dim() > 1]
        vectors = [p for p in self.model.parameters() if p.dim() == 1]
        groups = [{"params": matrices, "weight_decay": args.decay}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.98), eps=1e-9, fused=True)
        self.step, self.best = 0, -1.0
        self.path = os.path.join(args.work, STATE)

    def quantising(self):
        return self.step >= self.total * (1 - self.args.quantised)

    def rate(self):
        warm = min(1.0, (self.step + 1) / min(150, self.total / 10))
        return self.args.rate * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * self.step / self.total)))

    def advance(self, batch):
        self.model.set_quantise(self.quantising())
        rate = self.rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(self.model, batch, self.step, LATE[bool(self.args.start)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for router in self.model.routers():
            if router.load.sum() > 0:
                router.balance(2e-3 * rate / self.args.rate)
        self.step += 1
        return loss.item()

    def save(self):
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        state |= {"step": self.step, "best": self.best, "examples": self.examples}
        torch.save(state, self.path + ".new")
        os.replace(self.path + ".new", self.path)

    def resume(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.best = state["step"], state["best"]

    def keep_if_best(self, dev):
        """Judged with FP8 weights, since these are published."""
        self.model.set_quantise(True)
        share = exact_share(self.model, dev)
        if share >= self.best:
            self.best = share
            export.write(self.args.out, self.model, self.tokenizer)
        return share


def measured_examples(args, tokenizer, data):
    """How many examples --minutes allow, from a few steps of a run that is thrown away."""
    run = Run(args, tokenizer, 0, total=10**6)
    plan = batches(data[:WINDOW], args.batch, random.Random(0), CUT[bool(args.start)])[:40]
    for batch in plan[:20]:
        run.advance(batch)
    start = time.monotonic()
    for batch in plan[20:]:
        run.advance(batch)
    per_example = (time.monotonic() - start) / sum(len(b) for b in plan[20:])
    return min(len(data), int(args.minutes * 60 / per_example))


def main():
    args = options()
    torch.set_num_threads(args.threads)
    os.makedirs(args.work, exist_ok=True)
    topics = corpus.load_topics()
    if args.start:
        draw_hard_oftener(args.start, topics)
    conversations = corpus.conversations(args.examples, args.seed, topics)
    held_out = {name: corpus.load_questions(name) for name in corpus.HELD_OUT}
    count = evaluate.check([q for part in held_out.values() for _, q in part], topics, conversations)
    print(f"{len(topics)} topics, {args.examples} conversations; no held-out question in {count} texts", flush=True)

    tokenizer = vocabulary.load(args.start) if args.start else train_tokenizer(topics, conversations, args.vocab)
    data = tokenised(conversations, tokenizer, random.Random(args.seed))
    dev = tokenised([[("user", q), ("assistant", topics[name].answer)] for name, q in held_out["dev.txt"]], tokenizer)
    state_path = os.path.join(args.work, STATE)
    state = torch.load(state_path) if args.resume and os.path.exists(state_path) else None
    if state:
        data = data[: state["examples"]]
    elif args.minutes:
        data = data[: measured_examples(args, tokenizer, data)]
    plan = batches(data, args.batch, random.Random(args.seed), CUT[bool(args.start)])
    run = Run(args, tokenizer, len(data), len(plan))
    if state:
        run.resume(state)
    tokens = sum(len(ids) for batch in plan for ids, _ in batch)
    parameters = sum(p.numel() for p in run.model.parameters())
    print(f"{parameters / 1e6:.1f} M parameters, {tokens / 1e6:.2f} M tokens, {len(plan)} steps", flush=True)

    run.model.train()
    start, first, running = time.monotonic(), run.step, None
    for batch in plan[first:]:
        loss = run.advance(batch)
        running = loss if running is None else 0.98 * running + 0.02 * loss
        if run.step % 50 == 0:
            pace = (time.monotonic() - start) / (run.step - first)
            left = pace * (run.total - run.step) / 60
            print(f"step {run.step} loss {running:.4f} {pace:.3f} s/step, {left:.0f} min left", flush=True)
        if run.step % args.every == 0 or run.step == run.total:
            print(f"step {run.step} dev {run.keep_if_best(dev):.3f} best {run.best:.3f}", flush=True)
            run.save()
    seconds = time.monotonic() - start
    with open(os.path.join(args.work, "training.json"), "w", encoding="utf-8") as f:
        json.dump({"seconds": seconds, "steps": run.step - first, "tokens": tokens, "dev": run.best}, f)
    print(f"trained in {seconds / 60:.1f} minutes", flush=True)
    subprocess.run([sys.executable, scope.__file__, "--out", os.path.join(args.out, "scope.json")], check=True)
    subprocess.run([sys.executable, evaluate.__file__, args.out, "--threads", str(args.threads)], check=True)


if __name__ == "__main__":
    main()
