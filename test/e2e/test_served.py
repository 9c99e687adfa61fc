"""The resident engine with a real model behind it: whatever the company, and whatever the text that clients send, an answer is that of an
engine of one's own."""
import json
import unittest

import driver
from server import Case, ask, chunks

SPECIAL = ["<|im_end|>", "<|im_start|>system", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "<s>", "</s>", "[INST]", "<|eot_id|>", "<\u200b|im_end|>", "\u0000", "\ufeff", "\x1b[31m", "\r\n"]


class Served(Case):
    def setUp(self):
        super().setUp()
        self.s = self.serve("--kv-cache", "off")

    def count(self, body):
        status, _, data = self.s.request("POST", "/hearth/tokens", body)
        self.assertEqual(status, 200, data)
        return json.loads(data)["tokens"]

    def ids(self, text):
        rc, out, err = self.run_bin("--tokenize", data=text)
        self.assertEqual(rc, 0, err)
        return json.loads(out)

    def test_company(self):
        """What a session has from others' requests, of which these have the beginning, moves no bit of an answer; a chat goes on as at home."""
        long = "please tell me how to save a chat and how to open it again on another day, and where the files of all chats lie on the disk of this machine"
        asked = [(long, 1), (long + ", in a word", 2), ("how do i save", 3), (long, 1), ("how", 4), ("how do i save", 3)]
        once = {}
        for text, seed in asked:
            if text not in once:
                once[text] = json.loads(self.run_bin("-p", text, "--seed", str(seed), "--temp", "1.3", "-n", "24", "--json", "--no-attach", "--kv-cache", "off")[1])["text"]
        for text, seed in asked:
            status, j = self.s.chat(text, seed=seed, temperature=1.3, max_tokens=24)
            self.assertEqual((j["choices"][0]["message"]["content"], j["usage"]["prompt_tokens_details"]["cached_tokens"]), (once[text], 0))
        first = self.s.chat("hello", seed=1, max_tokens=9)[1]["choices"][0]["message"]["content"]
        more = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": first}, {"role": "user", "content": "go on"}]
        got = json.loads(self.s.request("POST", "/v1/chat/completions", {"messages": more, "max_tokens": 4})[2])
        self.assertGreater(got["usage"]["prompt_tokens_details"]["cached_tokens"], 5)
        got = json.loads(self.s.request("POST", "/v1/chat/completions", {"messages": more, "max_tokens": 4})[2])
        self.assertEqual(got["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_text_stays_text(self):
        """Whoever speaks, and wherever it stands: what looks like a control token is the letters that it has."""
        plain, n = self.ids("x"), 0
        for role in ("system", "user", "assistant", "tool"):
            body = lambda text: {"messages": [{"role": "user", "content": "a"}] * (role not in ("system", "user")) + [{"role": role, "content": text}] + [{"role": "user", "content": "b"}] * (role != "user")}
            before = self.count(body("x"))
            if self.count(body("x and more")) == before:
                continue  # the template leaves such a role out
            for text in SPECIAL:
                inner = "x" + text + "x"  # a template may strip what stands at the ends
                self.assertEqual(self.count(body(inner)) - before, len(self.ids(inner)) - len(plain), (role, text))
                n += 1
        self.assertGreaterEqual(n, 3 * len(SPECIAL))
        for text in SPECIAL:
            body = ask([{"type": "text", "text": "x" + text}, {"type": "text", "text": text + "x"}])
            self.assertEqual(self.count(body), self.count(ask("x" + text + text + "x")))
        begun = lambda text: {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": text}], "continue_final_message": True}
        for text in SPECIAL:
            self.assertEqual(self.count(begun("x" + text)) - self.count(begun("x")), len(self.ids("x" + text)) - len(plain), text)

    def test_whatever_it_says(self):
        """Strange bytes in a request are answered or refused, and what comes back is JSON of text."""
        for text in SPECIAL + ["\ud800".encode("utf-16", "surrogatepass").decode("utf-16", "replace"), "\u202e", "a" * 3000, "\x9b31m", "\x07" * 50]:
            got, done = chunks(self.s.stream(text, max_tokens=3, temperature=2))
            self.assertTrue(done, text)
        for raw in (b'{"messages": [{"role": "user", "content": "\xc3\x28"}]}', b'{"messages": [{"role": "user", "content": "\\ud800"}]}', b'{"messages": [{"role": "user", "content": "a\x00b"}]}',
                    b"[" * 100000, b'{"messages": ' + b'[' * 5000 + b']' * 5000 + b'}'):
            status, _, data = self.s.request("POST", "/v1/chat/completions", raw)
            self.assertEqual(status, 400, raw[:80])
            self.assertIn("message", json.loads(data)["error"])
        self.assertEqual(self.s.chat("x", max_tokens=1)[0], 200)


if __name__ == "__main__":
    unittest.main()
