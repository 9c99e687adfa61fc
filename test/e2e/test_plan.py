"""--plan for users and scripts: the JSON object that scripts rely on, the text with its plot, and invalid machine files."""
import concurrent.futures
import json
import math
import os
import re
import struct

import driver
import tiny

driver.PATIENCE *= 5

MAN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "man", "hearth.1")
BOX = "channels = 2\nddr = 5600\ncores = 8\nisa = avx2\nmemory = 96G\ncard = RTX 4090\n"


def keys(value, out):
    if isinstance(value, dict):
        out |= set(value)
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        keys(part, out)


class Plan(driver.Case):
    def machine(self, text):
        path = os.path.join(self.home, "machine")
        with open(path, "w") as f:
            f.write(text)
        return path

    def test_json_has_the_figures(self):
        rc, out, err = self.run_bin("--plan", "paper-a-2", "--arch", "gpt-oss-120b", "--json")
        self.assertEqual((rc, err), (0, ""))
        p = json.loads(out)
        self.assertEqual(p["basis"], "modelled, not measured")
        self.assertTrue(all(0 < p["error"][k] < 0.5 for k in ("prefill", "decode")))
        self.assertEqual((p["machine"], p["model"]), ("two EPYC 9355, two RTX 5090", "gpt-oss-120b"))
        self.assertTrue(p["fits"]["host"]["fits"])
        self.assertEqual([r["tokens"] for r in p["prefill"]], [512 << i for i in range(9)])
        for r in p["prefill"]:
            self.assertEqual(list(r["modes"]), ["cpu", "blend", "slp", "dslp"])
            self.assertIn(r["chosen"], r["modes"])
            self.assertGreater(min(r["modes"].values()), 0)
            self.assertLess(r["modes"][r["chosen"]], 1.15 * min(r["modes"].values()), r)  # the cost model knows the best one
        for a, b in zip(p["prefill"], p["prefill"][1:]):
            self.assertGreaterEqual(b["modes"]["cpu"], a["modes"]["cpu"])
        self.assertEqual([r["sessions"] for r in p["decode"]], [1, 2, 4, 6, 8])
        for r in p["decode"]:
            self.assertAlmostEqual(r["tokens_per_s"], 1000 * r["sessions"] / r["tpot_ms"], delta=0.01 * r["tokens_per_s"])
            self.assertGreaterEqual(r["tpot_beside_prefill_ms"], 0.999 * r["tpot_ms"])  # the order of threads changes times a little
        self.assertGreater(p["batch"]["tokens_per_s"], 0)
        self.assertLessEqual({"prompts", "in_a_step", "read", "decode", "attention", "experts"}, set(p["batch"]["policy"]))

    def test_refused(self):
        """Where the first choice does not fit, the best one that fits is chosen."""
        small = self.machine("channels = 12\nddr = 4800\ncores = 64\nisa = amx\nmemory = 512G\ncard = L4\ncard.memory = 10G\npcie = 2G\n")
        rows = json.loads(self.run_bin("--plan", small, "--arch", "qwen3-235b", "--json")[1])["prefill"]
        self.assertTrue(any(r["modes"]["blend"] is None and r["chosen"] == "cpu" for r in rows) and any(r["chosen"] == "blend" for r in rows), rows)
        for r in rows:
            self.assertLess(r["modes"][r["chosen"]], 1.15 * min(t for t in r["modes"].values() if t), r)

    def test_text_fits_the_terminal(self):
        """A machine file and a checkpoint; as wide as the terminal, with and without colour."""
        d = os.path.join(self.home, "model")
        tiny.make(d)
        file = self.machine(BOX)
        rc, out, err = self.run_bin("--plan", file, "-m", d)
        text = out.decode()
        self.assertEqual((rc, err), (0, ""))
        short = ("modelled, not measured", "What fits where", "Time to first token", "With one upgrade", "one card more", "as it is", "RTX 4090")
        for part in short:
            self.assertIn(part, text)
        self.assertNotIn("Decoding", text)
        verdict = " ".join(text[:text.index("What fits where")].split("\n", 1)[1].split())  # first, in sentences
        self.assertRegex(verdict, r"^One answer runs at [\d.]+ tok/s, limited by the [a-z ]+; a prompt of \d+ tokens takes [\d.]+ m?s(, a prompt of \d+ tokens takes [\d.]+ m?s)?\. "
                                  r"The weights fit in memory with [\d.]+ GB to spare\.( All of the model fits on the cards: [^.]+\.cpp [^.]+\.)?( Many prompts together run at [\d.]+ tok/s\.)?( With .+: [\d.]+ tok/s\.)?"
                                      r" Published figures of other programs differ from such predictions by up to \d+ % \(answers\) and \d+ % \(prompts\)\."
                                      r" On the only card that has run hearth, an H100, answers took 2\.4 times as long as predicted\.$")
        details = self.run_bin("--plan", file, "-m", d, "-v")[1].decode()
        for part in (*short, "Decoding", "busiest", "Many prompts (--batch)"):
            self.assertIn(part, details)
        self.assertNotIn("\x1b", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 100)
        self.assertIn("\x1b[1m", self.run_bin("--plan", file, "-m", d, "--color", "always")[1].decode())
        self.assertNotIn("\x1b", self.run_bin("--plan", file, "-m", d, env={"NO_COLOR": "1", "CLICOLOR_FORCE": "1"})[1].decode())

    def sparse_llama(self):
        """A checkpoint of 4.4 GB of which only the header takes space; a plan reads no weights."""
        d, hidden, inter, layers, vocab = os.path.join(self.home, "llama"), 2048, 8192, 32, 32000
        tiny.make(d)
        for name in os.listdir(d):
            if "safetensors" in name:
                os.remove(os.path.join(d, name))
        with open(os.path.join(d, "config.json"), "w") as f:
            json.dump({"model_type": "llama", "hidden_size": hidden, "intermediate_size": inter, "num_hidden_layers": layers, "vocab_size": vocab, "num_attention_heads": 16,
                       "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "hidden_act": "silu"}, f)
        shapes = {"embed_tokens": [vocab, hidden], "norm": [hidden]}
        for i in range(layers):
            p = f"layers.{i}."
            shapes |= {p + "input_layernorm": [hidden], p + "post_attention_layernorm": [hidden]}
            shapes |= {p + f"self_attn.{m}_proj": [n, hidden] for m, n in (("q", hidden), ("k", 512), ("v", 512), ("o", hidden))}
            shapes |= {p + "mlp.gate_proj": [inter, hidden], p + "mlp.up_proj": [inter, hidden], p + "mlp.down_proj": [hidden, inter]}
        shapes = {f"model.{k}.weight": v for k, v in shapes.items()} | {"lm_head.weight": [vocab, hidden]}
        at, header = 0, {}
        for name, shape in shapes.items():
            size = 2 * math.prod(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        with open(os.path.join(d, "model.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text)
            f.truncate(8 + len(text) + at)
        return d

    def test_tables_of_ngrams(self):
        """A token reads a few rows of a layer's table, which the host gathers: all layers run on a card that is smaller than the table (46 GB). Groups of tokens that are
        selected begin with the batch."""
        sheet = self.machine("channels = 2\nddr = 6000\ncores = 16\nisa = avx2\nmemory = 192G\ncards = 1\ncard.memory = 24G\ncard.bandwidth = 1008G\ncard.bf16 = 165T\npcie = 4\n")
        rc, out, err = self.run_bin("--plan", sheet, "--arch", "qwen3.8-flash-next:q4_k_m", "--json")
        self.assertEqual((rc, err), (0, ""))
        p = json.loads(out)
        self.assertTrue(3e9 < p["fits"]["token_bytes"] < 8e9, p["fits"])
        self.assertEqual(p["fits"]["resident_layers"], 48)
        self.assertEqual(p["decode"][0]["mode"], "hybrid")
        self.assertGreater(p["decode"][0]["tokens_per_s"], 25)

    def test_models_without_experts_are_paged(self):
        """Many prompts where a card holds part of the model: the FFNs cross the link once for all of them, as the search expects."""
        box, d = self.machine(BOX + "card.memory = 2G\n"), self.sparse_llama()
        rc, out, err = self.run_bin("--plan", box, "-m", d, "--json")
        self.assertEqual((rc, err), (0, ""))
        batch = json.loads(out)["batch"]
        self.assertEqual(batch["policy"]["decode"], "paged", batch)
        self.assertGreater(batch["policy"]["prompts"], 64, batch)
        self.assertLess(batch["policy"]["weights_on_cards"], 1, batch)
        self.assertLess(abs(batch["tokens_per_s"] / batch["expected_tokens_per_s"] - 1), 0.2, batch)
        text = " ".join(self.run_bin("--plan", box, "-m", d, "-v")[1].decode().split())
        self.assertRegex(text, r"in paged mode.* attention on the CPU, FFNs on the GPU \(\d+ % of those paged stay there\)")

    def test_latents_are_paged(self):
        """DeepSeek-V3 beside two cards: its matrices of latents are read once for the rows of many sessions, as the search expects, so that the CPU keeps up."""
        batch = json.loads(self.run_bin("--plan", "paper-a-2", "--arch", "deepseek-v3", "--json")[1])["batch"]
        self.assertEqual(batch["policy"]["decode"], "paged", batch)
        self.assertGreater(batch["policy"]["prompts"], 256, batch)
        self.assertLess(abs(batch["tokens_per_s"] / batch["expected_tokens_per_s"] - 1), 0.1, batch)

    def test_states_are_paged(self):
        """Qwen3.6 beside a card: the CPU advances the states of many sessions, which it has in memory, about as fast as the search expects."""
        batch = json.loads(self.run_bin("--plan", "paper-a-1", "--arch", "qwen3.6-35b-a3b", "--json")[1])["batch"]
        self.assertEqual(batch["policy"]["decode"], "paged", batch)
        self.assertGreater(batch["policy"]["prompts"], 64, batch)
        self.assertLess(abs(batch["tokens_per_s"] / batch["expected_tokens_per_s"] - 1), 0.3, batch)

    def test_max_tpot_limits_answers(self):
        """--max-tpot: how many answers at once keep it; one that none keeps is said with its figure."""
        plan = ("--plan", "paper-a-1", "--arch", "glm-4.5-air", "--max-tpot")
        say = lambda ms: " ".join(self.run_bin(*plan, ms)[1].decode().split())
        self.assertRegex(say("30"), r" Within --max-tpot 30, up to [2-9] answers at once: [\d.]+ ms per token, [\d.]+ tok/s together\.")
        self.assertRegex(say("0.5"), r" --max-tpot 0\.5 cannot be met: one answer at a time takes [\d.]+ ms per token\.")
        bound = json.loads(self.run_bin(*plan, "30", "--json")[1])["max_tpot"]
        self.assertEqual((bound["bound_ms"], bound["met"], bound["tpot_ms"] <= 30), (30, True, True))
        for bad in ("0", "-5", "fast", "1e9", "nan"):
            rc, out, err = self.run_bin(*plan, bad)
            self.assertEqual((rc, out), (2, b""), bad)
            self.assertIn("--max-tpot: ", err)

    def test_nodes(self):
        """Two sockets, with a card and without: each with weights placed by node and not; where the weights do not fit, they are not placed."""
        for machine, least in (("epyc-9005-2s+rtx5090", 26), ("epyc-9005-2s", 20)):
            p = json.loads(self.run_bin("--plan", machine, "--json")[1])
            nodes, one = p["nodes"], p["decode"][0]["tokens_per_s"]
            self.assertEqual((nodes["n"], nodes["placed"], nodes["tokens_per_s"]), (2, True, one))
            self.assertGreater(one, least)
            self.assertTrue(5 < nodes["unplaced_tokens_per_s"] < 0.4 * one, nodes)
        self.assertIn(b"2 NUMA nodes: each gets the rows of every expert", self.run_bin("--plan", "epyc-9005-2s+rtx5090", "--arch", "qwen3-30b")[1])
        box = "sockets = 2\nchannels = 4\nddr = 4800\ncores = 16\nisa = avx2\ndisk = 5G\ncard = RTX 4090\nmemory = "
        plan = lambda text: json.loads(self.run_bin("--plan", self.machine(box + text), "--arch", "qwen3-235b", "--json")[1])
        small, half = plan("128G\n"), plan("512G\nreach = 0.5\n")
        self.assertEqual((small["nodes"]["placed"], "tokens_per_s" in small["nodes"]), (False, False))
        self.assertEqual((half["nodes"]["reach"], half["nodes"]["placed"]), (0.5, True))
        self.assertTrue(0.4 < small["nodes"]["reach"] < 1 and 0.5 < half["nodes"]["unplaced_tokens_per_s"] / half["nodes"]["tokens_per_s"] < 0.95)
        self.assertNotIn("nodes", json.loads(self.run_bin("--plan", "desktop-ddr5-64", "--arch", "qwen3-30b", "--json")[1]))

    def test_delayed_streams_change_no_figure(self):
        """Delayed streams change no figure, and nothing that they wait for is closed early."""
        d = os.path.join(self.home, "model")
        tiny.make(d)
        file = self.machine(BOX)
        run = lambda lag: self.run_bin("--plan", file, "-m", d, env={"HEARTH_LIMITS": f"lag={lag}"} if lag else None)
        right = run(0)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for got in pool.map(run, 12 * [2000]):
                self.assertEqual(got, right)

    def test_machines_by_name(self):
        """A known machine with any known card; what does not fit is said first, with the format that would fit."""
        text = " ".join(self.run_bin("--plan", "desktop-ddr5-64+2xRTX4090", "--arch", "qwen3-235b")[1].decode().split())
        self.assertRegex(text, r"^Ryzen 9 9950X, DDR5-6000, 64 GB, 2 x RTX 4090 with Qwen3-235B-A22B: modelled, not measured "
                               r"One answer runs at 0\.\d+ tok/s, limited by the disk; .* The weights do not fit in memory: 168 GB are missing\. "
                               r"A format of at most 2\.1 bits per weight would fit; this one has 8\.0\.")
        with_card, without = (json.loads(self.run_bin("--plan", m, "--arch", "qwen3-30b", "--json")[1]) for m in ("desktop-ddr5-64+rtx4090", "desktop-ddr5-64"))
        self.assertEqual((len(with_card["fits"]["cards"]), len(without["fits"]["cards"])), (1, 0))
        self.assertGreater(with_card["decode"][0]["tokens_per_s"], without["decode"][0]["tokens_per_s"])
        for machine, whole in (("desktop-ddr5-64+rtx5090", True), ("desktop-ddr5-64", False)):
            self.assertEqual(b"made for that" in self.run_bin("--plan", machine, "--arch", "gpt-oss-20b")[1], whole, machine)
        fp8 = json.loads(self.run_bin("--plan", "desktop-ddr5-64+rtx4090,math=fp8", "--arch", "qwen3-30b:q4_k_m", "--json")[1])
        self.assertEqual(fp8["model"], "Qwen3-30B-A3B in q4_k_m")
        self.assertLess(fp8["fits"]["host"]["bytes"], 0.7 * with_card["fits"]["host"]["bytes"])
        self.assertGreater(fp8["decode"][0]["tokens_per_s"], with_card["decode"][0]["tokens_per_s"])
        self.assertNotIn("card", without["error"])
        self.assertEqual(with_card["error"]["card"], 2.4)
        given, known, half = (json.loads(self.run_bin("--plan", "laptop-32+" + card, "--arch", "gemma-4-26b:q4_0", "--json")[1]) for card in ("gpu:16G,448G", "rtx5060ti", "gpu:16G,224G"))
        rate = [p["decode"][0]["tokens_per_s"] for p in (given, known, half)]
        self.assertLess(abs(rate[0] / rate[1] - 1), 0.02)  # a memory-bound answer
        self.assertLess(rate[2], 0.75 * rate[0])
        for name, want in (("dgx-spark", "its CPU is an ARM"), ("laptop-32+gtx1", "gtx1 is not a known card"), ("laptop-32+9xl4", "1 to 8 cards are possible"),
                           ("laptop-32+gpu:16G", "such as gpu:16G,448G"), ("laptop-32+gpu:16G,448", "such as gpu:16G,448G"), ("laptop-32+gpu:0G,9G", "such as gpu:16G,448G"),
                           ("laptop-32+rtx3090,math=fp8", "the card has no FP8 products"),
                           ("laptop-32+h100", "h100 is not one card: there are H100 PCIe and H100 SXM"), ("laptop-32+", "is not a known card")):
            rc, out, err = self.run_bin("--plan", name)
            self.assertEqual((rc, out), (2, b""), name)
            self.assertIn(want, err)

    def test_measure_prints_one_line(self):
        rc, out, err = self.run_bin("--plan", "here", "--measure")
        self.assertEqual(rc, 0, err)
        text = out.decode()
        self.assertRegex(text, r"\Ahearth \S+ on .+, \d+ threads?, \w+, with ember \(DeepSeek-V3\)(; (answers|a prompt of 2,048 tokens) \S+ tok/s predicted, \S+ measured \(\d+\.\d\d\)){2}\n\Z")
        rc, out, err = self.run_bin("--plan", "here", "--measure", "--json")
        row = json.loads(out)
        for what in ("answer", "prompt"):
            self.assertAlmostEqual(row[what]["share"], row[what]["measured"] / row[what]["predicted"], delta=2e-3)
            self.assertGreater(row[what]["measured"], 0)
        self.assertTrue(row["machine"] and row["model"] == "ember" and row["threads"] > 0)
        for args in (["--measure"], ["--plan", "paper-a-1", "--measure"], ["--plan", "here", "--arch", "qwen3-30b", "--measure"]):
            rc, out, err = self.run_bin(*args)
            self.assertTrue(rc == 2 and "--measure needs --plan here" in err, (args, err))

    def test_list(self):
        text = self.run_bin("--plan", "list")[1].decode()
        listed = json.loads(self.run_bin("--plan", "list", "--json")[1])
        for kind in ("machines", "models"):
            for row in listed[kind]:
                self.assertRegex(text, rf"(?m)^  {re.escape(row['name'])} ")
        self.assertLessEqual({"here", "paper-a-1", "paper-a-2", "paper-b-t4", "paper-b-l4"}, {m["name"] for m in listed["machines"]})
        self.assertLessEqual({"deepseek-v3", "deepseek-v4-flash", "kimi-k2", "qwen3-30b", "qwen3.5-122b", "gpt-oss-120b"}, {m["name"] for m in listed["models"]})
        self.assertEqual(len({line.index(" B parameters") for line in text.split("\n") if " B parameters" in line}), 1, "columns are aligned")
        for name in listed["formats"]:
            self.assertRegex(text, rf"\b{name}\b")

    def test_manual(self):
        """Every key that --json prints is in the manual's section, and the manual names no other."""
        with open(MAN) as f:
            section = re.search(r"(?ms)^\.Sh PLANS$(.*?)^\.Sh ", f.read()).group(1)
        named = set()
        for line in section.splitlines():
            for part in re.findall(r"\bCm ((?:[a-z0-9_]+ ?,? ?)+)", line):
                named |= set(re.findall(r"[a-z0-9_]+", part))
        d = os.path.join(self.home, "model")
        tiny.make(d, {"num_hidden_layers": 3})
        box = "channels = 2\nddr = 5600\ncores = 8\nisa = avx2\n"
        mixtral = ("--arch", "mixtral-8x7b")
        runs = [("list",), ("paper-a-2", "-m", d, "--max-tpot", "20"), ("paper-b-t4", *mixtral), (self.machine(box + "memory = 80G\ndisk = 7G\n"), *mixtral)]
        printed = set()
        for words in runs:
            rc, out, err = self.run_bin("--plan", *words, "--json")
            self.assertEqual((rc, err), (0, ""), words)
            keys(json.loads(out), printed)
        self.assertEqual(printed - named, set(), "not in the manual")
        self.assertEqual(named - printed - {"list"}, set(), "in the manual, and not printed")

    def test_wrong(self):
        for text, want in ((BOX + "cores = 9\n", "line 7: cores = 9: is given twice"), ("ddr = fast\n", "line 1: ddr = fast: is not a number"),
                           ("channels = 2\n", "ddr is missing: transfers a second of the memory, such as ddr = 4800"),
                           (BOX.replace("4090", "4091"), "card = RTX 4091 is not a known card"), ("x\n", "line 1: 'x' is not key = value"),
                           ("name = \x1b]0;x\x07\n", "not a text file")):
            rc, out, err = self.run_bin("--plan", self.machine(text))
            self.assertEqual((rc, out), (2, b""), text)
            self.assertIn(want, err)
        self.assertEqual(self.run_bin("--plan", "/nowhere")[0], 2)
        for arch, want in (("nothing", "unknown; known: deepseek-v3, "), ("dbrx:q9", "--arch dbrx:q9: unknown format; known: bf16, fp8")):
            rc, out, err = self.run_bin("--plan", "paper-a-1", "--arch", arch)
            self.assertEqual((rc, out), (2, b""))
            self.assertIn(want, err)
        self.assertEqual(self.run_bin("--plan", "paper-a-1", "--arch", "dbrx", "-m", "x")[0], 2)
        self.assertEqual(self.run_bin("--plan", "paper-a-1", "-m", "/nowhere")[0], 3)


if __name__ == "__main__":
    driver.unittest.main()
