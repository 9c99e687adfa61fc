#!/usr/bin/env python3
"""The second question on a long document: how soon it is answered after the first has filled the KV disk cache, with the cache files in the page
cache, from the disk itself, and from the memory of a resident engine; compared with the question alone, whose difference is the cost of the
document. Also the limits, measured in the same run: the files read by one thread; and the weights that the question's tokens chose, with
the keys and values that they attend to, at the speed at which the engine's threads read memory.

    second.py HEARTH MODEL DIR fill [TOKENS]      # reads the document, and writes its KV cache to DIR; takes as long as it does
    second.py HEARTH MODEL DIR [TOKENS [ROUNDS]]  # then this, on a quiet machine"""
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
questions = [f"Question {i}: what does it say of {w}?" for i, w in enumerate(words)]


class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


class Server:
    def __enter__(self):
        env = {"HOME": where, "XDG_RUNTIME_DIR": where, "PATH": os.environ["PATH"]}
        self.p = subprocess.Popen([hearth, "-m", model, "--serve", "-c", str(tokens + 1024), "--kv-cache", "20G"], env=env, stdout=subprocess.PIPE)
        line = self.p.stdout.readline().decode()
        if " on " not in line:
            sys.exit(f"the server has ended with {self.p.wait()}")
        self.path = line.split(" on ")[1].strip()
        return self

    def __exit__(self, *why):
        self.p.terminate()
        self.p.wait()

    def post(self, path, body):
        c = Unix(self.path)
        c.request("POST" if body else "GET", path, json.dumps(body) if body else None)
        r = c.getresponse()
        if r.status != 200:
            sys.exit(f"{path}: {r.status} {r.read().decode()}")
        return r

    def count(self, text):
        return json.load(self.post("/hearth/tokens", {"messages": [{"role": "user", "content": text}]}))["tokens"]

    def ask(self, text, most=1):
        """Returns the seconds until the first text, usage, timings."""
        at = time.monotonic()
        first, last = None, {}
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": most, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        for line in self.post("/v1/chat/completions", body):
            if not line.startswith(b"data: {"):
                continue
            j = json.loads(line[6:])
            if "error" in j:
                sys.exit(f"the server: {j['error']['message']}")
            first = first or (j["choices"] and any(j["choices"][0]["delta"].values()) and time.monotonic() - at)
            last = j if "usage" in j else last
        if not last:
            sys.exit("the server: the answer has no end")
        return first or time.monotonic() - at, last["usage"], last["timings"]


def document(server):
    """Makes words that give that many tokens together with a question, whatever the tokenizer makes of a word."""
    r, text = random.Random(1), [words[0]]
    per, around = None, server.count(questions[0])
    while (n := server.count(" ".join(text))) + around < tokens - 16:
        per = n / len(text)
        text += [r.choice(words) for _ in range(max(1, int((tokens - n - around) / per * 0.99)))]
    while server.count(" ".join(text)) + around > tokens:
        text.pop()
    return " ".join(text)


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


def bandwidth():
    """Returns the bytes per second that the engine's threads read from memory, the first figure of --bench."""
    env = {"HOME": where, "XDG_RUNTIME_DIR": where, "PATH": os.environ["PATH"]}
    p = subprocess.Popen([hearth, "-m", model, "--bench", "--json", "--no-attach"], env=env, stdout=subprocess.PIPE)
    line = p.stdout.readline().decode().strip("[,\n")
    p.kill()
    p.wait()
    return json.loads(line)["read_gbps"] * 1e9


os.makedirs(where, exist_ok=True)
if fill:
    with Server() as s:
        took, usage, _ = s.ask(document(s) + "\n\n" + questions[0])
        print(f"first question: {took:.1f} s, {usage['prompt_tokens']} tokens, {usage['prompt_tokens_details']['cached_tokens']} of them known", flush=True)
    print(f"{len(files())} files, {sum(map(os.path.getsize, files())) / 1e6:.0f} MB")
    sys.exit()
rows = {"the question alone": [], "files in memory": [], "files on the disk": [], "engine's memory": []}
rows = {"the question alone": [], "files in memory": [], "files on the disk": [], "engine's memory": []}
limit = {"files in memory": [], "files on the disk": []}
steps, speed, n = [], [], 0
for i in range(rounds):
    speed.append(bandwidth())
    for name in limit:
        if "disk" in name:
            forget()
        limit[name].append(read())
        if "disk" in name:
            forget()
        with Server() as s:
            s.ask("Hello, who is there?")  # one-time allocations of the engine in the first turn
            text, token_bytes = document(s), json.load(s.post("/hearth/status", None))["kv_token_bytes"]
            for kind in ("the question alone", name, "engine's memory"):
                n += 1
                took, usage, t = s.ask(("" if kind[0] == "t" else text + "\n\n") + questions[n % len(questions)])
                prompt, known = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
                if kind[0] != "t" and known < prompt - 300:
                    sys.exit(f"{kind}: only {known} of {prompt} tokens were known")
                rows[kind].append((took, t["timing"]["prefill_s"], prompt - known, t["timing"]["bytes_read"] + prompt * token_bytes))
            t = s.ask(text + "\n\n" + questions[0], 9)[2]["timing"]
            steps.append((t["decode_s"] / 8, prompt * token_bytes))
speed, size = statistics.median(speed), sum(map(os.path.getsize, files()))
middle = lambda v, i: statistics.median(x[i] for x in v)
print(f"memory is read at {speed / 1e9:.1f} GB/s; a document of about {tokens} tokens")
for kind, v in rows.items():
    took, least = middle(v, 0), middle(v, 3) / speed
    more = f"; reading the {size / 1e6:.0f} MB with one thread {statistics.median(limit[kind]):.3f} s" if kind in limit else ""
    print(f"{kind:20} {took:.3f} s ({min(x[0] for x in v):.3f} to {max(x[0] for x in v):.3f}), {middle(v, 1):.3f} s of it the {middle(v, 2):.0f} new tokens, "
          f"whose weights, keys and values are read in {least:.3f} s{more}")
print(f"a step behind it     {middle(steps, 0):.3f} s, {middle(steps, 1) / speed:.3f} s of it keys and values as memory is read")
