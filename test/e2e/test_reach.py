"""Command line options reach the engine: the fake engine echoes what it was given."""
import json
import os
import re
import signal
import subprocess
import time

import driver


class Reach(driver.Case):
    def sampling(self, *args, **more):
        """Returns the settings that the engine received, as a dict of strings."""
        rc, out, err = self.run_bin("-p", "sampling", *args, **more)
        self.assertEqual((rc, err), (0, ""))
        words = out.decode().split()
        return dict(zip(words[::2], words[1::2]))

    def test_sampling_options(self):
        plain = self.sampling()
        self.assertEqual({k: v for k, v in plain.items() if k != "seed"}, {"temp": "0.5", "top-p": "1", "top-k": "0", "min-p": "0", "repeat-penalty": "1", "max": "-1"})
        for option, value, name in (("--temp", "0.25", "temp"), ("--temp", "0", "temp"), ("--top-p", "0.75", "top-p"), ("--top-k", "17", "top-k"), ("--min-p", "0.125", "min-p"),
                                    ("--repeat-penalty", "1.5", "repeat-penalty"), ("--presence-penalty", "0.5", "presence-penalty"), ("--frequency-penalty", "-1.25", "frequency-penalty"), ("--seed", "12345", "seed"), ("-n", "400", "max")):
            got = self.sampling(option, value)
            self.assertEqual(got[name], value)
            self.assertEqual({k: v for k, v in got.items() if k not in (name, "seed")}, {k: v for k, v in plain.items() if k not in (name, "seed")})
            if option.startswith("--"):
                self.assertEqual(self.sampling(env={"HEARTH_" + option[2:].upper().replace("-", "_"): value})[name], value)
        self.assertNotEqual(self.sampling()["seed"], plain["seed"])  # a new random seed for each answer

    def test_dry(self):
        """DRY and top-n-sigma are off unless asked for; each option reaches the engine, as a flag and from the environment."""
        said = lambda *args, **more: re.sub(r"seed \d+ ", "", self.run_bin("-p", "sampling", *args, **more)[1].decode()).split("max -1", 1)[1].strip()
        usual = "breaker <\n> breaker <:> breaker <\"> breaker <*>"
        self.assertEqual(said(), "")
        self.assertEqual(said("--dry-base", "2"), "")  # nothing without a multiplier
        self.assertEqual(said("--dry-multiplier", "0.5"), "dry-multiplier 0.5 dry-base 1.75 dry-allowed-length 2 dry-penalty-last-n -1 " + usual)
        self.assertEqual(said("--dry-multiplier", "1", "--dry-base", "1.5", "--dry-allowed-length", "4", "--dry-penalty-last-n", "256", "--dry-sequence-breakers", '["Tom:", "\\n\\n"]', "--top-n-sigma", "1.5"),
                         "top-n-sigma 1.5 dry-multiplier 1 dry-base 1.5 dry-allowed-length 4 dry-penalty-last-n 256 breaker <Tom:> breaker <\n\n>")
        env = {"HEARTH_DRY_MULTIPLIER": "1", "HEARTH_DRY_SEQUENCE_BREAKERS": "none", "HEARTH_TOP_N_SIGMA": "2"}
        self.assertEqual(said(env=env), "top-n-sigma 2 dry-multiplier 1 dry-base 1.75 dry-allowed-length 2 dry-penalty-last-n -1")
        for args, why in ((("--dry-multiplier", "-1"), "outside 0 to 100"), (("--dry-base", "0.5"), "outside 1 to 100"), (("--dry-penalty-last-n", "-2"), "outside -1"), (("--top-n-sigma", "-1"), "outside 0 to 100"),
                          (("--dry-sequence-breakers", "\\n"), "not a JSON list of texts"), (("--dry-sequence-breakers", '{"a": 1}'), "must be a list of texts"), (("--dry-sequence-breakers", '["a", ""]'), "text 2 is empty"),
                          (("--dry-sequence-breakers", "[1]"), "text 1 is empty, has a zero byte or is no text"), (("--dry-sequence-breakers", json.dumps(["x" * 200, "y" * 80])), "more than 254 bytes")):
            rc, out, err = self.run_bin("-p", "sampling", *args)
            self.assertEqual((rc, out), (2, b""), args)
            self.assertIn(why, err)
            self.assertIn(args[0], err)
        os.makedirs(os.path.join(self.home, ".config/hearth"), exist_ok=True)
        with open(os.path.join(self.home, ".config/hearth/config"), "w") as f:
            f.write("[role-play]\ndry-multiplier = 0.75\ndry-sequence-breakers = [\":\"]\n")
        self.assertEqual(said("--preset", "role-play"), "dry-multiplier 0.75 dry-base 1.75 dry-allowed-length 2 dry-penalty-last-n -1 breaker <:>")

    def test_sampling_out_of_range(self):
        for args in (("--top-p", "1.5"), ("--top-k", "-1"), ("--min-p", "2"), ("--repeat-penalty", "-1"), ("--presence-penalty", "2.5"), ("--frequency-penalty", "-3"), ("--seed", "-1"), ("--temp", "nan")):
            rc, out, err = self.run_bin("-p", "sampling", *args)
            self.assertEqual((rc, out), (2, b""), args)
            self.assertIn(args[0], err)

    def test_system_prompt(self):
        self.assertEqual(self.run_bin("-p", "prompt x")[1], b"[user]prompt x[assistant]\n")
        for args in (("-s", "Be brief."), ("--system", "Be brief."), ("--system=Be brief.",)):
            self.assertEqual(self.run_bin(*args, "-p", "prompt x")[1], b"[system]Be brief.[user]prompt x[assistant]\n")
        self.assertEqual(self.run_bin("-s", "Be brief.", "--save", "talk", "-p", "hi")[0], 0)
        want = b"[system]%s[user]hi[assistant]You said: hi[user]prompt x[assistant]\n"
        self.assertEqual(self.run_bin("--continue", "talk", "-p", "prompt x")[1], want % b"Be brief.")
        self.assertIn(b"[system]Another.[user]hi[assistant]", self.run_bin("--continue", "talk", "-s", "Another.", "-p", "prompt y")[1])

    def test_raw(self):
        """The engine gets exactly the prompt's bytes; its answer is not split."""
        for args, tokens in ((["--raw"], len("prompt x")), ([], len("1user2prompt x1assistant2"))):
            self.assertEqual(json.loads(self.run_bin(*args, "-p", "prompt x", "--json")[1])["usage"]["prompt_tokens"], tokens)
        for args, want in ((["think", "--special"], b"<think>reasoning here</think>\n\nthe answer\n"), (["think"], b"reasoning here\n\nthe answer\n"), (["some words"], b"You said: some words\n")):
            self.assertEqual(self.run_bin("--raw", "-p", *args)[:2], (0, want))

    def test_batch(self):
        lines = [{"prompt": "sampling"}, {"prompt": "sampling", "seed": 7}, {"prompt": "sampling", "temperature": 0.125}, {"prompt": "sampling", "seed": 0, "temperature": 0, "max_tokens": 300},
                 {"prompt": "sampling", "temperature": -1}, {"prompt": "sampling", "temperature": 101}, {"prompt": "prompt x"}, {"prompt": "prompt x", "system": "Its own."},
                 {"messages": [{"role": "user", "content": "prompt y"}], "seed": 3}]
        rc, out, err = self.run_bin("--batch", "-", "--seed", "99", "--temp", "0.75", "--top-k", "5", "-s", "Common.", data="\n".join(map(json.dumps, lines)))
        rows = sorted((json.loads(r) for r in out.splitlines()), key=lambda row: row["index"])
        self.assertEqual((rc, len(rows)), (1, len(lines)))
        said = "temp {} top-p 1 top-k 5 min-p 0 repeat-penalty 1 seed {} max {}"
        for row, want in zip(rows, (("0.75", 99, -1), ("0.75", 7, -1), ("0.125", 99, -1), ("0", 0, 300))):
            self.assertEqual(row["text"], said.format(*want))
        for row in rows[4:6]:
            self.assertIn("temperature", row["error"]["message"])
        self.assertEqual([r["text"] for r in rows[6:]], ["[system]Common.[user]prompt x[assistant]", "[system]Its own.[user]prompt x[assistant]", "[user]prompt y[assistant]"])

    def test_colour_off_a_terminal(self):
        """NO_COLOR, then CLICOLOR_FORCE, then whether it is a terminal; --color overrides all."""
        for env, args, want in (({}, [], False), ({"CLICOLOR_FORCE": "1"}, [], True), ({"CLICOLOR_FORCE": "0"}, [], False), ({"CLICOLOR_FORCE": ""}, [], False),
                                ({"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, [], False), ({"CLICOLOR_FORCE": "1"}, ["--color=never"], False), ({}, ["--color=always"], True)):
            rc, out, err = self.run_bin("-p", "think", *args, env=env)
            self.assertEqual((rc, out, "\x1b[2m" in err), (0, b"the answer\n", want), (env, args))

    def test_hooks_of_tests(self):
        for name, good, bad in (("HEARTH_LIMITS", ("", "rows=5", "expand=100,rows=7", "read=4096"), ("rows", "rows=", "rows=0", "rows=-1", "rows=5,", "rows=5 ", "expand=x", "columns=3")),
                                ("HEARTH_FAULT", ("", "alloc:999999", "sync:9+"), ("alloc", "alloc:0", "alloc:x", "what:1", "alloc:1?"))):
            for text in good:
                self.assertEqual(self.run_bin("-p", "hi", env={name: text})[0], 0, text)
            for text in bad:
                rc, out, err = self.run_bin("-p", "hi", env={name: text})
                self.assertEqual((rc, out), (2, b""), text)
                self.assertIn(name, err)

    def test_bench_of_kernels(self):
        rc, out, err = self.run_bin("--bench", "kernels", "--json")
        self.assertEqual((rc, err, json.loads(out)[:1]), (0, "", [{"kernel": "fake", "level": "scalar", "format": "F8_E4M3", "tokens": 2, "shape": "1x1", "threads": 1, "gbps": 1.0, "limit": 2.0, "share": 0.5}]))
        self.assertRegex(self.run_bin("--bench", "kernels")[1].decode(), r"^fake +F8_E4M3 +scalar +2 tokens +1x1 +1 threads +1\.0 GB/s +of +2\.0 +50 %\n")

    def test_second_interrupt(self):
        """An answer that does not stop: the second Ctrl-C ends the program at once."""
        p = subprocess.Popen([driver.BIN, "-p", "stubborn"], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(p.stdout.read(6), b"deaf0 ")
        p.send_signal(signal.SIGINT)
        time.sleep(1)
        self.assertIsNone(p.poll())
        p.send_signal(signal.SIGINT)
        self.assertNotIn(b"deaf3999", p.communicate(timeout=driver.PATIENCE)[0])
        self.assertEqual(p.returncode, -signal.SIGINT)


if __name__ == "__main__":
    driver.unittest.main()
