#!/usr/bin/env python3
"""Images, as people and programs send them: -f and /read, saved chats, the forms of every protocol, the prefix cache, files that are no images or damaged
ones, and models that read none. The models are eyes.py's: their answers mean nothing, but depend on every pixel. test_images.py HEARTH"""
import base64
import json
import os
import re
import struct
import sys
import threading
import time
import unittest
import zlib

if len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
    os.environ["HEARTH_BIN"] = os.path.abspath(sys.argv.pop(1))
import driver  # noqa: E402
import eyes  # noqa: E402
import server  # noqa: E402

GREEDY = ("--temp", "0", "-n", "12")
PICTURES = {"wide.png": (96, 40, 0), "tall.png": (40, 90, 1), "other.png": (96, 40, 2), "dot.png": (1, 1, 3)}


class Images(driver.ChatCase):
    def setUp(self):
        super().setUp()
        self.eyes = eyes.make(os.path.join(self.home, "eyes"))
        for name, shape in PICTURES.items():
            self.put(name, eyes.picture(*shape))

    def path(self, name):
        return os.path.join(self.home, name)

    def put(self, name, data):
        with open(self.path(name), "wb") as f:
            f.write(data)
        return self.path(name)

    def data(self, name):
        with open(self.path(name), "rb") as f:
            return base64.b64encode(f.read()).decode()

    def answer(self, *names, question="What is this?", args=()):
        """The answer about these pictures, and what is said on stderr."""
        files = [x for n in names for x in ("-f", self.path(n))]
        rc, out, err = self.run_bin("-m", self.eyes, *files, "-p", question, *GREEDY, *args)
        self.assertEqual(rc, 0, err)
        return out, err

    # --- One question ---------------------------------------------------------------------------

    def test_the_answer_depends_on_the_picture(self):
        wide, said = self.answer("wide.png", args=("-v",))
        self.assertIn("wide.png: 96 x 40 pixels, 12 tokens", said)
        self.assertNotEqual(wide, self.answer("other.png")[0])
        self.assertNotEqual(wide, self.answer("dot.png")[0])
        both = self.answer("wide.png", "other.png")[0]
        self.assertNotEqual(both, self.answer("other.png", "wide.png")[0])
        self.assertEqual(both, self.answer("wide.png", "other.png")[0])

    def test_other_prefixes_of_the_tower(self):
        want = self.answer("wide.png")[0]
        for text, tower in (("model.", "visual."), ("language_model.model.", "model.vision.")):
            other = eyes.make(self.path("renamed"))
            names = (("model.language_model.", text), ("model.visual.", tower))
            tensors = {next((to + n.removeprefix(old) for old, to in names if n.startswith(old)), n): t for n, t in eyes.tensors(eyes.config()).items()}
            with open(os.path.join(other, "model.safetensors"), "wb") as f:
                f.write(eyes.tiny.shard_bytes(list(tensors.items())))
            rc, out, err = self.run_bin("-m", other, "-f", self.path("wide.png"), "-p", "What is this?", *GREEDY)
            self.assertEqual((rc, out), (0, want), err)

    def test_a_limit_makes_pictures_smaller(self):
        at_most = {}
        for limit in ("5", "9", "12", "4096"):
            _, said = self.answer("wide.png", args=("-v", "--image-tokens", limit))
            at_most[limit] = int(re.search(r"wide.png: 96 x 40 pixels, (\d+) tokens", said).group(1))
        self.assertLessEqual(at_most["5"], 5)
        self.assertLessEqual(at_most["9"], 9)
        self.assertLess(at_most["5"], at_most["9"])
        self.assertEqual((at_most["12"], at_most["4096"]), (12, 12))
        _, said = self.answer("wide.png", args=("-v", "--image-tokens", "1"))  # the model reads none with fewer pixels than its least
        self.assertIn("wide.png: 96 x 40 pixels, 3 tokens", said)

    def test_the_time_of_pictures_is_told(self):
        _, said = self.answer("wide.png", "other.png", args=("--stats",))
        self.assertRegex(said, r"images in [0-9.]+ m?s, prefilled in")
        s = self.served()
        for shade in range(20):  # an unread comment is replaced by a newer one: on a busy machine not the first may be seen
            picture = base64.b64encode(eyes.picture(96, 40, seed=shade)).decode()
            parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}, {"type": "text", "text": "?"}]
            data = s.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": parts}], "stream": True, "max_tokens": 2})[2]
            told = re.findall(rb": images (\d+) of (\d+), ", data)
            if told:
                break
        self.assertTrue(told)
        for done, total in told:
            self.assertTrue(0 < int(done) <= int(total), told)

    def test_a_pipe_carries_a_picture(self):
        want = self.answer("wide.png")[0]
        with open(self.path("wide.png"), "rb") as f:
            data = f.read()
        ask = ("-m", self.eyes, *GREEDY)
        rc, out, err = self.run_bin(*ask, "-p", "What is this?", data=data)
        self.assertEqual((rc, out, "attached stdin as an image" in err), (0, want, True), err)
        rc, out, err = self.run_bin(*ask, "-f", "-", "-p", "What is this?", data=data)
        self.assertEqual((rc, out), (0, want), err)
        rc, out, err = self.run_bin(*ask, data=data)
        self.assertEqual((rc, out), (2, b""))
        self.assertIn("an image but no question", err)
        rc, out, err = self.run_bin(*ask, "-p", "x", data=data[:200])
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("stdin: damaged PNG image", err)

    def test_a_file_is_recognised_by_its_content(self):
        os.rename(self.path("wide.png"), self.path("notes.txt"))
        self.put("photo.png", b"Only text.\n")
        _, said = self.answer("notes.txt", "photo.png", args=("-v",))
        self.assertIn("notes.txt: 96 x 40 pixels", said)
        self.assertNotIn("photo.png: ", said)

    def test_what_reads_no_images(self):
        blind = eyes.make(self.path("blind"), blind=True)
        for args, why in ((["-m", blind], "blind cannot read images: this checkpoint has only the text model, not its vision tower"),
                          ([], "ember cannot read images: this model reads text only"),
                          (["-m", eyes.make(self.path("moe"), "qwen3_vl_moe"), "--decode", "paged", "--gpus", "emu:1"], "images cannot be combined with paged batches (--decode paged)"),
                          (["-m", self.eyes, "--raw"], "--raw: an image needs the chat template"),
                          (["-m", self.eyes, "--long", "split"], "--long split: documents with images cannot be split")):
            rc, out, err = self.run_bin(*args, "-f", self.path("wide.png"), "-p", "What is this?")
            self.assertEqual((rc, out), (2, b""), err)
            self.assertIn(why, err)
        # a damaged tower: the text model answers
        vision = dict(eyes.config()["vision_config"])
        for changes, why in (({"num_heads": 5}, "heads of a multiple of 4"), ({"depth": 4}, "model.visual.blocks.3."), ({"hidden_size": 32}, "patch_embed.proj.weight")):
            model = eyes.make(self.path("damaged"))
            with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as f:
                json.dump({**eyes.config(), "vision_config": {**vision, **changes}}, f)
            self.assertEqual(self.run_bin("-m", model, "-p", "Hello.", *GREEDY)[0], 0)
            rc, out, err = self.run_bin("-m", model, "-f", self.path("wide.png"), "-p", "What is this?")
            self.assertEqual((rc, out), (2, b""), err)
            self.assertIn("damaged cannot read images: ", err)
            self.assertIn(why, err)
        model = eyes.make(self.path("headless"), "gemma4")
        with open(os.path.join(model, "config.json"), "r+", encoding="utf-8") as f:
            config = json.load(f)
            config["vision_config"]["head_dim"] = 8
            f.seek(0)
            json.dump(config, f)
            f.truncate()
        self.assertIn("headless/config.json: 'hidden_size' is not that of its heads", self.run_bin("-m", model, "-f", self.path("wide.png"), "-p", "What is this?")[2])
        template = self.write("t.jinja", "{% for m in messages %}{{ m.role }}{% endfor %}")
        rc, _, err = self.run_bin("-m", self.eyes, "--template", template, "-f", self.path("wide.png"), "-p", "x")
        self.assertEqual(rc, 2)
        self.assertIn("the chat template has places for 0 of 1 images", err)

    def test_pictures_beyond_the_context(self):
        """They are refused before all of them are decoded."""
        files = [x for _ in range(9) for x in ("-f", self.path("wide.png"))]
        rc, out, err = self.run_bin("-m", self.eyes, *files, "-p", "x", "-c", "30")
        self.assertEqual((rc, out), (4, b""), err)
        self.assertIn("prompt is too long: 3 images of 36 tokens, the context holds 30", err)

    def test_text_that_names_the_placeholder_is_text(self):
        _, said = self.answer("wide.png", question="What does <|image|> mean?", args=("-v",))
        self.assertIn("12 tokens", said)

    def test_inspect_counts_the_tower(self):
        rc, out, err = self.run_bin("-m", self.eyes, "--inspect", "--json")
        self.assertEqual(rc, 0, err)
        tower = sum(len(t[2]) for name, t in eyes.tensors(eyes.config()).items() if eyes.is_of_tower(name))
        self.assertEqual(json.loads(out)["bytes"]["vision"], tower)

    # --- Chats ----------------------------------------------------------------------------------

    def test_a_chat_reads_takes_back_and_keeps_pictures(self):
        wanted = self.answer("wide.png")[0].strip()
        t = self.chat("-m", self.eyes, "--save", "seen", *GREEDY, prompt="seen> ")
        self.ask(t, "/read " + self.path("wide.png"), "96 x 40 pixels, 12 tokens attached to your next question", prompt="seen> ")
        self.ask(t, "/attachments", "1  wide.png", prompt="seen> ")
        self.ask(t, "What is this?", b"", prompt="seen> ")
        self.ask(t, "/undo", "undone: (wide.png) What is this", prompt="seen> ")
        self.ask(t, "/attachments", "1  wide.png", prompt="seen> ")
        self.ask(t, "What is this?", b"", prompt="seen> ")
        t.send("\x04")
        t.wait()
        # the saved chat has the picture, whatever became of the file
        os.unlink(self.path("wide.png"))
        with open(self.session_file("seen"), encoding="utf-8") as f:
            file = json.load(f)
        self.assertEqual(file["version"], 2)  # which programs that know no images leave alone
        saved = file["body"]
        self.assertEqual([i["name"] for i in saved["messages"][0]["images"]], ["wide.png"])
        self.assertEqual(saved["messages"][1]["content"], wanted.decode("utf-8", "replace"))
        rc, _, said = self.run_bin("-m", self.eyes, "--continue", "seen", "-p", "And?", "-v", *GREEDY)
        self.assertEqual(rc, 0, said)
        self.assertIn("wide.png: 96 x 40 pixels, 12 tokens", said)

    def test_dropped_paths(self):
        """A terminal types the path of a file that is dropped on it: quoted, with backslashes, or as a URL."""
        spaced = self.put("two words.png", eyes.picture(40, 90))
        wide, other = self.path("wide.png"), self.path("other.png")
        t = self.chat("-m", self.eyes, "--save", "dropped", *GREEDY, prompt="dropped> ")

        def saved(name, n):
            """Question n of the saved chat, once it has an answer."""
            messages = []
            for _ in range(3000):
                if os.path.exists(self.session_file(name)):
                    with open(self.session_file(name), encoding="utf-8") as f:
                        messages = json.load(f)["body"]["messages"]
                if len(messages) == 2 * n + 2:
                    return messages[2 * n]
                time.sleep(0.01)
            self.fail(messages)

        asked = []

        def sent(line, *want):
            at = len(t.out)
            self.ask(t, line, "", prompt="dropped> ")
            last = saved("dropped", len(asked))
            asked.append(line)
            for name in want[1:]:
                self.assertRegex(t.out[at:].decode("utf-8", "replace"), re.escape(name) + r", \d+ x \d+ pixels, attached")
            self.assertEqual((last["content"], [i["name"] for i in last.get("images", [])]), (want[0], list(want[1:])))

        sent(f"{wide} What is this?", "wide.png What is this?", "wide.png")
        sent(f"What is '{spaced}' ?", "What is two words.png ?", "two words.png")
        sent("Compare " + spaced.replace(" ", "\\ ") + f" and \"{other}\".", "Compare two words.png and other.png.", "two words.png", "other.png")
        sent(f"Look at {wide}, please", "Look at wide.png, please", "wide.png")
        sent("file://" + spaced.replace(" ", "%20"), "two words.png", "two words.png")
        sent("file://localhost" + wide + " ?", "wide.png ?", "wide.png")
        sent("~/wide.png", "wide.png", "wide.png")
        for text in (f"a{wide}", f"'{wide}", f"{wide}.txt", self.path("none.png"), "wide.png", "/etc/hostname is what?", f"{self.home} is a directory.png"):
            sent(text, text)
        self.put("text.png", b"no image")
        sent(f"See {self.path('text.png')}.", f"See {self.path('text.png')}.")
        self.put("bad.png", eyes.picture(96, 40)[:-60])
        at = len(t.out)
        self.ask(t, f"See {self.path('bad.png')}", "nothing was sent", prompt="dropped> ")
        self.ask(t, "/attachments", "nothing is attached", prompt="dropped> ")
        self.assertNotIn(b"pixels, attached", t.out[at:])
        t = self.chat("-m", eyes.make(self.path("blind"), blind=True), "--save", "dark", *GREEDY, prompt="dark> ")
        self.ask(t, f"What is {wide}?", "", prompt="dark> ")
        self.assertEqual(saved("dark", 0)["content"], f"What is {wide}?")

    def test_a_chat_without_eyes_says_so_when_it_reads(self):
        t = self.chat("-m", eyes.make(self.path("blind"), blind=True), *GREEDY)
        self.ask(t, "/read " + self.path("wide.png"), "blind cannot read images")
        self.ask(t, "/attachments", "nothing is attached")

    # --- The server -----------------------------------------------------------------------------

    def served(self, *args, model=None, env=None):
        s = server.Server({**self.env, **(env or {})}, "-m", model or self.eyes, *args)
        self.addCleanup(s.end)
        return s

    def post(self, s, path, body):
        status, _, text = s.request("POST", path, {"max_tokens": 12, "temperature": 0, **body})
        return status, json.loads(text)

    def test_every_protocol_has_its_form(self):
        wanted = self.answer("wide.png")[0].strip()
        s = self.served()
        data, url = self.data("wide.png"), "data:image/png;base64," + self.data("wide.png")
        question = "What is this?"
        openai = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
        responses = [{"role": "user", "content": [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": question}]}]
        anthropic = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}, {"type": "text", "text": question}]
        got = {}
        status, j = self.post(s, "/v1/chat/completions", {"messages": [{"role": "user", "content": openai}]})
        self.assertEqual(status, 200, j)
        got["openai"] = j["choices"][0]["message"]["content"], j["usage"]["prompt_tokens"]
        status, j = self.post(s, "/v1/messages", {"messages": [{"role": "user", "content": anthropic}]})
        self.assertEqual(status, 200, j)
        got["anthropic"] = j["content"][0]["text"], j["usage"]["input_tokens"] + j["usage"].get("cache_read_input_tokens", 0)
        status, _, text = s.request("POST", "/v1/responses", {"input": responses, "max_output_tokens": 12, "temperature": 0})
        j = json.loads(text)
        self.assertEqual(status, 200, j)
        got["responses"] = j["output"][-1]["content"][0]["text"], j["usage"]["input_tokens"]
        status, _, text = s.request("POST", "/api/chat", {"messages": [{"role": "user", "content": question, "images": [data]}], "stream": False,
                                                           "options": {"num_predict": 12, "temperature": 0}})
        j = json.loads(text)
        self.assertEqual(status, 200, j)
        got["ollama"] = j["message"]["content"], j["prompt_eval_count"]
        self.assertEqual(len(set(got.values())), 1, got)
        self.assertEqual(got["openai"][0].strip(), wanted.decode("utf-8", "replace"))

    def test_how_clients_write_pictures(self):
        """Harmless oddities: what is read is the same."""
        s = self.served()
        data, text = self.data("wide.png"), {"type": "text", "text": "What?"}
        pairs = str.maketrans("+/", "-_")
        self.assertNotEqual(data, data.translate(pairs))

        def said(content, path="/v1/chat/completions"):
            status, j = self.post(s, path, {"messages": [{"role": "user", "content": content}]})
            self.assertEqual(status, 200, (content, j))
            return (j["choices"][0]["message"] if "choices" in j else j)["content"]

        wanted = said([{"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}, text])
        for url in ("DATA:image/PNG;BASE64," + data, "data:image/png;charset=utf-8;base64," + data, "data:;base64," + data, "data:image/jpeg;base64," + data,
                    "data:image/png;base64," + data.rstrip("="), "data:image/png;base64," + data.translate(pairs), "data:image/png;base64," + "\n".join(data[i:i + 76] for i in range(0, len(data), 76))):
            for image in ({"type": "image_url", "image_url": {"url": url, "detail": "low"}}, {"type": "image_url", "image_url": url}, {"type": "input_image", "image_url": url}):
                self.assertEqual(said([image, {**text, "type": "input_text"}]), wanted, url[:60])
        inside = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "data:image/png;base64," + data}}
        self.assertEqual(said([inside, text], "/v1/messages"), [{"type": "text", "text": wanted}])
        # Ollama's prompts for one answer have images too
        for body, want in (({"prompt": "What?", "images": [data]}, 200), ({"prompt": "", "images": [data]}, 200), ({"images": [data]}, 200), ({"prompt": "What?", "images": []}, 200),
                           ({"prompt": "What?", "images": [data], "raw": True}, 400), ({"prompt": "What?", "images": data}, 400), ({"prompt": "What?", "images": ["?"]}, 400)):
            status, j = self.post(s, "/api/generate", {**body, "stream": False, "options": {"num_predict": 3, "temperature": 0}})
            self.assertEqual(status, want, (body, j))
            if want == 200 and body.get("prompt"):
                self.assertEqual(j["prompt_eval_count"] > 30, bool(body["images"]), j)
                self.assertTrue(wanted.startswith(j["response"]) or not body["images"])
        self.assertEqual(self.post(s, "/api/show", {"model": "eyes"})[1]["capabilities"], ["completion", "vision"])
        for kind in ("input_audio", "video_url", "file"):
            status, j = self.post(s, "/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": kind}, text]}]})
            self.assertEqual((status, j["error"]["message"]), (400, f"messages[0].content[0]: {kind} is not supported: only parts of type text and image_url are"))

    def test_results_of_tools_have_pictures(self):
        s = self.served()
        result = [{"type": "text", "text": "the screen"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": self.data("wide.png")}}]
        messages = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": "I look."},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": result}]}]
        status, j = self.post(s, "/v1/messages", {"messages": messages})
        self.assertEqual(status, 200, j)
        status, j = self.post(s, "/v1/messages/count_tokens", {"messages": messages})
        self.assertGreater(j["input_tokens"], 12)

    def test_what_a_server_refuses(self):
        s = self.served()
        good = self.data("wide.png")

        def openai(url):
            return "/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": url}]}]}

        def anthropic(source):
            return "/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}

        cases = ((openai({"url": "https://example.com/cat.png"}), "fetches no images from the network"),
                 (openai("http://127.0.0.1:1/x"), "fetches no images from the network"), (openai({"url": "file:///etc/passwd"}), "fetches no images"),
                 (openai({}), "needs a url"), (openai({"url": "data:image/png,abc"}), "must be in base64"),
                 (openai({"url": "data:image/png;base64,@@@@"}), "not base64"), (openai({"url": "data:image/png;base64,"}), "base64"),
                 (openai({"url": "data:image/png;base64," + base64.b64encode(b"hello").decode()}), "not an image that hearth reads"),
                 (openai({"url": "data:image/png;base64," + good[:200]}), "damaged PNG image"),
                 (anthropic({"type": "url", "url": "https://example.com"}), "only images of type base64"), (anthropic({}), "only images of type base64"),
                 (("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f1"}]}]}), "stores no files"),
                 (("/v1/chat/completions", {"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + good}}]}]}),
                  "is not supported"),
                 (("/api/chat", {"messages": [{"role": "user", "content": "x", "images": [3]}]}), "must be base64"),
                 (("/api/generate", {"prompt": "x", "images": [good], "raw": True}), "chat template"))
        for (path, body), why in cases:
            status, _, text = s.request("POST", path, body)
            self.assertEqual((status, why in text.decode()), (400, True), (body, text))
        s.end()
        blind = server.Server(self.env, "-m", eyes.make(self.path("blind"), blind=True))
        self.addCleanup(blind.end)
        path, body = openai({"url": "data:image/png;base64," + good})
        status, _, text = blind.request("POST", path, body)
        self.assertEqual(status, 400)
        self.assertIn("cannot read images", text.decode())

    def test_decoding_delays_no_other_request(self):
        """Images that take seconds to decode, and then turn out to be followed by a damaged one."""
        width = 6000
        flat = [eyes.png(width, width, [bytes([k]) * (width // 8)] * width, colour=0, depth=1) for k in range(4)]  # the same one is decoded once
        s = self.served()
        for path, ask in (("/v1/chat/completions", {}), ("/v1/messages/count_tokens", {"model": "eyes"})):
            got = []
            files = [base64.b64encode(d).decode() for d in (*(flat[2:] if ask else flat[:2]), flat[0][:-40])]
            parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{d}"}} for d in files]
            body = {"messages": [{"role": "user", "content": parts if not ask else [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": d}} for d in files]}], **ask}
            sender = threading.Thread(target=lambda: got.append(s.request("POST", path, body)))
            sender.start()
            answered = 0
            while sender.is_alive():
                s.status()
                answered += not got
                time.sleep(0.01)
            status, _, text = got[0]
            self.assertEqual(status, 400, text)
            self.assertIn(b"damaged PNG image", text)
            self.assertGreater(answered, 3)

    def test_the_cache_tells_pictures_apart(self):
        """Two pictures with as many tokens: neither shares what the other has left in the caches, and each gives what it gives alone."""
        scalar = ("--gpus", "emu:1,cpu=scalar", "--cpu", "scalar")
        states, blocks = eyes.make(self.path("states"), "qwen3_5"), eyes.make(self.path("blocks"), "qwen4_exp")
        for model, args in ((self.eyes, ()), (self.eyes, (*scalar, "--prefill", "slp")), (self.eyes, (*scalar, "--prefill", "blend")), (states, ()), (blocks, ()), (blocks, (*scalar, "--prefill", "slp"))):
            def ask(s, name, later=()):
                content = [{"type": "text", "text": "Here it comes. " * 9},
                           {"type": "image_url", "image_url": {"url": "data:image/png;base64," + self.data(name)}}, {"type": "text", "text": "What is this? " * 9}]
                status, j = self.post(s, "/v1/chat/completions", {"messages": [{"role": "user", "content": content}, *later]})
                self.assertEqual(status, 200, j)
                return j["choices"][0]["message"]["content"], j["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)

            def fresh(*question):
                s = self.served(*args, model=model, env={"HEARTH_LIMITS": "rows=48"})
                answer = ask(s, *question)[0]
                s.end()
                return answer

            alone = {name: fresh(name) for name in ("wide.png", "other.png")}
            self.assertNotEqual(alone["wide.png"], alone["other.png"])
            s = self.served(*args, model=model, env={"HEARTH_LIMITS": "rows=48"})
            for name in ("wide.png", "other.png", "wide.png", "other.png"):
                self.assertEqual(ask(s, name)[0], alone[name], (args, name))
            again = ask(s, "wide.png")[1]
            if not args or model == self.eyes:  # a stream keeps one state of a prompt, which need not be there
                self.assertGreater(again, 150, (model, args, "a picture that was read is read again"))
            # a second question, which only that reads: text after a picture, in a mode that turns it by the session's constant
            later = ({"role": "assistant", "content": "So."}, {"role": "user", "content": "And what else is there to see? " * 4})
            got = ask(s, "wide.png", later)[0]
            s.end()
            self.assertEqual(got, fresh("wide.png", later), (model, args))

    # --- Bad files ------------------------------------------------------------------------------

    def test_bad_files(self):
        good, rows = eyes.picture(40, 30), eyes.pixels(40, 30)
        flipped = bytearray(good)
        flipped[60] ^= 0x55
        header = b"\x89PNG\r\n\x1a\n"
        ihdr = lambda w, h, depth=8, colour=2: eyes.chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, colour, 0, 0, 0))
        riff = lambda body: b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body
        vp8x = lambda flags, w, h: b"VP8X" + struct.pack("<I", 10) + bytes([flags, 0, 0, 0]) + struct.pack("<I", w - 1)[:3] + struct.pack("<I", h - 1)[:3]
        cases = {
            "empty": (b"", "no prompt|files but|."), "half a PNG": (good[:len(good) // 2], "damaged PNG image"), "a PNG without its end": (good[:-20], "damaged PNG image"),
            "only a signature": (header, "damaged PNG image"), "a header and no data": (header + ihdr(4, 4) + eyes.chunk(b"IEND", b""), "damaged PNG image"),
            "a flipped bit": (bytes(flipped), "damaged PNG image"), "no width": (header + ihdr(0, 5), "damaged PNG|no pixels"), "no height": (header + ihdr(5, 0), "damaged PNG|no pixels"),
            "a bomb by its header": (eyes.png(40, 30, rows, claims=(60000, 60000)), "60000 x 60000 pixels, more than hearth decodes"),
            "sides past all limits": (eyes.png(40, 30, rows, claims=(1 << 30, 1 << 30)), "more than hearth decodes"),
            "a long bomb": (eyes.png(40, 30, rows, claims=(70000, 2)), "more than hearth decodes"),
            "a taller PNG than its data": (eyes.png(40, 30, rows, claims=(40, 300)), "damaged PNG image"),
            "a depth of 7": (header + ihdr(4, 4, 7), "damaged PNG image"), "colour 5": (header + ihdr(4, 4, 8, 5), "damaged PNG image"),
            "a palette that is missing": (eyes.png(4, 1, [b"\0\1\2\3"], colour=3), "damaged PNG image"),
            "data that are no deflate": (header + ihdr(4, 4) + eyes.chunk(b"IDAT", b"hello") + eyes.chunk(b"IEND", b""), "damaged PNG image"),
            "data that bomb": (header + ihdr(4, 4) + eyes.chunk(b"IDAT", zlib.compress(b"\0" * 100_000_000, 9)) + eyes.chunk(b"IEND", b""), None),
            "a line": (eyes.picture(1000, 2), "more than 200 times the other"),
            "a GIF": (b"GIF89a" + bytes(40), "GIF image; hearth reads PNG, JPEG and WebP"),
            "a JPEG of three bytes": (b"\xff\xd8\xff", "damaged JPEG image"), "a JPEG without a picture": (b"\xff\xd8\xff\xd9", "damaged JPEG image"),
            "a JPEG of noise": (b"\xff\xd8\xff\xe0" + bytes(range(200)), "damaged JPEG image"), "a cut JPEG": (jpeg()[:-60], "damaged JPEG image"),
            "a JPEG bomb": (jpeg(claims=(65000, 65000)), "more than hearth decodes"), "a JPEG of no height": (jpeg(claims=(16, 0)), "damaged JPEG image"),
            "an empty WebP": (riff(b""), "damaged WebP image"), "a WebP of noise": (riff(b"VP8 " + struct.pack("<I", 40) + bytes(40)), "damaged WebP image"),
            "an animated WebP": (riff(vp8x(2, 16, 16) + b"ANIM" + struct.pack("<I", 6) + bytes(6)), "animated WebP|damaged WebP image"),
            "a WebP bomb": (riff(vp8x(0, 1 << 24, 1 << 24)), "damaged WebP image|more than hearth decodes"),
            "a WebP header alone": (b"RIFF\x00\x00\x00\x00WEBP", "damaged WebP image"),
        }
        for what, (data, why) in cases.items():
            path = self.put("file.bin", data)
            rc, out, err = self.run_bin("-m", self.eyes, "-f", path, "-p", "What is this?", *GREEDY)
            if why is None or what == "empty":
                self.assertIn(rc, (0, 1), (what, err))
                continue
            self.assertIn(rc, (1, 2), (what, err))
            self.assertEqual(out, b"", what)
            self.assertRegex(err, why, what)
        self.assertGreaterEqual(len(cases), 30)

    def test_unusual_files(self):
        """Each shows the same picture as the plain one, or what Pillow makes of it."""
        rows = eyes.pixels(40, 32)
        plain = self.answer_of(eyes.png(40, 32, rows))
        wide = [bytes(b for v in row for b in (v, v ^ 0x5A)) for row in rows]
        self.assertEqual(self.answer_of(eyes.png(40, 32, wide, depth=16)), plain, "16 bits, whose low halves are dropped")
        opaque = [b"".join(row[i:i + 3] + b"\xff" for i in range(0, len(row), 3)) for row in rows]
        self.assertEqual(self.answer_of(eyes.png(40, 32, opaque, colour=6)), plain, "alpha without effect")
        clear = [b"".join(row[i:i + 3] + b"\0" for i in range(0, len(row), 3)) for row in rows]
        white = self.answer_of(eyes.png(40, 32, [b"\xff" * 120] * 32))
        self.assertEqual(self.answer_of(eyes.png(40, 32, clear, colour=6)), white, "what is transparent is white")
        grey = [bytes(row[::3]) for row in rows]
        tripled = [bytes(v for g in row for v in (g, g, g)) for row in grey]
        self.assertEqual(self.answer_of(eyes.png(40, 32, grey, colour=0)), self.answer_of(eyes.png(40, 32, tripled)), "grey")
        bits = [bytes([0b10101010] * 5)] * 32
        stripes = [bytes([255, 255, 255, 0, 0, 0] * 20)] * 32
        self.assertEqual(self.answer_of(eyes.png(40, 32, bits, colour=0, depth=1)), self.answer_of(eyes.png(40, 32, stripes)), "one bit")
        palette = eyes.chunk(b"PLTE", bytes([9, 8, 7, 200, 100, 50]))
        of_palette = [bytes([9, 8, 7, 200, 100, 50] * 20)] * 32
        self.assertEqual(self.answer_of(eyes.png(40, 32, [bytes([0, 1] * 20)] * 32, colour=3, before=palette)), self.answer_of(eyes.png(40, 32, of_palette)), "a palette")
        self.assertEqual(self.answer_of(eyes.png(40, 32, [bytes([0, 1] * 20)] * 32, colour=3, before=palette + eyes.chunk(b"tRNS", b"\0\xff"))),
                         self.answer_of(eyes.png(40, 32, [bytes([255, 255, 255, 200, 100, 50] * 20)] * 32)), "a palette with a transparent colour")
        # a turned picture whose EXIF says how
        turned = [b"".join(rows[31 - x][3 * y:3 * y + 3] for x in range(32)) for y in range(40)]
        for orientation, given in ((1, rows), (8, turned)):
            exif = eyes.chunk(b"eXIf", b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x112, 3, 1, orientation, 0, 0))
            shape = (32, 40) if orientation == 8 else (40, 32)
            self.assertEqual(self.answer_of(eyes.png(*shape, given, before=exif)), plain, f"orientation {orientation}")
        self.assertNotEqual(self.answer_of(eyes.png(32, 40, turned)), plain)
        self.assertTrue(self.answer_of(jpeg()))
        self.assertNotEqual(self.answer_of(jpeg()), plain)

    def answer_of(self, data):
        self.put("file.bin", data)
        return self.answer("file.bin")[0]


def jpeg(claims=(16, 16)):
    """A baseline JPEG of four blocks of one component: a Huffman table each with one code for DC and one for AC."""
    def segment(mark, body):
        return bytes([0xFF, mark]) + struct.pack(">H", len(body) + 2) + body

    quantization = segment(0xDB, b"\0" + bytes([16] * 64))
    frame = segment(0xC0, struct.pack(">BHHB", 8, claims[1], claims[0], 1) + bytes([1, 0x11, 0]))
    dc = segment(0xC4, b"\0" + bytes([0, 2] + [0] * 14) + bytes([0, 5]))  # codes 00: no difference, 01: five bits
    ac = segment(0xC4, b"\x10" + bytes([0, 1] + [0] * 14) + bytes([0]))  # code 00: the end of a block
    scan = segment(0xDA, bytes([1, 1, 0, 0, 63, 0]))
    bits = "01" + "10110" + "00" + "01" + "11010" + "00" + "00" + "00" + "01" + "10010" + "00"
    bits += "1" * (-len(bits) % 8)
    padding = segment(0xFE, b"a comment, so that a cut file has lost its data, too, and not only its end " * 1)
    return b"\xff\xd8" + padding + quantization + frame + dc + ac + scan + bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits), 8)) + b"\xff\xd9"


if __name__ == "__main__":
    unittest.main()
