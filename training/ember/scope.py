#!/usr/bin/env python3
"""Whether a question is about hearth: what the program asks itself before it lets ember answer. Learns it, and says how well.

    scope.py                writes model/scope.json from the training text alone: a minute on one core, the same file each time
    scope.py --roc          only judges: how many questions of corpus/ the published file refuses, on hearth and on other things
    scope.py --ask TEXT     the score of a question, and what each word gave to it

A sum: a weight for each word that wordings on hearth have at least twice, one for any other word, one for numbers, and small hashed
weights for pairs of neighbours and for the letters of words that are not known. engine/ember/topic.c computes the same in whole numbers.
In training a word is now and then taken for unknown, the rarer the oftener, so that what is not known tells its due.
"""

import argparse
import collections
import itertools
import json
import os
import random
import re

import corpus
from phrases import DOCUMENT_REQUESTS

PATH = os.path.join(corpus.MODEL, "scope.json")
SLOTS, SCALE = 1 << 15, 32  # hashed weights; what 1 is in the file
WORD = re.compile(rb"[a-z0-9_\x80-\xff]+|[-/&]+[a-z0-9-]*")
WORDS = 64  # of a question that are looked at
LEAST = 2  # wordings that a known word occurs in
UNKNOWN, NUMBER = "?", "#"  # in the place of words that have no weight of their own
EXAMPLES, PASSES, SEEDS, RATE, DECAY = 40000, 6, 3, 0.01, 2e-5
FALSE = 0.015  # share of the development questions on hearth that may be refused: chooses the limit


def words_of(text):
    return WORD.findall(text.encode().lower())[:WORDS]


def slot(kind, text):
    """FNV-1a, folded."""
    h = 2166136261
    for byte in kind + text:
        h = (h ^ byte) * 16777619 & 0xFFFFFFFF
    return (h ^ h >> 15) & SLOTS - 1


def known_as(word, known):
    """Under which name a word has a weight: its own, that of its plural or singular, or none."""
    other = word[:-1] if word.endswith(b"s") else word + b"s"
    return word if word in known else other if other in known else None


def features(text, known, forget=None):
    """[name of a word's weight], [slots]."""
    names, slots = [], []
    for word in words_of(text):
        name = known_as(word, known)
        if name is None or forget and forget(name):
            name = NUMBER.encode() if word.isdigit() else UNKNOWN.encode()
            whole = b"<" + word + b">"
            slots += [slot(b"c", whole[i : i + 4]) for i in range(len(whole) - 3)]
        names.append(name)
    chain = [b"^", *names, b"$"]
    slots += [slot(b"b", a + b" " + b) for a, b in zip(chain, chain[1:])]
    return names, slots


class Scope:
    def __init__(self, table):
        self.table = table
        self.words = {w.encode(): v for w, v in self.table["words"].items()}

    @classmethod
    def read(cls, path=PATH):
        with open(path, encoding="utf-8") as f:
            return cls(json.load(f))

    def score(self, text):
        names, slots = features(text, self.words)
        return self.table["bias"] + sum(self.words[n] for n in names) + sum(self.table["slots"][s] for s in slots)

    def refuses(self, text, which="limit"):
        return b"hearth" not in words_of(text) and self.score(text) < self.table["limits"][which]


# ----------------------------------------------------------------------------------------------------------------------
# Learning.


def drawn(topics, count):
    """(question, whether it is on hearth), half of them, and first every wording on hearth as it stands; no held-out one among them."""
    grammar, out = corpus.Grammar(topics, 5), []
    rng = grammar.rng
    plain = [w for name, topic in topics.items() if name != corpus.OUT_OF_SCOPE for w in itertools.chain(topic.plain(), *topic.after.values())]
    short = {q for name in corpus.SCOPE_LISTS for _, q in corpus.load_questions(name)}  # "why?" is a part of too many to be told from them
    grammar.held_words |= {corpus.words_of(f" {corpus.normalise(q)} ") for q in short}
    while len(out) < count + 2 * len(plain):
        on = len(out) % 2 == 0
        name = rng.choices(grammar.names, grammar.weights)[0] if on else corpus.OUT_OF_SCOPE
        topic = topics[name]
        if on and len(out) < 2 * len(plain):
            text = plain[len(out) // 2]
        else:
            text = corpus.augment(topic.wording(rng), rng, name in corpus.SMALL_TALK)
        whole = f" {corpus.normalise(text)} "
        if corpus.words_of(whole) not in grammar.held_words and not any(h in whole for h in grammar.held_out):
            out.append((text, on))
        elif on and len(out) < 2 * len(plain):
            del plain[len(out) // 2]
    return out


def frequencies(topics):
    """In how many wordings on hearth each word occurs."""
    counts = collections.Counter()
    for name, topic in topics.items():
        if name != corpus.OUT_OF_SCOPE:
            for text in itertools.chain(topic.plain(), *topic.after.values()):
                counts.update(set(words_of(text)))
    return counts


def learn(topics, examples):
    import torch

    counts = frequencies(topics)
    known = {w: i for i, w in enumerate([UNKNOWN.encode(), NUMBER.encode(), *sorted(w for w, c in counts.items() if c >= LEAST)])}
    target = torch.tensor([float(on) for _, on in examples])
    torch.set_num_threads(1)
    weights, bias = torch.zeros(len(known) + SLOTS), 0.0
    for seed in range(SEEDS):  # sums of several are a sum again
        rng = random.Random(seed)
        table = torch.nn.EmbeddingBag(len(known) + SLOTS, 1, mode="sum")
        torch.nn.init.zeros_(table.weight)
        free = torch.zeros(1, requires_grad=True)
        optimizer = torch.optim.Adam([table.weight, free], lr=RATE)
        for _ in range(PASSES):
            rows = []
            for text, _ in examples:
                names, slots = features(text, known, lambda w: rng.random() < min(0.4, 2 / (counts[w] or 1)) + 0.02)
                rows.append([known[n] for n in names] + [len(known) + s for s in slots])
            order = list(range(len(rows)))
            rng.shuffle(order)
            for at in range(0, len(order), 256):
                batch = order[at : at + 256]
                starts = [0, *itertools.accumulate(len(rows[i]) for i in batch)][:-1]
                logits = table(torch.tensor([x for i in batch for x in rows[i]]), torch.tensor(starts))[:, 0] + free
                loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, target[batch])
                (loss + DECAY * (table.weight**2).sum()).backward()
                optimizer.step()
                optimizer.zero_grad()
        weights += table.weight.detach()[:, 0] / SEEDS
        bias += free.item() / SEEDS
    whole = [round(w * SCALE) for w in weights.tolist()]
    return {"bias": round(bias * SCALE), "words": {w.decode(): whole[i] for w, i in known.items()}, "slots": whole[len(known) :]}


# ----------------------------------------------------------------------------------------------------------------------
# How well.


def asked():
    """(list, whether it is on hearth, question) of every held-out question; a conversation's later ones belong to "LIST, later"."""
    for name in (*corpus.HELD_OUT, *corpus.SCOPE_LISTS):
        for turns in corpus.load_talks(name):
            talk = False  # whether something on hearth was asked before
            for topics, question in turns:
                on = topics.lstrip("!") != corpus.OUT_OF_SCOPE
                yield name + (", later" if talk else ""), on, question
                talk |= on


def roc(scope):
    counts = collections.defaultdict(lambda: [0, 0])
    for name, on, question in asked():
        refused = scope.refuses(question, "follow" if name.endswith(", later") else "limit")
        for of in (name, "all, later" if name.endswith(", later") else "all"):
            counts[of, on][0] += refused
            counts[of, on][1] += 1
    for name in dict.fromkeys(n for n, _ in counts):
        on, off = counts[name, True], counts[name, False]
        print(f"{name:22} on hearth refused {on[0]:3} of {on[1]:3}, on other things {off[0]:3} of {off[1]:3}")


def limits(scope):
    """By the held-out questions in even places: the others judge, and all of the last list."""
    judging = corpus.SCOPE_LISTS[-1]
    chosen = [(scope.score(q), on) for i, (name, on, q) in enumerate(asked()) if i % 2 == 0 and not name.startswith(judging) and not name.endswith(", later")]
    right = sorted(score for score, on in chosen if on)
    limit = right[int(FALSE * len(right))]
    return {
        "limit": limit,
        "follow": limit - 2 * SCALE,  # a question that follows another often names nothing
        "document": 1 + max(scope.score(request) for request in DOCUMENT_REQUESTS),  # and what is asked of a text is not about hearth
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=PATH)
    parser.add_argument("--roc", action="store_true")
    parser.add_argument("--ask", metavar="TEXT")
    args = parser.parse_args()
    topics = corpus.load_topics()
    if args.ask is None and not args.roc:
        table = learn(topics, drawn(topics, EXAMPLES))
        other = topics[corpus.OUT_OF_SCOPE]
        table["answers"] = {"other": other.program, "document": other.document}
        table["limits"] = limits(Scope(table))
        with open(args.out, "w", encoding="utf-8") as f:
            json.dump(table, f, ensure_ascii=False, separators=(",", ":"))
            f.write("\n")
    scope = Scope.read(args.out)
    if args.ask is None:
        roc(scope)
        return
    names, slots = features(args.ask, scope.words)
    print(scope.score(args.ask), "bias", scope.table["bias"], "limits", scope.table["limits"])
    print("words", [(n.decode(), scope.words[n]) for n in names], "slots", [scope.table["slots"][s] for s in slots])


if __name__ == "__main__":
    main()
