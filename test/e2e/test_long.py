"""--long split: a document larger than the context is read in parts, on the fake engine, whose tokens are bytes, and on a server by URL."""
import http.server
import json
import os
import re
import signal
import subprocess
import threading

import driver
import server

PART = re.compile(r'<document name="([^"]*)">\n(.*?)</document>\n\n', re.S)


def book(paragraphs=40):
    """Paragraphs of different lengths, none twice, with characters of several bytes."""
    return "\n\n".join(f"Paragraph {i}: " + " ".join(f"Sentence {i}.{k} is about the fjord Størfjord, 日本語。" for k in range(i % 5 + 1)) for i in range(paragraphs)) + "\n"


class Long(driver.Case):
    def split(self, *args, context=2000, notes="a note", **more):
        return self.run_bin("--long", "split", "-c", str(context), *args, env={"FAKE_NOTES": notes}, **more)

    def test_fails_by_default(self):
        path = self.write("book.txt", book())
        for args in (["-f", path, "-p", "Who?"], ["-f", path, "-p", "Who?", "--long", "fail"]):
            rc, out, err = self.run_bin("-c", "2000", *args)
            self.assertEqual((rc, out), (4, b""), args)
            self.assertIn("--long split reads the document in parts", err)
        rc, out, err = self.run_bin("-c", "2000", data=book())
        self.assertEqual((rc, "--long split reads" in err), (4, True), err)
        rc, out, err = self.run_bin("-c", "2000", "-p", "x" * 3000)  # a question is no document
        self.assertEqual((rc, "--long" in err), (4, False), err)

    def test_split(self):
        text = book()
        path = self.write("book.txt", text)
        rc, out, err = self.split("-f", path, "-p", "Who?", "--json")
        j = json.loads(out)
        self.assertEqual((rc, j["reason"]), (0, "stop"), err)
        n = j["parts"]
        self.assertGreater(n, 4)
        self.assertEqual(err.splitlines(), [f"hearth: part {i + 1} of {n}" for i in range(n)])
        notes = "\n\n".join(f"Part {i + 1} of {n}:\na note" for i in range(n))
        self.assertEqual(j["text"], f'You said: <document name="book.txt">\nNotes on all parts of this document, in their order.\n\n{notes}\n</document>\n\nWho?')
        self.assertGreater(j["usage"]["prompt_tokens"], len(text.encode()))  # of all parts
        self.assertGreaterEqual(j["usage"]["answer_tokens"], n * len("a note"))
        events = [json.loads(line) for line in self.split("-f", path, "-p", "Who?", "--json-lines", "-q")[1].splitlines()]
        self.assertEqual([(x["part"], x["parts"]) for x in events if x["type"] == "part"], [(i + 1, n) for i in range(n)])
        self.assertEqual(events[-1]["reason"], "stop")
        rc, out, err = self.split(data=text)  # without a question
        self.assertEqual((rc, out.decode().rsplit("\n\n", 1)[1]), (0, "Summarise the document.\n"), err)

    def test_what_fits_is_not_split(self):
        path = self.write("note.txt", "short\n")
        rc, out, err = self.split("-f", path, "-p", "Who?", "--json")
        self.assertEqual((rc, json.loads(out)["parts"], err), (0, 1, ""))
        self.assertNotIn("parts", json.loads(self.run_bin("-f", path, "-p", "Who?", "--json")[1]))
        rc, out, err = self.split("-p", "x" * 3000)
        self.assertEqual((rc, out), (4, b""), err)

    def test_notes_that_do_not_fit(self):
        """The notes are read in parts again, until they fit; notes as long as the text end the run."""
        rc, out, err = self.split("-f", self.write("book.txt", book(150)), "-p", "Who?", "--json", notes="n" * 100)
        self.assertEqual(rc, 0, err)
        n = json.loads(out)["parts"]
        self.assertEqual(err.splitlines()[:n], [f"hearth: part {i + 1} of {n}" for i in range(n)])
        again = re.findall(r"hearth: notes, part (\d+) of (\d+)", err)
        self.assertEqual([int(i) for i, _ in again], list(range(1, len(again) + 1)))
        self.assertGreater(len(again), 1)
        self.assertEqual(json.loads(out)["text"].count("n" * 100), len(again))
        rc, out, err = self.split("-f", self.write("book.txt", book()), "-p", "Who?" * 40, context=1200, notes="n" * 500)
        self.assertEqual((rc, out), (4, b""), err)

    def test_notes_that_are_cut(self):
        rc, out, err = self.split("-f", self.write("book.txt", book()), "-p", "Who?", notes="n" * 300)
        self.assertEqual(rc, 0, err)
        self.assertIn("part 1 of ", err)
        self.assertIn("its notes were cut at 250 tokens", err)

    def test_a_part_that_fails(self):
        rc, out, err = self.split("-f", self.write("book.txt", book()), "-p", "Who?", notes="fail")
        self.assertEqual((rc, out), (1, b""), err)
        self.assertRegex(err, r"hearth: part 1 of \d+: .*non-finite")

    def test_interrupt(self):
        path = self.write("book.txt", book())
        p = subprocess.Popen([driver.BIN, "--long", "split", "-c", "2000", "-f", path, "-p", "Who?", "--save", "long"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             env={**self.env, "FAKE_NOTES": "slow"})
        self.assertIn(b"part 1 of", p.stderr.readline())
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=driver.PATIENCE)
        self.assertEqual((p.returncode, out, err), (-signal.SIGINT, b"", b""))
        self.assertFalse(os.path.exists(self.session_file("long")))

    def test_progress_on_a_terminal(self):
        t = self.terminal("--long", "split", "-c", "2000", "-f", self.write("book.txt", book()), "-p", "Who?", env={"FAKE_NOTES": "a note"}, cols=200)
        t.until("You said")
        self.assertEqual(t.wait(), 0)
        self.assertRegex(t.out, rb"part 1 of \d+")
        self.assertFalse([row for row in t.screen(cols=200) if row.startswith("part ")])

    def test_saved(self):
        """The conversation has the notes, so that it can go on; its title is the question."""
        rc, out, err = self.split("-f", self.write("book.txt", book()), "-p", "Who?", "--save", "long")
        self.assertEqual(rc, 0, err)
        self.assertIn("(book.txt) Who?", self.run_bin("--list")[1].decode())
        self.assertEqual(self.run_bin("-p", "And then?", "--continue", "long", "-c", "2000")[0], 0)

    def test_combinations(self):
        path = self.write("book.txt", book())
        for args in (["--raw", "-p", "x"], ["--batch", path], ["--serve"]):
            rc, out, err = self.run_bin("--long", "split", *args)
            self.assertEqual((rc, out), (2, b""), args)
            self.assertIn("cannot be combined", err)
        t = self.terminal("--long", "split")
        self.assertEqual(t.wait(), 2)
        self.assertIn(b"no prompt for --long", t.out)


class Endpoint(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        model = {"id": "m", **({"max_model_len": self.server.context} if self.server.context else {})}
        self.reply("application/json", json.dumps({"data": [model]}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(body)
        text = {"content": f"note {len(self.server.seen)}"}
        self.reply("text/event-stream", b"data: " + json.dumps({"choices": [{"index": 0, "delta": text, "finish_reason": "stop"}]}).encode() + b"\n\ndata: [DONE]\n\n")


class Served(driver.Case):
    def setUp(self):
        super().setUp()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
        self.server.seen, self.server.context = [], 1024
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def read(self, *args, **more):
        self.server.seen.clear()
        return self.run_bin("-m", self.url, "--long", "split", *args, **more)

    def test_every_byte_once(self):
        """The parts are the documents: nothing is left out, nothing comes twice, and a part is cut where the text allows it."""
        lines = "".join(f"2026-11-{i % 30 + 1:02} host daemon[{i}]: event {i * 7919 % 10007} of {i}\n" for i in range(200))
        texts = {"paragraphs": (book(), r"\n\n"), "sentences": (book(60).replace("\n\n", " "), r"[.。]\s?"), "lines": (lines, r"\n"), "words": (" ".join(f"word{i}" for i in range(1200)) + "\n", " "),
                 "one word": ("日本" * 3000 + "\n", "")}
        for name, (text, end) in texts.items():
            rc, out, err = self.read("-f", self.write("a.txt", text), "-s", "Be brief.", "-p", "Who?")
            self.assertEqual(rc, 0, (name, err))
            *parts, final = self.server.seen
            self.assertGreater(len(parts), 2, name)
            users = [p["messages"][1]["content"] for p in parts]
            pieces = [PART.search(u) for u in users]
            got = [p[2] for p in pieces]
            for i, piece in enumerate(got[:-1]):  # the line end before the tag is added if the piece has none
                got[i] = piece if text.startswith("".join(got[:i]) + piece) else piece[:-1]
            self.assertEqual("".join(got), text, name)
            for piece in got[:-1]:
                self.assertRegex(piece, f"(?s){end}$", name)
                self.assertLess(len(json.dumps(piece, ensure_ascii=False).encode()), 2 * 1024, name)
            lead = os.path.commonprefix(users)
            self.assertIn("Question: Who?", lead)  # what all have in common comes first
            self.assertEqual([p["messages"][0]["content"] for p in parts + [final]], ["Be brief."] * (len(parts) + 1))
            self.assertEqual({p["max_tokens"] for p in parts}, {128})
            for i in range(len(parts)):
                self.assertIn(f"Part {i + 1} of {len(parts)}:\nnote {i + 1}\n", final["messages"][1]["content"])

    def test_several_documents(self):
        """A part may have the end of one and the beginning of the next, each under its name."""
        a, b = (self.write(name, f"{name} " + book(12)) for name in ("a.txt", "b.txt"))
        self.assertEqual(self.read("-f", a, "-f", b, "-p", "Who?", data="The text on stdin. " * 100)[0], 0)
        text = {"a.txt": "", "b.txt": "", "text": ""}
        for part in self.server.seen[:-1]:
            for name, piece in PART.findall(part["messages"][0]["content"]):
                text[name] += piece
        squeezed = lambda s: re.sub(r"\s+", " ", s).strip()
        self.assertEqual([squeezed(text[n]) for n in text], [squeezed(open(a).read()), squeezed(open(b).read()), squeezed("The text on stdin. " * 100)])

    def test_tools_are_for_the_answer(self):
        tool = self.write("t.json", json.dumps({"name": "weather", "description": "d", "parameters": {"type": "object"}, "command": ["true"]}))
        self.assertEqual(self.read("-f", self.write("a.txt", book()), "-p", "Who?", "--tool", tool)[0], 0)
        self.assertEqual(["tools" in body for body in self.server.seen], [False] * (len(self.server.seen) - 1) + [True])

    def test_unknown_context(self):
        self.server.context = 0
        rc, out, err = self.read("-f", self.write("a.txt", book()), "-p", "Who?")
        self.assertEqual((rc, out, self.server.seen), (2, b"", []))
        self.assertIn("max_model_len", err)


class Attached(server.Case):
    def test_same_as_alone(self):
        """The resident engine counts the tokens of parts; all else is as in this process."""
        path = self.write("book.txt", book())
        self.env["FAKE_NOTES"] = "a note"
        args = ["--long", "split", "-c", "2000", "-f", path, "-p", "Who?", "--json", "--seed", "1"]
        alone = self.run_bin(*args)
        s = self.serve("-c", "2000")
        attached = self.run_bin(*args)
        self.assertGreater(s.status()["answered"], 4)
        a, b = json.loads(alone[1]), json.loads(attached[1])
        for j in (a, b):
            del j["timing"]
        self.assertEqual((a, alone[2]), (b, attached[2]))
        self.assertGreater(a["parts"], 4)


if __name__ == "__main__":
    driver.unittest.main()
