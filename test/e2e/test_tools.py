"""Tools on the command line, on the fake engine: `use NAME {ARGUMENTS}` makes it call a tool, and answer with the result; `loop` calls without end."""
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest

import driver

MCP = f"{sys.executable} {os.path.join(os.path.dirname(os.path.abspath(__file__)), 'mcp_server.py')}"


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def ends(pid):
    """Waits until a killed process has ended: a busy machine takes its time."""
    end = time.monotonic() + driver.PATIENCE / 4
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_running(pid)


def make_tool(case, name, *command, **more):
    return case.write(f"tools/{name}.json", json.dumps({"name": name, "description": "d", "parameters": {"type": "object"}, "command": command, **more}))


class Tools(driver.ChatCase):
    def setUp(self):
        super().setUp()
        self.env["FAKE_SHOWS_CALLS"] = "1"  # in the prompt: the calls of a message, and the id of a result

    def tool(self, name, *command, **more):
        return make_tool(self, name, *command, **more)

    def use(self, name, *command, arguments="{}", options=(), env=None, **more):
        """Runs a tool that is allowed; returns the object of its call in --json."""
        rc, out, err = self.run_bin("--tool", self.tool(name, *command, **more), "--allow", name, "--json", "-p", f"use {name} {arguments}", *options, env=env)
        self.assertEqual(rc, 0, err)
        self.object, self.err = json.loads(out), err
        call, = self.object["calls"]
        return call


class Pipe(Tools):
    def test_call(self):
        """The arguments go to stdin, the result goes to the model, and the call is shown on stderr."""
        args = ["--tool", self.tool("weather", "cat"), "--allow", "weather", "-p", 'use weather {"city":   "Bern", "n": [1]}']
        rc, out, err = self.run_bin(*args)
        self.assertEqual((rc, out), (0, b'It says: {"city": "Bern", "n": [1]}"call00000".\n'), err)
        self.assertEqual(err, 'hearth: call of weather {"city": "Bern", "n": [1]}\n')
        self.assertEqual(self.run_bin(*args, "-q")[1:], (out, ""))
        self.assertEqual(self.run_bin(*args, "--no-stream")[1], out)
        rc, out, err = self.run_bin(*args[:-1], 'use weather {"n": 1},', "--allow", "all")
        self.assertEqual(out, b'It says: {"n": 1}"call00000".\n')
        self.assertEqual(err.count('call of weather {"n": 1}'), 2)

    def test_json(self):
        call = self.use("weather", "cat", arguments='{"n": 5}')
        seconds = call.pop("seconds")
        self.assertTrue(0 < seconds < driver.PATIENCE)
        self.assertEqual(call, {"id": "call00000", "name": "weather", "arguments": {"n": 5}, "status": "ok", "result": '{"n": 5}'})
        self.assertEqual(self.object["text"], 'It says: {"n": 5}"call00000".')
        self.assertNotIn("tool", self.object)
        self.assertGreater(self.object["usage"]["answer_tokens"], len(self.object["text"]))
        rc, out, err = self.run_bin("--tool", self.tool("weather", "cat"), "--allow", "all", "--json-lines", "-p", "use weather {}")
        events = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([e["type"] for e in events if e["type"] != "delta"], ["call", "result", "usage", "done"])
        self.assertEqual(events[0], {"type": "call", "id": "call00000", "name": "weather", "arguments": {}})
        self.assertEqual((events[1]["status"], events[1]["result"]), ("ok", "{}"))

    def test_consent_is_needed(self):
        """Without a terminal nothing runs that --allow does not name."""
        path = os.path.join(self.home, "ran")
        args = ["--tool", self.tool("touch", "touch", path), "--tool", self.tool("other", "cat"), "-p", "use touch {}", "--save", "talk"]
        rc, out, err = self.run_bin(*args, "--allow", "other")
        self.assertEqual((rc, out), (2, b""))
        self.assertIn("the model called touch, which needs your consent", err)
        self.assertIn("--allow touch gives it", err)
        self.assertFalse(os.path.exists(path))
        with open(self.session_file("talk")) as f:
            last = json.load(f)["body"]["messages"][-1]
        self.assertEqual((last["role"], last["content"]), ("tool", "[not run: the user could not be asked]"))
        rc, out, err = self.run_bin(*args[:-2], "--json")
        self.assertEqual((rc, json.loads(out)["error"]["code"]), (2, 2))
        self.assertEqual(self.run_bin(*args[:-2], "--allow", "touch")[0], 0)
        self.assertTrue(os.path.exists(path))

    def test_no_shell_no_descriptors_no_key(self):
        trap = os.path.join(self.home, "trap")
        call = self.use("cat", "cat", "-", arguments=json.dumps({"x": f"$(touch {trap}); `touch {trap}` | touch {trap}\n"}))
        self.assertEqual(json.loads(call["result"]), call["arguments"])
        self.assertEqual(self.use("echo", "echo", f"$(touch {trap})")["result"], f"$(touch {trap})\n")
        self.assertFalse(os.path.exists(trap))
        self.assertEqual(self.use("ls", "ls", "/proc/self/fd")["result"].split(), ["0", "1", "2", "3"])  # 3: the listed directory
        call = self.use("env", "env", env={"HEARTH_API_KEY": "secret", "OTHER": "kept"})
        self.assertIn("OTHER=kept", call["result"])
        self.assertNotIn("secret", call["result"])
        self.assertEqual(self.use("tty", "sh", "-c", "exec 2>&1; : > /dev/tty")["status"], "failed")

    def test_failures(self):
        """Whatever a tool does, the model gets a text that says so, and the answer goes on."""
        for name, command, limits, status, result in (
                ("status", ("sh", "-c", "echo out; echo why >&2; exit 3"), {}, "failed", "out\n[exit status 3]\n[stderr]\nwhy\n"),
                ("signal", ("sh", "-c", "printf part; kill -SEGV $$"), {}, "failed", "part\n[ended by signal 11: Segmentation fault]"),
                ("slow", ("sh", "-c", "echo begun; sleep 100"), {"timeout": 0.3}, "failed", "begun\n[stopped after 0.3 s, its limit of time]"),
                ("deaf", ("sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"), {"timeout": 0.2}, "failed", "[stopped after 0.2 s, its limit of time]"),
                ("flood", ("yes",), {"output": 8}, "ok", "y\ny\ny\ny\n[cut at 8 bytes]"),
                ("bytes", ("printf", r"a\377\342\202b\000c\033"), {}, "ok", "a\ufffd\ufffdb\0c\x1b"),
                ("closes", ("sh", "-c", "exec <&- >&- 2>&-; sleep 0.1"), {}, "ok", ""),
                ("silent", ("true",), {}, "ok", "")):
            call = self.use(name, *command, **limits)
            self.assertEqual((call["status"], call["result"]), (status, result), name)
            self.assertTrue(self.object["text"].startswith("It says: " + result.split("\0")[0]), self.object["text"])
            self.assertLess(call["seconds"], 20)
            self.assertEqual(f"hearth: the call of {name} failed\n" in self.err, status == "failed")

    def test_missing_program(self):
        rc, out, err = self.run_bin("--tool", self.tool("gone", "no-such-program-here"), "-p", "use gone {}")
        self.assertEqual((rc, out), (2, b""))
        self.assertIn("gone.json: command: no-such-program-here: no such program in PATH", err)
        path = self.write("bin/once", "#!/bin/sh\nrm \"$0\"\n")
        os.chmod(path, 0o755)
        rc, out, err = self.run_bin("--tool", self.tool("once", path), "--allow", "once", "--json", "-p", "use once {},")
        self.assertEqual([c["status"] for c in json.loads(out)["calls"]], ["ok", "failed"])
        self.assertIn("cannot be started: No such file", json.loads(out)["calls"][1]["result"])

    def test_process_group_ends(self):
        """Nothing that a tool has started outlives its call."""
        daemon = "(setsid sh -c 'echo $$ > PID; exec sleep 100' >&- 2>&- <&- &)"
        for command, more in (("sleep 100 & echo $! > PID; wait", {"timeout": 0.3}), ("sleep 100 >&- 2>&- & echo $! > PID", {}), ("sleep 100 & echo $! > PID", {}),
                              (daemon + "; while [ ! -s PID ]; do sleep 0.01; done", {}), (daemon.replace("setsid", "env -i setsid") + "; while [ ! -s PID ]; do sleep 0.01; done", {}),
                              ("setsid sh -c '(setsid sleep 100 & echo $! > PID); sleep 100' & wait", {"timeout": 0.3})):
            pid_file = os.path.join(self.home, "pid")
            if os.path.exists(pid_file):
                os.unlink(pid_file)
            self.use("group", "sh", "-c", command.replace("PID", pid_file), **more)
            with open(pid_file) as f:
                pid = int(f.read())
            self.assertTrue(ends(pid), command)

    def test_limit_of_calls(self):
        args = ["--tool", self.tool("weather", "cat"), "--allow", "weather", "-p", "loop weather {}", "--save", "talk"]
        rc, out, err = self.run_bin(*args, "--max-calls", "3")
        self.assertEqual((rc, err.count("call of weather")), (1, 4), err)
        self.assertIn("it has made 3 tool calls; --max-calls allows more", err)
        with open(self.session_file("talk")) as f:
            results = [m["content"] for m in json.load(f)["body"]["messages"] if m["role"] == "tool"]
        self.assertEqual(results, ["{}"] * 3 + ["[not run: an answer may call tools 3 times]"])
        rc, out, err = self.run_bin(*args[:-2])
        self.assertEqual((rc, err.count("call of weather")), (1, 21), err)
        rc, out, err = self.run_bin(*args[:-3], "loop nothing {}", "--json-lines")
        self.assertEqual((rc, out.count(b'"result"'), out.count(b"there is no tool of this name; the tools are: weather")), (1, 42, 20))

    def test_not_calls(self):
        """Markup that is no call, and a call that was cut, run nothing."""
        path = os.path.join(self.home, "ran")
        tool = ["--tool", self.tool("touch", "touch", path), "--allow", "all"]
        for prompt, shown in (("nonsense", '<tool_call>{"name": 5}</tool_call>'), ("use touch {not json}", "{not json}"), ("use touch " + '{"a":' * 115 + "1" + "}" * 115, '{"a":{"a":')):
            for form in ([], ["--no-stream"]):
                rc, out, err = self.run_bin(*tool, *form, "-p", prompt)
                self.assertEqual(rc, 0, err)
                self.assertIn(shown, out.decode())
        rc, out, err = self.run_bin(*tool, "-n", "40", "-p", 'use touch {"a": "' + "x" * 50 + '"}')
        self.assertIn("stopped at the -n limit", err)
        self.assertEqual(self.run_bin(*tool, "-n", str(len('[{"name": "touch", "arguments": {}}')), "-p", "use touch {}")[0], 0)
        self.assertFalse(os.path.exists(path))

    def test_markup_is_saved(self):
        """Markup that is not a call is a part of the answer's text, as it is shown: with tools and without, and in a chat also after /continue."""
        question = 'say ["a\\u0010{\\"name\\": 5}\\u0011"]'
        said = lambda: [m["content"] for m in json.load(open(self.session_file("talk")))["body"]["messages"]][1:]
        for tool in ([], ["--tool", self.tool("weather", "cat")]):
            rc, out, err = self.run_bin(*tool, "--save", "talk", "-p", question)
            self.assertEqual((rc, out.decode(), said()), (0, 'a<tool_call>{"name": 5}</tool_call>\n', ['a<tool_call>{"name": 5}</tool_call>']), err)
            self.run_bin("--delete", "talk")
            t = self.chat(*tool, "-n", "6", "--save", "talk", prompt="talk> ")
            for line, answer in ((question, "limit of 6 tokens"), ("/set max-tokens 100", ""), ("/continue", "5}</tool_call>"), ("/continue", ""), ("/save", "saved as talk")):
                begin = self.last
                t.send(line + "\r")
                self.last = t.prompt(t.until(answer, begin), "talk> ")
            self.assertEqual(said(), ['a<tool_call>{"name": 5}</tool_call>'], tool)
            t.send("/bye\r")
            self.assertEqual(t.wait(), 0)
            self.run_bin("--delete", "talk")

    def test_thinking_of_turns(self):
        """Thinking before and after a call is separated alike in an object and in lines."""
        args = ["--tool", self.tool("weather", "cat"), "--allow", "all", "-p", 'say ["\\u000eone\\u000f\\u0010{\\"name\\": \\"weather\\"}\\u0011", "\\u000etwo\\u000fend"]']
        whole = json.loads(self.run_bin(*args, "--json")[1])
        lines = [json.loads(line) for line in self.run_bin(*args, "--json-lines")[1].splitlines()]
        self.assertEqual((whole["thinking"], "".join(e["text"] for e in lines if e["type"] == "thinking")), ("one\n\ntwo", "one\n\ntwo"))

    def test_refused_options(self):
        good = self.tool("good", "cat")
        for args, what in (((["--allow", "x"]), "--allow needs --tool, --mcp or --agent"), (["--tool-choice", "x"], "--tool-choice needs"), (["--tool", good, "--tool", good], "another tool has the name good"),
                           (["--tool", good, "--allow", "bad"], "--allow bad: no tool has this name"), (["--tool", good, "--tool-choice", "bad"], "the name of a tool"),
                           (["--tool", good, "--schema", "{}"], "--schema and --tool cannot be combined"), (["--tool", good, "--raw"], "--raw and --tool"), (["--tool", "/none"], "/none"),
                           (["--tool", good, "--max-calls", "0"], "--max-calls"), (["--mcp", ""], "--mcp: a program"), (["--mcp", "cat 'x"], "--mcp: a quote is not closed"), (["--mcp", "/none"], "/none: no program")):
            rc, out, err = self.run_bin(*args, "-p", "x")
            self.assertEqual((rc, out), (1 if "/none" == args[1] and args[0] == "--tool" else 2, b""), (args, err))
            self.assertIn(what, err)
        rc, out, err = self.run_bin("--tool", good, "-p", "x", env={"FAKE_NO_TOOLS": "1"})
        self.assertEqual((rc, out), (2, b""))
        self.assertIn("--tool: this model's chat template has no tools; choose a model that has", err)
        self.assertIn("--batch and --tool cannot be combined", self.run_bin("--tool", good, "--batch", good)[2])

    def test_bad_files(self):
        whole = {"name": "a", "command": ["cat"]}
        for change, what in (({"name": None}, "name: up to 64 letters"), ({"name": "a b"}, "name: up to"), ({"name": "x" * 65}, "name: up to"), ({"name": "all"}, "name: 'all' is a word of --allow"),
                             ({"command": []}, "command: an array"), ({"command": "cat"}, "command: an array"), ({"command": ["cat", 5]}, "command[1]: must be a string"),
                             ({"command": ["cat", "a\0b"]}, "command[1]: must be a string without NUL"), ({"command": [""]}, "command[0]"), ({"timeout": 0}, "timeout: must be seconds"), ({"timeout": "5"}, "timeout"),
                             ({"output": 0}, "output: must be"), ({"output": 1 << 30}, "output"), ({"timout": 5}, "timout: unknown member"), ({"parameters": []}, "parameters: must be"),
                             ({"parameters": {"type": "string"}}, "parameters.type: must be object"), ({"description": 5}, "description"), ({"type": "custom"}, "type: must be function"),
                             ({"function": {"name": "b"}}, "name: unknown member"), ({"function": 5, "name": None}, "function: must be an object")):
            tool = {k: v for k, v in {**whole, **change}.items() if v is not None}
            rc, out, err = self.run_bin("--tool", self.write("bad.json", json.dumps(tool)), "-p", "x")
            self.assertEqual((rc, out), (2, b""), (change, err))
            self.assertIn("bad.json: " + what, err)
        for text in ("[]", "{", '{"name": "a", "name": "b", "command": ["cat"]}', ""):
            rc, out, err = self.run_bin("--tool", self.write("bad.json", text), "-p", "x")
            self.assertEqual((rc, out), (2, b""), (text, err))
        form = {"type": "function", "function": {"name": "a", "description": "d", "parameters": {}, "strict": True}, "command": ["cat"]}
        self.assertEqual(self.run_bin("--tool", self.write("good.json", json.dumps(form)), "--allow", "a", "-p", "use a {}")[0], 0)

    def test_allocations(self):
        args = ["--tool", self.tool("weather", "cat"), "--allow", "weather", "-q", "-p", "use weather {}"]
        n = self.allocations(*args)
        self.all_or_said(range(1, n + 1, max(1, n // 40)), *args)

    def test_resume(self):
        """A saved conversation has its calls and results, also for a run without tools."""
        self.assertEqual(self.run_bin("--tool", self.tool("weather", "cat"), "--allow", "all", "--save", "talk", "-p", 'use weather {"n": 1}')[0], 0)
        with open(self.session_file("talk")) as f:
            messages = json.load(f)["body"]["messages"]
        self.assertEqual(messages[1:3], [{"role": "assistant", "content": "", "tool_calls": [{"id": "call00000", "type": "function", "function": {"name": "weather", "arguments": {"n": 1}}}]},
                                         {"role": "tool", "content": '{"n": 1}', "tool_call_id": "call00000", "name": "weather"}])
        rc, out, err = self.run_bin("--continue", "talk", "-p", "prompt")
        self.assertEqual(rc, 0, err)
        self.assertIn('[assistant]{"id": "call00000", "type": "function", "function": {"name": "weather", "arguments": {"n": 1}}}[tool]{"n": 1}"call00000"[assistant]It says', out.decode())
        rc, out, err = self.run_bin("--continue", "talk", "-p", "x", env={"FAKE_NO_TOOLS": "1"})
        self.assertEqual((rc, out), (2, b""))
        self.assertIn("the conversation has tool calls, which this model's chat template does not use", err)
        self.assertEqual(self.run_bin("--continue", "talk", "--tool", self.tool("weather", "cat"), "--allow", "all", "-p", "use weather {}")[1], b'It says: {}"call00001".\n')


class Mcp(Tools):
    def mcp(self, prompt, *args, kind="good", env=None):
        self.log = os.path.join(self.home, "log")
        if os.path.exists(self.log):
            os.unlink(self.log)
        return self.run_bin("--mcp", f"{MCP} {kind}", "--allow", "all", *args, "-p", prompt, env={"MCP_LOG": self.log, **(env or {})})

    def logged(self):
        with open(self.log) as f:
            return f.read().splitlines()

    def test_call(self):
        """All pages of tools are read; requests of the server are answered, notifications and strange replies are not."""
        rc, out, err = self.mcp('use echo {"text": "hi"}')
        self.assertEqual((rc, out), (0, b'It says: echo: hi"call00000".\n'), err)
        self.assertIn("tool bad name is left out: name: up to 64 letters", err)
        log = self.logged()
        self.assertEqual(log[:3], ["server/discover", "initialize", "notifications/initialized"])
        self.assertEqual(log[3:-1], ["tools/list"] * 6 + ["tools/call", "reply {}", 'reply {"code": -32601, "message": "this client has no such method"}'][:len(log) - 10])
        self.assertEqual(log[-1], "end of input")

    def test_revisions(self):
        """Servers of the revision without `initialize`, and those of earlier ones, however they take the question which they are."""
        for kind, begins in (("stateless", ["server/discover", "tools/list"]), ("older", ["server/discover", "initialize", "notifications/initialized"]), ("late", ["server/discover", "initialize", "server/discover", "tools/list"]),
                             ("mute", ["server/discover", "initialize", "notifications/initialized"]), ("strict", ["server/discover", "initialize", "notifications/initialized"])):
            rc, out, err = self.mcp('use echo {"text": "hi"}', kind=kind, env={"HEARTH_LIMITS": "patience=100"})
            self.assertEqual((rc, out), (0, b'It says: echo: hi"call00000".\n'), err)
            self.assertEqual(self.logged()[:len(begins)], begins)
        for kind in ("stateless", "good"):
            call, = json.loads(self.mcp("use input {}", "--json", kind=kind)[1])["calls"]
            self.assertEqual(call["status"], "failed")
            self.assertIn("tools/call: its result is not complete, but input_required: not supported", call["result"])

    @unittest.skipUnless(importlib.util.find_spec("mcp"), "the Python package mcp is not installed")
    def test_package(self):
        """The official package as a server; each revision of it speaks its own protocol."""
        server = os.path.join(self.home, "server.py")
        with open(server, "w") as f:
            f.write("""
try:
    from mcp.server import MCPServer as Server
except ImportError:
    from mcp.server.fastmcp import FastMCP as Server
server = Server("s")
@server.tool()
def add(a: int, b: int) -> str:
    return f"sum {a + b}"
server.run()
""")
        rc, out, err = self.run_bin("--mcp", f"{sys.executable} {server}", "--allow", "all", "-p", 'use add {"a": 3, "b": 4}')
        self.assertEqual((rc, out), (0, b'It says: sum 7"call00000".\n'), err)

    def test_results(self):
        for name, status, result in (("fail", "failed", "it did not work"), ("picture", "ok", "see:\n[content of type image is left out: only text is supported]"),
                                     ("die", "failed", f"[MCP server {sys.executable}: ended by signal 11 (Segmentation fault); its stderr ends: out of cheese]"),
                                     ("garbage", "ok", "a half: \ufffd"), ("broken", "failed", "a value is missing"), ("asks", "failed", "does not read the replies"),
                                     ("unknown", "failed", "tools/call: no such tool (code -32602)")):
            rc, out, err = self.mcp(f"use {name} {{}}", "--json")
            self.assertEqual(rc, 0, err)
            call, = json.loads(out)["calls"]
            self.assertEqual(call["status"], status, call)
            self.assertIn(result, call["result"])
        rc, out, err = self.mcp("use flood {}", "--json-lines")
        self.assertIn("this model's context is 65536", err)
        result = next(json.loads(line) for line in out.splitlines() if b'"result"' in line)["result"]
        self.assertEqual((rc, len(result), result[-26:]), (4, 65536 + 21, "fffff\n[cut at 65536 bytes]"))
        rc, out, err = self.mcp("use die {},", "--json")
        self.assertIn("was given up after an earlier error", json.loads(out)["calls"][1]["result"])

    def test_timeouts(self):
        fast = {"HEARTH_LIMITS": "patience=10"}
        rc, out, err = self.mcp("use hang {}", "--json", env={"HEARTH_LIMITS": "patience=100"})
        self.assertEqual(rc, 0, err)
        self.assertIn("no answer to tools/call after 60 s", json.loads(out)["calls"][0]["result"])
        self.assertIn("notifications/cancelled", self.logged())
        rc, out, err = self.mcp("x", kind="silent", env=fast)
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("no answer to initialize after 30 s", err)

    def test_bad_servers(self):
        for kind, what in (("exits", "exited with status 1; its stderr ends: cannot find its configuration"), ("toolless", "it offers no tools"), ("endless", "more than 100 pages")):
            rc, out, err = self.mcp("x", kind=kind)
            self.assertEqual((rc, out), (1, b""), err)
            self.assertIn(what, err)
        self.assertEqual(self.mcp('use echo {"text": "hi"}', kind="chatty")[1], b'It says: echo: hi"call00000".\n')
        rc, out, err = self.run_bin("--mcp", "cat", "-p", "x")
        self.assertEqual((rc, out), (1, b""), err)

    def test_names_of_two_sources(self):
        rc, out, err = self.mcp('use echo {"text": "hi"}', "--tool", self.tool("echo", "echo", "of the file"))
        self.assertEqual((rc, out), (0, b'It says: of the file\n"call00000".\n'), err)
        self.assertIn("tool echo is left out: another tool has the name echo", err)
        rc, out, err = self.run_bin("--tool", self.tool("a", "cat"), "--tool", self.tool("a", "cat"), "-p", "x")
        self.assertEqual((rc, out), (2, b""))
        self.assertIn("a.json: another tool has the name a", err)

    def test_too_many_tools(self):
        """Tools beyond the most are left out; notes name the first of them."""
        rc, out, err = self.mcp('use echo {"text": "hi"}', kind="many")
        self.assertEqual((rc, out), (0, b'It says: echo: hi"call00000".\n'), err)
        self.assertEqual(err.count("is left out: there are 512 tools, the most"), 10)
        self.assertIn("--mcp " + sys.executable + ": 79 more tools are left out", err)

    def test_daemon_of_a_server(self):
        """What a server has left running stays while it runs, also when a tool ends, and ends with it."""
        pid_file = os.path.join(self.home, "pid")
        t = self.chat("--mcp", f"sh -c '(setsid sleep 100 >&- 2>&- & echo $! > {pid_file}); exec {MCP} good'", "--tool", self.tool("true", "true"), "--allow", "all")
        self.ask(t, "use true {}", "It says")
        with open(pid_file) as f:
            pid = int(f.read())
        self.assertTrue(is_running(pid))
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        self.assertTrue(ends(pid))


ASKS = "Run it? y: yes, n: no, a: always > "


class Chat(Tools):
    def open(self, *tools, **more):
        return self.chat(*[arg for tool in tools for arg in ("--tool", tool)], *more.pop("args", ()), **more)

    def question(self, t, text):
        """Sends a line whose answer calls a tool; waits until the call needs consent."""
        begin = self.last
        t.send(text + "\r")
        self.last = t.prompt(t.until("call of ", begin), ASKS)
        return t.out[begin:self.last].decode()

    def test_consent(self):
        t = self.open(self.tool("weather", "cat"))
        shown = self.question(t, 'use weather {"city": "Bern", "x": "\\u001b[31m\\u009b\\n\\u202e"}')
        self.assertIn('call of weather {"city": "Bern", "x": "\\u001b[31m\ufffd\\n\ufffd"}', shown)
        self.assertIn("y runs it", self.ask(t, "maybe", "y runs it", ASKS))
        self.assertIn("It says: [not run: the user did not allow", self.ask(t, "n", "did not allow"))
        self.question(t, 'use weather {"n": 1}')
        self.assertIn('It says: {"n": 1}', self.ask(t, "y", "It says"))
        self.question(t, 'use weather {"n": 2}')
        self.assertIn('It says: {"n": 2}', self.ask(t, "always", "It says"))
        self.assertIn('It says: {"n": 3}', self.ask(t, 'use weather {"n": 3}', "It says"))
        t.send("\x04")
        self.assertEqual(t.wait(), 0)
        self.assertTrue(t.restored())

    def test_processes_of_others_stay(self):
        """What a shell started before it became hearth by exec is not a tool's, though it is hearth's child."""
        pid_file = os.path.join(self.home, "pid")
        script = 'env -i setsid sleep 100 >&- 2>&- <&- & echo $! > "$1"; sleep 0.1; exec "$0" --tool "$2" --allow true -p "use true {}"'
        p = subprocess.run(["sh", "-c", script, driver.BIN, pid_file, self.tool("true", "true")], env=self.env, stdin=subprocess.DEVNULL, capture_output=True)
        self.assertEqual(p.returncode, 0, p.stderr)
        with open(pid_file) as f:
            pid = int(f.read())
        self.assertTrue(is_running(pid))
        os.kill(pid, signal.SIGKILL)

    def test_output_controls_no_terminal(self):
        """Escape sequences in the output of a tool, and in its error output, are shown, not obeyed."""
        t = self.open(self.tool("evil", "sh", "-c", r"printf '\033]0;title\007\033[31mred'; printf '\033]0;why\007' >&2; exit 1"), args=("--allow", "all"))
        self.ask(t, "use evil {}", "\u241b[31mred")
        for bad in (b"\x1b]", b"\x1b[31m", b"\x07"):
            self.assertNotIn(bad, t.out)

    def test_two_calls(self):
        t = self.open(self.tool("weather", "cat"), self.tool("time", "date"))
        self.question(t, "use weather {},")
        self.assertIn("call of weather", self.ask(t, "y", "call of weather", ASKS))
        self.ask(t, "y", 'It says: {}"call00000"')
        self.question(t, "use time {},")
        self.ask(t, "a", "It says")

    def test_typed_ahead_is_no_consent(self):
        """Lines and text that were typed before the question answer nothing, and are not lost."""
        path = os.path.join(self.home, "ran")
        t = self.open(self.tool("touch", "touch", path))
        begin = self.last
        t.send("use touch {}\r")
        t.send("y\ry\rhalf a li")
        t.prompt(t.until("call of touch", begin), ASKS)
        t.send("n")  # a key, after which lines that wait would be sent
        t.quiet()
        self.assertFalse(os.path.exists(path))
        t.send("\r")
        end = time.monotonic() + driver.PATIENCE
        while (rows := [row for row in t.screen(24, 200) if row]).count("You said: y") < 2 or rows[-1] != "> half a li":
            self.assertLess(time.monotonic(), end, rows)
            t.read(0.2)
        self.assertFalse(os.path.exists(path))

    def test_killed_during_a_call(self):
        """The calls of an answer have results when the chat is opened again, as templates and servers require."""
        t = self.open(self.tool("slow", "sleep", "1000"), args=("--allow", "slow", "--save", "talk"), prompt="talk> ")
        t.send("use slow {},\r")
        t.until("call of slow", self.last)
        end = time.monotonic() + driver.PATIENCE
        while not os.path.exists(self.session_file("talk")) or "call00001" not in open(self.session_file("talk")).read():
            self.assertLess(time.monotonic(), end)
            t.read(0.05)
        t.p.kill()
        t.wait()
        rc, out, err = self.run_bin("--continue", "talk", "-p", "prompt x")
        self.assertEqual(rc, 0, err)
        for i in range(2):
            self.assertRegex(out.decode(), r'\[tool\]\[no result: the chat ended before this call did\]"call0000%d"' % i)

    def test_interrupt_kills_the_group(self):
        pid_file = os.path.join(self.home, "pid")
        t = self.open(self.tool("slow", "sh", "-c", f"sleep 1000 & echo $! > {pid_file}; wait"), args=("--allow", "slow", "--save", "talk"), prompt="talk> ")
        t.send("use slow {},\r")
        t.until("call of slow", self.last)
        end = time.monotonic() + driver.PATIENCE
        while time.monotonic() < end and not (os.path.exists(pid_file) and os.path.getsize(pid_file)):
            t.read(0.05)
        with open(pid_file) as f:
            pid = int(f.read())
        t.send("\x03")
        self.last = t.prompt(t.until("(stopped;", self.last), "talk> ")
        self.assertTrue(ends(pid))
        self.assertIn("It says: [stopped by the user]", self.ask(t, "/continue", "It says", "talk> "))
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        with open(self.session_file("talk")) as f:
            results = [m["content"] for m in json.load(f)["body"]["messages"] if m["role"] == "tool"]
        self.assertEqual(results, ["[stopped by the user]", "[not run: the user stopped the answer]"])
        t = self.chat("--continue", "talk", prompt="talk> ")
        self.assertIn(b"call of slow {}", t.out)
        self.ask(t, "still here", "You said: still here", "talk> ")

    def test_interrupt_at_the_question(self):
        t = self.open(self.tool("weather", "cat"))
        self.question(t, "use weather {}")
        t.send("\x03")
        self.last = t.prompt(t.until("(stopped;", self.last))
        shown = " ".join(self.ask(t, "prompt x", "[user]prompt x").split())
        self.assertIn('[tool][not run: the user stopped the answer]"call00000"[assistant][user]prompt x', shown)

    def test_background(self):
        """A tool may run in the background; a call there asks for consent when its session is switched to."""
        gate = os.path.join(self.home, "gate")
        t = self.open(self.tool("gate", "sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.02; done"))
        t.send("/bg loop gate {}\r")
        self.last = t.prompt(t.until("call of gate", self.last), ASKS)
        t.send("y\r")
        t.until("running gate", self.last)
        t.send("/bg\r")
        self.last = t.prompt(t.until("continues in the background", self.last))
        self.ask(t, "/new", "", "2> ")
        self.ask(t, "/model x", "session 1", "2> ")
        self.write("gate", "")
        self.last = t.until("session 1 needs your consent to a call of gate; /switch 1 asks", self.last)
        self.ask(t, "hello", "You said: hello", "2> ")
        t.send("/switch 1\r")
        self.last = t.prompt(t.until("call of gate", self.last), ASKS)
        t.send("\x03")
        self.last = t.prompt(t.until("(stopped;", self.last), "1> ")
        self.ask(t, "again", "You said: again", "1> ")

    def test_limit_of_calls(self):
        t = self.open(self.tool("weather", "cat"), args=("--allow", "all", "--max-calls", "2"))
        self.ask(t, "loop weather {}", "(ended after 2 tool calls;")
        self.ask(t, "/set max-calls default", "")
        self.ask(t, "/show", b"max-calls +20")
        self.ask(t, "/set max-calls 3", "")
        self.ask(t, "/continue", "(ended after 3 tool calls;")
        self.ask(t, "hello", "You said: hello")

    def test_interrupt_of_a_server(self):
        """Ctrl-C cancels a call of an MCP server, which remains usable."""
        t = self.chat("--mcp", MCP + " good", "--allow", "all")
        t.send("use hang {}\r")
        t.until("call of hang", self.last)
        t.until("running hang", self.last)
        t.send("\x03")
        self.last = t.prompt(t.until("(stopped;", self.last))
        self.assertIn("It says: echo: hi", self.ask(t, 'use echo {"text": "hi"}', "It says"))

    def test_leaving_kills_the_group(self):
        pid_file = os.path.join(self.home, "pid")
        t = self.open(self.tool("slow", "sh", "-c", f"echo $$ > {pid_file}; sleep 100"), args=("--allow", "all"))
        t.send("use slow {}\r")
        end = time.monotonic() + driver.PATIENCE
        while time.monotonic() < end and not (os.path.exists(pid_file) and os.path.getsize(pid_file)):
            t.read(0.05)
        with open(pid_file) as f:
            pid = int(f.read())
        os.kill(t.p.pid, signal.SIGTERM)
        self.assertEqual(t.wait(), -signal.SIGTERM)
        self.assertTrue(ends(pid))
        self.assertTrue(t.restored())

    def test_regenerate_and_export(self):
        t = self.open(self.tool("weather", "cat"), args=("--allow", "all"))
        self.ask(t, 'use weather {"n": 1}', "It says")
        self.ask(t, "/regen", "It says")
        path = os.path.join(self.home, "talk.md")
        self.ask(t, f"/export {path}", "4 messages written")
        with open(path) as f:
            text = f.read()
        self.assertIn('    call of weather {"n": 1}\n', text)
        self.assertIn('## Result of weather\n\n{"n": 1}\n', text)

    def test_one_shot_asks(self):
        path = os.path.join(self.home, "ran")
        for answer, ran, said in (("n", False, "did not allow"), ("y", True, "It says"), ("a", True, "It says")):
            if os.path.exists(path):
                os.unlink(path)
            t = self.terminal("--tool", self.tool("touch", "touch", path), "-p", "use touch {},", cols=200)
            at = t.until("a: always run touch > ")
            self.assertFalse(os.path.exists(path))
            t.send(answer + "\r")
            if answer != "a":
                at = t.until("a: always run touch > ", at)
                t.send("no\r")
            t.until(said, at)
            self.assertEqual(t.wait(), 0)
            self.assertEqual(os.path.exists(path), ran)
        t = self.terminal("--tool", self.tool("touch", "touch", path), "-p", "use touch {}", cols=200)
        t.until("a: always run touch > ")
        t.send("\x03")
        self.assertEqual(t.wait(), -signal.SIGINT)


if __name__ == "__main__":
    driver.unittest.main()
