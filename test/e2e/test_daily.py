"""What new users tripped over: the model of a saved chat, blank prompts, attachments, names, the clipboard. Runs on the fake engine."""
import base64
import json
import os
import re

import driver


class Daily(driver.ChatCase):
    def saved(self, name):
        with open(self.session_file(name)) as f:
            return json.load(f)["body"]

    # --- the model of a saved chat

    def test_continue_opens_the_model_of_the_chat(self):
        path = self.model("deep")
        self.assertEqual(self.run_bin("-m", path, "--save", "talk", "-p", "one")[0], 0)
        self.assertEqual((self.saved("talk")["path"], self.saved("talk")["model"]), (path, "deep"))
        for args in (["--continue", "talk"], ["--last"]):
            rc, out, err = self.run_bin(*args, "-p", "two")
            self.assertEqual((rc, out, err), (0, b"You said: two\n", ""))
            self.assertEqual((self.saved("talk")["path"], self.saved("talk")["model"]), (path, "deep"))
        t = self.chat("--last", prompt="talk> ")
        self.ask(t, "/save", "saved as talk", "talk> ")
        self.assertEqual(self.saved("talk")["path"], path)
        other = self.model("other")  # asked for: another model, which is stored
        t.send("/bye\r")
        t.wait()
        rc, out, err = self.run_bin("-m", other, "--last", "-p", "two")
        self.assertIn("started with the model deep, continues with other", err)
        self.assertEqual(self.saved("talk")["path"], other)
        os.rename(other, other + "-moved")
        rc, out, err = self.run_bin("--last", "-p", "three")
        self.assertEqual((rc, out), (3, b""))
        self.assertRegex(err, "used the model other, which is no longer at .*/models/other; -m DIR")
        self.assertEqual(self.saved("talk")["path"], other)

    def test_chat_of_the_built_in_model_beside_a_default(self):
        self.assertEqual(self.run_bin("--save", "talk", "-p", "one")[0], 0)
        self.run_bin("--last", "-p", "two", env={"HEARTH_MODEL": self.model("deep")})
        self.assertEqual(self.saved("talk")["path"], "ember:")

    def test_unknown_model_is_not_stored(self):
        t = self.chat("--save", "talk", prompt="talk> ")
        self.ask(t, "one", "You said: one", "talk> ")
        self.ask(t, "/model nosuch", "still using", "talk> ")
        self.ask(t, "two", "You said: two", "talk> ")
        self.ask(t, "/save", "saved as talk", "talk> ")
        self.assertEqual((self.saved("talk")["model"], self.saved("talk")["path"]), ("ember", "ember:"))

    # --- prompts

    def test_ampersand_is_text(self):
        t = self.chat()
        self.ask(t, "explain: sleep 5 &", "You said: explain: sleep 5 &")

    def test_blank_prompts(self):
        for args, data in ((("-p", "   "), ""), (("-p", "\t\n"), ""), ((), "  \n \t\n"), ((), ""), (("-p", " "), " \n")):
            rc, out, err = self.run_bin(*args, data=data)
            self.assertEqual((rc, out), (2, b""), (args, data))
            self.assertIn("no prompt", err)
        path = self.write("a.txt", "text")
        self.assertEqual(self.run_bin("-f", path, "-p", "  ")[0], 2)
        self.assertEqual(self.run_bin("--raw", "-p", " ")[0], 0)  # a raw prompt may be blank

    def test_options_that_a_mode_would_ignore(self):
        batch = self.write("b.jsonl", '"one"\n')
        for args in (["-p", "x"], ["--extract"], ["-f", batch], ["--save", "s"], ["--last"]):
            rc, out, err = self.run_bin("--batch", batch, *args)
            self.assertEqual((rc, out), (2, b""), args)
            self.assertIn("cannot be combined", err)
        self.assertEqual(self.run_bin("--models", "-p", "x")[0], 2)

    # --- attachments

    def test_file_larger_than_the_context(self):
        big = self.write("big.txt", "x " * 3000)
        small = self.write("small.txt", "small")
        t = self.chat("-c", "2000")
        self.ask(t, f"/read {big}", rb"big.txt: with these 6.0 kB the prompt would be 6\d\d\d tokens; this model's context is 2000; nothing was attached")
        self.ask(t, "/attachments", "nothing is attached")
        self.ask(t, "hello", "You said: hello")  # the chat goes on
        huge = self.write("huge.txt", "x" * 100000)
        self.ask(t, f"/read {huge}", "100 kB is more than the context of 2000 tokens holds")
        self.ask(t, f"/read {small}", "small.txt: 5 B attached")  # the file's size, without the tag around it
        self.ask(t, f"/read {self.write('other.txt', 'other')}", "5 B attached")
        self.ask(t, "/attachments", rb"1  small.txt, 5 B.*\r?\n.* 2  other.txt")
        self.ask(t, "/detach nosuch", "no attachment 'nosuch'")
        self.ask(t, "/detach 2", "no longer attached")
        self.ask(t, "/detach small.txt", "no longer attached")
        self.ask(t, "/detach", "nothing is attached")
        self.ask(t, f"/read {small}", "attached")
        self.ask(t, "/detach", "1 file is no longer attached")
        self.assertNotIn("document", self.ask(t, "prompt x", "[user]prompt x[assistant]"))
        rc, out, err = self.run_bin("-c", "2000", "-f", big, "-p", "x")
        self.assertEqual(rc, 4)
        t = self.terminal("-c", "2000", "-f", big)
        self.assertEqual(t.wait(), 4)

    def test_several_files(self):
        self.write("src/a.c", "int a;\n")
        self.write("src/sub/b.c", "int b;\n")
        self.write("src/.hidden.c", "no\n")
        self.write("two words.txt", "words\n")
        with open(os.path.join(self.home, "src/data.bin"), "wb") as f:
            f.write(bytes(range(256)))
        t = self.chat(env={"HOME": self.home})
        self.ask(t, "/read ~/src \"" + self.home + "/two words.txt\"", "3 files, 20 B attached")
        self.ask(t, "prompt x", rb'name="src/a.c">\r?\nint a;\r?\n</document>\r?\n\r?\n<document name="src/sub/b.c">')
        self.assertNotIn(b"data.bin", t.out)
        self.assertNotIn(b"hidden", t.out)
        self.ask(t, "/read ~/two words.txt", "two words.txt: 6 B attached")  # blanks in the name of a file
        self.ask(t, "/detach", "no longer")
        self.ask(t, "/read ~/src/*.c ~/src/sub/*.c", "2 files, 14 B attached")
        self.ask(t, "/read ~/none*.c", "no such file")
        rc, out, err = self.run_bin("-f", os.path.join(self.home, "src"), "-f", os.path.join(self.home, "two*.txt"), "-p", "prompt x")
        self.assertEqual((rc, out.count(b"<document")), (0, 3))
        self.assertIn("a file that is not text was skipped", err)

    def test_links_out_of_a_directory(self):
        """A directory gives no file outside of it, whatever its links say; links within it count as files."""
        self.write("key", "secret\n")
        self.write("src-2/x.c", "secret\n")
        self.write("src/sub/b.c", "int b;\n")
        src = os.path.join(self.home, "src")
        for name, to in (("in.c", "sub/b.c"), ("absolute", os.path.join(self.home, "key")), ("relative", "../key"), ("sub/chain", "../relative"), ("near.c", "../src-2/x.c"), ("to-dir", ".."), ("gone", "nothing")):
            os.symlink(to, os.path.join(src, name))
        os.symlink("src", os.path.join(self.home, "by-link"))
        for given in (src, src + "/", os.path.join(self.home, "by-link")):
            rc, out, err = self.run_bin("-f", given, "-p", "prompt x")
            self.assertEqual((rc, out.count(b"<document"), out.count(b"int b;"), out.count(b"secret")), (0, 2, 2, 0))
            self.assertIn("6 symbolic links that lead out of their directory were skipped", err)
        t = self.chat()
        self.assertIn("6 symbolic links", self.ask(t, f"/read {src}", "2 files, 14 B attached"))
        rc, out, err = self.run_bin("-f", os.path.join(src, "relative"), "-p", "prompt x")  # named by the user
        self.assertEqual((rc, out.count(b"secret")), (0, 1))
        self.write("only/.hidden", "")
        os.symlink("../key", os.path.join(self.home, "only/key"))
        self.assertIn("symbolic links that lead out of it are not followed", self.run_bin("-f", os.path.join(self.home, "only"), "-p", "x")[2])

    # --- saving

    def test_save_where_nothing_can_be_written(self):
        blocked = self.write("blocked", "a file, not a directory")
        rc, out, err = self.run_bin("--save", "x", "-p", "hi", env={"XDG_DATA_HOME": blocked})
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("nothing can be saved", err)
        t = self.terminal("--save", "x", env={"XDG_DATA_HOME": blocked})
        self.assertEqual(t.wait(), 1)
        self.assertEqual(self.run_bin("-p", "hi", env={"XDG_DATA_HOME": blocked})[:2], (0, b"You said: hi\n"))

    def test_names_keep_letters(self):
        t = self.chat()
        self.ask(t, "h\u00e9llo \u65e5\u672c", "You said")
        self.ask(t, "/save", "saved as h\u00e9llo-\u65e5\u672c")
        self.assertEqual(self.run_bin("--continue", "h\u00e9llo-\u65e5\u672c", "-p", "x")[0], 1)  # found, but open
        t.send("/bye\r")
        t.wait()
        self.assertEqual(self.run_bin("--continue", "h\u00e9llo-\u65e5\u672c", "-p", "x")[0], 0)
        for bad in ("a\u202eb", "a\u0085b", "a\u3000b", b"a\xffb".decode("utf-8", "surrogateescape")):
            self.assertEqual(self.run_bin("--save", bad, "-p", "x")[0], 2, repr(bad))

    def test_one_long_name_keeps_the_titles(self):
        self.assertEqual(self.run_bin("--save", "n" * 60, "-p", "the long one")[0], 0)
        self.assertEqual(self.run_bin("--save", "short", "-p", "a short title")[0], 0)
        t = self.terminal("--list")
        self.assertEqual(t.wait(), 0)
        rows = [line for line in t.screen() if line]
        self.assertEqual(len(rows), 2)
        self.assertIn("n" * 60, "".join(rows))
        self.assertRegex("\n".join(rows), r"short +1 question, +1 kB  a short title")

    def test_rows_of_the_list_fit(self):
        for name in ("a-name-of-some-length", "short"):
            self.assertEqual(self.run_bin("--save", name, "-p", "a title that is longer than the rest of a row of the screen")[0], 0)
        for cols in (80, 81, 90, 100):
            t = self.terminal("--list", cols=cols)
            self.assertEqual(t.wait(), 0)
            rows = [line for line in t.screen(24, cols) if line]
            self.assertEqual([row[-1] for row in rows], ["\u2026"] * 2, rows)

    # --- the screen

    def test_close_returns_to_where_fork_was_typed(self):
        t = self.chat()
        self.ask(t, "one", "You said: one")
        self.ask(t, "/new other", "", "other> ")
        self.ask(t, "/switch 1", "You said: one", "1> ")
        self.ask(t, "/fork", "forked into session 3; /switch 1 goes back", "3> ")
        self.ask(t, "/close", "You said: one", "1> ")

    def test_copy_sends_no_control_characters(self):
        t = self.chat()
        self.ask(t, "escape", "ed")
        shown = self.ask(t, "/copy", "(if your terminal allows it)")
        copied = base64.b64decode(re.search(r"\x1b\]52;c;([^\x07]*)\x07", shown)[1]).decode()
        self.assertIn("red", copied)
        self.assertEqual([c for c in copied if ord(c) < 32 and c not in "\n\t" or 127 <= ord(c) < 160], [])

    def test_copy_code(self):
        t = self.chat()
        self.ask(t, "code", "other")
        for arg, want in (("code", "echo hi\n"), ("code 1", "echo hi\n"), ("code 2", "other\n")):
            shown = self.ask(t, "/copy " + arg, "(if your terminal allows it)")
            self.assertEqual(base64.b64decode(re.search(r"\x1b\]52;c;([^\x07]*)\x07", shown)[1]).decode(), want)
        self.ask(t, "/copy code 3", "no code block 3")
        self.ask(t, "/copy cod", "/copy copies")


if __name__ == "__main__":
    driver.unittest.main()
