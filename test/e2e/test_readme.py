"""README.md and the manual's examples against the shipped binary: the transcript is current, the families are some of
those that it opens, options and commands exist, and every example runs."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import driver
import transcript
from test_protocols import TEMPLATE

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path[:0] = [os.path.join(ROOT, "man"), os.path.join(ROOT, "test", "mutate")]
import families  # noqa: E402
from tables import CHANGES  # noqa: E402

PROMPT = rb"> \x1b\[0m\r"


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as f:
        return f.read()


class Readme(driver.Case):
    def setUp(self):
        super().setUp()
        self.readme = read("README.md")
        self.help = self.run_bin("--help", "all")[1].decode()

    def test_short(self):
        self.assertLess(self.readme.count("\n"), 170)

    def test_transcript(self):
        """If this fails after a change, run test/e2e/transcript.py --write."""
        self.assertEqual(transcript.shown(), transcript.record())

    def test_families(self):
        """README names families of the table of architectures, of ten vendors and others; the manual page that is installed names all."""
        version = self.run_bin("--version", "-v")[1].decode()
        types, gguf = families.lists(version)
        section = self.readme[self.readme.index("## Which models"):self.readme.index("## Use")]
        rows = re.findall(r"(?m)^\| ([\w ]+) \| (.*) \|$", section)[1:]
        self.assertGreater(len(rows), 10)
        for vendor, names in rows:
            named = set(re.findall(r"`(\w+)`", names))
            self.assertTrue(named, vendor)
            self.assertEqual(named - set(types), set(), vendor)
        with open(os.path.join(os.path.dirname(driver.BIN), "man", "hearth.1"), encoding="utf-8") as f:
            page = f.read()
        words = set(re.findall(r"[\w-]+", page[page.index("of the architectures"):page.index("come from its metadata")]))
        self.assertEqual(set(gguf) - words, set())
        words = set(re.findall(r"[\w-]+", page[page.index(".Va model_type :"):page.index("of LongCat has no")]))
        self.assertEqual(set(types) - words, set())
        if shutil.which("mandoc"):
            p = subprocess.run(["mandoc", "-Tlint"], input=page, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual((p.returncode, p.stdout), (0, ""))

    def test_numbers(self):
        """Numbers in documents that count something in the sources or in the binary: each is counted again, and no other is stated as about, some or more than."""
        types, gguf = families.lists(self.run_bin("--version", "-v")[1].decode())
        changes = len(CHANGES)
        stated = {
            ("README.md", f"about {round(len(types), -1)} families"),
            ("README.md", f"about {round(len(gguf), -1)} of llama"),
            ("README.md", f"more than {changes // 100 * 100} bugs"),
            ("CONTRIBUTING.md", f"more than {changes // 100 * 100} places"),
        }
        of_the_driver = {("engine/transfer/README.md", "about 1,000 launches")}  # a property of CUDA
        number = r"(?i)\b(?:some|about|more than|nearly|almost) (?:\d[\d,]*|\w+ (?:hundred|thousand|dozen)) \w+(?: llama)?"
        found = {(name, n) for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "engine/transfer/README.md", "test/README.md") for n in re.findall(number, read(name))}
        self.assertEqual(found, stated | of_the_driver)

    def test_options(self):
        options = set(re.findall(r"--([a-z][a-z-]+)", self.help[self.help.index("\nModel:"):]))
        hearth = "\n".join(line for line in self.readme.splitlines() if "meson" not in line and "-D" not in line)
        self.assertLess({"last", "list", "models"}, options)
        self.assertFalse(set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", hearth)) - options - {"write"})

    def test_install(self):
        """.ci/setup builds everything that is installed."""
        self.assertIn("ninja -C build hearth man/hearth.1 man/hearth man/_hearth man/hearth.fish", read(".ci/setup"))
        with tempfile.TemporaryDirectory() as place:
            p = subprocess.run(["meson", "install", "-C", os.path.dirname(driver.BIN), "--no-rebuild", "--destdir", place], capture_output=True, text=True)
            self.assertEqual(p.returncode, 0, p.stdout + p.stderr)
            self.assertEqual(sorted(f for _, _, files in os.walk(place) for f in files), ["_hearth", "hearth", "hearth", "hearth.1", "hearth.fish"])

    def test_setup_builds_for_the_card(self):
        """CUDA is compiled for the card that is there; a card without a compiler is said to stay idle, and so are cards and drivers that do not fit the compiler. On a
        machine of stubs whose driver is of release 550."""
        for cap, nvcc, want, *said in (("9.0", "13", "-Dcuda=enabled -Darch_cuda=90", "too old for what"), ("8.6", "13", "-Dcuda=enabled -D", "too old for what"), ("8.9", "", "-Dcuda=disabled", "no nvcc"), (None, "13", "-Dcuda=disabled"),
                                       ("12.0", "12", "-Dcuda=enabled -D", "does not know this card")):
            with self.subTest(cap=cap, nvcc=nvcc), tempfile.TemporaryDirectory() as d:
                stubs = {"dpkg-query": "echo install ok installed", "meson": 'echo "$@" >>log', "ninja": ":"}
                stubs.update({"nvidia-smi": f"case $1 in *driver*) echo 550.54.15 ;; *) echo {cap} ;; esac"} if cap else {}, **({"nvcc": f"echo compute_80; echo compute_90; echo release {nvcc}.0"} if nvcc else {}))
                os.makedirs(os.path.join(d, "bin"))
                os.makedirs(os.path.join(d, ".ci"))
                for name, text in stubs.items():
                    with open(os.path.join(d, "bin", name), "w") as f:
                        f.write(f"#!/bin/sh\n{text}\n")
                    os.chmod(f.name, 0o755)
                for tool in ("sh", "dirname", "head", "tr", "sort", "grep", "id", "env"):
                    os.symlink(shutil.which(tool), os.path.join(d, "bin", tool))
                with open(os.path.join(d, ".ci", "setup"), "w") as f:
                    f.write(read(".ci/setup").replace("/usr/local/cuda", "/nowhere").replace("/opt/cuda", "/nowhere").replace("/dev/nvidiactl", "/nowhere/card"))
                env = {k: v for k, v in os.environ.items() if k != "CI"}
                p = subprocess.run(["sh", f.name], env={**env, "PATH": os.path.join(d, "bin")}, cwd=d, capture_output=True, text=True)
                self.assertEqual(p.returncode, 0, p.stderr)
                with open(os.path.join(d, "log")) as f:
                    self.assertIn(want, f.read())
                for line in ("no nvcc", "does not know this card", "too old for what", "installing"):
                    self.assertEqual(line in p.stderr, line in said, p.stderr)

    def test_commands_of_the_readme_build(self):
        """The first command is one line that does its own set-up, and runs the program that setup builds."""
        self.assertIn('\n    sh .ci/setup && build/hearth -p "', self.readme)
        self.assertIn("hearth", read(".ci/setup"))


class Examples(driver.Case):
    def examples(self):
        for line in re.findall(r"(?m)^\.Dl (.*)$", read("man/hearth.1")):
            yield line.replace(r"\(dq", '"').replace(r"\-", "-")

    def test_each_command_of_the_readme_runs(self):
        tools, work = os.path.join(self.home, "bin"), os.path.join(self.home, "work")
        model = os.path.join(self.home, "models", "DeepSeek-V3")
        os.makedirs(tools)
        os.makedirs(work)
        shutil.copytree(os.path.join(ROOT, "engine", "ember", "model"), model)
        os.symlink(driver.BIN, os.path.join(tools, "hearth"))
        with open(os.path.join(tools, "pdftotext"), "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\necho text of a paper\n")
        os.chmod(os.path.join(tools, "pdftotext"), 0o755)
        for name, text in (("paper.txt", "text of a paper\n"), ("words.txt", "one\ntwo\n"), ("questions.txt", "What is hearth?\nWho made it?\n")):
            with open(os.path.join(work, name), "w", encoding="utf-8") as f:
                f.write(text)
        self.write("work/weather.json", json.dumps({"name": "weather", "command": ["cat"]}))
        template = self.write("tools.jinja", TEMPLATE)
        os.makedirs(os.path.join(self.home, ".config", "hearth"))
        with open(os.path.join(self.home, ".config", "hearth", "config"), "w", encoding="utf-8") as f:
            f.write(f"[review]\nmodel = {model}\nmax-tokens = 20\n")
        # a short measurement of the bandwidth
        env = {**self.env, "PATH": tools + ":" + self.env["PATH"], "HEARTH_LIMITS": "read=33554432"}
        seen = list(self.examples())
        self.assertGreaterEqual(len(seen), 20)
        for line in seen:
            # there may be no cards; emulated devices run the same code
            command = line.replace("DIR", model).replace("--gpus 0,1", "--gpus emu:2").replace(":8080", ":0")
            if "--tool" in line:
                command += " --template " + template
            if "--serve" in line:
                command += " & until hearth --status; do sleep 0.1; done; hearth --stop; wait"
            t = driver.Terminal(["bash", "-c", "cd " + work + " && " + command], env)
            self.addCleanup(t.close)
            if re.fullmatch(r"hearth( (-m|-f) \S+| --last)*", line):  # a chat
                at = t.until(PROMPT)
                t.send("What is hearth?\r")
                t.until(PROMPT, t.until("What is hearth?", at))
                t.send("\x04")
            # a small model writes no code, and --extract says so
            self.assertIn(t.wait(), (0, 1) if "--extract" in line else (0,), (line, t.out))


if __name__ == "__main__":
    driver.unittest.main()
