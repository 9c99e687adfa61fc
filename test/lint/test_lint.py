"""The script `run` reports new findings, accepts those of accepted.txt, and says what it could not do."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run")
LEAK = "#include <stdlib.h>\nint NAME(int a) { char *p = malloc(3); if (a) return 1; free(p); return 0; }\n"


class Lint(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        os.makedirs(f"{self.root}/test/lint")
        os.mkdir(f"{self.root}/build")
        shutil.copy(RUN, f"{self.root}/test/lint/run")
        self.accept("")

    def accept(self, text):
        with open(f"{self.root}/test/lint/accepted.txt", "w") as f:
            f.write(text)

    def source(self, text, name="tokenizer/a.c", flags="-O0"):
        os.makedirs(os.path.dirname(f"{self.root}/{name}"), exist_ok=True)
        with open(f"{self.root}/{name}", "w") as f:
            f.write(text)
        with open(f"{self.root}/build/compile_commands.json", "w") as f:
            json.dump([{"directory": f"{self.root}/build", "file": f"../{name}", "command": f"ccache cc -MD -MF a.d {flags} -o a.o -c ../{name}"}], f)

    def run_lint(self, *arguments, path=None):
        env = dict(os.environ, PATH=path) if path else None
        p = subprocess.run([sys.executable, f"{self.root}/test/lint/run", *arguments], capture_output=True, text=True, env=env, cwd=self.root)
        return p.returncode, p.stdout

    def gcc(self, *arguments):
        if not shutil.which("gcc"):
            self.skipTest("no gcc")
        return self.run_lint("--tool", "gcc", *(arguments or ["tokenizer"]))

    def test_new_finding(self):
        self.source(LEAK.replace("NAME", "f"))
        rc, out = self.gcc()
        self.assertEqual(rc, 1)
        self.assertRegex(out, r"tokenizer/a\.c:2: gcc: leak of .* \[malloc-leak\]")
        self.assertIn("gcc: 1 findings in 1 files, 0 accepted, 1 new", out)
        self.assertFalse(os.path.exists(f"{self.root}/build/a.o"))

    def test_generated(self):
        """A generated file that includes a source is read as that source, with its macros."""
        self.source("#ifdef TWO\n" + LEAK.replace("NAME", "TWO") + "#endif\n")
        with open(f"{self.root}/build/g.c", "w") as f:
            f.write('/* made\n * by meson */\n#define ONE\n#define TWO two\n\n#include "tokenizer/a.c"\n')
        with open(f"{self.root}/build/compile_commands.json", "w") as f:
            json.dump([{"directory": f"{self.root}/build", "file": "g.c", "command": "cc -I.. -include isa.h -fpch-preprocess -o g.o -c g.c"}], f)
        rc, out = self.gcc()
        self.assertEqual(rc, 1)
        self.assertRegex(out, r"tokenizer/a\.c:3: gcc: leak of .* \[malloc-leak\]")

    def test_accepted_finding(self):
        self.source(LEAK.replace("NAME", "f"))
        self.accept("# a comment\ngcc malloc-leak tokenizer/a.c 1: the process ends\n")
        rc, out = self.gcc()
        self.assertEqual((rc, out), (0, "gcc: 1 findings in 1 files, 1 accepted, 0 new\n"))
        self.assertIn("accepted: the process ends", self.gcc("--list", "tokenizer")[1])

    def test_more_than_accepted(self):
        self.source(LEAK.replace("NAME", "f") + LEAK.replace("NAME", "g"))
        self.accept("gcc malloc-leak tokenizer/a.c 1: the process ends\n")
        rc, out = self.gcc()
        self.assertEqual(rc, 1)
        self.assertIn("gcc: 2 findings in 1 files, 1 accepted, 1 new", out)

    def test_outdated_acceptance(self):
        self.source("int f(void) { return 0; }\n")
        self.accept("gcc malloc-leak tokenizer/a.c 1: the process ends\n")
        rc, out = self.gcc()
        self.assertEqual(rc, 0)
        self.assertIn("note: accepted.txt has 1 of gcc malloc-leak in tokenizer/a.c, found 0", out)

    def test_kernels_of_an_instruction_set(self):
        self.source(LEAK.replace("NAME", "f"), flags="-mavx2")
        self.assertEqual(self.gcc(), (0, "gcc: 0 findings in 0 files, 0 accepted, 0 new\n"))

    def test_file_that_does_not_compile(self):
        self.source('#include "absent.h"\n')
        rc, out = self.gcc()
        self.assertEqual(rc, 1)
        self.assertIn("absent.h: No such file", out)

    def test_bad_acceptance(self):
        self.source("int f(void) { return 0; }\n")
        for line in ("gcc malloc-leak tokenizer/a.c 1\n", "gcc malloc-leak tokenizer/b.c 1: why\n", "lint x tokenizer/a.c 1: why\n"):
            self.accept(line)
            rc, out = self.gcc()
            self.assertEqual(rc, 2)
            self.assertIn("test/lint/accepted.txt:1: expected TOOL CHECK FILE NUMBER: REASON", out)

    def test_absent_tools(self):
        self.source("int f(void) { return 0; }\n")
        rc, out = self.run_lint("tokenizer", path=self.root)
        self.assertEqual(rc, 77)
        self.assertIn("SKIPPED: clang-tidy: no clang-tidy in PATH; install it with: apt install clang-tidy", out)

    def test_absent_build(self):
        rc, out = self.run_lint()
        self.assertEqual(rc, 2)
        self.assertIn("create a build directory with: meson setup", out)

    def test_path_without_sources(self):
        self.source("int f(void) { return 0; }\n")
        rc, out = self.run_lint("tokenizer", "nothing")
        self.assertEqual(rc, 2)
        self.assertIn("compiles no C file of nothing", out)


if __name__ == "__main__":
    unittest.main()
