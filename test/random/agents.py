#!/usr/bin/env python3
"""The same random chat with tools in this process, attached to a resident engine and with a remote server: agents.py HEARTH_FAKE [--seeds 1-5]
The fake engine gives the answers that a question lists. All chats must save the same conversations, whose results are the tools'; the same question to one
answer (-p) must save the same messages, too, and print the same in every form."""
import json
import os
import re
import sys
import time

from common import BIN, Difference, check, main

import calls
import driver

MCP = f"{sys.executable} {os.path.join(os.path.dirname(os.path.abspath(driver.__file__)), 'mcp_server.py')} good"
TOOLS = {"cat": ["cat"], "fails": ["sh", "-c", "echo out; echo why >&2; exit 3"], "words": ["printf", "a\\nb\\n"]}
ASKS = b"Run it? y: yes, n: no, a: always > "
PROMPT = re.compile(rb"\x1b\[1m([^\x1b]*> )\x1b\[0m\r")


def answers(r, most=3, plain=False):
    """Returns what the model says to a question: answers with calls, then one without; `plain`: text only."""
    out = []
    if plain:
        return [calls.words(r, 12)]
    for i in range(r.randrange(1, most + 1)):
        plan, _, _, found = calls.answer(r, (*TOOLS, "cat", "echo", "unknown", " cat ", "né"))
        out.append(plan)
        if not found:
            break
    return out


class Terminal:
    """A chat in a terminal, with a home directory of its own."""

    def __init__(self, run, name, options, decisions):
        self.home, self.name, self.decisions = os.path.join(run.home, name), name, decisions
        self.env = {**run.env, "HOME": self.home, "FAKE_SHOWS_CALLS": "1", "EDITOR": os.path.join(run.home, "editor")}
        self.argv = [BIN, *options]
        self.t = None

    def open(self, *more):
        self.asked = 0
        self.t = driver.Terminal(["sh", "-c", 'cd "$0" && exec "$@"', os.path.dirname(self.home), *self.argv, *more], self.env, cols=200)
        self.last = self.wait(0)

    def wait(self, start):
        """Waits for a prompt with nothing typed, and answers questions about calls; returns the offset after it."""
        while True:
            at = self.t.until(PROMPT.pattern, start)
            if PROMPT.search(self.t.out, start)[1] != ASKS:
                return at
            decision = self.decisions[self.asked % len(self.decisions)]
            self.t.send(decision + "\r" * (decision != "\x03"))
            self.asked += 1
            start = at

    def type(self, line):
        start = self.last
        self.t.send(line + "\r")
        if line.startswith("/edit"):  # the editor leaves its text in the line
            self.t.quiet(0.5)
            start = len(self.t.out)
            self.t.send("\r")
        self.last = self.wait(self.t.until("\n", start))

    def close(self):
        if self.t and self.t.p.poll() is None:
            self.t.close()

    def leave(self):
        self.t.send("\x04")
        status = self.t.wait()
        check(f"{self.name}: exit status and terminal", (status, self.t.restored()), (0, True))
        self.t.close()

    def saved(self):
        """Returns the saved conversations as {name: messages}, with calls numbered instead of their ids."""
        directory = os.path.join(self.home, ".local/share/hearth/sessions")
        out = {}
        for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else []:
            if not name.endswith(".json"):
                continue
            with open(os.path.join(directory, name), encoding="utf-8") as f:
                messages = json.load(f)["body"]["messages"]
            check(f"{self.name}, {name}: results", *results(messages))
            out[name.removesuffix(".json")] = numbered(messages)
        return out


def results(messages):
    """Returns the ids of calls and of results in order, which must be equal unless the conversation ends between them."""
    called = [c["id"] for m in messages for c in m.get("tool_calls", [])]
    got = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    return got, called[:len(got)] if messages and messages[-1]["role"] in ("tool", "assistant") and len(got) < len(called) else called


def numbered(messages):
    ids = {}
    out = json.loads(json.dumps(messages))
    for m in out:
        if m.get("partial"):  # a server gives the markup of a call that was cut as text
            m["content"] = m["content"].split("<tool_call>")[0]
        for c in m.get("tool_calls", []):
            c["id"] = ids.setdefault(c["id"], len(ids))
        if m["role"] == "tool":
            m["tool_call_id"] = ids.get(m["tool_call_id"], m["tool_call_id"])
            for c in [c for n in out for c in n.get("tool_calls", []) if c["id"] == m["tool_call_id"] and m["content"][:1] == "{" and "[cut at " not in m["content"] and c["function"]["name"] == "cat"]:
                check("result of cat", json.loads(m["content"]), c["function"]["arguments"])
    return out


def script(r, remote, most):
    """Returns lines to type; the files of /read are in the directory of the run. None: leave and continue the last conversation."""
    lines, n, goes_on = [], 0, not remote and r.random() < 0.3  # with a remote server an answer cannot be continued
    plain = goes_on and r.random() < 0.5
    for _ in range(r.randrange(3, most)):
        n += 1
        kind = r.choice(["say"] * 6 + ["prompt", "/regen", "/undo", "/fork", "/switch", "/system", "/compact", "/set", "/edit", "/clear", "/save", "/new", "/close", "/load", "/read", "/delete", None] + ["/continue"] * 3 * goes_on)
        said = "say " + json.dumps(answers(r, plain=plain), ensure_ascii=r.random() < 0.5)
        if kind == "say":
            lines.append(said)
        elif kind == "/edit":
            lines.append("/edit " + said)
        elif kind in ("/fork", "/save", "/new"):
            lines.append(f"{kind} n{n}")
        elif kind in ("/load", "/delete"):
            lines.append(f"{kind} {r.choice(('talk', f'n{r.randrange(1, n + 1)}'))}")
        elif kind == "/read":
            lines.append("/read " + r.choice(("fails.json", "*.json", "editor")))
        elif kind == "/switch":
            lines.append(f"/switch {r.randrange(1, 3)}")
        elif kind == "/system":
            lines.append("/system " + r.choice(("-", "be brief", "S €")))
        elif kind == "/set":
            lines.append(r.choice(("/set max-tokens ", "/set max-calls ")) + str(r.choice((1, 5, 40, 1000))))
        else:
            lines.append(kind)
    return lines


def one_answer(run, names, question, options):
    """Runs -p in each way and form. All must save the same messages; an object and lines must tell the same, and so must a resident engine."""
    first = {}
    for name, own in names.items():
        for form in ("--json", "--json-lines", "--stream", "--no-stream"):
            home = os.path.join(run.home, name + form)
            os.mkdir(home)
            status, out, err = run.command([BIN, *own, *options, *([] if form == "--stream" else [form]), "--save", "talk", "-q", "-p", question], HOME=home)
            what = f"{name} {form} {' '.join(options)} {question!r} {err}"
            saved = status, Terminal(run, name + form, [], []).saved()
            check(f"{what}: saved", saved, first.setdefault("saved", saved))
            told = out.decode("utf-8", "replace")
            if form == "--json":
                told = json.loads(out)
                told = {key: told.get(key) for key in ("text", "thinking", "tool", "calls", "reason")} if not status else None
                for c in told and told["calls"] or []:
                    c.pop("seconds")
            elif form == "--json-lines":
                lines = [json.loads(line) for line in told.split("\n")[:-1]]
                joined = ["".join(o["text"] for o in lines if o["type"] == kind) or None for kind in ("delta", "thinking", "tool")]
                called = [{key: o[key] for key in ("id", "name", "arguments")} for o in lines if o["type"] == "call"]
                result = [{key: o[key] for key in ("id", "status", "result")} for o in lines if o["type"] == "result"]
                whole = first.get(name + "--json")
                if whole:
                    check(f"{what}: lines", joined, [whole[key] or None for key in ("text", "thinking", "tool")])
                    check(f"{what}: calls in lines", [{**a, **b} for a, b in zip(called, result, strict=True)], whole["calls"] or [])
                told = joined
            if name != "remote":
                check(f"{what}: told", told, first.setdefault("own" + form, told))
            first[name + form] = told


def one(run):
    r = run.r
    files = []
    for name, command in TOOLS.items():
        files.append(os.path.join(run.home, name + ".json"))
        with open(files[-1], "w", encoding="utf-8") as f:
            json.dump({"name": name, "description": "d", "parameters": {"type": "object"}, "command": command, "output": r.choice((10, 65536)) if name == "cat" else 65536}, f)
    with open(os.path.join(run.home, "editor"), "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\nexit 0\n")
    os.chmod(os.path.join(run.home, "editor"), 0o755)
    tools = [o for file in files for o in ("--tool", file)] + (["--mcp", MCP] if not run.few and r.random() < 0.15 else [])
    allowed = r.choice(([], ["--allow", "cat"], ["--allow", "all"]))
    limits = [*r.choice(([], ["-n", "60"], ["--until", "e"])), *r.choice(([], ["--max-calls", "2"])), *r.choice(([], ["-c", "700"], ["-c", "2000"]))]
    context = limits[limits.index("-c"):] if "-c" in limits else []
    own_limits = limits[:len(limits) - len(context)]
    remote = not context and "--until" not in limits and r.random() < 0.4  # a server gives markup that is not a call as text: --until finds it, and it takes room
    lines = script(r, remote, 4 if run.few else 9)
    decisions = [r.choice("yyna\x03") for _ in range(8)]
    run.env["FAKE_SHOWS_CALLS"] = "1"
    engine = run.serve("--listen", "127.0.0.1:0", *context, attach=True)
    names = {"own": ["-m", run.model, "--no-attach", *context], "attached": ["-m", run.model, *context]}
    exact = ["--cpu", "scalar", "--kv", "f32", "-t", "1"]
    for name in names:
        names[name] += exact
    if remote:
        names["remote"] = ["-m", engine.url]
        run.env["HEARTH_API_KEY"] = engine.key
    chats = {name: Terminal(run, name, [*options, *own_limits, *tools, *allowed], decisions) for name, options in names.items()}
    what = f"{' '.join(limits + allowed)}; decisions {decisions}; {json.dumps(lines, ensure_ascii=False)}"
    try:
        if r.random() < 0.5:
            one_answer(run, names, "say " + json.dumps(answers(r)), [*own_limits, *tools, "--allow", r.choice(("cat", "all", "all"))])
        for chat in chats.values():
            os.mkdir(chat.home)
            chat.open("--save", "talk")
        for i, line in enumerate(lines):
            saved = {}
            for chat in chats.values():
                if line is None:
                    chat.leave()
                    chat.open(*(["--last"] if chat.saved() else ["--save", "talk"]))
                else:
                    chat.type(line)
            if line is None or i % 3 == 2 or i == len(lines) - 1:
                end = time.monotonic() + 5
                while not saved or (any(saved[name] != saved["own"] for name in saved) and time.monotonic() < end):
                    saved = {chat.name: chat.saved() for chat in chats.values()}  # in the background
                for name in saved:
                    check(f"{what}: after {line!r}, {name}", saved[name], saved["own"])
        for chat in chats.values():
            chat.leave()
    except AssertionError as e:
        raise Difference(f"{what}\n    {e}") from e
    finally:
        for chat in chats.values():
            chat.close()
    engine.settles("at the end")
    engine.end()
    return f"{len(lines)} lines, {' '.join(names)}"


if __name__ == "__main__":
    main(["fake"], one)
