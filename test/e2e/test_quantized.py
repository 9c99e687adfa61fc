#!/usr/bin/env python3
"""Quantized safetensors against the same weights in float32: equal logits for every format in every mode; damaged files and unknown schemes are refused by name.
test_quantized.py HEARTH"""
import array
import json
import os
import re
import struct
import sys
import tempfile

import quant_file
from checks import check, end, run

IDS = ",".join(str((i * 37 + 11) % 60) for i in range(40))
SCALAR = ["--cpu", "scalar", "--kv", "f32"]
MODES = ([], ["--gpus", "emu:1", "--decode", "hybrid"], ["--gpus", "emu:1", "--prefill", "blend"], ["--gpus", "emu:1", "--prefill", "slp"],
         ["--gpus", "emu:2", "--prefill", "dslp"])


DECODES = ((["--gpus", "emu:1,cpu=scalar", "--decode", "hybrid", "--expert-cache", "1"], "decoded by hybrid"),
           (["--gpus", "emu:2,cpu=scalar,parallel=tensor", "--decode", "hybrid"], "(tensor parallel)"),
           (["--gpus", "emu:3,cpu=scalar", "--decode", "hybrid"], "decoded by hybrid"))
ROUNDED = 4e-2  # BF16 activations leave up to 0.01, 8-bit ones (AVX2, AVX-512 VNNI) 0.013 with MXFP4 and 0.024 with NVFP4


def logits(model, out, *args):
    rc, _, err = run("-m", model, "--tokens", IDS, "--logits-out", out, *args)
    f = array.array("f")
    if not rc:
        with open(out, "rb") as h:
            f.frombytes(h.read())
    return f, f"exit {rc} {err.strip()}"


def rows_off(a, b):
    """The differences of each position, relative to the largest value, sorted."""
    n = IDS.count(",") + 1
    each, top = len(b) // n, max(map(abs, b))
    if len(a) != len(b):
        return [float("inf")] * n
    return sorted(max(abs(x - y) for x, y in zip(a[i * each:(i + 1) * each], b[i * each:(i + 1) * each])) / top for i in range(n))


def twins(tmp):
    out = os.path.join(tmp, "logits")
    for name in quant_file.FORMATS:
        model, twin = quant_file.make(os.path.join(tmp, "pair"), name)
        want, why = logits(twin, out, *SCALAR)
        check(want, f"{name}: the twin in float32", why)
        got, why = logits(model, out, *SCALAR)
        check(got and rows_off(got, want)[-1] <= 2e-5, f"{name}: logits", f"{why}, off by {got and rows_off(got, want)[-1]}")
        for args in MODES:  # rounding may flip a choice of experts, and thereby one position: hence the median
            got, why = logits(model, out, "--kv", "f32", *args)
            n = len(want) and rows_off(got, want)
            check(got and n[len(n) // 2] < ROUNDED, f"{name} {args}", f"{why}, usually off by {got and n[len(n) // 2]:.3g}")
        rc, _, err = run("-m", model, "--verify")
        check(rc == 0, f"{name} verifies", err)
        rc, text, err = run("-m", model, "--inspect", "--json")
        check(rc == 0, f"{name} is shown", err)
        if quant_file.FORMATS[name][2].get("order"):
            decodes(name, model, twin)
            expanded = {m["dtype"]: m["weights"] for m in json.loads(text)["mix"]}["F32"] > 20000 if not rc else None
            check(expanded == ("by input" not in quant_file.FORMATS[name][2]["order"]), f"{name}: the mix of types", text)


def decodes(name, model, twin):
    """Columns in another order: generated tokens, too, are those of the twin."""
    ask = ["--tokens", IDS, "-n", "12", "--temp", "0", "--ids", "--explain", *SCALAR]
    want = run("-m", twin, *ask)[1]
    for args, ran in DECODES:
        rc, out, err = run("-m", model, *ask, *args)
        check(rc == 0 and out == want and ran in err, f"{name} {args}", f"exit {rc}, {out} for {want}: {err}")


ROUTER = "model.layers.1.mlp.gate."
GATE, DOWN = "model.layers.1.mlp.experts.2.gate_proj.", "model.layers.1.mlp.experts.2.down_proj."


def cut(ending, lines=1, name=GATE):
    """The last lines of a tensor are missing, in its shape too."""
    def change(tensors):
        dtype, shape, raw = tensors[name + ending]
        tensors[name + ending] = dtype, [shape[0] - lines, *shape[1:]], raw[:len(raw) // shape[0] * (shape[0] - lines)]
    return change


def halved(ending, name=GATE):
    """Every row of a tensor has half of its columns."""
    def change(tensors):
        dtype, (rows, cols), raw = tensors[name + ending]
        each = len(raw) // rows
        size = each // cols * (cols // 2)
        tensors[name + ending] = dtype, [rows, cols // 2], b"".join(raw[r * each:r * each + size] for r in range(rows))
    return change


def gone(ending, name=GATE):
    return lambda tensors: tensors.pop(name + ending)


def typed(ending, dtype, name=GATE):
    """The same bytes under another dtype of the same size."""
    def change(tensors):
        tensors[name + ending] = dtype, *tensors[name + ending][1:]
    return change


def patched(ending, at, raw, name=GATE):
    def change(tensors):
        dtype, shape, old = tensors[name + ending]
        tensors[name + ending] = dtype, shape, old[:at] + raw + old[at + len(raw):]
    return change


def renamed(pattern, to):
    def change(tensors):
        for name in list(tensors):
            tensors[re.sub(pattern, to, name)] = tensors.pop(name)
    return change


NAN16, NAN_F16 = b"\xc0\x7f", b"\x00\x7e"
DAMAGES = [
    ("int4", "scales of too few rows", cut("weight_scale"), [GATE + "weight_scale", "[64, groups]"]),
    ("int4", "scales of too few groups", cut("weight_scale", 32), [GATE + "weight_scale"]),
    ("int4", "scales of groups of 64", halved("weight_scale", DOWN), [DOWN + "weight_scale"]),
    ("int4", "no scales", gone("weight_scale"), [GATE + "weight_scale", "missing"]),
    ("int4", "codes of too few rows", cut("weight_packed"), [GATE + "weight_packed", "[64, 12]"]),
    ("int4", "codes of half the columns", halved("weight_packed"), [GATE + "weight_packed", "[64, 12]"]),
    ("int4", "another shape stated", patched("weight_shape", 0, struct.pack("<q", 65)), [GATE + "weight_shape", "[65, 96]", "[64, 96]"]),
    ("int4", "scales of another type", typed("weight_scale", "I16"), [GATE + "weight_scale", "I16"]),
    ("int4 with zeros", "zero points of too few groups", halved("weight_zero_point", DOWN), [DOWN + "weight_zero_point", "[12, 2]"]),
    ("int4 in activation order", "a group out of range", patched("weight_g_idx", 4 * 95, struct.pack("<i", 3)), [GATE + "weight_g_idx", "column 95", "group 3 of 3"]),
    ("int8", "no scales", gone("weight_scale"), [GATE + "weight", "weight_scale"]),
    ("int8", "scales of too few rows", cut("weight_scale"), [GATE + "weight_scale"]),
    ("int8 with zeros", "zero points of too few rows", cut("weight_zero_point"), [GATE + "weight_zero_point"]),
    ("nvfp4", "no factor", gone("weight_scale_2"), [GATE + "weight", "weight_scale_2"]),
    ("nvfp4", "a factor of 0", patched("weight_scale_2", 0, bytes(4)), [GATE + "weight_scale_2", "positive"]),
    ("nvfp4", "scales of too few rows", cut("weight_scale"), [GATE + "weight_scale", "[64, 6]"]),
    ("nvfp4", "scales of blocks of 32", halved("weight_scale"), [GATE + "weight_scale", "[64, 6]"]),
    ("nvfp4 packed", "an infinite factor", patched("weight_global_scale", 0, b"\0\0\x80\x7f"), [GATE + "weight_global_scale", "positive"]),
    ("nvfp4 packed", "codes of too few rows", cut("weight_packed"), [GATE + "weight_packed", "[64, 48]"]),
    ("mxfp4", "scales of another type", typed("weight_scale", "I8"), [GATE + "weight_scale", "F8_E8M0"]),
    ("mxfp8", "scales of too few rows", cut("weight_scale"), [GATE + "weight_scale"]),
    ("nf4", "codes of too few rows", cut("weight"), [GATE + "weight", "two codes per byte"]),
    ("nf4", "scales of too few blocks", cut("weight.absmax"), [GATE + "weight.absmax", "number of scales"]),
    ("nf4", "outer scales of too few blocks", cut("weight.nested_absmax"), [GATE + "weight.nested_absmax", "F32 [2]"]),
    ("nf4", "no outer scales", gone("weight.nested_absmax"), [GATE + "weight.nested_absmax", "missing"]),
    ("nf4", "other levels", patched("weight.quant_map", 4, struct.pack("<f", -0.69)), [GATE + "weight.quant_map", "levels"]),
    ("nf4", "no state", gone("weight.quant_state.bitsandbytes__nf4"), [GATE + "weight.quant_state.bitsandbytes__nf4", "missing"]),
    ("nf4", "FP4's state", renamed("__nf4", "__fp4"), ["weight.quant_map", "levels of FP4"]),
    ("nf4", "a state that is no JSON", patched("weight.quant_state.bitsandbytes__nf4", 0, b"["), [GATE + "weight.quant_state"]),
    ("nf4", "the state of another shape", patched("weight.quant_state.bitsandbytes__nf4", 70, b"65"), [GATE + "weight.quant_state", "[64, 96]"]),
    ("nf4", "blocks of no size", patched("weight.quant_state.bitsandbytes__nf4", 35, b"-1"), [GATE + "weight.quant_state", "blocksize"]),
    ("nf4 with plain scales", "scales of too few blocks", cut("weight.absmax"), [GATE + "weight.absmax", "F32 [96]"]),
    ("int8 of bitsandbytes", "scales of too few rows", cut("SCB"), [GATE + "SCB", "F32 [64]"]),
    ("int8 of bitsandbytes", "rows in another order", patched("weight_format", 0, b"\2"), [GATE + "weight_format", "number 0"]),
    ("int8 of bitsandbytes", "codes of too few rows", cut("weight"), [GATE + "weight"]),
    ("int8 of bitsandbytes", "codes of another type", typed("weight", "U8"), [GATE + "weight", "I8"]),
    ("int4 of torchao", "two codes per byte", halved("_weight_qdata"), [GATE + "_weight_qdata", "torchao"]),
    ("int4 of torchao", "no scales", gone("_weight_scale"), [GATE + "_weight_qdata", "scale"]),
    ("int4 of torchao", "zero points of too few rows", cut("_weight_zero_point"), [GATE + "_weight_zero_point", "as many as scales"]),
    ("int8 of torchao", "factors of its input", renamed("_weight_scale", "_weight_act_pre_scale"), ["_weight_qdata", "act_pre_scale"]),
    ("awq", "scales of too few groups", cut("scales"), [GATE + "scales", "[3, 64]"]),
    ("awq", "zero points of too few groups", cut("qzeros"), [GATE + "qzeros", "[3, 8]"]),
    ("awq", "codes of too few columns", cut("qweight"), [GATE + "qweight", "[96, 8]"]),
    ("awq", "no zero points", gone("qzeros"), [GATE + "qzeros", "missing"]),
    ("gptq", "scales of too few groups", cut("scales"), [GATE + "scales", "[3, 64]"]),
    ("gptq", "zero points of too few groups", cut("qzeros"), [GATE + "qzeros", "[3, 8]"]),
    ("gptq", "codes of too few columns", cut("qweight"), [GATE + "qweight", "[12, 64]"]),
    ("gptq", "a list of too few columns", cut("g_idx"), [GATE + "g_idx", "[96]"]),
    ("gptq", "a group out of range", patched("g_idx", 4 * 7, struct.pack("<i", -1)), [GATE + "g_idx", "column 7", "group -1 of 3"]),
    ("gptq in activation order", "a list of another type", typed("g_idx", "F32"), [GATE + "g_idx", "I32 [96]"]),
    ("gptq", "scales of another type", typed("scales", "I16"), [GATE + "scales", "F16"]),
    ("mlx 4", "no biases", gone("biases", ROUTER), [ROUTER + "weight", "4 bits in groups of 32", "without biases"]),
    ("mlx 4", "biases of too few rows", cut("biases", name=ROUTER), [ROUTER + "biases", "same shape"]),
    ("mlx 4", "scales of too few rows", cut("scales", name=ROUTER), [ROUTER + "scales", "[4, groups]"]),
    ("mlx 4", "a scale that float16 does not hold", patched("scales", 0, b"\x80\x7f", ROUTER), [ROUTER + "scales", "row 0, group 0"]),
    ("mlx mxfp4", "scales of another type", typed("scales", "I8", ROUTER), [ROUTER + "weight", "MLX has no such mode"]),
]
DAMAGES_FOUND_BY_VERIFY = [
    ("int4", "a scale that is not a number", patched("weight_scale", 2 * 5, NAN16), [GATE + "weight_scale", "row 1, column 2"]),
    ("gptq", "a scale that is not a number", patched("scales", 2 * 65, NAN_F16), [GATE + "scales", "row 1, column 1"]),
    ("awq", "a scale that is not a number", patched("scales", 2 * 65, NAN_F16), [GATE + "scales", "row 1, column 1"]),
    ("nvfp4", "a scale that is not a number", patched("weight_scale", 7, b"\x7f"), [GATE + "weight_scale", "row 1, column 1"]),
    ("mxfp8", "a scale that is not a number", patched("weight_scale", 4, b"\xff"), [GATE + "weight_scale", "row 1, column 1"]),
    ("int8", "a scale that is not a number", patched("weight_scale", 2 * 3, NAN16), [GATE + "weight_scale", "row 3, column 0"]),
]
# Members of quantization_config that hearth does not compute with.
SCHEMES = [
    ("int4", {"quant_method": "eetq"}, ["eetq", "gptq", "bitsandbytes"]),
    ("nf4", {"bnb_4bit_quant_type": "af4"}, ["bnb_4bit_quant_type", "fp4", "nf4"]),
    ("int8", quant_file.quark("uint4", "per_group"), ["uint4", "fp8_e4m3"]),
    ("int8", {**quant_file.quark("int8", "per_channel"), "layer_quant_config": {"*q_proj": {"weight": [{"dtype": "fp8_e4m3"}, {"dtype": "int4"}]}}}, ["layer_quant_config", "fp8_e4m3"]),
    ("int8", {**quant_file.quark("int8", "per_channel"), "algo_config": [{"name": "rotation"}]}, ["algo_config", "rotates"]),
    ("int4", {"format": "marlin-24"}, ["marlin-24"]),
    ("int4", {"config_groups": {"group_0": {"weights": {"num_bits": 9, "type": "int"}}}}, ["9 bits"]),
    ("int4", {"transform_config": {"config_groups": {"R1": {}}}}, ["transform_config"]),
    ("int4", {"sparsity_config": {"format": "sparse-24-bitmask"}}, ["sparse-24-bitmask"]),
    ("gptq", {"bits": 5}, ["bits", "5"]),
    ("gptq", {"checkpoint_format": "marlin"}, ["marlin"]),
    ("gptq", {"group_size": 0}, ["group_size"]),
    ("awq", {"version": "gemv"}, ["gemv"]),
    ("awq", {"bits": 8}, ["bits", "8"]),
    ("auto-round", {"packing_format": "auto_round:mlx"}, ["packing_format", "auto_round:mlx"]),
    ("auto-round", {"packing_format": "auto_round:llm_compressor", "data_type": "mx_int"}, ["data_type", "mx_int"]),
    ("nvfp4", {"quant_algo": "W4A8_AWQ"}, ["W4A8_AWQ"]),
]


def other_names(tmp):
    """Names that other programs give tensors and methods: the values count."""
    out = os.path.join(tmp, "logits")
    cases = (("nvfp4", renamed(r"experts\.(\d+)\.(gate|up|down)_proj", r"experts.\2_proj.\1"), {}),  # modelopt's own modules
             ("quark mxfp4", renamed(r"\.(weight|input)_scale", r".\1_quantizer.scale"), {}),
             ("quark fp8 a row", renamed(r"\.weight_scale", ".weight_quantizer.scale"), {}),
             ("int4", None, {"quant_method": "compressed_tensors"}), ("nvfp4", None, {"quant_method": "modelopt_fp4"}),
             ("fp8 a tensor", None, {"quant_method": "modelopt_fp8", "quant_algo": "FP8", "format": None}))
    for name, change, method in cases:
        model, twin = quant_file.make(os.path.join(tmp, "names"), name, change, method)
        want, got = logits(twin, out, *SCALAR), logits(model, out, *SCALAR)
        check(got[0] and rows_off(got[0], want[0])[-1] <= 2e-5, f"{name}: other names {method}", got[1])
    model, twin = quant_file.make(os.path.join(tmp, "names"), "int8")  # llm-compressor's key before September 2024
    with open(os.path.join(model, "config.json")) as f:
        config = json.load(f)
    config["compression_config"] = config.pop("quantization_config")
    with open(os.path.join(model, "config.json"), "w") as f:
        json.dump(config, f)
    want, got = logits(twin, out, *SCALAR), logits(model, out, *SCALAR)
    check(got[0] and rows_off(got[0], want[0])[-1] <= 2e-5, "compression_config", got[1])
    for method in (None, {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None}):  # hf_quant_config.json says the rest
        model, twin = quant_file.make(os.path.join(tmp, "names"), "w4afp8")
        with open(os.path.join(model, "config.json")) as f:
            config = json.load(f)
        config["quantization_config"] = method
        with open(os.path.join(model, "config.json"), "w") as f:
            json.dump(config, f)
        want, got = logits(twin, out, *SCALAR), logits(model, out, *SCALAR)
        check(got[0] and rows_off(got[0], want[0])[-1] <= 2e-5, f"w4afp8 that config.json does not name: {method}", got[1])
    both = renamed(r"experts\.1\.(gate)_proj\.weight$", r"experts.\1_proj.0.weight")
    model, _ = quant_file.make(os.path.join(tmp, "names"), "nvfp4", both)
    rc, _, err = run("-m", model, "--inspect")
    check(rc == 3 and "experts.0.gate_proj.weight" in err and "under another name" in err, "a name that occurs twice", (rc, err))


def refusals(tmp):
    for name, what, change, words in DAMAGES:
        model, _ = quant_file.make(os.path.join(tmp, "bad"), name, change)
        rc, out, err = run("-m", model, "--inspect")
        check(rc == 3 and not out and all(w in err for w in words), f"{name}, {what}", f"exit {rc}, {err.strip()!r}, wanted 3 and {words}")
    for name, what, change, words in DAMAGES_FOUND_BY_VERIFY:
        model, _ = quant_file.make(os.path.join(tmp, "bad"), name, change)
        rc, _, err = run("-m", model, "--verify")
        check(rc == 3 and all(w in err for w in words), f"{name}, {what}", f"exit {rc}, {err.strip()!r}, wanted 3 and {words}")
    for name, method, words in SCHEMES:
        model, _ = quant_file.make(os.path.join(tmp, "bad"), name, None, method)
        rc, out, err = run("-m", model, "--inspect")
        check(rc == 3 and not out and all(w in err for w in words), f"{name} with {method}", f"exit {rc}, {err.strip()!r}, wanted 3 and {words}")


with tempfile.TemporaryDirectory() as tmp:
    twins(tmp)
    other_names(tmp)
    refusals(tmp)
sys.exit(end())
