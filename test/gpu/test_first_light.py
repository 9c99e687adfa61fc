#!/usr/bin/env python3
"""first-light with stand-ins for its programs and for the tools of a card's machine: the order of steps, what each reads off its program's output, archives
that a kill leaves whole, and the report. The names of kernels and rows that scripts and documents mention exist; timeline.c records what CUPTI hands out.

    test_first_light.py BENCH_DEVICE BENCH_FILL BENCH_TURNS"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BENCH_DEVICE, BENCH_FILL, BENCH_TURNS = sys.argv[1:4]
del sys.argv[1:4]
CUPTI = next((d for d in ("/usr/local/cuda/include", "/opt/cuda/include") if os.path.exists(os.path.join(d, "cupti.h"))), None)

TURNS = """case $2 in *noepilogue*) s=200.5 ;; none) s=20 ;; *) s=250.25 ;; esac
model=$1 list=$2; shift 2
echo '| turn | answer, tokens/s | prompt, tokens/s | first token, s | modes | first tokens |'; echo '|---|---|---|---|---|---|'
for t; do last=4; case $WRONG,$list in 1,*noepilogue*) last=5 ;; esac; echo "| $t | $s | 1000 | 0.500 | slp, hybrid | 1 2 3 $last |"; done
[ -z "${TIMELINE_OUT:-}" ] || cat >"$TIMELINE_OUT" <<'END'
30 records, 0 lost; span 100.0 us, busy 90.0 us (90.0 %)
| name | blocks or KB | threads | registers | shared | number | sum, us | mean | least | most | idle before, mean |
|---|---|---|---|---|---|---|---|---|---|---|
| _Z13few_up_kernelILi0EEv11cuda_routed | 384 | 128 | 90 | 0 | 20 | 348.0 | 17.40 | 17.00 | 18.00 | 1.25 |
END"""
NCU = """echo '  void few_up_kernel<0>(cuda_routed) (384, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 9.0'
echo '    Duration                us        17.40'; echo '    DRAM Throughput          %        51.00'; echo '    Registers Per Thread  register/thread   90'
echo '  void few_up_kernel<0>(cuda_routed) (384, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 9.0'
echo '    Duration                ns        1,600'; echo '    DRAM Throughput          %        53.00'; echo '    Registers Per Thread  register/thread   90'"""
PROGRAMS = {
    "hearth": 'case $* in *--version*) echo "gpus: a card" ;; *) echo "[1, 2, 3, 4]"; echo "10 tokens, prefilled in 1.5 s"; echo "answer: 4 tokens (9.5 tokens/s)";'
    ' p=auto d=auto; while [ $# -gt 0 ]; do case $1 in --prefill) p=$2 ;; --decode) d=$2 ;; --trace) echo "{}" >/dev/null ;; esac; shift; done; echo "prefill by $p, decode by $d" ;; esac',
    "bench_fill": 'mkdir -p "$2"',
    "bench_turns": TURNS,
    "micro": "echo '| what | value | unit |'; echo '|---|---|---|'; echo '| empty kernel of 1 blocks in a graph of 200 | 1.300 | us |'",
    "bench_device": "case $1 in *own*) a=100 ;; *) a=600 ;; esac; echo '| products | rows: TFLOP/s | GB/s read | by itself |'; echo \"| linear, BF16 | 1: 2.7 1024: $a | 2700 | 1.0 us |\"",
    "gpu_driver": "sleep ${SLEEP:-0}",
    **{name: "" for name in ("gpu_conform", "gpu_graph", "gpu_timeline", "gpu_modes", "timeline.so")},
}


def write(path, body, head="#!/bin/sh\n"):
    with open(path, "w") as f:
        f.write(head + body + "\n")
    os.chmod(path, 0o755)


class Run(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        shutil.copy(os.path.join(HERE, "first-light"), self.dir)
        for folder in ("bin", "tools", "shapes/toy", "shapes/toy-q4_k_m", "models/gqa_x", "llama"):
            os.makedirs(os.path.join(self.dir, folder))
        for name, body in PROGRAMS.items():
            write(os.path.join(self.dir, "bin", name), body)
        open(os.path.join(self.dir, "bin", "timeline.so"), "w").close()
        write(os.path.join(self.dir, "tools", "ncu"), NCU)
        write(os.path.join(self.dir, "tools", "python3"), "exit 1")
        write(os.path.join(self.dir, "llama", "llama-bench"), "echo '| model | test | t/s |'; echo '| qwen3moe | pp600 | 9000.5 ± 3 |'")
        self.archive = os.path.join(self.dir, "results.tar.gz")

    def command(self, *steps, **more):
        env = dict(os.environ, FIRST_LIGHT_GB="0", FIRST_LIGHT_SCRATCH=os.path.join(self.dir, "scratch"), PATH=os.path.join(self.dir, "tools") + ":" + os.environ["PATH"], **more)
        return dict(args=["sh", os.path.join(self.dir, "first-light"), *steps], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run_steps(self, *steps, **more):
        p = subprocess.run(**self.command(*steps, **more))
        return p.returncode, p.stdout

    def table(self):
        with tarfile.open(self.archive) as t:
            return t.extractfile("results/table.md").read().decode()

    def row(self, table, name):
        found = re.findall(rf"^\| *{re.escape(name)} \| [\d.]+ \| (.*) \|$", table, re.M)
        self.assertTrue(found, f"{name} in\n{table}")
        return found[0]

    def test_all_steps(self):
        code, said = self.run_steps("turns", "quick", "micro", "timeline", "prompts", "speeds", "peer", "hybrid", "counters", "families", "probe")
        self.assertEqual(code, 0, said)
        table = self.table()
        steps = re.findall(r"^\| (\w+) \| [\d.]+ \| \d+ % \|$", table, re.M)
        self.assertEqual(steps, "probe quick turns micro timeline prompts speeds peer hybrid counters families".split())
        self.assertEqual(self.row(table, "answer fp8,noepilogue 40:4"), "200.5 tokens/s; prompt 1000 tokens/s, first token 0.500 s; slp, hybrid; 4 of 4 tokens as the CPU's")
        self.assertIn("1000 tokens/s read", self.row(table, "prompt gguf,gemm=own 70"))
        self.assertEqual(self.row(table, "empty kernel of 1 blocks in a graph of 200"), "1.300 us")
        self.assertIn("17.40 us each, 20 times, 348.0 us in all; idle before 1.25 us", self.row(table, "gguf few_up_kernel, 384 blocks"))
        self.assertEqual(self.row(table, "fp8 few_up_kernel"), "9.50 us, 52 % of the bandwidth, 90 registers, 2 launches")
        self.assertEqual(self.row(table, "fp8 top_kernel"), "no launch of it")
        self.assertIn("no python3 with torch", self.row(table, "peer"))
        self.assertIn("prefill by blend, decode by hybrid", self.row(table, "hybrid blended"))
        self.assertEqual(os.listdir(os.path.join(self.dir, "scratch")), [])
        report = subprocess.run([sys.executable, os.path.join(HERE, "first-light-report"), self.archive], capture_output=True, text=True, check=True).stdout
        self.assertIn("| answer fp8 600:300 | 270 tokens/s | not measured | |", report)
        self.assertIn("| linear, BF16 @ 1024 | 638 TFLOP/s | 600 of 1 | 0.94 |", report)
        self.assertIn("- answer fp8 40:4: as chosen 250.25, noepilogue 200.5 tokens/s: **as chosen wins by 25 %**", report)
        self.assertIn("- linear, BF16, 1024 rows: as chosen 600, gemm=cublas 600, math=fp8 600, gemm=own 100: **no difference**", report)
        self.assertIn("\n0 failed\n", report)

    def test_other_tokens_fail(self):
        code, said = self.run_steps("turns", WRONG="1")
        self.assertEqual(code, 1)
        self.assertIn("FAILED: other tokens than with other switches: 1 2 3 5 instead of 1 2 3 4", said)

    def test_llama_by_name_only(self):
        code, said = self.run_steps("llama")
        self.assertEqual(code, 0, said)
        self.assertEqual(self.row(self.table(), "llama.cpp pp600"), "9000.5 ± 3 tokens/s")

    def test_kill_leaves_what_was_found(self):
        p = subprocess.Popen(**self.command("micro", "beside", SLEEP="60"), start_new_session=True)
        for _ in range(300):
            if os.path.exists(self.archive):
                break
            time.sleep(0.1)
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()
        self.assertIn("1.300 us", self.row(self.table(), "empty kernel of 1 blocks in a graph of 200"))
        subprocess.run(["sh", "-c", f"for p in $(grep -l {self.dir} /proc/[0-9]*/cmdline 2>/dev/null); do p=${{p#/proc/}}; kill -9 ${{p%/cmdline}} 2>/dev/null; done; :"])

    def test_hang_is_told(self):
        code, said = self.run_steps("beside", SLEEP="60", FIRST_LIGHT_SECONDS="3")
        self.assertEqual(code, 1)
        self.assertIn("FAILED: hangs: over", said)


class Names(unittest.TestCase):
    def test_kernels_exist(self):
        kernels = set()
        for name in os.listdir(os.path.join(ROOT, "gpu")):
            if name.endswith((".cu", ".cuh")):
                with open(os.path.join(ROOT, "gpu", name)) as f:
                    kernels |= set(re.findall(r"__global__[^;{]*?\b(\w+_kernel)\(", f.read()))
        with open(os.path.join(HERE, "first-light")) as f:
            counted = re.search(r"^counted='\n(.*?)'$", f.read(), re.M | re.S)[1]
        named = re.findall(r"\w+_kernel\w*", counted)
        self.assertGreater(len(named), 8)
        self.assertEqual([name for name in named if name not in kernels], [])

    def test_expected_rows_exist(self):
        with open(os.path.join(HERE, "first-light")) as f:
            script = f.read()
        with open(os.path.join(HERE, "micro.cu")) as f:
            texts = re.findall(r'"((?:[^"\\\n]|\\.)+)"', f.read())
        device = subprocess.run([BENCH_DEVICE, "emu:1", "44", "0.05"], stdout=subprocess.PIPE, text=True, check=True).stdout
        rows = {re.sub(r"\d+", "#", line.split("|")[1].strip()) for line in device.split("\n") if line.startswith("|")}
        rows |= {re.sub(r"%d|\d+", "#", t).replace("%s", "") for t in texts}
        rows |= {"linear, BF#" for row in rows if row.startswith("linear, ")}  # which formats an emulated device is timed with depends on the machine
        with open(os.path.join(ROOT, "test", "bench", "gpu.md")) as f:
            expected = re.findall(r"^\| ([^|]+) \| \d[\d.]* \| (?:\S+/s|us|ms) \|", f.read().split("## What first-light should show")[1].split("\n## ")[0], re.M)
        self.assertGreater(len(expected), 12)
        for each in expected:
            name = each.partition(" @ ")[0]
            answer = re.fullmatch(r"(?:answer|prompt) (?:fp8|gguf)(,[\w=]+)* (\d+)(:\d+)?", name)
            if answer:
                self.assertRegex(script, rf"(answer|prompt|long)_turns='[^']*\b{answer[2]}{answer[3] or ':'}")
                self.assertIn(answer[1] or "", script)
            else:
                self.assertIn(re.sub(r"\d+", "#", name), rows)


class Checkpoints(unittest.TestCase):
    """Both kinds of checkpoints open and answer, whoever writes them; equal turns give equal tokens."""

    def test_both_kinds(self):
        with tempfile.TemporaryDirectory() as d:

            def made(name, *options):
                subprocess.run([sys.executable, os.path.join(ROOT, "test", "bench", "mkmodel.py"), "--shape", "toy", "--out", os.path.join(d, name), *options], check=True, stdout=subprocess.DEVNULL)

            def filled(name, *options):
                made(name + "-headers", "--headers", *options)
                subprocess.run([BENCH_FILL, os.path.join(d, name + "-headers"), os.path.join(d, name)], check=True)

            filled("fp8")
            filled("gguf", "--gguf", "q4_k_m")
            made("gguf-python", "--gguf", "q8_0")
            for name in ("fp8", "gguf", "gguf-python"):
                out = subprocess.run([BENCH_TURNS, os.path.join(d, name), "none", "40:4", "70:2:fp8", "40:4"], stdout=subprocess.PIPE, text=True, check=True).stdout
                found = re.findall(r"^\| (\S+) \| [\d.]+ \| \d+ \| [\d.]+ \| cpu, cpu \| ([\d ]+) \|$", out, re.M)
                self.assertEqual([turn for turn, _ in found], ["40:4", "40:4", "70:2:fp8"], out)
                self.assertEqual(found[0], found[1])
                self.assertEqual([len(ids.split()) for _, ids in found], [4, 4, 2])


FAKE = r"""
#include <cupti.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static int next;
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc a, CUpti_BuffersCallbackCompleteFunc b) { request = a, complete = b; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext c, uint32_t s, size_t *n) { *n = 3; return CUPTI_SUCCESS; }
CUptiResult cuptiActivityGetNextRecord(uint8_t *b, size_t valid, CUpti_Activity **a) {
    if ((size_t)next * sizeof(CUpti_ActivityKernel10) >= valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *a = (CUpti_Activity *)(b + (size_t)next++ * sizeof(CUpti_ActivityKernel10));
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(uint32_t flag) {
    uint8_t *b;
    size_t size, most;
    request(&b, &size, &most);
    for (int i = 0; i < 4; i++) { /* the last two overlap */
        CUpti_ActivityKernel10 k = {.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, .name = i ? "one_kernel" : "early_kernel", .gridX = 2, .gridY = 3, .gridZ = 1, .blockX = 128, .blockY = 1, .blockZ = 1,
            .start = (uint64_t)i * 1000000 - (i == 3 ? 998000 : 0), .end = (uint64_t)i * 1000000 - (i == 3 ? 998000 : 0) + 4000};
        memcpy(b + (size_t)i * sizeof k, &k, sizeof k);
    }
    complete(0, 0, b, size, 4 * sizeof(CUpti_ActivityKernel10));
    return CUPTI_SUCCESS;
}
"""


class Timeline(unittest.TestCase):
    def setUp(self):
        if not CUPTI or not shutil.which("cc"):
            self.skipTest("no headers of CUPTI 13")
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)

    def compiled(self, out, source, *flags):
        subprocess.run(["cc", "-std=gnu11", "-shared", "-fPIC", "-isystem", CUPTI, *flags, "-o", os.path.join(self.dir, out), source, "-ldl"], check=True)

    def result(self, fake=FAKE, **more):
        write(os.path.join(self.dir, "fake.c"), fake, head="")
        self.compiled("libcupti.so.13", os.path.join(self.dir, "fake.c"))
        self.compiled("timeline.so", os.path.join(HERE, "timeline.c"), "-Wall", "-Wextra", "-Werror")
        out = os.path.join(self.dir, "out.txt")
        run = f"import ctypes; t = ctypes.CDLL('{self.dir}/timeline.so'); print(t.InitializeInjection())"
        subprocess.run([sys.executable, "-c", run], check=True, stdout=subprocess.DEVNULL, env=dict(os.environ, **dict({"TIMELINE_OUT": out, "LD_LIBRARY_PATH": self.dir}, **more)))
        with open(out) as f:
            return f.read()

    def test_table(self):
        text = self.result(TIMELINE_LAST_MS="1.5")  # leaves out the first
        # one_kernel begins at 1,000, 2,000 and 2,002 us, for 4 us each: 996 us idle, and 2 us of the last two overlap
        self.assertTrue(text.startswith("3 records, 3 lost; span 1006.0 us, busy 10.0 us (1.0 %)\n"), text)
        self.assertIn("| one_kernel | 6 | 128 | 0 | 0 | 3 | 12.0 | 4.00 | 4.00 | 4.00 | 332.00 |", text)
        self.assertIn("\n1000.00 4.00 996.00 0 0 6 128 one_kernel\n", text)

    def test_another_cupti(self):
        text = self.result(FAKE.replace("cuptiActivityEnable", "cuptiActivityOther"))
        self.assertRegex(text, r"^FAILED: CUPTI: .*libcupti\.so\.13.*cuptiActivityEnable")


if __name__ == "__main__":
    unittest.main()
