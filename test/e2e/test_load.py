"""64 clients of the resident engine that ask, call tools, need formats and break off at any moment, beside a client whose schemas take seconds, slow readers, half-sent requests and a
flood: every complete answer is valid, everybody is answered, and afterwards memory, descriptors and threads are those of the first quarter. Only with -Dlong_tests=true. LOAD_S: seconds."""
import json
import os
import random
import re
import socket
import statistics
import threading
import time

import driver
from server import ask, chunks, streamed_calls
from test_protocols import TOOLS, Model, is_city
from test_serve_compile import combinations
from test_structured import PERSON, is_person

LASTS = float(os.environ.get("LOAD_S", "120"))
CLIENTS = 64
SCHEMA = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}


class Load(Model):
    ARGS = (*Model.ARGS, "--parallel", "8", "--kv-cache", "off")

    def whole(self, r):
        status, _, data = self.s.request("POST", "/v1/chat/completions", ask("someone", response_format=SCHEMA, max_tokens=120, temperature=1.5, seed=r.randrange(99)))
        return status, status == 200 and is_person(json.loads(json.loads(data)["choices"][0]["message"]["content"])), data

    def calls(self, r):
        named = {"type": "function", "function": {"name": "get_weather"}}
        response = self.s.stream("weather", tools=TOOLS, tool_choice=named, max_tokens=120, temperature=1.5, seed=r.randrange(99))
        if response.status != 200:
            return response.status, False, response.read()
        got, done = chunks(response)
        return 200, done and is_city(json.loads(streamed_calls(got)[0]["function"]["arguments"])), got

    def breaks_off(self, r):
        """Leaves after a random time, or in the middle of its request."""
        c = self.s.connection()
        body = json.dumps(ask("hello " * r.randrange(1, 200), stream=r.random() < 0.7, max_tokens=200, **r.choice(({}, {"response_format": SCHEMA}, {"tools": TOOLS}, {"guided_json": combinations(20)}))))
        if r.random() < 0.2:
            c.connect()
            c.sock.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n{body[:r.randrange(len(body))]}".encode())
        else:
            c.request("POST", "/v1/chat/completions", body)
            if r.random() < 0.5:
                c.sock.settimeout(r.random())
                try:
                    c.getresponse().read(r.randrange(1, 2000))
                except (OSError, ValueError):
                    pass
        time.sleep(r.random() * 0.3)
        c.close()
        return 200, True, None

    def reads_slowly(self, r):
        response = self.s.stream("hello", max_tokens=60, temperature=1)
        while response.read(20) and not self.over.is_set():
            time.sleep(0.2)
        response.close()
        return 200, True, None

    def floods(self, r):
        for _ in range(50):
            self.s.request("POST", "/v1/chat/completions", r.choice((b"{", b'{"messages": 3}', json.dumps(ask("x", temperature=-1)).encode())))
            self.s.request("GET", r.choice(("/health", "/nowhere", "/v1/models")))
        return 200, True, None

    def hostile(self, r):
        status, _, data = self.s.request("POST", "/v1/chat/completions", ask("x", guided_json=combinations(20), user="hostile"))
        return 200, status in (400, 503), data

    def state(self):
        """Returns the resident memory, and the numbers of descriptors and threads, of the server at rest."""
        self.s.settles("at rest")
        time.sleep(1)
        with open(f"/proc/{self.s.p.pid}/status") as f:
            status = f.read()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]), len(os.listdir(f"/proc/{self.s.p.pid}/fd")), int(re.search(r"Threads:\s+(\d+)", status)[1])

    def run_for(self, seconds):
        counts, wrong, longest, lock = {}, [], [], threading.Lock()
        self.over = threading.Event()

        def client(i):
            r = random.Random(f"{seconds} {i}")
            kind = self.hostile if i < 2 else self.reads_slowly if i < 6 else self.floods if i == 6 else None
            while not self.over.is_set():
                do = kind or r.choice((self.whole, self.calls, self.breaks_off, self.breaks_off))
                try:
                    status, ok, data = do(r)
                except Exception as e:
                    status, ok, data = type(e).__name__, False, str(e)
                with lock:
                    counts[do.__name__] = counts.get(do.__name__, 0) + 1
                    counts[status] = counts.get(status, 0) + 1
                    if status != 200 and status not in (429, 503) or status == 200 and not ok:
                        wrong.append((do.__name__, status, str(data)[:300]))

        def health():
            while not self.over.is_set():
                began = time.time()
                ok = self.s.request("GET", "/health")[0] == 200
                longest.append(time.time() - began)
                if not ok:
                    wrong.append(("health", longest[-1]))
                self.over.wait(0.1)

        threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)] + [threading.Thread(target=health)]
        for t in threads:
            t.start()
        time.sleep(seconds)
        self.over.set()
        for t in threads:
            t.join(driver.PATIENCE * 3)
            self.assertFalse(t.is_alive(), "a client waits")
        self.assertEqual(wrong[:5], [])
        print(f"{seconds:.0f} s: {counts}; /health: median {statistics.median(longest) * 1e3:.1f} ms, longest {max(longest) * 1e3:.0f} ms", flush=True)

    def test_load(self):
        states = []
        for _ in range(4):
            self.run_for(LASTS / 4)
            states.append(self.state())
            print("memory, descriptors, threads:", states[-1], flush=True)
        first, last = states[0], states[-1]
        self.assertLessEqual(last[1], first[1])
        self.assertLessEqual(last[2], first[2])
        self.assertLess(last[0], first[0] * 1.1 + 10000)  # kB: KV caches of longer prompts, fragments


if __name__ == "__main__":
    driver.unittest.main()
