"""--perplexity and --kl against what --tokens --logits-out gives, and what they refuse."""
import json
import math
import os
import struct
import unittest

import driver
import gguf_file

EMBER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "engine", "ember", "model")
TEXT = "How do I open a model? Run hearth -m DIR, where DIR holds a checkpoint.\nThe KV cache holds keys and values: " * 3


def mean(values):
    """The mean and its standard error."""
    m = sum(values) / len(values)
    variance = sum(v * v for v in values) / len(values) - m * m
    return m, math.sqrt(max(variance, 0) / (len(values) - 1))


class Perplexity(driver.Case):
    def setUp(self):
        super().setUp()
        self.text = os.path.join(self.home, "text.txt")
        with open(self.text, "w") as f:
            f.write(TEXT)

    def put(self, data):
        path = os.path.join(self.home, "rows")
        with open(path, "wb") as f:
            f.write(data)
        return path

    def measure(self, model, *args):
        rc, out, err = self.run_bin("-m", model, "--perplexity", self.text, "--json", *args)
        self.assertEqual((rc, err), (0, ""))
        return json.loads(out)

    def log_probs(self, model, window, bos):
        """The tokens of the text, and for each scored one log probabilities of its place."""
        ids = json.loads(self.run_bin("-m", model, "--tokenize", data=TEXT)[1])
        out = []
        for at in range(0, len(ids) - window + 1, window):
            part = ids[at:at + window]
            fed = [bos, *part[1:]] if bos >= 0 else part
            raw = self.run_bin("-m", model, "--tokens", ",".join(map(str, fed)), "--logits-out", "-")[1]
            vocab = len(raw) // 4 // window
            for k in range(window // 2, window - 1):
                row = struct.unpack(f"<{vocab}f", raw[4 * k * vocab:4 * (k + 1) * vocab])
                top = max(row)
                total = top + math.log(sum(math.exp(x - top) for x in row))
                out.append((part[k + 1], [x - total for x in row]))
        return ids, out

    def close(self, got, want):
        self.assertAlmostEqual(got, want, delta=1e-4 * abs(want) + 1e-6)

    def test_file_of_logits(self):
        """A reference whose logits are in a file gives what the model itself gives; log-probabilities do as well."""
        ids = json.loads(self.run_bin("-m", EMBER, "--tokenize", data=TEXT)[1])
        rows = b"".join(self.run_bin("-m", EMBER, "--tokens", ",".join(map(str, ids[at:at + 24])), "--logits-out", "-")[1] for at in range(0, len(ids) - 23, 24))
        path = self.put(rows)
        got = self.measure(EMBER, "-c", "24", "--kl", path)
        self.assertTrue(abs(got["kl"]) < 1e-9 and got["same_top"] == 1, got)
        self.close(got["reference"]["perplexity"], got["perplexity"])
        values = struct.unpack(f"<{len(rows) // 4}f", rows)
        other = [x * 0.5 + (i % 7 == 0) for i, x in enumerate(values)]  # another distribution
        vocab = len(other) // (len(ids) // 24 * 24)
        self.put(struct.pack(f"<{len(other)}f", *other))
        divergence, got = [], self.measure(EMBER, "-c", "24", "--kl", path)

        def norm(row):
            top = max(row)
            total = top + math.log(sum(math.exp(x - top) for x in row))
            return [x - total for x in row]

        for r in range(len(other) // vocab):
            if r % 24 >= 12 and r % 24 < 23:
                p, q = norm(other[r * vocab:(r + 1) * vocab]), norm(values[r * vocab:(r + 1) * vocab])
                divergence.append(sum(math.exp(a) * (a - b) for a, b in zip(p, q)))
        self.close(got["kl"], sum(divergence) / len(divergence))
        self.put(rows[:-4])
        rc, _, err = self.run_bin("-m", EMBER, "--perplexity", self.text, "-c", "24", "--kl", path)
        self.assertTrue(rc == 2 and f"{len(rows) - 4} bytes; float32 logits of {len(ids) // 24} windows" in err, err)

    def test_against_logits(self):
        ids, scored = self.log_probs(EMBER, 24, -1)
        loss, error = mean([-row[t] for t, row in scored])
        got = self.measure(EMBER, "-c", "24")
        self.close(got["perplexity"], math.exp(loss))
        self.close(got["error"], math.exp(loss) * error)
        self.assertEqual((got["tokens"], got["scored"], got["windows"], got["window"]), (len(ids), len(scored), len(ids) // 24, 24))
        rc, out, err = self.run_bin("-m", EMBER, "--perplexity", "-", "-c", "24", data=TEXT)
        self.assertEqual((rc, err), (0, ""))
        self.assertEqual(out.decode(), f"model: perplexity {got['perplexity']:.4f} +- {got['error']:.4f} ({len(scored)} of {len(ids)} tokens, {len(ids) // 24} windows of 24)\n")
        self.assertEqual(self.measure(EMBER)["window"], min(512, len(ids)))  # a short text is one window

    def test_first_token(self):
        """A window begins with the first token that the model expects, if its tokenizer has one."""
        folder = os.path.join(self.home, "bos")
        os.mkdir(folder)
        model = gguf_file.qwen3moe("Q8_0").save(folder)[0]
        without = self.measure(model, "-c", "16")["perplexity"]
        with open(model, "r+b") as f:  # one byte of the metadata: the value after the key's type
            data = f.read()
            at = data.index(b"tokenizer.ggml.add_bos_token") + len(b"tokenizer.ggml.add_bos_token") + 4
            self.assertEqual(data[at], 0)
            f.seek(at)
            f.write(b"\1")
        start = json.loads(self.run_bin("-m", model, "--tokenize", "--special", data="<|start|>")[1])
        self.assertEqual(len(start), 1)
        ids, scored = self.log_probs(model, 16, start[0])
        got = self.measure(model, "-c", "16")["perplexity"]
        self.close(got, math.exp(mean([-row[t] for t, row in scored])[0]))
        self.assertNotEqual(got, without)

    def test_divergence(self):
        for name in "ab":
            os.mkdir(os.path.join(self.home, name))
        one = gguf_file.qwen3moe("Q8_0").save(os.path.join(self.home, "a"))[0]
        other = gguf_file.qwen3moe("Q4_0").save(os.path.join(self.home, "b"))[0]
        (ids, q), (_, p) = self.log_probs(one, 16, -1), self.log_probs(other, 16, -1)
        kl = mean([sum(math.exp(x) * (x - y) for x, y in zip(a, b)) for (_, a), (_, b) in zip(p, q)])
        top = mean([float(a.index(max(a)) == b.index(max(b))) for (_, a), (_, b) in zip(p, q)])
        got = self.measure(one, "-c", "16", "--kl", other)
        self.assertGreater(kl[0], 1e-4)
        self.close(got["kl"], kl[0])
        self.close(got["kl_error"], kl[1])
        self.close(got["same_top"], top[0])
        self.close(got["same_top_error"], top[1])
        self.close(got["reference"]["perplexity"], math.exp(mean([-row[t] for t, row in p])[0]))
        same = self.measure(one, "-c", "16", "--kl", one)
        self.assertEqual((same["kl"], same["same_top"]), (0, 1))
        self.assertIn(b"KL divergence 0.000000 +- 0.000000 nats; the same most likely token at 100.00 +- 0.00 % of the positions\n",
                      self.run_bin("-m", one, "--perplexity", self.text, "--kl", one)[1])

    def test_refusals(self):
        folder = os.path.join(self.home, "a")
        os.mkdir(folder)
        one = gguf_file.qwen3moe("Q8_0").save(folder)[0]
        empty = os.path.join(self.home, "empty")
        open(empty, "w").close()
        for args, rc, why in ((("-m", EMBER, "--perplexity", self.text, "--kl", one), 2, "only models with the same vocabulary"), (("-m", EMBER, "--kl", one), 2, "--kl needs --perplexity FILE"),
                              (("-m", EMBER, "--perplexity", self.text, "-c", "4096"), 2, "fewer than a window of 4096"), (("-m", EMBER, "--perplexity", empty), 2, "0 tokens, fewer than a window"),
                              (("-m", EMBER, "--perplexity", os.path.join(self.home, "none")), 1, "No such file"), (("-m", EMBER, "--perplexity", self.text, "--kl", os.path.join(self.home, "none")), 3, "--kl"),
                              (("-m", EMBER, "--perplexity", self.text, "-p", "x"), 2, "cannot be combined")):
            got, out, err = self.run_bin(*args)
            self.assertEqual((got, out), (rc, b""), (args, err))
            self.assertIn(why, err)


if __name__ == "__main__":
    unittest.main()
