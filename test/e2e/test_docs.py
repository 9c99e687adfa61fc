"""The manual page and the completions agree with --help, and --help with what the binary accepts; documents name tests that exist."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys

import driver

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MAN = os.path.join(ROOT, "man", "hearth.1")


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as f:
        return f.read()


class Docs(driver.Case):
    def help_options(self):
        out = self.run_bin("--help", "all")[1].decode()
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
        out = self.run_bin("--help", "all")[1].decode()
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
        t.send("/help all\r")
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
                found -= {"-", "", "complete"}  # the last one asks for names
            self.assertEqual(found, set(rows), shell)
            if shutil.which(shell):
                self.assertEqual(subprocess.run([shell, "-n"], input=out, env=self.env).returncode, 0)

    def test_names_complete(self):
        """Models, saved chats, presets and machines complete by their names, in bash also in the script itself."""
        for name in ("alpha", "beta"):
            self.write(f"models/{name}/config.json", "{}")
        self.write(".config/hearth/config", f"model-path = {self.home}/models\n\n[terse]\ntemp = 0\n")
        self.run_bin("-p", "x", "--save", "talk")
        for kind, names in (("models", {"alpha", "beta"}), ("chats", {"talk"}), ("presets", {"terse"})):
            self.assertEqual(set(self.run_bin("--complete", kind)[1].decode().split()) - {"ember"}, names)
        if not shutil.which("bash"):
            return
        path = self.write("complete.bash", self.run_bin("--completion", "bash")[1].decode())
        os.symlink(driver.BIN if os.path.isabs(driver.BIN) else os.path.abspath(driver.BIN), os.path.join(self.home, "hearth"))
        for option, typed, found in (("-m", "al", "alpha"), ("--use", "b", "beta"), ("--continue", "t", "talk"), ("--delete", "t", "talk"), ("--preset", "te", "terse")):
            script = f'. {path}; COMP_WORDS=(hearth {option} {typed}); COMP_CWORD=2; cd /; _hearth; echo "${{COMPREPLY[@]}}"'
            out = subprocess.run(["bash", "-c", script], env={**self.env, "PATH": self.home + ":" + self.env["PATH"]}, capture_output=True).stdout.decode()
            self.assertEqual(out.strip(), found, option)


class Service(driver.Case):
    def test_unit_of_the_user(self):
        """systemd accepts the unit, its program has the options that it is started with, and a bad one would be noticed."""
        unit = read("debian/hearth.user.service")
        command = re.search(r"(?m)^ExecStart=(.*)$", unit)[1].split()
        self.assertEqual(command[0], "/usr/bin/hearth")
        shown = self.run_bin("--help", "all")[1].decode()
        options = [option for part in re.findall(r"/usr/bin/hearth(.*)", unit) for option in re.findall(r"--[a-z-]+", part)]
        self.assertIn("--serve", options)
        for option in options:
            self.assertRegex(shown, rf"(?m)^ +{option}\b")
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze")
        for text, accepted in ((unit.replace("/usr/bin/hearth", os.path.abspath(driver.BIN)), True), (unit.replace("/usr/bin/hearth", "/nowhere/hearth"), False)):
            path = self.write("units/hearth.service", text)
            p = subprocess.run(["systemd-analyze", "--user", "--man=no", "verify", path], capture_output=True, text=True, env={**self.env, "XDG_RUNTIME_DIR": os.path.dirname(path)})
            self.assertEqual(((p.returncode, p.stdout + p.stderr) == (0, ""), accepted), (accepted, accepted), p.stderr)


class Tests(driver.Case):
    def known(self):
        """Returns the names of all tests of the build."""
        build = os.path.join(os.path.dirname(driver.BIN), "..", "..")
        return {t["name"] for t in json.loads(subprocess.run(["meson", "introspect", "--tests", build], check=True, capture_output=True).stdout)}

    def test_table_by_change(self):
        """Every test and every path that test/README.md's table by change names exists."""
        known = self.known()
        if not {"cuda_emu_ops_f32", "world_seeds", "e2e_serve"} <= known:
            self.skipTest("a build without all tests")
        text = read("test/README.md")
        rows = re.findall(r"(?m)^\| (.*?) \| (.*) \|$", text[text.index("## You touched X"):text.index("## Run one test")])[2:]
        self.assertGreater(len(rows), 20)
        tests = {name for _, run in rows for name in re.findall(r"`([a-z]+_\w+)`", run)}
        self.assertEqual(tests - known, set())
        paths = {path for touched, _ in rows for path in re.findall(r"`([\w/.*]+)`", touched)}
        for path in paths:
            self.assertTrue(glob.glob(os.path.join(ROOT, path)), path)
        for folder in ("base", "cli", "cpu", "engine", "gpu", "tokenizer"):
            self.assertTrue(any(p.startswith(folder + "/") for p in paths), folder)

    def test_security(self):
        """Every sentence of SECURITY.md names tests after its last clause, and they exist: suites that run, and cases in them."""
        text = read("SECURITY.md")
        text = text[text.index("\n### "):text.index("## Reporting")]
        wild = [line for line in text.splitlines() if line and not re.match(r"### |- |  \S", line)]
        self.assertEqual(wild, [])  # no promise stands outside of the lists
        sentences = [s for item in re.findall(r"(?m)^- (.*(?:\n  .*)*)", text) for s in re.split(r"(?<=\.)\s+(?=[A-Z`-])", item)]
        self.assertGreater(len(sentences), 50)
        suites = self.known()
        whole_build = {"e2e_serve", "e2e_remote"} <= suites
        names = r"`((?:e2e|unit|fuzz)_\w+)`(?:: (\w+(?:, \w+)*))?"
        for sentence in sentences:
            self.assertRegex(sentence, rf"\((?:[^()]*; )?{names}(?:, {names})*\)\.$")
            for suite, cases in re.findall(names, sentence):
                self.assertTrue(suite in suites or not whole_build, sentence)
                kind, name = suite.split("_", 1)
                source = read({"e2e": f"test/e2e/test_{name}.py", "unit": f"test/unit/test_{name}.c", "fuzz": f"test/fuzz/fuzz_{name}.c"}[kind])
                for case in filter(None, cases.split(", ")):
                    self.assertRegex(source, rf"(?m)^ *(def|static void|class) {case}\(", sentence)


if __name__ == "__main__":
    driver.unittest.main()
