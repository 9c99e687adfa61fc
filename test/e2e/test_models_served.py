"""--serve --max-models: requests choose among models. On the fake engine, whose answer to `who` is the directory of its model."""
import json
import os
import signal
import threading
import time
import unittest

import driver
import server

PATHS = (("/v1/chat/completions", {"messages": [{"role": "user", "content": "who"}]}), ("/v1/responses", {"input": "who"}), ("/v1/messages", {"messages": [{"role": "user", "content": "who"}], "max_tokens": 50}),
         ("/api/chat", {"messages": [{"role": "user", "content": "who"}], "stream": False}), ("/api/generate", {"prompt": "who", "stream": False}), ("/infill", {"input_prefix": "a", "input_suffix": "b"}))


def text_of(answer):
    if "choices" in answer:
        return answer["choices"][0]["message"]["content"]
    if "output" in answer:
        return answer["output"][0]["content"][0]["text"]
    if "response" in answer:
        return answer["response"]
    return answer["message"]["content"] if "message" in answer else answer["content"][0]["text"]


class Models(driver.ChatCase):
    def serve(self, *args, env=None, names=("alpha", "beta", "gamma")):
        for name in names:
            self.model(name)
        s = server.Server({**self.env, **(env or {})}, "--model-path", os.path.join(self.home, "models"), *args, stderr=open(os.path.join(self.home, "err"), "w"))
        self.servers.append(s)
        return s

    def setUp(self):
        super().setUp()
        self.servers = []

    def tearDown(self):
        """Ends the servers while their sockets are there, so that a sanitizer can report."""
        for s in self.servers:
            s.p.stderr = open(os.path.join(self.home, "err"), "rb")
            s.end()
            self.assertIn(s.p.returncode, (0, -signal.SIGTERM))
        super().tearDown()

    def post(self, s, path, body):
        status, headers, data = s.request("POST", path, body)
        return status, json.loads(data)

    def who(self, s, model, text="who", **more):
        status, answer = self.post(s, "/v1/chat/completions", {"model": model, **server.ask(text), **more})
        return text_of(answer) if status == 200 else (status, answer["error"]["message"])

    def opened(self, s):
        return [m["name"] for m in json.loads(s.request("GET", "/api/ps")[2])["models"]]

    def settles(self, s, names, what="open models"):
        end = time.monotonic() + driver.PATIENCE
        while (found := self.opened(s)) != names:
            self.assertLess(time.monotonic(), end, (what, found))
            time.sleep(0.01)

    def test_choice(self):
        """Each protocol's `model` chooses; one is open at a time, and lists tell the truth."""
        s = self.serve("--max-models", "1")
        self.assertEqual(self.opened(s), [])
        for path, body in PATHS[:-1]:
            for name in ("alpha", "beta"):
                status, answer = self.post(s, path, {"model": name, **body})
                self.assertEqual((status, text_of(answer), answer.get("model")), (200, name, name), (path, answer))
                self.assertEqual(self.opened(s), [name])
        names = [m["id"] for m in json.loads(s.request("GET", "/v1/models")[2])["data"]]
        self.assertEqual(sorted(names), ["alpha", "beta", "ember", "gamma"])
        self.assertEqual([m["name"] for m in json.loads(s.request("GET", "/api/tags")[2])["models"]], names)
        self.assertEqual(json.loads(s.request("GET", "/v1/models/gamma")[2])["id"], "gamma")
        self.assertEqual(s.request("GET", "/v1/models/delta")[0], 404)
        self.assertEqual(s.status()["models"], ["beta"])
        self.assertEqual(self.who(s, "alpha:latest"), "alpha")
        status, answer = self.post(s, "/api/show", {"model": "gamma"})  # without opening it
        self.assertEqual((status, answer["capabilities"], self.opened(s)), (200, ["completion", "tools"], ["alpha"]))
        self.assertEqual(self.post(s, "/tokenize", {"model": "beta", "content": "abc"})[1]["count"], 3)
        self.assertEqual(self.post(s, "/v1/messages/count_tokens", {"model": "beta", **PATHS[2][1]})[0], 200)
        self.assertEqual(self.opened(s), ["alpha"])
        self.model("delta")  # has come since
        time.sleep(5.1)
        self.assertEqual(self.who(s, "delta"), "delta")

    def test_unknown(self):
        """A name that no model has is 404 in each protocol's form, and names what exists."""
        s = self.serve("--max-models", "2")
        for path, body in PATHS:
            for name in ("gpt-4o", "../models/alpha", os.path.join(self.home, "models/alpha"), "", "lpha"):
                if not name:
                    continue
                status, answer = self.post(s, path, {"model": name, **body})
                self.assertEqual(status, 404, (path, answer))
                said = answer["error"] if isinstance(answer["error"], str) else answer["error"]["message"]
                self.assertTrue(said.startswith(f"no model {name}; there are ") and "alpha" in said and "gamma" in said, said)
        self.assertEqual(self.post(s, "/v1/messages", {"model": "x", **PATHS[2][1]})[1]["error"]["type"], "not_found_error")
        self.assertEqual(self.opened(s), [])

    def test_default(self):
        """-m is opened at the start, and answers requests without a model."""
        s = self.serve("--max-models", "1", "-m", "beta")
        self.settles(s, ["beta"])
        self.assertEqual(text_of(self.post(s, "/v1/chat/completions", server.ask("who"))[1]), "beta")
        self.assertEqual(self.who(s, "gamma"), "gamma")
        self.assertEqual(text_of(self.post(s, "/v1/chat/completions", server.ask("who"))[1]), "beta")

    def test_without_option(self):
        """Without --max-models nothing changes: one model answers to every name."""
        s = self.serve("-m", "beta")
        self.assertEqual(self.who(s, "gpt-4o"), "beta")
        self.assertEqual(self.post(s, "/api/generate", {"model": "alpha", "keep_alive": 0})[1]["done_reason"], "load")
        self.assertEqual(self.who(s, "alpha"), "beta")
        for args, what in ((["--keep-alive", "5"], "--keep-alive needs --max-models"), (["--max-models", "off"], "--max-models: 1 or more"), (["--max-models", "x"], "neither a size")):
            rc, out, err = self.run_bin("--serve", *args, env={"XDG_RUNTIME_DIR": os.path.join(self.home, "other"), "HOME": os.path.join(self.home, "h2")})
            self.assertEqual(rc, 2)
            self.assertIn(what, err)
        self.assertIn("--max-models needs --serve", self.run_bin("--max-models", "1", "-p", "x")[2])

    def test_several(self):
        """N models are open at once; the one used least recently goes."""
        s = self.serve("--max-models", "2")
        for name, now in (("alpha", ["alpha"]), ("beta", ["alpha", "beta"]), ("alpha", ["alpha", "beta"]), ("gamma", ["alpha", "gamma"]), ("beta", ["beta", "gamma"])):
            self.assertEqual(self.who(s, name), name)
            self.assertEqual(self.opened(s), now)

    def test_size(self):
        for name in ("alpha", "beta"):
            self.write(f"models/{name}/weights", "x" * 600_000)
        s = self.serve("--max-models", "1M")
        self.who(s, "alpha")
        self.who(s, "gamma")
        self.assertEqual(self.opened(s), ["alpha", "gamma"])
        self.who(s, "beta")
        self.assertEqual(self.opened(s), ["beta", "gamma"])

    def test_under_load(self):
        """Requests for others wait until the answers that run have ended; those that came later wait for them. Nothing is lost."""
        s = self.serve("--max-models", "1", env={"FAKE_LOAD": "0.1"})
        self.who(s, "alpha")
        first = s.stream("slow", model="alpha")
        first.read1()
        done, lock = [], threading.Lock()

        def ask(name):
            answer = self.who(s, name)
            with lock:
                done.append((name, answer))

        threads = [threading.Thread(target=ask, args=(name,)) for name in ("beta", "alpha", "gamma", "beta", "alpha")]
        for i, t in enumerate(threads):
            t.start()
            s.settles("queue", lambda status: sum(x["state"] == "waiting" for x in status["sessions"]) >= i + 1)
        self.assertEqual(self.opened(s), ["alpha"])
        self.assertIn(b"[DONE]", first.read())
        for t in threads:
            t.join()
        self.assertEqual([name for name, _ in done], [answer for _, answer in done])
        self.assertEqual(len(done), 5)

    def test_silence(self):
        """A stream that waits for its model says that it is still there."""
        s = self.serve("--max-models", "1", env={"FAKE_LOAD": "1.5", "HEARTH_LIMITS": "patience=50"})
        r = s.stream("who", model="beta")
        text = r.read()
        self.assertRegex(text, rb"(?m)^: ")
        self.assertEqual("".join(json.loads(line[6:])["choices"][0]["delta"].get("content") or "" for line in text.decode().split("\n") if line.startswith("data: {")), "beta")

    def test_bad_model(self):
        """A model that does not open answers with the reason, each time; the server and the others go on."""
        s = self.serve("--max-models", "1", names=("alpha", "bad", "badtext"))
        self.assertEqual(self.who(s, "alpha"), "alpha")
        for _ in range(2):
            self.assertEqual(self.who(s, "bad"), (500, "bad: a tensor is missing"))
            r = s.stream("who", model="bad")
            self.assertIn(b"a tensor is missing", r.read())
            self.assertEqual(self.post(s, "/api/generate", {"model": "bad"}), (500, {"error": "bad: a tensor is missing"}))
        self.assertEqual(self.who(s, "alpha"), "alpha")
        os.rename(os.path.join(self.home, "models/badtext"), os.path.join(self.home, "gone"))
        self.assertEqual(self.who(s, "alpha"), "alpha")

    def test_memory(self):
        """A model that finds no memory beside others gets theirs."""
        s = self.serve("--max-models", "3", names=("alpha", "beta", "large"))
        self.who(s, "alpha"), self.who(s, "beta")
        self.assertEqual(self.who(s, "large"), "large")
        self.assertEqual(self.opened(s), ["large"])

    def test_keep_alive(self):
        second = {"HEARTH_LIMITS": "patience=20"}  # milliseconds
        s = self.serve("--max-models", "2", "--keep-alive", "1000000", env=second)
        ask = lambda **more: self.post(s, "/api/chat", {"model": "alpha", **PATHS[3][1], **more})[0]
        for keep in (0, "0", "0s", "10ms", "1s", 2, "-0"):
            self.assertEqual(ask(keep_alive=keep), 200, keep)
            self.settles(s, [], keep)
        for keep in ("x", "5x", "m", "", [], True):
            self.assertEqual(ask(keep_alive=keep), 400, keep)
        self.assertEqual(self.post(s, "/api/generate", {"model": "alpha", "keep_alive": -1})[1]["done_reason"], "load")
        self.assertEqual(self.opened(s), ["alpha"])
        self.assertEqual(self.post(s, "/api/generate", {"model": "alpha", "keep_alive": 0})[1]["done_reason"], "unload")
        self.settles(s, [])
        s.request("POST", "/hearth/stop")
        s.p.wait(driver.PATIENCE)
        s = self.serve("--max-models", "2", "--keep-alive", "0.01", env=second)
        for keep in (-1, "-1", "-1m", "1h30m", "1000000s", 1e9):
            self.assertEqual(ask(keep_alive=keep), 200, keep)
            time.sleep(0.2)
            self.assertEqual(self.opened(s), ["alpha"], keep)
        row, = json.loads(s.request("GET", "/api/ps")[2])["models"]
        self.assertRegex(row["expires_at"], r"^20\d\d-")
        self.assertEqual(ask(), 200)  # the option's again
        self.settles(s, [])

    def test_option_keep_alive(self):
        s = self.serve("--max-models", "2", "--keep-alive", "0.01")
        self.who(s, "alpha")
        self.settles(s, [])
        self.who(s, "beta")
        with s.stream("drip", model="beta") as r:  # an answer that runs keeps it
            r.read1()
            time.sleep(1)
            self.assertEqual(self.opened(s), ["beta"])
        self.settles(s, [])

    def test_disconnect_while_loading(self):
        s = self.serve("--max-models", "1", env={"FAKE_LOAD": "0.5"})
        for stream in (True, False):
            c = s.connection()
            c.request("POST", "/v1/chat/completions", json.dumps({"model": "alpha", "stream": stream, **server.ask("who")}))
            s.settles("waiting", lambda status: any(x["state"] == "waiting" for x in status["sessions"]))
            c.sock.close()
            c.close()
            s.settles("left", lambda status: not status["sessions"])
            self.assertEqual(self.who(s, "beta"), "beta")

    def test_end_while_loading(self):
        """SIGTERM while a model opens: clients are told, and the server ends at once."""
        for sig in (signal.SIGTERM, None):
            s = self.serve("--max-models", "1", env={"FAKE_LOAD": "1000"})
            r = s.stream("who", model="alpha")
            c = s.connection()
            c.request("POST", "/api/generate", json.dumps({"model": "alpha"}))
            s.settles("waiting", lambda status: any(x["state"] == "waiting" for x in status["sessions"]))
            if sig:
                os.kill(s.p.pid, sig)
            else:
                s.request("POST", "/hearth/stop")
            self.assertIn(b"shutting down", r.read())
            self.assertEqual(c.getresponse().status, 503)
            self.assertIn(s.p.wait(timeout=driver.PATIENCE), (0, -signal.SIGTERM))
            self.assertFalse(os.path.exists(s.path))

    def test_sessions(self):
        """Sessions are shared out among models, and their number stays within --parallel."""
        s = self.serve("--max-models", "2", "--parallel", "2")
        for _ in range(3):
            for name in ("alpha", "beta"):
                threads = [threading.Thread(target=self.who, args=(s, name)) for _ in range(3)]
                [t.start() for t in threads]
                [t.join() for t in threads]
                self.assertLessEqual(len(s.status()["sessions"]), 2)
        self.assertEqual(self.who(s, "alpha"), "alpha")


if __name__ == "__main__":
    unittest.main()
