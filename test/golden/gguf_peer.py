#!/usr/bin/env python3
"""Random GGUF models of each architecture, in float32, and the models of ../shared/fixtures as GGUF, against llama.cpp: the log
probabilities of every token after prompts of three lengths. llama.cpp comes from the package xllamacpp; without it nothing is compared.
gguf_peer.py HEARTH [SHARED]"""
import array
import json
import math
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import gguf_file  # noqa: E402
import gguf_fixtures  # noqa: E402

HEARTH = os.path.abspath(sys.argv[1])
LENGTHS, TOLERANCE = (3, 40, 90), 1e-4
ROUGH = {"gemma2": 5e-3, "grok first": 5e-3, "gemma3": 5e-3, "gemma4": 1e-2, "token_input": 1e-2, "starcoder2": 5e-3, "phi2": 5e-3, "gptneox": 5e-3, "gptneox serial": 5e-3, "falcon": 5e-3, "falcon norms": 5e-3,  # llama.cpp reads GELU from a table of float16
         "minimax-m3": 1e-2}  # its flash attention rounds to float16
FLASH = {"minimax-m3"}  # llama.cpp selects blocks of keys only with its flash attention
# Cases where llama.cpp computes something other than was published (test_gguf.py then compares with the twin in safetensors), or does not read the file.
OTHERWISE = {"phi3": "it accepts Phi-3's own vocabulary only",
             "phimoe": "it takes RMS norms for layer norms, and a plain softmax over the experts",
             "gpt-oss": "it rounds the bounds of YaRN's ramp to whole dimensions, which the published configuration does not",
             "qwen3moe fused": "it knows no fused experts of this architecture",
             "deepseek2 v2": "it takes a model for one without low-rank queries by its 27 layers",
             "deepseek2 old": "it reads no joint kv_b any more",
             "kimi-linear old": "it ends with a segmentation fault on a joint kv_b",
             "mimo_v2_flash": "it sees one key less than a window has in the reference",
             "nemotron_h": "its layers are not an MLP where others have experts",
             "glm_moe_dsa": "it ends with an assertion on these dimensions",
             "deepseek_v32": "it ends with an assertion on these dimensions",
             "grok": "its router neither caps its logits nor leaves the weights of the chosen experts as they are",
             "mla_sizes": "its published packages do not know the architecture",
             "smallthinker window": "it takes 4096 for the window, whatever the file says",
             "deepseek_v4": "it ends with an assertion on these dimensions",
             "dense_blocks": "it leaves out the attention of a layer without an FFN",
             "qwen4_exp": "it knows DeltaNet's heads of one size, and n-grams' vectors of the model's width"}


def tokens(n):
    return [(i * 37 + 11) % 270 for i in range(n)]


def ours(file, n):
    out = file + ".logits"
    subprocess.run([HEARTH, "-m", file, "--tokens", ",".join(map(str, tokens(n))), "--logits-out", out, "--cpu", "scalar", "--kv", "f32"], check=True, timeout=120)
    with open(out, "rb") as f:
        all_logits = array.array("f", f.read())
    last = all_logits[-(len(all_logits) // n):]
    top = max(last)
    total = top + math.log(sum(math.exp(x - top) for x in last))
    return [x - total for x in last]


def theirs(file, flash=False):
    """In a separate process, because llama.cpp exits on models that it rejects."""
    code = f"""
import json, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.n_ctx, p.n_batch, p.n_parallel, p.warmup, p.verbosity = {file!r}, 256, 64, 1, False, 1
p.cpuparams.n_threads, p.flash_attn_type = 1, xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_{'ENABLED' if flash else 'DISABLED'}
p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
s, out = xllamacpp.Server(p), []
for prompt in {[tokens(n) for n in LENGTHS]!r}:
    r = s.handle_completions(dict(prompt=prompt, max_tokens=1, n_probs=10000, temperature=0.0, cache_prompt=False, logit_bias=[[80, 1000]]))  # the token drawn must be a whole character
    r = json.loads(r) if isinstance(r, (str, bytes)) else r
    out.append([(t["id"], t["logprob"]) for t in r["choices"][0]["logprobs"]["content"][0]["top_logprobs"]])
print("RESULT", json.dumps(out), flush=True)
"""
    p = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, errors="replace", timeout=300)
    lines = [x for x in p.stdout.splitlines() if x.startswith("RESULT ")]
    return json.loads(lines[0][7:]) if lines else None


def main():
    try:
        import xllamacpp  # noqa: F401
    except ImportError:
        print("SKIPPED: llama.cpp on our GGUF files: the Python package xllamacpp is not installed")
        return 77
    failed = done = 0
    makers = {**gguf_file.MODELS, **gguf_fixtures.OWN}
    if len(sys.argv) > 2 and os.path.isdir(os.path.join(sys.argv[2], "fixtures")):
        makers.update(gguf_fixtures.FAMILIES)
    for arch, make in makers.items():
        if arch in OTHERWISE:
            print(f"{arch}: not compared, {OTHERWISE[arch]}")
            continue
        with tempfile.TemporaryDirectory() as tmp:
            if arch in gguf_file.MODELS:
                file, _ = make("F32").save(tmp)
            elif arch in gguf_fixtures.OWN:
                file = gguf_fixtures.make_own(arch, tmp)[1]
            else:
                file = os.path.join(tmp, "fixture.gguf")
                make(os.path.join(sys.argv[2], "fixtures", arch)).save(file)
            got = theirs(file, arch in FLASH)
            if got is None:
                print(f"FAIL {arch}: llama.cpp gives no answer")
                failed += 1
                continue
            worst = 0
            for n, there in zip(LENGTHS, got):
                here = ours(file, n)
                if len(there) < len(here) - 2:
                    print(f"FAIL {arch}: {len(there)} of {len(here)} tokens")
                    failed += 1
                worst = max([worst] + [abs(here[i] - x) for i, x in there if x > -1e30])
        done += 1
        failed += not worst <= ROUGH.get(arch, TOLERANCE)
        print(f"{'FAIL ' if not worst <= ROUGH.get(arch, TOLERANCE) else ''}{arch}: log probabilities differ by up to {worst:.2g}", flush=True)
    print(f"{done} architectures, {failed} failed")
    return failed != 0 or not done


if __name__ == "__main__":
    sys.exit(main())
