"""The KV cache on disk: what one run has read the next starts behind, and whatever becomes of the files, the text is that of a run without."""
import fcntl
import glob
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import time
import unittest

import driver
import server

TEST_LIMITS = "spin=100,keep=1,rows=128,wait=60000"  # batches of 128 tokens, all of them worth a file that is waited for
WORDS = "the key line chat save file model token open close press option screen document answer".split()


def text(n, seed=1):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(n))


class KvCache(server.Case):
    def setUp(self):
        super().setUp()
        self.use_ember_as_any_model()
        self.env["HEARTH_LIMITS"] = TEST_LIMITS
        self.dir = os.path.join(self.home, ".cache/hearth/kv")
        self.doc = text(430)

    def ask(self, question="What is it?", *args, doc=None, env=None, temp="1"):
        """Exit code, answer, tokens known from before, stderr."""
        rc, out, err = self.run_bin("-p", question, "--temp", temp, "--seed", "5", "-n", "12", "--stats", *args, data=doc or self.doc, env=env)
        known = [int(line.split(" tokens, ")[1].split()[0]) for line in err.splitlines() if "of them cached" in line]
        return rc, out, known[0] if known else 0, err

    def files(self):
        return sorted(glob.glob(self.dir + "/*"))

    def test_second_question(self):
        plain = {q: self.ask(q, "--kv-cache", "off") for q in ("What is it?", "Why?")}
        self.assertFalse(os.path.exists(self.dir))
        first = self.ask()
        self.assertEqual((first[0], first[2]), (0, 0), first)
        files = self.files()
        self.assertGreaterEqual(len(files), 3)
        self.assertEqual(stat.S_IMODE(os.stat(self.dir).st_mode), 0o700)
        for f in files:
            self.assertRegex(os.path.basename(f), r"^[0-9a-f]{16}\.kv$")
            self.assertEqual(stat.S_IMODE(os.stat(f).st_mode), 0o600)
        for q in plain:
            again = self.ask(q)
            self.assertEqual(again[:2], plain[q][:2])
            self.assertEqual(again[2], 384, again[3])  # the document, by whole blocks of 64 tokens
        self.assertEqual(self.files(), files)
        level = self.run_bin("--version", "-v")[1].split(b"cpu: ")[1].split()[0]  # scalar in builds with -Dsanitize=thread
        for other in (["--kv", "f32"], ["--cpu", "avx2" if level == b"scalar" else "scalar"], ["-c", "100000", "--force"]):
            self.assertEqual(self.ask("Why?", *other)[2] > 0, other[0] == "-c", other)

    def test_system_prompt_and_chats(self):
        system = ["-s", text(300, 2)]
        long = self.ask("Hello", *system, doc=" ", temp="0")
        self.assertEqual(long[2], 0)
        self.assertGreaterEqual(self.ask("Another", *system, doc=" ")[2], 256)
        self.run_bin("-p", "What is it?", "--save", "talk", "-n", "8", data=self.doc)
        rc, _, err = self.run_bin("-p", "And why?", "--continue", "talk", "-n", "8", "--stats")
        self.assertEqual(rc, 0)
        self.assertRegex(err, r"\d{3} of them cached")

    def test_off(self):
        for args in (["--kv-cache", "off"], ["--no-save"]):
            self.assertEqual(self.ask("Why?", *args)[0], 0)
            self.assertEqual(self.files(), [])
        self.assertEqual(self.ask(env={"HEARTH_KV_CACHE": "off"})[0], 0)
        self.assertEqual(self.files(), [])
        for wrong in ("much", "-3", "0", "5X", "1e", "20GB"):
            rc, _, err = self.run_bin("-p", "x", "--kv-cache", wrong)
            self.assertEqual(rc, 2, wrong)
            self.assertIn("as in 20G", err)
        shutil.rmtree(self.dir, ignore_errors=True)
        with open(self.dir, "w"):  # something else is there
            pass
        rc, out, known, err = self.ask()
        self.assertEqual((rc, known), (0, 0))
        self.assertIn("KV disk cache disabled", err)

    def kept(self):
        return set(glob.glob(self.dir + "/*.kv"))

    def test_deleted(self):
        """With a chat goes all that was read for it, whoever read it first, but for what other chats begin with, too."""
        want = self.ask("Why?", "--kv-cache", "off")[:2]
        other = text(430, 2)
        self.ask("Unsaved.")
        document = self.kept()
        self.ask("One?", "--save", "one")
        self.ask("Two?", "--save", "two")
        self.ask("And?", "--continue", "two", doc=text(300, 3))
        self.ask("Other?", "--save", "other", doc=other)
        everything = self.kept()
        self.assertGreater(len(everything), 3 * len(document) - 2)
        self.assertEqual(self.run_bin("--delete", "two")[0], 0)
        left = self.kept()
        self.assertLess(left, everything)
        self.assertLessEqual(document, left)
        self.assertEqual(self.run_bin("--delete", "one")[0], 0)
        self.assertFalse(document & self.kept())
        again = self.ask("Why?")
        self.assertEqual((again[:2], again[2]), (want, 0))  # what is read from now on is kept again
        self.assertEqual(self.ask("Why?")[2], 384)
        self.assertGreater(self.ask("More?", doc=other)[2], 0)
        self.run_bin("--save", "new", "--continue", "other", "-p", "More?", "-n", "4")
        self.run_bin("--delete", "other")
        self.assertGreater(self.ask("More?", doc=other)[2], 0)  # the new one has it
        self.run_bin("--delete", "new")
        self.assertEqual(self.ask("More?", doc=other)[2], 0)

    def test_deleted_or_said(self):
        """A deletion that meets an error says so and can be repeated; one that does not leaves nothing of the chat."""
        self.ask("Why?", "--save", "chat")
        good = {}
        for path in [self.session_file("chat"), *self.kept()]:
            with open(path, "rb") as f:
                good[path] = f.read()
        self.assertGreaterEqual(len(good), 4)

        def restore():
            for path, data in good.items():
                with open(path, "wb") as f:
                    f.write(data)
                os.chmod(path, 0o600)
        n = {"alloc": self.allocations("--delete", "chat"), "sync": 1}
        failed = dict.fromkeys(("alloc", "open", "read", "sync"), 0)
        for kind in failed:
            for at in range(1, n.get(kind, 12) + 1):
                restore()
                rc, out, err = self.run_bin("--delete", "chat", env={"HEARTH_FAULT": f"{kind}:{at}"})
                failed[kind] += rc != 0
                self.assertEqual((os.path.exists(self.session_file("chat")), "hearth: deleted chat" in err), (rc != 0, rc == 0), (kind, at, err))
                if rc == 0:
                    self.assertEqual(self.kept(), set(), (kind, at))
        self.assertTrue(all(failed.values()), failed)
        restore()
        self.assertEqual(self.run_bin("--delete", "chat")[0], 0)
        self.assertEqual(self.kept(), set())

    def stopped_writer(self, question):
        """Returns a server that has answered, and was stopped before the first of its KV files got its name."""
        s = self.serve("--temp", "1")
        self.assertEqual(self.ask("What?", "--no-save")[0], 0)  # the directory exists now
        held = os.open(self.dir, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        inode = ":%d " % os.fstat(held).st_ino
        self.assertEqual(self.ask(*question)[0], 0)

        def waits():
            with open("/proc/locks") as f:
                return any("->" in line and inode in line and f" {s.p.pid} " in line for line in f)
        self.until("a writer that waits for the lock", waits)
        s.p.send_signal(signal.SIGSTOP)

        def has_stopped():
            states = []
            for path in glob.glob(f"/proc/{s.p.pid}/task/*/stat"):
                with open(path) as f:
                    states.append(f.read().rsplit(")", 1)[1].split()[0])
            return set(states) == {"T"}
        self.until("a server that stands still", has_stopped)
        os.close(held)
        return s

    def until(self, what, is_true):
        end = time.time() + driver.PATIENCE
        while not is_true():
            self.assertLess(time.time(), end, what)
            time.sleep(0.01)

    def marks(self):
        return {f for f in self.files() if f.endswith(".no")}

    def test_forgotten_while_it_is_written(self):
        """What was read before it was deleted, and would be written after that, is not, whatever the clocks say."""
        for by in (-3600, 90000):  # seconds by which the clock is wrong when the chat is deleted
            s = self.stopped_writer(["Why?", "--save", "chat"])
            self.assertEqual((self.kept(), self.marks()), (set(), set()))
            self.assertEqual(self.run_bin("--delete", "chat")[0], 0)
            marks = self.marks()
            self.assertGreaterEqual(len(marks), 3)
            for m in marks:
                os.utime(m, (time.time() + by,) * 2)
            s.p.send_signal(signal.SIGCONT)
            self.ask("And this?", doc=text(430, 7))
            s.settles("written", lambda _: self.kept())  # and what was queued before
            self.assertFalse({m[:-3] for m in marks} & {f[:-3] for f in self.kept()}, by)
            self.assertEqual(self.ask("Another", "--no-attach")[0], 0)  # marks hold while an engine is open
            self.assertLessEqual(marks, self.marks())
            self.assertTrue({m[:-3] for m in marks} & {f[:-3] for f in self.kept()})  # what is read from now on is kept again
            s.end()
            for f in self.kept():
                os.unlink(f)
            self.ask("Why?")
            self.assertEqual(self.marks(), set())  # they go with the first engine that is alone
            self.assertGreaterEqual(len(self.kept()), 3)
            for f in self.kept():
                os.unlink(f)

    def test_forgotten_by_nobody(self):
        """Without an open engine nothing can be written: no mark is left."""
        self.ask("Why?", "--save", "chat")
        self.assertTrue(self.kept())
        self.assertEqual(self.run_bin("--delete", "chat")[0], 0)
        self.assertEqual(self.files(), [])

    def test_clock_set_back(self):
        """Files that seem to be of the future are evicted in their order, and what is used now comes after them."""
        old = []
        for seed in (3, 4):
            self.ask(doc=text(430, seed))
            old.append(self.kept() - set().union(*old))
            for f in old[-1]:
                os.utime(f, (time.time() + (3 + seed) * 365 * 86400,) * 2)
        n, size = len(old[0]), os.path.getsize(self.files()[0])
        self.assertGreaterEqual(n, 3)
        limit = ["--kv-cache", str(2 * n * size + 100)]
        self.assertEqual(self.ask("Why?", *limit, doc=text(430, 5))[0], 0)
        self.assertEqual([len(files & self.kept()) for files in old], [0, n])  # the latest use stays
        self.assertEqual(self.ask("Why?", *limit, doc=text(430, 5))[2], 384)
        for f in self.files():
            self.assertLess(os.path.getmtime(f), time.time() + 60)

    def test_deleted_at_a_terminal(self):
        """Also what was taken back, and of a chat whose process was killed before its answer had ended."""
        where = os.path.join(self.home, "doc.txt")
        other = os.path.join(self.home, "other.txt")
        for path in (where, other):
            with open(path, "w") as f:
                f.write(self.doc)
        t = self.terminal("-n", "4", "--temp", "0")
        at = t.prompt()
        for what in ("/read " + where, "one", "/undo", "/read " + other, "two", "three", "/close", "/delete doc-txt-one"):
            t.send(what + "\r")
            at = t.prompt(at)
        t.until("deleted doc-txt-one")
        self.assertEqual(self.run_bin("--list")[1], b"")
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        self.assertEqual(self.kept(), set())
        t = self.terminal("--temp", "5", "--seed", "1")
        at = t.prompt()
        t.send(f"/read {where}\r")
        at = t.prompt(at)
        t.send("go on\r")
        until = time.time() + driver.PATIENCE
        while len(self.kept()) < 2 and time.time() < until:
            t.read(0.01)
        t.p.kill()
        t.p.wait()
        self.assertTrue(self.kept())
        name = json.loads(self.run_bin("--list", "--json")[1])[0]["name"]
        self.assertEqual(self.run_bin("--delete", name)[0], 0)
        self.assertEqual(self.kept(), set())

    def test_resident(self):
        """The engine of another process keeps nothing that --no-save asks, and forgets what a deleted chat had."""
        s = self.serve("--temp", "1")
        at = lambda: s.status()["answered"]
        self.assertEqual(self.ask("Why?", "--no-save")[0], 0)
        self.assertEqual(s.request("POST", "/v1/chat/completions", {**server.ask(self.doc, max_tokens=3), "store": False})[0], 200)
        self.assertEqual((at(), self.kept()), (2, set()))
        self.ask("Why?", "--save", "chat", doc=text(430, 8))
        s.settles("written", lambda _: len(self.kept()) > 2)
        self.assertEqual(at(), 3)
        self.assertEqual(self.run_bin("--delete", "chat")[0], 0)
        self.assertEqual(self.kept(), set())
        self.assertGreater(self.ask("Once more?", doc=text(430, 8))[2], 0)  # from its memory
        s.end()
        self.assertEqual(self.kept(), set())

    def test_limit(self):
        self.ask()
        size = os.path.getsize(self.files()[0])
        limit = 2 * size + 100
        for seed in (3, 4, 5):
            self.assertEqual(self.ask("Why?", "--kv-cache", str(limit), doc=text(430, seed))[0], 0)
            self.assertLessEqual(sum(map(os.path.getsize, self.files())), limit)
            self.assertTrue(self.files())
        kept = self.ask("Why?", "--kv-cache", str(limit), doc=text(430, 5))  # the beginning is what is left
        self.assertGreaterEqual(kept[2], 128)

    def test_damage(self):
        want = self.ask("Why?", "--kv-cache", "off")[:2]
        self.ask()
        good = {}
        for name in self.files():
            with open(name, "rb") as f:
                good[name] = f.read()
        names = list(good)
        r = random.Random(7)

        def flip(at):
            return lambda b: b[:at(b)] + bytes([b[at(b)] ^ 1 << r.randrange(8)]) + b[at(b) + 1:]
        cases = [flip(lambda b, x=x: x % len(b)) for x in (0, 8, 20, 33, 41, 57, 75, 400, 5000, 60000, -1)]
        cases += [lambda b: b[:-1], lambda b: b + b"\0", lambda b: b"", lambda b: b[:100], lambda b: b[:5000], lambda b: bytes(len(b)),
                  lambda b: good[names[1]] if b != good[names[1]] else good[names[0]]]
        damaged = 0
        for k, case in enumerate(cases):
            for i, name in enumerate(names):
                wrong = case(good[name]) if i == k % len(names) else good[name]
                with open(name, "wb") as f:
                    f.write(wrong)
            rc, out, known, err = self.ask("Why?")
            self.assertEqual((rc, out), want, k)
            if "was deleted" in err:
                damaged += 1
                self.assertIn("prefilled again", err)
        self.assertGreaterEqual(damaged, len(cases) - 1)  # bytes behind the last row belong to nobody
        for name in names:
            os.path.exists(name) and os.unlink(name)
            os.symlink("/etc/passwd", name)
        self.assertEqual(self.ask("Why?")[:2], want)

    def test_places_of_others(self):
        """What other users could have written is not read."""
        want = self.ask("Why?", "--kv-cache", "off")[:2]
        self.ask()
        first = [f for f in self.files() if os.path.getmtime(f) == max(map(os.path.getmtime, self.files()))][0]
        changes = [lambda: os.chmod(first, 0o620), lambda: os.chmod(first, 0o602)]
        if os.geteuid() == 0:
            changes.append(lambda: os.chown(first, 65534, 65534))
        for change in changes:
            change()
            rc, out, known, err = self.ask("Why?")
            self.assertEqual(((rc, out), known), (want, 0))
            self.assertIn(os.path.basename(first) + ": not a regular file that only this user can write", err)
            os.unlink(first)
            self.ask()
        for mode in (0o777, 0o720, 0o702):
            os.chmod(self.dir, mode)
            rc, out, known, err = self.ask("Why?")
            self.assertEqual(((rc, out), known), (want, 0))
            self.assertIn(self.dir + ": writable by other users", err)

    def test_kill(self):
        want = self.ask("Why?", "--kv-cache", "off")[:2]
        for kind in ("open", "write", "rename"):
            killed, n = 0, 1
            while True:
                for f in self.files():
                    os.unlink(f)
                rc = self.ask("Why?", env={"HEARTH_FAULT": f"{kind}:{n}!"})[0]
                self.assertIn(rc, (0, -signal.SIGKILL))
                killed += rc != 0
                for f in self.files():
                    self.assertRegex(os.path.basename(f), r"^[0-9a-f]{16}\.kv$")
                if rc and kind != "open":
                    after = self.ask("Why?")
                    self.assertEqual(after[:2], want)
                    self.assertNotIn("removed", after[3])  # nothing half-written is ever there
                if not rc:
                    break
                n += 1 if kind != "open" else 5
            self.assertGreaterEqual(killed, 1 if kind == "open" else 3, kind)

    def test_disk_full(self):
        want = self.ask("Why?", "--kv-cache", "off")[:2]
        said = {"write": 0, "rename": 0}
        # Which write fails at n hangs on how fast the files are written beside the answer: all of both are swept.
        for fault in [f"write:{n}" for n in range(1, 17)] + ["rename:1", "rename:2+"]:
            for f in self.files():
                os.unlink(f)
            rc, out, known, err = self.ask("Why?", "--no-stream", env={"HEARTH_FAULT": fault})
            if fault[0] == "w" and rc == 1 and "stdout" in err:
                continue  # that was the answer's own
            self.assertEqual((rc, out), want, fault)
            said[fault.split(":")[0]] += err.count("no longer writing the KV cache")
            self.assertEqual(self.ask("Why?")[:2], want)
        self.assertGreaterEqual(said["write"], 1)
        self.assertGreaterEqual(said["rename"], 1)

    def test_two_processes(self):
        docs = [text(430, 10), text(430, 11)]
        want = [self.ask("Why?", "--kv-cache", "off", doc=d)[1] for d in docs]
        self.ask()
        limit = str(3 * os.path.getsize(self.files()[0]) + 100)  # they take each other's files away
        for _ in range(2):
            running = [(k, subprocess.Popen([driver.BIN, "-p", "Why?", "--temp", "1", "--seed", "5", "-n", "12", "--kv-cache", limit], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.env)) for k in (0, 1, 0, 1)]
            for k, p in running:
                p.stdin.write(docs[k].encode())
                p.stdin.close()
            for k, p in running:
                out, err = p.stdout.read(), p.stderr.read()
                p.stdout.close(), p.stderr.close()
                self.assertEqual((p.wait(), out), (0, want[k]), err)


if __name__ == "__main__":
    unittest.main()
