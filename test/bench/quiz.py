#!/usr/bin/env python3
"""300 questions with short answers, counted by exact match: whether a format of weights, a draft or another program answers worse.

    quiz.py ask --quiz FOLDER --out FILE -- build/hearth -m MODEL [OPTIONS]      answers of hearth, one server, one question after another, greedy
    quiz.py peer --quiz FOLDER --out FILE MODEL.gguf                             the same of llama.cpp (xllamacpp from PyPI)
    quiz.py compare FILE FILE...                                                 exact matches, and answers that are not the first file's

FOLDER is that of Debian's bsdgames (/usr/share/games/bsdgames/quiz, BSD licence): capitals of countries and of states, chemical elements. Its answers are
patterns: {optional}, [one|other], one|other. An answer counts if the pattern matches all of it but for white space, case and a period at its end."""
import json
import os
import random
import re
import subprocess
import sys
import time
import urllib.request

QUESTIONS = 300
TOKENS = 24
SYSTEM = "Answer with the name only, without a sentence."
KINDS = (("africa", 1, "What is the capital of {}?"), ("america", 1, "What is the capital of {}?"), ("asia", 1, "What is the capital of {}?"),
         ("europe", 1, "What is the capital of {}?"), ("state", 1, "What is the capital of the state of {}?"), ("elements", 3, "Which chemical element has the symbol {}?"))
PORT = 18089


def pattern(text):
    """A quiz's pattern as a regular expression."""
    return "".join({"{": "(?:", "}": ")?", "[": "(?:", "]": ")", "|": "|"}.get(c) or re.escape(c) for c in text)


def example(text):
    """The first and longest of what a pattern matches."""
    while True:
        inner = re.sub(r"\{([^{}\[\]]*)\}|\[([^{}\[\]|]*)(?:\|[^{}\[\]]*)?\]", lambda m: m[1] if m[1] is not None else m[2], text)
        if inner == text:
            return inner.split("|")[0]
        text = inner


def questions(folder):
    found = []
    for name, column, question in KINDS:
        for line in open(os.path.join(folder, name)).read().replace("\\\n", "").splitlines():
            fields = line.split(":")
            if len(fields) > column and all(c not in fields[0] for c in "'`~^,/"):  # accents of typewriters are not names
                found.append((question.format(example(fields[0])), fields[column]))
    random.Random(1).shuffle(found)
    assert len(found) >= QUESTIONS, f"{folder}: {len(found)} questions"
    return found[:QUESTIONS]


def ask(address, key, question):
    body = {"model": "any", "temperature": 0, "max_tokens": TOKENS, "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]}
    request = urllib.request.Request(address + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json", "Authorization": "Bearer " + key})
    return json.load(urllib.request.urlopen(request, timeout=600))["choices"][0]["message"]["content"]


def ask_all(address, key, folder, out):
    begin = time.monotonic()
    rows = [{"question": q, "pattern": p, "answer": ask(address, key, q)} for q, p in questions(folder)]
    print(f"{out}: {right(rows)} of {len(rows)}, {time.monotonic() - begin:.0f} s")
    with open(out, "w") as f:
        json.dump(rows, f, indent=1)


def right(rows):
    return sum(matches(r) for r in rows)


def matches(row):
    return re.fullmatch(pattern(row["pattern"]), row["answer"].strip().rstrip("."), re.IGNORECASE) is not None


def hearth(folder, out, command):
    server = subprocess.Popen([*command, "--serve", "--listen", f"127.0.0.1:{PORT}"], stdout=subprocess.PIPE, text=True)
    try:
        key = next((line.split()[1] for line in server.stdout if line.startswith("key ")), None)
        assert key, "the server ended"
        ask_all(f"http://127.0.0.1:{PORT}", key, folder, out)
    finally:
        server.terminate()
        server.wait()


def peer(folder, out, model):
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.port = model, 4096, 1, PORT + 1
    server = xllamacpp.Server(params)
    ask_all(server.listening_address, "none", folder, out)


def compare(paths):
    files = [json.load(open(p)) for p in paths]
    for path, rows in zip(paths, files):
        other = [(a, b) for a, b in zip(files[0], rows) if a["answer"].strip() != b["answer"].strip()]
        print(f"{path}: {right(rows)} of {len(rows)} right, {len(other)} answers differ from {paths[0]}, of these {sum(matches(a) for a, _ in other)} right there and {sum(matches(b) for _, b in other)} here")
        for a, b in other[:8]:
            print(f"  {a['question']} {a['answer']!r} / {b['answer']!r} ({a['pattern']})")


def main():
    args = sys.argv[1:]
    if len(args) >= 2 and args[0] == "compare":
        return compare(args[1:])
    if len(args) < 6 or args[0] not in ("ask", "peer") or args[1] != "--quiz" or args[3] != "--out":
        sys.exit(__doc__)
    if args[0] == "peer":
        return peer(args[2], args[4], args[5])
    return hearth(args[2], args[4], args[args.index("--") + 1:])


main()
