"""tools/tarball: what it packs runs where it is unpacked, and the libraries in it need nothing but the C library."""
import os
import re
import subprocess
import sys
import tarfile

HEARTH = sys.argv.pop()
os.environ.setdefault("HEARTH_BIN", HEARTH)
import driver  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
OF_GLIBC = re.compile(r"(lib(c|m|pthread|dl|rt|resolv)\.so\.\d|ld-linux-x86-64\.so\.2|linux-vdso\.so\.1)$")


class Tarball(driver.Case):
    def pack(self, name):
        out = os.path.join(self.home, name)
        p = subprocess.run(["sh", os.path.join(ROOT, "tools/tarball"), "--of", os.path.dirname(HEARTH), out], capture_output=True, text=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1000000000"})
        if "is not installed here" in p.stderr:
            self.skipTest(p.stderr.strip())
        self.assertEqual(p.returncode, 0, p.stderr)
        m = re.fullmatch(r"(\S+\.tar\.gz): (\d+) bytes, unpacked \d+ kB; needs glibc 2\.\d+\n", p.stdout)
        self.assertTrue(m, p.stdout)
        self.assertEqual(int(m[2]), os.path.getsize(m[1]))
        return m[1]

    def test_packed(self):
        path = self.pack("a")
        with open(path, "rb") as f, open(self.pack("b"), "rb") as g:
            self.assertTrue(f.read() == g.read(), "two runs give two archives")
        with tarfile.open(path) as t:
            t.extractall(os.path.join(self.home, "opt"))
        top, = os.listdir(os.path.join(self.home, "opt"))
        top = os.path.join(self.home, "opt", top)
        binary, libraries = os.path.join(top, "bin/hearth"), os.path.join(top, "lib/hearth")
        run = lambda *args: subprocess.run([binary, *args], capture_output=True, text=True, env={"HOME": self.home, "LANG": "C.UTF-8"}, stdin=subprocess.DEVNULL, timeout=driver.PATIENCE)
        self.assertRegex(run("--version").stdout, r"^hearth \d")
        self.assertIn("hearth -m", run("-p", "How do I open a model?").stdout)
        for name in ("share/man/man1/hearth.1", "share/bash-completion/completions/hearth", "share/zsh/site-functions/_hearth", "share/fish/vendor_completions.d/hearth.fish", "share/doc/hearth/LICENSE"):
            self.assertTrue(os.path.getsize(os.path.join(top, name)), name)
        packed = set(os.listdir(libraries))
        self.assertLessEqual({"libcurl.so.4", "libmicrohttpd.so.12"}, packed)
        self.assertFalse([so for so in packed if OF_GLIBC.match(so)])
        for so in packed:
            needed = re.findall(r"NEEDED.*\[(.*)\]", subprocess.run(["readelf", "-d", os.path.join(libraries, so)], capture_output=True, text=True).stdout)
            self.assertFalse([n for n in needed if n not in packed and not OF_GLIBC.match(n)], so)
        self.assertTrue(os.listdir(os.path.join(top, "share/doc/hearth/licenses")))
        p = subprocess.run([binary, "-m", "http://127.0.0.1:1/v1", "-p", "x"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=driver.PATIENCE,
                           env={"HOME": self.home, "LANG": "C.UTF-8", "LD_LIBRARY_PATH": libraries, "LD_DEBUG": "libs"})  # a build for other machines looks there by itself
        self.assertIn(f"calling init: {libraries}/libcurl.so.4", p.stderr)
        self.assertRegex(p.stderr, "hearth: http://127.0.0.1:1/v1: .*connect")


if __name__ == "__main__":
    driver.unittest.main()
