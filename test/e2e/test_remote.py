"""Engines in other processes: the resident one, found automatically, and servers by a URL; and --batch on both."""
import json
import os
import re
import signal
import socket
import subprocess
import time

import driver
import told
from server import Case
from told import stream


class Attached(Case):
    def setUp(self):
        super().setUp()
        self.s = self.serve()

    def answered(self):
        return self.s.status()["answered"]

    def test_same_as_alone(self):
        """Text, thinking, finish reason, usage and seed, for every kind of request."""
        for args in (["hello there"], ["think"], ["long", "-n", "7"], ["long", "--until", "word3"], ["broken"], ["sampling", "--temp", "0.25", "--top-p", "0.5", "--top-k", "9", "--min-p", "0.1"],
                     ["sampling", "-n", "300", "--repeat-penalty", "1.5"],
                     ["sampling", "--dry-multiplier", "1", "--dry-sequence-breakers", '["\\n", "Tom:"]', "--dry-penalty-last-n", "99", "--top-n-sigma", "1"], ["prompt x", "-s", "A system."], ["prompt y", "-c", "65536"], ["call"], ["nonsense"]):
            before = self.answered()
            alone, attached = (json.loads(self.run_bin("-p", *args, "--seed", "3", "--json", *more)[1]) for more in (["--no-attach"], []))
            self.assertEqual(self.answered(), before + ("-c" not in args), args)
            for j in (alone, attached):
                del j["timing"]
                if "--until" in args:
                    del j["usage"]  # by then the engine has received the cancel
            self.assertEqual(alone, attached, args)
        self.assertEqual(self.run_bin("-p", "think", "--explain")[1:], self.run_bin("-p", "think", "--explain", "--no-attach")[1:])

    def test_forms(self):
        self.assertEqual(self.run_bin("-p", "think"), (0, b"the answer\n", "reasoning here\n"))
        lines = [json.loads(line) for line in self.run_bin("-p", "think", "--json-lines")[1].splitlines()]
        self.assertEqual("".join(x["text"] for x in lines if x["type"] == "delta"), "the answer")
        self.assertEqual((lines[-1]["reason"], lines[-2]["usage"]["answer_tokens"]), ("stop", 28))
        rc, out, err = self.run_bin("-p", "fail")
        self.assertEqual((rc, out), (1, b"begun\n"))
        self.assertIn("non-finite", err)
        rc, out, err = self.run_bin("-p", "x" * 70000)
        self.assertEqual((rc, out), (4, b""))
        self.assertIn("70017 tokens > 65536 maximum", err)
        self.assertEqual(self.run_bin("-p", "code", "--extract")[1], b"echo hi\n")

    def test_when_not(self):
        """Other engine options, another template, raw prompts, and --no-attach open the model in this process."""
        for more in (["-c", "1000"], ["-t", "1"], ["--kv", "f32"], ["--raw"], ["--no-attach"], ["--template", os.devnull]):
            before = self.answered()
            self.assertEqual(self.run_bin("-p", "hi", *more)[0], 0, more)
            self.assertEqual(self.answered(), before, more)
        self.assertIn("opening the model in this process", self.run_bin("-p", "hi", "-c", "1000", "-v")[2])

    def test_conversation(self):
        self.assertEqual(self.run_bin("-p", "hi", "--save", "talk")[0], 0)
        self.assertEqual(self.run_bin("-p", "prompt x", "--continue", "talk")[:2], (0, b"[user]hi[assistant]You said: hi[user]prompt x[assistant]\n"))

    def test_cut_within_a_character(self):
        """An answer that is cut within a character ends before it, and continues with the whole character: at once, after loading, and in an attached chat."""
        self.assertEqual(self.s.chat("h\u00e9llo", max_tokens=12)[1]["choices"][0]["message"]["content"], "You said: h")
        for args in ((), ("--no-attach",)):
            self.assertEqual(self.run_bin("-p", "h\u00e9llo", "-n", "12", *args)[1], b"You said: h\n")
            t = self.terminal("--save", "talk", "-n", "12", *args)
            at = t.prompt(text="talk> ")
            t.send("h\u00e9llo\r")
            at = t.prompt(t.until("limit of 12 tokens", at), "talk> ")
            t.send("/continue\r")
            at = t.prompt(t.until("\u00e9llo", at), "talk> ")
            t.send("/regen\r")
            t.prompt(t.until("limit of 12 tokens", at), "talk> ")
            t.send("\x04")
            self.assertEqual(t.wait(), 0)
            with open(self.session_file("talk"), encoding="utf-8") as f:
                self.assertEqual(json.load(f)["body"]["messages"][1]["content"], "You said: h")
            t = self.terminal("--continue", "talk", *args)
            at = t.prompt(text="talk> ")
            t.send("/continue\r")
            t.prompt(t.until("\u00e9llo", at), "talk> ")
            t.send("/bye\r")
            self.assertEqual(t.wait(), 0)
            with open(self.session_file("talk"), encoding="utf-8") as f:
                self.assertEqual(json.load(f)["body"]["messages"][1]["content"], "You said: h\u00e9llo")
            os.remove(self.session_file("talk"))

    def test_failed_regen(self):
        """An answer is dropped only for another one, also if the resident engine has exited."""
        t = self.terminal("--save", "talk")
        at = t.prompt(t.until("The resident engine answers"), "talk> ")
        t.send("one\r")
        at = t.prompt(t.until("You said: one", at), "talk> ")
        self.s.p.send_signal(signal.SIGKILL)
        self.s.p.wait()
        t.send("/regen\r")
        t.prompt(t.until("the resident engine has exited", at), "talk> ")
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        with open(self.session_file("talk")) as f:
            self.assertEqual([m["content"] for m in json.load(f)["body"]["messages"]], ["one", "You said: one"])

    def test_refused_question(self):
        """A question that does not fit in the server's context is taken back, so that the next one is answered, as without a resident engine."""
        self.s.end()
        self.s = self.serve("-c", "150")
        t = self.terminal("--save", "talk", "-n", "5", "-c", "150")
        at = t.prompt(t.until("The resident engine answers"), "talk> ")
        t.send("one\r")
        at = t.prompt(t.until("limit of 5 tokens", at), "talk> ")
        t.send("x" * 200 + "\r")
        at = t.prompt(t.until("the question was taken back; /compact shortens", t.until("tokens > 150 maximum", at)), "talk> ")
        t.send("/continue\r")
        at = t.prompt(t.until("aid: ", at), "talk> ")
        t.send("two\r")
        t.prompt(t.until("limit of 5 tokens", at), "talk> ")
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        with open(self.session_file("talk")) as f:
            self.assertEqual([m["content"] for m in json.load(f)["body"]["messages"]], ["one", "You said: ", "two", "You s"])

    def test_compact_in_a_full_context(self):
        """A summary of what fits in the server's context replaces it, as without a resident engine; what does not fit remains."""
        self.s.end()
        self.s = self.serve("-c", "400")
        t = self.terminal("--save", "talk", "-c", "400", cols=200)
        at = t.prompt(t.until("The resident engine answers"), "talk> ")
        for line, answer in (("one", "You said: one"), ("x" * 100, "You said: " + "x" * 100), ("/compact", "replaces the earlier conversation")):
            t.send(line + "\r")
            at = t.prompt(t.until(answer, at), "talk> ")
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        with open(self.session_file("talk")) as f:
            said = [m["content"] for m in json.load(f)["body"]["messages"]]
        self.assertIn("the gist", said[0])
        self.assertEqual(said[2:], ["x" * 100, "You said: " + "x" * 100])

    def test_chat(self):
        t = self.terminal()
        at = t.prompt()
        t.send("prefill\r")
        t.until("%", at)
        at = t.prompt(at)
        t.send("slow\r")
        at = t.until("w5 ", at)
        t.send("\x03")
        at = t.prompt(t.until("stopped;", at))
        self.s.settles("cancelled")
        t.send("/continue\r")
        at = t.prompt(t.until("w59 ", at))
        self.assertNotIn(b"w4 ", t.out[t.out.rindex(b"/continue"):])
        t.send("/tokens\r")
        at = t.prompt(t.until("of 65536 tokens; room for", at))
        t.send("/show\r")
        at = t.prompt(t.until("fake, attached", at))
        t.send("again\r")
        at = t.prompt(t.until("You said: again", at))
        t.send("slow\r")
        at = t.until("w5 ", at)
        self.s.p.send_signal(signal.SIGKILL)
        at = t.prompt(t.until("the resident engine: the connection was closed before the end of the answer; hearth --status shows", at))
        self.s.p.wait()
        t.send("are you there\r")
        at = t.prompt(t.until("the resident engine has exited; start hearth again", at))
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        said = json.load(open(self.session_file("prefill")))["body"]["messages"]
        self.assertEqual(said[3], {"role": "assistant", "content": "".join(f"w{i} " for i in range(60))})

    def test_names_of_what_is_kept(self):
        """A chat's file names its KV files before they exist; a chat that is not saved requests that there be none."""
        t = self.terminal("--save", "talk")
        at = t.prompt(text="talk> ")
        t.send("prefill\r")
        until, names = time.time() + driver.PATIENCE, None
        while not names and time.time() < until:
            t.read(0.01)
            if os.path.exists(self.session_file("talk")):
                names = json.load(open(self.session_file("talk")))["body"].get("kept")
        prompt = "%016x" % len("1user2prefill1assistant2")
        self.assertEqual((names, self.s.status()["sessions"][0]["state"]), (["%016x" % 0xFEED, prompt], "prefill"))
        t.send("\x03")
        at = t.prompt(t.until("stopped;", at), "talk> ")
        t.send("again\r")
        t.until("You said: again", at)
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        names = json.load(open(self.session_file("talk")))["body"]["kept"]
        self.assertEqual((len(names), names[:2]), (3, ["%016x" % 0xFEED, prompt]))
        self.assertEqual(self.run_bin("-p", "more", "--continue", "talk", "--save", "other")[0], 0)
        self.assertEqual(json.load(open(self.session_file("other")))["body"]["kept"][:3], names)
        kv = os.path.join(self.home, ".cache/hearth/kv")
        os.makedirs(kv)
        for n in names:
            open(os.path.join(kv, n + ".kv"), "w").close()
        self.assertEqual(self.run_bin("--delete", "talk")[0], 0)
        self.assertEqual(len(os.listdir(kv)), 3)  # the other chat has them too
        self.assertEqual(self.run_bin("--delete", "other")[0], 0)
        self.assertEqual(os.listdir(kv), [])

    def test_killed_client(self):
        p = subprocess.Popen([driver.BIN, "-p", "prefill"], env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        self.s.settles("begins", lambda status: any(x["state"] == "prefill" for x in status["sessions"]))
        p.kill()
        p.wait()
        self.s.settles("is cancelled")

    def test_batch(self):
        lines = "\n".join(['"one"', '{"prompt": "sampling", "seed": 7, "temperature": 0.5}', "broken", '{"messages": [{"role": "user", "content": "hey"}], "id": 7, "max_tokens": 5}'] + ['"more"'] * 20)
        rows = lambda out: sorted((json.loads(r) for r in out.splitlines()), key=lambda row: row["index"])
        alone, attached = (self.run_bin("--batch", "-", "--seed", "1", *more, data=lines) for more in (["--no-attach"], []))
        self.assertEqual((alone[0], rows(alone[1])), (attached[0], rows(attached[1])))
        self.assertEqual(self.answered(), 23)


class Remote(Case):
    def setUp(self):
        super().setUp()
        self.server = told.serve(self)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def ask(self, *args, replies=(), env=None, url=None):
        self.server.replies[:] = replies
        return self.run_bin("-m", url or self.url, *args, env=env)

    def test_answer(self):
        self.assertEqual(self.ask("-p", "hi", replies=[stream("Hel", "lo")]), (0, b"Hello\n", ""))
        method, path, key, body = self.server.seen[-1]
        self.assertEqual((path, key), ("/v1/chat/completions", None))
        self.assertEqual(set(body), {"model", "messages", "stream", "stream_options", "seed"})
        self.assertEqual((body["model"], body["messages"]), ("org/name", [{"role": "user", "content": "hi"}]))
        rc, out, err = self.ask("-p", "hi", "-s", "S", "--temp", "0", "--top-k", "4", "--seed", "9", "-n", "3", "--until", "q", "--no-think", "--json",
                                replies=[stream({"reasoning_content": "why"}, {"content": None}, "x")], env={"HEARTH_API_KEY": "k"}, url=self.url + "/other/v7/#m")
        method, path, key, body = self.server.seen[-1]
        self.assertEqual((path, key, body["model"], body["temperature"], body["top_k"], body["seed"], body["max_tokens"], body["stop"]), ("/other/v7/chat/completions", "Bearer k", "m", 0, 4, 9, 3, ["q"]))
        self.assertEqual(body["chat_template_kwargs"], {"enable_thinking": False, "thinking": False})
        self.assertEqual([m["role"] for m in body["messages"]], ["system", "user"])
        j = json.loads(out)
        self.assertEqual((j["model"], j["text"], j["thinking"], j["reason"], j["usage"]["prompt_tokens"]), ("m", "x", "why", "stop", 5))

    def test_what_is_passed_on(self):
        """As the manual lists it: members of the request, variables of the template, and what is refused by name."""
        given = {"temp": (0.5, "temperature"), "top-p": (0.5, "top_p"), "top-k": (7, "top_k"), "min-p": (0.25, "min_p"), "repeat-penalty": (1.5, "repetition_penalty"), "presence-penalty": (0.5, "presence_penalty"),
                 "frequency-penalty": (0.5, "frequency_penalty"), "dry-multiplier": (0.5, "dry_multiplier"), "dry-base": (2, "dry_base"), "dry-allowed-length": (3, "dry_allowed_length"), "dry-penalty-last-n": (64, "dry_penalty_last_n"),
                 "dry-sequence-breakers": (["a", "b"], "dry_sequence_breakers"), "top-n-sigma": (1.5, "top_n_sigma"), "max-tokens": (9, "max_tokens"), "until": (["q"], "stop"), "effort": ("high", "reasoning_effort"), "seed": (3, "seed")}
        for name, (value, member) in given.items():
            text = "q" if name == "until" else json.dumps(value) if isinstance(value, list) else str(value)
            self.assertEqual(self.ask("-p", "hi", "--" + name, text, replies=[stream("x")])[0], 0, name)
            body = self.server.seen[-1][3]
            self.assertEqual(body[member], value)
            self.assertEqual(set(body) - {member}, {"model", "messages", "stream", "stream_options", "seed"} - {member})
        self.ask("-p", "hi", "--schema", '{"type": "object"}', "--template-var", "colour=1", replies=[stream("{}")])
        body = self.server.seen[-1][3]
        self.assertEqual((body["response_format"]["json_schema"]["schema"], body["chat_template_kwargs"]), ({"type": "object"}, {"colour": 1}))
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "man", "hearth.1"), encoding="utf-8") as f:
            page = f.read()
        page = page[page.index(".It as messages"):]
        page = page[:page.index("\n.Sh ")]
        passed, refused = page[:page.index(".It not, and refused")], page[page.index(".It not, and refused"):]
        for name in set(given) - {name for name in given if name.startswith("dry-")}:
            self.assertIn(f"-{name}", passed)
        values = {"raw": [], "special": [], "explain": [], "template": ["x.jinja"], "think-limit": ["5"], "regex": ["a"], "grammar": ["x.gbnf"], "choices": ["a,b"], "context": ["100"], "image-tokens": ["64"], "trace": ["x"], "threads": ["2"],
                  "cpu": ["avx2"], "gpus": ["none"], "kv": ["f32"], "prefill": ["cpu"], "decode": ["cpu"]}
        self.assertEqual(set(re.findall(r"-([a-z-]{2,})", refused)), set(values))
        for name in set(values) - {"special", "grammar"}:
            rc, out, err = self.ask("-p", "hi", "--" + name, *values[name])
            self.assertEqual((rc, out), (2, b""), name)
            self.assertIn(f"--{name} is not supported with a remote server", err)

    def test_chat(self):
        """Every command works with a server, or says why not and what to do instead."""
        self.server.replies[:] = [stream("one two")] + [stream("and three")] * 9
        t = self.terminal("-m", self.url)
        at = t.prompt()
        for line, want in (("/tokens", "there is none yet"), ("hello", "one two"), ("/tokens", "7 tokens including the last answer, as counted by the server"), ("/stats", "answer: 2 tokens"),
                           ("/continue", "cannot continue an answer; /regen makes a new one"), ("/regen", "and three"), ("/show", "org/name, remote"), ("/fork copy", "forked into 'copy'; /switch 1"),
                           ("/switch 1", "hello"), ("/system be short", ""), ("/set temp 0.25", ""), ("again", "and three"), ("/compact", "summary above"), ("/undo", "before /compact is back"), ("/explain", "the engine gave no reason"),
                           ("/model", "open: org/name"), ("/sessions", "copy"), ("/bg more", "and three"), ("/switch copy", ""), ("/copy", "copied 9 bytes"), ("/clear", "new conversation"), ("/close copy", "")):
            t.send(line + "\r")
            at = t.until(want, at)
            at = t.until(rb"> \x1b\[0m\r", at)
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        self.assertEqual(self.server.seen[3][3]["messages"][0], {"role": "system", "content": "be short"})
        self.assertEqual(self.server.seen[3][3]["temperature"], 0.25)

    def test_saved_server(self):
        """A saved conversation chooses no server: only -m, HEARTH_MODEL, the configuration or an answer on a terminal sends it and the key."""
        self.assertEqual(self.ask("-p", "hi", "--save", "talk", replies=[stream("one")])[0], 0)
        key = {"HEARTH_API_KEY": "secret"}
        del self.server.seen[:]
        other = self.url + "9/v1#org/name"  # another port that begins with the same digits
        for args, env in (((), {}), ((), {"HEARTH_MODEL": other}), (("--last",), {"HEARTH_MODEL": "ember"})):
            rc, out, err = self.run_bin("-p", "more", *(args or ("--continue", "talk")), env={**key, **env})
            self.assertEqual((rc, out), (2, b""), err)
            self.assertIn(f"used the server {self.url}; -m URL continues it there", err)
        self.assertEqual(self.server.seen, [])
        self.server.replies[:] = [stream("two")] * 4
        self.assertEqual(self.run_bin("-p", "more", "--continue", "talk", "-m", self.url, env=key)[:2], (0, b"two\n"))
        self.assertEqual(self.run_bin("-p", "more", "--continue", "talk", env={**key, "HEARTH_MODEL": self.url.upper() + "/v1#org/name"})[:2], (0, b"two\n"))
        self.assertEqual(self.server.seen[-1][2], "Bearer secret")
        self.write(".config/hearth/config", f"model = {self.url}/v1\n")
        self.assertEqual(self.run_bin("-p", "more", "--continue", "talk", env=key)[:2], (0, b"two\n"))
        self.write(".config/hearth/config", "")
        del self.server.seen[:]
        t = self.terminal("--continue", "talk", env=key, cols=200)
        t.until(f"used the server {self.url}")
        t.send("n\r")
        self.assertEqual((t.wait(), self.server.seen), (2, []))
        t = self.terminal("--continue", "talk", env=key, cols=200)
        t.until("Continue it there? y: yes, n: no > ")
        t.send("y\r")
        at = t.prompt(text="talk> ")
        t.send("again\r")
        t.prompt(t.until("two", at), "talk> ")
        t.send("/bye\r")
        self.assertEqual((t.wait(), self.server.seen[-1][2]), (0, "Bearer secret"))

    def test_proxy(self):
        """Requests to this machine go past a proxy, with the key; those to a name that only resembles its address do not."""
        proxy = told.serve(self, [stream("by proxy")])
        env = {"HEARTH_API_KEY": "secret", "http_proxy": f"http://127.0.0.1:{proxy.server_port}"}
        for host in ("127.0.0.1", "localhost", "LocalHost", "127.1"):
            rc, out, err = self.ask("-p", "hi", replies=[stream("direct")], env=env, url=f"http://{host}:{self.server.server_port}/v1")
            self.assertEqual((rc, out, err), (0, b"direct\n", ""), host)
        self.assertEqual(proxy.seen, [])
        rc, out, err = self.ask("-p", "hi", env=env, url="http://127.0.0.1.invalid/v1")
        self.assertEqual((rc, out), (0, b"by proxy\n"))
        self.assertIn("the key is sent to 127.0.0.1.invalid unencrypted", err)

    def test_redirects(self):
        """A server sends neither the conversation nor the key elsewhere."""
        elsewhere = told.serve(self, [stream("from elsewhere")] * 9)
        at = f"http://127.0.0.1:{elsewhere.server_port}/v1"
        for status in (301, 302, 303, 307, 308):
            rc, out, err = self.ask("-p", "hi", replies=[(status, {"Location": at + "/chat/completions"}, b"")], env={"HEARTH_API_KEY": "secret"})
            self.assertEqual((rc, out), (1, b""), err)
            self.assertIn(f"redirects are not followed (status {status})", err)
            self.server.models = (status, {"Location": at + "/models"}, b"")
            rc, out, err = self.ask("-p", "hi", env={"HEARTH_API_KEY": "secret"})
            self.assertEqual((rc, out), (1, b""), err)
            self.assertIn(f"redirects are not followed (status {status})", err)
            self.server.models = ["org/name"]
        self.assertEqual(elsewhere.seen, [])

    def test_untrusted(self):
        """Nothing that a server sends reaches the terminal as control sequences: answers and thinking in pieces, tool calls, errors, model names."""
        evil = "A\x1b[31mred\x1b]0;title\x07B\b\bC\x9b31mE\x7f."
        shown = "A\u241b[31mred\u241b]0;title\u2407B\u2408\u2408C\ufffd31mE\u2421."
        call = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f" + evil, "arguments": json.dumps({"a": evil}, ensure_ascii=False)}}]}
        self.server.models = ["m" + evil]
        self.server.replies[:] = [stream(*evil), stream(*[{"reasoning_content": c} for c in evil], "ok"), stream(call, "then"), (500, {}, json.dumps({"error": {"message": evil}}, ensure_ascii=False).encode()),
                                  stream(evil[:2], {"content": evil[2:]})]
        t = self.terminal("-m", self.url)
        at = 0
        for line, want in (("", ". Type a question"), ("one", shown), ("two", "ok"), ("three", "then"), ("four", "A?[31mred"), ("/show", "remote"), ("/model", "open: "), ("/bg five", shown), ("/bye", "")):
            if line:
                t.send(line + "\r")
            at = t.until(want, at)
            at = at if line == "/bye" else t.until(rb"> \x1b\[0m\r", at)
        self.assertEqual(t.wait(), 0)
        for bad in (b"\x1b[31m", b"\x1b]", b"\x07", b"\b", b"\xc2\x9b", b"\x7f"):
            self.assertNotIn(bad, t.out)
        self.assertGreaterEqual(t.out.decode().count(shown), 2)
        self.server.models.append("n" + evil)
        t = self.terminal("-m", self.url, "-p", "x")
        self.assertEqual(t.wait(), 2)
        self.assertNotIn(b"\x1b]", t.out)
        self.assertIn(b"choose a model", t.out)

    def test_tools(self):
        call = lambda text, **more: {"tool_calls": [{"index": 0, **more, "function": {"arguments": text, **({"name": "f"} if more else {})}}]}
        j = json.loads(self.ask("-p", "x", "--json", replies=[stream(call("", id="a"), call('{"a": '), call("1}"))])[1])
        self.assertEqual(json.loads(j["tool"]), {"name": "f", "arguments": {"a": 1}})

    def test_endless_answer(self):
        """A server that ignores the limit of tokens is given up: text, thinking and arguments count."""
        for delta in ({"content": "x" * 20000}, {"reasoning_content": "x" * 20000}, {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "x" * 20000}}]}):
            rc, out, err = self.ask("-p", "hi", "-n", "10", "-q", replies=[stream(*[delta] * 60)])
            self.assertEqual(rc, 1, err)
            self.assertIn("the answer is far longer than its limit of tokens; stopped", err)
            self.assertLess(len(out), 1100000)
        rc, out, err = self.ask("-p", "hi", replies=[stream(*[{"content": "x" * 1000000}] * 70)])
        self.assertEqual((rc, len(out) < 65 << 20), (1, True))
        self.assertIn("the answer is longer than 64 MB; stopped", err)
        self.assertEqual(self.ask("-p", "hi", "-n", "100000", replies=[stream(*[{"content": "x" * 20000}] * 60)])[0], 0)

    def test_silent_server(self):
        """A server that sends nothing for half an hour is given up; one that sends now and then is not."""
        for pause, want in ((9, 1), (0.2, 0)):
            self.server.replies[:] = []
            got = stream("a", "b")[2].split(b"\n\n")

            def send(h):
                h.close_connection = True
                h.send_response(200)
                h.end_headers()
                for part in got:
                    h.wfile.write(part + b"\n\n")
                    time.sleep(pause)

            self.server.send = send
            rc, out, err = self.run_bin("-m", self.url, "-p", "hi", env={"HEARTH_LIMITS": "patience=1"})
            self.assertEqual(rc, want, err)
            self.assertEqual("no data for 30 minutes" in err, want == 1, err)

    def test_busy(self):
        """Retries when the server asks for it; that reply is the answer."""
        busy = lambda status, **headers: (status, {k.replace("_", "-"): v for k, v in headers.items()}, b'{"error": {"message": "later"}}')
        t = time.time()
        rc, out, err = self.ask("-p", "x", replies=[busy(503, Retry_After="2"), busy(429, Retry_After="1"), stream("ok")])
        self.assertEqual((rc, out), (0, b"ok\n"))
        self.assertGreaterEqual(time.time() - t, 3)
        self.assertIn("busy (status 503): retrying in 2 s", err)
        rc, out, err = self.ask("-p", "x", replies=[busy(429, Retry_After="3600")])
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("later", err)

    def test_wrong(self):
        for replies, word in (([(500, {}, b"oops")], "status 500"), ([(400, {}, b'{"error": {"message": "no such thing"}}')], "no such thing"), ([(200, {}, b"<html>")], "is not an event stream"),
                              ([(200, {}, b"data: {nonsense\n\n")], "invalid JSON"), ([(200, {}, b'data: {"error": {"message": "it broke"}}\n\n')], "it broke"), ([(401, {}, b"")], "HEARTH_API_KEY"),
                              ([(200, {}, b'data: {"choices": [{"index": 0, "delta": {"content": "begun"}}]}\n\n')], "was cut off"), ([(302, {"Location": "/x"}, b"")], "status 302")):
            rc, out, err = self.ask("-p", "x", replies=replies)
            self.assertNotEqual(rc, 0, word)
            self.assertIn(word, err)
        for full in (b'{"message": "too long", "code": "context_length_exceeded"}', b'{"message": "too long", "type": "exceed_context_size_error", "code": 400}', b'{"message": "past the context length", "code": 400}'):
            self.assertEqual(self.ask("-p", "x", replies=[(400, {}, b'{"error": ' + full + b"}")])[0], 4)

    def test_full_context(self):
        """An answer that a server cuts before -n is reached exits with 4, as one that fills a context; one that reaches -n does not."""
        cut = lambda n: stream("some", usage=False, end=b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": %d}}\n\ndata: [DONE]\n\n' % n)
        reply = lambda n: (*cut(n)[:2], cut(n)[2].replace(b'"stop"', b'"length"'))
        for args, n, want, word in ((["-n", "9"], 9, 0, "answer stopped at the -n limit (9 tokens)"), (["-n", "9"], 7, 4, "the server's context is full, or its limit"),
                                    ([], 7, 4, "the server's context is full, or its limit"), (["-n", "9"], 0, 0, "answer stopped at the -n limit (9 tokens)")):
            rc, out, err = self.ask("-p", "x", *args, replies=[reply(n)])
            self.assertEqual((rc, out), (want, b"some\n"), err)
            self.assertIn(word, err)

    def test_which(self):
        self.server.models = ["a", "b"]
        rc, out, err = self.ask("-p", "x")
        self.assertEqual(rc, 2)
        self.assertIn("a, b", err)
        self.assertEqual(self.ask("-p", "x", replies=[stream("y")], url=self.url + "#b")[:2], (0, b"y\n"))
        self.assertEqual(self.server.seen[-1][3]["model"], "b")
        for url in ("http://user:secret@127.0.0.1:1", "http://", "https://127.0.0.1:1"):
            rc, out, err = self.run_bin("-m", url, "-p", "x")
            self.assertEqual((rc > 0, out), (True, b""), url)
            self.assertNotIn("secret", err)

    def test_refused(self):
        for args in (["--raw", "-p", "x"], ["--explain", "-p", "x"], ["--template", "f", "-p", "x"], ["-c", "10", "-p", "x"], ["--gpus", "emu:1", "-p", "x"], ["--tokens", "1", "--ids", "-n", "1"], ["--tokens", "1", "--logits-out", "-"],
                     ["--tokenize"], ["--inspect"], ["--verify"], ["--bench"], ["--serve"]):
            rc, out, err = self.ask(*args)
            self.assertEqual((rc, out.strip(b"[]\n")), (2, b""), (args, err))
            self.assertRegex(err, "remote")

    def test_interrupt(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            for answers in (0, 1):  # while listing its models; while answering
                p = subprocess.Popen([driver.BIN, "-m", f"http://127.0.0.1:{silent.getsockname()[1]}#m", "-p", "x"], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                c = silent.accept()[0]
                c.recv(1000)
                if answers:
                    c.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    c.close()
                    c = silent.accept()[0]
                    c.recv(1000)
                p.send_signal(signal.SIGINT)
                p.communicate(timeout=driver.PATIENCE)
                self.assertEqual(p.returncode, -signal.SIGINT)
                c.close()

    def test_hearth(self):
        """hearth on a port, with its key."""
        s = self.serve("--listen", "127.0.0.1:0")
        self.assertEqual(self.run_bin("-m", s.url, "-p", "think", env={"HEARTH_API_KEY": s.key}), (0, b"the answer\n", "reasoning here\n"))
        rc, out, err = self.run_bin("-m", s.url, "-p", "x")
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("a key is required; set HEARTH_API_KEY", err)
        out = self.run_bin("-m", s.url, "--batch", "-", env={"HEARTH_API_KEY": s.key}, data='"a"\n"bb"\n')[1]
        self.assertEqual({json.loads(x)["text"] for x in out.splitlines()}, {"You said: a", "You said: bb"})


class Batch(Case):
    def test_longest_first(self):
        texts = ["a" * n for n in (3, 9, 1, 7, 5)]
        out = self.run_bin("--batch", "-", "--parallel", "1", data="\n".join(map(json.dumps, texts)))[1]
        self.assertEqual([json.loads(x)["index"] for x in out.splitlines()], [1, 3, 4, 0, 2])

    def test_goes_on(self):
        """Killed at some point, and started again on the same output: each prompt is answered once, and correctly."""
        prompts = [{"prompt": f"number {i}", "id": f"x{i}"} for i in range(20)] + [f"text {i}" for i in range(10)] + [{"prompt": "twice", "id": 5}] * 2
        where, output = os.path.join(self.home, "in.jsonl"), os.path.join(self.home, "out.jsonl")
        with open(where, "w") as f:
            f.write("\n".join(map(json.dumps, prompts)))
        for enough in (1, 8, 17):
            with open(output, "ab") as f:
                p = subprocess.Popen([driver.BIN, "--batch", where, "--parallel", "2"], env=self.env, stdout=f, stderr=subprocess.DEVNULL)
            until = time.time() + driver.PATIENCE
            while p.poll() is None and time.time() < until and open(output, "rb").read().count(b"\n") < enough:
                time.sleep(0.002)
            p.send_signal(signal.SIGKILL if enough != 8 else signal.SIGINT)
            p.wait()
        with open(output, "rb") as f:
            had = f.read()
        self.assertGreater(had.count(b"\n"), 16)
        with open(output, "ab") as f:
            f.write(b'{"index": 3, "id": "x3", "te')  # killed in the middle of a line
        with open(output, "ab") as f:
            rc, _, err = self.run_bin("--batch", where, stdout=f)
        self.assertEqual(rc, 0)
        self.assertRegex(err, r"\d+ of 32 prompts are already in the output")
        with open(output, "rb") as f:
            out = f.read()
        self.assertTrue(out.startswith(had))
        rows = [json.loads(x) for x in out.splitlines()]
        self.assertEqual(sorted(r["index"] for r in rows), list(range(32)))
        for r in rows:
            prompt = prompts[r["index"]]
            self.assertEqual((r["text"], r.get("id")), ("You said: " + (prompt if isinstance(prompt, str) else prompt["prompt"]), None if isinstance(prompt, str) else prompt["id"]))
        with open(output, "ab") as f:
            self.assertEqual(self.run_bin("--batch", where, stdout=f)[0], 0)
        self.assertEqual(open(output, "rb").read(), out)

    def test_failed_prompts_are_tried_again(self):
        output = os.path.join(self.home, "out.jsonl")
        for context, rows in (("100", 2), ("1000", 3), ("1000", 3)):
            with open(output, "ab") as f:
                rc = self.run_bin("--batch", "-", "-c", context, data=json.dumps("a" * 200) + '\n"b"\n', stdout=f)[0]
            got = [json.loads(x) for x in open(output, encoding="utf-8")]
            self.assertEqual((rc, len(got), "text" in got[-1]), (context == "100", rows, True), got)

    def test_other_files_are_left(self):
        output = os.path.join(self.home, "notes")
        with open(output, "w") as f:
            f.write("not ours\nno line end")
        with open(output, "ab") as f:
            self.assertEqual(self.run_bin("--batch", "-", data='"a"', stdout=f)[0], 0)
        self.assertTrue(open(output).read().startswith("not ours\nno line end"))


class Libraries(Case):
    def test_on_demand(self):
        """A run that needs neither a server nor a URL does not load their libraries; one that does reports a missing library."""
        listed = self.run_bin("--version", env={"LD_TRACE_LOADED_OBJECTS": "1"})[1].decode()
        self.assertIn("libc.so", listed)
        self.assertNotRegex(listed, "curl|microhttpd")
        for name in ("libcurl.so.4", "libcurl-gnutls.so.4", "libmicrohttpd.so.12"):
            open(os.path.join(self.home, name), "w").close()
        for args, library in ((("-m", "http://127.0.0.1:9/v1", "-p", "x"), "libcurl"), (("--serve",), "libmicrohttpd")):
            rc, out, err = self.run_bin(*args, env={"LD_LIBRARY_PATH": self.home})
            self.assertEqual((rc, out), (1, b""), err)
            self.assertRegex(err, f"hearth: .* needs {library}[^ ]*, which was not found; install {library}[0-9]+ ")


if __name__ == "__main__":
    driver.unittest.main()
