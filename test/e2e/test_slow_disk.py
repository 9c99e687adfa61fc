"""A home without locks or unnamed files, and a disk that does not respond: the chat continues, and no chat is reported as saved, or left, before it is. fsync blocks until a file
exists, so the test depends on order and not on time."""
import json
import os
import signal
import subprocess
import time

import driver
import server

MODULE = os.environ["SLOW_SYNC_MODULE"]


class SlowDisk(driver.Case):
    def setUp(self):
        super().setUp()
        if os.environ["SANITIZE"] != "none":
            self.skipTest("a sanitizer's runtime has to come before all other libraries")
        self.gate = os.path.join(self.home, "gate")

    def chat(self, *args):
        t = self.terminal(*args, env={"LD_PRELOAD": MODULE, "SLOW_SYNC": self.gate})
        t.prompt()
        return t

    def ask(self, t, text, prompt="> "):
        at = len(t.out)
        t.send(text + "\r")
        return t.prompt(t.until("You said: " + text, at), prompt)

    def open_gate(self):
        with open(self.gate, "w"):
            pass

    def save(self, t, command):
        """Saves with the gate closed: no success is reported before it opens."""
        at = len(t.out)
        t.send(command + "\r")
        t.quiet(1.5)
        self.assertNotIn(b"saved as", t.out[at:])
        self.open_gate()
        t.prompt(t.until("saved as kept", at), "kept> ")

    def saved(self, name):
        path = self.session_file(name)
        if not os.path.exists(path):
            return None
        with open(path) as f:
            return [m["content"] for m in json.load(f)["body"]["messages"]]

    def test_chat_goes_on(self):
        t = self.chat()
        for text in ("one", "two", "three"):
            self.ask(t, text)
        self.assertIsNone(self.saved("one"))
        t.send("/bye\r")
        t.quiet()
        self.assertIsNone(t.p.poll())
        self.open_gate()
        self.assertEqual(t.wait(), 0)
        self.assertEqual(self.saved("one"), ["one", "You said: one", "two", "You said: two", "three", "You said: three"])
        self.assertEqual(os.listdir(os.path.dirname(self.session_file("x"))), ["one.json"])

    def test_keys_are_heard(self):
        t = self.chat()
        self.ask(t, "one")
        at = len(t.out)
        t.send("typed")
        t.until(rb"typed\r\x1b\[7C", at)
        self.assertIsNone(self.saved("one"))
        self.open_gate()

    def test_saved_means_saved(self):
        t = self.chat()
        self.ask(t, "one")
        self.save(t, "/save kept")
        self.assertEqual(self.saved("kept"), ["one", "You said: one"])
        self.assertIsNone(self.saved("one"))

    def test_saved_again_means_saved(self):
        self.open_gate()
        t = self.chat()
        self.ask(t, "one")
        at = len(t.out)
        t.send("/save kept\r")
        t.prompt(t.until("saved as kept", at), "kept> ")
        os.unlink(self.gate)
        self.ask(t, "two", "kept> ")
        self.save(t, "/save")
        self.assertEqual(self.saved("kept"), ["one", "You said: one", "two", "You said: two"])

    def test_closed_means_saved(self):
        """Another process that opens the chat, or the same one, finds the last message."""
        t = self.chat()
        self.ask(t, "one")
        at = len(t.out)
        t.send("/close\r/load one\r")
        t.quiet()
        self.open_gate()
        t.prompt(t.until("You said: one", at), "one> ")
        self.ask(t, "two", "one> ")

    def test_terminated(self):
        for sig in (signal.SIGTERM, signal.SIGHUP):
            t = self.chat()
            self.ask(t, "one")
            t.p.send_signal(sig)
            t.quiet()
            self.assertIsNone(t.p.poll())
            self.open_gate()
            self.assertEqual(t.wait(), -sig)
            self.assertTrue(t.restored())
            self.assertEqual(self.saved("one"), ["one", "You said: one"])
            self.tearDown()
            self.setUp()

    def test_ended_at_once(self):
        """A second signal does not wait for the disk forever; the file is the old one, with nothing partial."""
        t = self.chat()
        self.ask(t, "one")
        t.p.send_signal(signal.SIGTERM)
        time.sleep(0.3)  # two signals at once count as one
        t.p.send_signal(signal.SIGTERM)
        self.assertEqual(t.wait(), -signal.SIGTERM)
        self.assertTrue(t.restored())
        self.assertIsNone(self.saved("one"))
        self.open_gate()

    def test_no_locks(self):
        """Chats are saved and an engine is shared where the file system has no locks, and a note says what that means."""
        env = {"LD_PRELOAD": MODULE, "NO_LOCKS": "1"}
        for option, n in (("--save", 1), ("--resume", 2)):
            rc, out, err = self.run_bin(option, "one", "-p", "hi", env=env)
            self.assertEqual((rc, out, self.saved("one")), (0, b"You said: hi\n", ["hi", "You said: hi"] * n))
            self.assertEqual(err.count("sessions: the file system has no locks (No locks available); do not open a conversation in two hearths at once"), 1, err)
        self.assertEqual(self.run_bin("--delete", "one", env=env)[0], 0)
        s = server.Server({**self.env, **env})
        self.assertIn("already running", self.run_bin("--serve", env=env)[2])
        self.assertEqual(s.chat("x")[0], 200)
        s.end()
        s = server.Server({**self.env, **env})  # a socket that nobody serves is no engine
        s.end()

    def test_no_unnamed_files(self):
        """Where the file system has none, KV files are written under another name, which a later start removes if the engine died."""
        self.use_ember_as_any_model()
        env = {**self.env, "LD_PRELOAD": MODULE, "NO_TMPFILE": "1", "HEARTH_LIMITS": "spin=100,keep=1,rows=128,wait=60000"}
        kv = os.path.join(self.home, ".cache/hearth/kv")

        def ask(rc=0, **more):
            p = subprocess.run([os.environ["HEARTH_PROGRAM"], "-p", "What is it?", "-n", "4", "--stats"], env={**env, **more}, input=b"the key line " * 150, capture_output=True)
            self.assertEqual(p.returncode, rc, p.stderr)
            self.assertNotIn(b"no longer writing", p.stderr)
            return b"of them cached" in p.stderr, {n[16:] for n in os.listdir(kv)}
        self.assertEqual(ask(-signal.SIGKILL, HEARTH_FAULT="rename:1!"), (False, {"", ".pa"}))
        self.assertEqual(ask(), (False, {"", ".kv"}))
        self.assertEqual(ask(), (True, {"", ".kv"}))


if __name__ == "__main__":
    driver.unittest.main()
