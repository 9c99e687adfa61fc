"""Drives the real binary as a user or a script would: in pipes, and in a pseudo-terminal with a small screen."""
import concurrent.futures
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unicodedata
import unittest

BIN = os.environ["HEARTH_BIN"]
for sig in (signal.SIGHUP, signal.SIGQUIT):  # nohup and a shell's & leave them ignored, and a child inherits that
    signal.signal(sig, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
PATIENCE = float(os.environ.get("PATIENCE", "60"))  # seconds; test machines may be busy


class Case(unittest.TestCase):
    def use_ember_as_any_model(self):
        """Opens ember from a directory: the program then gives no canned answers, and lets the model see documents."""
        os.symlink(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../engine/ember/model"), os.path.join(self.home, "ember"))
        self.env["HEARTH_MODEL"] = os.path.join(self.home, "ember")

    def setUp(self):
        self.home = tempfile.mkdtemp(prefix="hearth-test-")
        self.env = {"HOME": self.home, "PATH": os.environ["PATH"], "TERM": "xterm", "LANG": "C.UTF-8", "CUDA_VISIBLE_DEVICES": ""}  # no card, which would be used by default
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "HEARTH_LIMITS"):
            if name in os.environ:
                self.env[name] = os.environ[name]

    def tearDown(self):
        shutil.rmtree(self.home, ignore_errors=True)

    def skipTest(self, reason):
        """unittest counts a skipped test as passed; .ci/run counts these lines."""
        print("SKIPPED:", reason, flush=True)
        super().skipTest(reason)

    def run_bin(self, *args, data=b"", env=None, **more):
        """Returns (exit code, stdout, stderr); the exit code is negative for a signal."""
        if isinstance(data, str):
            data = data.encode()
        p = subprocess.run([BIN, *args], input=data, stdout=more.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE,
                           env={**self.env, **(env or {})}, timeout=more.pop("timeout", PATIENCE), **more)
        return p.returncode, p.stdout, p.stderr.decode("utf-8", "replace")

    def allocations(self, *args, data=b""):
        """Returns the number of allocations of a run: HEARTH_FAULT=alloc:N! kills it at the Nth."""
        low, high = 0, 1
        killed = lambda n: self.run_bin(*args, data=data, env={"HEARTH_FAULT": f"alloc:{n}!"})[0] == -signal.SIGKILL
        while killed(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if killed(middle) else (low, middle)
        return low

    def all_or_said(self, numbers, *args, forever=False, data=b"", at_once=1):
        """Whichever allocation fails: the complete output with exit 0, or a prefix of it, another exit code and a message."""
        right = self.run_bin(*args, data=data)
        self.assertEqual(right[0], 0, right)
        failed = 0
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            runs = pool.map(lambda n: (n, *self.run_bin(*args, data=data, env={"HEARTH_FAULT": f"alloc:{n}" + "+" * forever})), numbers)
            for n, rc, out, err in runs:
                failed += rc != 0
                if rc == 0:
                    self.assertEqual(out, right[1], (n, err))
                else:
                    self.assertGreater(rc, 0, (n, err))
                    self.assertTrue(right[1].startswith(out.rstrip(b"\n")), (n, out))
                    self.assertRegex(err, r"hearth: \S", n)
        self.assertGreater(failed, 0)

    def session_file(self, name):
        return os.path.join(self.home, ".local/share/hearth/sessions", name + ".json")

    def write(self, name, text):
        """Writes a file below the home directory and returns its path."""
        path = os.path.join(self.home, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)
        return path

    def terminal(self, *args, **more):
        t = Terminal([BIN, *args], {**self.env, **more.pop("env", {})}, **more)
        self.addCleanup(t.close)
        return t


class ChatCase(Case):
    """A chat on the fake engine: `last` is the offset in the terminal's output after the newest prompt."""

    def chat(self, *args, prompt="> ", cols=200, **more):
        t = self.terminal(*args, cols=cols, **more)
        self.last = t.prompt(text=prompt)
        return t

    def ask(self, t, text, answer, prompt="> "):
        """Types a line and waits for the answer and the next prompt; returns the output in between."""
        begin = self.last
        t.send(text + "\r")
        self.last = t.prompt(t.until(answer, begin), prompt)
        return t.out[begin:self.last].decode()

    def model(self, name):
        """Makes a directory that the fake engine opens as a model."""
        return os.path.dirname(self.write(os.path.join("models", name, "config.json"), "{}"))


class Terminal:
    """A child on a pseudo-terminal. `out` is everything it has written."""

    def __init__(self, argv, env, rows=24, cols=80, stderr=None, cwd=None):
        self.master, self.slave = pty.openpty()
        self.resize(rows, cols, quiet=True)
        self.before = termios.tcgetattr(self.slave)
        self.out = b""

        def child():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.p = subprocess.Popen(argv, stdin=self.slave, stdout=self.slave, stderr=stderr or self.slave, env=env, preexec_fn=child, close_fds=True, cwd=cwd)

    def resize(self, rows, cols, quiet=False):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        if not quiet:
            os.kill(self.p.pid, signal.SIGWINCH)

    def send(self, text):
        os.write(self.master, text.encode() if isinstance(text, str) else text)

    def read(self, seconds):
        if select.select([self.master], [], [], seconds)[0]:
            try:
                self.out += os.read(self.master, 65536)
            except OSError:
                return False
        return True

    def until(self, pattern, start=0):
        """Waits for a pattern in the output after `start`; returns the offset after the match."""
        if isinstance(pattern, str):
            pattern = re.escape(pattern).replace(r"\ ", r"(?: |\r*\n *)")  # words may be on two rows
        rx = re.compile(pattern if isinstance(pattern, bytes) else pattern.encode())
        end, last = time.monotonic() + PATIENCE, False
        while True:
            m = rx.search(self.out, start)
            if m:
                return m.end()
            if last or time.monotonic() >= end:
                raise AssertionError(f"no {pattern!r} in {self.out[start:]!r}")
            last = not self.read(0.2) or (self.p.poll() is not None and not select.select([self.master], [], [], 0.2)[0])

    def quiet(self, seconds=0.4):
        """Waits until there has been no output for a while."""
        n = -1
        while n != len(self.out):
            n = len(self.out)
            self.read(seconds)

    def prompt(self, start=0, text="> "):
        """Waits for the line editor's prompt with nothing typed yet."""
        return self.until(b"\x1b\\[1m" + re.escape(text).encode() + b"\x1b\\[0m\r", start)

    def wait(self):
        end = time.monotonic() + PATIENCE
        while self.p.poll() is None and time.monotonic() < end:
            self.read(0.1)
        while select.select([self.master], [], [], 0.1)[0] and self.read(0.1):
            pass
        return self.p.poll()

    def restored(self):
        return termios.tcgetattr(self.slave) == self.before

    def emulated(self, rows=24, cols=80):
        s = Screen(rows, cols)
        s.feed(self.out.decode("utf-8", "replace"))
        return s

    def screen(self, rows=24, cols=80):
        return self.emulated(rows, cols).lines()

    def close(self):
        if self.p.poll() is None and os.environ.get("HEARTH_TEST_COVERAGE"):
            self.p.terminate()
            try:
                self.p.wait(20)
            except subprocess.TimeoutExpired:
                pass
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait()
        os.close(self.master)
        os.close(self.slave)


def columns(ch):
    """Returns the width of a code point in columns."""
    if unicodedata.combining(ch) or ch in "\u200d\ufe0f" or unicodedata.category(ch) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(ch) in "WF" else 1


class Screen:
    """The subset of a terminal that hearth uses: a full row wraps only when more text comes, wide characters take two cells,
    combining characters none. An unknown sequence or a character in the C1 range is an error."""

    CONTROL = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")
    COMMAND = re.compile(r"\x1b\][^\x07]*\x07")

    def __init__(self, rows, cols):
        self.rows, self.cols = rows, cols
        self.cells = [[" "] * cols for _ in range(rows)]
        self.looks = [[""] * cols for _ in range(rows)]
        self.r = self.c = 0
        self.look, self.joined = "", False

    def feed(self, text):
        i = 0
        while i < len(text):
            ch = text[i]
            m = self.CONTROL.match(text, i)
            if m:
                self.control(m.group(1), m.group(2))
                i = m.end()
                continue
            m = self.COMMAND.match(text, i)
            if m:
                i = m.end()
                continue
            i += 1
            if ch == "\r":
                self.c = 0
            elif ch == "\n":
                self.down()
            elif ch < " " or "\x7f" <= ch < "\xa0":
                raise AssertionError(f"unknown sequence {text[i - 1:i + 8]!r}")
            else:
                self.put(ch)

    def down(self):
        self.r += 1
        if self.r >= self.rows:
            self.cells = self.cells[1:] + [[" "] * self.cols]
            self.looks = self.looks[1:] + [[""] * self.cols]
            self.r = self.rows - 1

    def put(self, ch):
        w = 0 if self.joined else columns(ch)
        self.joined = ch == "\u200d"
        if not w:  # it combines with the previous cell
            at = self.c - 1
            while at > 0 and self.cells[self.r][at] == "":
                at -= 1
            self.cells[self.r][max(at, 0)] += ch
            return
        if self.c + w > self.cols:
            self.c = 0
            self.down()
        self.cells[self.r][self.c] = ch
        self.looks[self.r][self.c] = self.look
        if w == 2:
            self.cells[self.r][self.c + 1] = ""
        self.c += w

    def control(self, args, what):
        n = int(args) if args.isdigit() else 1
        blank = [" "] * self.cols
        if what == "A":
            self.r = max(0, self.r - n)
        elif what == "C":
            self.c = min(self.cols - 1, self.c + n)
        elif what == "H":
            self.r = self.c = 0
        elif what == "K":
            self.cells[self.r][self.c:] = blank[self.c:]
        elif what == "J" and args == "":
            self.cells[self.r][self.c:] = blank[self.c:]
            for r in range(self.r + 1, self.rows):
                self.cells[r] = list(blank)
        elif what == "J":
            self.cells = [list(blank) for _ in range(self.rows)]
        elif what == "m":
            self.look = "" if args in ("", "0") else args
        elif what not in "hl":
            raise AssertionError(f"unknown control {args}{what}")

    def lines(self):
        return [re.sub(r" +$", "", "".join(r)) for r in self.cells]

    def look_of(self, text):
        """Returns the style of the first occurrence of the text on one row."""
        for r, cells in enumerate(self.cells):
            at = "".join(c or "\0" for c in cells).find(text)
            if at >= 0:
                return self.looks[r][at]
        raise AssertionError(f"no {text!r} on the screen {self.lines()}")
