#!/usr/bin/env python3
"""Asks ember the held-out questions and counts the right answers.

    evaluate.py [DIR]                   in torch, float32, from the published FP8 files of DIR (default: model/)
    evaluate.py --binary PATH           asks the program: PATH -p QUESTION --temp 0, and scores what it prints
    evaluate.py --binary PATH --least N fails when fewer than N answers are right
    evaluate.py --check                 only proves that no held-out question occurs in the training text
    evaluate.py --questions dev.txt     another file of corpus/

An answer is right when it is the topic's own answer (white space aside), or when it contains all of the topic's facts
and is not another topic's answer. Prints the wrong ones and "N of 60", and writes score.json beside the weights.
"""

import argparse
import json
import os
import subprocess
import sys

import corpus

DEFAULT = os.path.join(corpus.HERE, "model")
CHECKED_CONVERSATIONS = 75000  # as many as train.py uses unless told otherwise


def squeeze(text):
    return " ".join(text.split())


def is_right(answer, topic, topics):
    answer = squeeze(answer)
    if answer == squeeze(topic.answer):
        return True
    if answer in {squeeze(t.answer) for t in topics.values()}:
        return False
    return all(squeeze(fact) in answer for fact in topic.facts)


def torch_answers(directory, questions, threads):
    import torch

    import export
    import network
    import vocabulary

    torch.set_num_threads(threads)
    model, tokenizer = export.read(directory)
    prompts = [
        vocabulary.render([("user", q)], lambda t: vocabulary.text_ids(tokenizer, t), answer=True)[0] for q in questions
    ]
    replies = network.generate(model, prompts, vocabulary.END_ID)
    return [tokenizer.decode([i for i in r if i != vocabulary.END_ID]) for r in replies]


def binary_answers(binary, questions, timeout):
    answers = []
    for question in questions:
        done = subprocess.run(
            [binary, "-p", question, "--temp", "0"], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout
        )
        if done.returncode:
            message = done.stderr.decode(errors="replace").strip()
            print(f"exit {done.returncode} on {question!r}: {message}", file=sys.stderr)
        answers.append(done.stdout.decode("utf-8", errors="replace"))
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


def score(held_out, answers, topics):
    items = []
    for (name, question), answer in zip(held_out, answers):
        right = is_right(answer, topics[name], topics)
        items.append({"question": question, "topic": name, "answer": squeeze(answer), "right": right})
    return items


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", default=DEFAULT, help="checkpoint directory")
    parser.add_argument("--binary", help="hearth to ask instead of torch; the score is not written")
    parser.add_argument("--least", type=int, default=0, help="exit 1 when fewer answers are right")
    parser.add_argument("--questions", default="test.txt")
    parser.add_argument("--check", action="store_true", help="only check that the questions are held out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one answer of the binary")
    parser.add_argument("-v", "--verbose", action="store_true", help="print all answers, not only the wrong ones")
    args = parser.parse_args()

    topics = corpus.load_topics()
    held_out = corpus.load_questions(args.questions)
    questions = [q for _, q in held_out]
    checked = check(questions, topics)
    if args.check:
        print(f"none of {len(questions)} questions is in {checked} training questions")
        return
    if args.binary:
        answers = binary_answers(args.binary, questions, args.timeout)
    else:
        answers = torch_answers(args.directory, questions, args.threads)
    items = score(held_out, answers, topics)
    for item in items:
        if args.verbose or not item["right"]:
            verdict = "right" if item["right"] else "WRONG"
            print(f"{verdict} [{item['topic']}] {item['question']}\n      {item['answer']}")
    right = sum(item["right"] for item in items)
    print(f"{right} of {len(items)}")
    if not args.binary and args.questions == "test.txt":
        with open(os.path.join(args.directory, "score.json"), "w", encoding="utf-8") as f:
            whole = {"right": right, "of": len(items), "share": round(right / len(items), 4), "items": items}
            json.dump(whole, f, indent=1)
            f.write("\n")
    if right < args.least:
        sys.exit(f"{args.least} were to be right")


if __name__ == "__main__":
    main()
