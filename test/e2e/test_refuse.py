"""What the shipped binary refuses, the effect of --force, and too little memory: on tiny checkpoints, so that a
wrong answer would be printed if nothing were refused."""
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

    def without_tokenizer(self):
        d = self.model()
        os.remove(os.path.join(d, "tokenizer.json"))
        return self.run_bin("-m", d, "-p", "x")

    def ids(self, d, *args):
        rc, out, err = self.run_bin("-m", d, "--tokens", "5,6,7", "-n", "3", "--temp", "0", "--ids", *args)
        return rc, out, err

    def test_unknown_family(self):
        good = self.ids(self.model())
        self.assertEqual(self.ids(self.model(model_type="hearth_9000")), good)  # the class is that of a family
        d = self.model(model_type="hearth_9000", architectures=["Hearth9000ForCausalLM"])
        for args in (("-p", "x"), ("--inspect",), ("--verify",), ("--tokens", "1", "-n", "1", "--ids"), ("-p", "x", "--force")):
            rc, out, err = self.run_bin("-m", d, *args)
            self.assertEqual((rc, out), (3, b""), args)
            for word in ("hearth_9000", "cannot open", "llama.cpp", "hearth --version -v", "config.json"):
                self.assertIn(word, err)
        os.remove(os.path.join(d, "tokenizer.json"))  # the family is named before what else is missing
        self.assertIn("hearth_9000", self.run_bin("-m", d, "-p", "x")[2])
        self.assertIn("no tokenizer.json", self.without_tokenizer()[2])
        listed = self.run_bin("--version", "-v")[1].decode()
        for word in ("deepseek_v3", "qwen3_moe", "mixtral"):
            self.assertIn(word, listed)
        self.assertEqual(json.loads(self.run_bin("-m", d, "-p", "x", "--json")[1])["error"]["code"], 3)

    def test_draft_model_that_is_missing(self):
        rc, out, err = self.run_bin("--draft", "/nowhere/draft", "-p", "What is hearth?")
        self.assertEqual((rc, out), (3, b""))
        self.assertIn("--draft /nowhere/draft: no such directory or GGUF file", err)

    def test_keys_that_change_the_computation(self):
        good = self.ids(self.model())
        self.assertEqual(good[0], 0)
        self.assertNotIn("unknown", good[2])
        for key, value in (("attn_logit_softcapping", 50.0), ("index_topk", 2048), ("sliding_window", 64), ("query_pre_attn_scalar", 256), ("use_attention_sinks", True), ("layer_types", ["linear_attention"])):
            d = self.model(**{key: value})
            rc, out, err = self.ids(d)
            self.assertEqual((rc, out), (3, b""), key)
            for word in (key, "config.json", "--force"):
                self.assertIn(word, err)
            rc, out, err = self.ids(d, "--force")
            self.assertEqual((rc, out), good[:2], key)
            self.assertIn(f"'{key}' is unknown to hearth and ignored", err)
        for key, value in (("transformers_version", "5.0"), ("use_cache", False), ("what_is_off", False), ("what_is_null", None),
                           ("num_layers", tiny.CONFIG["num_hidden_layers"]), ("d_model", float(tiny.CONFIG["hidden_size"]))):
            self.assertEqual(self.ids(self.model(**{key: value})), good, key)
        for key, value in (("unsloth_fixed", True), ("attention_kind", "plain"), ("router_z_loss", 0.1), ("what_is_this", {"of": 3})):
            d = self.model(**{key: value})
            self.assertEqual(self.ids(d), good, key)
            self.assertIn(f"'{key}' is unknown to hearth and ignored", self.ids(d, "-v")[2])
        self.assertEqual(self.ids(self.model(num_layers=7))[0], 3)

    def test_files_that_python_writes(self):
        d = self.model()
        good = self.ids(d)
        config, generation = os.path.join(d, "config.json"), os.path.join(d, "generation_config.json")
        with open(config, encoding="utf-8") as f:
            text = f.read()
        for more in ('"loss_limits": [-Infinity, Infinity, NaN]', '"hidden_size": %d' % tiny.CONFIG["hidden_size"], '"hidden_act": "relu", "hidden_act": "silu"'):
            with open(config, "w", encoding="utf-8") as f:
                f.write(text.rstrip()[:-1] + ", " + more + "}")
            self.assertEqual(self.ids(d), good, more)
        with open(config, "w", encoding="utf-8") as f:
            f.write(text.rstrip()[:-1] + ', "hidden_act": "relu"}')
        self.assertEqual(self.ids(d)[0], 3)
        with open(config, "w", encoding="utf-8") as f:
            f.write(text)
        os.truncate(generation, 0)
        self.assertEqual(self.ids(d)[0], 0)

    def test_levels_that_the_machine_lacks(self):
        """Exit 2 for every way to set it: flag, variable and file, in every mode."""
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            if "amx_tile" in f.read():
                self.skipTest("this CPU has every level")
        folder = os.path.join(self.home, ".config/hearth")
        for args in (["-p", "x"], ["--inspect"], ["--verify"], ["--tokens", "1", "--ids", "-n", "1"], ["--bench"], ["--version", "-v"]):
            self.assertEqual(self.run_bin("--cpu", "amx", *args)[:2], (2, b""), args)
            if args[0] != "--version":
                self.assertEqual(self.run_bin(*args, env={"HEARTH_CPU": "amx"})[:2], (2, b""), args)
        os.makedirs(folder)
        with open(folder + "/config", "w", encoding="utf-8") as f:
            f.write("cpu = amx\n")
        self.assertEqual(self.run_bin("--inspect")[:2], (2, b""))
        self.assertIn(b"\nlevel: avx2\n", self.run_bin("--version", "-v", "--cpu=avx2")[1])

    def test_caches_of_others(self):
        """A Hugging Face cache: its root, a model's directory in it, and ORG/NAME; several snapshots are listed."""
        hub = os.path.join(self.home, ".cache/huggingface/hub")
        one = os.path.join(hub, "models--tiny--one", "snapshots", "abc")
        tiny.make(one)
        want = self.ids(one)
        self.assertEqual(want[0], 0)
        for name in ("tiny/one", os.path.dirname(os.path.dirname(one)), hub):
            self.assertEqual(self.ids(name), want, name)
        rc, out, err = self.run_bin("-m", "tiny/none", "--inspect")
        self.assertEqual((rc, out), (3, b""))
        self.assertIn("tiny/none: no such directory or GGUF file, and not in the Hugging Face cache", err)
        models = os.path.join(self.home, "models")
        os.makedirs(models)
        rc, out, err = self.run_bin("-m", models, "--inspect")
        self.assertEqual((rc, out), (3, b""))
        self.assertIn(f"{models}: no model found", err)
        tiny.make(os.path.join(models, "two"))
        self.assertEqual(self.ids(models), want)  # the only model of a directory of models
        rc, out, err = self.run_bin("--models", "--json", "--model-path", os.path.join(self.home, "models"))
        rows = {r["name"]: r for r in json.loads(out)}
        self.assertEqual((rc, sorted(rows)), (0, ["ember", "tiny/one", "two"]))
        self.assertTrue(all(r["fits"] and r["tokens_per_s_at_most"] > 0 and r["family"] == "DeepSeek-V3" for r in rows.values()))
        tiny.make(os.path.join(models, "three"))
        self.assertIn(f"contains 2 models; give -m one of: {models}/three {models}/two", self.run_bin("-m", models, "--inspect")[2])
        tiny.make(os.path.join(os.path.dirname(one), "def"))
        for name in ("tiny/one", hub):
            rc, out, err = self.run_bin("-m", name, "--inspect")
            self.assertEqual((rc, out), (2, b""))
            self.assertRegex(err, "contains 2 models; .*/abc .*/def")
        tiny.make(os.path.join(hub, "models--tiny--other", "snapshots", "x"))
        self.assertIn("tiny/other", self.run_bin("-m", hub, "--inspect")[2])

    def test_context_beyond_the_model(self):
        d = self.model()
        rc, out, err = self.ids(d, "-c", "513")
        self.assertEqual((rc, out), (2, b""))
        self.assertRegex(err, r"513.* 512 .*--force")
        self.assertEqual(self.ids(d, "-c", "513", "--force"), self.ids(d))
        self.assertEqual(self.ids(d, "-c", "512")[0], 0)

    def test_too_little_memory(self):
        """550 GB of KV cache: the message says how much is needed and available, exit 5, before any computation; --force continues."""
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
        """A NaN code in each expert: all answers of a batch fail, not just the first one."""
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
