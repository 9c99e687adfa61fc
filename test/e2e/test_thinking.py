"""--think-limit on a model with random weights, which would think until the context is full."""
import json
import tempfile
import unittest

import driver
import gguf_file
import gguf_pair

plain_vocabulary = gguf_pair.vocabulary


def vocabulary(n):
    """Marks of thinking, and no token without a text."""
    tokens, kinds, merges = plain_vocabulary(n)
    at = tokens.index("<think>")
    tokens[at + 1], kinds[at], kinds[at + 1] = "</think>", 3, 3
    for i in range(at + 2, n):
        tokens[i], kinds[i] = f"word{i}", 1
    return tokens, kinds, merges


class Thinking(driver.Case):
    def model(self, end="<think>\n{# </think> #}"):
        folder = tempfile.mkdtemp(dir=self.home)
        before = gguf_pair.TEMPLATE, gguf_pair.vocabulary
        gguf_pair.TEMPLATE = "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}<|start|>assistant\n" + end
        gguf_pair.vocabulary = vocabulary
        try:
            return gguf_file.qwen3moe("Q8_0").save(folder)[0]
        finally:
            gguf_pair.TEMPLATE, gguf_pair.vocabulary = before

    def answer(self, *args):
        rc, out, err = self.run_bin("-m", self.path, "-p", "hi", "--temp", "1", "--json", *args)
        self.assertEqual(rc, 0, err)
        return json.loads(out)

    def test_limit(self):
        """The thinking is that of an answer without the limit, up to it; then the mark follows, and an answer. In each mode of decoding."""
        self.path = self.model()
        seed = next(s for s in range(1, 50) if (lambda a: a["usage"]["answer_tokens"] == 30 and not a["text"])(self.answer("-n", "30", "--seed", str(s))))
        args = ("--seed", str(seed))
        whole = self.answer("-n", "30", *args)["thinking"]
        five = self.answer("-n", "5", *args)
        cut = lambda text: text.rstrip("\ufffd")  # what may be half of a character
        for more in ((), ("--draft", "lookup"), ("--gpus", "emu:1"), ("--think", )):
            a = self.answer("-n", "30", "--think-limit", "5", *args, *more)
            self.assertEqual(cut(a["thinking"]), cut(five["thinking"]), more)
            self.assertTrue(a["text"], more)
        self.assertTrue(whole.startswith(cut(five["thinking"])))
        for n in (5, 6):  # the mark is the sixth token
            a = self.answer("-n", str(n), "--think-limit", "5", *args)
            self.assertEqual((cut(a["thinking"]), a["text"], a["usage"]["answer_tokens"], a["reason"]), (cut(five["thinking"]), "", n, "length"))
        self.assertEqual(self.answer("-n", "30", "--think-limit", "1000", *args)["thinking"], whole)

    def test_no_end_within_thinking(self):
        """Where the mark must follow, the answer does not end instead, though these weights make the end of a text about as likely."""
        self.path = self.model()
        lines = "".join(json.dumps({"prompt": "hi", "seed": seed}) + "\n" for seed in range(120))
        ends = {}
        for limit in (2, 1000):
            rc, out, err = self.run_bin("-m", self.path, "--batch", "-", "-n", "40", "--temp", "3", "--think-limit", str(limit), data=lines)
            self.assertEqual(rc, 0, err)
            rows = [row for row in map(json.loads, out.decode().rstrip("\n").split("\n")) if row["reason"] == "stop" and not row["text"]]
            ends[limit] = [row["usage"]["answer_tokens"] for row in rows]
        self.assertNotIn(2, ends[2])
        self.assertTrue([n for n in ends[1000] if n > 2], ends)  # without the limit some end so

    def test_without_thinking(self):
        """A template without marks says so; one whose prompt has closed the thinking is not touched."""
        self.path = self.model("")
        rc, out, err = self.run_bin("-m", self.path, "-p", "hi", "-n", "3", "--think-limit", "1")
        self.assertEqual(rc, 0)
        self.assertIn("--think-limit: the model's chat template has no mark that ends thinking", err)
        self.path = self.model("<think>\n\n</think>\n\n")
        self.assertEqual(self.answer("-n", "8", "--seed", "3", "--think-limit", "1")["text"], self.answer("-n", "8", "--seed", "3")["text"])

    def test_combinations(self):
        for args in (("--think-limit", "0"), ("--think-limit", "x"), ("--think-limit", "5", "--schema", "{}")):
            self.assertEqual(self.run_bin("-p", "x", *args)[0], 2, args)


if __name__ == "__main__":
    unittest.main()
