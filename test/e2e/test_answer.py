"""How an answer appears on the screen: folded thinking, its status, the bell. Runs on the fake engine."""
import re

import driver


class Answer(driver.Case):
    def chat(self, *args, cols=80, rows=24, **more):
        t = self.terminal(*args, rows=rows, cols=cols, **more)
        self.last = t.prompt()
        return t

    def ask(self, t, text, answer):
        begin = self.last
        t.send(text + "\r")
        self.last = t.prompt(t.until(answer, begin))
        return t.out[begin:self.last].decode()

    def test_thinking_is_folded(self):
        for env in ({}, {"NO_COLOR": "1"}):
            t = self.terminal(env=env)
            prompt = b"> \r\x1b\\[2C" if env else b"\x1b\\[1m> \x1b\\[0m\r"
            at = t.until(prompt)
            t.send("think\r")
            at = t.until(prompt, t.until("the answer", at))
            lines = [line for line in t.screen() if line]
            self.assertRegex(lines[-3], r"^\(thought for 0 s, \d+ tokens; Ctrl-O shows it\)$")
            self.assertEqual(lines[-2], "the answer")
            t.send("\x0f")  # Ctrl-O
            t.until("reasoning here", at)
            t.quiet()
            self.assertEqual([line for line in t.screen() if line][-2:], ["reasoning here", ">"])

    def test_thinking_unfolds_while_it_runs(self):
        t = self.chat()
        t.send("ponder\r")
        t.until("thinking for 1 s, ")
        self.assertNotIn(b"idea0", t.out)
        t.send("\x0f")
        at = t.until("idea59", t.until("idea0"))
        t.until("w3 ", at)
        t.send("\x03")
        t.prompt(t.until("stopped", at))
        self.assertNotIn(b"thought for", t.out)

    def test_effort_in_the_status(self):
        t = self.chat("--effort", "low", env={"FAKE_MENTIONS": "reasoning_effort"})
        t.send("ponder\r")
        at = t.until("thinking (effort low) for 1 s, ")
        t.send("\x03")
        self.last = t.prompt(t.until("stopped", at))
        t.send("drip\r")
        at = t.until("effort low, ", self.last)
        t.send("\x03")
        self.last = t.prompt(t.until("stopped", at))
        t = self.chat("--effort", "low", env={"FAKE_MENTIONS": ""})  # which changes nothing
        t.send("drip\r")
        at = t.until("tok/s", t.until("tokens, "))
        self.assertNotIn(b"effort low, ", t.out)
        t.send("\x03")
        t.prompt(t.until("stopped", at))

    def test_show_thinking(self):
        t = self.chat("--show-thinking", "always")
        self.assertRegex(self.ask(t, "think", "the answer"), "reasoning.* here")
        self.ask(t, "/set show-thinking never", "from the next answer on")
        shown = self.ask(t, "think", "the answer")
        self.assertNotIn("reasoning", shown)
        self.assertNotIn("thought for", shown)
        self.ask(t, "/set show-thinking auto", "from the next answer on")
        self.assertIn("thought for", self.ask(t, "think", "the answer"))
        self.assertEqual(self.run_bin("-p", "think", "--show-thinking", "never"), (0, b"the answer\n", ""))
        self.assertEqual(self.run_bin("-p", "think"), (0, b"the answer\n", "reasoning here\n"))

    def test_thinking_without_colour(self):
        t = self.terminal("-p", "think", env={"NO_COLOR": "1"})
        self.assertEqual(t.wait(), 0)
        self.assertEqual([line for line in t.screen() if line], ["[thinking]", "reasoning here", "[answer]", "the answer"])

    def test_status_of_the_running_answer(self):
        """On the row below, from the first second on, cut to its width; the text is the same as without it, also after a typed line."""
        for rows, cols in ((24, 80), (6, 30), (9, 18)):
            t = self.chat(rows=rows, cols=cols)
            t.send("slow\r")
            t.until(rb"\d+ tokens, [0-9.]+ tok/s" if cols > 20 else rb"\d+ tokens, ?")
            t.quiet(0.02)
            t.send("x")
            t.until(rb"w5\d")
            t.send("\x7f")
            self.last = t.prompt(t.until("w59", self.last))
            lines = t.screen(rows, cols)
            self.assertNotIn("tok", " ".join(lines))
            words = [int(w) for w in re.findall(r"\bw(\d+)\b", " ".join(lines))]
            self.assertEqual(words, list(range(words[0], 60)))
            self.assertTrue(rows < 10 or words[0] == 0)

    def test_bell_after_a_long_answer(self):
        """Only when the answer took over ten seconds and the terminal has reported that another window has the focus."""
        t = self.chat()
        self.assertIn(b"\x1b[?1004h", t.out)
        t.send("\x1b[O")
        self.ask(t, "short", "You said: short")
        self.assertNotIn(b"\x07", t.out)
        t.send("ponder\r")
        self.last = t.prompt(t.until("w59", self.last))
        self.assertEqual(t.out.count(b"\x07"), 1)
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        self.assertTrue(t.out.rstrip().endswith(b"\x1b[?1004l"), t.out[-40:])

    def test_code_is_highlighted(self):
        t = self.chat(rows=40)
        self.ask(t, "source", "end of it")
        s = t.emulated(40)
        self.assertEqual({w: s.look_of(w) for w in ("def f", "f(x)", "# a comment", "if any", "return", '"a string', "for it", "x", "if plain")},
                         {"def f": "0;36", "f(x)": "", "# a comment": "0;2", "if any": "0;2", "return": "0;36", '"a string': "0;33", "for it": "0;33", "x": "", "if plain": "0;36"})

    def test_marks(self):
        want = ["Head", "", "Some bold text.", "", "def f(x):  # a comment if any", '    return "a string for it" + x', "", "if plain", "", "end of it"]
        for args, first in (([], "# Head"), (["--markdown", "full"], "Head"), (["--markdown=off"], "# Head")):
            t = self.chat(*args, rows=40)
            self.ask(t, "source", "end of it")
            lines = t.screen(40)
            at = lines.index(first)
            if "full" in args:
                self.assertEqual(lines[at:at + len(want)], want)
                self.assertEqual(t.emulated(40).look_of("bold"), "0;1")
            else:
                self.assertIn("Some **bold** text.", lines)
            self.assertEqual(t.emulated(40).look_of(first), "" if "--markdown=off" in args else "0;1;35")

    def test_width(self):
        for args, most in (([], 100), (["--width", "60"], 60), (["--width", "0"], 149)):
            t = self.chat(*args, rows=40, cols=150)
            self.ask(t, "slow", "w59")
            rows = [len(line) for line in t.screen(40, 150) if line.startswith("w")]
            self.assertLessEqual(max(rows), most)
            self.assertGreater(max(rows), most - 6)

    def test_rows_of_a_table_come(self):
        """While the answer goes on; in a pipe the text comes as it is."""
        t = self.chat(rows=40, cols=60)
        t.send("ledger\r")
        t.until("row 5 ")
        t.send("\x03")
        t.until("stopped")
        t.quiet()
        table = [line for line in t.screen(40, 60) if line.startswith("|")]
        self.assertEqual(table[:4], ["|    n | name        |", "| ---: | ----------- |", "|    0 | row 0       |", "|    1 | row 1       |"])
        self.assertEqual(self.run_bin("-p", "ledger", "-n", "60")[1], b"| n | name |\n|--:|---|\n| 0 | row 0 |\n| 1 | row 1 |\n| 2 | row\n")

    def test_wide_table(self):
        t = self.chat(rows=40, cols=60)
        self.ask(t, "table", "short")
        lines = t.screen(40, 60)
        at = next(i for i, line in enumerate(lines) if line.startswith("| name"))
        table = lines[at:at + 5]
        self.assertEqual({len(line) for line in table}, {59}, table)
        self.assertTrue(all(line.startswith("| ") and line.endswith(" |") for line in table))
        self.assertEqual(" ".join(line.split("|")[2].strip() for line in table[2:4]), "one two three four five six seven eight nine ten eleven twelve thirteen fourteen")
        self.assertTrue(table[4].startswith("| second | short"))


if __name__ == "__main__":
    driver.unittest.main()
