"""200 clients at once, with schemas, tools and streams, some of which leave: every whole answer is valid, and afterwards nothing is in flight, and memory and descriptors
are those of a server at rest. Only with -Dlong_tests=true; for sanitizers run it with such a build as HEARTH_BIN. CROWD_ROUNDS: requests of each client."""
import json
import os
import random
import re
import threading
import time

import driver
from server import ask, chunks
from test_protocols import TOOLS, Model, is_city
from test_structured import PERSON, is_person

CLIENTS, ROUNDS = 200, int(os.environ.get("CROWD_ROUNDS", "3"))
SCHEMA = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}


class Crowd(Model):
    ARGS = (*Model.ARGS, "--parallel", "16")

    def setUp(self):
        super().setUp()
        self.wrong, self.busy, self.lock = [], 0, threading.Lock()

    def post(self, body, check):
        status, _, data = self.s.request("POST", "/v1/chat/completions", body)
        with self.lock:
            if status in (429, 503):  # the queue is full: a client asks again later
                self.busy += 1
            elif status != 200 or not check(json.loads(data)["choices"][0]):
                self.wrong.append((status, data[:300]))

    def schema(self, r):
        self.post(ask("someone", response_format=SCHEMA, max_tokens=120, temperature=1.5, seed=r.randrange(99)), lambda c: is_person(json.loads(c["message"]["content"])))

    def forced(self, r):
        named = {"type": "function", "function": {"name": "get_weather"}}
        self.post(ask("weather", tools=TOOLS, tool_choice=named, max_tokens=120, temperature=1.5, seed=r.randrange(99)),
                  lambda c: is_city(json.loads(c["message"]["tool_calls"][0]["function"]["arguments"])))

    def tools(self, r):
        self.post(ask("hello", tools=TOOLS, max_tokens=8), lambda c: True)

    def refused(self, r):
        status, _, data = self.s.request("POST", "/v1/chat/completions", ask("x", guided_json={"type": "nothing"}))
        if status != 400:
            self.wrong.append((status, data))

    def stream(self, r):
        got, done = chunks(self.s.stream("x", guided_choice=["red", "green"], temperature=2))
        text = "".join(g["choices"][0]["delta"].get("content") or "" for g in got if g.get("choices"))
        if done and text not in ("red", "green"):
            self.wrong.append((text, got))

    def leave(self, r):
        c = self.s.connection()
        c.request("POST", "/v1/chat/completions", json.dumps(ask("someone", response_format=SCHEMA, stream=True)))
        time.sleep(r.random())
        c.close()

    def crowd(self, seed):
        kinds = (self.schema, self.forced, self.tools, self.refused, self.stream, self.leave)

        def client(i):
            r = random.Random(1000 * seed + i)
            for k in range(ROUNDS):
                try:
                    kinds[(i + k) % len(kinds)](r)
                except Exception as e:
                    self.wrong.append((kinds[(i + k) % len(kinds)].__name__, repr(e)))

        threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.s.settles("at rest")

    def size(self):
        """Returns resident MB and the number of descriptors, once no connection is open."""
        until = time.time() + driver.PATIENCE
        fds = lambda: len(os.listdir(f"/proc/{self.s.p.pid}/fd"))
        while fds() > getattr(self, "first", 10**6) and time.time() < until:
            time.sleep(0.1)
        with open(f"/proc/{self.s.p.pid}/status") as f:
            return next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmRSS:")), fds()

    def test_crowd(self):
        self.s.chat("hello", max_tokens=2)
        self.first = self.size()[1]
        sizes = []
        for seed in range(4):
            self.crowd(seed)
            sizes.append(self.size())
        metrics = self.s.request("GET", "/metrics")[2].decode()
        self.assertEqual(self.wrong[:3], [])
        self.assertIsNone(self.s.p.poll())
        flying = {m[0]: float(m[1]) for m in re.findall(r"^(\S*(?:running|waiting|queued|in_flight|active)\S*) (\S+)$", metrics, re.M)}
        print(f"{4 * CLIENTS * ROUNDS} requests, {self.busy} of them refused while busy; MB and descriptors after each round {sizes}; {flying}", flush=True)
        self.assertTrue(flying)
        self.assertEqual(set(flying.values()), {0.0})
        self.assertTrue(all(n <= self.first for _, n in sizes), (self.first, sizes))
        if not any(name in self.env for name in ("ASAN_OPTIONS", "TSAN_OPTIONS")):  # they keep freed memory
            self.assertLess(sizes[-1][0], sizes[0][0] * 1.05 + 8)


if __name__ == "__main__":
    driver.unittest.main()
