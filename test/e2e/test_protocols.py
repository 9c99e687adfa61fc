"""The protocols of --serve with a real model: what the fake engine cannot show, such as grammars of tool calls and true log probabilities."""
import importlib.util
import json
import math
import os
import subprocess
import sys
import unittest

import driver

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import part
from server import Case, ask, chunks, streamed_calls

TEMPLATE = """{{ bos_token }}{% if tools %}<|system|>Write <tool_call> and JSON with name and arguments.{{ tools | tojson }}<|end|>{% endif %}{% for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>
{{- m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["city", "days"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": CITY}}, {"type": "function", "function": {"name": "get_time"}}]


def is_city(value):
    return list(value) == ["city", "days"] and isinstance(value["city"], str) and len(value["city"]) <= 12 and value["days"] in range(1, 10)


class Model(Case):
    """A server with the built-in weights and a template that has tools."""

    ARGS = ("--kv-cache", "off", "-t", "1")

    def setUp(self):
        super().setUp()
        self.use_ember_as_any_model()
        path = os.path.join(self.home, "tools.jinja")
        with open(path, "w") as f:
            f.write(TEMPLATE)
        self.s = self.serve(*self.ARGS, "--template", path)

    def post(self, path, body, status=200):
        got, headers, data = self.s.request("POST", path, body)
        self.assertEqual(got, status, data)
        return json.loads(data)


class Chat(Model):
    def calls(self, choice):
        m = choice["message"]
        self.assertEqual((choice["finish_reason"], m["content"]), ("tool_calls", None))
        return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in m["tool_calls"]]

    def test_forced_calls(self):
        """Required and named calls are valid by the tools' schemas, whatever the model would say."""
        for seed in range(2):
            body = ask("hello", tools=TOOLS, seed=seed, temperature=1.5, max_tokens=150)
            calls = self.calls(self.post("/v1/chat/completions", {**body, "tool_choice": "required"})["choices"][0])
            self.assertTrue(calls)
            for name, arguments in calls:
                self.assertTrue(is_city(arguments) if name == "get_weather" else (name, arguments) == ("get_time", {}), calls)
            one = {**body, "tool_choice": "required", "parallel_tool_calls": False}
            self.assertEqual(len(self.calls(self.post("/v1/chat/completions", one)["choices"][0])), 1)
            named = {**body, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
            (name, arguments), = self.calls(self.post("/v1/chat/completions", named)["choices"][0])
            self.assertTrue(name == "get_weather" and is_city(arguments), arguments)
        r = self.s.stream("hello", tools=TOOLS, tool_choice=named["tool_choice"], seed=1)
        got, done = chunks(r)
        call = streamed_calls(got)[0]["function"]
        self.assertTrue(done and is_city(json.loads(call["arguments"])), call)

    def test_choices_of_tools(self):
        """Other ways to write a choice: as an object's type, a name beside the type, "any", and a list of the tools that are allowed."""
        body = ask("hello", tools=TOOLS, seed=1, temperature=1.5, max_tokens=150, parallel_tool_calls=False)
        function = {"type": "function", "function": {"name": "get_time"}}
        for choice in ({"type": "function", "name": "get_time"}, {"type": "tool", "name": "get_time"}, {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function]}},
                       {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}, {"type": "web_search"}]}):
            self.assertEqual(self.calls(self.post("/v1/chat/completions", {**body, "tool_choice": choice})["choices"][0]), [("get_time", {})], choice)
        for choice in ("any", {"type": "any"}, {"type": "required"}):
            self.assertEqual(len(self.calls(self.post("/v1/chat/completions", {**body, "tool_choice": choice})["choices"][0])), 1, choice)
        tokens = lambda **more: self.post("/hearth/tokens", {**body, **more})["tokens"]
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function]}}
        self.assertEqual(tokens(tool_choice=allowed), tokens(tools=TOOLS[1:]))
        self.assertEqual(tokens(tool_choice={"type": "auto"}), tokens())
        self.assertEqual(tokens(tool_choice={"type": "none"}), tokens(tool_choice="none"))
        item = self.post("/v1/responses", {"input": "hello", "tools": [{"type": "function", **t["function"]} for t in TOOLS], "max_output_tokens": 150,
                                           "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]}})["output"][0]
        self.assertEqual((item["type"], item["name"]), ("function_call", "get_time"))

    def test_forced_calls_refused(self):
        for more, word in (({"tools": []}, "there are no tools"), ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "no tool has the name other"),
                           ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "other"}]}}, "no tool has the name other"), ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function"}]}}, "tools[0] has no name"),
                           ({"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": []}}, "there are no tools"), ({"tool_choice": {"type": "allowed_tools", "mode": "all", "tools": []}}, "needs the mode"), ({"tool_choice": {"type": "allowed_tools"}}, "needs the mode"),
                           ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "object", "properties": {"x": {"not": {"format": "x"}}}}}}]}, "parameters of tool a: #/properties/x/not"),
                           ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tool 1: a name of letters"), ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}]}, "#/type"),
                           ({"tools": [{"type": "custom", "name": "a"}]}, "there are no tools")):
            error = self.post("/v1/chat/completions", ask("x", **{"tools": TOOLS, "tool_choice": "required", **more}), 400)["error"]
            self.assertIn(word, error["message"])
        self.s.end()
        with open(os.path.join(self.home, "other.jinja"), "w") as f:
            f.write(TEMPLATE.replace("tool_call>", "arg_key>"))
        self.s = self.serve("--template", os.path.join(self.home, "other.jinja"))
        self.assertIn("a form that cannot be required", self.post("/v1/chat/completions", ask("x", tools=TOOLS, tool_choice="required"), 400)["error"]["message"])

    def test_calls_or_format(self):
        """With tools and a format of the answer, an answer is calls or matches the format, as the model begins it; also as a stream, and in the other protocols."""
        first = lambda text: {str(self.post("/tokenize", {"content": text})["tokens"][0]): 100}
        formats = {"/v1/chat/completions": {"response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}}}, "/v1/responses": {"text": {"format": {"type": "json_schema", "name": "c", "schema": CITY}}}}
        for begin, is_call in (("<", True), ("{", False)):
            body = ask("hello", tools=TOOLS[:1], temperature=1, seed=2, logit_bias=first(begin), max_tokens=200, **formats["/v1/chat/completions"])
            choice = self.post("/v1/chat/completions", body)["choices"][0]
            if is_call:
                self.assertTrue(is_city(self.calls(choice)[0][1]), choice)
            else:
                self.assertTrue(is_city(json.loads(choice["message"]["content"])), choice)
                self.assertEqual((choice["finish_reason"], "tool_calls" in choice["message"]), ("stop", False))
            got, done = chunks(self.s.stream("hello", **{k: v for k, v in body.items() if k != "messages"}))
            deltas = [c["choices"][0]["delta"] for c in got]
            self.assertEqual("".join(d.get("content") or "" for d in deltas), choice["message"]["content"] or "")
            self.assertEqual(any("tool_calls" in d for d in deltas), is_call)
            self.assertTrue(is_call or len([d for d in deltas if d.get("content")]) > 3, deltas)  # as it is written
        tools = [{"type": "function", **t["function"]} for t in TOOLS]
        for seed in range(3):
            for item in self.post("/v1/responses", {"input": "hello", "tools": tools, "max_output_tokens": 200, "temperature": 1.5, **formats["/v1/responses"]})["output"]:
                if item["type"] == "message":
                    self.assertTrue(is_city(json.loads(item["content"][0]["text"])), item)
                else:
                    self.assertEqual(item["type"], "function_call")
            m = self.post("/api/chat", {**ask("hello", tools=TOOLS), "stream": False, "format": CITY, "options": {"seed": seed, "temperature": 1.5, "num_predict": 200}})["message"]
            self.assertTrue(m.get("tool_calls") or is_city(json.loads(m["content"])), m)

    def test_no_parameters(self):
        """However a client says that a tool has no parameters, its calls have no arguments."""
        for parameters in ({}, {"type": "object"}, {"type": "object", "properties": {}, "required": [], "additionalProperties": False}, {"$schema": "x", "type": "object", "properties": {}}, None):
            tool = {"type": "function", "function": {"name": "get_time", "parameters": parameters}}
            body = ask("hello", tools=[tool], tool_choice="required", temperature=1.5, seed=1, max_tokens=100, parallel_tool_calls=False)
            self.assertEqual(self.calls(self.post("/v1/chat/completions", body)["choices"][0]), [("get_time", {})], parameters)
        tool["function"]["parameters"] = {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1}
        self.assertTrue(self.calls(self.post("/v1/chat/completions", body)["choices"][0])[0][1])

    def test_no_tokens(self):
        """A request for no tokens reads the prompt, so that the next one finds it."""
        said = [self.post("/v1/chat/completions", ask("hello", max_tokens=0))["choices"][0]["finish_reason"], self.post("/v1/completions", {"prompt": "hello", "max_tokens": 0})["choices"][0]["text"],
                self.post("/v1/responses", {"input": "hello", "max_output_tokens": 0})["status"], self.post("/v1/messages", ask("hello", max_tokens=0))["stop_reason"],
                self.post("/api/chat", {**ask("hello", options={"num_predict": 0}), "stream": False})["done_reason"]]
        self.assertEqual(said, ["length", "", "incomplete", "max_tokens", "length"])
        long = "tell me about saved chats. " * 300
        self.post("/v1/chat/completions", ask(long, max_tokens=0))
        self.assertGreater(self.post("/v1/chat/completions", ask(long, max_tokens=1))["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_format(self):
        """A schema counts wherever clients put it, and a stop string ends an answer that has a format."""
        for path, body in (("/v1/chat/completions", ask("hello", response_format={"type": "json_object", "schema": CITY})), ("/v1/chat/completions", ask("hello", response_format={"type": "json_schema", "schema": CITY}))):
            self.assertTrue(is_city(json.loads(self.post(path, {**body, "max_tokens": 200})["choices"][0]["message"]["content"])))
        item = self.post("/v1/responses", {"input": "hello", "max_output_tokens": 200, "text": {"format": {"type": "json_object", "schema": CITY}}})["output"][-1]
        self.assertTrue(is_city(json.loads(item["content"][0]["text"])), item)
        body = ask("hello", max_tokens=200, response_format={"type": "json_object", "schema": CITY}, stop="days")
        choice = self.post("/v1/chat/completions", body)["choices"][0]
        self.assertTrue(choice["message"]["content"].startswith('{"city"') and "days" not in choice["message"]["content"], choice)
        self.assertEqual(choice["finish_reason"], "stop")

    @unittest.skipUnless(importlib.util.find_spec("instructor"), "the Python package instructor is not installed")
    def test_instructor(self):
        """It turns a class into a schema of the answer, or into a tool that must be called."""
        self.s.end()
        self.s = self.serve("--kv-cache", "off", "-t", "1", "--template", os.path.join(self.home, "tools.jinja"), "--listen", "127.0.0.1:0")
        code = """
import os, instructor, openai, pydantic
class City(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=12)
    days: int = pydantic.Field(ge=1, le=9)
for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
    client = instructor.from_openai(openai.OpenAI(max_retries=0), mode=mode)
    got = client.chat.completions.create(model="ember", response_model=City, messages=[dict(role="user", content="hello")], temperature=1.5, seed=1, max_tokens=120, max_retries=0)
    print(mode.name, got.model_dump_json())
"""
        p = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env={**self.env, "OPENAI_API_KEY": self.s.key, "OPENAI_BASE_URL": self.s.url}, capture_output=True, timeout=3 * driver.PATIENCE)
        self.assertEqual(p.returncode, 0, p.stderr.decode()[-2000:])
        lines = dict(line.split(" ", 1) for line in p.stdout.decode().strip().split("\n"))
        self.assertEqual(set(lines), {"JSON_SCHEMA", "TOOLS"})
        for text in lines.values():
            self.assertTrue(is_city(json.loads(text)), lines)

    def test_logprobs(self):
        """They are those of the model: the same whatever the sampling, a bias or a format of the answer does."""
        plain = self.post("/v1/chat/completions", ask("how do i save a chat?", temperature=0, max_tokens=6, logprobs=True, top_logprobs=5))["choices"][0]
        content = plain["logprobs"]["content"]
        self.assertEqual((len(content), "".join(t["token"] for t in content)), (6, plain["message"]["content"]))
        for t in content:
            self.assertEqual((t["token"], t["logprob"]), (t["top_logprobs"][0]["token"], t["top_logprobs"][0]["logprob"]))
            values = [x["logprob"] for x in t["top_logprobs"]]
            self.assertEqual(values, sorted(values, reverse=True))
            self.assertLessEqual(sum(map(math.exp, values)), 1.00001)
        ids = self.post("/tokenize", {"content": content[0]["token"]})["tokens"]
        other = self.post("/v1/chat/completions", ask("how do i save a chat?", temperature=0, max_tokens=3, logprobs=True, top_logprobs=2, logit_bias={str(ids[0]): -100}))["choices"][0]["logprobs"]["content"][0]
        self.assertEqual([t["token"] for t in other["top_logprobs"]], [t["token"] for t in content[0]["top_logprobs"][:2]])
        self.assertEqual((other["token"], other["logprob"]), (content[0]["top_logprobs"][1]["token"], content[0]["top_logprobs"][1]["logprob"]))
        pick = self.post("/v1/chat/completions", ask("how do i save a chat?", temperature=0, guided_choice=["zebra", "yak"], logprobs=True))["choices"][0]
        self.assertIn(pick["message"]["content"], ("zebra", "yak"))
        self.assertLess(pick["logprobs"]["content"][0]["logprob"], content[0]["logprob"])

    def test_penalties_and_choices(self):
        """A penalty makes an answer repeat less; choices differ, and equal the answers to their seeds."""
        loop = ask("how do i save a chat?", temperature=0, max_tokens=40, logit_bias={str(i): 100 for i in self.post("/tokenize", {"content": " the"})["tokens"]})
        worst = lambda **more: max((lambda w: [w.count(x) for x in w])(self.post("/v1/chat/completions", {**loop, **more})["choices"][0]["message"]["content"].split()))
        self.assertEqual(worst(), 40)
        self.assertEqual(worst(frequency_penalty=2), 40)  # 80 at most, less than the bias
        self.assertLess(worst(frequency_penalty=2, logit_bias={k: 8 for k in loop["logit_bias"]}), 40)
        three = self.post("/v1/chat/completions", ask("tell me", n=3, seed=5, temperature=1.5, max_tokens=12))["choices"]
        alone = [self.post("/v1/chat/completions", ask("tell me", seed=5 + i, temperature=1.5, max_tokens=12))["choices"][0]["message"]["content"] for i in range(3)]
        self.assertEqual([c["message"]["content"] for c in three], alone)
        self.assertGreater(len(set(alone)), 1)


class Texts(Case):
    """Texts that a model continues: control tokens in them count, and those whose vocabulary has the marks fill gaps."""

    MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")

    def model(self, marks):
        """Ember with other texts of its last control tokens."""
        self.use_ember_as_any_model()
        out = os.path.join(self.home, "marked")
        os.mkdir(out)
        for name in os.listdir(self.env["HEARTH_MODEL"]):
            os.symlink(os.path.realpath(os.path.join(self.env["HEARTH_MODEL"], name)), os.path.join(out, name))
        with open(os.path.join(out, "tokenizer.json"), encoding="utf-8") as f:
            t = json.load(f)
        os.unlink(os.path.join(out, "tokenizer.json"))
        for token, mark in zip(t["added_tokens"][-3:], marks):
            t["model"]["vocab"].pop(token["content"], None)
            t["model"]["vocab"][mark] = token["id"]
            token["content"] = mark
        with open(os.path.join(out, "tokenizer.json"), "w", encoding="utf-8") as f:
            json.dump(t, f)
        os.unlink(os.path.join(out, "tokenizer_config.json"))
        with open(os.path.join(out, "tokenizer_config.json"), "w") as f:
            json.dump({"bos_token": "<|begin|>", "eos_token": "<|end|>", "add_bos_token": True}, f)
        with open(os.path.join(self.home, "t.jinja"), "w") as f:
            f.write("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}")
        return self.serve("-m", out, "--template", os.path.join(self.home, "t.jinja"), "--kv-cache", "off", "-t", "1")

    def answers(self, s, path, *bodies):
        out = []
        for body in bodies:
            status, headers, data = s.request("POST", path, {"stream": False, **body})
            self.assertEqual(status, 200, data)
            j = json.loads(data)
            out.append((j["response"], j["prompt_eval_count"]) if "response" in j else (j["choices"][0]["text"], j["usage"]["prompt_tokens"]))
        return out

    def test_control_tokens(self):
        """As text, as ids and by its suffix, a text with marks is the same prompt."""
        s = self.model(self.MARKS)
        before, after = "def add(a, b):", "print(add(1, 2))"
        ids = lambda text: json.loads(s.request("POST", "/tokenize", {"content": text})[2])["tokens"]
        text = self.MARKS[0] + before + self.MARKS[1] + after + self.MARKS[2]
        marked = [3, *ids(before), 4, *ids(after), 5]
        bos = json.loads(s.request("POST", "/tokenize", {"content": "", "add_special": True})[2])["tokens"]
        some = {"temperature": 0, "max_tokens": 8}
        got = self.answers(s, "/v1/completions", {"prompt": text, **some}, {"prompt": bos + marked, **some}, {"prompt": before, "suffix": after, **some})
        some = {"options": {"temperature": 0, "num_predict": 8}, "model": "x"}
        got += self.answers(s, "/api/generate", {"prompt": text, "raw": True, **some}, {"prompt": before, "suffix": after, **some})
        self.assertEqual(set(got), {(got[0][0], len(bos + marked))})
        body = {"input_prefix": "def add(", "prompt": "a, b):", "input_suffix": after, "temperature": 0, "n_predict": 8}
        j = json.loads(s.request("POST", "/infill", body)[2])
        self.assertEqual((j["content"], j["tokens_evaluated"], j["tokens_predicted"], j["stop_type"], j["stop"]), (*got[0], 8, "limit", True))
        status, headers, data = s.request("POST", "/infill", {**body, "stream": True, "input_extra": [{"filename": "a.py", "text": "x = 1"}]})
        events = [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: ")]
        self.assertEqual([e["stop"] for e in events], [False] * (len(events) - 1) + [True])
        self.assertEqual(events[-1]["tokens_evaluated"], len(bos + marked) + len(ids("a.py\nx = 1\n\n" + before)) - len(ids(before)))
        self.assertIn("input_extra[0].text", json.loads(s.request("POST", "/infill", {"input_extra": [{}]})[2])["error"]["message"])
        self.assertEqual(len(bos), 1)  # a text that begins with it gets no second one
        self.assertEqual([n for _, n in self.answers(s, "/v1/completions", {"prompt": "<|begin|>x", "max_tokens": 1}, {"prompt": "x", "max_tokens": 1})], [1 + len(ids("x"))] * 2)
        self.assertEqual(self.answers(s, "/api/generate", {"suffix": after, **some}), self.answers(s, "/v1/completions", {"prompt": "", "suffix": after, "temperature": 0, "max_tokens": 8}))
        for body, word in (({"prompt": ["a", "b"], "suffix": "x"}, "suffix: needs one prompt"), ({"prompt": [1], "suffix": "x"}, "suffix: needs one prompt that is a text"), ({"prompt": "a", "suffix": 3}, "suffix: must be a string")):
            status, headers, data = s.request("POST", "/v1/completions", body)
            self.assertEqual((status, word in json.loads(data)["error"]["message"]), (400, True), data)

    def test_orders(self):
        """A suffix comes first where the model was trained so; without marks it is refused."""
        s = self.model(("[PREFIX]", "[SUFFIX]", "<|pad|>"))
        some = {"temperature": 0, "max_tokens": 8}
        got = self.answers(s, "/v1/completions", {"prompt": "[SUFFIX]b[PREFIX]a", **some}, {"prompt": "a", "suffix": "b", **some})
        self.assertEqual(got[0], got[1])
        s.end()
        s = self.serve("--kv-cache", "off", "-t", "1")
        status, headers, data = s.request("POST", "/v1/completions", {"prompt": "a", "suffix": "b"})
        self.assertEqual((status, "does not fill in the middle" in json.loads(data)["error"]["message"]), (400, True), data)


class Rounds(Case):
    """Three rounds of a tool, in the forms that clients of each protocol send, through published templates."""

    TOOL = {"name": "polish", "description": "d", "parameters": {"type": "object", "properties": {"gem": {"type": "string", "description": "d"}}}}

    def openai(self, content, arguments, thought):
        m = [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, {"role": "user", "content": "q"}]
        for i in range(3):
            call = {"role": "assistant", "tool_calls": [{"id": f"call_6f0123456789abcdef012345_0_{i}", "type": "function", "function": {"name": "polish", "arguments": arguments}}]}
            m += [{**call, **content, **thought}, {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "done"}]
        return {"messages": m, "tools": [{"type": "function", "function": self.TOOL}], "max_tokens": 1}

    def responses(self, text):
        items = [{"role": "developer", "content": "a"}, {"role": "user", "content": "q"}]
        for i in range(3):
            items += [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "why"}]}, *text, {"type": "function_call", "call_id": f"call_{i}", "name": "polish", "arguments": ""},
                      {"type": "function_call_output", "call_id": f"call_{i}", "output": "done"}]
        return {"input": items, "instructions": "b", "tools": [{"type": "function", **self.TOOL}], "max_output_tokens": 1}

    def anthropic(self, text):
        m = [{"role": "user", "content": "q"}]
        for i in range(3):
            m += [{"role": "assistant", "content": [{"type": "thinking", "thinking": "why", "signature": ""}, *text, {"type": "tool_use", "id": f"toolu_{i}", "name": "polish", "input": {}}]},
                  {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"toolu_{i}", "content": "done"}]}]
        return {"messages": m + [{"role": "system", "content": "later"}], "system": "a", "tools": [{"name": "polish", "input_schema": self.TOOL["parameters"]}, {"type": "web_search_20250305", "name": "web_search"}], "max_tokens": 1}

    def ollama(self, content):
        m = [{"role": "user", "content": "q"}]
        for _ in range(3):
            m += [{"role": "assistant", "thinking": "why", "tool_calls": [{"function": {"name": "polish", "arguments": {"gem": "x"}}}], **content}, {"role": "tool", "content": "done", "tool_name": "polish"}]
        return {"messages": m, "tools": [{"type": "function", "function": self.TOOL}], "stream": False, "options": {"num_predict": 1}}

    def bodies(self):
        contents = [{"content": None}, {}, {"content": ""}, {"content": "words"}]
        for c in contents:
            for arguments in ('{"gem": "x"}', "", "null", None):
                for thought in ({}, {"reasoning_content": "why"}):
                    yield "/v1/chat/completions", self.openai(c, arguments, thought)
            yield "/api/chat", self.ollama(c)
        for words in ([], [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "words"}]}]):
            yield "/v1/responses", self.responses(words)
        for words in ([], [{"type": "text", "text": ""}], [{"type": "text", "text": "words"}]):
            yield "/v1/messages", self.anthropic(words)

    def templates(self):
        """Returns the published templates that know tools, and do nothing that Jinja2's sandbox refuses."""
        folder = os.path.join(os.environ.get("HEARTH_SHARED", ""), "templates")
        if not os.path.isdir(folder):
            self.skipTest("no ../shared/templates")
        none = ("microsoft-Phi-3.5-mini-instruct", "deepseek-ai-DeepSeek-V3.1", "llama-cpp-deepseek-r1", "Kimi-K2-Instruct")
        names = [name for name in sorted(os.listdir(folder)) if name.endswith(".jinja") and name.removesuffix(".jinja") not in none]
        return [os.path.join(folder, name) for name in part.choose(names, 2)]

    def test_batch(self):
        """A batch takes the same forms, and those of a chat, which has no text, no id and the arguments as an object."""
        self.use_ember_as_any_model()
        lines = [json.dumps(body) for path, body in self.bodies() if path == "/v1/chat/completions"]
        call = {"role": "assistant", "content": "", "reasoning_content": "why", "tool_calls": [{"id": "", "type": "function", "function": {"name": "polish", "arguments": {"gem": "x"}}}]}
        rounds = [call, {"role": "tool", "content": "done", "tool_call_id": "", "name": "polish"}] * 3
        lines.append(json.dumps({"messages": [{"role": "user", "content": "q"}, *rounds, {"role": "assistant", "content": "so"}, {"role": "user", "content": "more"}], "tools": [{"type": "function", "function": self.TOOL}]}))
        for name in self.templates():
            path = os.path.join(self.home, "lines.jsonl")
            with open(path, "w") as f:
                f.write("\n".join(line.replace('"max_tokens"', '"unused"') for line in lines) + "\n")
            rc, out, err = self.run_bin("--batch", path, "--template", name, "-n", "1", "-t", "1", "--kv-cache", "off", timeout=300)
            got = [json.loads(line) for line in out.splitlines()]
            self.assertEqual((rc, len(got), [g for g in got if "error" in g]), (0, len(lines), []), (name, err))

    def test_rounds(self):
        self.use_ember_as_any_model()
        n = 0
        for name in self.templates():
            s = self.serve("--kv-cache", "off", "-t", "1", "--template", name)
            for path, body in self.bodies():
                status, headers, data = s.request("POST", path, body)
                self.assertEqual(status, 200, (name, path, body, data))
                n += 1
            s.end()
        self.assertGreaterEqual(n, 80)
        print(n, "conversations", file=sys.stderr)


if __name__ == "__main__":
    driver.unittest.main()
