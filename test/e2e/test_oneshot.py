"""One question, one answer, in a script: streams, output forms, exit codes, broken pipes. Runs on the fake engine."""
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import time

import driver


class OneShot(driver.Case):
    def test_prompt(self):
        self.assertEqual(self.run_bin("-p", "hello"), (0, b"You said: hello\n", ""))
        self.assertEqual(self.run_bin(data="from stdin\n"), (0, b"You said: from stdin\n", ""))
        self.assertEqual(self.run_bin("-p", "-", data="dash")[1], b"You said: dash\n")

    def test_document_then_instruction(self):
        self.assertEqual(self.run_bin("-p", "Summarise this", data="a text\n")[1], b"You said: a text\n\nSummarise this\n")

    def test_files(self):
        paths = []
        for name in ("a.txt", "b.txt"):
            paths.append(os.path.join(self.home, name))
            with open(paths[-1], "w") as f:
                f.write("text of " + name + "\n")
        rc, out, err = self.run_bin("-f", paths[0], "--file=" + paths[1], "-p", "Compare")
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual(out, b'You said: <document name="a.txt">\ntext of a.txt\n</document>\n\n'
                              b'<document name="b.txt">\ntext of b.txt\n</document>\n\nCompare\n')
        self.assertEqual(self.run_bin("-f", paths[0])[0], 2)  # no question
        for data, words in ((b"PK\x03\x04....", "office document"), (b"\x7fELF\x02", "ELF executable"), (b"abc\0def", "NUL bytes"), (b"\xe9t\xe9 " * 50, "LATIN1"),
                            (b"\xff\xfea\0b\0", "UTF-16 text"), (b"\xff\xfe\0\0a\0\0\0", "iconv -f UTF-32")):
            with open(paths[0], "wb") as f:
                f.write(data)
            rc, out, err = self.run_bin("-f", paths[0], "-p", "Compare")
            self.assertEqual((rc, out), (1, b""), data)
            self.assertIn(words, err)
        with open(paths[0], "wb") as f:
            f.write(b"one slip \xff in it")
        self.assertEqual(self.run_bin("-f", paths[0], "-p", "Compare")[0], 0)
        rc, out, err = self.run_bin("-f", "/nowhere", "-p", "x")
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("/nowhere", err)

    def test_no_prompt(self):
        for data in (b"", b"\n\n"):
            rc, out, err = self.run_bin(data=data)
            self.assertEqual((rc, out), (2, b""))
            self.assertIn("no prompt", err)

    def test_odd_input(self):
        rc, out, err = self.run_bin(data=b"\xef\xbb\xbfbom \xff\x00 nul\r\n")
        self.assertEqual((rc, out), (0, b"You said: bom \xef\xbf\xbd\x00 nul\n"))
        self.assertIn("invalid UTF-8", err)
        rc, out, err = self.run_bin("-p", "x", data=b"%PDF-1.7 ...")
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("pdftotext", err)

    def test_closed_streams(self):
        run = lambda redirect, *a: subprocess.run(["sh", "-c", 'exec "$@" ' + redirect, "sh", driver.BIN, *a], env=self.env, stdin=subprocess.DEVNULL,
                                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=driver.PATIENCE)
        self.assertEqual(run("<&-").returncode, 2)
        p = run("<&-", "-p", "hi")
        self.assertEqual((p.returncode, p.stdout), (0, b"You said: hi\n"))
        p = run(">&-", "-p", "hi")
        self.assertEqual(p.returncode, 1)
        self.assertIn(b"stdout", p.stderr)
        self.assertEqual(run("2>&-", "-p", "hi").stdout, b"You said: hi\n")
        p = run(">/dev/full", "-p", "hi")
        self.assertEqual(p.returncode, 1)
        self.assertIn(b"No space left", p.stderr)

    def test_head(self):
        p = subprocess.run(["sh", "-c", '"$0" -p long | head -c 20', driver.BIN], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=driver.PATIENCE)
        self.assertEqual((len(p.stdout), p.stderr), (20, b""))

    def test_bench_into_nothing(self):
        run = lambda command: subprocess.run(["bash", "-c", command + "; echo ${PIPESTATUS[0]}", driver.BIN], env=self.env, capture_output=True, timeout=driver.PATIENCE)
        for args in ("--bench kernels", "--bench kernels --json"):
            p = run(f'"$0" {args} | head -1')
            self.assertEqual((p.stdout.splitlines()[-1], p.stdout.count(b"\n"), p.stderr), (b"141", 2, b""))  # like any command: by SIGPIPE
            p = run(f'"$0" {args} > /dev/full')
            self.assertEqual(p.stdout, b"1\n")
            self.assertIn(b"No space left", p.stderr)

    def test_line_ends(self):
        self.assertEqual(self.run_bin("-p", "lines")[1], b"one\n\ntwo\n")

    def test_pipe_is_faithful(self):
        self.assertEqual(self.run_bin("-p", "escape")[1], b"A\x1b[31mred\x1b]0;title\x07B\b\bC\rD\xc2\x9b31mE\x7f.\n")

    def test_thinking(self):
        rc, out, err = self.run_bin("-p", "think")
        self.assertEqual((rc, out, err), (0, b"the answer\n", "reasoning here\n"))
        self.assertEqual(self.run_bin("-p", "think", "-q"), (0, b"the answer\n", ""))

    def test_no_stream(self):
        self.assertEqual(self.run_bin("-p", "think", "--no-stream"), (0, b"the answer\n", "reasoning here\n"))

    def test_stats(self):
        rc, out, err = self.run_bin("-p", "hi", "--stats", "--explain")
        self.assertEqual((rc, out), (0, b"You said: hi\n"))
        for word in ("prompt: ", "first token after", "tokens/s", "of weights read", "only one mode"):
            self.assertIn(word, err)
        self.assertRegex(err.splitlines()[0], r"^[\d.]+ tokens a second, first token after [\d.]+ m?s$")

    def test_json(self):
        rc, out, err = self.run_bin("-p", "think", "--json", "--seed", "5")
        j = json.loads(out)
        self.assertEqual((rc, j["text"], j["thinking"], j["reason"], j["seed"]), (0, "the answer", "reasoning here", "stop", 5))
        self.assertEqual(j["usage"]["total_tokens"], j["usage"]["prompt_tokens"] + j["usage"]["answer_tokens"])
        self.assertEqual(out.count(b"\n"), 1)
        rc, out, err = self.run_bin("-p", "broken", "--json")
        self.assertEqual(json.loads(out.decode("utf-8"))["text"], "x\ufffd\ufffdy")
        rc, out, err = self.run_bin("-p", "fail", "--json")
        self.assertEqual((rc, json.loads(out)["error"]["code"]), (1, 1))

    def test_json_errors(self):
        """A command that fails before it has printed anything prints its error as an object; without --json, and in the lines of --json-lines, it prints none."""
        for args in (("--status",), ("--stop",), ("--inspect", "-m", "./nowhere"), ("--plan", "nowhere"), ("--batch", "./nowhere"), ("--render", "./nowhere"), ("--delete", "nothing"), ("--status", "--temp", "hot")):
            rc, out, err = self.run_bin(*args, "--json")
            error = json.loads(out)["error"]
            self.assertEqual((error["code"], err), (rc, f"hearth: {error['message']}\n"), args)
            self.assertNotEqual(rc, 0, args)
            self.assertEqual(self.run_bin(*args)[:2], (rc, b""), args)
            self.assertEqual(self.run_bin(*args, "--json-lines")[1], b"", args)
        self.assertEqual(json.loads(self.run_bin("-p", "x", "--nosuch", "--json-lines")[1])["type"], "error")
        self.assertEqual(self.run_bin("-p", "x", "--nosuch", "--", "--json")[1], b"")

    def test_json_lines(self):
        rc, out, err = self.run_bin("-p", "think", "--json-lines")
        rows = [json.loads(line) for line in out.splitlines()]
        self.assertEqual("".join(r["text"] for r in rows if r["type"] == "delta"), "the answer")
        self.assertEqual("".join(r["text"] for r in rows if r["type"] == "thinking"), "reasoning here")
        self.assertEqual([r["type"] for r in rows[-2:]], ["usage", "done"])
        rc, out, err = self.run_bin("-p", "fail", "--json-lines")
        self.assertEqual((rc, json.loads(out.splitlines()[-1])["type"]), (1, "error"))

    def test_extract(self):
        self.assertEqual(self.run_bin("-p", "code", "--extract")[:2], (0, b"echo hi\n"))
        rc, out, err = self.run_bin("-p", "nothing", "--extract")
        self.assertEqual((rc, out), (1, b""))

    def test_limits(self):
        cut = "hearth: answer stopped at the -n limit (3 tokens); raise -n for more\n"
        self.assertEqual(self.run_bin("-p", "hello", "-n", "3"), (0, b"You\n", cut))
        self.assertEqual(self.run_bin("-p", "hello", "-n", "3", "-q"), (0, b"You\n", ""))
        self.assertEqual(self.run_bin("-p", "hello", "-n", "15"), (0, b"You said: hello\n", cut.replace("(3 ", "(15 ")))
        self.assertEqual(self.run_bin("-p", "hello", "-n", "16"), (0, b"You said: hello\n", ""))
        self.assertIn("it repeats itself, which --repeat-penalty 1.1 may prevent", self.run_bin("-p", "ab " * 800, "-n", "2200")[2])
        cut = "hearth: the answer was cut: the context of 30 tokens is full; a larger -c gives more\n"
        self.assertEqual(self.run_bin("-p", "hello", "-c", "30"), (4, b"You said\n", cut))
        self.assertEqual(self.run_bin("-p", "hello", "-c", "30", "-q"), (4, b"You said\n", ""))
        for form in ("--json", "--json-lines"):
            rc, out, err = self.run_bin("-p", "hello", "-c", "30", form)
            self.assertEqual((rc, json.loads(out.splitlines()[-1])["reason"], err), (4, "context", cut))
        self.assertEqual(self.run_bin("-p", "hello", "--until", "id:", "--until", "zz")[1], b"You sa\n")
        rc, out, err = self.run_bin("-p", "hello", "-c", "5")
        self.assertEqual((rc, out), (4, b""))
        self.assertRegex(err, r"\d+ tokens.* 5")
        rc, out, err = self.run_bin("-p", "fail")
        self.assertEqual((rc, out), (1, b"begun\n"))
        self.assertIn("layer 3", err)

    def test_failing_allocations(self):
        for args in (["-p", "hello"], ["-p", "think", "-q"], ["-p", "code", "--extract"], ["-p", "lines", "--no-stream"]):
            total = self.allocations(*args)
            self.assertGreater(total, 20)
            for forever in (False, True):  # the fake engine sleeps between its tokens
                self.all_or_said(range(1, total + 1), *args, forever=forever, at_once=8)

    def test_usage_errors(self):
        for args, words in (
            (["--tmep", "1"], ["--tmep", "did you mean '--temp'"]), (["--temperature=1"], ["'--temp'"]), (["-model", "x"], ["--model"]), (["-Z"], ["-Z"]),
            (["--temp", "1000", "-m", "/nowhere"], ["0 to 100"]), (["-n", "0"], ["-n"]), (["-n", "x"], ["whole number"]), (["--kv", "f8"], ["f32 bf16 fp8"]),
            (["--seed"], ["needs a value"]), (["--json=1"], ["no value"]), (["-p", "x", "stray"], ["stray", "-p"]), (["delete"], ["--delete", "-p delete"]), (["serve", "a", "b"], ["hearth serve [NAME]", "-p \"serve"]), (["/etc"], ["-f", "-m"]), (["-qv"], ["combined"]), (["--ids"], ["--tokens"]),
            (["--inspect", "--verify"], ["combined"]), (["--idle", "5"], ["--idle needs --serve"]), (["--strict"], ["--strict needs --serve"]),
            (["--parallel", "2"], ["--parallel needs --serve or --batch"]), (["--arch", "dbrx"], ["--arch needs --plan"]),
            # names that other programs have for hearth's options
            (["--n-predict", "5"], ["did you mean '--max-tokens'"]), (["--ctx_size", "5"], ["did you mean '--context'"]), (["-ngl", "99"], ["'-ngl'; did you mean '--gpus'"]),
            (["-hf", "a/b"], ["'-hf'; did you mean '--model'"]), (["-cnv"], ["unknown option '-cnv'; see hearth --help"])):
            rc, out, err = self.run_bin(*args, data="x")
            self.assertEqual((rc, out), (2, b""), args)
            for word in words:
                self.assertIn(word, err)
            self.assertEqual(err.count("\n"), 1)

    def test_bad_model(self):
        rc, out, err = self.run_bin("-m", "/nowhere/model", "-p", "x")
        self.assertEqual((rc, out), (3, b""))
        self.assertIn("/nowhere/model", err)
        for address in ("127.0.0.1:8080", "localhost:8080/v1"):
            rc, out, err = self.run_bin("-m", address, "-p", "x")
            self.assertEqual((rc, out), (3, b""))
            self.assertIn("for a server: -m http://" + address.split("/")[0] + "/v1", err)
        self.assertNotIn("server", self.run_bin("-m", "/data:80/x", "-p", "x")[2] + self.run_bin("-m", "llama3:8b", "-p", "x")[2])

    def test_text_that_no_context_holds(self):
        rc, out, err = self.run_bin("-p", "x", data="all of it\n" * 7000000)
        self.assertEqual((rc, out), (4, b""))
        self.assertIn("prompt is too long: 70.0 MB of text, more than hearth takes", err)

    def test_signals(self):
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            p = subprocess.Popen([driver.BIN, "-p", "long"], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            first = os.read(p.stdout.fileno(), 30)
            time.sleep(0.1)
            p.send_signal(sig)
            out, err = p.communicate(timeout=driver.PATIENCE)
            self.assertEqual(p.returncode, -sig)
            self.assertTrue((first + out).startswith(b"word0 "))
            self.assertTrue(out.endswith(b"\n"))
            self.assertNotIn(b"word199", out)

    def test_signal_before_the_turn(self):
        """A signal between the start of the program and that of its turn is not lost."""
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for args in (["-p", "read"], ["-p", "read", "--json"], ["--long", "split", "-c", "2000", "-f", self.write("book.txt", "word " * 4000), "-p", "Who?"]):
                rc, out, err = self.run_bin(*args, "--no-save", env={"FAKE_SIGNAL": str(int(sig)), "FAKE_NOTES": "slow"})
                self.assertEqual(rc, -sig, (args, out[:100], err))

    def test_configuration_from_other_editors(self):
        path = self.write(".config/hearth/config", "\ufefftemp = 0.25\r\nmax-tokens = 5\r\n")
        rc, out, err = self.run_bin("--print-config")
        self.assertEqual((rc, err), (0, ""))
        self.assertRegex(out.decode(), r"(?s)temp = 0\.25\n.*max-tokens = 5\n|max-tokens = 5\n.*temp = 0\.25\n")
        self.write(".config/hearth/config", "\ufeffmodel = /old\n")
        self.assertEqual(self.run_bin("--use", "ember")[0], 0)
        with open(path) as f:
            self.assertNotIn("/old", f.read())

    def test_configuration(self):
        os.makedirs(os.path.join(self.home, ".config/hearth"))
        path = os.path.join(self.home, ".config/hearth/config")
        with open(path, "w") as f:
            f.write("# mine\nmax_tokens = 5\ntemp=0.25\n\nwhat = ever\nseed = 1\n")
        rc, out, err = self.run_bin("--print-config", "--json", "--seed", "3", env={"HEARTH_TEMP": "0.5"})
        j = json.loads(out)
        self.assertEqual((j["max-tokens"]["value"], j["max-tokens"]["origin"]), (5, path))
        self.assertEqual((j["temp"]["value"], j["temp"]["origin"]), (0.5, "HEARTH_TEMP"))
        self.assertEqual((j["seed"]["value"], j["seed"]["origin"]), (3, "flag"))
        self.assertEqual((j["kv"]["value"], j["kv"]["origin"]), ("bf16", "default"))
        self.assertIn(path + ":5: unknown key 'what'", err)
        self.assertEqual(self.run_bin("-p", "hello")[1], b"You s\n")
        with open(path, "w") as f:
            f.write("temp = warm\n")
        rc, out, err = self.run_bin("-p", "x")
        self.assertEqual(rc, 2)
        self.assertIn(path + ":1", err)
        self.assertEqual(self.run_bin("--help")[0], 0)
        os.remove(path)
        os.mkdir(path)
        self.assertIn(path + ": not a regular file", self.run_bin("-p", "x")[2])

    def test_printed_configuration_reads_back(self):
        folder = os.path.join(self.home, ".config/hearth")
        os.makedirs(folder)
        values = lambda j: {k: v["value"] for k, v in json.loads(j).items()}
        for system in ("plain", "two\nlines # and\\more", '"quoted"', "  blanks ", "# no comment", "a = b", "tab\there"):
            env = {"HEARTH_SYSTEM": system, "HEARTH_TEMP": "0.25", "HEARTH_THINK": "no"}
            rc, out, err = self.run_bin("--print-config", "--seed", "3", env=env)
            self.assertEqual((rc, err), (0, ""))
            self.assertIn(b"# HEARTH_TEMP\ntemp = 0.25\n", out)
            want = values(self.run_bin("--print-config", "--json", "--seed", "3", env=env)[1])
            self.assertEqual(want["system"], system)
            with open(os.path.join(folder, "config"), "wb") as f:
                f.write(out)
            rc, out, err = self.run_bin("--print-config", "--json")
            self.assertEqual((rc, err, values(out)), (0, "", want), system)
            os.remove(os.path.join(folder, "config"))

    def test_misspelt_variable(self):
        rc, out, err = self.run_bin("-p", "x", env={"HEARTH_TMEP": "1", "HEARTH_OTHER_THING": "1"})
        self.assertEqual((rc, out, err), (0, b"You said: x\n", "hearth: HEARTH_TMEP is not a setting and is ignored; did you mean HEARTH_TEMP?\n"))
        self.assertEqual(self.run_bin("-p", "x", "-q", env={"HEARTH_TMEP": "1"})[2], "")

    def test_model_path(self):
        os.makedirs(os.path.join(self.home, "models/tiny"))
        self.assertEqual(self.run_bin("-m", "tiny", "-p", "x", env={"HEARTH_MODEL_PATH": "/nowhere:" + self.home + "/models"})[0], 0)
        rc, out, err = self.run_bin("-m", "other", "-p", "x", env={"HEARTH_MODEL_PATH": self.home + "/models"})
        self.assertEqual(rc, 3)
        self.assertIn("other", err)
        here = os.path.join(self.home, "here")  # what is no model does not hide a model of the path; a model does
        os.makedirs(os.path.join(here, "tiny"))
        path = {"HEARTH_MODEL_PATH": self.home + "/models"}
        self.write("models/tiny/config.json", "{}")
        self.assertEqual(self.run_bin("-m", "tiny", "-p", "x", env=path, cwd=here)[:2], (0, b"You said: x\n"))
        rc, out, err = self.run_bin("-m", "./tiny", "-p", "x", env=path, cwd=here)
        self.assertEqual(rc, 3)
        self.assertIn("./tiny: no model found", err)
        os.rmdir(os.path.join(here, "tiny"))
        self.write("here/tiny", "a file")
        self.assertEqual(self.run_bin("-m", "tiny", "-p", "x", env=path, cwd=here)[:2], (0, b"You said: x\n"))
        self.write("models/second/config.json", "{}")
        self.write("here/second/config.json", "{}")
        self.assertEqual(self.run_bin("-m", "second", "-p", "x", "--save", "talk", env=path, cwd=here)[0], 0)
        with open(self.session_file("talk")) as f:
            self.assertEqual(json.load(f)["body"]["path"], os.path.realpath(os.path.join(here, "second")))

    def test_file_of_a_checkpoint(self):
        """A file of the checkpoint stands for its directory, as the shell's completion or a file manager gives it."""
        model = os.path.join(self.home, "a model")
        os.makedirs(model)
        for name in ("config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "README.md"):
            with open(os.path.join(model, name), "w", encoding="utf-8") as f:
                f.write("{}")
        for name in ("config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"):
            self.assertEqual(self.run_bin("-m", os.path.join(model, name), "-p", "x")[:2], (0, b"You said: x\n"), name)
        self.assertEqual(self.run_bin("-m", "config.json", "-p", "x", cwd=model)[:2], (0, b"You said: x\n"))
        rc, out, err = self.run_bin("-m", os.path.join(model, "README.md"), "-p", "x")
        self.assertEqual(rc, 3)
        self.assertIn("not a GGUF file", err)
        os.remove(os.path.join(model, "config.json"))
        self.assertEqual(self.run_bin("-m", os.path.join(model, "model-00001-of-00002.safetensors"), "-p", "x")[0], 3)

    def test_batch_names_the_line(self):
        rc, out, err = self.run_bin("--batch", "-", data='"a"\n\n{"prompt": }\n7\n{"prompt": "x", "max_tokens": 0}')
        rows = sorted((json.loads(line) for line in out.splitlines()), key=lambda row: row["index"])
        self.assertEqual((rc, len(rows)), (1, 4))
        for row, word in zip(rows[1:], ("line 3, column 12: ", "line 4: must be", "line 5: max_tokens")):
            self.assertTrue(row["error"]["message"].startswith(word), row)

    def test_batch_ignores_nothing(self):
        """Members of the wrong type are errors, null is as good as nothing, and a byte order mark does not make the lines plain text."""
        bad = ('"max_tokens": "3"', '"max_tokens": 3.5', '"seed": "x"', '"system": 5', '"prompt": 5', '"messages": 5', '"messages": []', '"messages": [5]', '"messages": [{"content": "a"}]', '"id": 1.5', '"id": [1]', '"id": true')
        lines = ['{"prompt": "a", ' + x + "}" for x in bad] + ['{"prompt": "b", "max_tokens": null, "seed": null, "system": null, "messages": null, "id": null}', '{"prompt": "c", "max_tokens": 3.0}']
        rc, out, err = self.run_bin("--batch", "-", data="\ufeff" + "\n".join(lines))
        rows = sorted((json.loads(r) for r in out.splitlines()), key=lambda row: row["index"])
        for i, (row, x) in enumerate(zip(rows, bad)):
            self.assertTrue(row["error"]["message"].startswith(f"line {i + 1}: " + x.split('"')[1]), row)
        self.assertEqual((rc, rows[-2]["text"], rows[-1]["text"]), (1, "You said: b", "You"))

    def test_batch_with_equal_ids(self):
        """A continued batch takes an answer for that of the prompt with its index, where several prompts have its id."""
        lines = '{"prompt": "same", "id": "x"}\n' * 3
        old = next(line for line in self.run_bin("--batch", "-", data=lines)[1].decode().splitlines() if '"index": 1,' in line)
        path = self.write("out", old.replace("You said", "Once said") + "\n")
        with open(path, "ab") as f:
            rc, _, err = self.run_bin("--batch", "-", data=lines, stdout=f)
        with open(path) as f:
            rows = sorted((json.loads(line) for line in f), key=lambda row: row["index"])
        self.assertEqual((rc, [row["index"] for row in rows], rows[1]["text"]), (0, [0, 1, 2], "Once said: same"), err)

    def test_batch_with_edited_prompts(self):
        """A continued batch keeps answers only of the same prompts, model and settings."""
        path = self.write("out", "")
        out = lambda: [json.loads(line) for line in open(path, encoding="utf-8")]

        def run(data, *args):
            before = len(out())
            with open(path, "ab") as f:
                rc, _, err = self.run_bin("--batch", "-", *args, data=data, stdout=f)
            self.assertEqual(rc, 0, err)
            return sorted((row["index"], row["text"]) for row in out()[before:]), err

        said = lambda text: "You said: " + text
        template = self.write("t.jinja", "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]")
        self.assertEqual(run('"one"\n"two"\n')[0], [(0, said("one")), (1, said("two"))])
        self.assertEqual(run('"one"\n"two"\n')[0], [])
        new, err = run('"one"\n"zwei"\n')
        self.assertEqual(new, [(1, said("zwei"))])
        self.assertIn("of the lines in the output, 1 have another hash", err)
        self.assertEqual(run('"zero"\n"one"\n"zwei"')[0], [(0, said("zero")), (1, said("one")), (2, said("zwei"))])
        for args in (("-n", "3"), ("-s", "Be short."), ("--seed", "4"), ("--until", "q"), ("--temp", "0.5"), ("--regex", "[^q]*"), ("--template", template)):
            self.assertEqual([i for i, _ in run('"one"\n"zwei"\n', *args)[0]], [0, 1], args)
            self.assertEqual(run('"one"\n"zwei"\n', *args)[0], [], args)
        with open(path, "a") as f:  # of an earlier version of hearth
            f.write('{"index": 0, "text": "old"}\n')
        self.assertEqual(run('"new"')[0], [(0, said("new"))])

    def test_batch(self):
        # an answer does not depend on those before it in its session
        self.assertIn(b'"text": "exact prefix only"', self.run_bin("--batch", "-", data='"flags"')[1])
        self.assertEqual([self.run_bin("-p", "flags", *more)[1] for more in ((), ("--deterministic",))], [b"any prefix\n", b"exact prefix only\n"])
        lines = ['"one"', '{"prompt": "think", "id": "x"}', "", "broken", '{"messages": [{"role": "user", "content": "hey"}], "id": 7, "max_tokens": 5}'] + ['"more"'] * 20
        rc, out, err = self.run_bin("--batch", "-", data="\n".join(lines))
        rows = sorted((json.loads(r) for r in out.splitlines()), key=lambda row: row["index"])
        self.assertEqual([r["index"] for r in rows], list(range(24)))
        self.assertEqual(rows[0]["text"], "You said: one")
        self.assertEqual((rows[1]["id"], rows[1]["text"]), ("x", "the answer"))
        self.assertIn("error", rows[2])
        self.assertEqual((rows[3]["id"], rows[3]["text"], rows[3]["reason"]), (7, "You s", "length"))
        self.assertEqual(rc, 1)

    def test_terminal_output(self):
        """stdout is a terminal: the model's output cannot reach it as control sequences."""
        t = self.terminal("-p", "escape")
        self.assertEqual(t.wait(), 0)
        self.assertNotIn(b"\x1b]", t.out)
        self.assertNotIn(b"\x1b[31m", t.out)
        self.assertNotIn(b"\xc2\x9b", t.out)
        self.assertNotIn(b"\b", t.out)
        self.assertIn("A\u241b[31mred\u241b]0;title\u2407B\u2408\u2408C\u240dD\ufffd31mE\u2421.", t.out.decode())

    def test_verify_tells_the_time(self):
        """The remaining time is counted from its start, not from the machine's."""
        t = self.terminal("--verify", env={"FAKE_LOAD": "2.5"})
        self.assertEqual(t.wait(), 0)
        left = re.findall(rb"\d+ %  (\d[^\x1b]*) left", t.out)
        self.assertTrue(left and all(x in (b"1 s", b"2 s") for x in left), left)
        self.assertTrue(t.out.endswith(b"ok\r\n"))

    def test_untrusted_names(self):
        """Names from a checkpoint, and paths: sanitised on a terminal, unchanged in a pipe."""
        t = self.terminal("--inspect", "-v")
        self.assertEqual(t.wait(), 0)
        self.assertIn("b\u241b]0;title\u2407\ufffd31m", t.out.decode())
        self.assertIn("b\x1b]0;title\x07\u009b31m", self.run_bin("--inspect", "-v")[1].decode())
        for term in ("xterm", "dumb"):
            t = self.terminal("-m", "/nowhere/\u009b31m\u202e", "-p", "x", env={"TERM": term})
            self.assertEqual(t.wait(), 3)
            self.assertIn("/nowhere/\ufffd31m\ufffd", t.out.decode())

    def test_first_sign_and_progress(self):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            in_pipes = pool.submit(self.run_bin, "-p", "prefill", env={"FAKE_LOAD": "2"})
            t = self.terminal("-p", "prefill", env={"FAKE_LOAD": "2"})
            t.until(rb"opening \[#+-*\] \d+ %  \d+ s left")
            t.until(rb"reading the prompt \[#+-*\] \d+ %  \d+ s left")
            self.assertEqual(t.wait(), 0)
            self.assertEqual(in_pipes.result(), (0, b"word0\n", ""))


if __name__ == "__main__":
    driver.unittest.main()
