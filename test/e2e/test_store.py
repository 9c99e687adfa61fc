"""Chats on disk: readable by the user only, old or new version after any failure, one writer. Runs on the fake engine."""
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import time

import driver


class Store(driver.Case):
    def begin(self, name="talk"):
        self.assertEqual(self.run_bin("--save", name, "-p", "one")[0], 0)
        return self.session_file(name)

    def messages(self, path):
        with open(path) as f:
            return [m["content"] for m in json.load(f)["body"]["messages"]]

    def test_save_and_continue(self):
        path = self.begin()
        self.assertEqual(self.messages(path), ["one", "You said: one"])
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode), 0o700)
        self.assertEqual(self.run_bin("--continue", "talk", "-p", "two")[:2], (0, b"You said: two\n"))
        self.assertEqual(self.messages(path), ["one", "You said: one", "two", "You said: two"])
        self.assertEqual(os.listdir(os.path.dirname(path)), ["talk.json"])

    def test_clock_set_back(self):
        """--last and --list go by what was saved last, also if an earlier save has a time of the future."""
        first, second = self.begin("first"), self.begin("second")
        for k, (name, path) in enumerate((("first", first), ("second", second), ("first", first))):
            other = second if path == first else first
            os.utime(other, (time.time() + 3600 * (k + 1),) * 2)
            self.assertEqual(self.run_bin("--continue", name, "-p", "more")[0], 0)
            self.assertEqual([row["name"] for row in json.loads(self.run_bin("--list", "--json")[1])][0], name)
            self.assertEqual(self.run_bin("--last", "-p", f"again {k}")[0], 0)
            self.assertIn(f"again {k}", self.messages(path))
        os.utime(second, (1, 1))
        self.assertEqual(self.run_bin("--continue", "first", "-p", "more")[0], 0)
        self.assertLess(os.path.getmtime(first), time.time() + 60)  # no other is of the future now

    def test_deletion_lasts(self):
        """A deletion is on the disk before it is acknowledged; a world (test/world) shows that nothing else is needed."""
        path = self.begin()
        rc, out, err = self.run_bin("--delete", "talk", env={"HEARTH_FAULT": "sync:1"})
        self.assertEqual((rc, os.path.exists(path)), (1, False))
        self.assertIn("talk.json: removed, but may be there again after a power loss", err)

    def test_saved_in_one_second(self):
        for name in ("b", "a"):
            self.begin(name)
        at = 1700000000 * 10**9
        os.utime(self.session_file("a"), ns=(at + 1, at + 1))
        os.utime(self.session_file("b"), ns=(at + 2, at + 2))
        self.assertEqual([row["name"] for row in json.loads(self.run_bin("--list", "--json")[1])], ["b", "a"])

    def test_texts_control_no_terminal(self):
        """A conversation may come from anywhere: its texts and its file's name reach a terminal without control characters."""
        evil = "A\x1b[31mred\x1b]0;title\x07B\b\bC\u009b31mE\x7f\u202e."
        self.assertEqual(self.run_bin("--save", "talk", "-p", evil)[0], 0)
        folder = os.path.dirname(self.session_file("talk"))
        shutil.copy(self.session_file("talk"), os.path.join(folder, "b\x1b]0;name\x07\u202e.json"))
        self.assertIn("\x1b]0;title", self.messages(self.session_file("talk"))[0])  # it is saved as it was typed

        def harmless(t):
            self.assertIn("title", t.out.decode())
            for bad in (b"\x1b]0", b"\x1b[31mred", b"\x07", b"\b\b", b"\xc2\x9b", "\u202e".encode()):
                self.assertNotIn(bad, t.out)
        t = self.terminal("--list")
        self.assertEqual(t.wait(), 0)
        harmless(t)
        t = self.terminal("--continue", "talk", "--no-attach")
        at = t.prompt(text="talk> ")
        for command in ("/sessions", "/list", "/history", "/search title", "/show"):
            t.send(command + "\r")
            at = t.prompt(at, text="talk> ")
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        harmless(t)
        t = self.terminal("-r")
        t.until("Number or name")
        t.send("\x04")
        t.wait()
        harmless(t)

    def test_names(self):
        self.begin()
        rc, out, err = self.run_bin("--save", "talk", "-p", "x")
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("--continue talk", err)
        self.assertEqual(self.run_bin("--continue", "none", "-p", "x")[0], 1)
        for bad in ("../x", "a/b", ".hidden", "a b", ""):
            self.assertEqual(self.run_bin("--save", bad, "-p", "x")[:2], (2, b""))

    def test_two_writers(self):
        self.begin()
        t = self.terminal("--continue", "talk")
        t.prompt(text="talk> ")
        rc, out, err = self.run_bin("--continue", "talk", "-p", "x")
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("open in another hearth", err)
        t.send("\x04")
        t.wait()
        self.assertEqual(self.run_bin("--continue", "talk", "-p", "x")[0], 0)

    def test_damaged(self):
        path = self.begin()
        with open(path, "rb") as f:
            good = f.read()
        every = (b"", good[:-10], good.replace(b"one", b"two", 1), good.replace(b'"version": 1', b'"version": 0'), b"\xff" * 200)
        asides = [path[:-5] + ".damaged" + number for number in ("", "-2", "-3", "-4", "-5")]
        for bad, aside in zip(every, asides):
            with open(path, "wb") as f:
                f.write(bad)
            rc, out, err = self.run_bin("--continue", "talk", "-p", "new")
            self.assertEqual((rc, out), (1, b""))
            self.assertRegex(err, f"talk: .*; the file was renamed to {aside}\n")
            self.assertFalse(os.path.exists(path))
        for bad, aside in zip(every, asides):  # no later one replaces an earlier one
            with open(aside, "rb") as f:
                self.assertEqual(f.read(), bad)

    def test_newer_version(self):
        """A conversation that a newer hearth saved is not damaged: it stays where it is, and unchanged."""
        path = self.begin()
        with open(path, "rb") as f:
            good = f.read()
        for version in (b"3", b"10"):
            newer = good.replace(b'"version": 1', b'"version": ' + version)
            with open(path, "wb") as f:
                f.write(newer)
            rc, out, err = self.run_bin("--continue", "talk", "-p", "new")
            self.assertEqual((rc, out), (1, b""))
            self.assertIn("talk: saved by a newer version of hearth", err)
            with open(path, "rb") as f:
                self.assertEqual(f.read(), newer)
            self.assertIn(b"talk of a newer hearth, ", self.run_bin("--list")[1].replace(b"  ", b" "))
        self.assertEqual(os.listdir(os.path.dirname(path)), ["talk.json"])

    def test_unreadable(self):
        """What cannot be read is not called damaged."""
        with open(self.begin(), "r+b") as f:
            f.truncate(1 << 29)
        self.assertIn(b"talk cannot be read, ", self.run_bin("--list")[1].replace(b"  ", b" "))

    def test_no_file(self):
        """What bears the name of a conversation and is no file is named as such."""
        os.mkdir(self.begin().replace("talk", "folder"))
        for args in (("--continue", "folder", "-p", "x"), ("--delete", "folder")):
            rc, out, err = self.run_bin(*args)
            self.assertEqual((rc, out), (1, b""))
            self.assertIn("folder.json: no conversation, since it is not a file", err)

    def test_linked_files(self):
        """A session or a configuration that is a symbolic link stays one, and a full disk loses neither it nor its contents."""
        session, config = self.begin(), self.write(".config/hearth/config", "temp = 0.5\n")
        for path, args, old in ((session, ("--continue", "talk", "-p", "two"), '"one"'), (config, ("--use", "ember"), "temp = 0.5")):
            target = self.write("elsewhere/" + os.path.basename(path), "")
            os.replace(path, target)
            os.symlink(target, path)
            self.assertEqual(self.run_bin(*args, env={"HEARTH_FAULT": "write:1+"})[0], 1, path)
            with open(path) as f:
                self.assertIn(old, before := f.read())
            self.assertEqual(self.run_bin(*args)[0], 0, path)
            with open(path) as f:
                self.assertNotEqual(f.read(), before)
            self.assertTrue(os.path.islink(path))
        self.assertEqual(sorted(os.listdir(os.path.join(self.home, "elsewhere"))), ["config", "talk.json"])

    def test_killed_while_saving(self):
        """SIGKILL at each write, sync and rename in turn: the file is the old or the new one."""
        path = self.begin()
        with open(path, "rb") as f:
            old = f.read()
        seen = set()
        for kind in ("write", "sync", "rename"):
            for nth in range(1, 20):
                with open(path, "wb") as f:
                    f.write(old)
                rc, out, err = self.run_bin("--continue", "talk", "-p", "two", env={"HEARTH_FAULT": f"{kind}:{nth}!"})
                seen.add(len(self.messages(path)))
                self.assertIn(self.messages(path), (["one", "You said: one"], ["one", "You said: one", "two", "You said: two"]))
                if rc == 0:
                    break
                self.assertEqual(rc, -9)
            else:
                self.fail(f"{kind}: never got through")
            self.assertEqual(self.messages(path)[-1], "You said: two")
        self.assertEqual(seen, {2, 4})

    def test_failing_io(self):
        """Each write (to the terminal too), sync, rename, open and read fails in turn, alone and with all later ones: the complete answer,
        or a part of it, a message and another exit code; the file is the old one or the complete new one; a failed save is reported."""
        path = self.begin()
        with open(path, "rb") as f:
            old = f.read()
        for kind in ("write", "sync", "rename", "open", "read"):
            lost = 0
            for nth in range(1, 30):
                for forever in ("+", ""):
                    with open(path, "wb") as f:
                        f.write(old)
                    what, mute = kind + ":" + str(nth) + forever, (kind, forever) == ("write", "+")
                    rc, out, err = self.run_bin("--continue", "talk", "-p", "two", env={"HEARTH_FAULT": what})
                    saved = len(self.messages(path)) == 4
                    with open(path, "rb") as f:
                        self.assertTrue(saved or f.read() == old, what)
                    if out == b"You said: two\n":
                        self.assertTrue(saved or mute or (rc == 1 and "not saved" in err), (what, rc, err))
                    else:
                        self.assertIn(rc, (1, 3), what)
                        self.assertTrue(b"You said: two\n".startswith(out), what)
                        self.assertTrue(mute or err.startswith("hearth: "), (what, err))
                    self.assertEqual([n for n in os.listdir(os.path.dirname(path)) if not n.startswith("talk.")], [], what)
                    lost += not saved
                if saved and rc == 0 and not err:
                    break
            else:
                self.fail(f"{kind}: never got through")
            self.assertGreater(lost, 0, kind)

    def test_full_disk(self):
        """A requested save that cannot be: said before the answer is computed. One that fails later: reported, and no success; the answer still comes."""
        full = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))}
        rc, out, err = self.run_bin("--save", "talk", "-p", "one", **full)
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("not answered, since the conversation could not be saved: ", err)
        rc, out, err = self.run_bin("--save", "talk", "-p", "one", "--json", **full)
        self.assertEqual((rc, json.loads(out)["error"]["code"]), (1, 1))
        self.assertEqual(os.listdir(os.path.dirname(self.session_file("talk"))), [])
        rc, out, err = self.run_bin("--save", "talk", "-p", "one", env={"HEARTH_FAULT": "sync:1+"})
        self.assertEqual((rc, out), (1, b"You said: one\n"))
        self.assertIn("not saved", err)
        rc, out, err = self.run_bin("--save", "talk", "-p", "one", "--json", env={"HEARTH_FAULT": "sync:1+"})
        self.assertEqual((rc, json.loads(out)["text"]), (1, "You said: one"))
        self.assertEqual(os.listdir(os.path.dirname(self.session_file("talk"))), [])

    def test_left_by_a_kill(self):
        """The temporary file of a killed hearth is removed at the next start, whatever that does; one in use is kept."""
        path = self.begin()
        folder = os.path.dirname(path)
        self.assertEqual(self.run_bin("--continue", "talk", "-p", "two", env={"HEARTH_FAULT": "rename:1!"})[0], -9)
        self.assertEqual(len([n for n in os.listdir(folder) if n.startswith("talk.json.")]), 1)
        t = self.terminal("--continue", "talk")
        t.prompt(text="talk> ")
        names = ["talk.json.abc123", "gone.json.ABCdef", "gone.lock", "damaged.damaged", "notes.json.txt", "a.json.b.json"]
        for name in names:
            with open(os.path.join(folder, name), "w") as f:
                f.write("secret")
        self.assertEqual(self.run_bin("--save", "other", "-p", "x")[0], 0)
        left = {"talk.json", "talk.lock", "other.json", "talk.json.abc123", "damaged.damaged", "notes.json.txt", "a.json.b.json"}
        self.assertEqual(set(os.listdir(folder)), left)
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        t = self.terminal()
        t.prompt()
        self.assertEqual(set(os.listdir(folder)), left - {"talk.lock", "talk.json.abc123"})

    def test_lock_is_no_link(self):
        path = self.begin()
        target = os.path.join(self.home, "target")
        os.symlink(target, path[:-5] + ".lock")
        rc, out, err = self.run_bin("--continue", "talk", "-p", "x")
        self.assertEqual((rc, out), (0, b"You said: x\n"))
        self.assertIn("talk.lock", err)
        self.assertFalse(os.path.lexists(target))

    def test_failing_allocations(self):
        """Every allocation fails once: an answer or an error, never a crash."""
        path = self.begin()
        with open(path, "rb") as f:
            old = f.read()
        for nth in range(1, 400):
            with open(path, "wb") as f:
                f.write(old)
            rc, out, err = self.run_bin("--continue", "talk", "-p", "two", env={"HEARTH_FAULT": f"alloc:{nth}"})
            self.assertIn(rc, (0, 1, 2, 3, 4, 5), (nth, err))
            self.assertIn(len(self.messages(path)), (2, 4))
            if nth > 20 and rc == 0 and not err and nth % 7 == 0:
                count = subprocess.run([driver.BIN, "--continue", "talk", "-p", "two"], env={**self.env, "HEARTH_FAULT": f"alloc:{nth}+"}, capture_output=True)
                if count.returncode == 0 and not count.stderr:
                    break
        else:
            self.fail("never got through")

    def test_no_home(self):
        rc, out, err = self.run_bin("--save", "x", "-p", "hi", env={"HOME": ""})
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("nothing can be saved", err)
        self.assertEqual(self.run_bin("-p", "hi", env={"HOME": "/nonexistent"}), (0, b"You said: hi\n", ""))

    def test_xdg(self):
        other = os.path.join(self.home, "elsewhere")
        self.run_bin("--save", "x", "-p", "hi", env={"XDG_DATA_HOME": other})
        self.assertTrue(os.path.exists(other + "/hearth/sessions/x.json"))


class Kept(driver.ChatCase):
    """The last one-shot answer of a person is kept for --last."""

    def kept(self):
        folder = os.path.dirname(self.session_file("x"))
        return sorted(n for n in os.listdir(folder) if n.endswith(".json")) if os.path.isdir(folder) else []

    def on_terminal(self, *args):
        t = self.terminal(*args)
        self.assertEqual(t.wait(), 0)
        return t

    def test_last(self):
        self.on_terminal("-p", "one question")
        self.on_terminal("-p", "another question")
        self.assertEqual(self.kept(), ["(last).json"])
        self.assertIn(b"another question", self.run_bin("--list")[1])
        rc, out, err = self.run_bin("--last", "-p", "prompt x")
        self.assertEqual((rc, out), (0, b"[user]another question[assistant]You said: another question[user]prompt x[assistant]\n"))
        self.assertEqual(self.kept(), ["another-question.json"])  # a conversation of its own now
        self.on_terminal("-p", "loaded")
        t = self.chat()
        self.ask(t, "/load (last)", "You said: loaded", "loaded> ")
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        os.unlink(self.session_file("loaded"))
        self.on_terminal("-p", "a third")
        self.assertEqual(self.kept(), ["(last).json", "another-question.json"])
        os.utime(self.session_file("another-question"), (1, 1))
        t = self.terminal("--last")
        t.until("a third")
        t.prompt(text="a-third> ")
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        self.assertEqual(self.kept(), ["a-third.json", "another-question.json"])

    def test_pipe(self):
        """A document that was piped in, with its question; also where only stderr is a terminal."""
        master, slave = os.openpty()
        self.addCleanup(os.close, master)
        self.assertEqual(subprocess.run([driver.BIN, "-p", "summarise"], input=b"the document", stdout=subprocess.PIPE, stderr=slave, env=self.env).returncode, 0)
        os.close(slave)
        self.assertIn(b"the document", self.run_bin("--last", "-p", "prompt x")[1])

    def test_not_kept(self):
        """In scripts, with --no-save, without a prompt template, after a failure, and in a directory that cannot be written."""
        self.assertEqual(self.run_bin("-p", "x")[0], 0)
        self.on_terminal("-p", "x", "--no-save")
        self.on_terminal("-p", "x", "--raw")
        self.on_terminal("-p", "x", "--save", "named")
        t = self.terminal("-p", "fail")
        self.assertEqual(t.wait(), 1)
        self.assertEqual(self.kept(), ["named.json"])
        t = self.terminal("-p", "x", env={"HEARTH_FAULT": "rename:1"})
        self.assertEqual(t.wait(), 0)
        self.assertEqual(self.kept(), ["named.json"])


if __name__ == "__main__":
    driver.unittest.main()
