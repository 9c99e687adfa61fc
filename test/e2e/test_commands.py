"""Slash commands that change the request to the engine, and the second Ctrl-C, in a pseudo-terminal on the fake engine."""
import json
import re
import signal
import time

import driver


class Commands(driver.ChatCase):
    def messages(self, name):
        with open(self.session_file(name)) as f:
            return [(m["role"], m["content"]) for m in json.load(f)["body"]["messages"]]

    def test_system(self):
        t = self.chat()
        self.ask(t, "/system", "no system prompt")
        self.ask(t, "prompt a", "[user]prompt a[assistant]")
        self.ask(t, "/system Be very brief.", "system prompt set, starting with the next question")
        self.ask(t, "/system", "Be very brief.")
        self.ask(t, "prompt b", "[system]Be very brief.[user]prompt a[assistant][user]prompt a[assistant][user]prompt b[assistant]")
        self.ask(t, "/system Or not.", "")
        self.assertNotIn("Be very", self.ask(t, "/system", "Or not."))
        self.ask(t, "/system -", "system prompt removed, starting with the next question")
        self.ask(t, "/system", "no system prompt")
        self.assertNotIn("Or not.", self.ask(t, "prompt c", "[user]prompt c[assistant]"))

    def test_system_option_in_new_sessions(self):
        t = self.chat("-s", "Given.")
        self.ask(t, "prompt a", "[system]Given.[user]prompt a[assistant]")
        self.ask(t, "/new other", "", "other> ")
        self.ask(t, "prompt b", "[system]Given.[user]prompt b[assistant]", "other> ")

    def test_load(self):
        self.assertEqual(self.run_bin("--save", "talk", "-s", "Sys.", "-p", "one")[0], 0)
        self.assertEqual(self.run_bin("--save", "held", "-p", "mine")[0], 0)
        t = self.chat()
        self.ask(t, "/load none", "no saved conversation 'none'")
        self.ask(t, "/load ../talk", "not a session name")
        self.ask(t, "/load", rb"(?s)held +1 question, +1 kB  mine.*talk +1 question, +1 kB  one|talk +1 question.*held +1 question")
        shown = self.ask(t, "/load talk", "You said: one", "talk> ")
        self.assertIn("> one", shown)
        self.ask(t, "prompt two", "[system]Sys.[user]one[assistant]You said: one[user]prompt two[assistant]", "talk> ")
        self.ask(t, "/save", "saved as talk", "talk> ")  # which waits for the disk
        self.assertEqual([r for r, _ in self.messages("talk")], ["system", "user", "assistant", "user", "assistant"])
        self.ask(t, "/new other", "", "other> ")
        self.ask(t, "/load talk", "prompt two", "talk> ")  # already open: switches there, without a second copy
        self.assertEqual(len(re.findall(r"\d  talk ", self.ask(t, "/sessions", "talk", "talk> "))), 1)
        holder = self.terminal("--continue", "held")
        holder.prompt(text="held> ")
        self.ask(t, "/load held", "open in another hearth", "talk> ")

    def test_names_of_chats(self):
        self.assertEqual(self.run_bin("--save", "travel-plans", "-p", "one")[0], 0)
        t = self.chat()
        for text, answer in (("/load trav", "no saved conversation 'trav'; did you mean travel-plans?"), ("/delete travel-plnas", "did you mean travel-plans?"),
                             ("/delete none", "no saved conversation 'none'; /sessions lists them"), ("/save travel-plans", "already exists; /load travel-plans opens it")):
            self.ask(t, text, answer)
        self.ask(t, "/new", "", "2> ")  # names that do not exist use up no number
        for args, answer in ((("--continue", "trav"), "no saved conversation 'trav'; did you mean 'travel-plans'?"), (("--delete", "travel-plnas"), "did you mean 'travel-plans'?"),
                             (("-r", "none"), "no saved conversation 'none'; hearth --list shows the saved ones")):
            rc, out, err = self.run_bin(*args, *([] if "--delete" in args else ["-p", "x"]))
            self.assertEqual((rc, out), (1, b""))
            self.assertIn(answer, err)

    def test_unknown_names(self):
        t = self.chat()
        for text, answer in (("/temp 0.4", "unknown command /temp; did you mean /set temp?"), ("/retry", "unknown command /retry; did you mean /regen?"), ("/nope", "unknown command /nope; see /help"),
                             ("/set temperature", "no setting 'temperature'; did you mean temp?"), ("/set n 5", "no setting 'n'; did you mean max-tokens?"),
                             ("/set num_predict 5", "no setting 'num_predict'; did you mean max-tokens?"), ("/set zork", "no setting 'zork'; /show lists the settings"),
                             ("/set system x", "no setting 'system'; /system TEXT sets the system prompt"),
                             ("/set context 5", "context cannot be changed in a chat; start hearth with --context"),
                             ("/set num_ctx 5", "num_ctx cannot be changed in a chat; start hearth with --context")):
            self.ask(t, text, answer)
        self.ask(t, "/SET temp 0.25", "temp is 0.25")  # as keyboards of telephones write it
        self.ask(t, "/List", "0 questions")
        shown = self.ask(t, "/set temp", rb"temp +0\.25 +/set")
        self.assertNotIn("top-p", shown)

    def test_needless_arguments(self):
        """A command without an argument does nothing if one is given: /undo 3 does not undo one question."""
        t = self.chat()
        self.ask(t, "one", "You said: one")
        for name in ("regen", "continue", "undo", "clear", "compact", "bye"):
            self.ask(t, f"/{name} 3", f"nothing was done: /{name} takes no argument")
        self.ask(t, "/save kept", "saved as kept", "kept> ")
        self.assertEqual(self.messages("kept"), [("user", "one"), ("assistant", "You said: one")])
        self.ask(t, "/show all", b"temp +", "kept> ")

    def test_compact(self):
        t = self.chat("-s", "Sys.")
        self.ask(t, "/compact", "nothing to summarise")
        self.ask(t, "one", "You said: one")
        self.ask(t, "two", "You said: two")
        self.ask(t, "/compact", re.escape("the gist").encode() + rb"(?s:.*)replaces the earlier conversation")
        gist = r"[system]Sys.[user]Summary of our conversation so far:\s+the gist[assistant]Thank you, I will go on from there.[user]prompt three[assistant]"
        shown = self.ask(t, "prompt three", "prompt three[assistant]")
        self.assertRegex(shown, gist.replace("[", r"\["))
        self.ask(t, "/save kept", "saved as kept", "kept> ")
        self.assertEqual([r for r, _ in self.messages("kept")], ["system", "user", "assistant", "user", "assistant"])
        self.assertNotIn("You said: one", str(self.messages("kept")))
        self.ask(t, "/system Other.", "", "kept> ")
        self.ask(t, "/undo", "undone: prompt three", "kept> ")
        self.ask(t, "/undo", "the conversation before /compact is back", "kept> ")
        said = [("system", "Other."), ("user", "one"), ("assistant", "You said: one"), ("user", "two"), ("assistant", "You said: two")]
        self.ask(t, "/save", "saved as kept", "kept> ")
        self.assertEqual(self.messages("kept"), said)
        self.ask(t, "/undo", "undone: two", "kept> ")

    def test_plurals_and_repeats(self):
        """One token is a token, and /regen says when it cannot give another answer."""
        t = self.chat("-n", "1")
        self.assertIn("ended at the limit of 1 token;", self.ask(t, "one", "(ended"))
        self.assertIn("answer: 1 token;", self.ask(t, "/stats", "answer:"))
        self.ask(t, "/set temp 0", "temp is 0")
        self.ask(t, "/regen", "temperature 0 gives the same answer each time; /set temp 0.7 gives others")
        self.ask(t, "/set temp 0.7", "temp is 0.7")
        self.assertNotIn("same answer", self.ask(t, "/regen", "ended"))
        self.assertIn("answer stopped at the -n limit (1 token);", self.run_bin("-p", "one", "-n", "1")[2])

    def test_compact_that_loses_too_much(self):
        """A refusal, or a summary that is short for its text, leaves the conversation as it is, and says so."""
        long = "y" * 1200
        for summary, why in (("", r"the summary is too short: 8 bytes for a text of \d+"), ("I’m sorry, but I can’t help with that.", "the model has refused to write a summary"),
                             (" *As an AI* I do not do that.", "the model has refused to write a summary"), ("A long one, with all names and numbers of it.", None)):
            t = self.chat("--save", "kept", prompt="kept> ", env={"FAKE_SUMMARY": summary} if summary else {})
            self.ask(t, long, "You said:", "kept> ")
            self.ask(t, "two", "You said: two", "kept> ")
            if why:
                self.assertRegex(self.ask(t, "/compact", "the conversation is unchanged; /compact tries again", "kept> "), why)
                self.ask(t, "/compact x", "/compact takes no argument but force", "kept> ")
                self.ask(t, "/save", "saved as kept", "kept> ")
                self.assertIn(("user", "two"), self.messages("kept"))
            self.ask(t, "/compact force" if why else "/compact", "replaces the earlier conversation", "kept> ")
            t.send("/bye\r")
            self.assertEqual(t.wait(), 0)
            self.assertEqual(self.run_bin("--delete", "kept")[0], 0)

    def test_nearly_full(self):
        """The status names a context that is nearly full before it is, and --compact-at makes room by itself, once if the model refuses."""
        t = self.chat("-c", "1000")
        self.ask(t, "z" * 200, "You said: ")
        self.assertNotIn(b"% full", t.out)
        self.ask(t, "z" * 230, "You said: ")
        t.until("full; /compact makes room", self.last - 200)
        self.assertTrue(any(re.match(r"context (8[5-9]|9\d) % full; /compact makes room$", row) for row in t.screen()), t.screen())
        self.ask(t, "/compact", "replaces the earlier conversation")
        t.quiet()
        self.assertFalse([row for row in t.screen() if row.startswith("context ")])
        for summary in ("", "I cannot do that."):
            t = self.chat("-c", "1000", env={"FAKE_SUMMARY": summary} if summary else {})
            self.ask(t, "/set compact-at 60", "compact-at is 60 from the next answer on")
            self.ask(t, "z" * 200, "You said: ")
            self.ask(t, "z" * 100, "You said: ")
            at = t.until("/compact follows, as --compact-at says", self.last - 400)
            self.last = t.prompt(t.until("the conversation is unchanged" if summary else "replaces the earlier conversation", at))
            if summary:
                self.ask(t, "x", "You said: x")
            else:
                self.assertIn("[user]Summary of our", self.ask(t, "prompt x", "prompt x[assistant]"))
            t.quiet()
            self.assertEqual(t.out.count(b"as --compact-at says"), 1)

    def test_compact_in_a_full_context(self):
        """Messages that do not fit together with the request for a summary remain as they are."""
        t = self.chat("-c", "400")
        self.ask(t, "one", "You said: one")
        self.ask(t, "x" * 100, "You said: " + "x" * 100)
        self.ask(t, "/compact", "replaces the earlier conversation")
        self.ask(t, "/save kept", "saved as kept", "kept> ")
        said = [text for _, text in self.messages("kept")]
        self.assertEqual(len(said), 4)
        self.assertIn("the gist", said[0])
        self.assertEqual(said[2:], ["x" * 100, "You said: " + "x" * 100])
        self.ask(t, "/undo", "undone: xxx", "kept> ")
        self.ask(t, "/undo", "the conversation before /compact is back", "kept> ")
        self.ask(t, "/save", "saved as kept", "kept> ")
        self.assertEqual(self.messages("kept"), [("user", "one"), ("assistant", "You said: one")])
        self.ask(t, "two", "You said: two", "kept> ")
        self.ask(t, "/compact", "replaces the earlier conversation", "kept> ")
        self.ask(t, "/clear", "/undo restores the old one")
        self.ask(t, "/undo", "conversation restored", "kept> ")
        self.ask(t, "/undo", "undone: Summary of our conversation", "kept> ")  # /clear gave up what it replaced

    def test_file_that_is_read_again(self):
        """It replaces what was read before, as after a change of the file."""
        self.write("a.txt", "old text")
        self.write("b.txt", "other text")
        t = self.chat()
        self.ask(t, "/read ~/a.txt ~/b.txt", "attached to your next question")
        self.write("a.txt", "new text!")
        self.ask(t, "/read ~/a.txt", "a.txt: 9 B attached to your next question, in place of what was read before")
        self.ask(t, "/attachments", rb"(?s)1  b.txt, 10 B.*2  a.txt, 9 B")
        shown = self.ask(t, "first", rb"</document>\s+first\r")
        self.assertIn("new text!", shown)
        self.assertIn("other text", shown)
        self.assertNotIn("old text", shown)
        self.ask(t, "/undo", "its files are attached to the next question")
        self.write("a.txt", "newest")
        self.ask(t, "/read ~/a.txt", "a.txt: 6 B attached to your next question, in place of what was read before")
        shown = self.ask(t, "second", rb"</document>\s+second\r")
        self.assertNotIn("new text!", shown)

    def test_undo_attaches_files_again(self):
        for name in ("a.txt", "b.txt"):
            self.write(name, "text of " + name)
        t = self.chat()
        self.ask(t, "/read ~/a.txt ~/b.txt", "attached to your next question")
        self.ask(t, "first", rb"</document>\s+first\r")
        self.ask(t, "/undo", rb"(?s)undone: \(a.txt\) \(b.txt\) first.*its files are attached to the next question; /detach drops them")
        self.ask(t, "/attachments", rb"(?s)1  a.txt, 14 B.*2  b.txt, 14 B")
        self.ask(t, "/detach a.txt", "")
        shown = self.ask(t, "second", rb"</document>\s+second\r")
        self.assertIn("text of b.txt", shown)
        self.assertNotIn("a.txt", shown)
        self.ask(t, "/undo", "its file is attached to the next question; /detach drops it")

    def test_compact_that_is_stopped(self):
        """A summary that reaches a limit is discarded: the conversation remains."""
        t = self.chat("-n", "20")
        self.ask(t, "one", "You said: one")
        self.ask(t, "two", "You said: two")
        self.ask(t, "/set max-tokens 3", "max-tokens is 3 from the next answer on")
        self.ask(t, "/compact", "the conversation is unchanged")
        self.ask(t, "/continue", "")  # the answer, not the summary
        self.ask(t, "/set max-tokens default", "")
        self.ask(t, "prompt x", "[user]one[assistant]You said: one[user]two[assistant]You said: two[user]prompt x")

    def test_compact_that_does_not_fit(self):
        t = self.chat("-c", "140", "-n", "5")
        self.ask(t, "hello", "limit of 5 tokens")
        self.ask(t, "and", "limit of 5 tokens")
        self.ask(t, "/compact", "this model's context is 140")
        self.ask(t, "/continue", "aid: ")

    def test_clear_and_load(self):
        """A conversation that /clear put aside can be opened and deleted, and its name is taken."""
        t = self.chat()
        self.ask(t, "one", "You said: one")
        self.ask(t, "/save kept", "saved as kept", "kept> ")
        self.ask(t, "/clear", "/undo restores the old one")
        self.ask(t, "/new kept", "the conversation 'kept' already exists; /load kept opens it")
        self.ask(t, "/load kept", "You said: one", "kept> ")
        self.ask(t, "/clear", "/undo restores the old one", "2> ")
        self.ask(t, "/delete kept", "deleted kept", "2> ")
        self.ask(t, "/undo", "nothing to undo", "2> ")

    def test_saved_at_once(self):
        """A fork and a system prompt are on disk before the next question; a session that is not cannot be loaded, and nothing says so."""
        t = self.chat()
        self.ask(t, "one", "You said: one")
        self.ask(t, "/fork copy", "forked into 'copy'", "copy> ")
        self.ask(t, "/close", "closed; /load copy opens it again")
        self.ask(t, "/load copy", "You said: one", "copy> ")
        self.ask(t, "/system Brief.", "system prompt set", "copy> ")
        self.ask(t, "/close", "closed; /load copy opens it again")
        self.ask(t, "/load copy", "You said: one", "copy> ")
        self.ask(t, "/system", "Brief.", "copy> ")
        self.ask(t, "/new empty", "", "empty> ")
        self.assertNotIn("opens it again", self.ask(t, "/close", "", "copy> "))

    def test_background(self):
        t = self.chat()
        self.ask(t, "/bg", "/bg TEXT")
        begin = self.last
        t.send("/bg long story\r")
        self.last = t.prompt(begin)
        self.assertNotIn(b"word199", t.out)  # the prompt returns before the answer
        self.ask(t, "early", "still running")
        self.ask(t, "/sessions", rb"(prefilling|decoding).*long story")
        self.last = t.until("word199", begin)
        t.quiet()
        t.send("/regen\r")
        t.prompt(t.until("word199", self.last))
        self.last = len(t.out)
        # Switches to another session: its answer does not appear in this one, and is there after switching back.
        t.send("/bg prefill\r")
        self.last = t.prompt(self.last)
        self.ask(t, "/new other", "", "other> ")
        self.ask(t, "here", "You said: here", "other> ")
        self.last = t.until("answer ready in session 1", self.last)
        self.assertNotIn(b"word0", t.out[begin:].split(b"/new other")[1])
        t.quiet()
        self.ask(t, "/switch 1", "word0", "1> ")

    def test_second_interrupt_leaves_at_once(self):
        """The answer ignores a cancel; only the second Ctrl-C can end it."""
        t = self.chat()
        t.send("stubborn\r")
        t.until("deaf3 ")
        t.send("\x03")
        at = len(t.out)
        t.until(rb"deaf\d+ .*deaf\d+ ", at)
        time.sleep(0.5)
        self.assertIsNone(t.p.poll())
        t.send("\x03")
        self.assertEqual(t.wait(), -signal.SIGINT)
        self.assertNotIn(b"deaf3999", t.out)
        self.assertTrue(t.restored())
        self.assertNotIn(b"deaf3999", t.out)


class Durable(driver.Case):
    def test_directory_is_synced(self):
        """After the rename comes one more sync: without it a power loss may undo the rename. The fault kills the process there."""
        self.assertEqual(self.run_bin("--save", "talk", "-p", "one")[0], 0)
        with open(self.session_file("talk"), "rb") as f:
            old = f.read()
        killed = []
        for nth in range(1, 9):
            with open(self.session_file("talk"), "wb") as f:
                f.write(old)
            rc = self.run_bin("--continue", "talk", "-p", "two", env={"HEARTH_FAULT": f"sync:{nth}!"})[0]
            if rc == 0:
                break
            self.assertEqual(rc, -9)
            with open(self.session_file("talk"), "rb") as f:
                killed.append(f.read() != old)
        self.assertEqual(rc, 0)
        self.assertEqual(killed, [False, True])


if __name__ == "__main__":
    driver.unittest.main()
