#!/usr/bin/env python3
"""The scope of the built-in model: the program separates questions about hearth from others as training/ember/scope.py does, and answers the
others, and documents, itself, in the same way in every mode."""
import json
import os
import signal
import sys
import unittest

import driver
import server

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "training/ember"))
import corpus  # noqa: E402
import scope  # noqa: E402

SCOPE = scope.Scope.read()
OTHER, DOCUMENT = SCOPE.table["answers"]["other"], SCOPE.table["answers"]["document"]
TEXT = "The minister crossed the river in winter.\n"
NOTE = "cannot read documents; it gets only the question"


class Told(driver.Case):
    def batch(self, questions, *args):
        path = os.path.join(self.home, "b.jsonl")
        with open(path, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(q, ensure_ascii=False) + "\n" for q in questions)
        rc, out, err = self.run_bin("--batch", path, "--kv-cache", "off", *args)
        lines = {j["index"]: j["text"] if "text" in j else j["error"] for j in map(json.loads, out.splitlines())}
        self.assertEqual(rc, int(any(isinstance(text, dict) for text in lines.values())), err)
        return [lines[i] for i in range(len(questions))]

    def test_engine_refuses_like_the_script(self):
        questions = [q for _, _, q in scope.asked()][::3]
        questions += ["42", "...", "ß Ü 日本 naïve", "x" * 300, "-- --kv //undo a-b_c", "what is --temp 0.7?", "PLEASE STOP IT", "word " * 79, "is hearth a fireplace?", "don't", "gpus?", "a _b_ c"]
        got = [isinstance(text, dict) for text in self.batch(questions, "-n", "4")]
        self.assertEqual([q for q, refused in zip(questions, got) if refused != SCOPE.refuses(q)], [])
        self.assertEqual((True, True), (True in got, False in got))

    def test_held_out_questions_are_classified(self):
        """Over all held-out questions, also in unusual places: at most one in fifty about hearth is refused; of twenty about other
        things nineteen are, or ember declines them itself."""
        asked = [(on, q, SCOPE.refuses(q, "follow" if "later" in name else "limit")) for name, on, q in scope.asked()]
        declined = " ".join(corpus.load_topics()[corpus.OUT_OF_SCOPE].answer.split())
        left = [q for on, q, refused in asked if not on and not refused]
        by_ember = {q for q, text in zip(left, self.batch(left, "--temp", "0")) if isinstance(text, str) and " ".join(text.split()) == declined}
        for part in (asked, asked[1::2]):
            on, other = [r for o, _, r in part if o], [r or q in by_ember for o, q, r in part if not o]
            print(f"refused {sum(on)} of {len(on)} on hearth; declined {sum(other)} of {len(other)} on other things")
            self.assertLessEqual(sum(on), 0.02 * len(on))
            self.assertGreaterEqual(sum(other), 0.95 * len(other))

    def test_published_answers(self):
        other = corpus.load_topics()[corpus.OUT_OF_SCOPE]
        self.assertEqual((OTHER, DOCUMENT), (other.program, other.document))

    def test_one_shot(self):
        """A script must not take a refusal for an answer: it goes to stderr, with exit status 2."""
        path = os.path.join(self.home, "a.txt")
        with open(path, "w") as f:
            f.write(TEXT * 30)
        for args, data, want in ((("-p", "sing a song"), "", OTHER), ((), "sing a song\n", OTHER), (("-p", "Summarise this"), "a short note\n" * 4, DOCUMENT), (("-p", "Summarise this"), TEXT * 2000, DOCUMENT),
                                 ((), TEXT * 60, DOCUMENT), (("-p", "Summarise this", "-f", path), "", DOCUMENT), (("-s", "Be short.", "-p", "sing a song"), "", OTHER)):
            rc, out, err = self.run_bin("-q", *args, data=data)
            self.assertEqual((rc, out, err), (2, b"", "hearth: " + " ".join(want.split()) + "\n"), args)
            rc, out, err = self.run_bin("--json", *args, data=data)
            self.assertEqual((rc, json.loads(out)["error"]["code"]), (2, 2))
            rc, out, err = self.run_bin("--json-lines", *args, data=data)
            self.assertEqual((rc, [json.loads(line)["type"] for line in out.splitlines()]), (2, ["error"]))
        refused = self.batch(["sing a song", "what is hearth?", TEXT * 30])[::2]
        self.assertEqual([(x["code"], x["message"]) for x in refused], [(2, f"line {n}: " + " ".join(want.split())) for n, want in ((1, OTHER), (3, DOCUMENT))])
        rc, out, _ = self.run_bin("-m", corpus.MODEL, "-n", "8", "-p", "sing a song")  # opened as any other model, it answers itself
        self.assertFalse(OTHER.startswith(out.decode().rstrip()))

    def test_a_question_beside_a_document(self):
        """A question about hearth with a document: the model gets the question alone, because it could not use the text."""
        alone = self.run_bin("-p", "how do I attach a file in hearth?", "--temp", "0")[1]
        rc, out, err = self.run_bin("-p", "how do I attach a file in hearth?", "--temp", "0", data=TEXT * 60)
        self.assertEqual((rc, out), (0, alone))
        self.assertIn(NOTE, err)
        self.assertNotIn(NOTE, self.run_bin("-p", "how do I attach a file in hearth?", "--temp", "0")[2])
        s = server.Server(self.env)  # the client prints the note, the server does not
        self.addCleanup(s.end)
        rc, out, err = self.run_bin("-p", "how do I attach a file in hearth?", "--temp", "0", "--stats", data=TEXT * 60)
        self.assertEqual((rc, out, err.count(NOTE)), (0, alone, 1))
        self.assertEqual(s.status()["answered"], 1)
        s.p.send_signal(signal.SIGTERM)
        self.assertNotIn(NOTE.encode(), s.p.stderr.read())

    def test_conversations(self):
        """A follow-up to an answer about hearth may name nothing; the model does not see the program's own answers."""
        first = self.run_bin("-p", "how do I save a chat?", "--temp", "0", "--save", "a")[1].decode()
        alone = [q for name, on, q in scope.asked() if on and "later" in name and SCOPE.refuses(q) and not SCOPE.refuses(q, "follow")][:2]
        self.assertTrue(alone)
        for q in ("why?", "and then?", *alone):
            rc, out, err = self.run_bin("-p", q, "--temp", "0", "--continue", "a", "--no-save")
            self.assertEqual((rc, OTHER in out.decode()), (0, False), (first, q))
        self.assertEqual(self.run_bin("-p", "what is the capital of Peru?", "--continue", "a")[:2], (2, b""))
        t = self.terminal("--save", "b")  # a chat shows the refusal as an answer, and saves it
        t.prompt(text="b> ")
        t.send("sing a song\r")
        t.prompt(t.until("say so in the question."), "b> ")
        t.send("/bye\r")
        t.wait()
        for q in alone:
            self.assertEqual(self.run_bin("-p", q, "--continue", "b", "--no-save")[:2], (2, b""), q)  # nothing about hearth was answered there
        alone = self.run_bin("-p", "how do I quit?", "--temp", "0", "--json")[1]
        after = self.run_bin("-p", "how do I quit?", "--temp", "0", "--json", "--continue", "b")[1]
        self.assertEqual([json.loads(x)["text"] for x in (alone, after)], [json.loads(alone)["text"]] * 2)
        self.assertEqual([json.loads(x)["usage"]["prompt_tokens"] for x in (alone, after)], [json.loads(alone)["usage"]["prompt_tokens"]] * 2)
        saved = next(os.path.join(d, f) for d, _, files in os.walk(self.home) for f in files if f.startswith("b.") or f == "b")
        with open(saved, encoding="utf-8") as f:
            self.assertIn(json.dumps(OTHER, ensure_ascii=False)[1:-1], f.read())

    def test_chat(self):
        path = os.path.join(self.home, "a.txt")
        with open(path, "w") as f:
            f.write(TEXT * 30)
        for rows, cols in ((24, 80), (10, 40), (60, 200)):
            t = self.terminal(rows=rows, cols=cols)
            at = t.prompt()
            for text, end in (("sing a song\r", "say so in the question."), ("/regen\r", "say so in the question."), (f"/read {path}\r", "attached to your next question"),
                              ("what is it about?\r", "ask about a PDF?"), ("how do I quit?\r", "Every turn is saved already."), ("and then?\r", "")):
                t.send(text)
                if end:
                    at = t.until(end, at)
                at = t.prompt(at)
            lines = [line for line in t.screen(rows, cols) if line]
            self.assertTrue(all(len(line) <= cols for line in lines))
            t.send("sing a song\r")
            at = t.prompt(at)
            words = " ".join(" ".join(t.screen(rows, cols)).split())
            self.assertIn("If this was about hearth, say so in the question.", words)
            t.send("/compact\r")
            at = t.prompt(t.until("cannot write a summary", at))
            t.send("/bye\r")
            t.wait()

    def test_file_larger_than_the_context(self):
        """Is refused at once, although the built-in model would not get it."""
        path = os.path.join(self.home, "a.txt")
        with open(path, "w") as f:
            f.write(TEXT * 2000)
        t = self.terminal(cols=200)
        at = t.prompt()
        t.send(f"/read {path}\r")
        at = t.prompt(t.until(rb"a.txt: with these 84.0 kB the prompt would be \d+ tokens; this model's context is 8192; nothing was attached", at))
        t.send("how do I quit?\r")
        t.prompt(t.until("Every turn is saved already.", at))

    def test_dumb_terminal(self):
        t = driver.Terminal([driver.BIN], {**self.env, "TERM": "dumb", "LANG": "C"}, 24, 80)
        t.until("> ")
        t.send("sing a song\r")
        t.until("say so in the question.")
        t.close()


class Served(server.Case):
    def test_served(self):
        s = self.serve("--kv-cache", "off")
        self.assertEqual(s.chat("sing a song")[1]["choices"][0]["message"]["content"], OTHER)
        cut = s.chat("sing a song", max_tokens=5)[1]
        self.assertEqual((cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]), ("length", 5))
        self.assertTrue(OTHER.startswith(cut["choices"][0]["message"]["content"]))
        self.assertEqual(s.chat(TEXT * 3000 + "\nSummarise this")[1]["choices"][0]["message"]["content"], DOCUMENT)
        self.assertEqual(self.run_bin("-p", "sing a song")[:2], (2, b""))  # attached
        self.assertNotEqual(s.chat("what is hearth?", max_tokens=8)[1]["choices"][0]["message"]["content"], OTHER)


if __name__ == "__main__":
    unittest.main()
