"""A resident engine in random use for a long time: 16 clients that ask, continue chats, read slowly, break off, hang, attach and are killed. Every
complete answer is that of a private engine, and in the end nothing has grown: memory, descriptors, threads. SOAK_S: seconds, default
half an hour."""
import json
import os
import random
import signal
import statistics
import subprocess
import threading
import time
import unittest

import driver
from server import Case, ask, chunks

LASTS = float(os.environ.get("SOAK_S", "1800"))
CLIENTS = 16
WORDS = "how do i save a chat open a file stop an answer change the model set the context read long documents faster on the terminal".split()


def text(r, n):
    return " ".join(r.choice(WORDS) for _ in range(n))


class Soak(Case):
    def alone(self, q):
        out = self.run_bin("-p", q["text"], "--seed", str(q["seed"]), "--temp", str(q["temp"]), "-n", str(q["n"]), "--json", "--no-attach", "--kv-cache", "off")
        return json.loads(out[1]).get("text")

    def test_soak(self):
        r = random.Random(5)
        document = text(r, 700)
        self.env["HEARTH_LIMITS"] = "keep=1,rows=128"  # selects kernels down to the last bit
        asked = []
        while len(asked) < 40:
            i = len(asked)
            q = {"text": (document + "\n\n" if i % 3 == 0 else "") + text(r, r.randrange(2, 40 if i % 4 else 300)), "seed": i, "temp": (0, 0.7, 1)[i % 3], "n": r.randrange(4, 60)}
            q["want"] = self.alone(q)
            if q["want"] is not None:  # the program takes some for texts to work on, which it refuses
                asked.append(q)
        self.s = s = self.serve("--parallel", "6", "--kv-cache", "40M")
        over, counts, wrong, lock = threading.Event(), {}, [], threading.Lock()
        body = lambda q, **more: ask(q["text"], seed=q["seed"], temperature=q["temp"], max_tokens=q["n"], **more)

        def same(q, got, how):
            if got != q["want"]:
                wrong.append((how, q, got))

        def whole(r):
            q = r.choice(asked)
            status, _, data = s.request("POST", "/v1/chat/completions", body(q))
            same(q, json.loads(data)["choices"][0]["message"]["content"] if status == 200 else data, "whole")

        def stream(r):
            q = r.choice(asked)
            c = s.connection()
            c.request("POST", "/v1/chat/completions", json.dumps(body(q, stream=True)))
            if r.random() < 0.3:
                time.sleep(r.random() * 3)  # a slow one
            got, done = chunks(c.getresponse())
            c.close()
            same(q, "".join(x["choices"][0]["delta"].get("content", "") for x in got) if done else got, "stream")

        def chat(r):
            messages = []
            for _ in range(r.randrange(2, 6)):
                messages.append({"role": "user", "content": text(r, r.randrange(1, 60))})
                status, _, data = s.request("POST", "/v1/chat/completions", {"messages": messages, "max_tokens": r.randrange(1, 30), "temperature": 0.5})
                if status != 200:
                    wrong.append(("chat", status, data))
                    return
                messages.append({"role": "assistant", "content": json.loads(data)["choices"][0]["message"]["content"]})

        def leave(r):
            c = s.connection()
            c.connect()
            data = json.dumps(body(r.choice(asked), stream=r.random() < 0.7)).encode()
            data = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(data) + data
            c.sock.sendall(data[:r.choice([len(data), len(data), r.randrange(len(data))])])
            time.sleep(r.random() * r.choice([0.1, 2]))
            c.close()

        def refused(r):
            for bad in (b"{", b"\xff\xfe", json.dumps({"messages": []}).encode(), b"[" * 5000):
                if s.request("POST", "/v1/chat/completions", bad)[0] != 400:
                    wrong.append(("refused", bad))

        def attached(r):
            q = r.choice(asked)
            p = subprocess.Popen([driver.BIN, "-p", q["text"], "--seed", str(q["seed"]), "--temp", str(q["temp"]), "-n", str(q["n"]), "--json", "--kv-cache", "40M"], env=self.env,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            if r.random() < 0.4:
                time.sleep(r.random())
                p.send_signal(r.choice([signal.SIGKILL, signal.SIGINT, signal.SIGTERM]))
            out = p.communicate()[0]
            if p.returncode == 0:
                same(q, json.loads(out)["text"], "attached")

        def status(r):
            s.status()

        kinds = [whole, stream, chat, leave, refused, attached, status]

        def client(seed):
            r = random.Random(seed)
            while not over.is_set():
                kind = r.choice(kinds)
                try:
                    kind(r)
                except Exception as e:
                    wrong.append((kind.__name__, repr(e)))
                    over.set()
                with lock:
                    counts[kind.__name__] = counts.get(kind.__name__, 0) + 1

        def size():
            with open(f"/proc/{s.p.pid}/smaps_rollup") as f:
                pss = next(int(line.split()[1]) / 1024 for line in f if line.startswith("Pss:"))
            return pss, len(os.listdir(f"/proc/{s.p.pid}/fd")), len(os.listdir(f"/proc/{s.p.pid}/task"))

        s.chat("hello", max_tokens=2)
        first, sizes = size(), []
        threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        began = time.monotonic()
        while time.monotonic() < began + LASTS and not over.is_set() and s.p.poll() is None:
            over.wait(LASTS / 120)
            sizes.append(size())
        over.set()
        for t in threads:
            t.join()
        self.assertEqual(wrong[:3], [])
        self.assertIsNone(s.p.poll())
        s.settles("at rest")
        until = time.time() + driver.PATIENCE
        while size()[1] > first[1] and time.time() < until:
            time.sleep(0.1)
        last = size()
        quarter = lambda k: statistics.median(x[0] for x in sizes[k * len(sizes) // 4:(k + 1) * len(sizes) // 4])
        print(f"{LASTS:.0f} s, {counts}; MB in each quarter: {[round(quarter(k), 1) for k in range(4)]}; at first {first}, at rest {last}", flush=True)
        self.assertLess(quarter(3), quarter(1) * 1.05 + 8)
        self.assertLessEqual(last[1:], first[1:])
        self.assertGreaterEqual(len(counts), len(kinds))


if __name__ == "__main__":
    unittest.main()
