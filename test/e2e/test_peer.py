"""hearth as a client of another implementation of the protocol, llama.cpp's server from the Python package xllamacpp, on a small random
model: its answers are those that any client gets."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

import driver
import gguf_file

SERVER = """
import sys, time, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.n_ctx, p.n_parallel, p.warmup, p.verbosity, p.port = sys.argv[1], 512, 2, False, 1, 0
p.cpuparams.n_threads = 1
s = xllamacpp.Server(p)
print(s.listening_address, flush=True)
sys.stdin.read()
"""


class Peer(driver.Case):
    @classmethod
    def setUpClass(cls):
        cls.p = None
        try:
            import xllamacpp  # noqa: F401
        except ImportError:
            reason = "another server of the protocol: the Python package xllamacpp is not installed"
            print("SKIPPED:", reason, flush=True)
            raise unittest.SkipTest(reason)
        cls.dir = tempfile.TemporaryDirectory()
        file, _ = gguf_file.MODELS["qwen3moe"]("F32").save(cls.dir.name)
        cls.p = subprocess.Popen([sys.executable, "-c", SERVER, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        lines = iter(cls.p.stdout.readline, b"")
        cls.url = next((line.decode().strip() for line in lines if line.startswith(b"http")), None)

    @classmethod
    def tearDownClass(cls):
        if cls.p:
            cls.p.kill()
            cls.p.wait()
            cls.p.stdin.close(), cls.p.stdout.close()
            cls.dir.cleanup()

    def setUp(self):
        super().setUp()
        self.assertIsNotNone(self.url)

    def get(self, path, body=None):
        r = urllib.request.Request(self.url + path, json.dumps(body).encode() if body else None, {"Content-Type": "application/json"})
        with urllib.request.urlopen(r, timeout=driver.PATIENCE) as answer:
            return json.loads(answer.read())

    def ask(self, *args, **more):
        return self.run_bin("-m", self.url, "--seed", "7", "--temp", "0", *args, **more)

    def test_answer(self):
        for text, more, n in (("hello", {}, 9), ("tell me", {"stop": ["zz"]}, 24)):
            want = self.get("/v1/chat/completions", {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": text}], "temperature": 0, "seed": 7, "max_tokens": n, **more})
            args = ["-p", text, "-s", "S", "-n", str(n), "--json"] + [a for s in more.get("stop", []) for a in ("--until", s)]
            rc, out, err = self.ask(*args)
            self.assertEqual(rc, 0, err)
            j, choice = json.loads(out), want["choices"][0]
            self.assertEqual((j["text"], j["reason"]), (choice["message"]["content"].lstrip("\n"), choice["finish_reason"]))
            self.assertEqual((j["usage"]["prompt_tokens"], j["usage"]["answer_tokens"]), (want["usage"]["prompt_tokens"], want["usage"]["completion_tokens"]))
        self.assertEqual(j["model"], self.get("/v1/models")["data"][0]["id"])
        lines = [json.loads(x) for x in self.ask("-p", "hello", "-s", "S", "-n", "9", "--json-lines")[1].splitlines()]
        self.assertGreater(sum(x["type"] == "delta" for x in lines), 1)

    def test_too_long(self):
        rc, out, err = self.ask("-p", "word " * 400)
        self.assertEqual((rc, out.strip()), (4, b""), err)
        self.assertRegex(err, "hearth: .*context")
        self.assertEqual(self.ask("-p", "x", "-n", "2")[0], 0)

    def test_batch(self):
        out = self.ask("--batch", "-", "-n", "5", "--parallel", "4", data="\n".join(json.dumps(f"number {i}") for i in range(9)))
        rows = [json.loads(x) for x in out[1].splitlines()]
        self.assertEqual((out[0], sorted(r["index"] for r in rows)), (0, list(range(9))), out[2])
        for r in rows:
            self.assertNotIn("error", r)

    def test_leaving(self):
        """Ctrl-C, and a killed client: the server is free for others."""
        for how in (signal.SIGINT, signal.SIGKILL):
            p = subprocess.Popen([driver.BIN, "-m", self.url, "-p", "x", "-n", "400", "--temp", "3"], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            p.stdout.read(1)
            p.send_signal(how)
            p.communicate(timeout=driver.PATIENCE)
            self.assertEqual(p.returncode, -how)
        until = time.time() + driver.PATIENCE
        while any(slot["is_processing"] for slot in self.get("/slots")) and time.time() < until:
            time.sleep(0.05)
        self.assertFalse(any(slot["is_processing"] for slot in self.get("/slots")))
        self.assertEqual(self.ask("-p", "x", "-n", "2")[0], 0)


if __name__ == "__main__":
    unittest.main()
