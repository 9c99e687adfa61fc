"""The ready tools of --agent, on the fake engine: `say [...]` makes it give these answers one after the other, with calls in them."""
import ctypes
import json
import os
import random
import re
import stat
import threading
import unittest

import driver
import server

ASKS = "Run it? y: yes, n: no, a: always > "


def call(name, **arguments):
    return "\x10" + json.dumps({"name": name, "arguments": arguments}) + "\x11"


def script(*answers):
    """The question whose answers these are."""
    return "say " + json.dumps(answers)


def apply(old, diff):
    """Applies hunks as `patch` does, strictly."""
    lines, out, at = old.splitlines(keepends=True), [], 0
    diff = diff.splitlines(keepends=True)
    while diff:
        head = diff.pop(0).split()
        assert head[0] == "@@" == head[3], head
        (a, n), (b, m) = ((int(x[0]), int(x[1]) if len(x) > 1 else 1) for x in (part[1:].split(",") for part in head[1:3]))
        begin = a - 1 if n else a
        out += lines[at:begin]
        assert len(out) == (b - 1 if m else b), (head, len(out))
        at = begin
        while n or m:
            line = diff.pop(0)
            if diff and diff[0].startswith("\\ "):
                diff.pop(0)
                line = line[:-1]
            if line[0] in " -":
                assert lines[at] == line[1:], (lines[at], line)
                at, n = at + 1, n - 1
            if line[0] in " +":
                out.append(line[1:])
                m -= 1
            assert line[0] in " +-"
    return "".join(out + lines[at:])


class Agent(driver.ChatCase):
    def setUp(self):
        super().setUp()
        self.dir = os.path.join(self.home, "work")
        os.makedirs(os.path.join(self.dir, "src"))
        self.put("src/add.py", "def add(a, b):\n    return a - b\n")
        self.put("test.py", "from src.add import add\nassert add(2, 3) == 5, add(2, 3)\nprint('passed')\n")
        self.write("secret", "the secret\n")

    def put(self, name, text):
        return self.write(os.path.join("work", name), text)

    def get(self, name):
        with open(os.path.join(self.dir, name)) as f:
            return f.read()

    def test_call_as_text(self):
        """A call in a block of code, as models write that do not know their template's marks."""
        fenced = "```json\n" + json.dumps({"name": "read_file", "arguments": {"path": "src/add.py"}}, indent=2) + "\n```"
        rc, out, err = self.run_bin("--agent", self.dir, "-p", script(fenced, "done"))
        self.assertTrue(rc == 0 and out.rstrip().endswith(b"done") and "call of read_file" in err, (rc, out, err))
        rc, out, err = self.run_bin("--agent", self.dir, "-p", script("Like this:\n" + fenced, "done"))
        self.assertTrue(rc == 0 and b"done" not in out and "call of" not in err, (rc, out, err))

    def agent(self, *calls, options=(), env=None, allow=("--allow", "all"), rc=0):
        """Runs calls, one a turn; returns their objects in --json."""
        got, out, err = self.run_bin("--agent", self.dir, *allow, "--max-calls", "1000", "--json", "-p", script(*calls, "done"), *options, env=env)
        self.assertEqual(got, rc, err)
        self.err = err
        return json.loads(out).get("calls", [])

    def one(self, name, env=None, **arguments):
        found, = self.agent(call(name, **arguments), env=env)
        return found["status"], found["result"]


STEPS = (call("list_directory"), call("search_text", pattern="def \\w+", files="*.py"), call("read_file", path="src/add.py"),
         call("replace_text", path="src/add.py", old_text="a - b", new_text="a + b"), call("run_command", command="python3 test.py"), call("write_file", path="doc/NOTES", content="Mended.\n"))


class Task(Agent):
    def check_done(self):
        self.assertEqual((self.get("src/add.py"), self.get("doc/NOTES")), ("def add(a, b):\n    return a + b\n", "Mended.\n"))

    def test_task(self):
        """A coding task: look, find, read, mend, test, note."""
        calls = self.agent(*STEPS)
        self.assertEqual([c["status"] for c in calls], ["ok"] * 6)
        self.assertEqual([c["result"] for c in calls], ["src/\ntest.py (73 bytes)\n", "src/add.py:1: def add(a, b):\n", "def add(a, b):\n    return a - b\n", "[src/add.py: changed, 32 bytes]", "passed\n", "[doc/NOTES: made, 8 bytes]"])
        self.check_done()
        self.assertIn("hearth: call of replace_text src/add.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n", self.err)
        self.assertIn("hearth: call of write_file doc/NOTES, a new file\n@@ -0,0 +1 @@\n+Mended.\n", self.err)

    def test_remote(self):
        """The same with a model on a server: the tools run where the question is asked."""
        s = server.Server(self.env, "--listen", "127.0.0.1:0")
        self.addCleanup(s.p.kill)
        rc, out, err = self.run_bin("-m", s.url, "--agent", self.dir, "--allow", "all", "-p", script(*STEPS, "done"), env={"HEARTH_API_KEY": s.key})
        self.assertEqual((rc, out), (0, b"done\n"), err)
        self.check_done()

    def far(self):
        """A server that counts as one on another machine: its address is none of the loopback's."""
        s = server.Server(self.env, "--listen", "127.0.0.1:0")
        self.addCleanup(s.p.kill)
        self.env["HEARTH_API_KEY"] = s.key
        return s.url.replace("127.0.0.1", "0.0.0.0")

    def test_far_server(self):
        """Files go to another machine only after consent: once in a chat, or --allow in a script."""
        url = self.far()
        reads = script(call("read_file", path="src/add.py"), call("list_directory"), "done")
        rc, out, err = self.run_bin("-m", url, "--agent", self.dir, "-p", reads)
        self.assertEqual((rc, b"done" in out), (2, False), err)
        self.assertRegex(err, r"the model at 0\.0\.0\.0 called read_file, which sends it files of .*/work and needs your consent.*--allow read_file gives it")
        rc, out, err = self.run_bin("-m", url, "--agent", self.dir, "-p", reads, "--allow", "read_file")
        self.assertEqual((rc, "--allow list_directory gives it" in err), (2, True), err)
        rc, out, err = self.run_bin("-m", url, "--agent", self.dir, "-p", reads, "--allow", "read_file", "--allow", "list_directory")
        self.assertEqual((rc, b"done" in out), (0, True), err)
        t = self.chat("-m", url, "--agent", self.dir)
        question = "Read files for it? y: yes, n: no > "
        said = self.ask(t, reads, "call of read_file", question)
        self.assertRegex(said, r"What it reads of .*/work goes to the model at 0\.0\.0\.0\.")
        self.ask(t, "what", "y lets it read there", question)
        said = self.ask(t, "y", "done")
        self.assertIn("call of list_directory", said)
        self.assertNotIn(question, self.ask(t, script(call("search_text", pattern="add"), "found"), "found"))
        self.ask(t, script(call("write_file", path="new", content="x"), "written"), "call of write_file", ASKS)
        self.ask(t, "n", "written")
        t = self.terminal("-m", url, "--agent", self.dir, "-p", reads, cols=300)
        t.until(re.compile(r"Read files of \S+/work for the model at 0\.0\.0\.0\? y: yes, from now on; n: no > ").pattern.encode())
        t.send("y\r")
        t.until("done")
        self.assertEqual(t.wait(), 0)
        t = self.chat("-m", url, "--agent", self.dir)
        self.ask(t, script(call("read_file", path="src/add.py"), "refused"), "call of read_file", question)
        self.assertNotIn("return a - b", self.ask(t, "n", "refused"))

    def test_agent_in_a_chat(self):
        """/agent DIR offers the tools from the next question on, beside others; a second directory, and what is none, are refused."""
        tool = self.write("t.json", json.dumps({"name": "weather", "description": "d", "parameters": {"type": "object"}, "command": ["true"]}))
        for options in ((), ("--tool", tool)):
            t = self.chat(*options)
            self.ask(t, "/agent", "name a directory: /agent DIR")
            self.ask(t, "/agent " + os.path.join(self.home, "nowhere"), "No such file")
            self.ask(t, "/agent " + self.dir, "can read files of")
            self.ask(t, "/agent", "the model works on")
            self.ask(t, "/agent " + self.home, "another directory needs another hearth")
            said = self.ask(t, script(call("read_file", path="src/add.py"), "done"), "done")
            self.assertIn("call of read_file", said)
            if options:
                self.ask(t, script(call("weather"), "sunny"), "call of weather", ASKS)
                self.ask(t, "y", "sunny")
            t.send("/bye\r")
            self.assertEqual(t.wait(), 0)
        clash = self.write("c.json", json.dumps({"name": "run_command", "description": "d", "parameters": {"type": "object"}, "command": ["true"]}))
        t = self.chat("--tool", clash)
        self.ask(t, "/agent " + self.dir, "another tool has the name run_command")
        self.assertIn("there is no tool of this name; the tools are: run_command", self.ask(t, script(call("read_file", path="src/add.py"), "done"), "done"))
        self.ask(t, script(call("run_command"), "ran"), "call of run_command", ASKS)

    def test_chat(self):
        """What reads runs at once; what changes is shown and asked about, each time."""
        t = self.chat("--agent", self.dir)
        begin = self.last
        t.send(script(*STEPS, "done") + "\r")
        for shown, answer in (("+    return a + b", "y"), ('call of run_command {"command": "python3 test.py"}', "y"), ("+Mended.", "n")):
            self.last = t.prompt(t.until(shown, self.last), ASKS)
            t.send(answer + "\r")
        self.last = t.prompt(t.until("done", self.last))
        self.assertIn("call of list_directory", t.out[begin:].decode())
        self.assertIn("-    return a - b", t.out[begin:].decode())
        self.assertEqual((self.get("src/add.py"), os.path.exists(os.path.join(self.dir, "doc"))), ("def add(a, b):\n    return a + b\n", False))
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)

    def test_changed_meanwhile(self):
        """A file that has changed since the differences were shown stays as it is."""
        t = self.chat("--agent", self.dir)
        t.send(script(STEPS[3], "done") + "\r")
        self.last = t.prompt(t.until("+    return a + b", self.last), ASKS)
        self.put("src/add.py", "def add(a, b):\n    return a - b  # mine\n")
        self.ask(t, "y", "done")
        self.assertEqual(self.get("src/add.py"), "def add(a, b):\n    return a - b  # mine\n")
        t.send(script(STEPS[3], "done") + "\r")
        self.last = t.prompt(t.until("+    return a + b  # mine", self.last), ASKS)
        self.ask(t, "y", "done")
        self.assertEqual(self.get("src/add.py"), "def add(a, b):\n    return a + b  # mine\n")

    def test_consent(self):
        """In scripts only what reads runs, and what --allow names."""
        for tool, allow, rc in ((call("read_file", path="test.py"), (), 0), (STEPS[3], (), 2), (STEPS[4], ("--allow", "write_file"), 2), (STEPS[5], ("--allow", "replace_text"), 2), (STEPS[5], ("--allow", "write_file"), 0)):
            self.agent(tool, allow=allow, rc=rc)
            self.assertEqual("needs your consent" in self.err or "call of" not in self.err, rc == 2, self.err)
        self.assertIn("a - b", self.get("src/add.py"))

    def test_options(self):
        for args, what in ((["--agent", os.path.join(self.home, "none")], "--agent: "), (["--agent", self.put("file", "")], "Not a directory"), (["--agent", self.dir, "--raw"], "--raw and --agent"),
                           (["--agent", self.dir, "--schema", "{}"], "--schema and --agent"), (["--agent", self.dir, "--serve"], "--serve and --agent")):
            rc, out, err = self.run_bin(*args, *([] if "--serve" in args else ["-p", "x"]))
            self.assertIn(rc, (1, 2))
            self.assertIn(what, err)
        self.assertIn("--agent: this model's chat template has no tools", self.run_bin("--agent", self.dir, "-p", "x", env={"FAKE_NO_TOOLS": "1"})[2])

    def test_allocations(self):
        args = ["--agent", self.dir, "--allow", "all", "-q", "-p", script(STEPS[0], STEPS[1], call("write_file", path="n", content="x\n"), "done")]
        n = self.allocations(*args)
        self.all_or_said(range(1, n + 1, max(1, n // 60)), *args)

    def test_faults(self):
        """A full disk leaves the old file, and no other."""
        for fault in ("write", "sync", "rename"):
            for n in range(1, 4):
                status, result = self.one("write_file", path="test.py", content="new\n", env={"HEARTH_FAULT": f"{fault}:{n}"})
                self.assertEqual(self.get("test.py") == "new\n", status == "ok", (fault, n, result))
                self.assertEqual(sorted(os.listdir(self.dir)), ["src", "test.py"])
                self.put("test.py", "old\n")


class Bounds(Agent):
    def setUp(self):
        super().setUp()
        for link, to in (("out", "../secret"), ("outdir", ".."), ("abs", os.path.join(self.home, "secret")), ("top", "/"), ("loop", "loop"), ("inside", "src/add.py"), ("indir", "src"), ("gone", "nothing"),
                         ("proc", "/proc/self/cwd"), ("far", "indir/../../secret")):
            os.symlink(to, os.path.join(self.dir, link))
        os.mkfifo(os.path.join(self.dir, "fifo"))
        os.makedirs(os.path.join(self.home, "working"))  # its name begins as the directory's
        self.write("working/f", "the secret\n")

    OUT = ("../secret", "src/../../secret", "out", "outdir/secret", "abs", "loop", "far", "proc/secret", "./.././secret", "src/../..", "outdir/working/../secret", "../working/f")

    def test_paths(self):
        """No path and no link leads out of the directory, with openat2 and without."""
        for env in ({}, {"HEARTH_LIMITS": "walks=1"}):
            secret = os.path.join(self.home, "secret")
            paths = [*self.OUT, secret, "/" + secret, "top" + secret, os.path.join(self.home, "working/f"), self.dir + "/../secret", "a\0b", "x" * 300, "fifo", "gone"]
            reads = [(tool, p) for p in paths for tool in ("read_file", "list_directory", "search_text")]
            calls = self.agent(*(call(t, path=p, pattern="secret|root") for t, p in reads), env=env)
            for (tool, path), c in zip(reads, calls):
                self.assertEqual(c["status"], "failed", (tool, path, c))
                self.assertNotIn("the secret", c["result"], path)
                self.assertNotIn("root:", c["result"], path)
            writes = [p for p in paths if p != "gone"] + ["inside", "src", "", ".", "test.py/x", "d/" * 40 + "x"]
            calls = self.agent(*(call("write_file", path=p, content="bad") for p in writes), *(call("replace_text", path=p, old_text="e", new_text="bad", all=True) for p in writes), env=env)
            self.assertEqual({c["status"] for c in calls}, {"failed"}, [c for c in calls if c["status"] != "failed"])
            with open(os.path.join(self.home, "secret")) as f:
                self.assertEqual(f.read(), "the secret\n")
            self.assertEqual(sorted(os.listdir(self.home))[-3:], ["secret", "work", "working"])
            self.assertTrue(os.path.islink(os.path.join(self.dir, "inside")))
        self.assertEqual(self.one("read_file", path="x" * 5000), ("failed", "[path: not a path]"))
        self.assertIn("no such file", self.one("read_file", path="~/secret")[1])

    def test_within(self):
        """Paths that stay within work in every spelling; links within are followed where the kernel sees to that."""
        for path in ("src/add.py", "./src/add.py", "src//add.py", self.dir + "/src/add.py", "src/../src/add.py", "inside", "indir/add.py"):
            self.assertEqual(self.one("read_file", path=path), ("ok", "def add(a, b):\n    return a - b\n"), path)
        walks = {"HEARTH_LIMITS": "walks=1"}
        self.assertEqual(self.one("read_file", path="src/add.py", env=walks)[0], "ok")
        self.assertEqual(self.one("read_file", path="indir/add.py", env=walks)[0], "failed")
        self.assertEqual(self.one("write_file", path="new/deep/er/file", content="x", env=walks)[0], "ok")
        self.assertEqual(self.one("write_file", path="indir/new", content="x")[0], "ok")
        self.assertEqual((self.get("new/deep/er/file"), self.get("src/new")), ("x", "x"))
        for path in ("Makefile", ".git/hooks/pre-commit"):  # what others execute is a file like others
            self.assertEqual(self.one("write_file", path=path, content="x")[0], "ok")
            self.assertEqual(self.get(path), "x")

    def test_race(self):
        """A directory that is exchanged for a link to outside again and again never shows what is there."""
        os.makedirs(os.path.join(self.home, "outside"))
        self.write("outside/f", "the secret\n")
        self.put("d/f", "harmless\n")
        stop, d, libc = threading.Event(), os.path.join(self.dir, "d"), ctypes.CDLL(None)
        os.symlink("../outside", d + ".link")

        def exchange():
            while not stop.is_set():
                libc.renameat2(-100, d.encode(), -100, (d + ".link").encode(), 2)  # AT_FDCWD, RENAME_EXCHANGE

        t = threading.Thread(target=exchange)
        t.start()
        try:
            for env in ({}, {"HEARTH_LIMITS": "walks=1"}):
                steps = [call("read_file", path="d/f"), call("search_text", pattern="."), call("write_file", path="d/f", content="harmless\n\n"), call("write_file", path="d/f", content="harmless\n")]
                for c in self.agent(*steps * 25, env=env):
                    self.assertNotIn("the secret", c["result"])
        finally:
            stop.set()
            t.join()
        with open(os.path.join(self.home, "outside/f")) as f:
            self.assertEqual(f.read(), "the secret\n")
        self.assertEqual(os.listdir(os.path.join(self.home, "outside")), ["f"])

    def test_kinds(self):
        """What is no text is said in words."""
        self.put("empty", "")
        with open(os.path.join(self.dir, "binary"), "wb") as f:
            f.write(b"MZ\0\1" * 1000)
        with open(os.path.join(self.dir, "huge"), "wb") as f:
            f.write(b"first\n" * 10000)
            f.truncate(5 << 30)
        for path, status, what in (("empty", "ok", "[the file is empty]"), ("binary", "failed", "a binary file of 4000 bytes"), ("huge", "ok", "from_line 5462 goes on]"), ("fifo", "failed", "a FIFO"), ("src", "failed", "list_directory shows")):
            found = self.one("read_file", path=path)
            self.assertEqual(found[0], status, found)
            self.assertIn(what, found[1])
        self.assertEqual(self.one("read_file", path="huge", to_line=2), ("ok", "first\nfirst\n"))
        self.assertIn("a binary file of 5368709120 bytes", self.one("read_file", path="huge", from_line=9999)[1])
        for tool in ("write_file", "replace_text"):
            for path, what in (("binary", "a binary file"), ("huge", "too long"), ("fifo", "a FIFO"), ("src", "a directory")):
                found = self.one(tool, path=path, content="x", old_text="M", new_text="x")
                self.assertEqual(found[0], "failed")
                self.assertIn(what, found[1])
        self.assertIn("binary (4000 bytes)\n", self.one("list_directory")[1])
        listed = self.one("list_directory")[1]
        for line in ("fifo (a FIFO)", "out -> ../secret", "src/", "empty (0 bytes)"):
            self.assertIn(line, listed.split("\n"))
        self.assertIn("[left out: 1 file of more than", self.one("search_text", pattern="first")[1])

    def test_device(self):
        """Nothing opens a device."""
        self.dir = "/dev"
        for tool in ("read_file", "write_file", "search_text"):
            self.assertIn("a device", self.one(tool, path="zero", content="x", pattern="x")[1])
        self.assertIn("zero (a device)", self.one("list_directory")[1])


class Tools(Agent):
    def test_lines(self):
        self.put("many", "".join(f"line {i}\n" for i in range(1, 10001)))
        self.assertEqual(self.one("read_file", path="many", from_line=3, to_line=4), ("ok", "line 3\nline 4\n"))
        self.assertEqual(self.one("read_file", path="many", from_line="9999"), ("ok", "line 9999\nline 10000\n"))
        self.assertEqual(self.one("read_file", path="many", from_line=10001), ("ok", "[the file has 10000 lines]"))
        status, text = self.one("read_file", path="many")
        self.assertEqual((status, len(text.rsplit("\n", 1)[0]) <= 32768), ("ok", True))
        goes_on = int(text.rsplit("from_line ", 1)[1].split()[0])
        self.assertIn(f"line {goes_on - 1}\n", text)
        self.assertTrue(self.one("read_file", path="many", from_line=goes_on)[1].startswith(f"line {goes_on}\n"))
        self.put("long", "x" * 100000 + "\nend")
        self.assertTrue(self.one("read_file", path="long")[1].endswith("x\n[cut at 32768 bytes, within line 1; the next line is 2]"))
        self.assertEqual(self.one("read_file", path="long", from_line=2), ("ok", "end"))
        for arguments in ({}, {"path": 5}, {"path": "many", "from_line": 0}, {"path": "many", "from_line": "x"}, {"path": "many", "to_line": 1.5}):
            self.assertEqual(self.one("read_file", **arguments)[0], "failed", arguments)

    def test_large_directory(self):
        os.mkdir(os.path.join(self.dir, "many"))
        for i in range(20001):
            os.symlink("x", os.path.join(self.dir, f"many/f{i:05}"))
        status, text = self.one("list_directory", path="many")
        self.assertEqual(status, "ok")
        self.assertLess(len(text), 34000)
        self.assertRegex(text.rsplit("\n", 1)[1], r"^\[\d+ entries of more than 20000; search_text with `files` finds others\]$")
        self.put("odd/a\nb\x1b[31m", "x")
        self.assertEqual(self.one("list_directory", path="odd"), ("ok", "a?b?[31m (1 byte)\n"))

    def test_search(self):
        self.put("a/x.c", "int One;\nint two;\n")
        self.put("a/b/y.h", "One\n")
        self.put(".git/config", "One\n")
        os.symlink("../secret", os.path.join(self.dir, "a/link"))
        os.symlink("..", os.path.join(self.dir, "a/up"))
        self.assertEqual(self.one("search_text", pattern="One"), ("ok", "a/b/y.h:1: One\na/x.c:1: int One;\n"))
        self.assertEqual(self.one("search_text", pattern="[[:upper:]]ne|two", path="a", files="*.c"), ("ok", "a/x.c:1: int One;\na/x.c:2: int two;\n"))
        self.assertEqual(self.one("search_text", pattern="ONE", path="a/x.c", ignore_case=True), ("ok", "a/x.c:1: int One;\n"))
        self.assertEqual(self.one("search_text", pattern="secret"), ("ok", "[no line matches]"))
        self.put("evil", "a" * 5000 + "!\n" + "b" * 1000 + "\n" + "\udcff".encode("utf-8", "surrogatepass").decode("latin-1") + "\n")
        self.assertIn("1 line took too many steps", self.one("search_text", pattern="(a+)+$", path="evil")[1])
        self.assertIn("...\n", self.one("search_text", pattern="b", path="evil")[1])
        for pattern, what in (("(", "pattern: missing closing parenthesis, at byte 1"), ("", "1 to 2000"), ("x" * 2001, "1 to 2000"), ("(?:(?:(?:x{1000}){1000}){1000}){1000}", "pattern: "), ("\\C", "pattern: ")):
            found = self.one("search_text", pattern=pattern)
            self.assertEqual(found[0], "failed", found)
            self.assertIn(what, found[1])
        self.put("flood", "x\n" * 100000)
        text = self.one("search_text", pattern="x", path="flood")[1]
        self.assertTrue(text.endswith("flood:200: x\n[cut after 200 lines; a narrower pattern or path finds others]"), text[-200:])
        deep = "/".join(["d"] * 40)
        self.put(deep + "/f", "deep\n")
        self.assertIn("too deep", self.one("search_text", pattern="deep")[1])

    def test_edits(self):
        """Calls that cannot be carried out are answered without a question; modes and other names of a file stay."""
        for arguments, what in (({"old_text": "gone"}, "does not occur"), ({"old_text": "add"}, "more than once"), ({"old_text": ""}, "empty"), ({"old_text": "add(2"}, "more than once"), ({"old_text": "passed", "new_text": "passed"}, "the same"),
                                ({"old_text": "passed", "new_text": "a\0"}, "without NUL"), ({"path": "none", "old_text": "x"}, "no such file")):
            calls = self.agent(call("replace_text", **{"path": "test.py", "new_text": "x", **arguments}), allow=())
            self.assertEqual(calls[0]["status"], "failed", calls)
            self.assertIn(what, calls[0]["result"])
        self.assertIn("already", self.agent(call("write_file", path="test.py", content=self.get("test.py")), allow=())[0]["result"])
        path = os.path.join(self.dir, "test.py")
        os.chmod(path, 0o4751)
        os.link(path, os.path.join(self.home, "other"))
        before = self.get("test.py")
        self.assertEqual(self.one("replace_text", path="test.py", old_text="add(2", new_text="add(3", all=True)[0], "ok")
        self.assertEqual(self.get("test.py"), before.replace("add(2", "add(3"))
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o751)
        with open(os.path.join(self.home, "other")) as f:
            self.assertEqual(f.read(), before)

    def test_differences(self):
        """What is shown is what happens: the differences, applied to the old text, give the new one."""
        r = random.Random(int(os.environ.get("SEED", "1")))
        for i in range(40):
            old = [r.choice("abcd") * r.randrange(3) + "\n" for _ in range(r.choice((0, 1, 5, 30, 200)))]
            new = [x for x in old if r.random() > 0.1]
            for _ in range(r.randrange(6)):
                new.insert(r.randrange(len(new) + 1), r.choice("abxy") + "\n")
            old, new = "".join(old), "".join(new)
            old, new = old[:-1] if r.randrange(4) == 0 else old, new[:-1] if r.randrange(4) == 0 else new
            if old == new:
                continue
            self.put("f", old)
            self.assertEqual(self.one("write_file", path="f", content=new)[0], "ok")
            self.assertEqual(self.get("f"), new)
            shown = self.err.split("call of write_file f\n", 1)[1]
            self.assertEqual(apply(old, shown if shown.endswith("\n") else shown + "\n"), new, (old, new, shown))
        self.put("f", "".join(f"{i}\n" for i in range(600)))
        self.one("write_file", path="f", content="".join(f"{i} {i}\n" for i in range(600)))
        self.assertEqual(apply("".join(f"{i}\n" for i in range(600)), self.err.split("call of write_file f\n", 1)[1]), self.get("f"))

    def test_differences_control_no_terminal(self):
        t = self.chat("--agent", self.dir)
        t.send(script(call("write_file", path="f", content="\x1b]0;title\x07\x1b[31mred\n\u202eab\n"), "done") + "\r")
        self.last = t.prompt(t.until("+␛]0;title", self.last), ASKS)
        for bad in (b"\x1b]0", b"\x1b[31mred", b"\x07", "\u202e".encode()):
            self.assertNotIn(bad, t.out[t.out.index("+␛]0".encode()):])
        t.send("n\r")

    def test_commands(self):
        for command, status, result in (("pwd; echo $PWD", "ok", f"{self.dir}\n{self.dir}\n"), ("true", "ok", "[exit status 0, without output]"), ("echo a; echo b >&2; exit 3", "failed", "a\nb\n[exit status 3]"), ("cat", "ok", "[exit status 0, without output]"), ("cd / && pwd", "ok", "/\n"),
                                        ("echo ${HEARTH_API_KEY-none}", "ok", "none\n"), ("if", "failed", None)):
            found = self.one("run_command", command=command, env={"HEARTH_API_KEY": "secret"})
            self.assertEqual(found, (status, found[1] if result is None else result), command)
        self.assertEqual(self.one("run_command", command="echo begun; sleep 100", timeout=1), ("failed", "begun\n[stopped after 1 s, its limit of time]"))
        self.assertEqual(self.one("run_command", command="yes")[1][-22:], "y\n[cut at 32768 bytes]")
        for arguments in ({}, {"command": ""}, {"command": "a\0b"}, {"command": "true", "timeout": 601}, {"command": ["true"]}):
            self.assertEqual(self.one("run_command", **arguments)[0], "failed", arguments)


if __name__ == "__main__":
    unittest.main()
