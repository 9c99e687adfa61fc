"""Structured answers of the built-in model: whatever the seed, draft and limit, an answer is valid or the turn ends with an error. test_documents.py asks random
models."""
import json
import os
import re
import subprocess
import sys
import unittest

import driver
from server import Case
from test_protocols import CITY, TEMPLATE, is_city

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "unit"))
from schemas import REFUSED, TREE, obj  # noqa: E402

PERSON = obj({"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 130}, "kind": {"enum": ["a", "bb"]}})


def is_person(value):
    return (list(value) == ["name", "age", "kind"] and isinstance(value["name"], str) and len(value["name"]) <= 20 and type(value["age"]) is int and 0 <= value["age"] <= 130
            and value["kind"] in ("a", "bb"))


class Structured(Case):
    def setUp(self):
        super().setUp()
        self.use_ember_as_any_model()

    def answer(self, *args, model=None, ok=True):
        rc, out, err = self.run_bin(*(["-m", model] if model else []), "--no-attach", "--no-save", "-q", "-p", "Tell me something", *args)
        if ok:
            self.assertEqual(rc, 0, err)
        return out.decode() if ok else (rc, out.decode(), err)

    def test_schema(self):
        for seed in range(4):
            text = self.answer("--schema", json.dumps(PERSON), "--seed", str(seed), "--temp", "1.5")
            self.assertTrue(is_person(json.loads(text)), text)
            tree = json.loads(self.answer("--schema", json.dumps(TREE), "--seed", str(seed), "--temp", "3", "-n", "200"))
            self.assertEqual(list(tree), ["value", "children"])

    def test_older_drafts(self):
        """Schemas in words of earlier drafts and of OpenAPI mean what they meant there."""
        number, few = {"type": "integer", "minimum": 3, "exclusiveMinimum": True, "maximum": 6, "exclusiveMaximum": False}, {"type": "string", "maxLength": 3}
        pair = {"type": "array", "items": [number, {"type": "boolean"}], "additionalItems": False, "minItems": 2}
        null = {"$ref": "#/definitions/few", "nullable": True}
        schema = {**obj({"pair": pair, "null": {"type": "array", "items": null, "minItems": 6, "maxItems": 6}, "code": {**few, "format": "byte"}, "all": {"allOf": [pair]}}), "nullable": True,
                  "definitions": {"few": {"type": "string", "enum": ["a", "b"], "nullable": False}}}
        seen = set()
        for seed in range(4):
            got = json.loads(self.answer("--schema", json.dumps(schema), "--seed", str(seed), "--temp", "2"))
            for first, second in (got["pair"], got["all"]):
                self.assertTrue(first in (4, 5, 6) and second in (True, False), got)
            seen |= set(got["null"])
        self.assertTrue(len(got["code"]) <= 3 and seen == {"a", "b", None}, (got, seen))

    def test_as_serializers_write(self):
        """null for what is not set, `required` beside a property, and formats of numbers and enums say what their authors mean."""
        few, unset = {"enum": ["a", "b"], "format": "enum", "pattern": None}, {"type": "array", "items": None, "minItems": 1, "maxItems": 1, "prefixItems": None, "contains": None}
        pair = {"type": "array", "items": [{"const": 1}], "additionalItems": None, "minItems": 1, "maxItems": 1}
        inner = {"type": "object", "properties": {"a": {**few, "required": True}, "b": {"type": "null", "required": False}, "c": {"const": None, "required": True}}, "required": ["c"],
                 "additionalProperties": None, "minProperties": None}
        schema = {"type": "object", "properties": {"in": {**inner, "required": True}, "list": unset, "pair": pair, "long": {"type": ["string", "integer"], "format": "int64"}}, "anyOf": None,
                  "required": ["list", "pair", "long"], "$defs": None}
        for seed in range(4):
            got = json.loads(self.answer("--schema", json.dumps(schema), "--seed", str(seed), "--temp", "2"))
            self.assertTrue(got["in"]["a"] in ("a", "b") and "c" in got["in"] and set(got["in"]) <= {"a", "b", "c"} and len(got["list"]) == 1 and got["pair"] == [1], got)
            int(got["long"])
        none = {"type": "object", "properties": None, "required": None, "maxProperties": 0}
        self.assertEqual(json.loads(self.answer("--schema", json.dumps(none))), {})

    def test_limit_of_files(self):
        """Wherever `ulimit -n` ends the start, the message names that limit."""
        codes = set()
        for n in range(5, 14):
            p = subprocess.run(["sh", "-c", f'ulimit -n {n}; exec "$0" --no-attach --no-save -p hi', driver.BIN], env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                               timeout=driver.PATIENCE)
            codes.add(p.returncode)
            self.assertTrue(p.returncode == 0 or (p.returncode in (1, 3) and "ulimit -n" in p.stderr), (n, p))
        self.assertTrue(0 in codes and 1 in codes, codes)

    def test_drafts_change_nothing(self):
        for seed in range(3):
            args = ["--schema", json.dumps({"type": "array", "items": PERSON, "minItems": 2, "maxItems": 3}), "--seed", str(seed), "--temp", "1.2"]
            plain = self.answer(*args, "--draft", "none")
            self.assertTrue(all(map(is_person, json.loads(plain))), plain)
            self.assertEqual(self.answer(*args, "--draft", "lookup", "--draft-len", "8"), plain)

    def test_forced_text_is_drafted(self):
        """Text that must follow is drafted: one decode batch verifies several of its tokens."""
        schema = json.dumps(obj({"question": {"const": "how do i save a chat and open it again on another day"}}))
        got = [json.loads(self.answer("--schema", schema, "--temp", "0", "--json", "--draft", *draft)) for draft in (["none"], ["lookup", "--draft-len", "16"])]
        self.assertEqual(got[0]["text"], got[1]["text"])
        self.assertEqual(got[0]["timing"]["accepted"], 0)
        print(f"{got[1]['timing']['accepted']} of {got[1]['usage']['answer_tokens']} tokens were drafted")
        self.assertGreater(got[1]["timing"]["accepted"], got[1]["usage"]["answer_tokens"] // 4)

    def test_limit(self):
        """Near the limit only tokens that leave room are drawn; without room the turn ends with an error."""
        open_name = {**PERSON, "properties": {**PERSON["properties"], "name": {"type": "string"}}}
        for n in (40, 50, 60):
            person = json.loads(self.answer("--schema", json.dumps(open_name), "--temp", "2", "--seed", "3", "-n", str(n)))
            self.assertTrue(is_person(person | {"name": ""}), person)
        rc, out, err = self.answer("--schema", json.dumps(PERSON), "-n", "5", ok=False)
        self.assertEqual(rc, 1)
        self.assertIn("a larger limit", err)

    def test_limit_is_in_tokens(self):
        """An answer with fewer tokens than bytes is completed within the limit that the error names, and with no token less."""
        template = self.write("tools.jinja", TEMPLATE)
        tool = self.write("get_weather.json", json.dumps({"name": "get_weather", "parameters": CITY, "command": ["cat"]}))
        schema = json.dumps(obj({"question": {"const": "how do i save a chat and open it again on another day"}, "name": {"type": "string"}, "n": {"type": "integer"}}))
        tools = ["--template", template, "--tool", tool, "--allow", "all", "--tool-choice", "required"]
        for args in (["--schema", schema], tools):
            rc, out, err = self.answer(*args, "-n", "5", ok=False)
            self.assertEqual(rc, 1)
            needed = int(re.search(r"needs (\d+) more tokens to match its grammar, and its limit leaves 5; a larger limit", err)[1])
            self.assertLess(needed, 60)
            for seed in range(2):
                for n in (needed, needed + 3, 60):
                    got = json.loads(self.answer(*args, "--json", "--temp", "2", "--seed", str(seed), "-n", str(n)))
                    if args is tools:  # a call that ends at the limit was not cut
                        self.assertTrue(is_city(got["calls"][0]["arguments"]), got)
                    else:
                        self.assertEqual(list(json.loads(got["text"])), ["question", "name", "n"])
            rc, out, err = self.answer(*args, "-n", str(needed - 1), ok=False)
            self.assertEqual(rc, 1)
            self.assertIn(f"needs {needed} more tokens to match its grammar, and its limit leaves {needed - 1}", err)

    def test_other_grammars(self):
        path = os.path.join(self.home, "g.gbnf")
        with open(path, "w") as f:
            f.write('root ::= ("yes" | "no") [!?]{2}\n')
        for seed in range(3):
            hot = ["--temp", "2", "--seed", str(seed)]
            self.assertRegex(self.answer("--regex", "[a-c]{3}(-[0-9]{2})+", *hot, "-n", "60"), r"^[a-c]{3}(-[0-9]{2})+\n$")
            self.assertRegex(self.answer("--grammar", path, *hot), r"^(yes|no)[!?]{2}\n$")
            self.assertIn(self.answer("--choices", "red,dark green,b", *hot), ("red\n", "dark green\n", "b\n"))
            self.assertIsInstance(json.loads(self.answer("--json-object", *hot, "-n", "120")), dict)
        self.assertIn(json.loads(self.answer("--choices", "red,blue", "--json"))["text"], ("red", "blue"))

    def test_batch(self):
        path = os.path.join(self.home, "b.txt")
        with open(path, "w") as f:
            f.write("".join(f"question {i}\n" for i in range(7)))
        rc, out, err = self.run_bin("--batch", path, "--no-attach", "--schema", json.dumps(PERSON), "--temp", "1.5")
        self.assertEqual(rc, 0, err)
        texts = [json.loads(line)["text"] for line in out.splitlines()]
        self.assertEqual(len(texts), 7)
        for text in texts:
            self.assertTrue(is_person(json.loads(text)), text)

    def test_refusals(self):
        for name in ("not", "pattern", "ref", "one_of", "no_value"):
            schema, where = REFUSED[name]
            rc, out, err = self.answer("-m", "/nonexistent", "--schema", json.dumps(schema), ok=False)
            self.assertEqual((rc, out), (2, ""), err)
            self.assertIn("--schema: " + where, err)
        for args, what in ((("--schema", "/nonexistent.json"), "/nonexistent.json"), (("--regex", "a("), "--regex: character 3"), (("--schema", "{}", "--json-object"), "--schema and --json-object"),
                           (("--choices", "a", "--until", "b"), "--choices and --until"), (("--regex", "a", "--extract"), "--regex and --extract"), (("--choices", "a,,b"), "choice 2")):
            rc, out, err = self.answer(*args, ok=False)
            self.assertNotEqual((rc, out), (0, ""), args)
            self.assertIn(what, err)

    def test_served(self):
        s = self.serve()
        for more in ({"response_format": {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": PERSON}}}, {"guided_json": PERSON},
                     {"structured_outputs": {"json": PERSON}}):
            status, j = s.chat("someone", temperature=1.5, seed=1, **more)
            self.assertEqual(status, 200, j)
            self.assertTrue(is_person(json.loads(j["choices"][0]["message"]["content"])), j)
        status, j = s.chat("x", temperature=2, guided_choice=["a", "bc"])
        self.assertIn(j["choices"][0]["message"]["content"], ("a", "bc"))
        status, j = s.chat("x", temperature=2, guided_regex="[0-9]{4}", stream=False)
        self.assertRegex(j["choices"][0]["message"]["content"], "^[0-9]{4}$")
        status, j = s.chat("x", temperature=2, max_tokens=100, response_format={"type": "json_object"})
        self.assertIsInstance(json.loads(j["choices"][0]["message"]["content"]), dict)
        for args, pattern in ((["--schema", json.dumps(PERSON)], None), (["--regex", "[x-z]{5}"], r"^[x-z]{5}\n$"), (["--choices", "a,bc"], r"^(a|bc)\n$")):
            rc, out, err = self.run_bin("-q", "-p", "someone", "--temp", "1.5", *args)  # attached
            self.assertEqual(rc, 0, err)
            self.assertTrue(re.match(pattern, out.decode()) if pattern else is_person(json.loads(out)), out)
        self.assertEqual(json.loads(s.request("GET", "/hearth/status")[2])["answered"], 9)
        self.completions(s)

    def test_served_limit(self):
        """In every protocol an answer or a required call that the limit cuts before it can match is there up to the cut, with the protocol's reason. A hearth that
        is attached ends as without a server."""
        s = self.serve("--template", self.write("tools.jinja", TEMPLATE))
        long = json.dumps(obj({"question": {"const": "how do i save a chat and open it again on another day"}}))
        schema, asked = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": json.loads(long)}}, [{"role": "user", "content": "hello"}]
        tool = {"name": "get_weather", "description": "", "parameters": CITY}

        def post(path, **body):
            status, _, data = s.request("POST", path, {"model": "x", "temperature": 0, **body})
            self.assertEqual(status, 200, data)
            return data.decode() if body.get("stream") else json.loads(data)
        for n in (1, 4):
            choice = post("/v1/chat/completions", messages=asked, max_tokens=n, response_format=schema)["choices"][0]
            text = choice["message"]["content"]
            self.assertTrue('{"question": "how do'.startswith(text) or '{"question":"how do'.startswith(text), text)
            self.assertEqual(choice["finish_reason"], "length")
            got = [json.loads(line[6:]) for line in post("/v1/chat/completions", messages=asked, max_tokens=n, response_format=schema, stream=True).splitlines() if line.startswith("data: {")]
            self.assertEqual(("".join(g["choices"][0]["delta"].get("content", "") for g in got), got[-1]["choices"][0]["finish_reason"]), (text, "length"))
            j = post("/v1/responses", input="hello", max_output_tokens=n, text={"format": {"type": "json_schema", "name": "a", "strict": True, "schema": json.loads(long)}})
            self.assertEqual((j["output"][-1]["content"][0]["text"], j["status"], j["incomplete_details"]), (text, "incomplete", {"reason": "max_output_tokens"}))
            j = post("/api/chat", messages=asked, options={"num_predict": n, "temperature": 0}, format=json.loads(long), stream=False)
            self.assertEqual((j["message"]["content"], j["done_reason"]), (text, "length"))
            j = post("/v1/completions", prompt="hello", max_tokens=n, guided_json=json.loads(long))["choices"][0]
            self.assertEqual((j["text"][:1], j["finish_reason"]), ("{", "length"))
            call = post("/v1/chat/completions", messages=asked, max_tokens=n, tools=[{"type": "function", "function": tool}], tool_choice="required")["choices"][0]
            self.assertEqual((call["finish_reason"], call["message"].get("tool_calls")), ("length", None), call)
            markup = call["message"]["content"]
            self.assertTrue('<tool_call>\n{"name": "get_weather", '.startswith(markup) or '<tool_call>{"name": "get_weather", '.startswith(markup), markup)
            j = post("/v1/messages", messages=asked, max_tokens=n, tools=[{"name": "get_weather", "input_schema": CITY}], tool_choice={"type": "any"})
            self.assertEqual((j["stop_reason"], [(b["type"], b.get("text")) for b in j["content"]]), ("max_tokens", [("text", markup)]))
        choice = post("/v1/chat/completions", messages=asked, max_tokens=60, response_format=schema)["choices"][0]
        self.assertEqual((choice["finish_reason"], json.loads(choice["message"]["content"])), ("stop", {"question": json.loads(long)["properties"]["question"]["const"]}))
        for where in ([], ["--no-attach"]):
            rc, out, err = self.run_bin(*where, "--template", os.path.join(self.home, "tools.jinja"), "-q", "-p", "hello", "--schema", long, "-n", "4")
            self.assertEqual(rc, 1)
            self.assertRegex(err, r"needs \d+ more tokens to match its grammar, and its limit leaves 4; a larger limit")
        s.end()
        s = self.serve("-c", "100")
        choice = post("/v1/chat/completions", messages=asked, response_format={**schema, "json_schema": {"schema": {"const": "no " * 200}}})["choices"][0]
        self.assertTrue(json.dumps("no " * 200).startswith(choice["message"]["content"]) and len(choice["message"]["content"]) > 50, choice)
        self.assertEqual(choice["finish_reason"], "length")

    def completions(self, s):
        """Text completions continue the prompt as it is, whole and streamed; they may be constrained."""
        body = {"prompt": "hearth is", "max_tokens": 8, "temperature": 0}
        status, _, data = s.request("POST", "/v1/completions", body)
        whole = json.loads(data)
        self.assertEqual((status, whole["object"]), (200, "text_completion"))
        self.assertIn(whole["choices"][0]["finish_reason"], ("length", "stop"))
        data = s.request("POST", "/v1/completions", {**body, "stream": True})[2].decode()
        parts = [json.loads(line[6:]) for line in data.splitlines() if line.startswith("data: {")]
        self.assertEqual("".join(p["choices"][0]["text"] for p in parts), whole["choices"][0]["text"])
        self.assertEqual((parts[-1]["choices"][0]["finish_reason"], data.strip()[-6:]), (whole["choices"][0]["finish_reason"], "[DONE]"))
        ids = json.loads(s.request("POST", "/tokenize", {"content": "hearth is", "add_special": True})[2])["tokens"]
        self.assertEqual(json.loads(s.request("POST", "/v1/completions", {**body, "prompt": ids})[2])["choices"][0]["text"], whole["choices"][0]["text"])
        data = s.request("POST", "/v1/completions", {**body, "max_tokens": 40, "guided_regex": "[0-9]{3}"})[2]
        self.assertRegex(json.loads(data)["choices"][0]["text"], "^[0-9]{3}$")

    def test_required_tool_calls(self):
        """--tool-choice begins an answer with calls that are valid by the tools' schemas, with arguments as JSON and between tags."""
        template = self.write("tools.jinja", TEMPLATE)
        tagged = [self.write(name, TEMPLATE.replace("Write <tool_call>", "Write " + marks)) for name, marks in
                  (("glm.jinja", "<tool_call><arg_key>"), ("coder.jinja", "<tool_call><function="), ("dsml.jinja", "<｜DSML｜function_calls>"), ("gcml.jinja", "<｜GCML｜tool_calls>"),
                   ("step3.jinja", "<｜tool_calls_begin｜><steptml:invoke"))]
        tools = []
        for name, parameters in (("get_weather", CITY), ("get_time", {"type": "object"})):
            tools += ["--tool", self.write(name + ".json", json.dumps({"name": name, "parameters": parameters, "command": ["cat"]}))]
        for seed, used in [(0, template), (1, template), *enumerate(tagged)]:
            for choice in ("required", "get_weather") if used == template else ("required",):
                args = ["--template", used, *tools, "--allow", "all", "--tool-choice", choice, "--temp", "1.5", "--seed", str(seed), "-n", "150"]
                calls = json.loads(self.answer(*args, "--json"))["calls"]
                self.assertTrue(calls)
                for c in calls:
                    self.assertEqual((c["status"], json.loads(c["result"])), ("ok", c["arguments"]))
                    self.assertTrue(is_city(c["arguments"]) if c["name"] == "get_weather" else choice == "required", c)
        other = self.write("other.jinja", TEMPLATE.replace("tool_call>", "arg_key>"))
        rc, out, err = self.answer("--template", other, *tools, "--tool-choice", "required", ok=False)
        self.assertEqual((rc, out), (2, ""))
        self.assertIn("--tool-choice: this model's calls have a form that cannot be required", err)
        rc, out, err = self.answer(*tools, ok=False)
        self.assertEqual((rc, out), (2, ""))
        self.assertIn("this model's chat template has no tools", err)

    def test_tools_with_a_resident_engine(self):
        """The engine of another process answers, attached or over HTTP; the tools run here."""
        template = self.write("tools.jinja", TEMPLATE)
        tool = ["--tool", self.write("get_weather.json", json.dumps({"name": "get_weather", "parameters": CITY, "command": ["cat"]})), "--allow", "all", "--tool-choice", "required", "-n", "150"]
        s = self.serve("--template", template, "--listen", "127.0.0.1:0")
        for args in (["--template", template], ["-m", s.url]):
            rc, out, err = self.run_bin(*args, *tool, "--temp", "1", "--seed", "1", "--json", "-p", "hello", env={"HEARTH_API_KEY": s.key})
            self.assertEqual(rc, 0, err)
            calls = json.loads(out)["calls"]
            self.assertTrue(calls)
            for c in calls:
                self.assertTrue(c["status"] == "ok" and is_city(c["arguments"]) and json.loads(c["result"]) == c["arguments"], c)
        self.assertGreaterEqual(json.loads(s.request("GET", "/hearth/status")[2])["answered"], 4)

    def saved(self, name):
        with open(self.session_file(name)) as f:
            return json.load(f)["body"]["messages"][-1]

    def continued(self, *args):
        """Opens a chat, continues its last answer and leaves; returns what was saved."""
        t = self.terminal("--no-attach", "-q", "--continue", "part", *args, cols=200)
        t.send("/continue\r")
        at = t.prompt(t.prompt(text="part> "), "part> ")
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        return t.out.decode()[:at]

    def test_continue_in_a_chat(self):
        """/continue goes on in the grammar where the answer was cut, although another process began it."""
        cut = json.loads(self.answer("--json", "--temp", "0", "-n", "4"))["text"]
        rc, out, err = self.run_bin("--no-attach", "--save", "part", "-q", "-p", "Tell me something", "--temp", "0", "-n", "4")
        self.assertEqual((self.saved("part")["content"], self.saved("part")["partial"]), (cut, True))
        begin = "".join(c if c.isalnum() or c == " " else "\\" + c for c in cut)
        self.assertIn("does not match the required format", self.continued("--regex", "[0-9]{5}"))
        self.assertEqual(self.saved("part")["content"], cut)
        self.continued("--regex", begin + "[0-9]{5}")
        self.assertRegex(self.saved("part")["content"], "^" + begin + "[0-9]{5}$")
        self.assertFalse(self.saved("part").get("partial", False))

    def test_summaries_are_free(self):
        """The format of answers does not apply to the summary of /compact."""
        t = self.terminal("--no-attach", "-q", "--save", "part", "--regex", "[0-9]{5}", "-n", "40", cols=200)
        at = 0
        for line in ("one", "two", "/compact", "/bye"):
            at = t.prompt(at, "part> ")
            t.send(line + "\r")
        self.assertEqual(t.wait(), 0)
        with open(self.session_file("part")) as f:
            messages = [m["content"] for m in json.load(f)["body"]["messages"]]
        self.assertTrue("the summary was not finished" in t.out.decode() or messages[0].startswith("Summary of"), (messages, t.out))
        self.assertNotRegex(messages[0], "Summary of.*\n\n[0-9]{5}$")

    def test_every_schema(self):
        if not os.environ.get("HEARTH_LONG"):
            self.skipTest("every schema on three fixtures: a test of -Dlong_tests=true")
        try:
            import jsonschema
        except ImportError:
            self.skipTest("no jsonschema to validate with (pip install jsonschema)")
        failures, n = [], 0
        for name in ("qwen3_moe", "mixtral", "deepseek_v3"):
            model = os.path.join(FIXTURES, name)
            if not os.path.isdir(model):
                self.skipTest(f"no fixture {model}")
            for label, schema in VALID.items():
                validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
                path = os.path.join(self.home, "seeds.jsonl")
                with open(path, "w") as f:
                    for seed in range(1, 6):
                        f.write(json.dumps({"id": seed, "prompt": "x", "seed": seed, "temperature": 1 if seed > 1 else 0, "max_tokens": 300}) + "\n")
                rc, out, err = self.run_bin("-m", model, "--batch", path, "--no-attach", "-q", "--schema", json.dumps(schema), timeout=600)
                lines = [json.loads(line) for line in out.splitlines()]
                if len(lines) != 5:
                    failures.append(f"{name} {label}: {rc} {err[-300:]}")
                for line in lines:
                    try:
                        validator.validate(json.loads(line["text"]))
                        n += 1
                    except Exception as e:
                        failures.append(f"{name} {label}: {line} {e}"[:600])
        print(f"{n} documents")
        self.assertEqual(failures, [])


if __name__ == "__main__":
    unittest.main()
