"""What the shipped binary refuses and what --force makes of it, memory that does not suffice: on tiny checkpoints, so that a
wrong answer would come if none were refused."""
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
        self.assertEqual(good[0], 0)
        self.assertNotIn("unknown", good[2])
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


if __name__ == "__main__":
    driver.unittest.main()
