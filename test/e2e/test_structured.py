"""Structured answers of the built-in model: whatever the seed, draft and limit, an answer is valid or the turn ends with an error. test_documents.py asks random
models."""
import json
import os
import re
import sys
import unittest

import driver
from server import Case

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
        self.assertIn("larger -n", err)

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


if __name__ == "__main__":
    unittest.main()
