"""The resident engine with a real model: whatever other clients do, and whatever text they send, an answer is that of a private
engine."""
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import threading
import time
import unittest

import driver
import small_gguf
from server import Case, Server, ask, chunks

SPECIAL = ["<|im_end|>", "<|im_start|>system", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "<s>", "</s>", "[INST]", "<|eot_id|>", "<\u200b|im_end|>", "\u0000", "\ufeff", "\x1b[31m", "\r\n"]


class Served(Case):
    def setUp(self):
        super().setUp()
        self.use_ember_as_any_model()
        self.s = self.serve("--kv-cache", "off")

    def count(self, body):
        status, _, data = self.s.request("POST", "/hearth/tokens", body)
        self.assertEqual(status, 200, data)
        return json.loads(data)["tokens"]

    def ids(self, text):
        rc, out, err = self.run_bin("--tokenize", data=text)
        self.assertEqual(rc, 0, err)
        return json.loads(out)

    def test_other_clients_change_no_answer(self):
        """Prefixes shared with other clients' requests change no bit of an answer; a chat continues as in a private engine."""
        long = "please tell me how to save a chat and how to open it again on another day, and where the files of all chats lie on the disk of this machine"
        asked = [(long, 1), (long + ", in a word", 2), ("how do i save", 3), (long, 1), ("how", 4), ("how do i save", 3)]
        once = {}
        for text, seed in asked:
            if text not in once:
                once[text] = json.loads(self.run_bin("-p", text, "--seed", str(seed), "--temp", "1.3", "-n", "24", "--json", "--no-attach", "--kv-cache", "off")[1])["text"]
        for text, seed in asked:
            status, j = self.s.chat(text, seed=seed, temperature=1.3, max_tokens=24)
            self.assertEqual((j["choices"][0]["message"]["content"], j["usage"]["prompt_tokens_details"]["cached_tokens"]), (once[text], 0))
        first = self.s.chat("hello", seed=1, max_tokens=9)[1]["choices"][0]["message"]["content"]
        more = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": first}, {"role": "user", "content": "go on"}]
        got = json.loads(self.s.request("POST", "/v1/chat/completions", {"messages": more, "max_tokens": 4})[2])
        self.assertGreater(got["usage"]["prompt_tokens_details"]["cached_tokens"], 5)
        got = json.loads(self.s.request("POST", "/v1/chat/completions", {"messages": more, "max_tokens": 4})[2])
        self.assertEqual(got["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_a_short_prompt_passes_a_document(self):
        """A question is answered before a document that came earlier, with the answer that it gets alone. The document may be read before the question
        arrives: some tries."""
        question = "how do i save"
        alone = [self.s.chat(text, seed=1, max_tokens=8)[1]["choices"][0]["message"]["content"] for text in (question, "a word " * 250)]
        for _ in range(9):
            got = {}
            document = threading.Thread(target=lambda: got.update(document=self.s.chat("a word " * 250, seed=1, max_tokens=8)[1]))
            document.start()
            while not got and all(s["state"] == "idle" for s in self.s.status()["sessions"]):
                pass
            answer = self.s.chat(question, seed=1, max_tokens=8)[1]
            was_first = not got
            document.join()
            self.assertEqual([j["choices"][0]["message"]["content"] for j in (answer, got["document"])], alone)
            if was_first:
                return
        self.fail("a question waits for a document")

    def test_begun_answers(self):
        """A request continues an answer if it begins with more of that answer than the last one did; begun anew, it gets a fresh session's answer."""

        def answer(question, begun):
            """Returns the text with its beginning, and the cached tokens."""
            body = {"messages": [*ask(question)["messages"], {"role": "assistant", "content": begun}], "continue_final_message": True, "max_tokens": 8, "temperature": 0}
            j = json.loads(self.s.request("POST", "/v1/chat/completions", body)[2])
            return begun + j["choices"][0]["message"]["content"], j["usage"]["prompt_tokens_details"]["cached_tokens"]

        for question, n_lost in (("how do i save a chat", 0), ("where are the files of a chat", 2)):
            for begun in ("I am ", "I am ", "You can ", "I am "):
                text, cached = answer(question, begun)
                self.assertEqual(cached, 0, begun)
            self.assertGreater(answer(question, text[:len(text) - n_lost])[1], 10)

    def test_two_hundred(self):
        """Clients of several jobs that come, go, hang, are cut off and killed: those that stay get a private engine's answer, and nothing
        is left of the others."""
        s, r, kinds = self.s, random.Random(2), ["whole", "stream", "gone", "half", "hang", "reset", "killed"]
        asked = [{"text": text * (1 + 2 * i), "seed": i, "n": 3 + i} for i, text in enumerate(("how do i save a chat? ", "what is a seed? ", "files ", "and then? "))]
        for q in asked:
            q["want"] = json.loads(self.run_bin("-p", q["text"], "--seed", str(q["seed"]), "--temp", "1", "-n", str(q["n"]), "--json", "--no-attach", "--kv-cache", "off")[1])["text"]
        fds = lambda: len(os.listdir(f"/proc/{s.p.pid}/fd"))
        self.assertEqual(s.chat("warm", max_tokens=1)[0], 200)
        before, wrong, hung, lock = fds(), [], [], threading.Lock()

        def request(i, kind):
            q = asked[i % len(asked)]
            body = ask(q["text"], seed=q["seed"], temperature=1, max_tokens=q["n"] if kind in ("whole", "stream") else 100, stream=kind == "stream" or i % 2 == 0)
            body["stream"] &= kind != "whole"
            data = json.dumps(body).encode()
            return q, data, b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(data) + data

        def process(i):
            """A client that asks, and waits to be killed."""
            child = os.fork()
            if not child:
                try:
                    os.closerange(3, 4096)
                    c = socket.socket(socket.AF_UNIX)
                    c.connect(s.path)
                    c.sendall(request(i, "killed")[2])
                    signal.pause()
                finally:
                    os._exit(0)
            return child

        def client(i, kind, c):
            q, body, data = request(i, kind)
            try:
                if kind in ("whole", "stream"):
                    c.request("POST", "/v1/chat/completions", body)
                    r = c.getresponse()
                    if kind == "whole":
                        got = json.loads(r.read())["choices"][0]["message"]["content"]
                    else:
                        got, done = chunks(r)
                        got = "".join(x["choices"][0]["delta"].get("content", "") for x in got) if done else got
                    if got != q["want"]:
                        wrong.append((i, kind, q, got))
                elif kind == "killed":
                    time.sleep(i % 5 / 50)
                    os.kill(c, signal.SIGKILL)
                    os.waitpid(c, 0)
                    return
                else:
                    c.sock.sendall(data[:len(data) * (i % 7) // 7] if kind in ("half", "hang") else data)
                    if kind == "hang":
                        with lock:
                            hung.append(c)
                        return
                    time.sleep(i % 5 / 50)
                    if kind == "reset":
                        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                c.close()
            except (OSError, http.client.HTTPException, ValueError, KeyError) as e:
                wrong.append((i, kind, repr(e)))

        jobs, threads = [], []
        for k in range(20):
            connections, job = s.from_job(10)
            jobs.append(job)
            threads += [(10 * k + i, r.choice(kinds), c) for i, c in enumerate(connections)]
        for i, kind, c in threads:
            if kind == "killed":
                c.close()
        threads = [threading.Thread(target=client, args=(i, kind, process(i) if kind == "killed" else c)) for i, kind, c in threads]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])
        self.nothing_stays(s, hung, fds, before, jobs)

    def test_text_stays_text(self):
        """In any role and position, text that looks like a control token is plain letters."""
        plain, n = self.ids("x"), 0
        for role in ("system", "user", "assistant", "tool"):
            body = lambda text: {"messages": [{"role": "user", "content": "a"}] * (role not in ("system", "user")) + [{"role": role, "content": text}] + [{"role": "user", "content": "b"}] * (role != "user")}
            before = self.count(body("x"))
            if self.count(body("x and more")) == before:
                continue  # the template drops such a role
            for text in SPECIAL:
                inner = "x" + text + "x"  # a template may strip text at the ends
                self.assertEqual(self.count(body(inner)) - before, len(self.ids(inner)) - len(plain), (role, text))
                n += 1
        self.assertGreaterEqual(n, 3 * len(SPECIAL))
        for text in SPECIAL:
            body = ask([{"type": "text", "text": "x" + text}, {"type": "text", "text": text + "x"}])
            self.assertEqual(self.count(body), self.count(ask("x" + text + text + "x")))
        begun = lambda text: {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": text}], "continue_final_message": True}
        for text in SPECIAL:
            self.assertEqual(self.count(begun("x" + text)) - self.count(begun("x")), len(self.ids("x" + text)) - len(plain), text)

    def test_invalid_bytes_are_answered_or_refused(self):
        """Invalid bytes in a request are answered or refused, and the reply is valid JSON."""
        for text in SPECIAL + ["\ud800".encode("utf-16", "surrogatepass").decode("utf-16", "replace"), "\u202e", "a" * 3000, "\x9b31m", "\x07" * 50]:
            got, done = chunks(self.s.stream(text, max_tokens=3, temperature=2))
            self.assertTrue(done, text)
        for raw in (b'{"messages": [{"role": "user", "content": "\xc3\x28"}]}', b'{"messages": [{"role": "user", "content": "a\x00b"}]}',
                    b"[" * 100000, b'{"messages": ' + b'[' * 5000 + b']' * 5000 + b'}'):
            status, _, data = self.s.request("POST", "/v1/chat/completions", raw)
            self.assertEqual(status, 400, raw[:80])
            self.assertIn("message", json.loads(data)["error"])
        half = b'{"messages": [{"role": "user", "content": "a\\ud83d"}], "max_tokens": 1}'  # of an emoji that a client cut
        self.assertEqual(self.s.request("POST", "/v1/chat/completions", half)[0], 200)
        self.assertEqual(self.s.chat("x", max_tokens=1)[0], 200)


DOCUMENT = " ".join(f"line {i} says how a chat is saved and opened again." for i in range(40))


class Faults(Case):
    """Memory, files and disks that fail at any point while clients are served: each gets the usual answer or an error, never another answer, and later
    clients are served."""
    CASES = int(os.environ.get("FAULT_CASES", "16"))  # per kind

    def setUp(self):
        super().setUp()
        self.use_ember_as_any_model()
        self.env["HEARTH_LIMITS"] = "spin=100,keep=1,rows=128,wait=60000"
        self.kv = os.path.join(self.home, ".cache/hearth/kv")
        self.args = ("-t", "1", "--parallel", "3")

    def start(self, fault=None):
        """Starts a server; returns None if it reported an error or was killed."""
        self.env["HEARTH_FAULT"] = fault or ""
        try:
            return Server(self.env, *self.args)
        except RuntimeError as e:
            self.assertRegex(str(e), "^(hearth: |$)")
            return None

    def all_of_it(self, s):
        """Returns the answers to some requests; None: an error, or nothing."""

        def whole(path, body):
            try:
                status, _, data = s.request("GET" if body is None else "POST", path, body)
            except (ConnectionError, http.client.HTTPException):
                return None
            j = json.loads(data)
            if status == 200:
                return j["choices"][0]["message"]["content"] if "choices" in j else j.get("tokens", sorted(j))
            self.assertGreaterEqual(status, 500)
            self.assertTrue(j["error"]["message"])
            return None

        def pieces(body):
            c = s.connection()
            try:
                c.request("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}))
                r = c.getresponse()
                if r.status != 200:
                    self.assertGreaterEqual(r.status, 500)
                    return None
                got, done = chunks(r)
            except (ConnectionError, http.client.HTTPException):
                return None
            finally:
                c.close()
            return "".join(x["choices"][0]["delta"].get("content", "") for x in got if x.get("choices")) if done else None

        more = {"seed": 3, "temperature": 1.3, "max_tokens": 10}
        first = ask("how do i save a chat?", **more)
        out = [whole("/v1/models", None), whole("/hearth/status", None), whole("/hearth/tokens", ask("hello")), whole("/v1/chat/completions", first), pieces(ask(DOCUMENT + "\n\nwhy?", **more))]
        talk = {"messages": first["messages"] + [{"role": "assistant", "content": out[3] or "x"}, {"role": "user", "content": "and then?"}], **more, "stop": ["zzz"]}
        return out + [whole("/v1/chat/completions", talk) if out[3] else None]

    def sweep(self, kind, numbers, want, files, forever=False):
        """Returns how many faults were observed."""
        seen = 0
        for n in numbers:
            shutil.rmtree(self.kv, ignore_errors=True)
            if files:
                shutil.copytree(files, self.kv)
            s = self.start(f"{kind}:{n}" + "+" * forever)
            if not s:
                seen += 1
                continue
            try:
                for round in range(3):
                    got = self.all_of_it(s)
                    self.assertIsNone(s.p.poll(), (kind, n))
                    for a, b in zip(got, want):
                        self.assertIn(a, (None, b), (kind, n))
                    seen += round == 0 and got != want
                    if got == want:
                        break
                self.assertTrue(forever or got == want, (kind, n, got))
                s.p.send_signal(signal.SIGTERM)
                said = s.p.stderr.read().decode()
                self.assertIn(s.p.wait(driver.PATIENCE), (0, 1, 5, -signal.SIGTERM), (kind, n, said))
                self.assertNotRegex(said, "Sanitizer|runtime error")
            finally:
                s.p.kill()
                s.p.wait()
                s.p.stdout.close(), s.p.stderr.close()
        return seen

    def reaches(self, kind, answered):
        """Returns the number of calls of a kind until the server has started, or until it has answered."""
        low, high = 0, 64

        def killed(n):
            shutil.rmtree(self.kv, ignore_errors=True)
            s = self.start(f"{kind}:{n}!")
            over = not s or (answered and None in self.all_of_it(s))
            if s:
                s.p.kill()
                s.p.wait()
                s.p.stdout.close(), s.p.stderr.close()
            return over

        while killed(high):
            low, high = high, 2 * high
        while high - low > max(1, high // 100):
            middle = (low + high) // 2
            low, high = (middle, high) if killed(middle) else (low, middle)
        return low

    def test_faults(self):
        s = self.start()
        self.addCleanup(s.end)
        want = self.all_of_it(s)
        self.assertNotIn(None, want)
        s.settles("written", lambda _: len(os.listdir(self.kv)) > 2)
        s.end()
        files = os.path.join(self.home, "files")
        shutil.copytree(self.kv, files)
        begin, end = self.reaches("alloc", False), self.reaches("alloc", True)
        self.assertGreater(end, begin + 200)
        spread = lambda k: range(begin, end, max(1, (end - begin) // k))
        self.assertGreater(self.sweep("alloc", spread(self.CASES), want, None), self.CASES // 4)
        self.assertGreater(self.sweep("alloc", spread(self.CASES // 4), want, files, True), self.CASES // 8)
        few = max(2, self.CASES // 6)
        for kind in ("open", "read", "write", "sync", "rename"):
            for place in (None, files):
                self.sweep(kind, range(1, 1 + few), want, place)
                self.sweep(kind, (few,), want, place, True)

    def test_blocked_output_does_not_stop_the_server(self):
        """A stopped terminal, a full pipe: the server serves others, and ends when told to."""
        r, w = os.pipe()
        os.set_blocking(w, False)
        with self.assertRaises(BlockingIOError):
            while True:
                os.write(w, b" " * 4096)
        os.set_blocking(w, True)
        s = Server({**self.env, "HEARTH_FAULT": "rename:1+"}, *self.args, stderr=w)
        self.addCleanup(s.p.stdout.close)
        self.addCleanup(s.p.kill)
        want = s.request("POST", "/v1/chat/completions", ask(DOCUMENT + "\n\nwhy?", seed=3, max_tokens=5))  # which cannot be stored; that is reported
        self.assertEqual(want[0], 200)
        time.sleep(0.5)
        self.assertEqual(s.request("POST", "/v1/chat/completions", ask("how do i save a chat?", max_tokens=2))[0], 200)
        s.request("POST", "/hearth/stop")
        self.assertEqual(s.p.wait(driver.PATIENCE), 0)
        self.assertEqual(os.read(r, 1 << 20).strip(), b"")
        os.close(w)
        self.assertEqual(os.read(r, 1 << 20).strip(), b"")
        os.close(r)


class Chosen(Case):
    """Which model answers when none is given, and when a saved chat is continued."""

    def copy_ember(self, name):
        path = os.path.join(self.home, name)
        shutil.copytree(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../engine/ember/model"), path)
        return path

    def test_resident_engine_answers(self):
        path = self.copy_ember("big")
        ask = ("-p", "how do I save a chat?", "--temp", "0", "-n", "4")
        self.assertEqual(self.run_bin(*ask, "-q")[0], 0)
        s = self.serve("-m", path)
        rc, out, err = self.run_bin(*ask)
        self.assertEqual((rc, s.status()["answered"]), (0, 1))
        self.assertIn(f"the resident engine answers, with its model big; -m NAME opens another", err)
        _, out, err = self.run_bin("-t", "1", *ask)
        self.assertIn(f"the resident engine, with its model {path}, has other options; opening ember: in this process, -m NAME opens another", err)
        self.run_bin("-m", "ember", *ask)
        self.run_bin("--no-attach", *ask)
        self.run_bin(*ask, env={"HEARTH_MODEL": "ember"})
        self.assertEqual(s.status()["answered"], 1)
        t = self.terminal()
        t.prompt(t.until("The resident engine answers; --no-attach opens the model in this process."))
        t.send("/bye\r")
        t.wait()
        os.makedirs(os.path.join(self.home, ".config/hearth"))
        with open(os.path.join(self.home, ".config/hearth/config"), "w") as f:
            f.write(f"model = {self.copy_ember('other')}\n")
        self.assertIn("resident engine answers", self.run_bin(*ask)[2])
        s.p.send_signal(signal.SIGTERM)
        s.p.wait()
        t = self.terminal()
        t.prompt(t.until("other, the default model. Type a question"))

    def test_changed_files(self):
        path = self.copy_ember("model")
        self.assertEqual(self.run_bin("-m", path, "--save", "talk", "-p", "hi", "-n", "2", "-q")[0], 0)
        again = ("--continue", "talk", "-p", "hi", "-n", "2", "-q")
        self.assertEqual(self.run_bin(*again)[0], 0)
        with open(path + "/model.safetensors", "rb") as f:
            data = f.read()
        head = struct.unpack("<Q", data[:8])[0]
        with open(path + "/model.safetensors", "wb") as f:  # the same tensors at other places
            f.write(struct.pack("<Q", head + 8) + data[8:8 + head] + b" " * 8 + data[8 + head:])
        for args in (again, ("--last", *again[2:])):
            rc, out, err = self.run_bin(*args)
            self.assertEqual((rc, out), (3, b""))
            self.assertRegex(err, "have changed since the conversation 'talk'; -m .*/model continues it with the new files")
        t = self.terminal("--last")
        self.assertEqual(t.wait(), 3)
        self.assertEqual(self.run_bin("-m", path, *again)[0], 0)
        self.assertEqual(self.run_bin(*again)[0], 0)  # the new files are the conversation's now


class Bound(Case):
    """--max-tpot in each mode of use. Every answer is that without a bound; one that nothing meets is reported once."""
    MISSED = r"hearth: a limit of 0\.001 ms per token cannot be met: with one session, a token takes [\d.]+ ms \([\d.]+ ms expected\) by cpu, the fastest choice; answers are generated one at a time \(--max-tpot\)\n"
    ASK = ("-n", "20", "--seed", "3", "--temp", "1", "--kv-cache", "off", "--no-attach", "--draft", "none")

    def setUp(self):
        super().setUp()
        self.use_ember_as_any_model()

    def test_question_and_batch(self):
        text = "please tell me how to save a chat and how to open it again on another day"
        plain = self.run_bin("-p", text, *self.ASK)
        for ms, missed in (("1000", 0), ("0.001", 1)):
            rc, out, err = self.run_bin("-p", text, *self.ASK, "--max-tpot", ms, "--explain")
            self.assertEqual((rc, out, len(re.findall(self.MISSED, err))), (0, plain[1], missed), err)
            self.assertRegex(err, r"ms per token, " + ("the least, above the limit of 0.001 \\(--max-tpot" if missed else "within the limit of 1000 \\(--max-tpot"))
        lines = self.write("lines", "".join(f"{text} {i}\n" for i in range(6)))
        whole = sorted(json.loads(x)["text"] for x in self.run_bin("--batch", lines, *self.ASK)[1].splitlines())
        rc, out, err = self.run_bin("--batch", lines, *self.ASK, "--max-tpot", "0.001")
        self.assertEqual((rc, len(re.findall(self.MISSED, err))), (0, 1), err)
        self.assertEqual(sorted(json.loads(x)["text"] for x in out.splitlines()), whole)

    def test_server_and_chat(self):
        s, got = self.serve("--kv-cache", "off", "--draft", "none", "--max-tpot", "0.001"), {}
        rc, want, _ = self.run_bin("-p", "how do i save", "-n", "40", "--seed", "3", "--temp", "1", "--json", "--no-attach", "--kv-cache", "off")
        ask = lambda i: got.update({i: s.chat("how do i save", seed=3, temperature=1, max_tokens=40)[1]["choices"][0]["message"]["content"]})
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(5)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(list(got.values()), 5 * [json.loads(want)["text"]])
        s.request("POST", "/hearth/stop")
        s.p.wait()
        self.assertEqual(len(re.findall(self.MISSED, s.p.stderr.read().decode())), 1)
        t = self.terminal("--no-attach", "--max-tpot", "0.001", "--draft", "none")
        t.prompt(t.until("Type a question"))
        t.send("how do i save a chat?\r")
        t.until("a limit of 0.001 ms per token cannot be met")


class SeveralModels(Case):
    def test_switches(self):
        """--max-models with two real models and a damaged one: whoever has been open before, an answer is that of a private engine."""
        models = os.path.join(self.home, "models")
        os.mkdir(models)
        os.symlink(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../engine/ember/model"), os.path.join(models, "copy"))
        for name, data in (("small.gguf", small_gguf.one("F16")), ("cut.gguf", small_gguf.one("F16")[:-5000])):
            with open(os.path.join(models, name), "wb") as f:
                f.write(data)
        want = {}
        for name in ("copy", "small.gguf"):
            rc, out, err = self.run_bin("-m", os.path.join(models, name), "-p", "how do i save", "--temp", "0", "-n", "8", "--json", "--no-attach", "--kv-cache", "off")
            self.assertEqual(rc, 0, err)
            want[name] = json.loads(out)["text"]
        for most in ("1", "2"):
            s = self.serve("--kv-cache", "off", "--max-models", most, "--model-path", models)
            for name in ("copy", "small.gguf", "cut.gguf", "small.gguf", "copy", "small.gguf"):
                status, j = s.chat("how do i save", model=name, temperature=0, max_tokens=8)
                if name == "cut.gguf":
                    self.assertEqual(status, 500, j)
                    self.assertIn("cut.gguf", j["error"]["message"])
                else:
                    self.assertEqual((status, j["choices"][0]["message"]["content"]), (200, want[name]), j)
            threads = [threading.Thread(target=lambda n=n: got.append((n, s.chat("how do i save", model=n, temperature=0, max_tokens=8)))) for n in ("copy", "small.gguf") * 4]
            got = []
            [t.start() for t in threads]
            [t.join() for t in threads]
            self.assertEqual([(n, (200, want[n])) for n, _ in got], [(n, (status, j["choices"][0]["message"]["content"])) for n, (status, j) in got])
            self.assertEqual(len(json.loads(s.request("GET", "/api/ps")[2])["models"]), int(most))
            s.end()


if __name__ == "__main__":
    unittest.main()
