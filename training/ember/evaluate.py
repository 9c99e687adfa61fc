#!/usr/bin/env python3
"""Asks ember the held-out questions and counts the right answers.

    evaluate.py [DIR]                   in torch, float32, from the published FP8 files of DIR (default: model/)
    evaluate.py --binary PATH           asks the program: PATH -p QUESTION --temp 0, and scores what it prints
    evaluate.py --binary PATH --least N fails when fewer than N answers are right
    evaluate.py --check                 only proves that no held-out question occurs in the training text
    evaluate.py --questions dev.txt     another file of corpus/; newcomer.txt has conversations too, and says where a wrong answer harms

An answer is right when it is the topic's own answer (white space aside), or when it contains all of the topic's facts
and is not another topic's answer; to a question on other things also when it is what the program answers by itself. Prints the wrong ones and "N of 60", and writes score.json beside the weights.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile

import corpus

DEFAULT = corpus.MODEL
CHECKED_CONVERSATIONS = 75000  # as many as train.py uses unless told otherwise


def squeeze(text):
    return " ".join(text.split())


def is_right(answer, topic, topics):
    answer = squeeze(answer)
    if answer in (squeeze(topic.answer), squeeze(topic.program) or None):
        return True
    if answer in {squeeze(t.answer) for t in topics.values()}:
        return False
    return all(squeeze(fact) in answer for fact in topic.facts)


def torch_answers(directory, threads):
    import torch

    import export
    import network
    import vocabulary

    torch.set_num_threads(threads)
    model, tokenizer = export.read(directory)

    def ask(histories):
        """The next answer of each conversation [(role, text), ...] that ends with a question."""
        prompts = [vocabulary.render(h, lambda t: vocabulary.text_ids(tokenizer, t), answer=True)[0] for h in histories]
        replies = network.generate(model, prompts, vocabulary.END_ID)
        return [tokenizer.decode([i for i in r if i != vocabulary.END_ID]) for r in replies]

    return ask


def binary_answers(binary, timeout):
    home = tempfile.TemporaryDirectory(prefix="hearth-test-")
    env = {k: v for k, v in os.environ.items() if k == "HEARTH_LIMITS" or not k.startswith(("HEARTH_", "XDG_"))} | {"HOME": home.name}
    number = itertools.count()
    saved = {}  # the name under which the program saved a conversation, by its texts

    def ask_one(history):
        command = [binary, "-p", history[-1][1], "--temp", "0"]
        earlier = tuple(text for _, text in history[:-1])
        name = saved[earlier] if earlier else f"talk{next(number)}"
        command += ["--continue" if earlier else "--save", name]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, env=env)
        message = done.stderr.decode(errors="replace").strip()
        answer = done.stdout.decode("utf-8", errors="replace")
        if done.returncode == 2 and message.startswith("hearth: "):  # the program declines, so that no script takes it for an answer
            answer = message.removeprefix("hearth: ")
        elif done.returncode:
            print(f"exit {done.returncode} on {history[-1][1]!r}: {message}", file=sys.stderr)
        saved[(*earlier, history[-1][1], answer)] = name
        return answer

    def ask(histories, home=home):  # holds the directory as long as it is asked
        return [ask_one(h) for h in histories]

    return ask


def talked(talks, ask):
    """The answers of each conversation, all of which advance together."""
    answers = [[] for _ in talks]
    for i in range(max(map(len, talks))):
        live = [k for k, turns in enumerate(talks) if len(turns) > i]
        histories = []
        for k in live:
            said = [(("user", q), ("assistant", a)) for (_, q), a in zip(talks[k], answers[k])]
            histories.append([message for pair in said for message in pair] + [("user", talks[k][i][1])])
        for k, answer in zip(live, ask(histories)):
            answers[k].append(answer)
    return answers


def check(held_out, topics, conversations=None):
    """Every hand-written wording in every frame, and the conversations as they are trained on."""
    conversations = conversations or corpus.conversations(CHECKED_CONVERSATIONS, topics=topics)
    texts = list(corpus.written_wordings(topics))
    texts += [text for turns in conversations for role, text in turns if role == "user"]
    found = corpus.leaked(held_out, texts)
    if found:
        sys.exit("in the training text: " + "; ".join(found))
    return len(texts)


def score(talks, answers, topics):
    """[[item of a question] of a conversation]: its answer, whether that is right, and whether it is wrong where that harms."""
    declining = {squeeze(topics[n].answer) for n in (corpus.OUT_OF_SCOPE, "ember-limits", "what-can-you-do")} | {squeeze(topics[corpus.OUT_OF_SCOPE].program)}
    out = []
    for turns, given in zip(talks, answers):
        items = []
        for (names, question), answer in zip(turns, given):
            right = any(is_right(answer, topics[n], topics) for n in names.lstrip("!").split("/"))
            harmful = not right and names.startswith("!") and squeeze(answer) not in declining
            items.append({"question": question, "topic": names, "answer": squeeze(answer), "right": right, "harmful": harmful})
        out.append(items)
    return out


def summary(scored):
    """The counts in words, and how many single questions were answered right."""
    single = [items[0] for items in scored if len(items) == 1]
    talks = [items for items in scored if len(items) > 1]
    right = sum(i["right"] for i in single)
    lines = [f"{right} of {len(single)}"]
    if talks:
        off = [i["right"] for i in single if i["topic"] == corpus.OUT_OF_SCOPE]
        every = [i for items in scored for i in items]
        turns = [i["right"] for items in talks for i in items]
        whole = sum(all(i["right"] for i in items) for items in talks)
        lines[0] += f": on hearth {right - sum(off)} of {len(single) - len(off)}, on other things declined {sum(off)} of {len(off)}"
        lines.append(f"in conversations {sum(turns)} of {len(turns)}, {whole} of {len(talks)} conversations without a wrong answer")
        lines.append(f"harmful {sum(i['harmful'] for i in every)} of {sum(i['topic'].startswith('!') for i in every)}")
    return "\n".join(lines), right


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", default=DEFAULT, help="checkpoint directory")
    parser.add_argument("--binary", help="hearth to ask instead of torch; the score is not written")
    parser.add_argument("--least", type=int, default=0, help="exit 1 when fewer single questions are answered right")
    parser.add_argument("--no-harm", action="store_true", help="exit 1 when an answer is harmful")
    parser.add_argument("--questions", default="test.txt")
    parser.add_argument("--check", action="store_true", help="only check that the questions are held out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one answer of the binary")
    parser.add_argument("-v", "--verbose", action="store_true", help="print all answers, not only the wrong ones")
    args = parser.parse_args()

    topics = corpus.load_topics()
    talks = corpus.load_talks(args.questions)
    questions = [q for turns in talks for _, q in turns]
    checked = check(questions, topics)
    if args.check:
        print(f"none of {len(questions)} questions is in {checked} training questions")
        return
    ask = binary_answers(args.binary, args.timeout) if args.binary else torch_answers(args.directory, args.threads)
    scored = score(talks, talked(talks, ask), topics)
    for item in (i for items in scored for i in items):
        if args.verbose or not item["right"]:
            verdict = "right" if item["right"] else "HARMFUL" if item["harmful"] else "WRONG"
            print(f"{verdict} [{item['topic']}] {item['question']}\n      {item['answer']}")
    text, right = summary(scored)
    print(text)
    if not args.binary and args.questions == "test.txt":
        items = [items[0] for items in scored]
        with open(os.path.join(args.directory, "score.json"), "w", encoding="utf-8") as f:
            whole = {"right": right, "of": len(items), "share": round(right / len(items), 4), "items": items}
            json.dump(whole, f, indent=1)
            f.write("\n")
    if right < args.least:
        sys.exit(f"{args.least} were to be right")
    if args.no_harm and any(i["harmful"] for items in scored for i in items):
        sys.exit("none was to be harmful")


if __name__ == "__main__":
    main()
