"""The resident engine with clients that come, go, hang and are killed. Runs on the fake engine."""
import json
import os
import random
import resource
import select
import socket
import threading
import time

import driver
from server import Case, ask, chunks

LONG = "".join(f"word{i} " for i in range(200))  # the answer to "long"


class Clients(Case):
    def test_closing_cancels(self):
        s = self.serve("--parallel", "1")
        for kind in ({"stream": True}, {}):
            c = s.connection()
            c.request("POST", "/v1/chat/completions", json.dumps(ask("prefill", **kind)))
            s.settles("begins", lambda status: status["sessions"] and status["sessions"][0]["state"] == "prefill")
            began = s.status()["answered"]
            c.close()
            s.settles("cancelled")
            self.assertEqual(s.status()["answered"], began + 1)

    def test_half_closed(self):
        """A client that ends what it sends after its request, as `nc -N` does, gets its answer; one that is gone at the port cancels it."""
        s = self.serve("--parallel", "1", "--listen", "127.0.0.1:0")
        host, port = s.url.split("//")[1].split("/")[0].split(":")

        def send(address, path, body, version="1.1"):
            c = socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX)
            self.addCleanup(c.close)
            c.settimeout(driver.PATIENCE)
            c.connect(address)
            body = json.dumps(body).encode()
            c.sendall(f"POST {path} HTTP/{version}\r\nHost: localhost\r\nAuthorization: Bearer {s.key}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            return c

        for address in (s.path, (host, int(port))):
            for path, more, end in (("/v1/chat/completions", {}, b"}\n"), ("/v1/chat/completions", {"stream": True}, b"data: [DONE]\n\n\r\n0\r\n\r\n"),
                                    ("/api/chat", {"stream": True}, b"}\n\r\n0\r\n\r\n"), ("/api/chat", {"stream": False}, b"}\n")):
                c = send(address, path, ask("slow", max_tokens=20, options={"num_predict": 20}, **more))
                s.settles("begins", lambda status: any(x["state"] != "idle" for x in status["sessions"]))
                c.shutdown(socket.SHUT_WR)
                with c.makefile("rb") as f:
                    got = f.read()
                self.assertIn(b"HTTP/1.1 200 OK\r\n", got)
                self.assertTrue(got.endswith(end), (path, more, got))
        for more, version in (({}, "1.1"), ({}, "1.0"), ({"stream": True}, "1.0")):
            began = s.status()["answered"]
            c = send((host, int(port)), "/v1/chat/completions", ask("read", **more), version)
            s.settles("begins", lambda status: any(x["state"] == "prefill" for x in status["sessions"]))
            c.close()
            s.settles("cancelled")
            self.assertEqual(s.status()["answered"], began + 1)

    def test_waiting_is_left(self):
        """A client that closes before its turn gets no answer; those after it are served in order."""
        s = self.serve("--parallel", "1")
        first = s.stream("prefill")
        left, then = s.connection(), s.connection()
        left.request("POST", "/v1/chat/completions", json.dumps(ask("long")))
        s.settles("waits", lambda status: [x["state"] for x in status["sessions"]].count("waiting") == 1)
        then.request("POST", "/v1/chat/completions", json.dumps(ask("x")))
        s.settles("waits", lambda status: [x["state"] for x in status["sessions"]].count("waiting") == 2)
        left.close()
        s.settles("left", lambda status: [x["state"] for x in status["sessions"]].count("waiting") == 1)
        self.assertEqual(json.loads(then.getresponse().read())["choices"][0]["message"]["content"], "You said: x")
        self.assertTrue(chunks(first)[1])
        self.assertEqual(s.status()["answered"], 2)

    def test_silence(self):
        """A stream that waits for its turn says every few seconds that it is still here."""
        self.env["HEARTH_LIMITS"] = "patience=20"
        s = self.serve("--parallel", "1")
        first = s.stream("read")
        for path, want in (("/v1/messages", [b"event: ping\n", b'data: {"type": "ping"}\n', b"\n"]), ("/v1/chat/completions", [b": still here\n", b"\n"])):
            waiting = s.connection()
            waiting.request("POST", path, json.dumps(ask("x", stream=True, max_tokens=5)))
            r = waiting.getresponse()
            self.assertEqual([r.readline() for _ in range(2 * len(want))], want * 2)
            r.close()
            waiting.close()
        waiting = s.connection()
        waiting.request("POST", "/api/chat", json.dumps(ask("x")))
        r = waiting.getresponse()
        self.assertEqual(r.read(2), b"  ")
        first.close()
        lines = [json.loads(line) for line in r.read().splitlines()]  # behind more spaces
        self.assertEqual(("".join(line["message"]["content"] for line in lines), lines[-1]["done"]), ("You said: x", True))

    def test_in_order(self):
        s = self.serve("--parallel", "1")
        asked, ends = {}, []
        for i in range(7):
            c = s.connection()
            c.request("POST", "/v1/chat/completions", json.dumps(ask(f"{i}" if i else "slow")))
            asked[c.sock] = (i, c)
            s.settles("asked", lambda status: len([x for x in status["sessions"] if x["state"] != "idle"]) == i + 1)
        while asked:
            ready = select.select(list(asked), [], [], driver.PATIENCE)[0]
            self.assertTrue(ready)
            ends += sorted(asked[sock][0] for sock in ready)
            for sock in ready:
                self.assertEqual(asked.pop(sock)[1].getresponse().status, 200)
        self.assertEqual(ends, list(range(7)))

    def test_slow_reader(self):
        """One client does not read: others are answered, and it gets everything when it reads."""
        s = self.serve()
        slow = s.connection()
        slow.request("POST", "/v1/chat/completions", json.dumps(ask("long", stream=True)))
        slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for i in range(20):
            self.assertEqual(s.chat(f"hello {i}")[1]["choices"][0]["message"]["content"], f"You said: hello {i}")
        s.settles("ends", lambda status: status["answered"] == 21)
        got, done = chunks(slow.getresponse())
        self.assertTrue(done)
        self.assertEqual("".join(c["choices"][0]["delta"].get("content", "") for c in got), LONG)

    def test_slow_sender(self):
        """A byte now and then keeps a connection for a limited time: in its header, its body, and after an answer; not during an answer."""
        self.env["HEARTH_LIMITS"] = "patience=100"  # hundredths of seconds
        s = self.serve()
        body = json.dumps(ask("slow")).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n" % len(body)
        for first, then in ((b"", head), (head + b"\r\n", body), (b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n", head)):
            c = socket.socket(socket.AF_UNIX)
            c.settimeout(driver.PATIENCE)
            c.connect(s.path)
            c.sendall(first)
            if first[:3] == b"GET":
                self.assertTrue(c.recv(65536).startswith(b"HTTP/1.1 200"))
            with self.assertRaises(OSError):  # well before all of it is sent
                for _ in range(20):
                    for byte in then[:-1]:
                        c.sendall(bytes([byte]))
                        time.sleep(0.05)
            c.close()
        self.assertEqual(s.chat("slow")[1]["choices"][0]["message"]["content"].count("w"), 60)  # takes longer than a header may
        self.assertEqual(len(chunks(s.stream("slow"))[0]) > 3, True)

    def test_no_descriptors(self):
        """When no more connections can be accepted, existing ones are served, nothing spins, and the others are accepted when there is room."""
        s = self.serve()
        keeps = s.connection()
        keeps.request("GET", "/v1/models")
        keeps.getresponse().read()
        n = len(os.listdir(f"/proc/{s.p.pid}/fd"))
        resource.prlimit(s.p.pid, resource.RLIMIT_NOFILE, (n + 5, n + 5))
        waiting = [s.connection() for _ in range(40)]
        for c in waiting:
            c.request("POST", "/v1/chat/completions", json.dumps(ask("hello")))
        for _ in range(3):
            keeps.request("POST", "/v1/chat/completions", json.dumps(ask("hello")))
            self.assertEqual(json.loads(keeps.getresponse().read())["choices"][0]["message"]["content"], "You said: hello")
        held = [c for c in waiting if select.select([c.sock], [], [], 0)[0]]  # answered, and not closed: they keep their descriptors
        self.assertFalse(s.spins(0.05))
        for c in waiting:
            self.assertEqual(c.getresponse().status, 200)
            c.close()
        self.assertGreater(len(waiting), len(held))
        s.settles("all are answered", lambda status: status["answered"] == 43)

    def test_two_hundred(self):
        """Clients come, go, hang and are cut off; those that stay get correct answers, and afterwards nothing is left."""
        s = self.serve("--parallel", "4")
        self.assertEqual(s.chat("warm")[0], 200)
        fds = lambda: len(os.listdir(f"/proc/{s.p.pid}/fd"))
        before, rnd, wrong, hung, lock = fds(), random.Random(1), [], [], threading.Lock()

        def client(i, kind):
            try:
                if kind == "whole":
                    got = s.chat(f"client {i}")
                    if got[0] != 200 or got[1]["choices"][0]["message"]["content"] != f"You said: client {i}":
                        wrong.append((i, got))
                elif kind == "stream":
                    got, done = chunks(s.stream(f"client {i}"))
                    if not done or "".join(c["choices"][0]["delta"].get("content", "") for c in got) != f"You said: client {i}":
                        wrong.append((i, got))
                else:
                    c = s.connection()
                    c.connect()
                    body = json.dumps(ask("slow", stream=kind == "reset" or bool(i % 2))).encode()
                    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)
                    whole = head + body
                    c.sock.sendall(whole if kind in ("gone", "reset") else whole[:rnd.randrange(len(whole))])
                    if kind == "hang":
                        with lock:
                            hung.append(c)
                        return
                    if kind == "reset":
                        c.sock.recv(10)
                    c.close()
            except OSError as e:
                wrong.append((i, repr(e)))

        kinds = ["whole", "stream", "gone", "half", "hang", "reset"]
        threads = [threading.Thread(target=client, args=(i, kinds[rnd.randrange(len(kinds))])) for i in range(200)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])
        self.nothing_stays(s, hung, fds, before)


if __name__ == "__main__":
    driver.unittest.main()
