"""The resident engine: its protocol, its limits, and clients that come, go, hang and are killed. Runs on the fake engine."""
import http.client
import json
import os
import random
import resource
import select
import signal
import socket
import stat
import threading
import time

import driver
from server import Case, ask, chunks

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
        self.assertEqual((r.status, r.headers["Content-Type"]), (200, "text/event-stream"))
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
            calls = [c for x in choices for c in x["delta"].get("tool_calls", [])]
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

    def test_conversation(self):
        parts = [{"type": "text", "text": "prompt "}, {"type": "text", "text": "x"}]
        body = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": parts}]}
        text = json.loads(self.s.request("POST", "/v1/chat/completions", body)[2])["choices"][0]["message"]["content"]
        self.assertEqual(text, "[system]S[user]a[assistant]b[user]prompt x[assistant]")

    def test_goes_on(self):
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
                           (ask("x", n=17), "n: must be an integer from 1 to 16"), (ask("x", logprobs="yes"), "logprobs: must be"), (ask("x", top_logprobs=2), "top_logprobs: needs"), (ask("x", logprobs=True, top_logprobs=21), "top_logprobs: must be"), (ask("x", best_of=2), "best_of"), (ask("x", guided_choice=[1]), "guided_choice: choice 1"), (ask("x", guided_regex="(", guided_grammar="x"), "guided_regex: character 2"), (ask("x", json_schema={"a": 1}), "json_schema"),
                           (ask("x", ignore_eos=True), "ignore_eos"), (ask("x", stop_token_ids=[3]), "stop_token_ids"), (ask("x", enable_thinking=False), "set it in chat_template_kwargs"), (ask("x", thinking={"type": "disabled"}), "thinking"),
                           (ask("x", chat_template="{{ x }}"), "chat_template"), (ask("x", modalities=["text", "audio"]), "modalities"), (ask("x", web_search_options={}), "web_search_options"), (ask("x", max_tokens=-2), "max_tokens"), (ask("x", temperature=-1), "temperature"), (ask("x", temperature="hot"), "temperature"),
                           (ask("x", max_tokens=0), "max_tokens"), (ask("x", stop=[3]), "stop"), (ask("x", stop=""), "stop"), (ask("x", tools={}), "tools"), (ask("x", tools=[3]), "tools[0]"),
                           (ask("x", tool_choice="required"), "tool_choice"), (ask("x", response_format={"type": "yaml"}), "response_format.type"), (ask("x", response_format={"type": "json_schema", "json_schema": {"schema": {"not": {}}}}), "#/not"), (ask("x", response_format={"type": "json_object"}, stop="x"), "stop: cannot be combined"), (ask("x", frequency_penalty=3), "frequency_penalty"),
                           (ask("x", chat_template_kwargs=[]), "chat_template_kwargs"), (ask("x", seed=-2), "seed"), (ask("x", logit_bias={"five": 1}), "logit_bias"), (ask("x", logit_bias={"5": 101}), "logit_bias"), (ask("x", logit_bias=[5]), "logit_bias"),
                           (ask([{"type": "image_url", "image_url": {"url": "x"}}]), "messages[0].content[0]: image_url is not supported"), (ask([{"type": "text"}]), "messages[0].content[0]"),
                           (ask("x", stream="yes"), "stream: must be true or false"), (ask("x", stream_options=[]), "stream_options: must be an object"),
                           (ask("x", stream_options={"include_usage": 1}), "include_usage: must be true or false"), (ask("x", store="no"), "store"), (ask("x", parallel_tool_calls=1), "parallel_tool_calls"), (ask("x", user=5), "user: must be a string"),
                           (ask("x", reasoning_effort=3), "reasoning_effort: must be a string"), (ask("x", n=1.5), "n: must be"), (ask("x", repeat_penalty=0), "repeat_penalty"),
                           (ask("x", tools=[{"type": "custom", "custom": {"name": "a"}}]), "tools[0].type"), (ask("x", tool_choice="any"), "tool_choice: must be"),
                           ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "function_call": {"name": "a", "arguments": ""}}, {"role": "user", "content": "z"}]}, "messages[1].function_call"),
                           (ask("x", add_generation_prompt="no"), "add_generation_prompt"), (ask("x", tool_choice={"type": "function", "function": {"name": "a"}}), "tool_choice")):
            self.refused(400, word, body)
        self.assertEqual(self.refused(400, "the context holds 65536", ask("x" * 70000))["code"], "context_length_exceeded")
        self.assertEqual(self.s.chat("x", model="other")[0], 200)
        for body, word in (({}, "prompt"), ({"prompt": ["a", "b"]}, "prompt: "), ({"prompt": [1, -1]}, "prompt[1]"), ({"prompt": "x", "messages": []}, "messages: belongs to"), ({"prompt": "x", "echo": True}, "echo")):
            self.refused(400, word, body, "/v1/completions")
        self.refused(404, "no resource", {}, "/" + "a" * 3000)
        self.refused(405, "needs method POST", None, post, "GET")
        self.refused(405, "needs method GET", {}, "/v1/models")
        self.assertEqual(self.s.chat("harmless", n=1, logprobs=False, logit_bias={}, tool_choice="auto", response_format={"type": "text"}, presence_penalty=0, user="u", best_of=1, mirostat=0, typical_p=1.0, grammar="", min_tokens=0, modalities=["text"], max_tokens=-1,
                                     max_completion_tokens=None, seed=-1, stop=None, tools=None, enable_thinking=None, metadata={"a": "b"}, service_tier="auto", xtc_probability=0, echo=False,
                                     prompt_cache_key="a", stream_options_of=None, reasoning_effort="low", verbosity="low", stream_options={"every": 5}, some_other_field={"a": 1})[0], 200)
        strict = self.serve_strict()
        for body, word in ((ask("x", some_other_field={"a": 1}), "some_other_field is not supported: unknown member"), (ask("x", stream_options={"every": 5}), "stream_options.every")):
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

    def test_cut_anywhere(self):
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


class Clients(Case):
    def test_closing_cancels(self):
        s = self.serve("--parallel", "1")
        for kind in ({"stream": True}, {}):
            c = s.connection()
            c.request("POST", "/v1/chat/completions", json.dumps(ask("prefill", **kind)))
            s.settles("begins", lambda status: status["sessions"] and status["sessions"][0]["state"] == "prefill")
            began = s.status()["answered"]
            c.close()
            s.settles("cancelled")
            self.assertEqual(s.status()["answered"], began + 1)

    def test_waiting_is_left(self):
        """A client that closes before its turn gets no answer; those after it are served in order."""
        s = self.serve("--parallel", "1")
        first = s.stream("prefill")
        left, then = s.connection(), s.connection()
        left.request("POST", "/v1/chat/completions", json.dumps(ask("long")))
        s.settles("waits", lambda status: [x["state"] for x in status["sessions"]].count("waiting") == 1)
        then.request("POST", "/v1/chat/completions", json.dumps(ask("x")))
        s.settles("waits", lambda status: [x["state"] for x in status["sessions"]].count("waiting") == 2)
        left.close()
        s.settles("left", lambda status: [x["state"] for x in status["sessions"]].count("waiting") == 1)
        self.assertEqual(json.loads(then.getresponse().read())["choices"][0]["message"]["content"], "You said: x")
        self.assertTrue(chunks(first)[1])
        self.assertEqual(s.status()["answered"], 2)

    def test_in_order(self):
        s = self.serve("--parallel", "1")
        asked, ends = {}, []
        for i in range(7):
            c = s.connection()
            c.request("POST", "/v1/chat/completions", json.dumps(ask(f"{i}" if i else "slow")))
            asked[c.sock] = (i, c)
            s.settles("asked", lambda status: len([x for x in status["sessions"] if x["state"] != "idle"]) == i + 1)
        while asked:
            ready = select.select(list(asked), [], [], driver.PATIENCE)[0]
            self.assertTrue(ready)
            ends += sorted(asked[sock][0] for sock in ready)
            for sock in ready:
                self.assertEqual(asked.pop(sock)[1].getresponse().status, 200)
        self.assertEqual(ends, list(range(7)))

    def test_slow_reader(self):
        """One client does not read: others are answered, and it gets everything when it reads."""
        s = self.serve()
        slow = s.connection()
        slow.request("POST", "/v1/chat/completions", json.dumps(ask("long", stream=True)))
        slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for i in range(20):
            self.assertEqual(s.chat(f"hello {i}")[1]["choices"][0]["message"]["content"], f"You said: hello {i}")
        s.settles("ends", lambda status: status["answered"] == 21)
        got, done = chunks(slow.getresponse())
        self.assertTrue(done)
        self.assertEqual("".join(c["choices"][0]["delta"].get("content", "") for c in got), LONG)

    def test_slow_sender(self):
        """A byte now and then keeps a connection for a limited time: in its header, its body, and after an answer; not during an answer."""
        self.env["HEARTH_LIMITS"] = "patience=100"  # hundredths of seconds
        s = self.serve()
        body = json.dumps(ask("slow")).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n" % len(body)
        for first, then in ((b"", head), (head + b"\r\n", body), (b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n", head)):
            c = socket.socket(socket.AF_UNIX)
            c.settimeout(driver.PATIENCE)
            c.connect(s.path)
            c.sendall(first)
            if first[:3] == b"GET":
                self.assertTrue(c.recv(65536).startswith(b"HTTP/1.1 200"))
            with self.assertRaises(OSError):  # well before all of it is sent
                for _ in range(20):
                    for byte in then[:-1]:
                        c.sendall(bytes([byte]))
                        time.sleep(0.05)
            c.close()
        self.assertEqual(s.chat("slow")[1]["choices"][0]["message"]["content"].count("w"), 60)  # takes longer than a header may
        self.assertEqual(len(chunks(s.stream("slow"))[0]) > 3, True)

    def test_no_descriptors(self):
        """When no more connections can be accepted, existing ones are served, nothing spins, and the others are accepted when there is room."""
        s = self.serve()
        keeps = s.connection()
        keeps.request("GET", "/v1/models")
        keeps.getresponse().read()
        n = len(os.listdir(f"/proc/{s.p.pid}/fd"))
        resource.prlimit(s.p.pid, resource.RLIMIT_NOFILE, (n + 5, n + 5))
        waiting = [s.connection() for _ in range(40)]
        for c in waiting:
            c.request("POST", "/v1/chat/completions", json.dumps(ask("hello")))
        for _ in range(3):
            keeps.request("POST", "/v1/chat/completions", json.dumps(ask("hello")))
            self.assertEqual(json.loads(keeps.getresponse().read())["choices"][0]["message"]["content"], "You said: hello")
        held = [c for c in waiting if select.select([c.sock], [], [], 0)[0]]  # answered, and not closed: they keep their descriptors
        self.assertFalse(s.spins(0.05))
        for c in waiting:
            self.assertEqual(c.getresponse().status, 200)
            c.close()
        self.assertGreater(len(waiting), len(held))
        s.settles("all are answered", lambda status: status["answered"] == 43)

    def test_two_hundred(self):
        """Clients come, go, hang and are cut off; those that stay get correct answers, and afterwards nothing is left."""
        s = self.serve("--parallel", "4")
        self.assertEqual(s.chat("warm")[0], 200)
        fds = lambda: len(os.listdir(f"/proc/{s.p.pid}/fd"))
        before, rnd, wrong, hung, lock = fds(), random.Random(1), [], [], threading.Lock()

        def client(i, kind):
            try:
                if kind == "whole":
                    got = s.chat(f"client {i}")
                    if got[0] != 200 or got[1]["choices"][0]["message"]["content"] != f"You said: client {i}":
                        wrong.append((i, got))
                elif kind == "stream":
                    got, done = chunks(s.stream(f"client {i}"))
                    if not done or "".join(c["choices"][0]["delta"].get("content", "") for c in got) != f"You said: client {i}":
                        wrong.append((i, got))
                else:
                    c = s.connection()
                    c.connect()
                    body = json.dumps(ask("slow", stream=kind == "reset" or bool(i % 2))).encode()
                    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)
                    whole = head + body
                    c.sock.sendall(whole if kind in ("gone", "reset") else whole[:rnd.randrange(len(whole))])
                    if kind == "hang":
                        with lock:
                            hung.append(c)
                        return
                    if kind == "reset":
                        c.sock.recv(10)
                    c.close()
            except OSError as e:
                wrong.append((i, repr(e)))

        kinds = ["whole", "stream", "gone", "half", "hang", "reset"]
        threads = [threading.Thread(target=client, args=(i, kinds[rnd.randrange(len(kinds))])) for i in range(200)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])
        self.nothing_stays(s, hung, fds, before)


class Place(Case):
    def test_who_may(self):
        s = self.serve()
        self.assertEqual(stat.S_IMODE(os.stat(s.path).st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.dirname(s.path)).st_mode), 0o700)
        rc, out, err = self.run_bin("--serve")
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("is already running", err)
        s.end()
        self.assertFalse(os.path.exists(s.path))
        os.chmod(os.path.dirname(s.path), 0o755)
        rc, out, err = self.run_bin("--serve")
        self.assertEqual(rc, 1)
        self.assertIn("not a private directory", err)

    def test_place_of_others(self):
        """A socket in a directory that others may write to is not used, whoever made it."""
        s = self.serve()
        place = os.path.dirname(s.path)
        self.assertEqual(self.run_bin("-p", "x")[:2], (0, b"You said: x\n"))
        self.assertEqual(s.status()["answered"], 1)
        os.chmod(place, 0o755)
        rc, out, err = self.run_bin("-p", "x")
        self.assertEqual((rc, out), (0, b"You said: x\n"))
        self.assertIn("not a private directory (owned by you, mode 0700); not used for the resident engine's socket; opening the model in this process", err)
        for what in ("--status", "--stop"):
            rc, out, err = self.run_bin(what)
            self.assertEqual((rc, out), (1, b""))
            self.assertIn("not a private directory", err)
        os.chmod(place, 0o700)
        self.assertEqual(s.status()["answered"], 1)
        if os.geteuid():
            self.skipTest("only root can act as another user")
        os.chown(place, 65534, 65534)
        self.assertEqual(self.run_bin("-p", "x")[0], 0)
        self.assertIn("not a private directory", self.run_bin("--status")[2])
        os.chown(place, 0, 0)
        self.assertEqual(s.status()["answered"], 1)

    def test_other_user(self):
        """Connections of other users are refused."""
        if os.geteuid():
            self.skipTest("only root can act as another user")
        s = self.serve()
        at = s.path
        os.chmod(at, 0o666)
        while at != "/" and (at := os.path.dirname(at)) != "/tmp":
            os.chmod(at, os.stat(at).st_mode | 0o111)

        def run(uid):
            """What a client of this user receives."""
            ours, theirs = os.pipe()
            child = os.fork()
            if not child:
                try:
                    os.setgroups([]), os.setgid(uid), os.setuid(uid)
                    c = socket.socket(socket.AF_UNIX)
                    c.connect(s.path)
                    os.write(theirs, b"connected ")
                    c.sendall(b"GET /hearth/status HTTP/1.0\r\n\r\n")
                    os.write(theirs, c.recv(4))
                finally:
                    os._exit(0)
            os.close(theirs)
            with os.fdopen(ours, "rb") as f:
                said = f.read()
            os.waitpid(child, 0)
            return said

        self.assertEqual(run(0), b"connected HTTP")
        self.assertEqual(run(65534), b"connected ")
        self.assertEqual(s.status()["answered"], 0)

    def test_another_build(self):
        """An engine of another build, even under the same name, is not attached to; the message says so and what to do."""
        copy = os.path.join(self.home, "hearth")
        driver.shutil.copy(driver.BIN, copy)
        s = self.serve(binary=copy)
        rc, out, err = self.run_bin("-p", "x")
        self.assertEqual((rc, out, s.status()["answered"]), (0, b"You said: x\n", 0))
        self.assertIn("another build of hearth (--stop stops it)", err)
        self.assertNotIn("another build", self.run_bin("-p", "x", "-c", "1000")[2])  # its options differ too
        run = lambda: driver.subprocess.run([copy, "-p", "x"], env=self.env, capture_output=True, stdin=driver.subprocess.DEVNULL)
        self.assertEqual((run().stdout, s.status()["answered"]), (b"You said: x\n", 1))
        with open(copy + ".new", "wb") as f:  # rebuilt while it runs
            f.write(open(copy, "rb").read())
        os.chmod(copy + ".new", 0o755)
        os.rename(copy + ".new", copy)
        p = run()
        self.assertEqual((p.stdout, s.status()["answered"]), (b"You said: x\n", 1))
        self.assertIn(b"another build", p.stderr)
        self.assertEqual(self.run_bin("--stop")[0], 0)

    def test_without_runtime_dir(self):
        del self.env["XDG_RUNTIME_DIR"]
        s = self.serve()
        self.assertEqual(s.path, os.path.join(self.home, ".local/state/hearth/socket"))
        rc, out, err = self.run_bin("--serve", env={"XDG_RUNTIME_DIR": "/" + "long/" * 30})
        self.assertEqual(rc, 1)
        self.assertIn("too long for a socket", err)

    def test_killed(self):
        s = self.serve()
        stream = s.stream("long")
        s.p.send_signal(signal.SIGKILL)
        s.p.wait()
        self.assertTrue(os.path.exists(s.path))
        self.assertEqual(self.run_bin("--status")[0], 1)
        again = self.serve()
        self.assertEqual(again.chat("x")[0], 200)
        stream.close()

    def test_nobody_would_know(self):
        """Without a way to print the line with the socket, and with --listen the key, the server does not start."""
        for args in ([], ["--listen", "127.0.0.1:0"]):
            with open("/dev/full", "wb") as full:
                p = driver.subprocess.run([driver.BIN, "--serve", *args], env=self.env, stdout=full, stderr=driver.subprocess.PIPE, stdin=driver.subprocess.DEVNULL, timeout=driver.PATIENCE)
            self.assertEqual(p.returncode, 1)
            self.assertIn(b"stdout: No space left", p.stderr)
        self.assertIn("no resident engine is running", self.run_bin("--status")[2])

    def test_status_and_stop(self):
        for mode in ("--status", "--stop"):
            rc, out, err = self.run_bin(mode)
            self.assertEqual((rc, out), (1, b""))
            self.assertIn("no resident engine is running", err)
        s = self.serve()
        reading, answering = s.stream("prefill"), s.stream("slow")
        s.settles("both", lambda status: {x["state"] for x in status["sessions"]} == {"prefill", "decode"} and any(x.get("tokens", 0) > 2 for x in status["sessions"]))
        rc, out, err = self.run_bin("--status")
        self.assertEqual(rc, 0)
        self.assertRegex(out.decode(), r"^fake, process \d+, up \d+ s; 0 answers; .* of memory, .* KV caches\n")
        self.assertRegex(out.decode(), r"\n  prefill: \d+ %, \d s left, for process \d+\n")
        self.assertRegex(out.decode(), r"\n  decode: \d+ tokens, [\d.]+ tok/s, for process \d+\n")
        j = json.loads(self.run_bin("--status", "--json")[1])
        self.assertEqual((j["model"], j["pid"], j["parallel"]), ("fake", s.p.pid, 16))
        rc, out, err = self.run_bin("--stop")
        self.assertEqual((rc, out), (0, b""))
        self.assertIn("has exited", err)
        self.assertEqual(s.p.wait(driver.PATIENCE), 0)
        got, done = chunks(answering)
        self.assertIn("is shutting down", got[-1]["error"]["message"])
        self.assertFalse(done)

    def test_status_is_true(self):
        """Status of many clients at once: which wait, read and answer, their progress, and their cache memory."""
        s = self.serve("--parallel", "4")
        asked, queue = ["drip", "drip " + "x" * 500, "read", "read " + "x" * 900], ["waits", "waits " + "y" * 700]
        count = lambda text: json.loads(s.request("POST", "/hearth/tokens", ask(text))[2])["tokens"]
        streams = [s.stream(t) for t in asked]
        waiting = [s.connection() for _ in queue]
        for c, t in zip(waiting, queue):
            c.request("POST", "/v1/chat/completions", json.dumps(ask(t)))
        said = [0, 0]

        def hear(least):
            for k in (0, 1):
                while said[k] < least[k]:
                    line = streams[k].readline()
                    self.assertTrue(line)
                    if line.startswith(b"data: "):
                        said[k] += len(json.loads(line[6:])["choices"][0]["delta"].get("content", ""))

        hear([10, 10])
        s.settles("all are there", lambda status: len(status["sessions"]) == 6 and all(x.get("share", 1) > 0 for x in status["sessions"]))
        was = None
        for _ in range(3):
            status, by = s.status(), {}
            for x in status["sessions"]:
                by.setdefault(x["state"], {})[x["prompt_tokens"]] = x
            self.assertEqual({k: set(v) for k, v in by.items()}, {"decode": set(map(count, asked[:2])), "prefill": set(map(count, asked[2:])), "waiting": set(map(count, queue))})
            tokens = [by["decode"][count(t)]["tokens"] for t in asked[:2]]
            self.assertTrue(all(x["tokens_per_s"] > 0 for x in by["decode"].values()))
            self.assertTrue(all(x >= y for x, y in zip(tokens, said)), (tokens, said))  # the progress that was read had been printed
            self.assertGreaterEqual(status["memory"]["kv_bytes"], sum(n + x["tokens"] for n, x in by["decode"].items()) * status["kv_token_bytes"])
            for n, x in was["prefill"].items() if was else []:
                self.assertGreaterEqual(by["prefill"][n]["share"], x["share"])
                self.assertLess(by["prefill"][n]["left_s"], x["left_s"])
            was = by
            hear([n + 5 for n in tokens])
        for c in waiting + streams:
            c.close()
        s.settles("idle", lambda status: [x["state"] for x in status["sessions"]] == ["idle"] * 4)
        status = s.status()
        self.assertEqual((status["answered"], status["memory"]["kv_bytes"]), (4, sum(x["tokens"] for x in status["sessions"]) * status["kv_token_bytes"]))

    def test_idle(self):
        s = self.serve("--idle", "0.02")
        self.assertEqual(s.chat("x")[0], 200)
        self.assertEqual(s.p.wait(driver.PATIENCE), 0)
        self.assertFalse(os.path.exists(s.path))

    def test_listen(self):
        s = self.serve("--listen", "127.0.0.1:0")
        host, port = s.url.split("/")[2].split(":")
        self.assertGreaterEqual(len(s.key), 64)

        def get(path, key, method="GET"):
            c = http.client.HTTPConnection(host, int(port), timeout=driver.PATIENCE)
            c.request(method, path, headers={} if key is None else {"Authorization": key})
            r = c.getresponse()
            return r.status, r.read()

        for key in (None, "", "Bearer", "Bearer ", "Bearer " + s.key[:-1], "Bearer " + s.key + "0", "Bearer " + s.key[:-1] + ("0" if s.key[-1] != "0" else "1"), "Basic " + s.key, s.key):
            status, data = get("/v1/models", key)
            self.assertEqual((status, json.loads(data)["error"]["code"]), (401, "invalid_api_key"), key)
        self.assertEqual(get("/v1/models", "Bearer " + s.key)[0], 200)
        self.assertEqual(get("/hearth/stop", "Bearer " + s.key, "POST")[0], 403)
        self.assertEqual(get("/hearth/stop", None, "POST")[0], 401)
        for where in ("0.0.0.0:0", "192.168.0.1:80", "localhost:80", "[::]:0", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", ":80", "x80", "[::1]", "1234567"):
            rc, out, err = self.run_bin("--serve", "--listen", where, env={"XDG_RUNTIME_DIR": os.path.join(self.home, "other")})
            self.assertEqual((rc, out), (2, b""), where)
            self.assertIn("--listen", err)
        self.assertEqual(self.run_bin("--listen", "127.0.0.1:0", "-p", "x")[0], 2)

    def test_fixed_key(self):
        """HEARTH_API_KEY is the key and is not printed; x-api-key works; /health needs none; other addresses need --allow-remote and a key."""
        self.env["HEARTH_API_KEY"] = "sesame"
        s = self.serve("--listen", "0", "--strict")
        host, port = s.url.split("/")[2].split(":")
        self.assertEqual((host, s.key), ("127.0.0.1", "HEARTH_API_KEY"))

        def get(path, **headers):
            c = http.client.HTTPConnection(host, int(port), timeout=driver.PATIENCE)
            c.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
            r = c.getresponse()
            return r.status, r.read()

        self.assertEqual([get("/v1/models", **h)[0] for h in ({"Authorization": "Bearer sesame"}, {"x_api_key": "sesame"}, {"x_api_key": "sesam"}, {})], [200, 200, 401, 401])
        self.assertEqual(get("/health"), (200, b'{"status": "ok"}\n'))
        self.assertEqual(get("/metrics")[0], 401)
        self.assertEqual(json.loads(s.request("POST", "/v1/chat/completions", ask("x", model="other"))[2])["error"]["code"], "model_not_found")
        self.assertEqual(s.chat("x")[0], 200)
        lines = dict(line.split() for line in get("/metrics", x_api_key="sesame")[1].decode().splitlines() if line[0] != "#")
        self.assertEqual((lines["hearth_requests_total"], lines["hearth_requests_running"]), ("1", "0"))
        self.assertGreater(int(lines["hearth_answer_tokens_total"]), 0)
        s.end()
        for key, args, want in (("sesame", ["--listen", "0.0.0.0:0"], "--allow-remote"), ("", ["--listen", "0.0.0.0:0", "--allow-remote"], "HEARTH_API_KEY"), ("a b", ["--listen", "0"], "HEARTH_API_KEY"),
                                ("sesame", ["--allow-remote"], "--listen")):
            rc, out, err = self.run_bin("--serve", *args, env={"HEARTH_API_KEY": key})
            self.assertEqual((rc, out), (2, b""), args)
            self.assertIn(want, err)

    def test_tokens_of_texts(self):
        s = self.serve()
        status, _, data = s.request("POST", "/tokenize", {"content": "h\u00e9llo"})
        tokens = json.loads(data)["tokens"]
        self.assertEqual((status, json.loads(data)["count"]), (200, len(tokens)))
        self.assertEqual(json.loads(s.request("POST", "/detokenize", {"tokens": tokens})[2])["content"], "h\u00e9llo")
        for path, body, word in (("/tokenize", {}, "content"), ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"), ("/detokenize", [], "must be a JSON object")):
            status, _, data = s.request("POST", path, body)
            self.assertEqual(status, 400)
            self.assertIn(word, json.loads(data)["error"]["message"])

    def test_port_is_held(self):
        """A client that holds the maximum number of connections at the port, and sends a byte now and then, delays no one at the socket."""
        s = self.serve("--listen", "127.0.0.1:0")
        host, port = s.url.split("/")[2].split(":")
        before = len(os.listdir(f"/proc/{s.p.pid}/fd"))
        held = [socket.create_connection((host, int(port))) for _ in range(300)]
        for c in held:
            c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nX: ")
        s.settles("held", lambda _: len(os.listdir(f"/proc/{s.p.pid}/fd")) >= before + 250)
        for _ in range(3):
            for c in held[:200]:
                c.sendall(b"a")
            self.assertEqual(s.chat("hello")[0], 200)
        self.assertLess(len(os.listdir(f"/proc/{s.p.pid}/fd")), before + 270)
        for c in held:
            c.close()
        c = http.client.HTTPConnection(host, int(port), timeout=driver.PATIENCE)
        c.request("GET", "/v1/models", headers={"Authorization": "Bearer " + s.key})
        self.assertEqual(c.getresponse().status, 200)
        c.close()

    def test_says_nothing_of_prompts(self):
        s = self.serve("-v")
        s.chat("a secret of mine")
        chunks(s.stream("another secret"))
        s.p.terminate()
        self.assertNotIn(b"secret", b"".join(s.p.communicate()))


class Elsewhere(Case):
    """Third-party clients."""

    def test_curl(self):
        curl = driver.shutil.which("curl")
        if not curl:
            self.skipTest("curl is not installed")
        s = self.serve()
        run = lambda *args: driver.subprocess.run([curl, "-sS", "--max-time", "30", "--unix-socket", s.path, *args], capture_output=True)
        p = run("-N", "http://hearth/v1/chat/completions", "-d", json.dumps(ask("think", stream=True)))
        self.assertEqual((p.returncode, p.stdout.endswith(b"data: [DONE]\n\n")), (0, True))
        big = os.path.join(self.home, "big")
        with open(big, "wb") as f:
            f.truncate(17 << 20)
        p = run("-w", "%{http_code}", "http://hearth/v1/chat/completions", "--data-binary", "@" + big)
        self.assertTrue(p.stdout.endswith(b"413"), p)
        p = run("--max-time", "1", "http://hearth/v1/chat/completions", "-d", json.dumps(ask("prefill")))
        self.assertEqual(p.returncode, 28)
        s.settles("curl has left")

    def test_openai(self):
        try:
            import openai
        except ImportError:
            self.skipTest("the Python package openai is not installed")
        s = self.serve("--listen", "127.0.0.1:0")
        client = openai.OpenAI(base_url=s.url, api_key=s.key, timeout=driver.PATIENCE, max_retries=0)
        self.assertEqual([m.id for m in client.models.list()], ["fake"])
        hello = [{"role": "user", "content": "think"}]
        a = client.chat.completions.create(model="fake", messages=hello, temperature=0, seed=3)
        self.assertEqual((a.choices[0].message.content, a.choices[0].finish_reason, a.usage.completion_tokens), ("the answer", "stop", 28))
        self.assertEqual(a.choices[0].message.reasoning_content, "reasoning here")
        pieces = list(client.chat.completions.create(model="fake", messages=hello, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(p.choices[0].delta.content or "" for p in pieces if p.choices), "the answer")
        self.assertEqual(pieces[-1].usage.completion_tokens, 28)
        for wrong, kind in (({"n": 99}, openai.BadRequestError), ({"messages": [{"role": "user", "content": "fail"}]}, openai.InternalServerError)):
            with self.assertRaises(kind):
                client.chat.completions.create(**{"model": "fake", "messages": hello, **wrong})
        with self.assertRaises(openai.APIError):
            list(client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "fail"}], stream=True))
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=s.url, api_key="other", max_retries=0).models.list()
        tools = [{"type": "function", "function": {"name": n, "description": "d", "parameters": {"type": "object", "properties": {}}}} for n in ("weather", "time")]
        call = {"model": "fake", "messages": [{"role": "user", "content": "call"}], "tools": tools, "tool_choice": "auto"}
        a = client.chat.completions.create(**call)
        self.assertEqual([(c.function.name, json.loads(c.function.arguments)) for c in a.choices[0].message.tool_calls], [("weather", {"city": "Bern \U0001f600"}), ("time", {})])
        self.assertEqual((a.choices[0].finish_reason, a.choices[0].message.content), ("tool_calls", "Let me see."))
        with client.chat.completions.stream(**call) as events:  # the package joins the pieces, and checks them
            kinds = {e.type for e in events}
            whole = events.get_final_completion().choices[0]
        self.assertEqual([c.function.arguments for c in whole.message.tool_calls], [c.function.arguments for c in a.choices[0].message.tool_calls])
        self.assertTrue({"content.delta", "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds, kinds)
        back = call["messages"] + [a.choices[0].message.model_dump(exclude_none=True)] + [{"role": "tool", "tool_call_id": c.id, "content": "sunny"} for c in a.choices[0].message.tool_calls] + [{"role": "user", "content": "prompt"}]
        self.assertEqual(client.chat.completions.create(model="fake", messages=back, tools=tools).choices[0].message.content.count("[tool]sunny"), 2)
        a = client.chat.completions.create(model="fake", messages=[{"role": "developer", "content": "S"}, {"role": "user", "content": "sampling"}], max_completion_tokens=200, top_p=0.5, stop=["zz"], seed=4, parallel_tool_calls=False,
                                           extra_body={"top_k": 7})
        self.assertEqual(a.choices[0].message.content, "temp 0.5 top-p 0.5 top-k 7 min-p 0 repeat-penalty 1 seed 4 max 200")
        a = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "long"}], max_tokens=5)
        self.assertEqual((a.choices[0].message.content, a.choices[0].finish_reason), ("word0", "length"))
        for refused in ({"logit_bias": {"x": 1}}, {"response_format": {"type": "yaml"}}, {"tool_choice": "required", "tools": tools}):
            with self.assertRaises(openai.BadRequestError) as e:
                client.chat.completions.create(model="fake", messages=hello, **refused)
            self.assertIn(next(iter(refused)), e.exception.body["message"])
        self.assertEqual(client.models.retrieve("fake").id, "fake")
        self.assertEqual(client.chat.completions.create(model="gpt-4o", messages=hello).model, "fake")
        self.assertEqual(client.completions.create(model="fake", prompt="hello", max_tokens=4).object, "text_completion")
        stream = client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "slow"}], stream=True)
        next(iter(stream))
        stream.close()
        s.settles("the stream was closed")


if __name__ == "__main__":
    driver.unittest.main()
