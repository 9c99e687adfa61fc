"""What the shipped binary refuses and what --force makes of it, memory that does not suffice, and what --bench prints: on tiny
checkpoints, so that a wrong answer would come if none were refused."""
import json
import os
import re
import struct

import driver
import tiny

LARGE = {"num_hidden_layers": 1, "num_nextn_predict_layers": 0, "kv_lora_rank": 8192, "max_position_embeddings": 1 << 24}


class Refuse(driver.Case):
    def model(self, **config):
        d = os.path.join(self.home, "model")
        tiny.make(d, config)
        return d

    def ids(self, d, *args):
        rc, out, err = self.run_bin("-m", d, "--tokens", "5,6,7", "-n", "3", "--temp", "0", "--ids", *args)
        return rc, out, err

    def test_unknown_family(self):
        d = self.model(model_type="hearth_9000")
        for args in (("-p", "x"), ("--inspect",), ("--verify",), ("--tokens", "1", "-n", "1", "--ids"), ("-p", "x", "--force")):
            rc, out, err = self.run_bin("-m", d, *args)
            self.assertEqual((rc, out), (3, b""), args)
            for word in ("hearth_9000", "unknown", "deepseek_v3", "qwen3_moe", "mixtral", "config.json"):
                self.assertIn(word, err)
        self.assertEqual(json.loads(self.run_bin("-m", d, "-p", "x", "--json")[1])["error"]["code"], 3)

    def test_keys_that_change_the_computation(self):
        good = self.ids(self.model())
        self.assertEqual((good[0], good[2]), (0, ""))
        for key, value in (("attn_logit_softcapping", 50.0), ("index_topk", 2048), ("sliding_window", 64), ("query_pre_attn_scalar", 256), ("what_is_this", True), ("layer_types", ["linear_attention"])):
            d = self.model(**{key: value})
            rc, out, err = self.ids(d)
            self.assertEqual((rc, out), (3, b""), key)
            for word in (key, "config.json", "--force"):
                self.assertIn(word, err)
            rc, out, err = self.ids(d, "--force")
            self.assertEqual((rc, out), good[:2], key)
            self.assertIn(f"'{key}' is unknown to hearth and ignored", err)
        for key, value in (("transformers_version", "5.0"), ("use_cache", False), ("what_is_off", False), ("what_is_null", None)):
            self.assertEqual(self.ids(self.model(**{key: value})), good, key)

    def test_context_beyond_the_model(self):
        d = self.model()
        rc, out, err = self.ids(d, "-c", "513")
        self.assertEqual((rc, out), (2, b""))
        self.assertRegex(err, r"513.* 512 .*--force")
        self.assertEqual(self.ids(d, "-c", "513", "--force"), self.ids(d))
        self.assertEqual(self.ids(d, "-c", "512")[0], 0)

    def test_too_little_memory(self):
        """550 GB of KV cache: need and have are said, exit 5, before anything is computed; --force goes on."""
        d = self.model(**LARGE)
        rc, out, err = self.ids(d, "-c", str(1 << 24), "--kv", "f32")
        self.assertEqual((rc, out), (5, b""))
        need, have = map(int, re.search(r"needs (\d+) MB .*, (\d+) MB are free", err).groups())
        self.assertEqual(need, (8192 + 8) * 4 * (1 << 24) >> 20)
        self.assertLess(have, need)
        self.assertEqual(json.loads(self.run_bin("-m", d, "-p", "x", "-c", str(1 << 24), "--kv", "f32", "--json")[1])["error"]["code"], 5)
        self.assertEqual(self.ids(d, "-c", "512", "--kv", "f32")[0], 0)
        self.assertEqual(self.ids(d, "-c", str(1 << 24), "--kv", "f32", "--force")[:2], self.ids(d, "-c", "512", "--kv", "f32")[:2])

    def test_damage_is_found_by_every_turn(self):
        """A NaN code in each expert: all answers of a batch fail, not the first one alone."""
        d = self.model()
        for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
            path = os.path.join(d, name)
            with open(path, "rb") as f:
                data = bytearray(f.read())
            n = struct.unpack("<Q", data[:8])[0]
            for tensor, t in json.loads(data[8:8 + n]).items():
                if re.search(r"layers\.1\.mlp\.experts\..*down_proj\.weight$", tensor):
                    data[8 + n + t["data_offsets"][0]] = 0xFF
            with open(path, "wb") as f:
                f.write(data)
        rc, out, err = self.run_bin("-m", d, "--batch", "-", "-n", "2", data="\n".join(['"a"', '"b"'] + ['"c"'] * 8))
        self.assertEqual((rc, len(out.splitlines())), (1, 10))
        for row in map(json.loads, out.splitlines()):
            self.assertRegex(row["error"]["message"], r"mlp\.experts\.\d\.down_proj\.weight: F8_E4M3 that is not a number at row 0, column 0")

    def test_bench_of_a_model(self):
        d = self.model()
        rc, out, err = self.run_bin("-m", d, "--bench", "--json", "-t", "1")
        self.assertEqual((rc, err), (0, ""))
        rows = json.loads(out)
        self.assertEqual(rows[0]["what"], "machine")
        self.assertEqual(rows[0]["threads"], 1)
        self.assertIn(rows[0]["level"], ("scalar", "avx2", "avx512", "amx"))
        # 512 positions: prompts of up to 128 tokens with 32 of an answer, then several sessions
        self.assertEqual([(r["what"], r["prompt"], r["sessions"]) for r in rows[1:]],
                         [("decode", 1, 1), ("prefill", 16, 1), ("decode", 16, 1), ("prefill", 128, 1), ("decode", 128, 1), ("decode", 16, 2), ("decode", 16, 4)])
        for r in rows[1:]:
            self.assertGreater(r["tokens_per_s"], 0)
            self.assertAlmostEqual(r["share"], r["tokens_per_s"] / r["limit"], delta=1e-3 * max(1, r["share"]))
            if r["what"] == "prefill":
                self.assertAlmostEqual(r["gflops"] / (r["tokens_per_s"] * rows[0]["token_flops"] / 1e9), 1, delta=0.05)
            else:
                self.assertAlmostEqual(r["tpot_s"] * r["tokens_per_s"] / r["sessions"], 1, delta=0.01)
        rc, out, err = self.run_bin("-m", d, "--bench", "-t", "1", "-c", "64")
        lines = out.decode().splitlines()
        self.assertEqual((rc, len(lines), lines[0].split(",")[0]), (0, 6, "model"))
        self.assertRegex(lines[1], r"^decode +1 tokens before, 1 session +[\d.]+ tok/s +of +[\d.]+ at one reading a token +\d+ %$")
        self.assertRegex(lines[2], r"^prefill +16 tokens +[\d.]+ tok/s +[\d.]+ GFLOP/s +first token [\d.]+ s +[\d.]+ % of reading alone$")
        self.assertEqual(self.run_bin("-m", "/nowhere", "--bench")[:2], (3, b""))
        self.assertEqual(self.run_bin("--bench", "nonsense")[0], 2)


if __name__ == "__main__":
    driver.unittest.main()
