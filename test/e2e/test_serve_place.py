"""Where the resident engine listens, who may use it, what it says of itself, and clients of other programs. Runs on the fake engine."""
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import time

import driver
from server import Case, ask, chunks


class Place(Case):
    def test_socket_is_private(self):
        s = self.serve()
        self.assertEqual(stat.S_IMODE(os.stat(s.path).st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.dirname(s.path)).st_mode), 0o700)
        rc, out, err = self.run_bin("--serve")
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("is already running", err)
        s.end()
        self.assertFalse(os.path.exists(s.path))
        os.chmod(os.path.dirname(s.path), 0o755)
        rc, out, err = self.run_bin("--serve")
        self.assertEqual(rc, 1)
        self.assertIn("not a private directory", err)

    def test_second(self):
        """A second engine of a user, or one without a place for its socket, serves its port alone."""
        s = self.serve()
        for env, reason in ((self.env, "is already running"), ({k: v for k, v in self.env.items() if k not in ("XDG_RUNTIME_DIR", "HOME")}, "nor HOME is set")):
            with subprocess.Popen([driver.BIN, "--serve", "--listen", "0"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as other:
                first, url, key = (other.stdout.readline().decode().split() for _ in range(3))
                self.assertEqual(first, ["serving", "fake"])
                c = http.client.HTTPConnection(url[-1].split("/")[2], timeout=driver.PATIENCE)
                c.request("POST", "/v1/chat/completions", json.dumps(ask("y")), {"Authorization": "Bearer " + key[-1]})
                self.assertEqual(json.load(c.getresponse())["choices"][0]["message"]["content"], "You said: y")
                c.close()
                other.terminate()
                self.assertIn(reason, err := other.stderr.read().decode())
                self.assertIn("; serving the port alone", err)
        self.assertTrue(os.path.exists(s.path))
        self.assertEqual(self.run_bin("-p", "x")[:2], (0, b"You said: x\n"))
        self.assertEqual(s.status()["answered"], 1)

    def test_place_of_others(self):
        """A socket in a directory that others may write to is not used, whoever made it."""
        s = self.serve()
        place = os.path.dirname(s.path)
        self.assertEqual(self.run_bin("-p", "x")[:2], (0, b"You said: x\n"))
        self.assertEqual(s.status()["answered"], 1)
        os.chmod(place, 0o755)
        rc, out, err = self.run_bin("-p", "x")
        self.assertEqual((rc, out), (0, b"You said: x\n"))
        self.assertIn("not a private directory (owned by you, mode 0700); not used for the resident engine's socket; opening the model in this process", err)
        for what in ("--status", "--stop"):
            rc, out, err = self.run_bin(what)
            self.assertEqual((rc, out), (1, b""))
            self.assertIn("not a private directory", err)
        os.chmod(place, 0o700)
        self.assertEqual(s.status()["answered"], 1)
        if os.geteuid():
            self.skipTest("only root can act as another user")
        os.chown(place, 65534, 65534)
        self.assertEqual(self.run_bin("-p", "x")[0], 0)
        self.assertIn("not a private directory", self.run_bin("--status")[2])
        os.chown(place, 0, 0)
        self.assertEqual(s.status()["answered"], 1)

    def test_other_user(self):
        """Connections of other users are refused."""
        if os.geteuid():
            self.skipTest("only root can act as another user")
        s = self.serve()
        at = s.path
        os.chmod(at, 0o666)
        while at != "/" and (at := os.path.dirname(at)) != "/tmp":
            os.chmod(at, os.stat(at).st_mode | 0o111)

        def run(uid):
            """What a client of this user receives."""
            ours, theirs = os.pipe()
            child = os.fork()
            if not child:
                try:
                    os.setgroups([]), os.setgid(uid), os.setuid(uid)
                    c = socket.socket(socket.AF_UNIX)
                    c.connect(s.path)
                    os.write(theirs, b"connected ")
                    c.sendall(b"GET /hearth/status HTTP/1.0\r\n\r\n")
                    os.write(theirs, c.recv(4))
                finally:
                    os._exit(0)
            os.close(theirs)
            with os.fdopen(ours, "rb") as f:
                said = f.read()
            os.waitpid(child, 0)
            return said

        self.assertEqual(run(0), b"connected HTTP")
        self.assertEqual(run(65534), b"connected ")
        self.assertEqual(s.status()["answered"], 0)

    def test_another_build(self):
        """An engine of another build, even under the same name, is not attached to; the message says so and what to do."""
        copy = os.path.join(self.home, "hearth")
        driver.shutil.copy(driver.BIN, copy)
        s = self.serve(binary=copy)
        rc, out, err = self.run_bin("-p", "x")
        self.assertEqual((rc, out, s.status()["answered"]), (0, b"You said: x\n", 0))
        self.assertIn("another build of hearth (--stop stops it)", err)
        self.assertNotIn("another build", self.run_bin("-p", "x", "-c", "1000")[2])  # its options differ too
        run = lambda: driver.subprocess.run([copy, "-p", "x"], env=self.env, capture_output=True, stdin=driver.subprocess.DEVNULL)
        self.assertEqual((run().stdout, s.status()["answered"]), (b"You said: x\n", 1))
        with open(copy + ".new", "wb") as f:  # rebuilt while it runs
            f.write(open(copy, "rb").read())
        os.chmod(copy + ".new", 0o755)
        os.rename(copy + ".new", copy)
        p = run()
        self.assertEqual((p.stdout, s.status()["answered"]), (b"You said: x\n", 1))
        self.assertIn(b"another build", p.stderr)
        self.assertEqual(self.run_bin("--stop")[0], 0)

    def test_without_runtime_dir(self):
        del self.env["XDG_RUNTIME_DIR"]
        s = self.serve()
        self.assertEqual(s.path, os.path.join(self.home, ".local/state/hearth/socket"))
        rc, out, err = self.run_bin("--serve", env={"XDG_RUNTIME_DIR": "/" + "long/" * 30})
        self.assertEqual(rc, 1)
        self.assertIn("too long for a socket", err)

    def test_killed(self):
        s = self.serve()
        stream = s.stream("long")
        s.p.send_signal(signal.SIGKILL)
        s.p.wait()
        self.assertTrue(os.path.exists(s.path))
        self.assertEqual(self.run_bin("--status")[0], 1)
        again = self.serve()
        self.assertEqual(again.chat("x")[0], 200)
        stream.close()

    def test_unprintable_address_ends_the_server(self):
        """Without a way to print the line with the socket, and with --listen the key, the server does not start."""
        for args in ([], ["--listen", "127.0.0.1:0"]):
            with open("/dev/full", "wb") as full:
                p = driver.subprocess.run([driver.BIN, "--serve", *args], env=self.env, stdout=full, stderr=driver.subprocess.PIPE, stdin=driver.subprocess.DEVNULL, timeout=driver.PATIENCE)
            self.assertEqual(p.returncode, 1)
            self.assertIn(b"stdout: No space left", p.stderr)
        self.assertIn("no resident engine is running", self.run_bin("--status")[2])

    def test_status_and_stop(self):
        for mode in ("--status", "--stop"):
            rc, out, err = self.run_bin(mode)
            self.assertEqual((rc, out), (1, b""))
            self.assertIn("no resident engine is running", err)
        s = self.serve()
        reading, answering = s.stream("prefill"), s.stream("slow")
        s.settles("both", lambda status: {x["state"] for x in status["sessions"]} == {"prefill", "decode"} and any(x.get("tokens", 0) > 2 for x in status["sessions"]))
        rc, out, err = self.run_bin("--status")
        self.assertEqual(rc, 0)
        self.assertRegex(out.decode(), r"^fake, process \d+, up \d+ s; 0 answers; .* of memory, .* KV caches\n")
        self.assertRegex(out.decode(), r"\n  prefill: \d+ %, \d s left, for process \d+\n")
        self.assertRegex(out.decode(), r"\n  decode: \d+ tokens, [\d.]+ tok/s, for process \d+\n")
        j = json.loads(self.run_bin("--status", "--json")[1])
        self.assertEqual((j["model"], j["pid"], j["parallel"]), ("fake", s.p.pid, 16))
        rc, out, err = self.run_bin("--stop")
        self.assertEqual((rc, out), (0, b""))
        self.assertIn("has exited", err)
        self.assertEqual(s.p.wait(driver.PATIENCE), 0)
        got, done = chunks(answering)
        self.assertIn("is shutting down", got[-1]["error"]["message"])
        self.assertFalse(done)

    def test_status_is_true(self):
        """Status of many clients at once: which wait, read and answer, their progress, and their cache memory."""
        s = self.serve("--parallel", "4")
        asked, queue = ["drip", "drip " + "x" * 500, "read", "read " + "x" * 900], ["waits", "waits " + "y" * 700]
        count = lambda text: json.loads(s.request("POST", "/hearth/tokens", ask(text))[2])["tokens"]
        streams = [s.stream(t) for t in asked]
        waiting = [s.connection() for _ in queue]
        for c, t in zip(waiting, queue):
            c.request("POST", "/v1/chat/completions", json.dumps(ask(t)))
        said = [0, 0]

        def hear(least):
            for k in (0, 1):
                while said[k] < least[k]:
                    line = streams[k].readline()
                    self.assertTrue(line)
                    if line.startswith(b"data: "):
                        said[k] += len(json.loads(line[6:])["choices"][0]["delta"].get("content", ""))

        hear([10, 10])
        s.settles("all are there", lambda status: len(status["sessions"]) == 6 and all(x.get("share", 1) > 0 for x in status["sessions"]))
        was = None
        for _ in range(3):
            status, by = s.status(), {}
            for x in status["sessions"]:
                by.setdefault(x["state"], {})[x["prompt_tokens"]] = x
            self.assertEqual({k: set(v) for k, v in by.items()}, {"decode": set(map(count, asked[:2])), "prefill": set(map(count, asked[2:])), "waiting": set(map(count, queue))})
            tokens = [by["decode"][count(t)]["tokens"] for t in asked[:2]]
            self.assertTrue(all(x["tokens_per_s"] > 0 for x in by["decode"].values()))
            self.assertTrue(all(x >= y for x, y in zip(tokens, said)), (tokens, said))  # the progress that was read had been printed
            self.assertGreaterEqual(status["memory"]["kv_bytes"], sum(n + x["tokens"] for n, x in by["decode"].items()) * status["kv_token_bytes"])
            for n, x in was["prefill"].items() if was else []:
                self.assertGreaterEqual(by["prefill"][n]["share"], x["share"])
                self.assertLess(by["prefill"][n]["left_s"], x["left_s"])
            was = by
            hear([n + 5 for n in tokens])
        for c in waiting + streams:
            c.close()
        s.settles("idle", lambda status: [x["state"] for x in status["sessions"]] == ["idle"] * 4)
        status = s.status()
        self.assertEqual((status["answered"], status["memory"]["kv_bytes"]), (4, sum(x["tokens"] for x in status["sessions"]) * status["kv_token_bytes"]))

    def test_idle(self):
        s = self.serve("--idle", "0.02")
        self.assertEqual(s.chat("x")[0], 200)
        self.assertEqual(s.p.wait(driver.PATIENCE), 0)
        self.assertFalse(os.path.exists(s.path))

    def test_listen(self):
        s = self.serve("--listen", "127.0.0.1:0")
        host, port = s.url.split("/")[2].split(":")
        self.assertGreaterEqual(len(s.key), 64)

        def get(path, key, method="GET"):
            c = http.client.HTTPConnection(host, int(port), timeout=driver.PATIENCE)
            c.request(method, path, headers={} if key is None else {"Authorization": key})
            r = c.getresponse()
            return r.status, r.read()

        for key in (None, "", "Bearer", "Bearer ", "Bearer " + s.key[:-1], "Bearer " + s.key + "0", "Bearer " + s.key[:-1] + ("0" if s.key[-1] != "0" else "1"), "Basic " + s.key, s.key):
            status, data = get("/v1/models", key)
            self.assertEqual((status, json.loads(data)["error"]["code"]), (401, "invalid_api_key"), key)
        self.assertEqual(get("/v1/models", "Bearer " + s.key)[0], 200)
        self.assertEqual(get("/hearth/stop", "Bearer " + s.key, "POST")[0], 403)
        self.assertEqual(get("/hearth/stop", None, "POST")[0], 401)
        for where in ("0.0.0.0:0", "192.168.0.1:80", "localhosts:80", "[::]:0", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", ":80", "x80", "[::1]", "1234567"):
            rc, out, err = self.run_bin("--serve", "--listen", where, env={"XDG_RUNTIME_DIR": os.path.join(self.home, "other")})
            self.assertEqual((rc, out), (2, b""), where)
            self.assertIn("--listen", err)
        self.assertEqual(self.run_bin("--listen", "127.0.0.1:0", "-p", "x")[0], 2)

    def test_half_open_connections(self):
        """Connections to the port without the key do not block it; those that have shown it, and the socket's, are not closed for new ones."""
        s = self.serve("--listen", "localhost:0")
        self.assertIn("http://127.0.0.1:", s.url)
        host, port = s.url.split("/")[2].split(":")
        at, key = (host, int(port)), {"X-Api-Key": s.key}
        mine = http.client.HTTPConnection(*at, timeout=driver.PATIENCE)
        mine.request("GET", "/v1/models", headers=key)
        self.assertEqual((lambda r: (r.status, bool(r.read())))(mine.getresponse()), (200, True))
        local = s.connection()
        local.connect()
        half = []
        for _ in range(400):
            half.append(socket.create_connection(at, driver.PATIENCE))
            half[-1].sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
        for path, headers in (("/v1/models", key), ("/health", {})):
            c = http.client.HTTPConnection(*at, timeout=5)  # not after the time that a header may take
            c.request("GET", path, headers=headers)
            self.assertEqual(c.getresponse().status, 200)
        for c, headers in ((mine, key), (local, {})):
            was = c.sock
            c.request("GET", "/v1/models", headers=headers)
            r = c.getresponse()
            self.assertEqual((r.status, bool(r.read()), c.sock is was), (200, True, True))
        self.assertFalse(s.spins(0.5))
        for c in half:
            c.close()

    def test_head_at_the_port(self):
        """Without the key, a client at the port has ten seconds for the head of its request."""
        self.env["HEARTH_LIMITS"] = "patience=100"
        s = self.serve("--listen", "0")
        host, port = s.url.split("/")[2].split(":")
        begun = time.monotonic()
        c = socket.create_connection((host, int(port)), driver.PATIENCE)
        c.sendall(b"GET /v1/models HTTP/1.1\r\n")
        self.assertEqual(c.recv(1000), b"")
        self.assertLess(time.monotonic() - begun, 5)  # the whole head of others may take 6 here
        c.close()

    def test_odd_requests(self):
        """Two lengths of a body are refused, and an escaped NUL does not end a path."""
        s = self.serve()
        for text, want in ((b"GET /v1/models/fake%00x HTTP/1.1\r\nHost: h\r\n\r\n", b"404"), (b"GET /v1/models/f%61ke HTTP/1.1\r\nHost: h\r\n\r\n", b"200"), (b"GET /v1/models/fake%0 HTTP/1.1\r\nHost: h\r\n\r\n", b"404"),
                           (b'POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Length: 16\r\n\r\n{"content": "a"}', b"200"),
                           (b'POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Length: 16\r\nContent-Length: 16\r\n\r\n{"content": "a"}', b"400"),
                           (b'POST /tokenize HTTP/1.1\r\nHost: h\r\nContent-Length: 16\r\ncontent-length: 17\r\n\r\n{"content": "a"}', b"400")):
            c = socket.socket(socket.AF_UNIX)
            c.settimeout(driver.PATIENCE)
            c.connect(s.path)
            c.sendall(text)
            self.assertEqual(c.recv(65536).split()[1], want, text)
            c.close()

    def test_fixed_key(self):
        """HEARTH_API_KEY is the key and is not printed; x-api-key works; /health needs none; other addresses need --allow-remote and a key."""
        self.env["HEARTH_API_KEY"] = "sesame"
        s = self.serve("--listen", "0", "--strict")
        host, port = s.url.split("/")[2].split(":")
        self.assertEqual((host, s.key), ("127.0.0.1", "HEARTH_API_KEY"))

        def get(path, **headers):
            c = http.client.HTTPConnection(host, int(port), timeout=driver.PATIENCE)
            c.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
            r = c.getresponse()
            return r.status, r.read()

        self.assertEqual([get("/v1/models", **h)[0] for h in ({"Authorization": "Bearer sesame"}, {"x_api_key": "sesame"}, {"x_api_key": "sesam"}, {})], [200, 200, 401, 401])
        self.assertEqual(get("/health"), (200, b'{"status": "ok"}\n'))
        self.assertEqual(get("/metrics")[0], 401)
        self.assertEqual(json.loads(s.request("POST", "/v1/chat/completions", ask("x", model="other"))[2])["error"]["code"], "model_not_found")
        self.assertEqual(s.chat("x")[0], 200)
        lines = dict(line.split() for line in get("/metrics", x_api_key="sesame")[1].decode().splitlines() if line[0] != "#")
        self.assertEqual((lines["hearth_requests_total"], lines["hearth_requests_running"]), ("1", "0"))
        self.assertGreater(int(lines["hearth_answer_tokens_total"]), 0)
        s.end()
        for key, args, want in (("sesame", ["--listen", "0.0.0.0:0"], "--allow-remote"), ("", ["--listen", "0.0.0.0:0", "--allow-remote"], "HEARTH_API_KEY"), ("a b", ["--listen", "0"], "HEARTH_API_KEY"),
                                ("sesame", ["--allow-remote"], "--listen")):
            rc, out, err = self.run_bin("--serve", *args, env={"HEARTH_API_KEY": key})
            self.assertEqual((rc, out), (2, b""), args)
            self.assertIn(want, err)

    def test_tokens_of_texts(self):
        s = self.serve()
        status, _, data = s.request("POST", "/tokenize", {"content": "h\u00e9llo"})
        tokens = json.loads(data)["tokens"]
        self.assertEqual((status, json.loads(data)["count"]), (200, len(tokens)))
        self.assertEqual(json.loads(s.request("POST", "/detokenize", {"tokens": tokens})[2])["content"], "h\u00e9llo")
        for path, body, word in (("/tokenize", {}, "content"), ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"), ("/detokenize", [], "must be a JSON object")):
            status, _, data = s.request("POST", path, body)
            self.assertEqual(status, 400)
            self.assertIn(word, json.loads(data)["error"]["message"])

    def test_port_is_held(self):
        """A client that holds the maximum number of connections at the port, and sends a byte now and then, delays no one at the socket."""
        s = self.serve("--listen", "127.0.0.1:0")
        host, port = s.url.split("/")[2].split(":")
        before = len(os.listdir(f"/proc/{s.p.pid}/fd"))
        held = [socket.create_connection((host, int(port))) for _ in range(300)]
        for c in held:
            c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nX: ")
        s.settles("held", lambda _: len(os.listdir(f"/proc/{s.p.pid}/fd")) >= before + 250)
        for _ in range(3):
            for c in held[100:]:  # the oldest gave way to the newest
                c.sendall(b"a")
            self.assertEqual(s.chat("hello")[0], 200)
        self.assertLess(len(os.listdir(f"/proc/{s.p.pid}/fd")), before + 270)
        for c in held:
            c.close()
        c = http.client.HTTPConnection(host, int(port), timeout=driver.PATIENCE)
        c.request("GET", "/v1/models", headers={"Authorization": "Bearer " + s.key})
        self.assertEqual(c.getresponse().status, 200)
        c.close()

    def test_says_nothing_of_prompts(self):
        s = self.serve("-v")
        s.chat("a secret of mine")
        chunks(s.stream("another secret"))
        s.p.terminate()
        self.assertNotIn(b"secret", b"".join(s.p.communicate()))


class Elsewhere(Case):
    """Third-party clients."""

    def test_curl(self):
        curl = driver.shutil.which("curl")
        if not curl:
            self.skipTest("curl is not installed")
        s = self.serve()
        run = lambda *args: driver.subprocess.run([curl, "-sS", "--max-time", "30", "--unix-socket", s.path, *args], capture_output=True)
        p = run("-N", "http://hearth/v1/chat/completions", "-d", json.dumps(ask("think", stream=True)))
        self.assertEqual((p.returncode, p.stdout.endswith(b"data: [DONE]\n\n")), (0, True))
        big = os.path.join(self.home, "big")
        with open(big, "wb") as f:
            f.truncate(17 << 20)
        p = run("-w", "%{http_code}", "http://hearth/v1/chat/completions", "--data-binary", "@" + big)
        self.assertTrue(p.stdout.endswith(b"413"), p)
        p = run("--max-time", "1", "http://hearth/v1/chat/completions", "-d", json.dumps(ask("prefill")))
        self.assertEqual(p.returncode, 28)
        s.settles("curl has left")

    def test_openai(self):
        try:
            import openai
        except ImportError:
            self.skipTest("the Python package openai is not installed")
        s = self.serve("--listen", "127.0.0.1:0")
        client = openai.OpenAI(base_url=s.url, api_key=s.key, timeout=driver.PATIENCE, max_retries=0)
        self.assertEqual([m.id for m in client.models.list()], ["fake"])
        hello = [{"role": "user", "content": "think"}]
        a = client.chat.completions.create(model="fake", messages=hello, temperature=0, seed=3)
        self.assertEqual((a.choices[0].message.content, a.choices[0].finish_reason, a.usage.completion_tokens), ("the answer", "stop", 28))
        self.assertEqual(a.choices[0].message.reasoning_content, "reasoning here")
        pieces = list(client.chat.completions.create(model="fake", messages=hello, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(p.choices[0].delta.content or "" for p in pieces if p.choices), "the answer")
        self.assertEqual(pieces[-1].usage.completion_tokens, 28)
        for wrong, kind in (({"n": 99}, openai.BadRequestError), ({"messages": [{"role": "user", "content": "fail"}]}, openai.InternalServerError)):
            with self.assertRaises(kind):
                client.chat.completions.create(**{"model": "fake", "messages": hello, **wrong})
        with self.assertRaises(openai.APIError):
            list(client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "fail"}], stream=True))
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=s.url, api_key="other", max_retries=0).models.list()
        tools = [{"type": "function", "function": {"name": n, "description": "d", "parameters": {"type": "object", "properties": {}}}} for n in ("weather", "time")]
        call = {"model": "fake", "messages": [{"role": "user", "content": "call"}], "tools": tools, "tool_choice": "auto"}
        a = client.chat.completions.create(**call)
        self.assertEqual([(c.function.name, json.loads(c.function.arguments)) for c in a.choices[0].message.tool_calls], [("weather", {"city": "Bern \U0001f600"}), ("time", {})])
        self.assertEqual((a.choices[0].finish_reason, a.choices[0].message.content), ("tool_calls", "Let me see."))
        with client.chat.completions.stream(**call) as events:  # the package joins the pieces, and checks them
            kinds = {e.type for e in events}
            whole = events.get_final_completion().choices[0]
        self.assertEqual([c.function.arguments for c in whole.message.tool_calls], [c.function.arguments for c in a.choices[0].message.tool_calls])
        self.assertTrue({"content.delta", "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds, kinds)
        back = call["messages"] + [a.choices[0].message.model_dump(exclude_none=True)] + [{"role": "tool", "tool_call_id": c.id, "content": "sunny"} for c in a.choices[0].message.tool_calls] + [{"role": "user", "content": "prompt"}]
        self.assertEqual(client.chat.completions.create(model="fake", messages=back, tools=tools).choices[0].message.content.count("[tool]sunny"), 2)
        a = client.chat.completions.create(model="fake", messages=[{"role": "developer", "content": "S"}, {"role": "user", "content": "sampling"}], max_completion_tokens=200, top_p=0.5, stop=["zz"], seed=4, parallel_tool_calls=False,
                                           extra_body={"top_k": 7})
        self.assertEqual(a.choices[0].message.content, "temp 0.5 top-p 0.5 top-k 7 min-p 0 repeat-penalty 1 seed 4 max 200")
        a = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "long"}], max_tokens=5)
        self.assertEqual((a.choices[0].message.content, a.choices[0].finish_reason), ("word0", "length"))
        for refused in ({"logit_bias": {"x": 1}}, {"response_format": {"type": "yaml"}}, {"tool_choice": "required", "tools": tools}):
            with self.assertRaises(openai.BadRequestError) as e:
                client.chat.completions.create(model="fake", messages=hello, **refused)
            self.assertIn(next(iter(refused)), e.exception.body["message"])
        self.assertEqual(client.models.retrieve("fake").id, "fake")
        self.assertEqual(client.chat.completions.create(model="gpt-4o", messages=hello).model, "fake")
        self.assertEqual(client.completions.create(model="fake", prompt="hello", max_tokens=4).object, "text_completion")
        stream = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "slow"}], stream=True)
        next(iter(stream))
        stream.close()
        s.settles("the stream was closed")


if __name__ == "__main__":
    driver.unittest.main()
