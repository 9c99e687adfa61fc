"""The resident engine: its protocol and its limits. Runs on the fake engine."""
import gzip
import json
import os
import socket

import driver
from server import Case, ask, chunks, streamed_calls

LONG = "".join(f"word{i} " for i in range(200))  # the answer to "long"


class Protocol(Case):
    def setUp(self):
        super().setUp()
        self.s = self.serve()

    def refused(self, status, word, body, path="/v1/chat/completions", method="POST", headers={}):
        got, _, data = self.s.request(method, path, body, headers)
        error = json.loads(data)["error"]
        self.assertEqual((got, set(error)), (status, {"message", "type", "param", "code"}), data)
        self.assertIn(word, error["message"])
        return error

    def test_models(self):
        status, headers, data = self.s.request("GET", "/v1/models")
        self.assertEqual((status, headers["Content-Type"]), (200, "application/json"))
        self.assertEqual([m["id"] for m in json.loads(data)["data"]], ["fake"])
        listed = json.loads(data)
        self.assertEqual((listed["has_more"], listed["data"][0]["type"], listed["data"][0]["display_name"]), (False, "model", "fake"))  # as Anthropic's clients read
        self.assertEqual(json.loads(self.s.request("GET", "/v1/models/fake")[2])["id"], "fake")
        self.assertEqual(self.refused(404, "no such model", None, "/v1/models/other", "GET")["code"], "model_not_found")

    def test_whole(self):
        status, j = self.s.chat("think", model="fake")
        self.assertEqual((status, j["object"], len(j["choices"])), (200, "chat.completion", 1))
        self.assertEqual(j["choices"][0], {"index": 0, "message": {"role": "assistant", "content": "the answer", "reasoning_content": "reasoning here"}, "finish_reason": "stop"})
        prompt = len("1user2think1assistant2")
        self.assertEqual(j["usage"], {"prompt_tokens": prompt, "completion_tokens": 28, "total_tokens": prompt + 28, "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 15}})
        self.assertEqual((j["timings"]["reason"], j["timings"]["timing"]["prefill"]), ("stop", "cpu"))
        self.assertNotIn("why", j["timings"])
        self.assertEqual(self.s.chat("x", explain=True)[1]["timings"]["why"], "fake: only one mode")

    def test_stream(self):
        r = self.s.stream("think", stream_options={"include_usage": True})
        self.assertEqual((r.status, r.headers["Content-Type"], r.headers["X-Accel-Buffering"]), (200, "text/event-stream", "no"))
        got, done = chunks(r)
        self.assertTrue(done)
        self.assertEqual(len({c["id"] for c in got}), 1)
        self.assertEqual(got[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        deltas = [c["choices"][0]["delta"] for c in got if c["choices"]]
        self.assertEqual("".join(d.get("reasoning_content", "") for d in deltas), "reasoning here")
        self.assertEqual("".join(d.get("content", "") for d in deltas), "the answer")
        self.assertEqual([c["choices"][0]["finish_reason"] for c in got if c["choices"] and c["choices"][0]["finish_reason"]], ["stop"])
        self.assertEqual((got[-1]["choices"], got[-1]["usage"]["completion_tokens"]), ([], 28))
        got, done = chunks(self.s.stream("hello"))
        self.assertFalse([c for c in got if "usage" in c])

    def test_tools_that_the_template_drops(self):
        tools = [{"type": "function", "function": {"name": "a", "parameters": {"type": "object", "properties": {}}}}]
        self.s.end()
        self.env["FAKE_NO_TOOLS"] = "1"
        self.s = self.serve()
        self.refused(400, "tools are not supported", ask("x", tools=tools))
        self.assertEqual(self.s.chat("x", tools=tools, tool_choice="none")[0], 200)

    def test_calls(self):
        """Tool calls complete and streamed, after thinking and text; one where only one is requested; invalid calls are text."""
        tools = [{"type": "function", "function": {"name": n, "parameters": {"type": "object", "properties": {}}}} for n in ("weather", "time")]
        functions = lambda calls: [(c["type"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]
        want = [("function", "weather", {"city": "Bern \U0001f600"}), ("function", "time", {})]
        for more, n in (({"tools": tools}, 2), ({"tools": tools, "parallel_tool_calls": False}, 1), ({"tools": tools, "parallel_tool_calls": True}, 2)):
            choice = self.s.chat("call", **more)[1]["choices"][0]
            m = choice["message"]
            self.assertEqual((m["reasoning_content"], m["content"], functions(m["tool_calls"]), choice["finish_reason"]), ("which one?", "Let me see.", want[:n], "tool_calls"))
            got, done = chunks(self.s.stream("call", **more))
            choices = [c["choices"][0] for c in got]
            calls = streamed_calls(got)
            self.assertEqual(("".join(x["delta"].get("reasoning_content", "") for x in choices), "".join(x["delta"].get("content", "") for x in choices)), ("which one?", "Let me see."))
            self.assertEqual((functions(calls), [c["index"] for c in calls], choices[-1]["finish_reason"], done), (want[:n], list(range(n)), "tool_calls", True))
            for ids in ([c["id"] for c in m["tool_calls"]], [c["id"] for c in calls]):
                self.assertEqual(len(set(ids)), n)
        back = [{"role": "user", "content": "call"}, {"role": "assistant", "content": None, "tool_calls": m["tool_calls"]}] + [{"role": "tool", "tool_call_id": c["id"], "content": "sunny"} for c in m["tool_calls"]]
        status, _, data = self.s.request("POST", "/v1/chat/completions", {"messages": back[:1] + [{**back[1], "content": ""}] + back[2:] + [{"role": "user", "content": "prompt"}], "tools": tools})
        self.assertEqual((status, json.loads(data)["choices"][0]["message"]["content"].count("[tool]sunny")), (200, 2))
        choice = self.s.chat("nonsense", tools=tools)[1]["choices"][0]
        self.assertEqual((choice["message"], choice["finish_reason"]), ({"role": "assistant", "content": '<tool_call>{"name": 5}</tool_call>'}, "stop"))
        got, done = chunks(self.s.stream("nonsense", tools=tools))
        self.assertEqual("".join(c["choices"][0]["delta"].get("content", "") for c in got), choice["message"]["content"])

    def test_calls_as_they_come(self):
        """Arguments in JSON are streamed as they come, others by a whole argument, when the next tag shows that it has ended; together they are what a whole reply has. A limit leaves the beginning of a call."""
        tools = [{"type": "function", "function": {"name": "write", "parameters": {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}}}}]
        text = "one two\\n three\\u00e9 \\ud83d\\ude00 four \\\\ five "
        json_form = '\x10{"name": "write", "arguments": {"text" : "' + text + '","n":[1.50,{"a":null}]}}\x11'
        tag_form = "\x10write<arg_key>text</arg_key><arg_value>some text</arg_value><arg_key>n</arg_key><arg_value>3</arg_value>\x11"
        for markup, pauses in ((json_form, {"two": '{"text": "one ', '","n"': '{"text": "' + json.dumps(json.loads(f'"{text}"'), ensure_ascii=False)[1:-1], ":null": '{"text": ' + json.dumps(json.loads(f'"{text}"'), ensure_ascii=False) + ', "n": [1.5, {"a"'}),
                               (tag_form, {"n</arg_key>": '{"text": "some text"'})):
            whole = "say " + json.dumps([markup])
            want, = self.s.chat(whole, tools=tools)[1]["choices"][0]["message"]["tool_calls"]
            got, done = chunks(self.s.stream(whole, tools=tools))
            self.assertEqual((streamed_calls(got)[0]["function"], done, got[-1]["choices"][0]["finish_reason"]), (want["function"], True, "tool_calls"))
            for at, begun in pauses.items():
                self.assertTrue(want["function"]["arguments"].startswith(begun), (want, begun))
                r, got = self.s.stream("say " + json.dumps([markup.replace(at, "\x12" + at)]), tools=tools), []
                while not (call := streamed_calls(got)) or call[0]["function"]["arguments"] != begun:
                    line = r.readline()  # the model has stopped within the call
                    self.assertTrue(line and b"finish_reason\": \"" not in line, (line, call, begun))
                    got += [json.loads(line[6:])] if line.startswith(b"data: ") else []
                r.close()
            cut, done = chunks(self.s.stream(whole, tools=tools, max_tokens=90))
            (call,), begun = streamed_calls(cut), want["function"]["arguments"]
            self.assertTrue(begun.startswith(call["function"]["arguments"]) and call["function"]["arguments"] != begun, call)
            self.assertEqual((call["function"]["name"], cut[-1]["choices"][0]["finish_reason"], done), ("write", "length", True))
        broken = self.s.stream("say " + json.dumps(['\x10{"name": "write", "arguments": {"text": "abc" 5}}\x11']), tools=tools)
        got, done = chunks(broken)  # what has been sent of a call that turns out to be none stays, or it is text
        calls, said = streamed_calls(got), "".join(c["choices"][0]["delta"].get("content", "") for c in got)
        self.assertEqual((calls[0]["function"]["arguments"], said) if calls else said, ('{"text": "abc"', "") if calls else '<tool_call>{"name": "write", "arguments": {"text": "abc" 5}}</tool_call>')
        self.assertEqual((got[-1]["choices"][0]["finish_reason"], done), ("tool_calls" if calls else "stop", True))

    def test_roles(self):
        """A role that the template would drop is refused; the new name of the system role means the old one."""
        roles = lambda *names: {"messages": [{"role": n, "content": "a"} for n in names] + [{"role": "user", "content": "prompt"}]}
        said = lambda body: json.loads(self.s.request("POST", "/v1/chat/completions", body)[2])["choices"][0]["message"]["content"]
        self.assertEqual(said(roles("developer", "narrator", "assistant")), "[system]a[narrator]a[assistant]a[user]prompt[assistant]")
        self.refused(400, "messages[1].role: this model's chat template has no role bot", roles("system", "bot"))
        self.refused(400, "messages[0].role", roles(""))

    def test_methods(self):
        """HEAD is GET without a body; an unsupported method is reported, and pages of other origins get nothing."""
        status, headers, data = self.s.request("HEAD", "/v1/models")
        self.assertEqual((status, data, int(headers["Content-Length"])), (200, b"", len(self.s.request("GET", "/v1/models")[2])))
        for method, path, allowed in (("OPTIONS", "/v1/chat/completions", "POST"), ("HEAD", "/v1/chat/completions", "POST"), ("DELETE", "/v1/models", "GET, HEAD"), ("PUT", "/hearth/stop", "POST")):
            status, headers, data = self.s.request(method, path, headers={"Origin": "http://example.org", "Access-Control-Request-Method": "POST"})
            self.assertEqual((status, headers["Allow"]), (405, allowed), path)
            self.assertFalse([h for h in headers if h.lower().startswith("access-control")])
        self.assertEqual(self.s.request("GET", "/v1/models?api-version=1")[0], 200)

    def test_websocket(self):
        """A client that would rather have a WebSocket, as Codex at first, reads 426, after which it sends a request."""
        ask = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        status, headers, data = self.s.request("GET", "/v1/responses", headers=ask)
        self.assertEqual((status, headers["Upgrade"], headers["Connection"]), (426, "HTTP/1.1", "Upgrade"))
        self.assertEqual(json.loads(data)["error"]["message"], "/v1/responses is not served over WebSockets; use method POST")
        self.assertEqual(self.s.request("GET", "/v1/elsewhere", headers=ask)[0], 404)
        self.assertEqual(self.s.request("GET", "/v1/models", headers=ask)[0], 200)
        self.assertEqual(self.s.request("GET", "/v1/responses", headers={**ask, "Upgrade": "h2c"})[0], 405)

    def test_progress(self):
        text = self.s.stream("prefill").read().decode()
        self.assertRegex(text, r"(?m)^: prompt \d+ of 1000, [\d.]+ s left$")

    def test_sampling(self):
        said = self.s.chat("sampling", temperature=0.25, top_p=0.5, top_k=7, min_p=0.125, repetition_penalty=1.5, seed=42, max_tokens=300)[1]
        self.assertEqual(said["choices"][0]["message"]["content"], "temp 0.25 top-p 0.5 top-k 7 min-p 0.125 repeat-penalty 1.5 seed 42 max 300")
        said = self.s.chat("sampling", max_completion_tokens=200, seed=1)[1]["choices"][0]["message"]["content"]
        self.assertEqual(said, "temp 0.5 top-p 1 top-k 0 min-p 0 repeat-penalty 1 seed 1 max 200")
        said = self.s.chat("sampling", repeat_penalty=1.5, presence_penalty=0.25, frequency_penalty=-0.5, logit_bias={"5": 1.5, "70": -100}, seed=1)[1]["choices"][0]["message"]["content"]
        self.assertEqual(said, "temp 0.5 top-p 1 top-k 0 min-p 0 repeat-penalty 1.5 seed 1 max -1 presence-penalty 0.25 frequency-penalty -0.5 bias-5 1.5 bias-70 -100")
        j = self.s.chat("long", max_tokens=5)[1]
        self.assertEqual((j["choices"][0]["message"]["content"], j["choices"][0]["finish_reason"]), ("word0", "length"))
        j = self.s.chat("long", stop=["zzz", "word3"])[1]
        self.assertEqual((j["choices"][0]["message"]["content"], j["choices"][0]["finish_reason"]), ("word0 word1 word2 ", "stop"))
        j = self.s.chat("stubborn", stop="deaf3", max_tokens=40)[1]  # what an engine generates before it hears of the stop does not count
        self.assertEqual((j["choices"][0]["message"]["content"], j["usage"]["completion_tokens"]), ("deaf0 deaf1 deaf2 ", len("deaf0 deaf1 deaf2 deaf3")))

    def test_any_integer_is_a_seed(self):
        """Clients draw seeds from all of uint64_t; equal ones are equal, and those of choices follow each other."""
        seeds = lambda seed: [c["message"]["content"].split("seed ")[1].split()[0] for c in self.s.chat("sampling", seed=seed, n=2, max_tokens=200)[1]["choices"]]
        for seed in (2**64 - 1, 2**63, 2**63 - 1, -(2**63), -2, 10**30):
            first, second = seeds(seed)
            self.assertEqual(seeds(seed), [first, second])
            self.assertEqual(int(second), int(first) + 1)
            self.assertGreaterEqual(int(first), 0)
        self.assertEqual(seeds(9 * 10**18)[0], str(9 * 10**18))

    def test_conversation(self):
        parts = [{"type": "text", "text": "prompt "}, "x"]  # LangChain's clients send strings among the parts
        body = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": parts}]}
        text = json.loads(self.s.request("POST", "/v1/chat/completions", body)[2])["choices"][0]["message"]["content"]
        self.assertEqual(text, "[system]S[user]a[assistant]b[user]prompt x[assistant]")

    def test_no_content(self):
        """An answer that was stopped at once and a tool that returned nothing have no content; an answer may be a refusal."""
        said = lambda *messages: json.loads(self.s.request("POST", "/v1/chat/completions", {"messages": [*messages, {"role": "user", "content": "prompt"}]})[2])["choices"][0]["message"]["content"]
        user, call = {"role": "user", "content": "a"}, {"id": "c", "type": "function", "function": {"name": "time", "arguments": "{}"}}
        for answer in ({"content": None}, {}, {"content": ""}, {"content": []}, {"content": None, "tool_calls": None, "refusal": None}):
            self.assertEqual(said(user, {"role": "assistant", **answer}), "[user]a[assistant][user]prompt[assistant]", answer)
        for result in ({"content": None}, {}):
            self.assertEqual(said(user, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", **result}), "[user]a[assistant][tool][user]prompt[assistant]")
        for answer in ({"content": None, "refusal": "no"}, {"refusal": "no"}, {"content": [{"type": "refusal", "refusal": "no"}]}):
            self.assertEqual(said(user, {"role": "assistant", **answer}), "[user]a[assistant]no[user]prompt[assistant]", answer)
        self.refused(400, "messages[0].content: missing", {"messages": [{"role": "system", "content": None}, user]})

    def test_limits(self):
        """A limit above any context limits nothing, however large; in Ollama's options, too."""
        for limit in (1 << 24, 2147483647, 999999999, 1 << 64, 1e300):
            self.assertEqual(self.s.chat("long", max_tokens=limit)[1]["choices"][0]["message"]["content"], LONG)
            self.assertEqual(json.loads(self.s.request("POST", "/api/chat", {**ask("long"), "stream": False, "options": {"num_predict": limit}})[2])["message"]["content"], LONG)
        self.refused(400, "max_tokens: must be an integer from 0, or -1", ask("x", max_tokens=1.5))

    def test_parted_characters(self):
        """A stream whose tokens part a character has the text of the whole answer, however its pieces are sent."""
        body = {"prompt": [0xE2, 0x41, 0xC4, 0xAD] * 40, "max_tokens": 200}
        whole = json.loads(self.s.request("POST", "/v1/completions", body)[2])["choices"][0]["text"]
        self.assertIn("\ufffdA\u012d", whole)
        self.assertEqual(json.loads(self.s.request("POST", "/v1/completions", {**body, "prompt": [body["prompt"]]})[2])["choices"][0]["text"], whole)  # a list of one prompt
        c = self.s.connection()
        c.request("POST", "/v1/completions", json.dumps({**body, "stream": True}))
        self.assertEqual("".join(choice["text"] for j in chunks(c.getresponse())[0] for choice in j["choices"]), whole)
        c.close()

    def test_several_prompts(self):
        """A request with several prompts, as LangChain and evaluations send, has the answers of each, in their order; a stream has the same."""
        prompts, body = ["abc", [104, 105], "sampling"], {"max_tokens": 300, "n": 2, "seed": 5}
        ask = lambda prompt: json.loads(self.s.request("POST", "/v1/completions", {**body, "prompt": prompt})[2])
        alone, j = [ask(p) for p in prompts], ask(prompts)
        self.assertEqual([(c["index"], c["text"]) for c in j["choices"]], list(enumerate(c["text"] for a in alone for c in a["choices"])))
        self.assertEqual(len({c["text"] for c in j["choices"][::2]}), 3)
        self.assertEqual([c["text"].split("seed")[1][:3] for c in j["choices"][4:]], [" 5 ", " 6 "])
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            self.assertEqual(j["usage"][name], sum(a["usage"][name] for a in alone))
        c = self.s.connection()
        c.request("POST", "/v1/completions", json.dumps({**body, "prompt": prompts, "stream": True}))
        texts = [""] * 6
        for choice in (choice for j in chunks(c.getresponse())[0] for choice in j["choices"]):
            texts[choice["index"]] += choice["text"]
        c.close()
        self.assertEqual(texts, [c["text"] for c in j["choices"]])

    def test_answers_continue_a_given_start(self):
        """An answer continues after its given start; what cannot continue is refused. And counting a prompt's tokens runs no answer."""
        begun = lambda text, **more: {"messages": [{"role": "user", "content": "long"}, {"role": "assistant", "content": text, **more}], "continue_final_message": True, "add_generation_prompt": False}
        for text in ("word0 word1 w", "word0 word1", ""):
            status, _, data = self.s.request("POST", "/v1/chat/completions", begun(text))
            self.assertEqual((status, text + json.loads(data)["choices"][0]["message"]["content"]), (200, LONG))
        for body, word in ((begun("x", reasoning_content="why"), "reasoning_content"), ({**begun("x"), "messages": [{"role": "user", "content": "x"}]}, "must be an assistant's text"),
                           ({**begun("x"), "messages": begun("x")["messages"][1:]}, "after another"), (begun(None, tool_calls=[]), "must be an assistant's text")):
            self.refused(400, word, body)
        count = lambda body: json.loads(self.s.request("POST", "/hearth/tokens", body)[2])
        self.assertEqual(count(ask("hello")), {"tokens": self.s.chat("hello")[1]["usage"]["prompt_tokens"]})
        self.assertEqual(count(begun("word0"))["tokens"], count(ask("long"))["tokens"] + 5)
        self.refused(400, "messages:", {}, "/hearth/tokens")

    def test_refused(self):
        post = "/v1/chat/completions"
        for body, word in (("", "request:"), ("{", "request:"), ("[]", "must be an object"), ('{"messages": 3}', "messages:"), ('{"messages": []}', "messages:"), ("\xff", "request:"),
                           ('{"messages": [3]}', "messages[0]"), ('{"messages": [{"role": "user"}]}', "messages[0].content"), ('{"messages": [{"content": "x"}]}', "messages[0]"),
                           (ask("x", n=17), "n: must be an integer from 1 to 16"), (ask("x", logprobs="yes"), "logprobs: must be"), (ask("x", top_logprobs=2), "top_logprobs: needs"), (ask("x", logprobs=True, top_logprobs=21), "top_logprobs: must be"), (ask("x", best_of=2), "best_of"), (ask("x", guided_choice=[1]), "guided_choice: choice 1"), (ask("x", guided_regex="(", guided_grammar="x"), "guided_grammar: cannot be combined"), (ask("x", guided_regex="("), "guided_regex: character 2"), (ask("x", guided_regex="(", stream=True), "guided_regex: character 2"), (ask("x", json_schema={"a": 1}), "json_schema"),
                           (ask("x", ignore_eos=True), "ignore_eos"), (ask("x", include_stop_str_in_output=True), "include_stop_str"), (ask("x", xtc_probability=0.5), "xtc_probability"), (ask("x", stop_token_ids=[3]), "stop_token_ids"), (ask("x", enable_thinking=0), "enable_thinking: must be true or false"), (ask("x", thinking={"type": "maybe"}), "thinking.type"), (ask("x", thinking=True), "thinking.type"),
                           (ask("x", chat_template="{{ x }}"), "chat_template"), (ask("x", modalities=["text", "audio"]), "modalities"), (ask("x", web_search_options={}), "web_search_options"), (ask("x", max_tokens=-2), "max_tokens"), (ask("x", temperature=-1), "temperature"), (ask("x", temperature="hot"), "temperature"),
                           (ask("x", stop=[3]), "stop"), (ask("x", stop=["a"] * 257), "stop: at most 256"), (ask("x", tools={}), "tools"), (ask("x", tools=[3]), "tools[0]"), (ask("x", tools=[{"type": "function", "name": "a"}]), "tools[0].function.name: missing"), (ask("x", tools=[{"function": {}}]), "tools[0].function.name"),
                           (ask("x", tool_choice="required"), "tool_choice"), (ask("x", response_format={"type": "yaml"}), "response_format.type"), (ask("x", response_format={"type": "json_schema", "json_schema": {"schema": {"not": {"format": "x"}}}}), "#/not"), (ask("x", response_format={"type": "json_object", "schema": {"not": {"format": "x"}}}), "response_format.schema: #/not"), (ask("x", response_format={"type": "json_schema"}), "response_format: a schema is required"), (ask("x", frequency_penalty=3), "frequency_penalty"),
                           (ask("x", chat_template_kwargs=[]), "chat_template_kwargs"), (ask("x", seed=1.5), "seed: must be an integer"), (ask("x", logit_bias={"five": 1}), "logit_bias"), (ask("x", logit_bias={"5": 101}), "logit_bias"), (ask("x", logit_bias=[5]), "logit_bias"),
                           (ask([{"type": "image_url", "image_url": {"url": "x"}}]), "messages[0].content[0]: hearth fetches no images from the network"), (ask([{"type": "text"}]), "messages[0].content[0]"),
                           (ask("x", stream="yes"), "stream: must be true or false"), (ask("x", stream_options=[]), "stream_options: must be an object"),
                           (ask("x", stream_options={"include_usage": 1}), "include_usage: must be true or false"), (ask("x", store="no"), "store"), (ask("x", parallel_tool_calls=1), "parallel_tool_calls"), (ask("x", user=5), "user: must be a string"),
                           (ask("x", reasoning_effort=3), "reasoning_effort: must be a string"), (ask("x", n=1.5), "n: must be"), (ask("x", repeat_penalty=0), "repeat_penalty"),
                           (ask("x", dry_sequence_breakers=["a", 1]), "dry_sequence_breakers: text 2"), (ask("x", dry_sequence_breakers="a"), "dry_sequence_breakers: 'a' is not a JSON list"), (ask("x", dry_multiplier=-1), "dry_multiplier"), (ask("x", dry_base=0.5), "dry_base"),
                           (ask("x", tools=[{"type": 3}]), "tools[0].type"), (ask("x", tool_choice="some"), "tool_choice: must be"), (ask("x", tool_choice="any"), "there are no tools"),
                           ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "function_call": {"name": "a", "arguments": ""}}, {"role": "user", "content": "z"}]}, "messages[1].function_call"),
                           (ask("x", add_generation_prompt="no"), "add_generation_prompt"), (ask("x", tool_choice={"type": "function", "function": {"name": "a"}}), "tool_choice")):
            self.refused(400, word, body)
        self.assertEqual(self.refused(400, "prompt is too long: 70017 tokens > 65536 maximum", ask("x" * 70000))["code"], "context_length_exceeded")
        self.assertEqual(self.s.chat("x", model="other")[0], 200)
        for body, word in (({}, "prompt"), ({"prompt": ["a", ""]}, "prompt: "), ({"prompt": ["a", 1]}, "prompt: "), ({"prompt": ["a"] * 129}, "prompt: at most 128 answers"), ({"prompt": ["a"] * 65, "n": 2}, "prompt: at most 128 answers"), ({"prompt": ["a", "x" * 70000]}, "prompt is too long"), ({"prompt": [[]]}, "prompt: "), ({"prompt": [[["a"]]]}, "prompt[0]"), ({"prompt": [1, -1]}, "prompt[1]"), ({"prompt": "x", "messages": [{}]}, "messages: belongs to"), ({"prompt": "x", "echo": True}, "echo"), ({"prompt": "x", "enable_thinking": True}, "enable_thinking: belongs to")):
            self.refused(400, word, body, "/v1/completions")
        self.refused(404, "no resource", {}, "/" + "a" * 3000)
        self.refused(405, "needs method POST", None, post, "GET")
        self.refused(405, "needs method GET", {}, "/v1/models")
        self.assertEqual(self.s.chat("harmless", n=1, logprobs=False, logit_bias={}, tool_choice="auto", response_format={"type": "text"}, presence_penalty=0, user="u", best_of=1, mirostat=0, typical_p=1.0, grammar="", min_tokens=0, modalities=["text"], max_tokens=-1,
                                     max_completion_tokens=None, seed=-1, stop="", tools=None, enable_thinking=None, metadata={"a": "b"}, service_tier="auto", xtc_probability=0, tfs_z=1, top_a=0, dynatemp_range=0, echo=False,
                                     prompt_cache_key="a", stream_options_of=None, reasoning_effort="low", verbosity="low", stream_options={"every": 5}, some_other_field={"a": 1})[0], 200)
        strict = self.serve_strict()
        for body, word in ((ask("x", some_other_field={"a": 1}), "some_other_field is not supported: unknown member"), (ask("x", stream_options={"every": 5}), "stream_options.every"), (ask("x", tools=[{"type": "custom"}]), "tools[0].type")):
            self.refused(400, word, body)
        self.assertEqual(strict.chat("x", seed=1, metadata={"a": "b"}, xtc_probability=0)[0], 200)
        self.refused(404, "no model other", ask("x", model="other"))

    def serve_strict(self):
        self.s.end()
        self.s = self.serve("--strict")
        return self.s

    def test_choices(self):
        """Several answers to one request, each with a seed of its own, whole and as a stream; the first failure ends all."""
        j = self.s.chat("sampling", n=3, seed=7, max_tokens=200)[1]
        self.assertEqual([(c["index"], c["finish_reason"]) for c in j["choices"]], [(i, "stop") for i in range(3)])
        self.assertEqual([c["message"]["content"].split("seed ")[1] for c in j["choices"]], [f"{i} max 200" for i in (7, 8, 9)])
        self.assertEqual((j["usage"]["prompt_tokens"], j["usage"]["completion_tokens"]), (len("1user2sampling1assistant2"), sum(len(c["message"]["content"]) for c in j["choices"])))
        got, done = chunks(self.s.stream("sampling", n=2, seed=7, max_tokens=200, stream_options={"include_usage": True}))
        said = [[], []]
        for c in got[:-1]:
            said[c["choices"][0]["index"]].append(c["choices"][0])
        self.assertTrue(done)
        for i, pieces in enumerate(said):
            self.assertEqual((pieces[0]["delta"]["role"], pieces[-1]["finish_reason"], "".join(p["delta"].get("content", "") for p in pieces)), ("assistant", "stop", j["choices"][i]["message"]["content"]))
        self.assertEqual(got[-1]["usage"]["completion_tokens"], sum(len(c["message"]["content"]) for c in j["choices"][:2]))
        self.assertEqual(self.s.chat("fail", n=3)[0], 500)
        got, done = chunks(self.s.stream("fail", n=3))
        self.assertEqual((len([c for c in got if "error" in c]), "error" in got[-1], done), (1, True, False))
        self.assertEqual(self.s.chat("odds", n=2, seed=7)[0], 500)  # the other answer alone would take minutes
        text = json.loads(self.s.request("POST", "/v1/completions", {"prompt": "abc", "n": 2, "max_tokens": 4})[2])
        self.assertEqual([c["index"] for c in text["choices"]], [0, 1])
        r = self.s.stream("slow", n=4)  # a client that leaves stops all of them
        r.read(100)
        r.close()
        self.s.settles("left")
        calls = self.s.chat("call", n=2, tools=[{"type": "function", "function": {"name": "weather"}}])[1]["choices"]
        self.assertEqual(len({t["id"] for c in calls for t in c["message"]["tool_calls"]}), 4)

    def test_logprobs(self):
        """Log probabilities of the text's tokens, not of thinking; the fake engine gives its tokens 1/2, 1/4, ..."""
        half = -0.6931472
        tops = lambda entry: [(t["token"], round(t["logprob"], 4)) for t in entry["top_logprobs"]]
        j = self.s.chat("think", logprobs=True, top_logprobs=2)[1]["choices"][0]
        content = j["logprobs"]["content"]
        self.assertEqual("".join(t["token"] for t in content).lstrip("\n"), "the answer")
        self.assertEqual(tops(content[-1]), [("r", round(half, 4)), ("s", round(2 * half, 4))])
        self.assertEqual((content[-1]["bytes"], round(content[-1]["logprob"], 4)), ([114], round(half, 4)))
        self.assertEqual(self.s.chat("hello", logprobs=True)[1]["choices"][0]["logprobs"]["content"][0]["top_logprobs"], [])
        self.assertNotIn("logprobs", self.s.chat("hello")[1]["choices"][0])
        got, done = chunks(self.s.stream("think", logprobs=True, top_logprobs=1))
        pieces = [t for c in got for t in (c["choices"][0].get("logprobs") or {"content": []})["content"]]
        self.assertEqual([t["token"] for t in pieces], [t["token"] for t in content])
        text = lambda **more: json.loads(self.s.request("POST", "/v1/completions", {"prompt": "abc", "max_tokens": 3, **more})[2])["choices"][0]
        self.assertIsNone(text()["logprobs"])
        p = text(logprobs=2)["logprobs"]
        self.assertEqual((p["tokens"], p["text_offset"], [len(t) for t in p["top_logprobs"]]), (list("You"), [0, 1, 2], [2, 2, 2]))
        self.assertEqual([round(v, 4) for v in p["token_logprobs"]], [round(half, 4)] * 3)
        self.assertEqual(list(p["top_logprobs"][0]), ["Y", "Z"])
        for stop in ("word3", " w"):  # log probabilities are those of the text: not of a stop string, nor of what might have begun one
            j = self.s.chat("long", stop=stop, logprobs=True)[1]["choices"][0]
            got, done = chunks(self.s.stream("long", stop=stop, logprobs=True))
            streamed = [t["token"] for c in got for t in (c["choices"][0].get("logprobs") or {"content": []})["content"]]
            self.assertEqual(("".join(t["token"] for t in j["logprobs"]["content"]), "".join(streamed)), (j["message"]["content"],) * 2)
        broken = self.s.chat("broken", logprobs=True)[1]["choices"][0]["logprobs"]["content"]
        self.assertEqual([t["bytes"] for t in broken], [[120], [255], [0xE2], [0x82], [121]])

    def test_engine_fails(self):
        self.assertEqual(self.s.chat("fail")[0], 500)
        got, done = chunks(self.s.stream("fail"))
        self.assertIn("non-finite", got[-1]["error"]["message"])
        self.assertFalse(done)
        self.assertEqual(self.s.chat("x")[0], 200)

    def test_too_much(self):
        self.refused(413, "16 MB", None, headers={"Content-Length": str(1 << 30)})
        body = (b"x" * (1 << 20) for _ in range(18))
        self.refused(413, "16 MB", body, headers={"Transfer-Encoding": "chunked"})
        for headers in ({"X-Long": "x" * 70000}, {f"X-{i}": "x" * 1000 for i in range(60)}):
            self.assertEqual(self.s.request("GET", "/v1/models", headers=headers)[0], 431)
        self.assertEqual(self.s.request("GET", "/v1/models?" + "x" * 70000)[0], 414)
        self.assertEqual(self.s.chat("x")[0], 200)

    def raw(self, data, close=True, pieces=1 << 20):
        """Returns the status of the reply to these bytes, and the whole reply; 0: none."""
        c = socket.socket(socket.AF_UNIX)
        c.settimeout(driver.PATIENCE)
        c.connect(self.s.path)
        got = b""
        try:
            for i in range(0, len(data), pieces):
                c.sendall(data[i:i + pieces])
            if close:
                c.shutdown(socket.SHUT_WR)
            while piece := c.recv(4096):
                got += piece
        except ConnectionError:
            pass
        c.close()
        return int(got.split()[1]) if got.startswith(b"HTTP/1.") else 0, got

    def test_not_http(self):
        for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), b"GET\r\n\r\n", b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"\r\n" * 100, b"\0" * 5000,
                     b"GET /v1/models HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            self.assertNotIn(self.raw(data)[0], (200, 500), data)
        self.assertEqual(self.s.chat("x")[0], 200)

    def test_absolute_target(self):
        for target, status in ((b"http://h/v1/models", 200), (b"HTTP://h:80/health?a=b", 200), (b"http://h/v1/other", 404), (b"http://h", 200), (b"http://", 200)):
            self.assertEqual(self.raw(b"GET " + target + b" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", False)[0], status, target)

    def test_bodies_and_paths(self):
        """A body may begin with a byte order mark, and a path have more slashes than it needs; a compressed body is called so."""
        body = json.dumps(ask("prompt")).encode()
        self.assertEqual(self.s.request("POST", "/v1/chat/completions", b"\xef\xbb\xbf" + body)[0], 200)
        for path in ("//v1/chat/completions", "/v1//chat/completions", "/v1/chat/completions/", "//v1//chat//completions//"):
            self.assertEqual(self.s.request("POST", path, body)[0], 200, path)
        for path, status in (("/v1/models/", 200), ("/v1//models//fake", 200), ("/v1/models/other", 404), ("/v1/modelsx", 404), ("/v1/model", 404), ("/health//", 200), ("//", 200)):
            self.assertEqual(self.s.request("GET", path)[0], status, path)
        self.refused(415, "the body is compressed", gzip.compress(body), headers={"Content-Encoding": "gzip"})
        self.assertEqual(self.s.request("POST", "/v1/chat/completions", body, headers={"Content-Encoding": "identity"})[0], 200)

    def test_chunks_and_lengths(self):
        """A body in chunks of any size is the same body; invalid or contradictory lengths and chunks are answered as errors or not at all."""
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
        body = json.dumps(ask("hello")).encode()
        chunked = lambda n: b"".join(b"%x;ext=1\r\n%s\r\n" % (len(body[i:i + n]), body[i:i + n]) for i in range(0, len(body), n)) + b"0\r\nTrailer: x\r\n\r\n"
        for n in (1, 7, 1000):
            status, got = self.raw(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(n), False)
            self.assertEqual((status, b"You said: hello" in got), (200, True))
        self.assertEqual(self.raw(head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body), False, pieces=1)[0], 200)
        got = self.raw(head + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body), False)[1]
        self.assertIn(b"You said: hello", got)
        two = b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n" + head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        self.assertEqual(self.raw(two, False)[1].count(b"HTTP/1.1 200 OK"), 2)
        for length in (b"Content-Length: 5abc", b"Content-Length: -1", b"Content-Length: 99999999999999999999999", b"Content-Length: 0x10", b"Content-Length:", b"Content-Length: 4\r\nContent-Length: 5"):
            self.assertNotIn(self.raw(head + length + b"\r\n\r\n" + body)[0], (200, 500), length)
        for bad in (b"zz\r\n", b"-1\r\n", b"ffffffffffffffff\r\nabc", b"fffffffffffffffffffff\r\n", b"5\r\nabcdefghij\r\n", b"\r\n\r\n", b";\r\n", b"0\r\n" + b"X: y\r\n" * 9000, b"5\n{\n"):
            self.assertNotIn(self.raw(head + b"Transfer-Encoding: chunked\r\n\r\n" + bad)[0], (200, 500), bad[:40])
        long = head + b"Transfer-Encoding: chunked\r\n\r\n5" + b";" * 60000
        c = socket.socket(socket.AF_UNIX)
        c.connect(self.s.path)
        c.sendall(long)
        self.assertFalse(self.s.spins(0.02, 1.5))  # no busy loop because of it
        c.close()
        self.assertEqual(self.raw(long.replace(b"/v1/chat/completions", b"/other"))[0], 404)
        self.assertNotEqual(self.raw(head + b"Transfer-Encoding: nonsense\r\n\r\n" + body)[0], 200)
        self.assertEqual(self.s.chat("x")[0], 200)

    def test_requests_cut_at_any_byte_are_dropped(self):
        """A request that ends at any of its bytes, by EOF or by a reset, is dropped."""
        body = json.dumps(ask("slow", stream=True)).encode()
        data = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        before = len(os.listdir(f"/proc/{self.s.p.pid}/fd"))
        for i in range(len(data)):
            c = socket.socket(socket.AF_UNIX)
            c.connect(self.s.path)
            c.sendall(data[:i])
            if i % 3 == 0:
                c.shutdown(socket.SHUT_WR)
            c.close()
        self.assertEqual(self.s.chat("x")[0], 200)
        self.s.settles("nobody", lambda status: status["answered"] == 1 and len(os.listdir(f"/proc/{self.s.p.pid}/fd")) <= before + 1)


if __name__ == "__main__":
    driver.unittest.main()
