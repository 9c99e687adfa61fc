"""The screen that a user sees: a pseudo-terminal read through an emulated terminal, in several sizes, locales and kinds of terminal."""
import json
import os
import re
import time

import driver

SIZES = ((24, 80), (10, 40), (60, 200))


class Screens(driver.Case):
    def chat(self, *args, **more):
        t = self.terminal(*args, **more)
        if more.get("env", {}).get("TERM") == "dumb":
            t.until("> ")
        else:
            t.prompt()
        return t

    def ask(self, t, text, answer, prompt="> "):
        at = len(t.out)
        t.send(text + "\r")
        return t.prompt(t.until(answer, at), prompt)

    @staticmethod
    def shown(t, rows, cols):
        return [line for line in t.screen(rows, cols) if line]

    def until_shown(self, t, rows, cols, last):
        """Waits for the lowest lines; one redraw comes in several writes."""
        end = time.monotonic() + driver.PATIENCE
        while (lines := self.shown(t, rows, cols))[-len(last):] != last and time.monotonic() < end:
            t.read(0.1)
        self.assertEqual(lines[-len(last):], last)
        return lines

    def saved(self):
        folder = os.path.dirname(self.session_file("x"))
        return sorted(n[:-5] for n in os.listdir(folder) if n.endswith(".json"))

    def test_words_are_kept_whole(self):
        for rows, cols in SIZES:
            t = self.chat(rows=rows, cols=cols)
            self.ask(t, "long", "word199")
            lines = [line for line in t.screen(rows, cols) if line.startswith("word")]
            words = " ".join(lines).split()
            self.assertEqual(words, [f"word{i}" for i in range(200)][-len(words):], (rows, cols))
            self.assertTrue(all(len(line) > min(cols, 101) - 9 for line in lines[:-1]), lines)
            self.assertTrue(all(len(line) < cols for line in lines), lines)

    def test_locales_and_terminals(self):
        """The same screen in every locale; a dumb terminal gets no sequence at all."""
        want = None
        for lang in ("C.UTF-8", "en_US.ISO-8859-1", "C"):
            for term in ("xterm-256color", "screen", "linux", "dumb"):
                t = self.chat(cols=60, env={"TERM": term, "LANG": lang, "LC_ALL": lang})
                at = len(t.out)
                t.send("wide" + ("\n" if term == "dumb" else "\r"))
                t.until("end", at)
                t.quiet()
                if term == "dumb":
                    self.assertNotIn(b"\x1b", t.out)
                got = [line for line in t.screen(24, 60) if "\u65e5" in line or "end" in line]
                want = want or got
                self.assertEqual(got, want, (lang, term))
        self.assertEqual([len(re.findall("[\u65e5\u672c\u8a9e]", line)) for line in want], [21])
        self.assertTrue(want[0].endswith("\U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301t\u00e9 end"), want)

    def test_tour(self):
        """A tour of a chat's features, in every size and kind of terminal, over the locales: each step's screen has the expected text
        and a prompt below it, and a dumb terminal gets no sequence."""
        path = os.path.join(self.home, "notes.txt")
        with open(path, "w") as f:
            f.write("the text\n")
        steps = (  # what is typed; what the screen then shows; keys that a dumb terminal lacks are left out there
            ("one", "You said: one", True),
            ("/sessions &", "1 question", True),
            ("/sessions\x1b[200~\nmore\x1b[201~", "/sessions", False),
            ('"""first\nsecond"""', "You said: first second", True),
            ("one line \\\nand another", "You said: one line and another", True),
            ("two", "You said: two", True),
            ("/undo", "undone", True),
            ("/fork", "forked into session", True),
            ("/tokens", "tokens; room for", True),
            (f"/read {path}", "attached to your next question", True),
            ("What is it?", "</document> What is it?", True),
            ("/show", "/set NAME VALUE changes one", True),
            ("/save a-name", "saved as a-name", True),
            ("/list", "questions", True),
            ("/delete none", "no saved conversation 'none'", True),
            ("/model /nowhere", "/nowhere: no such directory", True),
            ("/nonsense", "/help", True),
            ("/clear", "/undo restores the old one", True),
            ("/?", "Ctrl-D leaves", True),
        )
        squeeze = lambda text: re.sub(r"\s", "", text)
        langs = ("C.UTF-8", "en_US.ISO-8859-1", "C")
        for i, (rows, cols) in enumerate(SIZES):
            for k, term in enumerate(("xterm-256color", "screen", "linux", "dumb")):
                lang, dumb = langs[(i + k) % 3], term == "dumb"
                t = self.chat(rows=rows, cols=cols, env={"TERM": term, "LANG": lang, "LC_ALL": lang, "XDG_DATA_HOME": os.path.join(self.home, f"{rows}-{term}")})
                for keys, want, everywhere in steps:
                    if dumb and not everywhere:
                        continue
                    t.send((keys + "\n").replace("\n", "\n" if dumb else "\r"))
                    end = time.monotonic() + driver.PATIENCE
                    while True:  # shown, and the prompt repeated below it
                        lines = [line for line in t.screen(rows, cols) if line]
                        done = lines and squeeze(want) in squeeze("".join(lines)) and lines[-1].rstrip().endswith(">")
                        if done or time.monotonic() > end:
                            break
                        t.read(0.1)
                    self.assertTrue(done, (rows, cols, term, lang, keys, lines))
                self.assertEqual(b"\x1b" in t.out, not dumb)
                t.send("/bye" + ("\n" if dumb else "\r"))
                self.assertEqual(t.wait(), 0)
                self.assertTrue(t.restored())

    def test_markdown(self):
        """Styles on the screen only: saved chats and pipes get the text unchanged."""
        t = self.chat()
        self.ask(t, "markdown", "example.org/x")
        s = t.emulated()
        looks = {w: s.look_of(w) for w in ("# Title", "**bold", "`code`", "int x;", "https://example.org/x.", "- an item", "paragraph")}
        self.assertEqual(looks, {"# Title": "0;1;35", "**bold": "0;1", "`code`": "0;36", "int x;": "0;36", "https://example.org/x.": "0;4", "- an item": "0;33", "paragraph": ""})
        lines = s.lines()
        at = lines.index("| name       |    n |")
        self.assertEqual(lines[at + 1:at + 4], ["| ---------- | ---: |", "| a          |    1 |", "| long name  |   20 |"])
        self.assertIn("of eighty columns,", " ".join(lines))
        raw = self.run_bin("-p", "markdown")[1].decode()
        self.assertNotIn("\x1b", raw)
        self.assertIn("|---|--:|\n", raw)
        self.ask(t, "/save", "saved as")  # which waits for the disk
        with open(self.session_file(self.saved()[0])) as f:
            self.assertEqual(json.load(f)["body"]["messages"][1]["content"] + "\n", raw)
        for args, env in ((["--color=never"], {}), ([], {"NO_COLOR": "1"})):
            t = self.terminal(*args, env=env)
            t.send("markdown\r")
            t.until("example.org/x")
            t.quiet()
            self.assertIn("**bold words**", " ".join(self.shown(t, 24, 80)))
            self.assertNotIn(b"\x1b[0;1m", t.out)

    def test_plain(self):
        t = self.chat("--plain")
        self.ask(t, "markdown", "example.org/x")
        self.assertIn("|---|--:|", t.screen())
        self.assertNotIn(b"\x1b[0;1m", t.out)

    def test_wide_table_is_wrapped(self):
        """In its cells; rows for which even that leaves no room keep their own form."""
        for cols, want in ((20, "| long name  | 20 |"), (19, "| long name | 20 |"), (18, "| long     | 20 |"), (15, "| long name |")):
            t = self.chat(rows=60, cols=cols)
            self.ask(t, "markdown", "example.org/x")
            self.assertIn(want, t.screen(60, cols), cols)
        self.assertNotIn("| name     |", t.screen(60, 15))

    def test_typing_ahead(self):
        for rows, cols in SIZES:
            t = self.chat(rows=rows, cols=cols)
            t.send("slow\r")
            t.until("w5")
            t.send("next question")
            t.until("w20")
            lines = self.until_shown(t, rows, cols, ["> next question"])
            self.assertRegex(" ".join(lines), r"w0 w1 w2 w3 w4 w5 .*w19")
            t.send("\rand another")
            t.until("1 queued: next question")
            t.until("w35")
            self.until_shown(t, rows, cols, ["> and another", "1 queued: next question"])
            t.until("w59")
            at = t.until("said:")
            t.until("question", at)
            t.quiet()
            lines = self.until_shown(t, rows, cols, ["> next question", "You said: next question", "> and another"])
            self.assertIn("w57 w58 w59", " ".join(lines))
            t.send("\x15\x04")
            self.assertEqual(t.wait(), 0)

    def test_interrupt_drops_what_waits(self):
        t = self.chat()
        t.send("long\r")
        t.until("word5 ")
        t.send("never sent\rhalf")
        t.until("1 queued")
        t.send("\x03")
        t.until("1 queued line was not sent; Arrow-Up recalls it")
        t.quiet()
        self.assertEqual(self.shown(t, 24, 80)[-1], "> half")
        self.assertNotIn("You said: never sent", t.screen())
        t.send("\x15\x1b[A")
        t.quiet()
        self.assertEqual(self.shown(t, 24, 80)[-1], "> never sent")

    def test_running_answer_to_the_background(self):
        for key, name in (("/bg\r", "other"), ("&\r", "third")):
            t = self.chat()
            t.send("slow\r")
            t.until("w5")
            t.send(key)
            at = t.until("continues in the background; /switch 1 shows it")
            at = t.prompt(at)
            t.send(f"/new {name}\r")
            t.prompt(at, name + "> ")
            t.until("answer ready in session 1", at)
            t.send("/switch 1\r")
            t.until("w59", at)

    def test_news_of_others_tears_no_answer(self):
        """A background session that ends is reported on a row of its own."""
        t = self.chat(rows=60, cols=200)
        t.send("slow\r")
        t.until("w20")
        t.send("&\r")
        at = t.prompt(t.until("continues in the background"))
        t.send("/new other\r")
        at = t.prompt(at, "other> ")
        t.send("slow\r")
        t.prompt(t.until("w59", at), "other> ")
        t.quiet()
        lines = self.shown(t, 60, 200)
        news = [line for line in lines if "answer ready" in line]
        self.assertEqual(len(news), 1, lines)
        self.assertTrue(news[0].startswith("hearth: answer ready in session 1 ("), news)
        words = [w for line in lines[lines.index("other> slow") + 1 :] if re.match(r"w\d", line) for w in line.split()]
        self.assertEqual(words, [f"w{i}" for i in range(60)])

    def test_leaving_is_queued_too(self):
        t = self.chat()
        t.send("long\r")
        t.until("word5 ")
        t.send("\x04")
        self.assertEqual(t.wait(), 0)
        self.assertIn(b"word199", t.out)

    def test_resized_in_the_middle(self):
        """Below a running answer too: no word is lost or split, and the edited line is complete at the end."""
        for rows, cols in ((24, 40), (12, 120)):
            t = self.chat()
            t.send("slow\r")
            t.until("w10")
            t.send("typed")
            t.until("w20")
            before = len(t.out)
            t.resize(rows, cols)
            t.until("w40")
            t.send(" on")
            t.until("w59")
            t.quiet()
            tail = driver.Screen(rows, cols)
            tail.feed(t.out[before:].decode())
            words = re.findall(r"\bw(\d+)\b", " ".join(tail.lines()))
            self.assertEqual([int(w) for w in words], sorted(int(w) for w in words))
            self.assertEqual(words[-1], "59")
            self.assertEqual([x for x in tail.lines() if x][-1], "> typed on")

    def test_titles(self):
        t = self.chat()
        question = "What is the best way to learn the names of all the rivers of Europe by heart?"
        self.ask(t, question, "heart")
        t.send("\x04")
        t.wait()
        self.assertEqual(self.saved(), ["what-is-the-best-way-to-learn-the-names"])
        t = self.chat()
        self.ask(t, question, "heart")
        self.ask(t, "/new", "", "2> ")
        self.ask(t, "\u65e5\u672c", "You said", "2> ")
        t.send("/exit\r")
        self.assertEqual(t.wait(), 0)
        names = ["what-is-the-best-way-to-learn-the-names", "what-is-the-best-way-to-learn-the-names-2", "\u65e5\u672c"]
        self.assertEqual(self.saved(), names)
        rc, out, err = self.run_bin("--list")
        rows = out.decode().splitlines()
        self.assertEqual((rc, err, len(rows)), (0, "", 3))
        today = time.strftime("%Y-%m-")
        self.assertTrue(all(row.startswith(today) and "1 question, " in row for row in rows), rows)
        self.assertEqual(sum(row.endswith("What is the best way to learn the names of all the rivers\u2026") for row in rows), 2)
        rows = json.loads(self.run_bin("--list", "--json")[1])
        self.assertEqual(sorted(r["name"] for r in rows), names)
        self.assertEqual({r["questions"] for r in rows}, {1})
        t = self.chat()
        self.ask(t, "/sessions", rb"saved; /load NAME(?s:.*)names-2")
        self.ask(t, "/delete \u65e5\u672c", "deleted \u65e5\u672c")
        self.assertEqual(self.saved(), names[:2])
        self.ask(t, "/delete chat", "no saved conversation 'chat'")
        self.assertEqual(self.run_bin("--delete", names[1])[:2], (0, b""))
        self.assertEqual(self.saved(), names[:1])
        self.assertEqual(self.run_bin("--delete", "none")[0], 1)

    def test_a_row_for_each_session(self):
        """Titles use the rest of a row, and a long name leaves room to type."""
        question = "What is the best way to learn the names of all the rivers of Europe by heart?"
        for name in ("short", "a-name-that-takes-half-of-a-screen"):
            t = self.chat()
            self.ask(t, question, "heart")
            self.ask(t, "/save " + name, "saved as", "short> " if name == "short" else "a-name-that-takes-h\u2026> ")
            t.send("\x04")
            t.wait()
        for rows, cols in ((24, 80), (40, 40), (60, 200)):
            t = self.chat(rows=rows, cols=cols)
            self.ask(t, question, "heart")
            self.ask(t, "/new", "", "2> ")
            self.ask(t, "/sessions", rb"saved; /load NAME(?s:.*)short", "2> ")
            lines = self.shown(t, rows, cols)
            self.assertRegex(lines[lines.index("saved; /load NAME opens one:") - 2], r"^  1  +1 question   What is the best.*" + ("Europe by heart\\?" if cols > 100 else "\u2026") + "$")
            self.assertEqual(lines[lines.index("saved; /load NAME opens one:") - 1], "* 2    0 questions")
            if cols == 40:
                self.assertRegex("\n".join(lines), r"(?m)^  20\d\d-\d\d-\d\d  short \(1\)$")
            if cols == 200:
                row = r"  (short|a-name-that-takes-half-of-a-screen) +1 question, +1 kB  What is the best .* all the rivers\u2026$"
                self.assertEqual(len([line for line in lines if re.search(row, line)]), 2)
            t.send("/exit\r")
            t.wait()

    def test_long_name_in_a_narrow_prompt(self):
        t = self.terminal("--save", "a-name-longer-than-half-a-row", rows=10, cols=40)
        t.prompt(text="a-name-longer-th\u2026> ")
        t.send("typed")
        self.until_shown(t, 10, 40, ["a-name-longer-th\u2026> typed"])

    def test_saving_renames(self):
        t = self.chat()
        self.ask(t, "/save", "the conversation is empty")
        self.ask(t, "one", "You said: one")
        self.ask(t, "/save", "saved as one")
        self.assertEqual(self.saved(), ["one"])
        self.ask(t, "/save rivers", "saved as rivers", "rivers> ")
        self.assertEqual(self.saved(), ["rivers"])
        self.ask(t, "/save copy", "saved as copy", "copy> ")  # a name that the user gave is kept
        self.assertEqual(self.saved(), ["copy", "rivers"])

    def test_clear(self):
        t = self.chat("-s", "Sys.")
        self.ask(t, "one", "You said: one")
        self.ask(t, "/clear", "/undo restores the old one")
        self.assertEqual(self.shown(t, 24, 80)[:1], ["a new conversation; /undo restores the old one"])
        self.ask(t, "prompt two", "[system]Sys.[user]prompt two[assistant]")
        self.ask(t, "/save", "saved as prompt-two")
        self.assertEqual(self.saved(), ["one", "prompt-two"])
        self.ask(t, "/undo", "undone: prompt two")
        self.ask(t, "/undo", "You said: one")
        self.ask(t, "prompt three", "[system]Sys.[user]one[assistant]You said: one[user]prompt three[assistant]")
        self.ask(t, "/undo", "undone: prompt three")
        self.ask(t, "/undo", "undone: one")
        self.ask(t, "/undo", "nothing to undo")

    def test_documents(self):
        path = os.path.join(self.home, "a.txt")
        with open(path, "w") as f:
            f.write("the text\n")
        t = self.chat("-f", path)
        self.ask(t, "What is it?", "What is it?")
        self.assertIn(b'<document name="a.txt">', t.out)
        self.ask(t, "prompt again", "prompt again[assistant]")
        self.assertNotIn("a.txt", t.screen()[-1])
        self.ask(t, "/read " + path, "attached to your next question")
        self.ask(t, "Two?", "Two?")
        self.ask(t, "/read /nowhere", "/nowhere: No such file")
        self.ask(t, "/read", "/read FILE")
        rows = json.loads(self.run_bin("--list", "--json")[1])
        self.assertEqual(rows[0]["title"], "(a.txt) What is it?")

    def test_last_and_no_save(self):
        self.assertEqual(self.run_bin("--last", "-p", "x")[0], 1)
        self.assertEqual(self.run_bin("--save", "old", "-p", "one")[0], 0)
        os.utime(self.session_file("old"), (1, 1))
        self.assertEqual(self.run_bin("--save", "new", "-p", "two")[0], 0)
        self.assertIn(b"[user]two[assistant]", self.run_bin("--last", "-p", "prompt")[1])
        t = self.terminal("--last")
        t.prompt(text="new> ")
        self.assertEqual(self.run_bin("--no-save", "--continue", "old", "-p", "three")[0], 0)
        with open(self.session_file("old")) as f:
            self.assertNotIn("three", f.read())
        self.assertEqual(self.run_bin("--no-save", "--save", "x", "-p", "y")[0], 2)
        t = self.chat("--no-save")
        self.ask(t, "secret", "You said: secret")
        t.send("/quit\r")
        self.assertEqual(t.wait(), 0)
        self.assertEqual(self.saved(), ["new", "old"])
        with open(os.path.join(self.home, ".local/state/hearth/history"), "a+") as f:
            f.seek(0)
            self.assertNotIn("secret", f.read())

    def test_names_from_elsewhere(self):
        for word in ("/exit", "/quit"):
            t = self.chat()
            t.send(word + "\r")
            self.assertEqual(t.wait(), 0)
        t = self.chat()
        self.ask(t, "/?", "Ctrl-D leaves.")
        self.ask(t, "one", "You said: one")
        self.ask(t, "/list", "1 question ")

    def test_model(self):
        t = self.chat()
        self.ask(t, "one", "You said: one")
        self.ask(t, "/model /nowhere", rb"(?s)/nowhere: no such directory.*still using")
        with open(os.path.join(self.home, "config.json"), "w") as f:
            f.write("{}")
        self.ask(t, "/model " + self.home, "now using")
        self.ask(t, "prompt two", "[user]one[assistant]You said: one[user]prompt two[assistant]")
        self.ask(t, "/model", rb"(?s) 1  ember .*/model NAME, switches to another")
        self.ask(t, "1", "now using")  # the number in the list
        self.ask(t, "1", "You said: 1")  # and then it is text again

    def test_long_layers_move_the_bar(self):
        """Progress reports come every two seconds; in between the bar advances, and never goes back."""
        for args in ((), ("-p", "layers")):
            t = self.chat() if not args else self.terminal(*args)
            at = len(t.out)
            if not args:
                t.send("layers\r")
            t.until(rb"read\r", t.until("reading the prompt", at))
            shares = [int(n) for n in re.findall(rb"reading the prompt \[[#-]+\] (\d+) %  \d+ s left", t.out[at:])]
            self.assertGreater(len(set(shares)), 4, shares)  # the reports alone would be two
            self.assertEqual(shares, sorted(shares))

    def test_keys_are_heard_while_answers_run(self):
        t = self.chat()
        t.send("long\r")
        t.until("word5 ")
        late = []
        for ch in "abcdefghijklmnopqrstuvwxyz":
            at = len(t.out)
            begin = time.monotonic()
            t.send(ch)
            t.until(ch.encode() + rb"\r\x1b\[\d+C", at)
            late.append(time.monotonic() - begin)
        self.assertLess(sorted(late)[len(late) // 4], 0.1, late)  # other processes only ever make it later


if __name__ == "__main__":
    driver.unittest.main()
