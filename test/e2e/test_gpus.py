"""Which GPUs are used without being named: --gpus auto, the default, and --check-gpus, on emulated devices that only tests find, and on the fake engine."""
import json
import os
import signal
import threading
import time
import unittest

import driver
import server


def is_a_check(pid, home):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            words = f.read().split(b"\0")
        with open(f"/proc/{pid}/environ", "rb") as f:
            return b"--check-gpus" in words and f"HOME={home}".encode() in f.read().split(b"\0")
    except OSError:
        return False


def checks(home):
    """The running checks that programs of a home have started."""
    return [int(p) for p in os.listdir("/proc") if p.isdigit() and is_a_check(p, home)]


class Gpus(driver.Case):
    def setUp(self):
        super().setUp()
        self.use_ember_as_any_model()
        self.limits = self.env.get("HEARTH_LIMITS", "")
        self.stored = os.path.join(self.home, ".cache/hearth/gpus")

    def find(self, n, more=""):
        """Lets the program find n emulated devices."""
        self.env["HEARTH_LIMITS"] = ",".join(filter(None, [self.limits, f"found={n}" if n else "", more]))

    def devices(self, *args):
        """Answers a question; returns whether devices took part, and the text."""
        rc, out, err = self.run_bin("-p", "What is it?", "--temp", "0", "-n", "8", "--explain", *args)
        self.assertIn(rc, (0, 4), err)
        placed = err.split("on devices: ")[1]
        self.assertEqual("(no devices)" in placed, "parts and head of all" not in placed and "lost" not in placed, err)
        return "(no devices)" not in placed, out

    def check(self, *args):
        rc, out, err = self.run_bin("--check-gpus", *args)
        return rc, out.decode(), err

    def read_stored(self):
        with open(self.stored, encoding="utf-8") as f:
            return f.read()

    def test_checked_devices_are_used(self):
        used, text = self.devices()
        self.assertFalse(used)
        self.find(1)
        self.assertFalse(self.devices()[0])  # not checked yet
        self.assertEqual(self.devices("--gpus", "auto"), (True, text))
        self.assertFalse(os.path.exists(self.stored))
        rc, out, err = self.check()
        self.assertEqual(rc, 0, err)
        self.assertEqual([line.split()[:3] for line in out.splitlines()], [[*what, "right:"] for mode in ("blend", "slp") for what in (("prefill", mode), ("decode", "hybrid"))])
        self.assertIn("are used from now on", err)
        self.assertTrue(self.read_stored().startswith("right: hearth"))
        self.assertEqual(self.devices(), (True, text))
        self.assertFalse(self.devices("--gpus", "none")[0])
        self.assertEqual(len(json.loads(self.run_bin("--inspect", "--json")[1])["runs"]["gpus"]), 1)
        model = self.env.pop("HEARTH_MODEL")
        self.assertIn("no device (expected", self.run_bin("-p", "What is it?", "-n", "8", "--explain")[2])  # the built-in model needs none
        self.env["HEARTH_MODEL"] = model
        with open(self.stored, "w", encoding="utf-8") as f:
            f.write("right: hearth 0.0.1, emu: emulated devices, any number\n")
        self.assertFalse(self.devices()[0])
        self.find(0)
        self.assertFalse(self.devices("--gpus", "auto")[0])
        rc, out, err = self.run_bin("-p", "x", "--gpus", "auto", "--prefill", "slp")
        self.assertEqual((rc, out), (2, b""))
        self.assertIn("needs a device", err)
        rc, out, err = self.check()
        self.assertEqual((rc, out), (2, ""))
        self.assertRegex(err, r"no GPU that hearth can use \(cuda: (not in this build|no )", err)

    def test_measurements_use_none(self):
        self.find(1)
        self.assertEqual(self.check()[0], 0)
        for args, used in ((("--tokens", "5,6,7", "--ids", "-n", "3", "--explain"), False), (("--tokens", "5,6,7", "--ids", "-n", "3", "--explain", "--gpus", "auto"), True)):
            rc, out, err = self.run_bin(*args)
            self.assertEqual(rc, 0, err)
            self.assertEqual("(no devices)" in err, not used, err)

    def test_several_devices(self):
        self.find(2)
        rc, out, err = self.check()
        self.assertEqual(rc, 0, err)
        self.assertIn("prefill dslp", out)
        self.assertEqual(out.count("right: "), 6)
        self.assertEqual(out.count("24 of 24 tokens"), 3)

    def test_other_results(self):
        """Results that differ: exit 1, and no use by default even of devices that were right before."""
        self.find(1)
        self.assertEqual(self.check()[0], 0)
        self.find(1, "differ=1")
        rc, out, err = self.check()
        self.assertEqual((rc, out.count("WRONG: ")), (1, 4), out + err)
        self.assertIn("do not use them", err)
        self.assertTrue(self.read_stored().startswith("wrong: hearth"))
        self.assertFalse(self.devices()[0])

    def test_failures(self):
        for options, stored in (("fail=launch:50", True), ("fail=die:90", True), ("mem=1M", False)):
            self.find(1)
            rc, out, err = self.check("--gpus", "auto," + options)
            self.assertEqual(rc, 1, err)
            self.assertEqual(os.path.exists(self.stored), stored, options)
            if stored:
                self.assertIn("did not run: ", err)
                self.assertTrue(self.read_stored().startswith("wrong"))
                os.unlink(self.stored)
        self.assertEqual(self.check("--gpus", "emu:1")[0], 0)
        self.assertFalse(os.path.exists(self.stored))  # named devices say nothing about the others
        for args in ((), ("--gpus", "none"), ("--gpus", "auto")):
            self.find(0)
            rc, out, err = self.check(*args)
            self.assertEqual((rc, out), (2, ""))
            self.assertIn("no GPU that hearth can use", err)
        self.find(1)
        used, text = self.devices("--gpus", "auto,fail=die:5")
        self.assertTrue(used)
        self.assertEqual(text, self.devices("--gpus", "none")[1])


class Tune(driver.Case):
    SMALL = ("--gpus", "emu:1,cpu=scalar,mem=12M")  # half of the layers' experts fit

    def setUp(self):
        super().setUp()
        self.use_ember_as_any_model()
        self.folder = os.path.join(self.home, ".cache/hearth/tuned")

    def placed(self, *args):
        rc, _, err = self.run_bin("-p", "What is it?", "--temp", "0", "-n", "6", "--explain", *args)
        self.assertIn(rc, (0, 4), err)
        return err.split("on devices: ")[1]

    def tune(self, *args):
        rc, out, err = self.run_bin("--tune", "-n", "12", *args)
        self.assertEqual(rc, 0, err)
        return out.decode(), err

    def rewrite(self, line, text):
        """Replaces a line of the stored verdict."""
        name = os.path.join(self.folder, *os.listdir(self.folder))
        with open(name, encoding="utf-8") as f:
            lines = f.read().splitlines(keepends=True)
        lines[line] = text
        with open(name, "w", encoding="utf-8") as f:
            f.writelines(lines)

    def test_the_fastest_placement_is_used(self):
        self.assertNotIn("--tune", self.placed(*self.SMALL))
        got = json.loads(self.tune("--json", *self.SMALL)[0])
        rates = {p["expert_cache"]: p["tokens_per_s"] for p in got["measured"]}
        self.assertEqual(list(rates)[1:], ["sent", "moving"])  # pinned or layers before them, by the record of earlier runs
        self.assertTrue(all(r > 0 for r in rates.values()) and max(rates.values()) <= 1.07 * rates[got["chosen"]], got)
        self.assertTrue(all(0 < p["hits"] < 1 for p in got["measured"][1:]), got)
        self.assertIn("--expert-cache " + got["chosen"] + " by --tune: ", self.placed(*self.SMALL))
        # whatever was stored is used
        for choice, what in (("sent", "those that they lack are sent"), ("moving:2", "experts that they cache"), ("pinned", "experts that are pinned"), ("off", "none were to be kept")):
            self.rewrite(1, choice + "\n")
            self.assertIn(what, self.placed(*self.SMALL))
            self.assertIn("by --tune", self.placed(*self.SMALL))
        self.rewrite(1, "sent\n")
        rows = json.loads(self.run_bin("--inspect", "--json", *self.SMALL)[1])["runs"]["where"]
        self.assertEqual([r["class"] for r in rows if "class" in r], ["sent"])
        # not with another value, --deterministic, or other devices
        for args in (("--expert-cache", "layers", *self.SMALL), ("--deterministic", *self.SMALL)):
            self.assertNotIn("--tune", self.placed(*args))
        other = self.placed("--gpus", "emu:1,cpu=scalar,mem=11M")
        self.assertIn("--tune chose sent on another machine", other)
        self.assertNotIn("are sent;", other)
        # a damaged file counts as none; measuring again replaces it
        for line, text in ((1, "everything\n"), (2, "no end of line"), (0, "x" * 3000 + "\n")):
            self.rewrite(line, text)
            self.assertNotIn("by --tune", self.placed(*self.SMALL))
        self.assertIn("stored: this model uses", self.tune(*self.SMALL)[1])
        self.assertIn("by --tune", self.placed(*self.SMALL))

    def test_nothing_to_choose(self):
        out, err = self.tune("--gpus", "emu:1")
        self.assertRegex(out, r"^layers +[\d.]+ tokens/s; all experts of 4 of 4 layers")
        self.assertIn("nothing to choose: all routed experts are on devices", err)
        self.assertFalse(os.path.exists(self.folder))
        for args, why in ((("--gpus", "none"), "no GPU is used"), ((*self.SMALL, "-n", "3"), "too short to measure")):
            rc, out, err = self.run_bin("--tune", *args)
            self.assertEqual((rc, out), (2, b""))
            self.assertIn(why, err)


class Chats(driver.ChatCase):
    """A chat checks cards of an unknown kind while it answers, and uses them if they are right."""

    def setUp(self):
        super().setUp()
        self.use_ember_as_any_model()
        self.limits = self.env.get("HEARTH_LIMITS", "")
        self.stored = os.path.join(self.home, ".cache/hearth/gpus")

    def find(self, more=""):
        self.env["HEARTH_LIMITS"] = ",".join(filter(None, [self.limits, "found=1", more]))

    def explained(self, t):
        at = len(t.out)
        t.send("/explain\r")
        t.until("answer: decoded by", at)
        at = t.prompt(at)
        return t.out[-2000:].split(b"/explain")[-1]

    def test_right_ones_are_used(self):
        self.find()
        t = self.chat("--temp", "0", "-n", "8")
        self.assertIn(b"While the CPU makes the first answer, its results are compared", b" ".join(t.out.split()))
        self.ask(t, "What is hearth?", "ended at the limit")
        self.assertIn(b"no device", self.explained(t))
        t.until("is used from now on")
        with open(self.stored, encoding="utf-8") as f:
            self.assertTrue(f.read().startswith("right: hearth"))
        at = len(t.out)
        self.ask(t, "What is it?", "ended at the limit")
        self.assertIn(b"parts and head of all", self.explained(t))
        t.send("/undo\r")
        t.until("undone: What is it?", at)  # the conversation is the same
        t.send("\x04")
        self.assertEqual(t.wait(), 0)
        t = self.chat("--temp", "0", "-n", "8")
        self.assertNotIn(b"A GPU is there", t.out)

    def test_wrong_ones_are_not(self):
        self.find("differ=1")
        t = self.chat("--temp", "0", "-n", "8")
        self.ask(t, "What is hearth?", "ended at the limit")
        t.until("does not compute what the CPU does")
        self.ask(t, "What is it?", "ended at the limit")
        self.assertIn(b"no device", self.explained(t))
        with open(self.stored, encoding="utf-8") as f:
            self.assertTrue(f.read().startswith("wrong: hearth"))
        t = self.chat("--temp", "0", "-n", "8")
        self.assertIn(b"hearth --check-gpus found its results wrong", t.out)
        self.ask(t, "What is hearth?", "ended at the limit")
        self.ask(t, "What is it?", "ended at the limit")
        self.assertEqual(t.out.count(b"does not compute what the CPU does"), 0)

    def test_leaving_ends_the_check(self):
        self.find()
        t = self.chat("--temp", "0", "-n", "2000")
        t.send("What is hearth?\r")
        end = time.monotonic() + 60
        while not checks(self.home) and time.monotonic() < end:
            time.sleep(0.002)
        for pid in checks(self.home):
            os.kill(pid, signal.SIGSTOP)  # so that it does not end by itself
        left = checks(self.home)
        self.assertEqual(len(left), 1)
        t.send("\x03")
        t.send("\x04")
        t.wait()
        self.assertEqual(checks(self.home), [])


class Servers(server.Case):
    """A server checks cards of an unknown kind while it answers, and opens its models with them if they are right."""

    def setUp(self):
        super().setUp()
        self.use_ember_as_any_model()
        self.env["HEARTH_LIMITS"] = ",".join(filter(None, [self.env.get("HEARTH_LIMITS", ""), "found=1"]))

    def start(self, *args):
        self.said = os.path.join(self.home, "said")
        with open(self.said, "wb") as f:
            return self.serve(*args, stderr=f)

    def until(self, text):
        end = time.monotonic() + driver.PATIENCE
        while True:
            with open(self.said, encoding="utf-8") as f:
                said = f.read()
            if text in said or time.monotonic() > end:
                break
            time.sleep(0.01)
        self.assertIn(text, said)

    def placed(self, s):
        status, body = s.chat("What is it?", max_tokens=4, temperature=0, explain=True)
        self.assertEqual(status, 200, body)
        why = json.dumps(body)
        self.assertIn("on devices", why)
        return "(no devices)" not in why

    def placed_at_last(self, s):
        end = time.monotonic() + driver.PATIENCE
        while not self.placed(s) and time.monotonic() < end:
            pass
        self.assertTrue(self.placed(s))

    def check(self, *args):
        s = self.start(*args)
        self.placed(s)  # opens the model if requests choose it
        self.until("its results are compared with the CPU's")
        self.until("models are opened with it from now on")
        self.placed_at_last(s)
        s.end()
        s = self.start(*args)
        self.assertTrue(self.placed(s))
        with open(self.said, encoding="utf-8") as f:
            self.assertNotIn("GPU", f.read())

    def test_right_ones_are_used(self):
        self.check()

    def test_several_models(self):
        self.check("--max-models", "1")

    def test_answers_end_first(self):
        s = self.start()
        answers, ended = [], threading.Event()

        def ask():
            while not ended.is_set():
                try:
                    text = s.stream("Tell all you know.", max_tokens=200, temperature=1, seed=1).read()
                except OSError:  # it never ends
                    text = b""
                answers.append((b"[DONE]" in text, b'"finish_reason": "' in text, b'"error"' in text))

        threads = [threading.Thread(target=ask) for _ in range(3)]  # so that one answers at any time
        for t in threads:
            t.start()
        try:
            self.until("models are opened with it from now on")
            self.placed_at_last(s)
        finally:
            ended.set()
            for t in threads:
                t.join()
        self.assertEqual(set(answers), {(True, True, False)})

    def test_wrong_ones_are_not(self):
        self.env["HEARTH_LIMITS"] += ",differ=1"
        for said in "it is not used with this version of hearth", "found its results wrong":
            s = self.start()
            self.until(said)
            self.assertFalse(self.placed(s))
            s.end()

    def test_the_end_of_a_server_ends_the_check(self):
        s = self.start()
        self.until("its results are compared")
        end = time.monotonic() + driver.PATIENCE
        while not checks(self.home) and time.monotonic() < end:
            time.sleep(0.002)
        for pid in checks(self.home):
            os.kill(pid, signal.SIGSTOP)
        s.end()
        self.assertEqual(checks(self.home), [])


class Cards(driver.ChatCase):
    """Real cards as the fake engine has them: it finds them and opens none."""

    def setUp(self):
        super().setUp()
        self.addCleanup(setattr, driver, "BIN", driver.BIN)
        driver.BIN = os.environ["HEARTH_FAKE"]
        self.env["HEARTH_MODEL"] = self.model("some")

    def test_a_card_that_does_not_open(self):
        self.env["FAKE_GPUS"] = "0 tried"
        for args in ((), ("--gpus", "auto")):
            rc, out, err = self.run_bin("-p", "think", *args)
            self.assertEqual((rc, out), (0, b"the answer\n"), err)
            self.assertIn("GPUs are not used: --gpus 0: no such device here", err)
        rc, out, err = self.run_bin("-p", "think", "--gpus", "0")
        self.assertEqual((rc, out), (1, b""), err)
        self.env["FAKE_GPUS"] = "0"
        self.assertNotIn("GPU", self.run_bin("-p", "think")[2])

    def test_a_chat_names_an_unused_card(self):
        self.env["FAKE_GPUS"] = "0"
        t = self.chat()
        self.assertIn(b"A GPU is there of a kind that no hearth has run on", t.out)
        self.ask(t, "slow", "w59")  # 1.2 s, in which the verdict comes
        self.assertNotIn(b"it is not used", t.out[: t.out.index(b"w59")])  # nor within the answer
        t.until("it is not used with this version of hearth")  # the fake computes what it likes
        self.ask(t, "again", "You said: again")
        self.assertEqual(t.out.count(b"it is not used with this version"), 1)
        for found in ("0", "trouble"):
            self.env["FAKE_GPUS"] = found
            for args in (("--gpus", "none"), ("-q",)):
                self.assertNotIn(b"A GPU is there", self.chat(*args).out)
        self.assertIn(b"A GPU is there, and not used: the fake's driver is too old.", self.chat().out)


if __name__ == "__main__":
    unittest.main()
