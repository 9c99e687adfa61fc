#!/usr/bin/env python3
"""Random chats in a terminal, with sessions, files, restarts and kills: chats.py BINARY [--seeds 1-5] [--models DIR...]
After every command the conversation that /export writes must be the one that a model of the chat in this file expects, whose answers are a resident
engine's to the same messages; at the end so must the saved conversations."""
import json
import os
import re
import signal
import time

from common import BIN, EXACT, Difference, check, main, text

import driver

SUMMARY = "Summary of our conversation so far:\n\n"
LIMITS = (1, 3, 12, 30)
DOCUMENT = re.compile(r'<document name="([^"]*)">\n.*?\n</document>\n\n', re.S)


class Talk:
    """What a session should hold: messages as [role, text, partial]; `prompt`: those that the last answer was generated from; `ids`: True if /continue
    resumes after the generated ids, False if after the text, None if it is not known how many ids there are."""

    def __init__(self, number, name=None, messages=()):
        self.number, self.name, self.messages = number, name, [list(m) for m in messages]
        self.cleared, self.ids, self.used, self.prompt, self.attached = None, False, number, None, []

    def system(self):
        return self.messages[:1] if self.messages and self.messages[0][0] == "system" else []

    def question(self):
        """Returns the index of the last question, or None."""
        return max((i for i, m in enumerate(self.messages) if m[0] == "user"), default=None)


def markdown(messages):
    """Returns what /export writes."""
    heads = {"system": "System prompt", "user": "Question", "assistant": "Answer"}
    out = []
    for role, text, partial in messages:
        names = DOCUMENT.findall(text) if role == "user" else []
        text = DOCUMENT.sub("", text) if names else text
        attached = f"Attached: {' '.join(f'({name})' for name in names)}\n\n" if names else ""
        out.append(f"## {heads[role]}\n\n{attached}{text}" + "\n" * (not text.endswith("\n")) + "\n(stopped)\n" * partial)
    return "\n".join(out)


class Chat:
    def __init__(self, run):
        self.run, self.r, self.log, self.n = run, run.r, [], 0
        self.options = self.r.choice(([], [], ["--kv-cache", "off"], ["--draft", "lookup"], ["--draft", "none"], ["--gpus", "emu:1,cpu=scalar", "--decode", "hybrid"]))
        self.context = self.r.choice(([], [], ["-c", "150"], ["-c", "400"]))
        self.engine, self.known, self.exact = run.reference(*self.context), {}, EXACT
        self.attached = self.r.random() < 0.25
        if self.attached:
            run.serve(*self.context, "--parallel", self.r.choice(("2", "16")), attach=True)
            self.exact, self.options = [option for option in EXACT if option != "--no-attach"], []
        self.limit, self.files = 30, os.path.join(run.home, ".local/share/hearth/sessions")
        self.t = None
        self.start()

    def start(self, *options):
        self.t = driver.Terminal([BIN, "-m", self.run.model, "--temp", "0", "-n", str(self.limit), *self.exact, *self.context, *self.options, *options], self.run.env, cols=200)
        self.t.until(rb"\x1b\[1m[^\x1b]*> \x1b\[0m\r")
        self.talks = [Talk(1)]
        self.at, self.last_number, self.switches, self.closed = self.talks[0], 1, 1, {}

    # --- what must come ---------------------------------------------------------------------------------------------------

    def answer(self, messages, limit=None, partial=False):
        """Returns the reference's (text, is cut), or None if the prompt does not fit."""
        body = {"messages": [{"role": role, "content": text} for role, text, _ in messages], "max_tokens": limit or self.limit, "temperature": 0}
        if partial:
            body["continue_final_message"] = True
        key = json.dumps(body)
        if key not in self.known:
            status, _, data = self.engine.request("POST", "/v1/chat/completions", key)
            choice = json.loads(data)["choices"][0] if status == 200 else None
            if not choice and b"context" not in data:
                raise Difference(f"the reference refuses {key}: {data.decode()}")
            self.known[key] = choice and (choice["message"]["content"] or "", choice["finish_reason"] == "length")
        return self.known[key]

    def asked(self, question):
        """Adds a question and its answer, unless they do not fit; returns the messages up to the question."""
        s = self.at
        question = "".join(s.attached) + question
        before = s.messages + ([["assistant", "", True]] if s.messages and s.messages[-1][0] == "user" else []) + [["user", question, False]]
        reply = self.answer(before)
        if reply:
            s.messages, s.ids, s.prompt, s.attached = before + [["assistant", *reply]], True, before, []
        return before

    def check(self, name):
        """Exports the conversation, which waits for the answer, and compares it."""
        got = self.export(name)
        if got != (want := markdown(self.at.messages)):
            raise Difference(f"{self.log}\n    got  {got!r}\n    want {want!r}")

    def export(self, name):
        self.n += 1
        path, start = os.path.join(self.run.home, f"{self.n}.md"), len(self.t.out)
        sent = 0
        end = time.monotonic() + driver.PATIENCE
        while not os.path.exists(path):
            if time.monotonic() - sent > 3:  # again: an answer that is stopped or fails drops what was typed below it
                self.t.send(f"/export {path}\r")
                sent = time.monotonic()
            if b"theconversationisempty" in re.sub(rb"\s", b"", self.t.out[start:]):
                return ""
            if self.t.p.poll() is not None or time.monotonic() > end:
                raise Difference(f"{name}: no export, exit status {self.t.p.poll()}, {self.log} {self.t.out[-1500:]!r}")
            self.t.read(0.02)
        with open(path, encoding="utf-8", newline="") as f:
            return f.read()

    # --- commands ---------------------------------------------------------------------------------------------------------

    def type(self, line):
        self.log.append(line)
        self.t.send(line + "\r")

    def new_question(self):
        self.n += 1
        return f"q{self.n} {text(self.r)}"

    def ask(self):
        for _ in range(self.r.choice((1, 1, 1, 2))):  # the second one waits
            question = self.new_question()
            self.type(question)
            if not self.answer(self.asked(question)) and self.attached:  # what is typed before the server's refusal is dropped
                self.check("refused")

    def stop(self):
        """Stops an answer: any beginning of it may remain. A question that was not read yet is dropped, as terminals do."""
        self.check("before it is stopped")
        question, s = self.new_question(), self.at
        before, ids, attached, prompt = [list(m) for m in s.messages], s.ids, s.attached, s.prompt
        sent = self.asked(question)
        self.type(question)
        self.t.read(self.r.random() * 0.05)
        self.t.send("\x03")
        self.log.append("Ctrl-C")
        got, whole = self.export("stop"), self.answer(sent) or ("", True)
        stopped = [sent + [["assistant", whole[0][:n], True]] for n in range(len(whole[0]) + 1)] + [sent + [["assistant", *whole]]]
        found = next((messages for messages in stopped if markdown(messages) == got), None)
        if not found:
            check(self.log, got, markdown(before))
            s.messages, s.ids, s.attached, s.prompt = before, ids, attached, prompt
        else:  # how many ids there are is not known
            s.messages, s.ids, s.attached, s.prompt = found, None, [], sent

    def bg(self):
        question = self.new_question()
        self.type("/bg " + question)
        sent, end = self.asked(question), time.monotonic() + driver.PATIENCE
        while self.export("bg") == markdown(sent) and time.monotonic() < end:
            pass

    def regen(self):
        self.type("/regen")
        s, i = self.at, self.at.question()
        reply = None if i is None else self.answer(s.messages[:i + 1])
        if reply:
            s.prompt = [list(m) for m in s.messages[:i + 1]]
            s.messages[i + 1:], s.ids = [["assistant", *reply]], True
        elif self.attached:
            self.check("refused")

    def go_on(self):
        """/continue: what the model would say after this text, or with more tokens; unless it has ended or was stopped, any continuation."""
        s = self.at
        self.type("/continue")
        if not s.messages or s.messages[-1][0] != "assistant":
            return
        last = s.messages[-1]
        if s.ids is False and (reply := self.answer(s.messages, partial=True)):
            last[1], last[2], s.ids = last[1] + reply[0], reply[1], None
            return
        if s.ids is False:
            s.ids = None  # the prompt with this text is there, though it is too long
            return
        got = self.export("continue")
        whole, cut = self.answer(s.prompt or s.messages[:-1], 1000) or (last[1], True)
        for partial in (True, False):  # in this order: a text may end like the mark of a stopped answer
            at = got.rfind("## Answer\n\n") + len("## Answer\n\n")
            now = got[at:].removesuffix("\n(stopped)\n").removesuffix("\n") if partial else got[at:].removesuffix("\n")
            for tail in ("", "\n"):
                if got == markdown(s.messages[:-1] + [["assistant", now + tail, partial]]) and (now + tail).startswith(last[1]):
                    if last[2] and not (whole.startswith(now + tail) if partial else whole == now + tail) and not cut:
                        continue
                    s.messages[-1], s.ids = ["assistant", now + tail, partial], None
                    return
        raise Difference(f"{self.log}\n    got  {got!r}\n    no continuation of {last!r}; whole {whole!r}")

    def undo(self):
        self.type("/undo")
        s, i = self.at, self.at.question()
        if i is not None:
            s.messages[i:], s.ids = [], False
        elif s.cleared:
            s.name, s.messages, s.cleared, s.ids = *s.cleared, None, False

    def clear(self):
        self.type("/clear")
        s = self.at
        if s.question() is not None:
            self.put_away(s.cleared)
            s.cleared, s.name = (s.name, s.messages), None
        s.messages, s.ids, s.attached = [list(m) for m in s.system()], False, []

    def system(self):
        words = self.r.choice(("-", "be brief", "you are € robot"))
        self.type("/system " + words)
        s = self.at
        s.messages[:len(s.system())] = [] if words == "-" else [["system", words, False]]

    def compact(self):
        self.type("/compact")
        s = self.at
        if len(s.messages) < 3 or self.context:
            return self.take("compact")
        got = self.export("compact")
        if got != markdown(s.messages):
            self.take("compact", got)
            if [m[1][:len(SUMMARY)] for m in s.messages if m[0] == "user"] != [SUMMARY]:
                raise Difference(f"{self.log}\n    got  {got!r}")

    def take(self, name, got=None):
        """Takes over what the session holds, which this file does not foresee."""
        got = self.export(name) if got is None else got
        if got == markdown(self.at.messages):
            return
        heads = {"System prompt": "system", "Question": "user", "Answer": "assistant"}
        self.at.messages, self.at.ids = [], False
        for part in got.removeprefix("## ").split("\n## "):
            head, _, rest = part.partition("\n\n")
            partial = rest.endswith("\n\n(stopped)\n")
            self.at.messages.append([heads[head], rest.removesuffix("\n(stopped)\n").removesuffix("\n"), partial])

    def add(self, talk):
        self.last_number = talk.number
        self.talks.append(talk)
        self.show(talk)

    def show(self, talk):
        self.switches += 1
        self.at, talk.used = talk, self.switches

    def new_name(self):
        self.n += 1
        return f"n{self.n}"

    def fork(self):
        name = self.r.choice((None, self.new_name()))
        self.type("/fork " + (name or ""))
        self.add(Talk(self.last_number + 1, name, self.at.messages))

    def new(self):
        name = self.r.choice((None, self.new_name()))
        self.type("/new " + (name or ""))
        self.add(Talk(self.last_number + 1, name))

    def switch(self):
        talk = self.r.choice(self.talks)
        self.type(f"/switch {talk.number}")
        self.show(talk)

    def put_away(self, conversation):
        """Keeps a (name, messages) that no session holds any more, if it is known under which name it was saved."""
        if conversation and conversation[0] and any(m[0] == "user" for m in conversation[1]):
            self.closed[conversation[0]] = conversation[1]

    def close(self):
        self.type("/close")
        self.talks.remove(self.at)
        self.put_away((self.at.name, self.at.messages))
        self.put_away(self.at.cleared)
        if not self.talks:
            self.add(Talk(self.last_number + 1))
        self.show(max(self.talks, key=lambda talk: talk.used))

    def save(self):
        name = self.new_name()
        self.type("/save " + name)
        self.at.name = name

    def load(self):
        cleared = {talk.cleared[0]: talk.cleared[1] for talk in self.talks if talk.cleared and talk.cleared[0]}
        names = sorted(self.closed | cleared)
        if not names:
            return
        name = self.r.choice(names)
        self.type("/load " + name)
        for talk in self.talks:
            if talk.cleared and talk.cleared[0] == name:
                talk.cleared = None
        self.add(Talk(self.last_number + 1, name, cleared.get(name) or self.closed.pop(name)))

    def read(self):
        self.n += 1
        name, words = f"{self.n}.txt", "\n".join(text(self.r) for _ in range(self.r.choice((1, 3, 30))))
        with open(os.path.join(self.run.home, name), "w", encoding="utf-8") as f:
            f.write(words)
        start = len(self.t.out)
        self.type("/read " + f.name)
        self.export("read")
        if b"nothingwasattached" in re.sub(rb"\s", b"", self.t.out[start:]):  # there is no room
            return
        self.at.attached.append(f'<document name="{name}">\n{words}\n</document>\n\n')

    def set(self):
        self.limit = self.r.choice(LIMITS)
        self.type(f"/set max-tokens {self.limit}")

    def model(self):
        """Changes to a model that is not there, or to the same model by another name: what was generated is then known as text only."""
        name = self.r.choice((self.run.model, self.run.other_name(), os.path.join(self.run.home, "none")))
        self.check("before another model")
        start = len(self.t.out)
        self.type("/model " + name)
        self.t.until(rb"(?:now|still) using", start)
        if not name.endswith("none"):
            for talk in self.talks:
                talk.ids = False

    def resize(self):
        self.t.resize(self.r.randrange(4, 40), self.r.choice((20, 50, 200)))

    def saved(self):
        """Returns the saved conversations by name."""
        out = {}
        for name in os.listdir(self.files) if os.path.isdir(self.files) else []:
            if not name.endswith(".json"):
                continue
            with open(os.path.join(self.files, name), encoding="utf-8") as f:
                out[name[:-5]] = [[m["role"], m["content"], m.get("partial", False)] for m in json.load(f)["body"]["messages"]]
        return out

    def leave(self):
        """Ends the program; every conversation with a question must have been saved."""
        self.export("leave")
        self.log.append("Ctrl-D")
        self.t.send("\x04\x04")
        status = self.t.wait()
        if status or not self.t.restored():
            raise Difference(f"{self.log}: exit status {status}, {self.t.out[-800:]!r}")
        self.t.close()
        left = [name for name in (os.listdir(self.files) if os.path.isdir(self.files) else []) if not name.endswith(".json")]
        check("files that are left", left, [])
        saved = self.saved()
        for name, messages in [(talk.name, talk.messages) for talk in self.talks] + [talk.cleared for talk in self.talks if talk.cleared] + list(self.closed.items()):
            found = [markdown(saved.get(name, []))] if name else map(markdown, saved.values())  # as text, which is what /export tells
            if any(m[0] == "user" for m in messages) and markdown(messages) not in found:
                raise Difference(f"{self.log}\n    not saved: {name} {messages}\n    but {saved}")
        return saved

    def restart(self):
        self.reopen(self.leave())

    def reopen(self, saved):
        if not saved:
            return self.start()
        name = self.r.choice(sorted(saved))
        self.log.append("--continue " + name)
        self.start("--continue", name)
        self.at.name, self.at.messages = name, saved.pop(name)
        self.closed = {name: messages for name, messages in saved.items() if any(m[0] == "user" for m in messages)}

    def kill(self):
        """Kills the program after a question: the conversation is as before it, or with it, or with an answer."""
        self.export("kill")
        before, question = self.saved(), self.new_question()
        self.type(question)
        self.t.read(self.r.random() * 0.1)
        self.t.p.send_signal(self.r.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)))
        self.t.p.wait(30)
        self.t.close()
        self.log.append("killed")
        now = self.saved()
        old, asked = self.at.messages, "".join(self.at.attached) + question
        for name, messages in now.items():
            if messages == before.get(name) or (messages[:len(old)] == old and [m[1] for m in messages[len(old):] if m[0] == "user"] in ([], [asked])):
                continue
            raise Difference(f"{self.log}\n    after the kill {name} {messages}\n    before {before.get(name)}")
        check(f"{self.log}: conversations after the kill", sorted(set(before) - set(now)), [])
        self.reopen(now)

    COMMANDS = [(ask, 20), (stop, 3), (bg, 2), (regen, 3), (go_on, 4), (undo, 3), (clear, 2), (system, 2), (compact, 1), (fork, 2), (new, 1), (switch, 3),
                (close, 2), (save, 2), (load, 2), (read, 2), (set, 2), (model, 1), (resize, 1), (restart, 1), (kill, 1)]


def one(run):
    chat = Chat(run)
    try:
        n = chat.r.randrange(4, 8 if run.few else 20)
        for _ in range(n):
            command = chat.r.choices([c for c, _ in Chat.COMMANDS], [weight for _, weight in Chat.COMMANDS])[0]
            command(chat)
            if chat.r.random() < 0.7:
                chat.check(command.__name__)
        chat.check("end")
        chat.leave()
        return f"{n} commands, {len(chat.known)} answers"
    finally:
        if chat.t.p.poll() is None:
            chat.t.close()


main(["ember", "ember", "tiny"], one)
