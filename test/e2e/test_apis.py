"""The protocols of --serve apart from OpenAI's chat completions, over plain HTTP and with the vendors' own clients. Runs on the fake engine."""
import importlib.util
import json
import re
import unittest

import driver
from server import Case, chunks, streamed_calls

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}


def needs(package):
    return unittest.skipUnless(importlib.util.find_spec(package), f"the Python package {package} is not installed")


def events(data):
    """Returns the events of a stream as (name, object)."""
    out = []
    for event in data.decode().strip().split("\n\n"):
        lines = [line for line in event.split("\n") if not line.startswith(":")]
        if lines:
            out.append((lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: "))))
    return out


class Api(Case):
    def setUp(self):
        super().setUp()
        self.s = self.serve()

    def post(self, path, body, status=200):
        got, headers, data = self.s.request("POST", path, body)
        self.assertEqual(got, status, data)
        return data if isinstance(body, dict) and body.get("stream") and status == 200 else json.loads(data)


class Skipped(Api):
    def test_tools(self):
        """Tools that a client does not carry out itself are left out with a note; the others can be called."""
        city = {"name": "weather", "description": "d", "parameters": CITY}
        codex = [{"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}, {"type": "function", **city}, {"type": "namespace", "name": "mcp", "tools": []}, {"type": "web_search", "external_web_access": False}]
        answers = [self.post("/v1/responses", {"input": "call", "tools": codex})["output"][-1]["type"],
                   self.post("/v1/messages", {"max_tokens": 1000, "messages": [{"role": "user", "content": "call"}], "tools": [{"type": "web_search_20250305", "name": "web_search"}, {"name": "weather", "input_schema": CITY}]})["stop_reason"],
                   self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "call"}], "tools": [{"type": "custom", "custom": {"name": "a"}}, {"type": "function", "function": city}]})["choices"][0]["finish_reason"]]
        self.assertEqual(answers, ["function_call", "tool_use", "tool_calls"])
        back = [{"role": "user", "content": "call"}, {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"}, {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}, {"type": "web_search_call", "id": "w"}, {"role": "user", "content": "prompt"}]
        self.assertEqual(self.post("/v1/responses", {"input": back, "tools": codex})["output"][-1]["content"][0]["text"], "[user]call[assistant][tool]done[user]prompt[assistant]")
        self.post("/v1/responses", {"input": "x", "tools": [{"type": "a\x1bb"}]})
        self.assertIn("there are no tools", self.post("/v1/responses", {"input": "x", "tools": codex[:1], "tool_choice": "required"}, 400)["error"]["message"])
        self.s.request("POST", "/hearth/stop")
        self.s.p.wait(driver.PATIENCE)
        notes = [line for line in self.s.p.stderr.read().decode().splitlines() if "left out" in line]
        self.assertEqual([line.split("type ")[1].split(",")[0] for line in notes], ["web_search", "web_search_20250305", "custom", "web_search", "a?b"])


class Samplers(Api):
    def test_chat_completions(self):
        """DRY and top-n-sigma, in the names of llama.cpp's server; a list of breakers is JSON or text that holds JSON."""
        said = self.s.chat("sampling", dry_multiplier=0.5, dry_base=2, dry_allowed_length=0, dry_penalty_last_n=64, dry_sequence_breakers=["a", "b:"], top_n_sigma=1.5, seed=1)[1]["choices"][0]["message"]["content"]
        self.assertEqual(said, "temp 0.5 top-p 1 top-k 0 min-p 0 repeat-penalty 1 seed 1 max -1 top-n-sigma 1.5 dry-multiplier 0.5 dry-base 2 dry-allowed-length 0 dry-penalty-last-n 64 breaker <a> breaker <b:>")
        said = self.s.chat("sampling", dry_multiplier=0.5, dry_sequence_breakers='["\\n"]', top_n_sigma=0, seed=1)[1]["choices"][0]["message"]["content"]
        self.assertEqual(said, "temp 0.5 top-p 1 top-k 0 min-p 0 repeat-penalty 1 seed 1 max -1 dry-multiplier 0.5 dry-base 1.75 dry-allowed-length 2 dry-penalty-last-n -1 breaker <\n>")


    def test_other_forms(self):
        """Strings to stop at that a form left empty, an empty object as PHP writes it, and llama.cpp's name of a limit."""
        said = lambda **more: self.s.chat("long", **more)[1]["choices"][0]["message"]["content"]
        for more in ({"stop": ["", "word3", ""]}, {"stop": ["w%d " % i for i in range(100)] + ["word3"]}):
            self.assertEqual(said(**more), "word0 word1 word2 ", more)
        self.assertEqual(said(n_predict=5, logit_bias=[], stop=[""]), "word0")

    def test_efforts(self):
        """An effort in the words that the template knows, in the members of each protocol; "none" is also no thinking."""
        self.s.end()
        for mentions, effort, want in (("reasoning_effort", "high", '<reasoning_effort="high">'), ("reasoning_effort", "xhigh", '<reasoning_effort="high">'), ("reasoning_effort", "minimal", '<reasoning_effort="low">'), ("reasoning_effort 'xhigh'", "max", '<reasoning_effort="xhigh">'),
                                       ("reasoning_effort", "ultra", '<reasoning_effort="ultra">'), ("enable_thinking", "high", ""), ("enable_thinking", "none", "<enable_thinking=false><thinking=false>"), ("reasoning_effort", "none", '<reasoning_effort="low"><enable_thinking=false><thinking=false>')):
            self.env.update(FAKE_SHOWS_VARS="1", FAKE_MENTIONS=mentions)
            self.s = self.serve()
            chat = lambda **more: self.s.chat("prompt x", **more)[1]["choices"][0]["message"]["content"]
            said = [chat(reasoning_effort=effort), chat(reasoning={"effort": effort}), self.post("/v1/responses", {"input": "prompt x", "reasoning": {"effort": effort}})["output"][0]["content"][0]["text"],
                    self.post("/v1/messages", {"max_tokens": 1000, "messages": [{"role": "user", "content": "prompt x"}], "output_config": {"effort": effort}})["content"][0]["text"]]
            self.assertEqual(said, [f"[user]prompt x{want}[assistant]"] * 4, (mentions, effort))
            self.assertIn("<enable_thinking=false>", chat(reasoning={"enabled": False}))
            self.s.end()
        self.s = self.serve()


class TextCalls(Api):
    def test_chat_completions(self):
        """A call in JSON without the template's marks is one, too, if there is such a tool, also in a stream, which sends other text as it comes."""
        tools = [{"type": "function", "function": {"name": n, "parameters": {"type": "object", "properties": {}}}} for n in ("weather", "time")]
        functions = lambda calls: [(c["type"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]
        for text, called in (('```json\n{"name": "time", "arguments": {"a": 1}}\n```', True), ('Like ```json\n{"name": "time", "arguments": {}}\n```', False), ('{"name": "date", "arguments": {}}', False)):
            m = self.s.chat("say " + json.dumps([text]), tools=tools)[1]["choices"][0]
            self.assertEqual((m["message"].get("content"), m["finish_reason"]), (None, "tool_calls") if called else (text, "stop"))
            self.assertEqual(functions(m["message"].get("tool_calls", [])), [("function", "time", {"a": 1})] if called else [])
            got, done = chunks(self.s.stream("say " + json.dumps([text]), tools=tools))
            self.assertEqual(("".join(x["choices"][0]["delta"].get("content", "") for x in got), got[-1]["choices"][0]["finish_reason"], functions(streamed_calls(got)), done), ("" if called else text, m["finish_reason"], [("function", "time", {"a": 1})] if called else [], True))
        self.assertEqual(self.s.chat('say ["{\\"name\\": \\"time\\"}"]')[1]["choices"][0]["finish_reason"], "stop")

    def test_other_protocols(self):
        city, tools = {"name": "weather", "description": "d", "parameters": CITY}, [{"name": "weather", "input_schema": CITY}]
        functions = [{"type": "function", **city}]
        text = {"role": "user", "content": "say " + json.dumps(['```json\n{"name": "weather", "arguments": {"city": "Bern"}}\n```'])}
        self.assertEqual([x["type"] for x in self.post("/v1/responses", {"input": [text], "tools": functions})["output"]], ["function_call"])
        got = self.post("/v1/messages", {"max_tokens": 1000, "messages": [text], "tools": tools})
        self.assertEqual([(x["type"], x.get("input")) for x in got["content"]] + [got["stop_reason"]], [("tool_use", {"city": "Bern"}), "tool_use"])
        got = self.post("/api/chat", {"messages": [text], "tools": [{"type": "function", "function": city}], "stream": False})["message"]
        self.assertEqual((got["content"], got["tool_calls"][0]["function"]["name"], got["tool_calls"][0]["function"]["arguments"]), ("", "weather", {"city": "Bern"}))
        for path, body, want in (("/v1/messages", {"max_tokens": 1000, "messages": [text], "tools": tools, "stream": True}, "tool_use"), ("/v1/responses", {"input": [text], "tools": functions, "stream": True}, "function_call"), ("/api/chat", {"messages": [text], "tools": [{"type": "function", "function": city}]}, "tool_calls")):
            got = self.s.request("POST", path, body)[2].decode()
            self.assertIn(want, got, path)
            self.assertNotIn("```", got, path)


class Anthropic(Api):
    TOOLS = [{"name": n, "description": "d", "input_schema": CITY} for n in ("weather", "time")]

    def ask(self, text, status=200, path="/v1/messages", **more):
        return self.post(path, {"model": "claude", "max_tokens": 1000, "messages": [{"role": "user", "content": text}], **more}, status)

    def test_whole(self):
        j = self.ask("think", top_k=5, temperature=0.5, metadata={"user_id": "u"})
        self.assertEqual({k: j[k] for k in ("type", "role", "model", "stop_reason", "stop_sequence")}, {"type": "message", "role": "assistant", "model": "fake", "stop_reason": "end_turn", "stop_sequence": None})
        self.assertEqual(j["content"], [{"type": "thinking", "thinking": "reasoning here", "signature": "aGVhcnRo"}, {"type": "text", "text": "the answer"}])
        self.assertEqual((j["usage"]["input_tokens"], j["usage"]["output_tokens"]), (len("1user2think1assistant2"), 28))
        self.assertRegex(j["id"], "^msg_[0-9a-f]{24}$")
        self.assertEqual(self.ask("long", max_tokens=5)["stop_reason"], "max_tokens")
        full = {"messages": [{"role": "user", "content": "x" * 65400}, {"role": "user", "content": "long"}]}
        self.assertEqual(self.ask("", **full)["stop_reason"], "model_context_window_exceeded")
        j = self.ask("long", stop_sequences=["zzz", "word3"])
        self.assertEqual((j["stop_reason"], j["stop_sequence"], j["content"][0]["text"]), ("stop_sequence", "word3", "word0 word1 word2 "))
        self.assertEqual(self.ask("hello", path="/v1/messages/count_tokens"), {"input_tokens": len("1user2hello1assistant2")})

    def test_stream(self):
        got = events(self.ask("think", stream=True))
        self.assertTrue(all(name == e["type"] for name, e in got))
        shape = [(e["type"], e.get("index")) for _, e in got if e["type"] != "content_block_delta"]
        self.assertEqual(shape, [("message_start", None), ("content_block_start", 0), ("content_block_stop", 0), ("content_block_start", 1), ("content_block_stop", 1), ("message_delta", None), ("message_stop", None)])
        deltas = [e["delta"] for _, e in got if e["type"] == "content_block_delta"]
        self.assertEqual(("".join(d.get("thinking", "") for d in deltas), "".join(d.get("text", "") for d in deltas)), ("reasoning here", "the answer"))
        self.assertEqual([(e["index"], e["delta"]["signature"]) for _, e in got if e.get("delta", {}).get("type") == "signature_delta"], [(0, "aGVhcnRo")])  # clients drop thinking without one
        self.assertEqual((got[0][1]["message"]["content"], got[0][1]["message"]["usage"]["input_tokens"]), ([], len("1user2think1assistant2")))
        self.assertEqual((got[-2][1]["delta"]["stop_reason"], got[-2][1]["usage"]["output_tokens"]), ("end_turn", 28))
        self.assertEqual(events(self.ask("fail", stream=True))[-1][1]["error"], {"type": "api_error", "message": "layer 3: non-finite logits"})

    def test_resources_that_are_not_served(self):
        """Errors have Anthropic's form at its own paths, and for its clients everywhere."""
        version = {"anthropic-version": "2023-06-01"}
        for method, path, headers, status, kind, word in (("POST", "/v1/messages/batches", {}, 404, "not_found_error", "use /v1/messages"), ("GET", "/v1/messages/batches/b/results", {}, 404, "not_found_error", "use /v1/messages"),
                                                          ("GET", "/v1/messages", {}, 405, "invalid_request_error", "needs method POST"), ("GET", "/v1/models/other", version, 404, "not_found_error", "no such model"),
                                                          ("GET", "/v1/files", version, 404, "not_found_error", "use /v1/messages")):
            with self.subTest(path=path):
                got, _, body = self.s.request(method, path, {} if method == "POST" else None, headers)
                j = json.loads(body)
                self.assertEqual((got, j["type"], j["error"]["type"]), (status, "error", kind))
                self.assertIn(word, j["error"]["message"])
        self.assertEqual(json.loads(self.s.request("GET", "/v1/files", None)[2])["error"]["type"], "invalid_request_error")  # OpenAI's

    def test_tools(self):
        j = self.ask("call", tools=self.TOOLS)
        self.assertEqual([b["type"] for b in j["content"]], ["thinking", "text", "tool_use", "tool_use"])
        self.assertEqual((j["stop_reason"], [(b["name"], b["input"]) for b in j["content"][2:]]), ("tool_use", [("weather", {"city": "Bern \U0001f600"}), ("time", {})]))
        self.assertEqual(len(self.ask("call", tools=self.TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})["content"]), 3)
        got = events(self.ask("call", tools=self.TOOLS, stream=True))
        self.assertEqual([e["content_block"]["name"] for _, e in got if e.get("content_block", {}).get("type") == "tool_use"], ["weather", "time"])
        arguments = {}
        for _, e in got:
            if e.get("delta", {}).get("type") == "input_json_delta":
                arguments[e["index"]] = arguments.get(e["index"], "") + e["delta"]["partial_json"]
        self.assertEqual([json.loads(v) for v in arguments.values()], [{"city": "Bern \U0001f600"}, {}])
        self.assertEqual("".join(b.get("text", "") for b in self.ask("nonsense", tools=self.TOOLS)["content"]), '<tool_call>{"name": 5}</tool_call>')
        back = [{"role": "user", "content": "call"}, {"role": "assistant", "content": j["content"]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": j["content"][2]["id"], "content": "sunny"}, {"type": "tool_result", "tool_use_id": j["content"][3]["id"], "content": [{"type": "text", "text": "noon"}]},
                                             {"type": "text", "text": "prompt x"}]}]
        said = self.post("/v1/messages", {"messages": back, "tools": self.TOOLS, "max_tokens": 500, "system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}]})["content"][0]["text"]
        self.assertEqual(said, "[system]S[user]call[assistant]Let me see.[tool]sunny[tool]noon[user]prompt x[assistant]")
        later = [{"role": "user", "content": "a"}, {"role": "system", "content": [{"type": "text", "text": "S"}]}, {"role": "user", "content": "prompt"}]
        self.assertEqual(self.post("/v1/messages", {"messages": later, "max_tokens": 50})["content"][0]["text"], "[user]a[system]S[user]prompt[assistant]")
        said = self.post("/v1/messages", {"messages": [{"role": "user", "content": "prompt"}, {"role": "assistant", "content": "[user]"}], "max_tokens": 50})["content"][0]["text"]
        self.assertEqual(said, "prompt[assistant][user]")  # an answer that has begun goes on

    def test_headers(self):
        """Headers for the service at the beginning of a system prompt, which change with every request, are left out; everything else stays."""
        header = "x-anthropic-billing-header: cc_version=2.1.100; cch=%d;"
        block = lambda text: {"type": "text", "text": text}
        said = lambda system: self.post("/v1/messages", {"messages": [{"role": "user", "content": "prompt"}], "max_tokens": 300, "system": system})["content"][0]["text"]
        for system in ([block(header % 1), block("S")], [block(header % 2 + "\n"), block("x-anthropic-a: b"), block("S")], header % 3 + "\nS", [block("S")]):
            self.assertEqual(said(system), "[system]S[user]prompt[assistant]")
        self.assertEqual(said([block(header % 4)]), "[user]prompt[assistant]")
        for system in ("S\n" + header % 5, "x-anthropic-: S", "X-Anthropic-A: S", "x-anthropic-a S", " x-anthropic-a: S"):
            self.assertEqual(said(system), f"[system]{system}[user]prompt[assistant]")
        chat = lambda role, content: self.post("/v1/chat/completions", {"messages": [{"role": role, "content": content}, {"role": "user", "content": "prompt"}]})["choices"][0]["message"]["content"]
        for content in (header % 6 + "\nS", [block(header % 7), block("S")]):
            self.assertEqual(chat("system", content), "[system]S[user]prompt[assistant]")
        self.assertEqual(chat("user", header % 8), f"[user]{header % 8}[user]prompt[assistant]")
        self.assertEqual(self.post("/v1/responses", {"input": "prompt", "instructions": header % 9 + "\nS"})["output"][0]["content"][0]["text"], "[system]S[user]prompt[assistant]")

    def test_other_blocks(self):
        """Texts within other blocks are read, and what another server did itself is left out: a client sends such blocks again with every request."""
        said = lambda *messages: self.post("/v1/messages", {"messages": [*messages, {"role": "user", "content": "prompt"}], "max_tokens": 500})["content"][0]["text"].removesuffix("[user]prompt[assistant]")
        text = lambda s: {"type": "text", "text": s}
        document = lambda **source: {"type": "document", "title": "T", "source": source}
        found = {"type": "search_result", "title": "F", "source": "http://f", "content": [text("g")]}
        self.assertEqual(said({"role": "user", "content": [document(type="text", media_type="text/plain", data="a"), document(type="content", content=[text("b"), text("c")]), document(type="content", content="d"), found, text("e")]}),
                         "[user]T\na\n\nT\nbc\n\nT\nd\n\nF\nhttp://f\ng\n\ne")
        result = lambda *blocks: {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [*blocks]}]}
        use = {"type": "tool_use", "id": "t", "name": "time", "input": {}}
        self.assertEqual(said({"role": "user", "content": "a"}, {"role": "assistant", "content": [use]}, result({"type": "tool_reference", "tool_name": "X"}, found)), "[user]a[assistant][tool]tool: X\nF\nhttp://f\ng\n\n")
        gone = [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}, {"type": "mcp_tool_use", "id": "m", "name": "n"}, {"type": "mcp_tool_result", "tool_use_id": "m"}]
        self.assertEqual(said({"role": "user", "content": "a"}, {"role": "assistant", "content": [*gone, text("b"), {"type": "compaction", "content": "c"}]}, {"role": "user", "content": "d"}, {"role": "assistant", "content": gone}), "[user]a[assistant]bc\n\n[user]d[assistant]")

    def test_bytes(self):
        """Bytes that are no UTF-8 become U+FFFD in the arguments of a call, as in a chat; a character of thinking that is parted by a control token stays whole in a stream."""
        question = "say " + json.dumps(['\x0ea\ue0e2\x0f\x0e\ue082\ue0ac\x0f\x10{"name": "weather", "arguments": {"city": "B\ue0ff"}}\x11'])
        j = self.ask(question, tools=self.TOOLS)
        self.assertEqual([b.get("thinking") or b["input"] for b in j["content"]], ["a\u20ac", {"city": "B\ufffd"}])
        got = [e["delta"] for _, e in events(self.ask(question, tools=self.TOOLS, stream=True)) if e["type"] == "content_block_delta"]
        self.assertEqual(("".join(d.get("thinking", "") for d in got), json.loads("".join(d.get("partial_json", "") for d in got))), ("a\u20ac", {"city": "B\ufffd"}))

    def test_refused(self):
        image = [{"type": "document", "source": {"type": "base64", "data": ""}}]
        for more, word in (({"messages": []}, "messages:"), ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"), ({"messages": [{"role": "user"}]}, "messages[0].content"), ({"messages": [{"role": "user", "content": []}]}, "messages[0].content: must not be empty"),
                           ({"messages": [{"role": "user", "content": image}]}, "messages[0].content: document: only sources of type text and content are read"), ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id: missing"),
                           ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": image}]}]}, "messages[0].content[0].content: document"),
                           ({"messages": [{"role": "user", "content": [3]}]}, "messages[0].content[0]"), ({"max_tokens": -2}, "max_tokens"), ({"system": 3}, "system:"), ({"thinking": {"type": "maybe"}}, "thinking.type"),
                           ({"tools": [{"type": 3, "name": "web_search"}]}, "tools[0].type"), ({"tools": [{}]}, "tools[0].name"), ({"tool_choice": {"type": "tool"}}, "tool_choice.type"), ({"tool_choice": {"type": "any"}}, "there are no tools"),
                           ({"tool_choice": {"type": "any"}, "tools": self.TOOLS}, "cannot be required"), ({"mcp_servers": [{"url": "x"}]}, "mcp_servers is not supported"), ({"stop_sequences": [3]}, "stop_sequences"),
                           ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {"format": "x"}}}}}, "output_config.format.schema: #/not")):
            j = self.ask("x", status=400, **more)
            self.assertEqual((j["type"], j["error"]["type"]), ("error", "invalid_request_error"))
            self.assertIn(word, j["error"]["message"])
        self.assertEqual(self.post("/v1/messages", "{", 400)["type"], "error")
        self.assertEqual(self.ask("fail", status=500)["error"]["type"], "api_error")
        self.assertEqual(json.loads(self.s.request("GET", "/v1/messages")[2])["error"]["type"], "invalid_request_error")
        self.ask("x", service_tier="auto", thinking={"type": "enabled", "budget_tokens": 1024}, unknown_member=5, output_config={"effort": "low"})

    @needs("anthropic")
    def test_client(self):
        import anthropic
        self.s.end()
        s = self.s = self.serve("--listen", "127.0.0.1:0")
        client = anthropic.Anthropic(base_url=s.url.removesuffix("/v1"), api_key=s.key, timeout=driver.PATIENCE, max_retries=0)
        ask = lambda text, **more: {"model": "claude", "max_tokens": 1000, "messages": [{"role": "user", "content": text}], **more}
        m = client.messages.create(**ask("think", system="S"))
        self.assertEqual([(b.type, getattr(b, b.type)) for b in m.content], [("thinking", "reasoning here"), ("text", "the answer")])
        with client.messages.stream(**ask("call", tools=self.TOOLS)) as stream:
            text, final = "".join(stream.text_stream), stream.get_final_message()
        self.assertEqual((text, final.stop_reason, [(b.name, b.input) for b in final.content if b.type == "tool_use"]), ("Let me see.", "tool_use", [("weather", {"city": "Bern \U0001f600"}), ("time", {})]))
        back = ask("call")["messages"] + [{"role": "assistant", "content": final.content}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": b.id, "content": "sunny"} for b in final.content if b.type == "tool_use"] + [{"type": "text", "text": "prompt"}]}]
        self.assertEqual(client.messages.create(model="claude", max_tokens=500, messages=back, tools=self.TOOLS).content[0].text.count("[tool]sunny"), 2)
        self.assertEqual(client.messages.count_tokens(model="claude", messages=ask("hello")["messages"]).input_tokens, len("1user2hello1assistant2"))
        for wrong, kind in ((ask("x", stop_sequences=["x"] * 257), anthropic.BadRequestError), (ask("fail"), anthropic.InternalServerError)):
            with self.assertRaises(kind):
                client.messages.create(**wrong)
        with self.assertRaises(anthropic.APIError), client.messages.stream(**ask("fail")) as stream:
            stream.get_final_message()
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=s.url.removesuffix("/v1"), api_key="other", max_retries=0).messages.create(**ask("x"))



class Ollama(Api):
    TOOLS = [{"type": "function", "function": {"name": n, "description": "d", "parameters": CITY}} for n in ("weather", "time")]

    def chat(self, text, status=200, **more):
        return self.post("/api/chat", {"model": "fake", "stream": False, "messages": [{"role": "user", "content": text}], **more}, status)

    def lines(self, path, **body):
        got, headers, data = self.s.request("POST", path, {"model": "fake", **body})
        self.assertEqual((got, headers["Content-Type"]), (200, "application/x-ndjson"))
        return [json.loads(line) for line in data.decode().splitlines()]

    def test_whole(self):
        j = self.chat("think", keep_alive="5m")
        self.assertEqual((j["model"], j["message"], j["done"], j["done_reason"]), ("fake", {"role": "assistant", "content": "the answer", "thinking": "reasoning here"}, True, "stop"))
        self.assertEqual((j["prompt_eval_count"], j["eval_count"]), (len("1user2think1assistant2"), 28))
        self.assertRegex(j["created_at"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
        options = {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "min_p": 0.125, "repeat_penalty": 1.5, "seed": 42, "num_predict": 300, "presence_penalty": 0.5, "num_ctx": 8192, "mirostat": 0}
        self.assertEqual(self.chat("sampling", options=options)["message"]["content"], "temp 0.25 top-p 0.5 top-k 7 min-p 0.125 repeat-penalty 1.5 seed 42 max 300 presence-penalty 0.5")
        j = self.chat("long", options={"stop": ["word3"], "num_predict": -1})
        self.assertEqual((j["message"]["content"], self.chat("long", options={"num_predict": 5})["done_reason"]), ("word0 word1 word2 ", "length"))
        generate = lambda **body: self.post("/api/generate", {"model": "fake:latest", "stream": False, **body})
        self.assertEqual(generate(prompt="prompt x", system="S")["response"], "[system]S[user]prompt x[assistant]")
        self.assertEqual(generate(prompt="hello", raw=True)["prompt_eval_count"], 5)
        self.assertEqual((generate()["done_reason"], self.post("/api/chat", {"messages": []})["done_reason"]), ("load", "load"))
        self.assertEqual([t["token"] for t in self.chat("hi", logprobs=True, top_logprobs=1, options={"num_predict": 3})["logprobs"]], list("You"))

    def test_stream(self):
        got = self.lines("/api/chat", messages=[{"role": "user", "content": "think"}])
        self.assertEqual([line["done"] for line in got], [False] * (len(got) - 1) + [True])
        self.assertEqual(("".join(line["message"].get("thinking", "") for line in got), "".join(line["message"]["content"] for line in got)), ("reasoning here", "the answer"))
        self.assertEqual((got[-1]["done_reason"], got[-1]["eval_count"]), ("stop", 28))
        self.assertEqual("".join(line["response"] for line in self.lines("/api/generate", prompt="think")), "the answer")
        self.assertEqual(self.lines("/api/chat", messages=[{"role": "user", "content": "fail"}])[-1], {"error": "layer 3: non-finite logits"})
        self.assertTrue(self.lines("/api/generate", prompt="layers")[-1]["done"])  # progress is no line of the stream

    def test_tools(self):
        j = self.chat("call", tools=self.TOOLS)
        self.assertEqual([(c["function"]["name"], c["function"]["arguments"]) for c in j["message"]["tool_calls"]], [("weather", {"city": "Bern \U0001f600"}), ("time", {})])
        got = self.lines("/api/chat", messages=[{"role": "user", "content": "call"}], tools=self.TOOLS)
        plain = lambda message: [c["function"] for c in message["tool_calls"]]
        self.assertEqual(plain(got[-2]["message"]), plain(j["message"]))
        back = [{"role": "user", "content": "call"}, j["message"], {"role": "tool", "tool_name": "weather", "content": "sunny"}, {"role": "user", "content": "prompt"}]
        self.assertIn("[tool]sunny", self.post("/api/chat", {"messages": back, "tools": self.TOOLS, "stream": False})["message"]["content"])
        ids = [c["id"] for c in j["message"]["tool_calls"]]
        self.assertRegex(" ".join(ids), "^call_([0-9a-f]{24})_0 call_\\1_1$")
        self.s.end()
        self.env["FAKE_SHOWS_CALLS"] = "1"
        self.s = self.serve()
        back[2:3] = [{"role": "tool", "tool_call_id": i, "content": "sunny"} for i in reversed(ids)]
        said = self.post("/api/chat", {"messages": back, "tools": self.TOOLS, "stream": False})["message"]["content"]
        self.assertEqual([i for i in re.findall("call_[0-9a-f]{24}_[01]", said)], ids + ids[::-1])

    def test_calls_on_lines(self):
        """Arguments that the model writes on several lines are on the line of their object; /api/generate, which has no calls, gives them as the model writes them."""
        markup = '{"name": "weather", "arguments": "{\\n\\"city\\":\\r\\n\\"a\\\\nb\\"}"}'
        question = "say " + json.dumps([f"Let me see.\x10{markup}\x11"])
        got = self.lines("/api/chat", messages=[{"role": "user", "content": question}], tools=self.TOOLS)
        self.assertEqual([c["function"]["arguments"] for line in got for c in line["message"].get("tool_calls", [])], [{"city": "a\nb"}])
        self.assertEqual(self.chat(question, tools=self.TOOLS)["message"]["tool_calls"][0]["function"], got[-2]["message"]["tool_calls"][0]["function"])
        said = f"Let me see.<tool_call>{markup}</tool_call>"
        self.assertEqual("".join(line["response"] for line in self.lines("/api/generate", prompt=question)), said)
        self.assertEqual(self.post("/api/generate", {"model": "fake", "prompt": question, "stream": False})["response"], said)

    def test_models(self):
        get = lambda path: json.loads(self.s.request("GET", path)[2])
        for path in ("/api/tags", "/api/ps"):
            self.assertEqual([(m["name"], m["details"]["family"]) for m in get(path)["models"]], [("fake", "fake")])
            self.assertEqual([(m["size"], type(m["size_vram"]), type(m["modified_at"]), type(m["digest"])) for m in get(path)["models"]], [(12345, int, str, str)])  # as Zed requires
        self.assertGreaterEqual(tuple(map(int, get("/api/version")["version"].split("."))), (0, 6, 4))  # as Copilot requires
        status, headers, body = self.s.request("POST", "/api/pull", "{}")[:3]
        self.assertEqual(status, 404)
        self.assertIn("no resource /api/pull", json.loads(body)["error"])  # clients of Ollama print this member as it is
        j = self.post("/api/show", {"model": "fake"})
        self.assertEqual((j["capabilities"], j["model_info"]["fake.context_length"]), (["completion", "tools"], 65536))

    def test_refused(self):
        for body, word in (({"messages": 3}, "messages: must be"), ({"messages": [{"role": "bot"}]}, "messages[0].role"), ({"messages": [{"role": "user", "content": [3]}]}, "messages[0].content"),
                           ({"messages": [{"role": "user", "images": [3]}]}, "messages[0].images"), ({"options": 3}, "options: must be"), ({"options": {"temperature": "hot"}}, "options.temperature"), ({"options": {"num_predict": -3}}, "options.num_predict"),
                           ({"options": {"mirostat": 1}}, "options.mirostat is not supported"), ({"format": "yaml"}, "format:"), ({"format": {"not": {"format": "x"}}}, "format: #/not"), ({"think": 3}, "think:"), ({"tools": [{}]}, "tools[0].function.name"),
                           ({"prompt": "x"}, "prompt: belongs to /api/generate"), ({"top_logprobs": 2}, "top_logprobs"), ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function.name"), ("[", "request:")):
            j = self.post("/api/chat", body if isinstance(body, str) else {"messages": [{"role": "user", "content": "x"}], **body}, 400)
            self.assertEqual(list(j), ["error"])
            self.assertIn(word, j["error"])
        empty = {"raw": False, "suffix": "", "images": [], "system": None}  # clients that have one class for both requests
        self.assertEqual(self.post("/api/chat", {"messages": [{"role": "user", "content": "x"}], "stream": False, **empty})["done"], True)
        self.assertIn("template is not supported", self.post("/api/generate", {"prompt": "x", "template": "y"}, 400)["error"])
        self.assertIn("no embedding head", self.post("/api/embed", {"input": "x"}, 400)["error"])
        self.assertIn("no embedding head", self.post("/v1/embeddings", {"input": "x"}, 400)["error"]["message"])
        self.assertEqual(self.chat("fail", status=500), {"error": "layer 3: non-finite logits"})
        self.chat("x", think="low", unknown=3)

    @needs("ollama")
    def test_client(self):
        import ollama
        self.s.end()
        s = self.s = self.serve("--listen", "127.0.0.1:0")
        client = ollama.Client(host=s.url.removesuffix("/v1"), headers={"Authorization": "Bearer " + s.key}, timeout=driver.PATIENCE)
        ask = lambda text, **more: client.chat(model="fake", messages=[{"role": "user", "content": text}], **more)
        self.assertEqual([m.model for m in client.list().models], ["fake"])
        self.assertIn("tools", client.show("fake").capabilities)
        m = ask("think", think=True).message
        self.assertEqual((m.thinking, m.content), ("reasoning here", "the answer"))
        self.assertEqual("".join(p.message.content for p in ask("think", stream=True)), "the answer")
        self.assertEqual([(c.function.name, c.function.arguments) for c in ask("call", tools=self.TOOLS).message.tool_calls], [("weather", {"city": "Bern \U0001f600"}), ("time", {})])
        self.assertEqual(client.generate(model="fake", prompt="prompt x", system="S", options={"seed": 4}).response, "[system]S[user]prompt x[assistant]")
        with self.assertRaises(ollama.ResponseError):
            ask("fail")


class Responses(Api):
    TOOLS = [{"type": "function", "name": n, "description": "d", "parameters": CITY} for n in ("weather", "time")]

    def ask(self, text, status=200, **more):
        return self.post("/v1/responses", {"model": "fake", "input": text, **more}, status)

    def test_whole(self):
        j = self.ask("think", temperature=0.5, metadata={"a": "b"}, store=False, include=[])
        self.assertEqual((j["object"], j["status"], [o["type"] for o in j["output"]]), ("response", "completed", ["reasoning", "message"]))
        self.assertEqual((j["output"][0]["content"][0]["text"], j["output"][1]["content"][0]["text"]), ("reasoning here", "the answer"))
        self.assertEqual((j["usage"]["input_tokens"], j["usage"]["output_tokens"], j["usage"]["output_tokens_details"]["reasoning_tokens"]), (len("1user2think1assistant2"), 28, 15))
        j = self.ask("long", max_output_tokens=5)
        self.assertEqual((j["status"], j["incomplete_details"]), ("incomplete", {"reason": "max_output_tokens"}))
        said = lambda **more: self.ask(status=200, **more)["output"][0]["content"][0]["text"]
        self.assertEqual(said(text=[{"role": "developer", "content": "D"}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "prompt "}, {"type": "input_text", "text": "x"}]}], instructions="S"),
                         "[system]S[system]D[user]prompt x[assistant]")
        calls = [{"type": "function_call", "call_id": f"c{i}", "name": "weather", "arguments": "{}"} for i in range(2)]
        back = [{"role": "user", "content": "call"}, {"type": "reasoning", "summary": []}, *calls, *({"type": "function_call_output", "call_id": c["call_id"], "output": "sunny"} for c in calls), {"role": "user", "content": "prompt"}]
        self.assertEqual(said(text=back, tools=self.TOOLS), "[user]call[assistant][tool]sunny[tool]sunny[user]prompt[assistant]")

    def test_calls_come_back(self):
        """Calls that follow each other are one message's, each with its result."""
        self.s.end()
        self.env["FAKE_SHOWS_CALLS"] = "1"
        self.s = self.serve()
        calls = [{"type": "function_call", "call_id": f"c{i}", "name": name, "arguments": "{}"} for i, name in enumerate(("weather", "time", "weather"))]
        results = [{"type": "function_call_output", "call_id": c["call_id"], "output": "noon"} for c in calls]
        items = [{"role": "user", "content": "call"}, *calls[:2], *results[:2], calls[2], results[2], {"role": "user", "content": "prompt"}]
        said = self.ask(items, tools=self.TOOLS)["output"][0]["content"][0]["text"]
        shown = [re.findall('"(?:id|name)": *"([^"]+)"', part) for part in said.split("[assistant]")[1:-1]]
        self.assertEqual(shown, [["c0", "weather", "c1", "time"], ["c2", "weather"]], said)

    def test_namespaces(self):
        """Codex offers the tools of an MCP server as a namespace. The model calls them by joined names; the client has both names apart, also in the calls that it sends back."""
        self.s.end()
        self.env["FAKE_SHOWS_CALLS"] = "1"
        self.s = self.serve()
        function = lambda name: {"type": "function", "name": name, "parameters": CITY}
        tools = [{"type": "namespace", "name": "mcp__a__", "tools": [function("x"), function("y")]}, function("weather"), {"type": "namespace", "name": "b", "tools": [function("x"), {"type": "custom", "name": "z"}]}]
        for joined, names in (("mcp__a__y", ("y", "mcp__a__")), ("b__x", ("x", "b")), ("weather", ("weather", None))):
            text = "say " + json.dumps(['\x10{"name": "%s", "arguments": {}}\x11' % joined])
            item = self.ask(text, tools=tools)["output"][0]
            self.assertEqual((item["type"], item["name"], item.get("namespace")), ("function_call", *names))
            got = events(self.ask(text, tools=tools, stream=True))
            streamed = [e["item"] for name, e in got if name in ("response.output_item.added", "response.output_item.done")] + got[-1][1]["response"]["output"]
            self.assertEqual([(i["name"], i.get("namespace")) for i in streamed], [names] * 3)
            back = [{"role": "user", "content": "call"}, item, {"type": "function_call_output", "call_id": item["call_id"], "output": "noon"}, {"role": "user", "content": "prompt"}]
            self.assertEqual(re.findall('"name": *"([^"]+)"', self.ask(back, tools=tools)["output"][0]["content"][0]["text"]), [joined])
        # since its version 0.144 all tools are items of the input, and those without a namespace are in "functions"
        added = {"type": "additional_tools", "role": "developer", "tools": [{"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}, function("wait")]}, *tools]}
        for joined, names in (("mcp__a__y", ("y", "mcp__a__")), ("wait", ("wait", None)), ("weather", ("weather", None))):
            items = [added, {"role": "user", "content": "say " + json.dumps(['\x10{"name": "%s", "arguments": {}}\x11' % joined])}]
            item = self.ask([*items, added])["output"][0]
            self.assertEqual((item["type"], item["name"], item.get("namespace")), ("function_call", *names))
        back = [added, {"role": "user", "content": "call"}, {**item, "name": "wait", "namespace": "functions"}, {"type": "function_call_output", "call_id": item["call_id"], "output": "noon"}, {"role": "user", "content": "prompt"}]
        self.assertEqual(re.findall('"name": *"([^"]+)"', self.ask(back)["output"][0]["content"][0]["text"]), ["wait"])
        self.assertIn("input[1].tools[0].tools[1].name", self.ask([{"role": "user", "content": "x"}, {"type": "additional_tools", "tools": [{"type": "namespace", "name": "a", "tools": [function("b"), {"type": "function"}]}]}], status=400)["error"]["message"])
        self.assertIn("tools[0].tools[0].name", self.ask("x", tools=[{"type": "namespace", "name": "a", "tools": [{"type": "function"}]}], status=400)["error"]["message"])
        # each name once, and any number of them in no time
        many = {"model": "fake", "input": "x", "tools": [function(str(i)) for i in range(60000)], "text": {"format": {"type": "x"}}}
        self.assertIn("text.format", self.post("/v1/responses", many, 400)["error"]["message"])

    def test_items_of_other_servers(self):
        """A conversation that began at another server goes on: calls that the client has carried out are calls, whatever their kind, and what that server did itself is left out."""
        self.s.end()
        self.env["FAKE_SHOWS_CALLS"] = "1"
        self.s = self.serve()
        user = lambda text: {"role": "user", "content": text}
        said = lambda *items: self.ask([user("call"), *items, user("prompt")])["output"][0]["content"][0]["text"].replace('"c"[user]', "[user]")
        output = lambda kind, value: {"type": kind + "_output", "call_id": "c", "output": value}
        call = {"type": "function_call", "call_id": "c", "name": "time", "arguments": "{}"}
        for value, shown in ((None, ""), ([], ""), ({"content": "a"}, '{"content": "a"}'), ([{"stdout": "a"}], '[{"stdout": "a"}]'), ([{"type": "input_text", "text": "a"}], "a")):
            text = said(call, output("function_call", value))
            self.assertEqual(text.split("[tool]")[1], shown + "[user]prompt[assistant]")
        for kind, more in (("local_shell", {"action": {"command": ["ls"]}}), ("shell", {"action": {"commands": ["ls"]}}), ("apply_patch", {"operation": {"path": "ls"}}), ("tool_search", {"arguments": {"query": "ls"}})):
            text = said({"type": kind + "_call", "call_id": "c", "status": "completed", **more}, output(kind + "_call", "a"))
            self.assertEqual((re.findall('"name": *"([^"]+)"', text), "ls" in text, text.split("[tool]")[1]), ([kind], True, "a[user]prompt[assistant]"))
        self.assertIn("[tool]" + json.dumps(self.TOOLS), said(call, {"type": "tool_search_output", "call_id": "c", "tools": self.TOOLS}))
        gone = [{"type": t, "id": "i"} for t in ("web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call", "mcp_call", "mcp_list_tools", "mcp_approval_request")]
        refused = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
        self.assertEqual(said(*gone, refused, {"role": "assistant", "content": None}), "[user]call[assistant]no[assistant][user]prompt[assistant]")

    def test_reasoning_comes_back(self):
        """Thinking that a client sends back is that of the assistant's next message, as in the other protocols."""
        self.s.end()
        self.env["FAKE_SHOWS_THINKING"] = "1"
        self.s = self.serve()
        thought = lambda text, name="content", kind="reasoning_text": {"type": "reasoning", "summary": [], name: [{"type": kind, "text": text}]}
        call = {"type": "function_call", "call_id": "c", "name": "time", "arguments": "{}"}
        result = {"type": "function_call_output", "call_id": "c", "output": "noon"}
        items = [{"role": "user", "content": "a"}, thought("one"), {"role": "assistant", "content": "b"}, call, result, thought("two", "summary", "summary_text"), thought("!"), call, thought("?"), call, result, result, {"role": "assistant", "content": "c"}, thought("three"),
                 {"role": "user", "content": "d"}, {"role": "assistant", "content": "e"}, {"role": "user", "content": "prompt"}]
        said = self.ask(items, tools=self.TOOLS)["output"][0]["content"][0]["text"]
        self.assertEqual(said, "[user]a[assistant](one)b[tool]noon[assistant](two!?)[tool]noon[tool]noon[assistant]c[user]d[assistant]e[user]prompt[assistant]")
        # Mistral's clients send it among the parts of the content
        for parts, want in (([{"type": "thinking", "thinking": "why"}, {"type": "text", "text": "b"}], "(why)b"), ([{"type": "thinking", "thinking": [{"type": "text", "text": "w"}, {"type": "text", "text": "hy"}]}], "(why)")):
            chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": parts, "reasoning_content": None}, {"role": "user", "content": "prompt"}]}
            self.assertEqual(self.post("/v1/chat/completions", chat)["choices"][0]["message"]["content"], f"[user]a[assistant]{want}[user]prompt[assistant]")
        parts[0]["thinking"] = 3
        self.assertIn("messages[1].content[0].thinking: must be text", self.post("/v1/chat/completions", chat, 400)["error"]["message"])
        self.assertIn("input[1].content[0]: image is not supported", self.ask([items[0], thought("x", kind="image")], status=400)["error"]["message"])

    def test_sealed_reasoning(self):
        """Codex drops the text of thinking and sends `encrypted_content` back: an answer has it if nothing is stored, or if it is asked for."""
        self.s.end()
        self.env["FAKE_SHOWS_THINKING"] = "1"
        self.s = self.serve()
        first = lambda **more: self.ask("think", **more)["output"][0]
        self.assertNotIn("encrypted_content", first())
        sealed = first(store=False)["encrypted_content"]
        self.assertEqual(first(include=["message.output_text.logprobs", "reasoning.encrypted_content"])["encrypted_content"], sealed)
        got = events(self.ask("think", stream=True, store=False))
        self.assertEqual([e["item"].get("encrypted_content") for _, e in got if e.get("item", {}).get("type") == "reasoning"], [None, sealed])
        self.assertEqual(got[-1][1]["response"]["output"][0]["encrypted_content"], sealed)

        def said(**thought):
            items = [{"role": "user", "content": "a"}, {"type": "reasoning", **thought}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "prompt"}]
            return self.ask(items)["output"][0]["content"][0]["text"].split("[assistant]")[1]
        summary = [{"type": "summary_text", "text": "short"}]
        self.assertEqual(said(summary=[], encrypted_content=sealed), "(reasoning here)b[user]prompt")
        self.assertEqual(said(summary=summary, content=None, encrypted_content=sealed), "(reasoning here)b[user]prompt")
        self.assertEqual(said(summary=[], content=[{"type": "reasoning_text", "text": "open"}], encrypted_content=sealed), "(open)b[user]prompt")
        for other in ("gAAAAABpZtK3mH8x", "hearth.1.*", "hearth.1./w==", "hearth.1.", "", 3, None):  # of other servers, or damaged
            self.assertEqual(said(summary=summary, encrypted_content=other), "(short)b[user]prompt", other)

    def test_stream(self):
        got = events(self.ask("think", stream=True))
        self.assertEqual([e["sequence_number"] for _, e in got], list(range(len(got))))
        self.assertTrue(all(name == e["type"] for name, e in got))
        kinds = [name for name, _ in got if not name.endswith(".delta")]
        self.assertEqual(kinds, ["response." + k for k in ("created", "in_progress", "output_item.added", "reasoning_text.done", "output_item.done", "output_item.added", "content_part.added", "output_text.done", "content_part.done",
                                                           "output_item.done", "completed")])
        self.assertEqual("".join(e["delta"] for name, e in got if name == "response.output_text.delta"), "the answer")
        whole = self.ask("think")
        strip = lambda j: [(o["type"], [p["text"] for p in o.get("content", [])]) for o in j["output"]]
        self.assertEqual(strip(got[-1][1]["response"]), strip(whole))
        for text, n in (("wide", 1), ("think", 5)):  # no text, and no more than thinking
            got = events(self.ask(text, stream=True, max_output_tokens=n))
            self.assertEqual(strip(got[-1][1]["response"]), strip(self.ask(text, max_output_tokens=n)))
            self.assertEqual(got[-1][1]["response"]["output"][-1]["type"], "message")
        got = events(self.ask("call", stream=True, tools=self.TOOLS))
        self.assertEqual([(o["name"], json.loads(o["arguments"])) for o in got[-1][1]["response"]["output"] if o["type"] == "function_call"], [("weather", {"city": "Bern \U0001f600"}), ("time", {})])
        whole = self.ask("think", max_output_tokens=20)
        got = events(self.ask("think", stream=True, max_output_tokens=20))
        self.assertEqual((got[-1][0], [i["status"] for i in got[-1][1]["response"]["output"]], [i["status"] for i in whole["output"]]), ("response.incomplete", *[["completed", "incomplete"]] * 2))
        self.assertEqual([e["item"]["status"] for name, e in got if name.endswith("item.done")], ["completed", "incomplete"])
        for n, status in ((95, "completed"), (70, "incomplete")):  # within the second call, and within the first
            got = events(self.ask("call", stream=True, tools=self.TOOLS, max_output_tokens=n))
            self.assertEqual([i["status"] for i in got[-1][1]["response"]["output"] if i["type"] == "function_call"][0], status)
        got = events(self.ask("fail", stream=True))
        self.assertEqual([name for name, _ in got[-2:]], ["error", "response.failed"])
        why = {"code": "server_error", "message": "layer 3: non-finite logits"}
        self.assertEqual([{k: j[k] for k in why} for j in (got[-2][1], got[-2][1]["error"], got[-1][1]["response"]["error"])], [why] * 3)  # as different clients read it
        self.assertEqual((got[-1][1]["response"]["status"], got[-1][1]["response"]["usage"], [e["sequence_number"] for _, e in got]), ("failed", None, list(range(len(got)))))
        # Codex shortens a chat after this event, and gives up after status 400
        self.assertEqual(self.ask("x" * 70000, status=400)["error"]["code"], "context_length_exceeded")
        got = events(self.ask("x" * 70000, stream=True))
        self.assertEqual([name for name, _ in got], ["response.created", "response.in_progress", "error", "response.failed"])
        self.assertEqual((got[3][1]["response"]["error"]["code"], got[2][1]["error"]["type"], [e["sequence_number"] for _, e in got]), ("context_length_exceeded", "invalid_request_error", [0, 1, 2, 3]))
        self.assertEqual(self.s.request("GET", "/hearth/status")[0], 200)

    def test_refused(self):
        for more, word in (({"text": ""}, "input:"), ({"text": [3]}, "input[0]"), ({"text": [{"role": "bot", "content": "x"}]}, "input[0].role"), ({"text": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]: an image needs a url"),
                           ({"text": [{"type": "compaction"}]}, "input[0].type: compaction is not supported"), ({"text": [{"type": "item_reference"}]}, "nothing is stored"), ({"text": [{"type": "function_call"}]}, "input[0].name"), ({"text": [{"type": "reasoning"}]}, "input: has no message"), ({"text": [{"type": "function_call_output"}]}, "input[0].output"),
                           ({"previous_response_id": "resp_1"}, "previous_response_id is not supported"), ({"background": True}, "background"), ({"tools": [{"name": "a"}]}, "tools[0].type: missing"), ({"tool_choice": "any"}, "tool_choice"),
                           ({"max_output_tokens": -2}, "max_output_tokens"), ({"instructions": 3}, "instructions")):
            self.assertIn(word, self.ask(more.pop("text", "x"), status=400, **more)["error"]["message"])
        self.assertIn("text.format.schema: #/not", self.post("/v1/responses", {"input": "x", "text": {"format": {"type": "json_schema", "schema": {"not": {"format": "x"}}}}}, 400)["error"]["message"])

    @needs("openai")
    def test_client(self):
        import openai
        self.s.end()
        s = self.s = self.serve("--listen", "127.0.0.1:0")
        client = openai.OpenAI(base_url=s.url, api_key=s.key, timeout=driver.PATIENCE, max_retries=0)
        r = client.responses.create(model="fake", input="think", instructions="S")
        self.assertEqual((r.output_text, r.usage.output_tokens), ("the answer", 28))
        with client.responses.stream(model="fake", input="call", tools=self.TOOLS) as stream:
            kinds = {e.type for e in stream}
            final = stream.get_final_response()
        self.assertEqual([(o.name, json.loads(o.arguments)) for o in final.output if o.type == "function_call"], [("weather", {"city": "Bern \U0001f600"}), ("time", {})])
        self.assertTrue({"response.output_text.delta", "response.function_call_arguments.done", "response.completed"} <= kinds, kinds)
        with self.assertRaises(openai.BadRequestError):
            client.responses.create(model="fake", input="x", previous_response_id="resp_1")


if __name__ == "__main__":
    driver.unittest.main()
