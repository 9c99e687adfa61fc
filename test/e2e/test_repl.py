"""The chat in a pseudo-terminal, on the fake engine."""
import json
import os
import re
import signal
import stat
import time

import driver


class Repl(driver.Case):
    def chat(self, *args, **more):
        text = more.pop("text", "> ")
        t = self.terminal(*args, **more)
        t.prompt(text=text)
        return t

    def ask(self, t, text, answer=None):
        at = len(t.out)
        t.send(text + "\r")
        at = t.until(answer if answer is not None else "You said: " + text, at)
        return t.prompt(at)

    def test_answer_streams(self):
        t = self.chat()
        at = len(t.out)
        t.send("long\r")
        t.until("word0 ", at)
        self.assertNotIn(b"word199", t.out)
        t.until("word199", at)
        t.prompt(at)
        self.ask(t, "again")
        t.send("\x04")
        self.assertEqual(t.wait(), 0)
        self.assertTrue(t.restored())

    def test_interrupt_keeps_the_text(self):
        t = self.chat()
        t.send("long\r")
        t.until("word3 ")
        t.send("\x03")
        at = t.until("stopped")
        self.assertNotIn(b"word199", t.out)
        t.prompt(at)
        self.ask(t, "/sessions", "1 question ")
        t.send("/save kept\r")
        t.prompt(t.until("saved as kept"), "kept> ")
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        with open(self.session_file("kept")) as f:
            text = f.read()
        self.assertIn("word3 ", text)
        self.assertIn('"partial": true', text)

    def test_interrupt_at_the_prompt_clears(self):
        t = self.chat()
        t.send("half a line")
        at = t.until("half a line")
        t.send("\x03")
        at = t.prompt(at)
        self.ask(t, "whole")
        t.send("\x03")
        t.until("Ctrl-D or /bye leaves", at)
        t.send("\x04")
        self.assertEqual(t.wait(), 0)

    def test_interrupt_in_prefill(self):
        t = self.chat()
        t.send("prefill\r")
        t.until("reading the prompt")
        t.send("\x03")
        t.until("stopped")
        self.assertNotIn(b"word0", t.out)

    def test_terminated(self):
        for sig in (signal.SIGTERM, signal.SIGHUP):
            t = self.chat()
            t.send("long\r")
            t.until("word3 ")
            t.p.send_signal(sig)
            self.assertEqual(t.wait(), -sig)
            self.assertTrue(t.restored())
        folder = os.path.dirname(self.session_file("x"))
        names = [n for n in os.listdir(folder) if n.endswith(".json")]
        self.assertEqual(len(names), 2)
        with open(os.path.join(folder, names[0])) as f:
            self.assertIn("word3 ", f.read())
        t = self.chat()
        t.p.send_signal(signal.SIGTERM)
        self.assertEqual(t.wait(), -signal.SIGTERM)
        self.assertTrue(t.restored())

    def test_killed_before_the_answer(self):
        """The question has an empty answer when the chat goes on: templates refuse two questions in a row."""
        t = self.chat("--save", "talk", text="talk> ")
        t.send("prefill\r")
        end = time.monotonic() + driver.PATIENCE
        while not os.path.exists(self.session_file("talk")):
            self.assertLess(time.monotonic(), end)
            t.read(0.05)
        t.p.kill()
        t.wait()
        self.assertEqual(self.run_bin("--continue", "talk", "-p", "prompt x")[:2], (0, b"[user]prefill[assistant][user]prompt x[assistant]\n"))

    def test_stop_and_go_on(self):
        t = driver.Terminal(["bash", "--norc", "-i"], {**self.env, "PS1": "SHELL "})
        self.addCleanup(t.close)
        t.until("SHELL ")
        t.send(driver.BIN + "\r")
        t.prompt()
        t.send("half ")
        t.until("half ")
        t.send("\x1a")
        at = t.until("SHELL ", t.until("Stopped"))
        t.send("stty -a; fg\r")
        at = t.until("half ", t.until(rb"[^-]icanon", at))
        t.send("and more\r")
        at = t.until("You said: half and more", at)
        t.send("\x04")
        t.until("SHELL ", at)

    def test_sigstop_and_sigcont_restore_the_terminal(self):
        """SIGSTOP cannot be caught, and the shell resets the terminal: after SIGCONT it is raw again and the line is redrawn."""
        t = driver.Terminal(["bash", "--norc", "-i"], {**self.env, "PS1": "SHELL "})
        self.addCleanup(t.close)
        t.until("SHELL ")
        t.send("echo PID $$; " + driver.BIN + "\r")
        t.prompt()
        shell = int(re.search(rb"PID (\d+)\r", t.out).group(1))
        with open(f"/proc/{shell}/task/{shell}/children") as f:
            child = int(f.read().split()[0])
        t.send("half ")
        t.until("half ")
        os.kill(child, signal.SIGSTOP)
        at = t.until("SHELL ", t.until("Stopped"))
        t.send("stty sane; echo MARK; fg\r")
        at = t.until("half ", t.until("MARK\r\n", at))
        t.send("and\x01more \r")  # a key that only a raw terminal delivers at once
        at = t.until("You said: more half and", at)
        t.send("\x04")
        t.until("SHELL ", at)

    def test_history(self):
        t = self.chat()
        self.ask(t, "first one")
        self.ask(t, "second one")
        at = len(t.out)
        t.send("\x1b[A\x1b[A\r")
        t.prompt(t.until("You said: first one", at))
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        path = os.path.join(self.home, ".local/state/hearth/history")
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        t = self.chat()
        at = len(t.out)
        t.send("\x12cond\r")  # Ctrl-R
        at = t.prompt(t.until("You said: second one", at))
        t.send("\x12condzzz")  # no match is reported, and nothing is sent
        t.until("nothing found: condzzz", at)
        t.send("\r")
        t.quiet()
        self.assertNotIn(b"You said", t.out[at:])

    def test_several_lines(self):
        t = self.chat()
        at = len(t.out)
        for text, answer in (('"""\rone\rtwo\r"""\r', rb"You said: one\r?\n+\x1b?.*two"), ("three \\\rfour\r", rb"You said: three\r?\nfour"),
                             ("five\nsix\r", rb"You said: five\r?\nsix"), ("\x1b[200~seven\reight\r\x1b[201~\r", rb"You said: seven\r?\neight")):
            t.send(text)
            at = t.prompt(t.until(answer, at))

    def test_editing(self):
        t = self.chat()
        at = len(t.out)
        t.send("wrld\x01hello \x05\x1b[D\x1b[D\x1b[Do\r")
        at = t.prompt(t.until("You said: hello world", at))
        t.send("naïve 日本\x7fx\r")
        at = t.prompt(t.until("You said: naïve 日x", at))
        t.send("/swi\t\x15/he\t\r")
        t.until("/sessions", at)

    def test_files_are_completed(self):
        folder = os.path.join(self.home, "papers")
        os.makedirs(folder)
        for name in ("a report.txt", "b.txt", ".hidden"):
            with open(os.path.join(folder, name), "w") as f:
                f.write(name + "\n")
        t = self.chat()
        at = len(t.out)
        t.send("/read ~/pa\t\t")
        at = t.until(b"a report.txt  b.txt", at)
        self.assertNotIn(b".hidden", t.out)
        t.send("a\t\r")
        at = t.prompt(t.until("a report.txt: 13 B attached", at))
        self.ask(t, "what?", '<document name="a report.txt">')
        t.send("/read ~/papers/.\t\r")
        t.prompt(t.until(".hidden: 8 B", at))
        t.send("/read /nowhere/at/all\t\r")
        t.until("/nowhere/at/all: No such file", at)

    def test_arguments_are_completed(self):
        os.makedirs(os.path.join(self.home, "weights/one"))
        t = self.chat()
        for typed, shown in (("/help re\t", b"regen  read"), ("/help /comp\t", b"/help /compact "), ("/set show-thinking a\t", b"auto  always"), ("/set stats \t", b"yes  no  default"),
                             ("/set stats=n\t", b"/set stats=no "), ("/set temp \t", b"/set temp default "), ("/model ~/wei\t", b"/model ~/weights/")):
            at = len(t.out)
            t.send(typed)
            t.until(re.escape(shown), at)
            t.send("\x15")
        at = len(t.out)
        t.send("/\t")  # all commands, in several rows
        t.until(rb"/regen  /continue (?s:.*)/help  /bye", at)

    def test_typed_ahead(self):
        t = self.terminal(env={"FAKE_LOAD": "1"})
        t.send("early\r")
        t.until("You said: early")
        for i in range(12):  # Enter gives a line feed until hearth has the terminal, which may happen just then
            t = self.terminal()
            time.sleep(i * 0.0005)
            t.send("soon\r")
            t.until("You said: soon")

    def test_resize(self):
        t = self.chat()
        t.send("x" * 60)
        t.until("x" * 60)
        t.resize(24, 30)
        time.sleep(0.5)
        at = len(t.out)
        t.send("y")
        t.until("y", at)
        t.send("\r")
        t.until(rb"You said:\r\n" + b"x" * 29 + b"\r\n" + b"x" * 29 + b"\r\nxxy\r\n", at)

    def test_screen(self):
        t = self.chat(cols=40)
        t.send("a" * 50)
        t.until("a" * 12)
        t.quiet()
        lines = [x for x in t.screen(24, 40) if x]
        self.assertEqual(lines[-2:], ["> " + "a" * 38, "a" * 12])
        t.send("\x7f" * 20)
        t.quiet()
        lines = [x for x in t.screen(24, 40) if x]
        self.assertEqual(lines[-1], "> " + "a" * 30)

    def test_background(self):
        t = self.chat()
        at = len(t.out)
        t.send("/bg long\r")
        at = t.prompt(at)
        t.send("/new other\r")
        at = t.prompt(at, "other> ")
        t.until("tok/s", at)
        t.send("typed meanwhile")
        at = t.until("answer ready in session", at)
        t.quiet(1)
        lines = [x for x in t.screen() if x]
        self.assertEqual(lines[-1], "other> typed meanwhile")
        t.send("\x15/switch 1\r")
        t.until("word199", at)

    def test_leaving_asks_for_the_background(self):
        """Once, by the key and by the command; the text so far is kept."""
        for leave in ("\x04", "/bye\r"):
            t = self.chat("--save", "kept", text="kept> ")
            t.send("slow\r")
            t.until("w3")
            t.send("&\r")
            at = t.prompt(t.until("continues in the background"), "kept> ")
            t.send(leave)
            at = t.until("an answer is still running in the background; repeat to stop it and leave", at)
            t.quiet(0.2)
            self.assertIsNone(t.p.poll())
            t.send(leave)
            self.assertEqual(t.wait(), 0)
            self.assertTrue(t.restored())
            with open(self.session_file("kept"), encoding="utf-8") as f:
                self.assertIn("w3", f.read())
            os.unlink(self.session_file("kept"))

    def test_leaving_during_an_answer(self):
        """The first request waits for the answer's end, the second leaves; the text so far is kept."""
        for leave in ("\x04", "/bye\r"):
            t = self.chat("--save", "kept", text="kept> ")
            t.send("slow\r")
            t.until("w3")
            t.send(leave)
            t.until("will quit when this answer is done; press again to quit now")
            t.until("w6")
            t.send(leave)
            self.assertEqual(t.wait(), 0)
            self.assertTrue(t.restored())
            with open(self.session_file("kept"), encoding="utf-8") as f:
                self.assertIn("w6", f.read())
            os.unlink(self.session_file("kept"))

    def test_sessions(self):
        t = self.chat()
        self.ask(t, "one")
        self.ask(t, "/undo", "undone: one")
        self.ask(t, "two")
        self.ask(t, "/regen", "You said: two")
        self.ask(t, "/tokens", "of 65536 tokens")
        self.ask(t, "/set temp 9999", "0 to 100")
        self.ask(t, "/set temp 0.25", "/set temp 0.25")
        self.ask(t, "/show", b" temp +0\\.25 +/set")
        self.ask(t, "/stats", "first token")
        self.ask(t, "/explain", "only one mode")
        self.ask(t, "/experts", b"(?s)8 per layer.*1 [|]--#-- [.]-[|] 1 on a device, 66%\r?\n *2 [|][+]{8}[|]\r?\n"
                 b"device 0: resident: 1 of 1 layers, 3.0 MB; 100% of 70 choices\r?\n"
                 b"device 1: cached: 1 expert, 500 kB; 66% of 152 choices\r?\n")
        self.ask(t, "/experts 1", b"(?s)152 choices.*expert +2 +65.8% +on device 1\r?\n +expert +0 +6.6%\r?\n.*expert +7 +6.6%\r?\n +expert +6 +1.3%")
        self.ask(t, "/experts 0", "layer 0 has no experts")
        self.ask(t, "/experts x", "layer x has no experts")
        self.ask(t, "/copy", "\x1b]52;c;WW91IHNhaWQ6IHR3bw==")
        self.ask(t, "/sytsem x", "did you mean /system")
        at = len(t.out)
        t.send("/fork branch\r")
        at = t.prompt(at, "branch> ")
        t.send("three\r")
        at = t.prompt(t.until("You said: three", at), "branch> ")
        t.send("/switch 1\r")
        at = t.prompt(at, "1> ")
        t.send("/close\r")
        t.prompt(at, "branch> ")

    def test_continue_command(self):
        t = self.chat("-n", "6")
        self.ask(t, "hello", "limit of 6 tokens")
        self.ask(t, "/continue", b"(?s)id: he.*limit of 6 tokens")
        t.send("/save kept\r")
        t.prompt(t.until("saved as kept"), "kept> ")
        with open(self.session_file("kept")) as f:
            messages = json.load(f)["body"]["messages"]
        self.assertEqual([(m["role"], m["content"]) for m in messages], [("user", "hello"), ("assistant", "You said: he")])

    def test_continue_within_code(self):
        """An answer that was cut within a code block goes on in it: its colours, and the mark that ends it."""
        t = self.chat("-n", "60", "--color=always")
        self.ask(t, "source", "limit of 60 tokens")
        self.ask(t, "/continue", b"\x1b\\[0;36mreturn(?s:.*)limit of 60 tokens")
        self.ask(t, "/continue", b"\r\nend of it\r\n")

    def test_continue_while_thinking(self):
        """Cut off during thinking: what follows is still thinking, on the screen and on disk."""
        t = self.chat("-n", "5", "--save", "kept", "--color=always", "--show-thinking=always", text="kept> ")
        end = lambda at: t.prompt(t.until("limit of 5 tokens", at), "kept> ")
        at = len(t.out)
        t.send("think\r")
        at = end(t.until("\x1b[2mreas\x1b[0m", at))
        for text in ("\x1b[2moning\x1b[0m", "\x1b[2m here\x1b[0m", "th", "e ans", "wer"):
            t.send("/continue\r")
            at = t.until(text, at)
            at = t.prompt(at, "kept> ") if text == "wer" else end(at)
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        with open(self.session_file("kept")) as f:
            message = json.load(f)["body"]["messages"][1]
        self.assertEqual((message["content"], message["thinking"], "partial" in message), ("the answer", "reasoning here", False))

    def test_continue_before_the_first_token(self):
        """An answer that was stopped while its prompt was read begins as any other: without the line ends after its thinking."""
        t = self.chat("--save", "kept", text="kept> ")
        t.send("late\r")
        t.until("reading the prompt")
        t.send("\x03")
        at = t.prompt(t.until("stopped"), "kept> ")
        t.send("/continue\r")
        t.prompt(t.until("the answer", at), "kept> ")
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        with open(self.session_file("kept")) as f:
            message = json.load(f)["body"]["messages"][1]
        self.assertEqual((message["content"], message["thinking"]), ("the answer", "reasoning"))

    def test_cut_in_the_background(self):
        t = self.chat("-n", "5")
        t.send("/bg hello\r")
        at = t.until("(ended at the limit of 5 tokens; /continue resumes it)", t.until("You s"))
        t.send("/bg hello\r/new other\r")
        t.until("session 1: ended at the limit of 5 tokens; /continue resumes it; /switch 1 shows it", at)

    def test_busy_and_closed(self):
        t = self.chat()
        at = len(t.out)
        t.send("/bg long\r")
        at = t.prompt(at)
        t.send("more\r")
        at = t.until("/switch 1 shows it, and Ctrl-C then stops it", at)
        t.send("/switch 1\r")
        t.until("word5 ", at)
        t.send("\x03")
        at = t.prompt(t.until("stopped", at))
        t.send("/new other\r")
        at = t.prompt(at, "other> ")
        t.send("/bg long\r")
        at = t.prompt(at, "other> ")
        t.send("/close\r")
        at = t.prompt(t.until("closed", at))
        t.quiet()
        self.assertNotIn(b"answer ready", t.out)

    def test_stopped_prefill_has_no_speed(self):
        t = self.chat("--stats")
        t.send("prefill\r")
        at = t.until("reading the prompt")
        t.send("\x03")
        at = t.until("stopped during prefill", at)
        t.prompt(at)
        self.assertNotIn(b"first token", t.out)
        self.assertNotIn(b"tokens/s", t.out)

    def test_untrusted(self):
        t = self.chat()
        at = len(t.out)
        t.send("escape\r")
        end = t.prompt(t.until("E\u2421.", at))
        answer = t.out[at:end]
        self.assertNotIn(b"\x1b]", answer)
        self.assertNotIn(b"\x1b[31m", answer)
        self.assertNotIn(b"\b", answer)

    def test_editor(self):
        script = os.path.join(self.home, "ed.sh")
        with open(script, "w") as f:
            f.write('#!/bin/sh\nprintf "%s from the editor" "$(cat "$1")" > "$1.new" && mv "$1.new" "$1"\n')
        os.chmod(script, 0o755)
        t = self.chat(env={"EDITOR": script})
        t.send("words\x07")
        at = t.until("words from the editor")
        t.send("\r")
        t.until("You said: words from the editor", at)

    def test_failure_keeps_the_chat(self):
        t = self.chat()
        self.ask(t, "fail", "layer 3: non-finite logits")
        self.ask(t, "still there")

    def test_file_size_limit(self):
        """Past `ulimit -f` the kernel sends a signal that would end the chat with the terminal raw."""
        t = driver.Terminal(["sh", "-c", 'ulimit -f 1; exec "$0"', driver.BIN], self.env)
        self.addCleanup(t.close)
        t.prompt()
        self.ask(t, "x" * 700, "not saved")
        self.ask(t, "still there")
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        self.assertTrue(t.restored())

    def test_ended_by_any_signal(self):
        for sig in (signal.SIGUSR1, signal.SIGALRM, signal.SIGXCPU, signal.SIGQUIT):
            t = self.chat()
            t.p.send_signal(sig)
            self.assertEqual(t.wait(), -sig)
            self.assertTrue(t.restored())

    def test_overflow(self):
        t = self.chat("-c", "100")
        at = len(t.out)
        t.send("x" * 200 + "\r")
        t.prompt(t.until("/compact", at))
        self.assertRegex(t.out[at:], rb"tokens; this model's context is 100")
        self.ask(t, "short")

    def test_refused_turns_leave_the_last_answer(self):
        """After a question, or another try at an answer, that does not fit, the last answer is there and can be continued."""
        t = self.chat("-c", "120", "-n", "5")
        self.ask(t, "hello", "limit of 5 tokens")
        self.ask(t, "x" * 200, "nothing was sent")
        self.ask(t, "/continue", "aid: ")
        self.ask(t, "/system " + "y" * 200, "system prompt set")
        self.ask(t, "/regen", "nothing was sent")
        self.ask(t, "/continue", "hello")
        t.send("/save kept\r")
        t.prompt(t.until("saved as kept"), "kept> ")
        with open(self.session_file("kept")) as f:
            self.assertEqual([m["content"] for m in json.load(f)["body"]["messages"][1:]], ["hello", "You said: hello"])

    def test_continue_after_a_stop_string(self):
        """Nothing is missing between the text before it and what follows."""
        t = self.chat("--until", "word3")
        self.ask(t, "long", "word2")
        self.ask(t, "/continue", "")
        t.send("/save kept\r")
        t.prompt(t.until("saved as kept"), "kept> ")
        with open(self.session_file("kept")) as f:
            self.assertEqual(json.load(f)["body"]["messages"][1]["content"], "word0 word1 word2 ")

    def test_repetition_fills_the_context(self):
        t = self.chat("-c", "4500")
        at = len(t.out)
        t.send("ab " * 800 + "\r")
        t.until("(the context of 4500 tokens is full; the answer repeats itself: /undo removes it)", at)
        self.ask(t, "/undo", "undone: ab")
        self.ask(t, "short", "You said: short")

    def test_no_home(self):
        t = self.chat(env={"HOME": ""})
        self.ask(t, "one")
        self.ask(t, "two")
        self.assertEqual(t.out.count(b"not saved"), 1)
        if os.geteuid():
            os.chmod(self.home, 0o500)
            t = self.chat()
            self.ask(t, "three")
            os.chmod(self.home, 0o700)

    def test_commands_are_no_questions(self):
        """On several lines, quoted, or with an argument: a line that begins with a command is not sent to the model."""
        t = self.chat()
        at = len(t.out)
        for text, answer in (("/sessions &", "0 questions"), ("/system be\nbrief", ""), ("/system", rb"be\r?\nbrief"), ('"""/sessions\n"""', "questions"),
                             ("/nosuch\nthing", "unknown command /nosuch")):
            t.send(text + "\r")
            at = t.prompt(t.until(answer, at))
        self.assertNotIn(b"You said", t.out)

    def test_quoted_blocks_are_one_question(self):
        t = self.chat()
        at = len(t.out)
        t.send('"""\rone\rtwo"""\r')
        at = t.prompt(t.until(rb"You said: one\r?\ntwo\r?\n\r?\n", at))
        self.ask(t, "a &")  # text, as in a shell command
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)

    def test_several_lines_on_a_dumb_terminal(self):
        t = self.terminal(env={"TERM": "dumb"})
        at = t.until("> ")
        for text, answer in (('"""\none\ntwo\n"""\n', rb"You said: one\r\ntwo\r\n"), ("three\\\nfour\n", rb"You said: three\r\nfour\r\n"), ("five\n", rb"You said: five\r\n")):
            t.send(text)
            at = t.until("> ", t.until(answer, at))

    def test_dumb_terminal_asks_again(self):
        """Unsolicited output is on rows of its own, followed by the prompt."""
        t = self.terminal(env={"TERM": "dumb"})
        t.until("> ")
        t.send("/bg long\n")
        at = t.until(rb"\r\n> \r\nword0 ")
        at = t.until(rb"word199\r\n(\r\n)?> ", at)
        t.send("/new\n/bg long\n/switch 1\n")
        at = t.until(rb"1> \r\nhearth: answer ready in session 2", at)
        t.until(rb"\r\n1> ", at)

    def test_dumb_terminal(self):
        t = self.terminal(env={"TERM": "dumb"})
        t.until("> ")
        t.send("plain\n")
        at = t.until("You said: plain")
        t.send("/bye\n")
        self.assertEqual(t.wait(), 0)
        self.assertNotIn(b"\x1b", t.out)

    def test_colour(self):
        for env, args, want in (({}, [], True), ({"NO_COLOR": "1"}, [], False), ({"NO_COLOR": "1"}, ["--color=always"], True), ({}, ["--color=never"], False)):
            t = self.terminal("-p", "think", *args, env=env)
            self.assertEqual(t.wait(), 0)
            self.assertEqual(b"\x1b[2m" in t.out, want, (env, args))


if __name__ == "__main__":
    driver.unittest.main()
