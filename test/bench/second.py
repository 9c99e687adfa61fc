#!/usr/bin/env python3
"""The second question on a long document: how soon it is answered where the first has filled the prompt cache, from the files of a cache that the
system has in memory, from the disk itself, and from the memory of a resident engine; beside a question alone, whose difference is what the
document costs.

    second.py HEARTH MODEL DIR fill [TOKENS]      # reads the document, and writes its KV cache to DIR; takes as long as it does
    second.py HEARTH MODEL DIR [TOKENS [ROUNDS]]  # then this, on a quiet machine
"""
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time

hearth, model, where = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), os.path.abspath(sys.argv[3])
rest = sys.argv[4:]
fill = rest[:1] == ["fill"]
rest = [int(x) for x in rest[fill:]]
tokens, rounds = (rest + [32768, 3][len(rest):])[:2]
words = "the of and a to in is was he for it with as his on be at by had not are but from or have an they which one you were her all she there would their".split()
r = random.Random(1)
document = " ".join(r.choice(words) for _ in range(tokens - 100))  # a word is a token
questions = [f"Question {i}: what does the text above say of {w}, and where?" for i, w in enumerate(words)]


class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


class Server:
    def __init__(self):
        env = {"HOME": where, "XDG_RUNTIME_DIR": where, "PATH": os.environ["PATH"]}
        self.p = subprocess.Popen([hearth, "-m", model, "--serve", "-c", str(tokens + 4096), "--kv-cache", "20G"], env=env, stdout=subprocess.PIPE)
        self.path = self.p.stdout.readline().decode().split(" on ")[1].strip()

    def ask(self, text):
        """Seconds until the first text, what the prompt had, what was there already."""
        c = Unix(self.path)
        at = time.monotonic()
        c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 2, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}))
        first, usage = None, None
        for line in c.getresponse():
            if line.startswith(b"data: {"):
                j = json.loads(line[6:])
                first = first or (j["choices"] and any(j["choices"][0]["delta"].values()) and time.monotonic() - at)
                usage = j.get("usage") or usage
        c.close()
        return first or time.monotonic() - at, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    def end(self):
        self.p.terminate()
        self.p.wait()


def files():
    at = os.path.join(where, ".cache/hearth/kv")
    return [os.path.join(at, f) for f in os.listdir(at) if f.endswith(".kv")]


def forget():
    for f in files():
        fd = os.open(f, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read():
    at = time.monotonic()
    for f in files():
        with open(f, "rb", buffering=0) as g:
            while g.read(1 << 20):
                pass
    return time.monotonic() - at


os.makedirs(where, exist_ok=True)
if fill:
    s = Server()
    print("first question: %.1f s, %d tokens, %d of them known" % s.ask(document + "\n\n" + questions[0]), flush=True)
    s.end()
    print(f"{len(files())} files, {sum(map(os.path.getsize, files())) / 1e6:.0f} MB")
    sys.exit()
rows = {"the question alone": [], "files in memory": [], "files on the disk": [], "engine's memory": []}
limit = {"files in memory": [], "files on the disk": []}
n = 0
for i in range(rounds):
    for name in limit:
        if "disk" in name:
            forget()
        limit[name].append(read())
        if "disk" in name:
            forget()
        s = Server()
        s.ask("Hello, who is there?")  # what the engine makes for itself with the first turn
        for kind in ("the question alone", name, "engine's memory"):
            n += 1
            took, prompt, known = s.ask(("" if kind[0] == "t" else document + "\n\n") + questions[n % len(questions)])
            if kind[0] != "t" and known < prompt - 300:
                sys.exit(f"{kind}: only {known} of {prompt} tokens were known")
            rows[kind].append(took)
        s.end()
size = sum(map(os.path.getsize, files()))
for kind, took in rows.items():
    more = f", reading the {size / 1e6:.0f} MB with one thread {statistics.median(limit[kind]):.3f} s" if kind in limit else ""
    print(f"{kind:20} {statistics.median(took):.3f} s ({min(took):.3f} to {max(took):.3f}){more}")
