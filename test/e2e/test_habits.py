"""Habits from other programs: a prompt without -p, names of models, default model, presets, prompt files, loops and pipes, keys during
an answer. Runs on the fake engine."""
import json
import os
import re
import subprocess
import time

import driver


class Habits(driver.ChatCase):
    # --- arguments

    def test_prompt_without_an_option(self):
        for args in (("what is it",), ("what", "is", "it"), ("--temp", "0", "what", "is it"), ("--", "what is it"), ("what is it", "-q")):
            self.assertEqual(self.run_bin(*args), (0, b"You said: what is it\n", ""), args)
        self.assertEqual(self.run_bin("--", "-x")[1], b"You said: -x\n")
        rc, out, err = self.run_bin("and this?", data="a document\n")
        self.assertEqual((rc, out), (0, b"You said: a document\n\nand this?\n"))
        self.assertIn("attached stdin as a document (10 B); --no-stdin ignores it", err)

    def test_help_and_version(self):
        everything, short = self.run_bin("--help", "all")[1], self.run_bin("--help")[1]  # short in a pipe, too: --help | less
        self.assertEqual(self.run_bin("help")[1], short)
        for args in (("--help", "CACHE"), ("-h", "cache"), ("help", "cache")):  # a word to search for
            rc, out, err = self.run_bin(*args)
            self.assertEqual((rc, err), (0, ""))
            self.assertEqual(re.findall(r"(?m)^ {6}--([a-z-]+)", out.decode()), ["models", "pull", "kv", "kv-cache", "expert-cache", "evict"])
        rc, out, err = self.run_bin("--help", "zork")
        self.assertEqual((rc, out), (2, b""))
        self.assertIn("no option has 'zork' in its name or text", err)
        self.assertEqual(self.run_bin("--help", "what is it")[1], short)  # typed before a question
        self.assertEqual(self.run_bin("what", "--help")[1], short)
        machine = re.findall(r"(?m)^  (?:-\w, |    )--([a-z-]+)", self.run_bin("--help", "machine")[1].decode())
        self.assertLess({"threads", "gpus", "kv", "prefill", "expert-cache"}, set(machine))
        self.assertEqual(self.run_bin("-V"), self.run_bin("--version"))
        self.assertEqual(self.run_bin("version"), self.run_bin("--version"))
        t = self.terminal("--help", rows=60, cols=160)  # on a screen: what is used every day
        self.assertEqual(t.wait(), 0)
        shown = re.findall(r"(?m)^  (?:-\w, |    )--([a-z-]+)", t.out.decode().replace("\r", ""))
        self.assertEqual(len(shown), 20)
        self.assertEqual(shown, re.findall(r"(?m)^  (?:-\w, |    )--([a-z-]+)", short.decode()))
        self.assertIn("--help all shows every option", t.out.decode())
        self.assertLess(t.out.count(b"\n"), 60)
        for cols in (60, 80, 120):  # words are not broken, and further rows of a text begin below its first
            t = self.terminal("--help", "all", cols=cols)
            self.assertEqual(t.wait(), 0)
            rows = t.out.decode().replace("\r", "").split("\n")
            self.assertLess(max(map(len, rows)), cols)
            self.assertEqual(" ".join(t.out.decode().split()), " ".join(everything.decode().split()))
            at = next(i for i, row in enumerate(rows) if "--repeat-penalty R" in row)
            self.assertRegex(rows[at + 1], r"^ {30}\S" if cols < 100 else r"^ +--")

    def test_resume(self):
        self.run_bin("--save", "first", "-p", "one")
        os.utime(self.session_file("first"), (1, 1))
        self.run_bin("--save", "second", "-p", "two")
        for args in (("-r", "first"), ("--resume", "first"), ("--resume=first",)):
            self.assertEqual(self.run_bin(*args, "-p", "prompt x")[0], 0)
        self.assertIn(b"[user]one", self.run_bin("-r", "first", "-p", "prompt x")[1])
        rc, out, err = self.run_bin("-r", "-p", "x")
        self.assertEqual((rc, out), (2, b""))
        self.assertIn("--last", err)
        os.utime(self.session_file("first"), (1, 1))
        for answer, name in (("\r", "second> "), ("2\r", "first> "), ("first\r", "first> ")):
            t = self.terminal("--continue")
            t.until(rb"(?s) 1  .*second.* 2  .*first.*Number or name \(Enter: 1\): ")
            t.send(answer)
            t.prompt(text=name)
            t.send("/bye\r")
            self.assertEqual(t.wait(), 0)
            os.utime(self.session_file("first"), (1, 1))
        t = self.terminal("-r")
        t.until("Number or name")
        t.send("9\r")
        self.assertEqual(t.wait(), 2)

    # --- models

    def test_default_model(self):
        path = self.model("deep")
        rc, out, err = self.run_bin("--use", path)
        self.assertEqual((rc, out), (0, b""))
        self.assertIn(path + " is now the default model", err)
        config = os.path.join(self.home, ".config/hearth/config")
        with open(config) as f:
            self.assertEqual(f.read(), f"model = {path}\n")
        self.run_bin("--save", "talk", "-p", "x")
        with open(self.session_file("talk")) as f:
            self.assertEqual(json.load(f)["body"]["path"], path)
        t = self.chat()
        self.assertIn(b"default model", t.out)
        with open(config, "w") as f:
            f.write("# mine\ntemp = 0.5\nmodel = /old\n\n[other]\nmodel = /kept\n")
        self.assertEqual(self.run_bin("--use", path)[0], 0)
        with open(config) as f:
            self.assertEqual(f.read(), f"# mine\ntemp = 0.5\nmodel = {path}\n\n[other]\nmodel = /kept\n")
        self.assertEqual(self.run_bin("--use", "ember")[0], 0)
        self.assertIn("model = ember\n", open(config).read())
        self.assertEqual(self.run_bin("--use", "nosuch")[0], 3)

    def test_names_of_models(self):
        for name in ("DeepSeek-V3", "DeepSeek-R1", "Mixtral"):
            self.model(name)
        path = os.path.join(self.home, "models")

        def opened(name):
            rc, out, err = self.run_bin("-m", name, "--model-path", path, "--save", "x", "-p", "x")
            if rc:
                return rc, err
            with open(self.session_file("x")) as f:
                got = json.load(f)["body"]["model"]
            os.unlink(self.session_file("x"))
            return got
        self.assertEqual([opened(n) for n in ("mixtral", "MIX", "deepseek-v3", "deepseek-r")], ["Mixtral", "Mixtral", "DeepSeek-V3", "DeepSeek-R1"])
        rc, err = opened("deepseek")
        self.assertEqual(rc, 2)
        self.assertIn("-m deepseek is ambiguous: DeepSeek-R1, DeepSeek-V3", err)
        rc, err = opened("nosuch")
        self.assertEqual(rc, 3)
        self.assertIn("hearth --pull ORG/NAME downloads one", err)
        rc, err = opened("Qwen/Qwen3-30B")
        self.assertEqual(rc, 3)
        self.assertIn("this downloads it: hearth --pull Qwen/Qwen3-30B", err)

    def test_verbs(self):
        """What people type from other programs does what it means, or says what to type; it is never a question to the built-in model."""
        for name in ("alpha", "beta"):
            self.model(name)
        self.env["HEARTH_MODEL_PATH"] = os.path.join(self.home, "models")
        path = os.path.join(self.home, "models", "beta")

        def model_of(*args):
            rc, out, err = self.run_bin(*args, "--save", "x")
            self.assertEqual(rc, 0, err)
            with open(self.session_file("x")) as f:
                body = json.load(f)["body"]
            os.unlink(self.session_file("x"))
            return body["path"], body["messages"][0]["content"]
        for verb in ("run", "chat"):
            self.assertEqual(model_of(verb, "beta", "prompt", "x y"), (path, "prompt x y"))
            self.assertEqual(model_of(verb, "beta", "-p", "hi"), (path, "hi"))
            self.assertEqual(model_of(verb, "beta", "list"), (path, "list"))
            t = self.terminal(verb, "beta")
            t.prompt()
            t.send("/bye\r")
            self.assertEqual(t.wait(), 0)
        self.assertEqual(model_of("-m", "beta", "show", "me", "a", "list"), (path, "show me a list"))
        self.assertEqual(model_of("show me a list")[1], "show me a list")
        for verb in ("list", "ls"):
            self.assertEqual(self.run_bin(verb), self.run_bin("--models"))
            self.assertEqual(self.run_bin(verb, "--json"), self.run_bin("--models", "--json"))
        self.assertEqual(self.run_bin("show", "beta"), self.run_bin("-m", "beta", "--inspect"))
        self.assertEqual(self.run_bin("-m", "beta", "show"), self.run_bin("-m", "beta", "--inspect"))
        self.assertEqual(self.run_bin("ps"), self.run_bin("--status"))
        self.assertEqual(self.run_bin("stop"), self.run_bin("--stop"))
        self.assertEqual(self.run_bin("pull", "org/x", env={"HF_HUB_OFFLINE": "1"}), self.run_bin("--pull", "org/x", env={"HF_HUB_OFFLINE": "1"}))
        t = self.terminal("chat")
        t.prompt()
        t.send("\x04")
        self.assertEqual(t.wait(), 0)
        for args in (["run"], ["pull"], ["show"], ["list", "files"], ["ps", "aux"], ["serve", "a", "b"], ["pull", "a/b", "c/d"], ["show", "a", "b"], ["rm", "beta"], ["rm"]):
            rc, out, err = self.run_bin(*args)
            self.assertEqual((rc, out), (2, b""), args)
            self.assertIn(f'to ask a question that begins with \'{args[0]}\': -p "{args[0]} ..."', err)
        rc, out, err = self.run_bin("run", "nosuch", "hi")
        self.assertEqual((rc, out), (3, b""))
        t = self.terminal("serve", "beta")
        t.until("serving")
        t.send("\x03")
        t.wait()

    def test_effort(self):
        """--effort in the words that the model's template knows, or as a switch for thinking; what it cannot do is said once."""
        self.env["FAKE_SHOWS_VARS"] = "1"
        gpt_oss, switch = "reasoning_effort", "enable_thinking"
        on, off = "<enable_thinking=true><thinking=true>", "<enable_thinking=false><thinking=false>"
        for template, level, variables, note in (
                (gpt_oss, "high", '<reasoning_effort="high">', ""), (gpt_oss, "max", '<reasoning_effort="high">', ""), (gpt_oss, "1", '<reasoning_effort="low">', ""), (gpt_oss, "50", '<reasoning_effort="medium">', ""),
                (gpt_oss, "100", '<reasoning_effort="high">', ""), (gpt_oss + " 'max' \"none\"", "100", '<reasoning_effort="max">', ""), (gpt_oss + " 'max' \"none\"", "none", '<reasoning_effort="none">', ""), (gpt_oss, "none", '<reasoning_effort="low">', ""),
                (switch, "none", off, ""), (switch, "low", on, "only switches thinking on or off; it is on"), (gpt_oss + switch, "low", '<reasoning_effort="low">' + on, ""),
                (gpt_oss + switch, "none", '<reasoning_effort="low">' + off, ""), (gpt_oss + " 'low' 'high'", "medium", '<reasoning_effort="medium">', "names only low, high"),
                (gpt_oss + " 'low' 'high'", "high", '<reasoning_effort="high">', ""), ("", "low", "", "knows neither an effort nor a switch")):
            rc, out, err = self.run_bin("-p", "prompt x", "--effort", level, env={"FAKE_MENTIONS": template})
            self.assertEqual((rc, out.decode()), (0, f"[user]prompt x{variables}[assistant]\n"), (template, level))
            self.assertEqual(note in err, True, err)
            self.assertEqual(bool(note), bool(err), err)
        self.assertIn(off.encode(), self.run_bin("-p", "prompt x", "--effort", "high", "--no-think", env={"FAKE_MENTIONS": gpt_oss + switch})[1])
        for level in ("0", "101", "loud", "", "1000"):
            self.assertEqual(self.run_bin("-p", "x", "--effort", level)[0], 2, level)
        t = self.chat(env={"FAKE_MENTIONS": gpt_oss})
        self.ask(t, "/effort", "effort            auto")
        self.ask(t, "/effort high", "effort is high from the next answer on")
        self.ask(t, "prompt x", '<reasoning_effort="high">')
        self.ask(t, "/EFFORT loud", "'loud' is not one of: none minimal low medium high xhigh max")
        self.ask(t, "/set effort 20", "effort is 20 from the next answer on")
        self.ask(t, "prompt x", '<reasoning_effort="low">')
        self.assertIn("effort            20", self.ask(t, "/show", "effort"))
        t = self.chat(env={"FAKE_MENTIONS": ""})
        said = self.ask(t, "/effort low", "knows neither an effort nor a switch for thinking")  # at once
        self.assertIn("effort low changes nothing", said)
        self.assertIn("/set think-limit N", said)
        self.assertNotIn("from the next answer on", said)
        self.assertNotIn("neither an effort", self.ask(t, "prompt x", "assistant"))
        self.ask(t, "/set effort high", "knows neither an effort nor a switch for thinking")
        self.ask(t, "/set effort default", "effort is default from the next answer on")
        t = self.chat(env={"FAKE_MENTIONS": switch})
        self.ask(t, "/effort low", "effort is low from the next answer on; the model's chat template only switches thinking on or off; it is on")
        t = self.chat(env={"FAKE_MENTIONS": gpt_oss + " 'low' 'high'"})
        self.ask(t, "/effort medium", "effort is medium from the next answer on; the model's chat template names only low, high")

    def test_template_variables(self):
        """--template-var as JSON, or else as text, after hearth's own variables."""
        self.env.update(FAKE_SHOWS_VARS="1", FAKE_MENTIONS="colour enable_thinking")
        rc, out, err = self.run_bin("-p", "prompt x", "--template-var", "colour=red", "--template-var", "sizes=[1,2]", "--template-var", "enable_thinking=false", "--think")
        self.assertEqual((rc, out), (0, b'[user]prompt x<enable_thinking=true><thinking=true><colour="red"><sizes=[1, 2]><enable_thinking=false>[assistant]\n'))
        self.assertEqual(err, "hearth: --template-var sizes: the model's chat template has no such variable\n")
        for text, why in (("x", "not NAME=VALUE"), ("=x", "not NAME=VALUE"), ("messages=[]", "hearth itself sets"), ("tools=1", "hearth itself sets")):
            rc, out, err = self.run_bin("-p", "x", "--template-var", text)
            self.assertEqual((rc, out), (2, b""), text)
            self.assertIn(why, err)

    def test_missing_default(self):
        """A default model that has gone is called so, with where it was set."""
        rc, out, err = self.run_bin("-p", "x", env={"HEARTH_MODEL": "/no/such"})
        self.assertEqual((rc, out), (3, b""))
        self.assertIn("the default model (HEARTH_MODEL): /no/such: no such directory", err)
        self.write(".config/hearth/config", "model = /gone\n")
        self.assertIn("the default model (configuration file; hearth --use NAME changes it): /gone: no such", self.run_bin("-p", "x")[2])
        self.assertNotIn("default model", self.run_bin("-m", "/gone", "-p", "x")[2])

    def test_model_and_its_neighbours(self):
        """/model lists a model that was opened by its path, and those beside it."""
        here, there = (self.model("deep/" + name) for name in ("here", "there"))
        t = self.chat("-m", here)
        self.ask(t, "/model", there)
        self.assertIn(here.encode(), t.out)
        self.ask(t, "/model 3", "now using")

    def test_counts_of_tokens(self):
        """-c 4k is 4,096 tokens, and so is -n."""
        for args in (("-c", "4k"), ("-n", "1K"), ("-c", "4096")):
            self.assertEqual(self.run_bin(*args, "-p", "hi")[0], 0, args)
        for args in (("-c", "4kk"), ("-c", "k"), ("-c", "4m"), ("--seed", "4k"), ("-c", "99999999999999999k")):
            self.assertEqual(self.run_bin(*args, "-p", "hi")[0], 2, args)
        self.assertIn("of 4096 tokens", self.ask(self.chat("-c", "4k"), "/tokens", "empty"))

    def test_first_arrow_up(self):
        """Arrow-Up and Ctrl-P recall the history at the first prompt of a chat."""
        t = self.chat()
        self.ask(t, "earlier question", "You said: earlier question")
        t.send("\x04")
        t.wait()
        for key in ("\x1b[A", "\x10"):
            t = self.chat()
            at = self.last
            t.send(key)
            t.until("earlier question", at)
            t.send("\r")
            t.until("You said: earlier question", at)

    def test_resumed_document(self):
        """A long question, as a document that was piped in, is shown in part when its conversation is resumed."""
        document = "".join(f"row {i} of the text\n" for i in range(500))
        self.assertEqual(self.run_bin("-p", "say", "--save", "talk", data=document)[0], 0)
        t = self.terminal("--continue", "talk", rows=60, cols=100)
        at = t.prompt(text="talk> ")
        self.assertIn(b"row 8 of the text", t.out)
        self.assertNotIn(b"row 12 of the text", t.out[:t.out.index(b"more lines")])
        self.assertRegex(t.out, rb"\(49\d more lines; /export FILE writes them all\)")

    def test_binary_stdin(self):
        """stdin is refused as a file is, with what to do about it."""
        for data, text in ((b"\x7fELF" + bytes(300), "ELF executable"), (b"text\0more" * 10, "NUL bytes"), (b"%PDF-1.4\n\0\0", "PDF); convert it first: pdftotext"), (b"\xff\xd8\xff\xe0" + bytes(50), "image")):
            path = os.path.join(self.home, "file")
            with open(path, "wb") as f:
                f.write(data)
            for args in (("-p", "x"), ("-p", "x", "-f", path)):
                rc, out, err = self.run_bin(*args, data=b"" if "-f" in args else data)
                self.assertEqual((rc, out), (1, b""), (data, args))
                self.assertIn("not a text file (", err)
                self.assertIn(text, err)

    def test_batch_lines(self):
        rc, out, err = self.run_bin("--batch", "-", data=b'one\n\ntwo\n')
        self.assertEqual(sorted((r["index"], r["line"]) for r in map(json.loads, out.splitlines())), [(0, 1), (1, 3)])

    def test_short_help_of_chats(self):
        """/help has ten commands, /help all every one; the rows of a text begin below each other."""
        for word, n in (("", 10), (" all", 0)):
            t = self.chat(cols=70)
            begin = len(t.out)
            t.send("/help" + word + "\r")
            t.prompt(t.until("Ctrl-D leaves", begin))
            rows = t.out[begin:].decode().replace("\x1b[2m", "").replace("\x1b[0m", "").replace("\r", "").split("\n")
            commands = [row for row in rows if re.match(r"  /\w", row)]
            self.assertTrue(len(commands) == 10 if not word else len(commands) >= 30, len(commands))
            at = next(i for i, row in enumerate(rows) if "/copy [code [N]]" in row)
            self.assertRegex(rows[at + 1], r"^ {25}\w")

    def test_names_of_other_programs(self):
        for given, meant in (("--list-models", "--models"), ("--sessions", "--list"), ("--chats", "--list"), ("--download", "--pull")):
            self.assertIn(f"did you mean '{meant}'", self.run_bin(given)[2])

    def test_default_model_is_listed(self):
        path = self.model("elsewhere/model")
        self.assertFalse(any("default" in row for row in json.loads(self.run_bin("--models", "--json")[1])))
        self.assertEqual(self.run_bin("--use", path)[0], 0)
        rows = json.loads(self.run_bin("--models", "--json")[1])
        self.assertEqual([(row["name"], row["dir"]) for row in rows if row.get("default")], [("model", path)])
        self.assertRegex(self.run_bin("--models")[1].decode(), r"(?m)^model .* \(default\)$")
        for name in ("model", "MOD"):  # the last name opens it, as those of other models; here -m overrides the default
            self.assertEqual(self.run_bin("-m", name, "--save", name, "-p", "x")[0], 0)
            with open(self.session_file(name)) as f:
                self.assertEqual(json.load(f)["body"]["path"], path)
        self.write("models/model/config.json", "{}")
        listed = [row["name"] for row in json.loads(self.run_bin("--models", "--json", env={"HEARTH_MODEL_PATH": os.path.join(self.home, "models")})[1])]
        self.assertEqual(listed, ["ember", path, "model"])
        hub = ".cache/huggingface/hub/models--Org--Small"
        self.write(hub + "/refs/main", "abc")
        self.write(hub + "/snapshots/abc/config.json", "{}")
        self.assertIn("Org/Small is now the default model", self.run_bin("--use", "small")[2])  # not its snapshot
        self.assertEqual([row["name"] for row in json.loads(self.run_bin("--models", "--json")[1]) if row.get("default")], ["Org/Small"])

    def test_bandwidth_is_measured_once(self):
        self.env["HEARTH_MODEL_PATH"] = os.path.join(self.home, "models")
        self.assertEqual(self.run_bin("--models", "--json")[0], 0)
        path = os.path.join(self.home, ".cache/hearth/bandwidth")
        with open(path) as f:
            host, rate = f.read().split()
        self.assertEqual(float(rate), 1e9)
        rows = lambda: json.loads(self.run_bin("--models", "--json")[1])[0]["tokens_per_s_at_most"]
        first = rows()
        for text, want in ((f"{host} 3e9\n", 3 * first), ("other 3e9\n", first), ("damaged", first)):
            with open(path, "w") as f:
                f.write(text)
            self.assertAlmostEqual(rows(), want, delta=first / 100)
        for by, want in ((-3600, 3 * first), (3600, first), (-40 * 86400, first)):  # of the future: the clock was set back since
            with open(path, "w") as f:
                f.write(f"{host} 3e9\n")
            os.utime(path, (time.time() + by,) * 2)
            self.assertAlmostEqual(rows(), want, delta=first / 100)

    def test_long_list_of_models(self):
        for i in range(40):
            self.model(f"a-model-with-a-long-name-{i:02}")
        rc, out, err = self.run_bin("-m", os.path.join(self.home, "models"), "-p", "x")
        self.assertEqual(rc, 2)
        names = re.findall(r"(\S*a-model\S*)", err)
        self.assertTrue(names and all(re.search(r"name-\d\d$", n) for n in names), err)  # none is cut
        self.assertIn(f"and {40 - len(names)} more", err)

    # --- scripts

    def test_no_stdin(self):
        script = 'while read -r x; do "$0" --no-stdin -p "$x"; done'
        p = subprocess.run(["sh", "-c", script, driver.BIN], input=b"a\nb\nc\n", capture_output=True, env=self.env)
        self.assertEqual((p.stdout, p.stderr), (b"You said: a\nYou said: b\nYou said: c\n", b""))
        self.assertEqual(self.run_bin("--no-stdin", data="text")[0], 2)

    def test_batch_of_plain_lines(self):
        path = self.write("plain.txt", "first question\n\n[1, 2]\n{\"prompt\": \"x\"}\n")
        rc, out, err = self.run_bin("--batch", path)
        lines = sorted((json.loads(line) for line in out.splitlines()), key=lambda x: x["index"])
        self.assertEqual((rc, [x["text"] for x in lines]), (0, ["You said: first question", "You said: [1, 2]", 'You said: {"prompt": "x"}']))
        path = self.write("b.jsonl", '{"prompt": "x"}\nnot json\n')  # a file of JSON: a broken line is an error
        rc, out, err = self.run_bin("--batch", path)
        self.assertEqual((rc, out.count(b'"error"')), (1, 1))

    def test_parallel_runs_do_not_mix_within_lines(self):
        p = subprocess.run(["xargs", "-P", "4", "-I", "{}", driver.BIN, "--no-stdin", "-p", "slow {}"], input=b"".join(b"%d\n" % i for i in range(8)), capture_output=True, env=self.env)
        want = "".join(f"w{i} " for i in range(60)).strip()
        self.assertEqual([line.strip() for line in p.stdout.decode().splitlines()], [want] * 8)

    def test_lines_are_passed_on_when_complete(self):
        """A reader of a pipe sees each line at once, not only at the end."""
        p = subprocess.Popen([driver.BIN, "-p", "rows"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=self.env)
        self.assertEqual(p.stdout.readline(), b"row 0\n")
        self.assertIsNone(p.poll())
        self.assertEqual(len(p.stdout.read().splitlines()), 59)
        self.assertEqual(p.wait(), 0)
        p.stdout.close()

    def test_port_beside_serve(self):
        rc, out, err = self.run_bin("--serve", "8123")
        self.assertEqual((rc, out), (2, b""))
        self.assertIn("a port comes after --listen", err)

    def test_prompt_file(self):
        path = self.write("ask.txt", "prompt Translate {{text}} into {{ lang }}; {{}} and {x} stay.\n")
        rc, out, err = self.run_bin("--prompt-file", path, "--var", "text=a=b {{lang}}", "--var", "lang=French")
        self.assertEqual((rc, out), (0, b"[user]prompt Translate a=b {{lang}} into French; {{}} and {x} stay.\n[assistant]\n"))
        for args, why in ((["--var", "text=x"], "{{lang}} has no value; give --var lang=VALUE"), (["--var", "text=x", "--var", "lang=y", "--var", "z=1"], "has no {{z}}"),
                          (["--var", "text"], "NAME=VALUE"), (["--var", "text=x", "-p", "y"], "cannot be combined")):
            rc, out, err = self.run_bin("--prompt-file", path, *args)
            self.assertEqual((rc, out), (2, b""), args)
            self.assertIn(why, err)
        self.assertEqual(self.run_bin("-p", "x", "--var", "a=b")[0], 2)

    # --- presets

    def test_presets(self):
        path = self.model("deep")
        self.write(".config/hearth/config", f"temp = 0.1\n[review]\nsystem = Be brief.\ntemp = 0.7\ntop-k = 5\nmodel = {path}\n[other]\nseed = 3\nnosuch = 1\n")
        self.assertRegex(self.run_bin("-p", "sampling")[1].decode(), "temp 0.1 .*top-k 0")
        rc, out, err = self.run_bin("--preset", "review", "-p", "sampling", "--save", "x")
        self.assertRegex(out.decode(), "temp 0.7 .*top-k 5")
        self.assertIn("unknown key 'nosuch'", err)
        with open(self.session_file("x")) as f:
            self.assertEqual(json.load(f)["body"]["path"], path)
        self.assertIn(b"[system]Be brief.[user]", self.run_bin("--preset", "review", "-p", "prompt")[1])
        self.assertIn(b"temp 0.2 ", self.run_bin("--preset", "review", "--temp", "0.2", "-p", "sampling")[1])
        self.assertIn(b"temp 0.7 ", self.run_bin("--preset", "review", "-p", "sampling", env={"HEARTH_TEMP": "0.3"})[1])
        printed = self.run_bin("--preset", "review", "--print-config", "-q")[1].decode()  # is a configuration file with the same values
        with open(os.path.join(self.home, "printed"), "w") as f:
            f.write(printed)
        other = os.path.join(self.home, "xdg")
        os.makedirs(other + "/hearth")
        os.rename(os.path.join(self.home, "printed"), other + "/hearth/config")
        self.assertRegex(self.run_bin("-p", "sampling", env={"XDG_CONFIG_HOME": other})[1].decode(), "temp 0.7 .*top-k 5")
        rc, out, err = self.run_bin("--preset", "nosuch", "-p", "x")
        self.assertEqual((rc, out), (2, b""))
        self.assertIn("the configuration file has review, other", err)
        t = self.chat("-q")
        self.ask(t, "/preset", rb"(?s)review.*other.*in use: none")
        self.ask(t, "/preset nosuch", "no preset 'nosuch'")
        self.ask(t, "/preset review", rb"(?s)now using.*preset review, with its system prompt")
        self.ask(t, "sampling", "temp 0.7 .*top-k 5".encode())
        self.ask(t, "prompt", "[system]Be brief.[user]sampling")
        self.ask(t, "/preset other", "preset other, starting")
        self.ask(t, "sampling", b"temp 0.1 .*top-k 0 .*seed 3 ")  # what the other preset had set is gone

    # --- during an answer

    def test_commands_during_an_answer(self):
        t = self.chat()
        t.send("slow\r")
        t.until("w5 ")
        t.send("/help tokens\r")
        at = t.until("show how full the context is", self.last)
        self.assertNotIn(b"w59", t.out)
        at = t.until("w20 ", at)  # the answer goes on below
        t.send("/list\r")
        at = t.until("decoding,", at)
        t.send("/tokens\r")
        at = t.until("of 65536 tokens", at)
        self.assertNotIn(b"w59", t.out)
        self.last = t.prompt(t.until("w59", at))
        words = re.findall(r"\bw(\d+)\b", " ".join(t.screen(24, 200)))
        self.assertEqual([int(w) for w in words], list(range(60)))

    def test_escape_stops(self):
        t = self.chat()
        t.send("slow\r")
        t.until("w5 ")
        t.send("\x1b")
        self.last = t.prompt(t.until("(stopped; /continue resumes it)"))
        self.assertNotIn(b"w59", t.out)
        t.send("slow\r")
        at = t.until("w5 ", self.last)
        t.send("\x1b[D")  # a key that begins with ESC
        self.last = t.prompt(t.until("w59", at))

    def test_escape_at_the_prompt(self):
        """A lone ESC does not swallow the key that comes much later."""
        t = self.chat()
        t.send("\x1b")
        time.sleep(1)
        self.ask(t, "/tokens", "of 65536 tokens")

    def test_completion_of_several_files(self):
        self.write("one.txt", "1")
        self.write("two.txt", "2")
        t = self.chat()
        self.ask(t, "/read ~/on\t ~/tw\t", "2 files, 2 B attached")

    def test_words_that_leave_other_programs(self):
        t = self.chat()
        for word in ("exit", "quit", ":q"):
            shown = self.ask(t, word, f"Not sent. To leave, press Ctrl-D or type /exit; to send the word itself, type a space first")
            self.assertNotIn("You said", shown)
        self.ask(t, " exit", b"You said:  ?exit\r")
        self.ask(t, "exit the room", "You said: exit the room")

    def test_paths_are_questions(self):
        t = self.chat()
        self.ask(t, "/etc/fstab has a bug", "You said: /etc/fstab has a bug")
        self.ask(t, "/tmp is full, why?", "You said: /tmp is full")
        self.ask(t, "/nosuch", "unknown command /nosuch")
        self.ask(t, "/toknes", "did you mean /tokens")

    # --- text

    def test_long_paste_is_folded(self):
        t = self.chat()
        lines = "".join(f"line {i}\r" for i in range(2000))
        t.send("code of it: \x1b[200~" + lines + "\x1b[201~ end")
        t.until("[paste 1: 2001 lines, 18.9 kB] end", self.last)
        t.quiet()
        self.assertEqual([line for line in t.screen(24, 200) if line][-1], "> code of it: [paste 1: 2001 lines, 18.9 kB] end")
        t.send("\r")
        self.last = t.prompt(t.until("Sure:", self.last))
        t.send("/save kept\r")
        t.prompt(t.until("saved as kept", self.last), "kept> ")
        with open(self.session_file("kept")) as f:
            said = json.load(f)["body"]["messages"][0]["content"]
        self.assertEqual(said, "code of it: " + lines.replace("\r", "\n") + " end")
        t.send("\x1b[200~a\rb\x1b[201~\r")  # a short one is shown whole
        t.prompt(t.until(rb"You said: a\r?\nb", self.last), "kept> ")

    def test_edit_and_export(self):
        editor = self.write("ed.sh", "#!/bin/sh\nprintf '%s edited' \"$(cat \"$1\")\" > \"$1\"\n")
        os.chmod(editor, 0o700)
        t = self.chat(env={"EDITOR": editor})
        t.send("/edit my text\r")
        at = t.until(rb"my text edited\r", self.last)
        t.send("\r")
        self.last = t.prompt(t.until("You said: my text edited", at))
        path = os.path.join(self.home, "out.md")
        self.ask(t, "/export " + path, "2 messages written to")
        with open(path) as f:
            self.assertEqual(f.read(), "## Question\n\nmy text edited\n\n## Answer\n\nYou said: my text edited\n")
        self.ask(t, "/export " + path, "exists already")

    def test_search(self):
        self.run_bin("--save", "a", "-p", "the Red fox")
        self.run_bin("--save", "b", "-p", "a blue bird")
        t = self.chat()
        shown = self.ask(t, "/search red", "1 found")
        self.assertIn("a: the Red fox", shown)
        self.ask(t, "/search green", "no saved conversation contains")
        self.ask(t, "/help read", "at most 200")
        self.ask(t, "/help nosuch", "unknown command /nosuch")


if __name__ == "__main__":
    driver.unittest.main()
