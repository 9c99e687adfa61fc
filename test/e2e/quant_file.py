"""Makes small checkpoints in every quantized format of safetensors with the standard library only: random codes, scales and zero points, packed as the tools
do it, and a twin in float32 that holds the values which the formats' descriptions give. The model is a Qwen3-MoE."""
import array
import json
import os
import random
import re
import struct
import sys

import normal

HIDDEN, INTER, EXPERTS, LAYERS, VOCAB, HEADS, KV, DIM = 96, 64, 4, 2, 64, 4, 2, 32
FP4 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)
NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
       0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)
BNB_FP4 = tuple(sign * x / 12 for sign in (1, -1) for x in (0, 0.0625, 8, 12, 4, 6, 2, 3))
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def e4m3(c):
    e, m = c >> 3 & 15, c & 7
    v = m * 2.0 ** -9 if e == 0 else (8 + m) * 2.0 ** (e - 10)
    return -v if c & 128 else v


def bf16(x):
    """The float32 number cut to 16 bits, and its bytes."""
    raw = struct.pack("<f", x)[2:]
    return struct.unpack("<f", b"\0\0" + raw)[0], raw


def f16(x):
    raw = struct.pack("<e", x)
    return struct.unpack("<e", raw)[0], raw


def f32(x):
    raw = struct.pack("<f", x)
    return struct.unpack("<f", raw)[0], raw


NUMBERS = {"BF16": bf16, "F16": f16, "F32": f32}


def words(codes, bits):
    """Packs a list of codes into 32-bit words, low bits first; the last one may be partial."""
    each, out = 32 // bits, []
    for i in range(0, len(codes), each):
        out.append(sum(c << bits * k for k, c in enumerate(codes[i:i + each])))
    return out


def stream(codes, bits):
    """Packs codes one after another into 32-bit words, low bits first: those of three bits run on from word to word."""
    all_bits = sum(c << bits * k for k, c in enumerate(codes))
    return [all_bits >> 32 * i & 0xFFFFFFFF for i in range(-(-len(codes) * bits // 32))]


def raw_words(rows):
    return array.array("I", [w for row in rows for w in row]).tobytes()


def transposed(rows):
    return [list(c) for c in zip(*rows)]


class Scales:
    """Random scales of [rows, groups], whose numbers are exact in `kind`."""

    def __init__(self, rng, rows, groups, kind, size):
        self.kind = kind
        pairs = [[NUMBERS[kind](size * rng.uniform(0.5, 1)) for _ in range(groups)] for _ in range(rows)]
        self.value = [[p[0] for p in row] for row in pairs]
        self.rows = [[p[1] for p in row] for row in pairs]

    def tensor(self, turned=False):
        rows = transposed(self.rows) if turned else self.rows
        return self.kind, [len(rows), len(rows[0])], b"".join(b for row in rows for b in row)


def integers(rng, rows, cols, bits, group, kind, zero=None, order=None):
    """Codes, scales, zero points (None: half of the range) and the values. order: each column's group."""
    groups, half = -(-cols // group), 1 << bits - 1
    codes = [[rng.randrange(2 * half) for _ in range(cols)] for _ in range(rows)]
    scales = Scales(rng, rows, groups, kind, 0.25 / half)
    zeros = [[half if zero is None else rng.randrange(*zero) for _ in range(groups)] for _ in range(rows)]
    place = order or [c // group for c in range(cols)]
    values = [[(codes[r][c] - zeros[r][place[c]]) * scales.value[r][place[c]] for c in range(cols)] for r in range(rows)]
    return codes, scales, zeros, values


# Each returns ({ending: (dtype, shape, bytes)}, values by rows).

def pack_quantized(rng, rows, cols, bits=4, group=32, kind="BF16", zero=None, order=None):
    codes, scales, zeros, values = integers(rng, rows, cols, bits, group, kind, zero, order)
    packed = [words(row, bits) for row in codes]
    out = {"weight_packed": ("I32", [rows, len(packed[0])], raw_words(packed)), "weight_scale": scales.tensor(),
           "weight_shape": ("I64", [2], struct.pack("<qq", rows, cols))}
    if zero:
        lines = transposed([words(col, bits) for col in transposed(zeros)])
        out["weight_zero_point"] = ("I32", [len(lines), len(lines[0])], raw_words(lines))
    if order:
        out["weight_g_idx"] = ("I32", [cols], array.array("i", order).tobytes())
    return out, values


def gptq(rng, rows, cols, bits=4, group=32, kind="F16", zero=None, order=None, add=1):
    order = order or [c // group for c in range(cols)]
    codes, scales, zeros, values = integers(rng, rows, cols, bits, group, kind, zero, order)
    packed = stream if bits == 3 else words
    lines = transposed([packed(row, bits) for row in codes])
    stored = [packed([z - add & (1 << bits) - 1 for z in line], bits) for line in transposed(zeros)]
    return {"qweight": ("I32", [len(lines), rows], raw_words(lines)), "qzeros": ("I32", [len(stored), len(stored[0])], raw_words(stored)),
            "scales": scales.tensor(True), "g_idx": ("I32", [cols], array.array("i", order).tobytes())}, values


def awq(rng, rows, cols, group=32):
    def mixed(line):
        return words([line[i + k] for i in range(0, rows, 8) for k in AWQ_ORDER], 4)

    codes, scales, zeros, values = integers(rng, rows, cols, 4, group, "F16", (0, 16))
    lines, stored = [mixed(line) for line in transposed(codes)], [mixed(line) for line in transposed(zeros)]
    return {"qweight": ("I32", [cols, rows // 8], raw_words(lines)), "qzeros": ("I32", [len(stored), rows // 8], raw_words(stored)),
            "scales": scales.tensor(True)}, values


def w4afp8(rng, rows, cols):
    """Signed codes, two a byte, with a scale for each 32 columns."""
    codes, scales, _, values = integers(rng, rows, cols, 4, 32, "BF16")
    raw = bytes((row[c] ^ 8) | (row[c + 1] ^ 8) << 4 for row in codes for c in range(0, cols, 2))
    return {"weight": ("I8", [rows, cols // 2], raw), "weight_scale_inv": scales.tensor(), "input_scale": ("F32", [1], f32(3)[1])}, values


def int8(rng, rows, cols, per="row", kind="BF16", zero=False):
    lines = rows if per == "row" else 1
    scales = Scales(rng, lines, 1, kind, 0.002)
    shift = [rng.randrange(-20, 20) if zero else 0 for _ in range(lines)]
    codes = [[rng.randrange(-128, 128) for _ in range(cols)] for _ in range(rows)]
    values = [[(c - shift[r % lines]) * scales.value[r % lines][0] for c in codes[r]] for r in range(rows)]
    out = {"weight": ("I8", [rows, cols], array.array("b", [c for row in codes for c in row]).tobytes()), "weight_scale": scales.tensor()}
    if per != "row":
        out["weight_scale"] = (scales.kind, [1], scales.rows[0][0])
    if zero:
        out["weight_zero_point"] = ("I8", [lines, 1], array.array("b", shift).tobytes())
    return out, values


def fp4(rng, rows, cols, block, packed):
    """NVFP4 with blocks of 16, MXFP4 with blocks of 32; packed: as llm-compressor names it, else as modelopt does."""
    codes = [[rng.randrange(16) for _ in range(cols)] for _ in range(rows)]
    groups, gain = cols // block, f32(rng.uniform(0.0005, 0.002))
    scale = [[rng.randrange(0x7f) if block == 16 else rng.randrange(120, 125) for _ in range(groups)] for _ in range(rows)]
    if packed:
        over = f32(1 / gain[0])
        factor = 1 / over[0]
    else:
        factor = gain[0]
    value = (lambda c: e4m3(c) * factor) if block == 16 else (lambda c: 2.0 ** (c - 127))
    values = [[FP4[codes[r][c]] * value(scale[r][c // block]) for c in range(cols)] for r in range(rows)]
    raw = bytes(row[c] | row[c + 1] << 4 for row in codes for c in range(0, cols, 2))
    out = {"weight_packed" if packed else "weight": ("U8", [rows, cols // 2], raw),
           "weight_scale": ("F8_E4M3" if block == 16 else "U8", [rows, groups], bytes(c for row in scale for c in row)),
           "input_global_scale" if packed else "input_scale": ("F32", [1], f32(3)[1])}
    if block == 16:
        out["weight_global_scale" if packed else "weight_scale_2"] = ("F32", [1] if packed else [], over[1] if packed else gain[1])
    return out, values


def nf4(rng, rows, cols, nested=True, kind="nf4"):
    """bitsandbytes: blocks of 64 codes run on from row to row; nested: their scales are codes in blocks of 64, too."""
    levels = NF4 if kind == "nf4" else BNB_FP4
    n = rows * cols
    codes, state = [rng.randrange(16) for _ in range(n)], {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": [rows, cols]}
    out = {"weight": ("U8", [n // 2, 1], bytes(codes[i] << 4 | codes[i + 1] for i in range(0, n, 2))),
           "weight.quant_map": ("F32", [16], struct.pack("<16f", *levels))}
    blocks = n // 64
    if nested:
        steps, stored = [f32(i / 127.5 - 1)[0] for i in range(256)], [rng.randrange(256) for _ in range(blocks)]
        outer, offset = [f32(rng.uniform(0.1, 0.2))[0] for _ in range(-(-blocks // 64))], 0.25
        absmax = [f32(f32(steps[c] * outer[b // 64])[0] + offset)[0] for b, c in enumerate(stored)]
        out.update({"weight.absmax": ("U8", [blocks], bytes(stored)), "weight.nested_quant_map": ("F32", [256], struct.pack("<256f", *steps)),
                    "weight.nested_absmax": ("F32", [len(outer)], struct.pack(f"<{len(outer)}f", *outer))})
        state.update({"nested_blocksize": 64, "nested_dtype": "float32", "nested_offset": offset})
    else:
        absmax = [f32(rng.uniform(0.1, 0.4))[0] for _ in range(blocks)]
        out["weight.absmax"] = "F32", [blocks], struct.pack(f"<{blocks}f", *absmax)
    text = json.dumps(state).encode()
    out["weight.quant_state.bitsandbytes__" + kind] = "U8", [len(text)], text
    values = [levels[c] * absmax[i // 64] for i, c in enumerate(codes)]
    return out, [values[r * cols:(r + 1) * cols] for r in range(rows)]


def bytes_by_row(rng, rows, cols):
    """bitsandbytes' eight bits: 127 stands for the largest magnitude of a row."""
    largest = [f32(rng.uniform(0.1, 0.4)) for _ in range(rows)]
    codes = [[rng.randrange(-127, 128) for _ in range(cols)] for _ in range(rows)]
    values = [[c * f32(largest[r][0] / 127)[0] for c in codes[r]] for r in range(rows)]
    return {"weight": ("I8", [rows, cols], array.array("b", [c for row in codes for c in row]).tobytes()), "weight_format": ("U8", [], b"\0"),
            "SCB": ("F32", [rows], b"".join(x[1] for x in largest))}, values


def fp8(rng, rows, cols, per):
    codes = [[rng.choice((0, 128, 1, 0x7e, rng.randrange(0x50), 128 + rng.randrange(0x50))) for _ in range(cols)] for _ in range(rows)]
    raw, kind = bytes(c for row in codes for c in row), "F32"
    if per == "mx":
        scale = [[rng.randrange(115, 119) for _ in range(cols // 32)] for _ in range(rows)]
        values = [[e4m3(codes[r][c]) * 2.0 ** (scale[r][c // 32] - 127) for c in range(cols)] for r in range(rows)]
        return {"weight": ("F8_E4M3", [rows, cols], raw), "weight_scale": ("U8", [rows, cols // 32], bytes(c for row in scale for c in row))}, values
    br, bc = {"tensor": (rows, cols), "row": (1, cols), "block": (128, 128)}[per]
    scales = Scales(rng, -(-rows // br), -(-cols // bc), kind, 0.02)
    values = [[e4m3(codes[r][c]) * scales.value[r // br][c // bc] for c in range(cols)] for r in range(rows)]
    out = {"weight": ("F8_E4M3", [rows, cols], raw), "weight_scale_inv" if per == "block" else "weight_scale": scales.tensor()}
    if per == "tensor":
        out["weight_scale"] = (kind, [], scales.rows[0][0])
    return out, values


def torchao(rng, rows, cols, of, **args):
    """The same under torchao's names."""
    stored, values = of(rng, rows, cols, **args)
    return {"_weight_" + name.removeprefix("weight_").replace("weight", "qdata"): t for name, t in stored.items()}, values


def fours_in_bytes(rng, rows, cols, group=32):
    """Codes of four bits, a byte each, with zero points: torchao's IntxUnpackedToInt8Tensor."""
    scales, groups = Scales(rng, rows, cols // group, "BF16", 0.02), cols // group
    codes, zeros = [[rng.randrange(-8, 8) for _ in range(cols)] for _ in range(rows)], [[rng.randrange(-8, 8) for _ in range(groups)] for _ in range(rows)]
    values = [[(codes[r][c] - zeros[r][c // group]) * scales.value[r][c // group] for c in range(cols)] for r in range(rows)]
    return {"weight": ("I8", [rows, cols], array.array("b", sum(codes, [])).tobytes()), "weight_scale": scales.tensor(),
            "weight_zero_point": ("I8", [rows, groups], array.array("b", sum(zeros, [])).tobytes())}, values


def mlx(rng, rows, cols, bits, group=32, kind="BF16"):
    """MLX's affine mode: weights are scale * code + bias."""
    codes, scales, _, values = integers(rng, rows, cols, bits, group, kind)
    biases = Scales(rng, rows, cols // group, kind, -0.25)
    values = [[codes[r][c] * scales.value[r][c // group] + biases.value[r][c // group] for c in range(cols)] for r in range(rows)]
    packed = [stream(row, bits) for row in codes]
    return {"weight": ("U32", [rows, len(packed[0])], raw_words(packed)), "scales": scales.tensor(), "biases": biases.tensor()}, values


def mlx_float(rng, rows, cols, mode):
    """Its modes with scales of one byte: mxfp4, nvfp4, mxfp8."""
    if mode == "mxfp8":
        stored, values = fp8(rng, rows, cols, "mx")
        raw, bits, group = stored["weight"][2], 8, 32
    else:
        bits, group = 4, 32 if mode == "mxfp4" else 16
        codes = [[rng.randrange(16) for _ in range(cols)] for _ in range(rows)]
        scale = [[rng.randrange(8, 24) if group == 16 else rng.randrange(120, 125) for _ in range(cols // group)] for _ in range(rows)]
        value = e4m3 if group == 16 else lambda c: 2.0 ** (c - 127)
        values = [[FP4[codes[r][c]] * value(scale[r][c // group]) for c in range(cols)] for r in range(rows)]
        raw = bytes(row[c] | row[c + 1] << 4 for row in codes for c in range(0, cols, 2))
    scales = stored["weight_scale"][2] if mode == "mxfp8" else bytes(c for row in scale for c in row)
    return {"weight": ("U32", [rows, cols * bits // 32], raw), "scales": ("U8", [rows, cols // group], scales)}, values


def stack_experts(tensors):
    """As MLX writes them: the experts of a layer in one tensor."""
    for name in [n for n in tensors if ".experts.0." in n]:
        parts = [tensors.pop(name.replace(".experts.0.", f".experts.{e}.")) for e in range(EXPERTS)]
        tensors[name.replace(".experts.0.", ".switch_mlp.")] = parts[0][0], [EXPERTS, *parts[0][1]], b"".join(t[2] for t in parts)


def compressed(form, bits, kind="int", **weights):
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": bits, "type": kind, **weights}}}}


def gptq_config(**more):
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True, "checkpoint_format": "gptq", **more}


def auto_round(form, **more):
    return {"quant_method": "auto-round", "packing_format": form, "bits": 4, "group_size": 32, "data_type": "int", "sym": True, "autoround_version": "0.5.1",
            "block_name_to_quantize": "model.layers", "extra_config": {"lm_head": {"bits": 16, "data_type": "float"}}, **more}


def mlx_config(bits, mode="affine"):
    return {"group_size": 32, "bits": bits, "mode": mode, "model.layers.0.mlp.gate": {"group_size": 32, "bits": 8}}


def bitsandbytes(**more):
    return {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "bfloat16",
            "bnb_4bit_quant_storage": "uint8", "bnb_4bit_use_double_quant": True, "llm_int8_skip_modules": ["lm_head"], "llm_int8_threshold": 6.0, **more}


def quark(dtype, scheme, **more):
    return {"quant_method": "quark", "algo_config": [{"name": "autosmoothquant"}], "exclude": ["lm_head", "*mlp.gate"], "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"},
            "global_quant_config": {"weight": {"dtype": dtype, "qscheme": scheme, **more}, "input_tensors": {"dtype": dtype, "is_dynamic": True}, "bias": None, "output_tensors": None},
            "layer_quant_config": {}, "layer_type_quant_config": {}, "quant_mode": "eager_mode"}


TORCHAO = {"quant_method": "torchao", "quant_type": {"default": {"_type": "IntxWeightOnlyConfig", "_version": 2, "_data": {"granularity": {"_type": "PerGroup", "_data": {"group_size": 32}}}}},
           "modules_to_not_convert": ["lm_head"], "include_input_output_embeddings": False, "quant_type_kwargs": {}, "autoquant_label": None}
# name: (quantization_config, function, its arguments)
FORMATS = {
    "int4": (compressed("pack-quantized", 4, strategy="group", group_size=32), pack_quantized, {}),
    "int4 f16 by 16": (compressed("pack-quantized", 4, strategy="group", group_size=16), pack_quantized, {"group": 16, "kind": "F16"}),
    "int4 a row": (compressed("pack-quantized", 4, strategy="channel", group_size=None), pack_quantized, {"group": 1 << 20}),
    "int4 with zeros": (compressed("pack-quantized", 4, strategy="group", group_size=32, symmetric=False), pack_quantized, {"zero": (0, 16)}),
    "int4 in activation order": (compressed("pack-quantized", 4, strategy="group", group_size=32, actorder="group"), pack_quantized, {"order": "by input"}),
    "int8 in activation order": (compressed("pack-quantized", 8, strategy="group", group_size=32, actorder="group"), pack_quantized, {"bits": 8, "order": "own"}),
    "int8 packed": (compressed("pack-quantized", 8, strategy="group", group_size=32), pack_quantized, {"bits": 8}),
    "int8 packed with zeros": (compressed("pack-quantized", 8, strategy="group", group_size=32), pack_quantized, {"bits": 8, "zero": (90, 160)}),
    "int8": (compressed("int-quantized", 8, strategy="channel"), int8, {}),
    "int8 a tensor": (compressed("int-quantized", 8, strategy="tensor"), int8, {"per": "tensor", "kind": "F32"}),
    "int8 with zeros": (compressed("int-quantized", 8, strategy="channel", symmetric=False), int8, {"zero": True}),
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, fp4, {"block": 16, "packed": False}),
    "nvfp4 packed": (compressed("nvfp4-pack-quantized", 4, "float", strategy="tensor_group", group_size=16), fp4, {"block": 16, "packed": True}),
    "mxfp4": ({"quant_method": "modelopt", "quant_algo": "MXFP4"}, fp4, {"block": 32, "packed": False}),
    "mxfp4 packed": (compressed("mxfp4-pack-quantized", 4, "float", strategy="group", group_size=32), fp4, {"block": 32, "packed": True}),
    "quark mxfp4": (quark("fp4", "per_group", group_size=32, scale_format="e8m0"), fp4, {"block": 32, "packed": False}),
    "quark fp8 a row": (quark("fp8_e4m3", "per_channel"), fp8, {"per": "row"}),
    "quark fp8 a block": (quark("fp8_e4m3", "per_block", block_size=[128, 128]), fp8, {"per": "block"}),
    "quark int8": (quark("int8", "per_channel", symmetric=True), int8, {}),
    "mxfp8": (compressed("mxfp8-quantized", 8, "float", strategy="group", group_size=32), fp8, {"per": "mx"}),
    "fp8 a tensor": (compressed("float-quantized", 8, "float", strategy="tensor"), fp8, {"per": "tensor"}),
    "fp8 a row": (compressed("float-quantized", 8, "float", strategy="channel"), fp8, {"per": "row"}),
    "fp8 a block": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, fp8, {"per": "block"}),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}, awq, {}),
    "gptq": (gptq_config(), gptq, {}),
    "gptq with zeros": (gptq_config(sym=False), gptq, {"zero": (0, 16)}),
    "gptq v2 bf16 a row": (gptq_config(sym=False, checkpoint_format="gptq_v2", group_size=-1), gptq, {"zero": (3, 12), "add": 0, "group": 1 << 20, "kind": "BF16"}),
    "gptq in activation order": (gptq_config(desc_act=True, sym=False), gptq, {"zero": (1, 16), "order": "by input"}),
    "gptq in orders of their own": (gptq_config(desc_act=True), gptq, {"order": "own"}),
    "gptq in uneven groups": (gptq_config(desc_act=True, sym=False), gptq, {"zero": (1, 16), "order": "uneven"}),
    "gptq 8 in activation order": (gptq_config(bits=8, desc_act=True), gptq, {"bits": 8, "order": "by input"}),
    "gptq 8": (gptq_config(bits=8), gptq, {"bits": 8}),
    "gptq 8 with zeros": (gptq_config(bits=8, sym=False), gptq, {"bits": 8, "zero": (100, 150)}),
    "gptq 3": (gptq_config(bits=3), gptq, {"bits": 3}),
    "gptq 3 with zeros": (gptq_config(bits=3, sym=False, desc_act=True), gptq, {"bits": 3, "zero": (1, 8), "order": "by input"}),
    "int2": (compressed("pack-quantized", 2, strategy="group", group_size=32), pack_quantized, {"bits": 2}),
    "int3 with zeros": (compressed("pack-quantized", 3, strategy="group", group_size=32, symmetric=False), pack_quantized, {"bits": 3, "zero": (0, 8)}),
    "int5": (compressed("pack-quantized", 5, strategy="group", group_size=32), pack_quantized, {"bits": 5}),
    "int6 with zeros": (compressed("pack-quantized", 6, strategy="group", group_size=32, symmetric=False), pack_quantized, {"bits": 6, "zero": (0, 64)}),
    "int7 a row": (compressed("pack-quantized", 7, strategy="channel", group_size=None), pack_quantized, {"bits": 7, "group": 1 << 20}),
    "fbgemm_fp8": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}, fp8, {"per": "row"}),
    "nf4": (bitsandbytes(), nf4, {}),
    "fp4 of bitsandbytes": (bitsandbytes(bnb_4bit_quant_type="fp4"), nf4, {"kind": "fp4"}),
    "fp4 with plain scales": (bitsandbytes(bnb_4bit_quant_type="fp4", bnb_4bit_use_double_quant=False), nf4, {"kind": "fp4", "nested": False}),
    "fp8 of torchao": (TORCHAO, torchao, {"of": fp8, "per": "row"}),
    "int8 of torchao": (TORCHAO, torchao, {"of": int8}),
    "int4 of torchao": (TORCHAO, torchao, {"of": fours_in_bytes}),
    "auto-round mxfp4": (auto_round("auto_round:llm_compressor", data_type="mx_fp", act_bits=4), fp4, {"block": 32, "packed": True}),
    "auto-round nvfp4": (auto_round("auto_round:llm_compressor", data_type="nv_fp", group_size=16, act_bits=4), fp4, {"block": 16, "packed": True}),
    "auto-round fp8": (auto_round("auto_round:fp8_static", data_type="fp", bits=8, group_size=-1, fmt="e4m3", activation_scheme="static"), fp8, {"per": "row"}),
    "int8 of bitsandbytes": (bitsandbytes(load_in_4bit=False, load_in_8bit=True, bnb_4bit_quant_type="fp4"), bytes_by_row, {}),
    "nf4 with plain scales": (bitsandbytes(bnb_4bit_use_double_quant=False), nf4, {"nested": False}),
    "w4afp8": ({"quant_method": "w4afp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128], "group_size": 32}, w4afp8, {}),
    "auto-round": (auto_round("auto_round:auto_gptq"), gptq, {}),
    "auto-round v2": (auto_round("auto_round:gptqmodel", sym=False), gptq, {"zero": (1, 16), "add": 0}),
    "auto-round plain": (auto_round("auto_round"), gptq, {"add": 0}),
    "auto-round plain, minus one": (auto_round("auto_round"), gptq, {"add": 1}),
    "auto-round awq": (auto_round("auto_round:auto_awq", sym=False), awq, {}),
    "mlx 4": (mlx_config(4), mlx, {"bits": 4}),
    "mlx 8": (mlx_config(8), mlx, {"bits": 8, "kind": "F16"}),
    "mlx 2": (mlx_config(2), mlx, {"bits": 2}),
    "mlx 3": (mlx_config(3), mlx, {"bits": 3}),
    "mlx 5": (mlx_config(5), mlx, {"bits": 5}),
    "mlx 6": (mlx_config(6), mlx, {"bits": 6}),
    "mlx mxfp4": (mlx_config(4, "mxfp4"), mlx_float, {"mode": "mxfp4"}),
    "mlx nvfp4": (mlx_config(4, "nvfp4"), mlx_float, {"mode": "nvfp4"}),
    "mlx mxfp8": (mlx_config(8, "mxfp8"), mlx_float, {"mode": "mxfp8"}),
    "gptq 2": (gptq_config(bits=2, sym=False), gptq, {"bits": 2, "zero": (0, 4)}),
}


def write(path, tensors):
    header, data, at = {"__metadata__": {"format": "mlx" if any(t[0] == "U32" for t in tensors.values()) else "pt"}}, [], 0
    for name, (dtype, shape, raw) in sorted(tensors.items(), key=lambda t: -len(t[1][2])):  # scales behind, aligned
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def tensors_of(name, seed=1):
    """(config, tensors of the quantized model, tensors of its float32 twin)"""
    method, quantize, args = FORMATS[name]
    rng, quantized, plain = random.Random(seed), {}, {}
    config = {"model_type": "qwen3_moe", "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "num_key_value_heads": KV, "head_dim": DIM, "intermediate_size": INTER, "moe_intermediate_size": INTER, "num_experts": EXPERTS,
              "num_experts_per_tok": 2, "norm_topk_prob": True, "rope_theta": 1e6, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "hidden_act": "silu",
              "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1}

    def floats(name, shape, spread, middle=0.0):
        n = 1
        for s in shape:
            n *= s
        t = "F32", shape, normal.numbers(rng, n, middle, spread).tobytes()
        quantized[name] = plain[name] = t

    orders = {}

    def order(name, cols):
        """Each column's group: in an order that the matrices of one input share, or that is the matrix's own."""
        place = orders.get(name) or [c // 32 for c in range(cols)]
        if name not in orders:
            rng.shuffle(place)
        if args["order"] == "uneven":
            place[place.index(0)] = 1
        if args["order"] == "by input":
            orders[name] = place
        return place

    def linear(name, rows, cols):
        args_here = {k: min(v, cols) if k == "group" else v for k, v in args.items()}
        if args.get("order"):
            args_here["order"] = order(re.sub("(q|k|v|gate|up)_proj", "in", name), cols)
        stored, values = quantize(rng, rows, cols, **args_here)
        quantized.update({f"{name}.{ending}": t for ending, t in stored.items()})
        plain[name + ".weight"] = "F32", [rows, cols], array.array("f", [v for row in values for v in row]).tobytes()

    is_mlx = name.startswith("mlx")
    if is_mlx:  # quantizes these, too
        linear("model.embed_tokens", VOCAB, HIDDEN)
        linear("lm_head", VOCAB, HIDDEN)
    else:
        floats("model.embed_tokens.weight", [VOCAB, HIDDEN], 1)
        floats("lm_head.weight", [VOCAB, HIDDEN], 0.1)
    floats("model.norm.weight", [HIDDEN], 0.1, 1)
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        floats(p + "input_layernorm.weight", [HIDDEN], 0.1, 1)
        floats(p + "post_attention_layernorm.weight", [HIDDEN], 0.1, 1)
        floats(p + "self_attn.q_norm.weight", [DIM], 0.1, 1)
        floats(p + "self_attn.k_norm.weight", [DIM], 0.1, 1)
        if is_mlx:
            linear(p + "mlp.gate", EXPERTS, HIDDEN)
        else:
            floats(p + "mlp.gate.weight", [EXPERTS, HIDDEN], 0.3)
        for k, rows, cols in (("q", HEADS * DIM, HIDDEN), ("k", KV * DIM, HIDDEN), ("v", KV * DIM, HIDDEN), ("o", HIDDEN, HEADS * DIM)):
            linear(f"{p}self_attn.{k}_proj", rows, cols)
        for e in range(EXPERTS):
            for k, rows, cols in (("gate", INTER, HIDDEN), ("up", INTER, HIDDEN), ("down", HIDDEN, INTER)):
                linear(f"{p}mlp.experts.{e}.{k}_proj", rows, cols)
    if is_mlx:
        stack_experts(quantized)
    return config, method, quantized, plain


def make(directory, name, change=None, method=None):
    """Writes DIR/model and DIR/twin; change(tensors) damages the quantized model, `method` replaces members of quantization_config."""
    config, stated, quantized, plain = tensors_of(name)
    if change:
        change(quantized)
    for kind, tensors in (("model", quantized), ("twin", plain)):
        d = os.path.join(directory, kind)
        os.makedirs(d, exist_ok=True)
        write(os.path.join(d, "model.safetensors"), tensors)
        with open(os.path.join(d, "config.json"), "w") as f:
            json.dump({**config, "quantization_config": {**stated, **(method or {})}} if kind == "model" else config, f)
    return os.path.join(directory, "model"), os.path.join(directory, "twin")


if __name__ == "__main__":  # FORMAT DIR: matrices of more than 64 KiB in 4 bits
    HIDDEN = INTER = 384
    print(make(sys.argv[2], sys.argv[1])[0])
