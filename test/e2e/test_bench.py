"""The output of --bench for a model: consistent rows, as text and as JSON. (For kernels: test_reach.py.)"""
import json
import os
import signal
import subprocess

import driver
import tiny

SOON = {"HEARTH_LIMITS": "read=33554432"}  # bandwidth is measured beside each row, for seconds


class Bench(driver.Case):
    def test_bench_of_a_model(self):
        d = os.path.join(self.home, "model")
        tiny.make(d)
        rc, out, err = self.run_bin("-m", d, "--bench", "--json", "-t", "1", "-c", "64", env=SOON)
        self.assertEqual((rc, err), (0, ""))
        rows = json.loads(out)
        self.assertEqual(rows[0]["what"], "machine")
        self.assertEqual(rows[0]["threads"], 1)
        self.assertIn(rows[0]["level"], ("scalar", "avx2", "avx512", "amx"))
        # 64 positions: prompts of up to 16 tokens with 32 of an answer, then several sessions
        self.assertEqual([(r["what"], r["prompt"], r["sessions"]) for r in rows[1:]],
                         [("decode", 1, 1), ("prefill", 16, 1), ("decode", 16, 1), ("decode", 16, 2), ("decode", 16, 4)])
        for r in rows[1:]:
            self.assertGreater(r["tokens_per_s"], 0)
            self.assertAlmostEqual(r["share"], r["tokens_per_s"] / r["limit"], delta=1e-3 * max(1, r["share"]))
            if r["what"] == "prefill":
                self.assertAlmostEqual(r["gflops"] / (r["tokens_per_s"] * rows[0]["token_flops"] / 1e9), 1, delta=0.05)
            else:
                self.assertAlmostEqual(r["tpot_s"], r["sessions"] / r["tokens_per_s"], delta=1e-6 + 0.01 * r["tpot_s"])
        rc, out, err = self.run_bin("-m", d, "--bench", "-t", "1", "-c", "64", env=SOON)
        verdict = (r"model, 1 thread, \w+: answers run at [\d.]+ tok/s, after 16 tokens at [\d.]+ tok/s;\n"
                   r"prompts of 16 tokens are read at [\d.]+ tok/s; 4 chats together: [\d.]+ tok/s\.\n"
                   r"Memory reads [\d.]+ GB/s and a token reads [\d.]+ MB of weights: at most [\d.]+ tok/s, of which answers reach \d+ %\.\n$")
        self.assertEqual((rc, err), (0, ""))
        self.assertRegex(out.decode(), "^" + verdict)
        rc, out, err = self.run_bin("-m", d, "--bench", "-v", "-t", "1", "-c", "64", env=SOON)
        lines = out.decode().splitlines()
        self.assertEqual((rc, len(lines), lines[0].split(",")[0]), (0, 9, "model"))
        self.assertRegex(lines[1], r"^decode +1 token +before, 1 session +[\d.]+ tok/s +of +[\d.]+ at memory bandwidth +\d+ %$")
        self.assertRegex(lines[2], r"^prefill +16 tokens +[\d.]+ tok/s +[\d.]+ GFLOP/s +first token [\d.]+ s +[\d.]+ % of the bandwidth limit$")
        self.assertRegex(out.decode(), verdict)
        self.assertEqual(self.run_bin("-m", "/nowhere", "--bench")[:2], (3, b""))
        self.assertEqual(self.run_bin("--bench", "nonsense")[0], 2)

    def test_kernels_until_an_interrupt(self):
        """All of them take minutes; test_reach.py has the table's layout."""
        p = subprocess.Popen([driver.BIN, "--bench", "kernels", "--json", "-t", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ, HOME=self.home, **SOON))
        rows = [json.loads(p.stdout.readline().decode().strip(" [,\n]")) for _ in range(2)]
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=100)
        self.assertEqual(p.returncode, -signal.SIGINT)
        for r in rows:
            self.assertIn(r["level"], ("scalar", "avx2", "avx512", "amx"))
            self.assertEqual(r["threads"], 1)
            self.assertGreater(r["gbps"], 0)
            self.assertTrue(r["kernel"])

    def test_inspection_begins_with_a_verdict(self):
        d = os.path.join(self.home, "model")
        tiny.make(d)
        rc, out, err = self.run_bin("-m", d, "--inspect")
        self.assertEqual((rc, err), (0, ""))
        model, fits, runs = out.decode().splitlines()
        self.assertRegex(model, r"^DeepSeek-V3 · [\d.]+k \([\d.]+k active\) · FP8 · 2 layers, 1 with 4 experts, 2 used · context 512$")
        self.assertRegex(fits, r"^fits: [\d.]+ [kM]B of [\d.]+ [MGT]B    speed: memory must read [\d.]+ kB per token \(--models measures how fast it is\)$")
        self.assertRegex(runs, r"^runs: attention and experts on the CPU \(\w+\)    KV cache: [\d.]+ k?B per token$")
        os.makedirs(os.path.join(self.home, ".cache/hearth"), exist_ok=True)
        with open(os.path.join(self.home, ".cache/hearth/bandwidth"), "w") as f:
            f.write(f"{os.uname().nodename} 50e9\n")
        lines = self.run_bin("-m", d, "--inspect", "-v")[1].decode().splitlines()
        self.assertRegex(lines[1], r"    speed: up to \d+ tok/s \(memory bandwidth 50\.0 GB/s\)$")
        self.assertTrue(lines[3] == "" and len(lines) > 60 and any(l.split() == ["hidden", "160"] for l in lines), lines)


if __name__ == "__main__":
    driver.unittest.main()
