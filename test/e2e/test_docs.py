"""The manual page and the completions agree with --help, and --help with what the binary accepts."""
import os
import re
import shutil
import subprocess
import sys

import driver

MAN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "man", "hearth.1")


class Docs(driver.Case):
    def help_options(self):
        out = self.run_bin("--help")[1].decode()
        options = out[out.index("\nModel:"):]
        rows = {}
        for line in options.splitlines():
            m = re.match(r"  (?:-(\w), |    )--([a-z-]+)(?:, --([a-z-]+))?(?: (\[?[A-Z]+\]?|\[\w+\]))?  ", line + "  ")
            if m:
                rows[m.group(2)] = (m.group(1), m.group(4))
                if m.group(3):
                    rows[m.group(3)] = (None, None)
        self.assertGreater(len(rows), 45)
        return rows

    def test_examples_come_first(self):
        out = self.run_bin("-h")[1].decode()
        self.assertLess(out.index("hearth -m DIR -p"), out.index("Model:"))

    def test_refused_options_say_so(self):
        out = self.run_bin("--help")[1].decode()
        for name in re.findall(r"(?m)^ +(?:-\w, )?--([a-z-]+) MACHINE", out):
            refused = "this build cannot" in self.run_bin("--" + name, "x")[2]
            self.assertEqual("this build refuses it" in re.search(rf"--{name} .*", out)[0], refused)

    def test_contract(self):
        rows = self.help_options()
        for letter, name in (("m", "model"), ("p", "prompt"), ("f", "file"), ("s", "system"), ("n", "max-tokens"), ("c", "context"), ("t", "threads"),
                             ("q", "quiet"), ("v", "verbose"), ("h", "help")):
            self.assertEqual(rows[name][0], letter)
        for name in ("temp top-p top-k min-p repeat-penalty seed think no-think raw template json json-lines extract stats no-stream color gpus cpu kv kv-cache prefill "
                     "decode explain batch save continue last list delete no-save plain models print-config version inspect verify tokenize special detokenize render tokens logits-out ids bench plan").split():
            self.assertIn(name, rows)

    def test_manual(self):
        with open(MAN) as f:
            text = f.read()
        text = text[text.index(".Sh OPTIONS"):text.index(".Sh SERVING")]
        items = {}
        for line in text.splitlines():
            if line.startswith(".It Fl"):
                letter = re.search(r"Fl (\w)\b", line)
                for name in re.findall(r"Fl -([a-z-]+)", line):
                    items[name] = letter.group(1) if letter and not name.startswith("no-think") else None
        self.assertEqual(items, {n: v[0] for n, v in self.help_options().items()})

    def test_manual_commands(self):
        with open(MAN) as f:
            documented = set(re.findall(r"^\.It Li /(\w+)", f.read(), re.M))
        t = self.terminal()
        t.prompt()
        t.send("/help\r")
        t.prompt(t.until("Ctrl-D leaves.", len(t.out)))
        shown = set(re.findall(r"^  /(\w+)", t.out.decode().replace("\x1b[2m", ""), re.M))
        self.assertEqual(documented, shown)

    def test_manual_is_clean(self):
        mandoc = shutil.which("mandoc")
        if not mandoc:
            self.skipTest("mandoc is not installed")
        p = subprocess.run([mandoc, "-Tlint", MAN], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual((p.returncode, p.stdout), (0, b""))

    def test_completions(self):
        rows = self.help_options()
        for shell, option in (("bash", r"(?<![\w-])--([a-z-]+)"), ("zsh", r"'\*?--([a-z-]+)\["), ("fish", r" -l ([a-z-]+)")):
            rc, out, err = self.run_bin("--completion", shell)
            self.assertEqual((rc, err), (0, ""))
            found = set(re.findall(option, out.decode()))
            if shell == "bash":
                found -= {"-", ""}
            self.assertEqual(found, set(rows), shell)
            if shutil.which(shell):
                self.assertEqual(subprocess.run([shell, "-n"], input=out, env=self.env).returncode, 0)


if __name__ == "__main__":
    driver.unittest.main()
