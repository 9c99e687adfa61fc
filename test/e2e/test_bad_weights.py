#!/usr/bin/env python3
"""Every kind of damaged checkpoint: the binary exits 3 and names the file, the tensor or the number.
test_bad_weights.py HEARTH"""
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import models
import tiny
from checks import HEARTH, check, end, run as run_binary

ONE, TWO, INDEX, CONFIG = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json", "config.json"


def run(directory, *args):
    return run_binary("-m", directory, *args)


def read(d, f):
    with open(os.path.join(d, f), "rb") as h:
        return h.read()


def write(d, f, data):
    with open(os.path.join(d, f), "wb") as h:
        h.write(data if isinstance(data, bytes) else data.encode())


def split(d, f):
    raw = read(d, f)
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + n]), raw[8 + n :]


def header_edit(f, change):
    """A damage: change(header, names by offset) returns None or the text to write instead."""
    def damage(d):
        header, data = split(d, f)
        names = sorted((k for k in header if k != "__metadata__"), key=lambda k: header[k]["data_offsets"])
        new = change(header, names)
        write(d, f, tiny.pack(header if new is None else new, data))
    return damage


def config_edit(**changes):
    def damage(d):
        c = json.loads(read(d, CONFIG))
        for k, v in changes.items():
            if v is DROP:
                c.pop(k)
            else:
                c[k] = v
        write(d, CONFIG, json.dumps(c))
    return damage


def index_edit(change):
    def damage(d):
        i = json.loads(read(d, INDEX))
        change(i["weight_map"])
        write(d, INDEX, json.dumps(i))
    return damage


DROP = object()


def set_key(k, v):
    return lambda h, names: h[names[1]].__setitem__(k, v)


def offsets(f):
    return lambda h, names: h[names[1]].__setitem__("data_offsets", f(*h[names[1]]["data_offsets"]))


def twice(h, names):
    text = json.dumps(h)
    return text[:-1] + "," + json.dumps({names[0]: h[names[0]]})[1:]


def flip(name, value, at=5):
    """Overwrites one byte (or more) of a tensor's data."""
    def damage(d):
        for f in (ONE, TWO):
            header, data = split(d, f)
            if name in header:
                b = header[name]["data_offsets"][0]
                data = bytearray(data)
                data[b + at : b + at + len(value)] = value
                write(d, f, tiny.pack(header, bytes(data)))
                return
        raise SystemExit("no such tensor: " + name)
    return damage


def move_tensor(d):
    m = json.loads(read(d, INDEX))
    name = next(k for k, v in m["weight_map"].items() if v == ONE)
    m["weight_map"][name] = TWO
    write(d, INDEX, json.dumps(m))


def stale_index(d):
    """The index of another version of the model, in nine files."""
    index_edit(lambda m: m.update({k: f.replace("-of-00002", "-of-00009") for k, f in m.items()}))(d)


GATE = "model.layers.1.mlp.experts.2.gate_proj.weight"


def items(d, f):
    header, data = split(d, f)
    header.pop("__metadata__", None)
    return {k: (t["dtype"], t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]]) for k, t in header.items()}


def put(d, f, tensors):
    write(d, f, tiny.shard_bytes(list(tensors.items())))


def overlay(keeps, listed=True):
    """A damage: the weight of GATE is in a third file, too, and wrong in one of both: in the first if the index names the third."""
    def damage(d):
        f = next(f for f in (ONE, TWO) if GATE in split(d, f)[0])
        old, three = items(d, f), "model-overlay.safetensors"
        wrong = (*old[GATE][:2], old[GATE][2][::-1])
        norm = "model.norm.weight"
        put(d, three, {GATE: wrong if keeps else old[GATE], "model.other.weight": items(d, ONE).get(norm) or items(d, TWO)[norm]})
        put(d, f, {**old, GATE: old[GATE] if keeps else wrong})
        index_edit(lambda m: m.update({"model.other.weight": three, **({} if keeps else {GATE: three})}) or (listed or m.pop(GATE)))(d)
    return damage


def superseded(d):
    """A third file, of which the index lists one tensor, has an expert in another format and a part of a third version."""
    three = "model-00003-of-00003.safetensors"
    other = {"model.other.weight": ("F32", [1], bytes(4)), GATE.replace("weight", "qweight"): ("I32", [1, 8], bytes(32)), GATE.replace("weight", "scales"): ("F16", [1, 8], bytes(16))}
    put(d, three, other)
    index_edit(lambda m: m.__setitem__("model.other.weight", three))(d)


def in_folder(d):
    """An index whose paths begin with ./, one of a file in a folder."""
    os.mkdir(os.path.join(d, "more"))
    os.rename(os.path.join(d, TWO), os.path.join(d, "more", TWO))
    index_edit(lambda m: m.update({k: "./" + ("more/" if f == TWO else "") + f for k, f in m.items()}))(d)


def odd_elements(d):
    """Tensors of other parts of the model, of the format's rarer types."""
    sizes = {"U16": 16, "U64": 64, "C64": 64, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}
    put(d, ONE, {**items(d, ONE), **{f"tower.{k}": (k, [2, 4], bytes(n)) for k, n in sizes.items()}})


def one_file(d):
    put(d, "weights.safetensors", {**items(d, ONE), **items(d, TWO)})
    no_list(d, ONE, TWO)
    write(d, "adapter_model.safetensors", b"no weights of the model")


def no_list(d, *more):
    for f in (INDEX, *more):
        os.remove(os.path.join(d, f))


CASES = [
    # (what, damage, words that must appear in the message)
    ("file under 8 bytes", lambda d: write(d, ONE, b"1234567"), [ONE, "7"]),
    ("empty file", lambda d: write(d, TWO, b""), [TWO, "0"]),
    ("header over 100 MB", lambda d: write(d, ONE, struct.pack("<Q", 200 << 20) + read(d, ONE)[8:]), [ONE, str(200 << 20)]),
    ("header past the end", lambda d: write(d, ONE, struct.pack("<Q", 90 << 20) + read(d, ONE)[8:]), [ONE, str(90 << 20)]),
    ("header of 2^64 - 1", lambda d: write(d, ONE, b"\xff" * 8 + read(d, ONE)[8:]), [ONE]),
    ("header not UTF-8", header_edit(ONE, lambda h, n: '{"\udcff": {}}'), [ONE, "UTF-8"]),
    ("header not an object", header_edit(ONE, lambda h, n: "[1]"), [ONE, "object"]),
    ("header not JSON", header_edit(ONE, lambda h, n: "{nonsense"), [ONE]),
    ("header cut", header_edit(ONE, lambda h, n: json.dumps(h)[:-9]), [ONE]),
    ("duplicate key", header_edit(ONE, twice), [ONE, "twice"]),
    ("nested too deeply", header_edit(ONE, lambda h, n: "[" * 5000 + "]" * 5000), [ONE, "deep"]),
    ("offsets no pair", header_edit(ONE, set_key("data_offsets", [1])), [ONE, "data_offsets"]),
    ("offsets negative", header_edit(ONE, offsets(lambda a, b: [-1, b])), [ONE, "data_offsets"]),
    ("offsets no numbers", header_edit(ONE, offsets(lambda a, b: ["a", b])), [ONE, "data_offsets"]),
    ("offsets reversed", header_edit(ONE, offsets(lambda a, b: [b, a])), [ONE, "reversed"]),
    ("offsets out of range", header_edit(ONE, lambda h, n: h[n[-1]].__setitem__("data_offsets", [h[n[-1]]["data_offsets"][0], 1 << 40])), [ONE, str(1 << 40)]),
    ("overlap", header_edit(ONE, offsets(lambda a, b: [a - 8, b - 8])), [ONE, "overlap"]),
    ("hole", header_edit(ONE, lambda h, n: h.pop(n[1]) and None), [ONE, "hole"]),
    ("trailing bytes", lambda d: write(d, ONE, read(d, ONE) + b"tail"), [ONE, "4 bytes"]),
    ("shape overflow", header_edit(ONE, set_key("shape", [1 << 40, 1 << 40])), [ONE, "overflow"]),
    ("shape overflow to exactly 0", header_edit(ONE, set_key("shape", [1 << 32, 1 << 32])), [ONE, "overflow"]),
    ("shape negative", header_edit(ONE, set_key("shape", [-1, 8])), [ONE, "-1"]),
    ("shape missing", header_edit(ONE, lambda h, n: h[n[1]].pop("shape") and None), [ONE, "shape"]),
    ("size != shape x dtype", header_edit(ONE, set_key("shape", [3])), [ONE, "bytes"]),
    ("unknown dtype", header_edit(ONE, set_key("dtype", "F7")), [ONE, "F7"]),
    ("config missing", lambda d: os.remove(os.path.join(d, CONFIG)), [CONFIG]),
    ("config not JSON", lambda d: write(d, CONFIG, "{"), [CONFIG]),
    ("config no object", lambda d: write(d, CONFIG, "[]"), [CONFIG, "object"]),
    ("config unknown family", config_edit(model_type="wonder", architectures=["WonderForCausalLM"]), [CONFIG, "wonder"]),
    ("config without family", config_edit(model_type=DROP, architectures=DROP), [CONFIG, "model_type"]),
    ("config without a count", config_edit(num_hidden_layers=DROP), [CONFIG, "num_hidden_layers"]),
    ("config text for a number", config_edit(hidden_size="big"), [CONFIG, "hidden_size"]),
    ("config over the cap", config_edit(num_hidden_layers=10**9), [CONFIG, str(10**9)]),
    ("config negative", config_edit(n_routed_experts=-4), [CONFIG, "-4"]),
    ("config more layers than weights", config_edit(num_hidden_layers=4), ["model.layers.3"]),
    ("config fewer heads than weights", config_edit(num_attention_heads=1, num_key_value_heads=1), ["q_b_proj", "48"]),
    ("config other hidden size", config_edit(hidden_size=161), ["embed_tokens", "161"]),
    ("config other vocabulary", config_edit(vocab_size=300), ["embed_tokens", "300"]),
    ("config top-k over experts", config_edit(num_experts_per_tok=9), [CONFIG, "9"]),
    ("config groups that do not divide", config_edit(n_group=3), [CONFIG, "3"]),
    ("config unknown activation", config_edit(hidden_act="mish"), [CONFIG, "mish"]),
    ("config unknown rope", config_edit(rope_scaling={"type": "spiral", "factor": 2}), [CONFIG, "spiral"]),
    ("config with 2,000 rope keys", config_edit(rope_scaling={"type": "linear", "factor": 2, **{f"k{i}": None for i in range(2000)}}), [CONFIG, "2002"]),
    ("config unknown rope key", config_edit(rope_scaling={"type": "yarn", "factor": 2, "twist": 3}), [CONFIG, "twist"]),
    ("config unknown router", config_edit(topk_method="dice"), [CONFIG, "dice"]),
    ("config unknown key", config_edit(attn_logit_softcapping=30.0), [CONFIG, "attn_logit_softcapping"]),
    ("config unknown quantisation", config_edit(quantization_config={"quant_method": "eetq"}), [CONFIG, "eetq"]),
    ("config bad block", config_edit(quantization_config={"quant_method": "fp8", "weight_block_size": [0, 128]}), [CONFIG, "weight_block_size"]),
    ("config eos out of range", config_edit(eos_token_id=5000), [CONFIG, "5000"]),
    ("a tensor in two files, of which the index names neither", overlay(True, listed=False), [INDEX, GATE, "names neither"]),
    ("a weight of a type that hearth lacks", header_edit(ONE, lambda h, n: h["model.layers.0.self_attn.o_proj.weight"].update(dtype="F8_E4M3FNUZ")), [ONE, "o_proj", "unknown [160, 32]", "hearth supports"]),
    ("odd rows of 4-bit codes", header_edit(ONE, set_key("dtype", "F4")), [ONE, "bytes"]),
    ("one of two files, and no list", lambda d: no_list(d, TWO), [ONE, "missing"]),
    ("two files of other names, and no list", lambda d: (put(d, "a.safetensors", items(d, ONE)), put(d, "b.safetensors", items(d, TWO)), no_list(d, ONE, TWO)), [".safetensors and more files", INDEX]),
    ("PyTorch's own files", lambda d: (no_list(d, ONE, TWO), write(d, "pytorch_model.bin", b"PK")), ["PyTorch", "save_pretrained"]),
    ("shard missing", lambda d: os.remove(os.path.join(d, TWO)), [TWO, "missing"]),
    ("no weights at all", lambda d: [os.remove(os.path.join(d, f)) for f in (ONE, TWO, INDEX)], ["model.safetensors"]),
    ("index not JSON", lambda d: write(d, INDEX, "{]"), [INDEX]),
    ("index without map", lambda d: write(d, INDEX, "{}"), [INDEX, "weight_map"]),
    ("index with absolute path", index_edit(lambda m: m.__setitem__(next(iter(m)), "/etc/passwd")), [INDEX, "/etc/passwd"]),
    ("index with ..", index_edit(lambda m: m.__setitem__(next(iter(m)), "../x.safetensors")), [INDEX, ".."]),
    ("index with .. within a path", index_edit(lambda m: m.__setitem__(next(iter(m)), "a/../../x.safetensors")), [INDEX, "leads out"]),
    ("index with a hidden file", index_edit(lambda m: m.__setitem__(next(iter(m)), "./.x.safetensors")), [INDEX, "leads out"]),
    ("index names one file that is there", index_edit(lambda m: m.update({k: "other.safetensors" for k, f in m.items() if f == ONE})), ["other.safetensors", "missing"]),
    ("index names other files, one of two is there", lambda d: (os.remove(os.path.join(d, TWO)), stale_index(d)), [INDEX, "none of the files"]),
    ("LFS pointer", lambda d: write(d, ONE, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"), [ONE, "LFS"]),
    ("HTML page", lambda d: write(d, ONE, "<!DOCTYPE html>\n<html><body>Sign in</body></html>"), [ONE, "web page"]),
    ("truncated file", lambda d: write(d, TWO, read(d, TWO)[:-1000]), [TWO, "truncated"]),
    ("truncated in the header", lambda d: write(d, TWO, read(d, TWO)[:100]), [TWO, "incomplete"]),
]
VERIFY = [
    ("NaN code in FP8", flip(GATE, b"\x7f", at=163), [GATE, "row 1", "column 3"]),
    ("negative NaN code in FP8", flip(GATE, b"\xff", at=0), [GATE, "row 0", "column 0"]),
    ("NaN scale", flip(GATE + "_scale_inv", struct.pack("<f", float("nan")), at=0), [GATE + "_scale_inv"]),
    ("infinite norm", flip("model.norm.weight", b"\x80\x7f", at=4), ["model.norm.weight", "column 2"]),
]


def gone(name):
    """A damage: a tensor missing from shards and index, which are otherwise intact."""
    def damage(d):
        for f in (ONE, TWO):
            header, data = split(d, f)
            if name in header:
                a, b = header.pop(name)["data_offsets"]
                for t in header.values():
                    t["data_offsets"] = [x - (b - a) if x >= b else x for x in t["data_offsets"]]
                write(d, f, tiny.pack(header, data[:a] + data[b:]))
        index_edit(lambda m: m.pop(name))(d)
    return damage


def empty_scale(d):
    name = GATE + "_scale_inv"
    for f in (ONE, TWO):
        header, data = split(d, f)
        if name in header:
            a, b = header[name]["data_offsets"]
            for t in header.values():
                t["data_offsets"] = [x - (b - a) if x >= b else x for x in t["data_offsets"]]
            header[name].update(shape=[1, 1, 0], data_offsets=[a, a])
            write(d, f, tiny.pack(header, data[:a] + data[b:]))


def scale_shape(d):
    for f in (ONE, TWO):
        header, data = split(d, f)
        if GATE + "_scale_inv" in header:
            header[GATE + "_scale_inv"]["shape"] = [2, 1]
            write(d, f, tiny.pack(header, data))


def extra_tensor(d):
    header, data = split(d, ONE)
    header["model.layers.1.self_attn.q_b_proj.bias"] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
    write(d, ONE, tiny.pack(header, data + b"\0\0\0\0"))
    index_edit(lambda m: m.__setitem__("model.layers.1.self_attn.q_b_proj.bias", ONE))(d)


CASES += [
    ("tensor missing", gone(GATE), [GATE]),
    ("norm missing", gone("model.layers.0.self_attn.q_a_layernorm.weight"), ["q_a_layernorm", "layers.0"]),
    ("scale missing", gone(GATE + "_scale_inv"), [GATE, "scale"]),
    ("scale of a wrong shape", scale_shape, [GATE + "_scale_inv", "[1, 2]"]),
    ("scale without numbers", empty_scale, [GATE + "_scale_inv", "[1, 1, 0]"]),
    ("a tensor nobody knows", extra_tensor, ["q_b_proj.bias"]),
]


ALONE = "model.safetensors"
UP = "model.layers.1.mlp.experts.gate_up_proj"
QKV = "model.layers.0.self_attn.qkv_proj"


def change(name, edit):
    """A damage of a checkpoint of models.py: edit(dtype, shape, bytes) of a tensor returns the new ones; None removes it."""
    def damage(d):
        header, data = split(d, ALONE)
        header.pop("__metadata__", None)
        items = {k: (t["dtype"], t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]]) for k, t in header.items()}
        new = edit(*items[name])
        if new:
            items[name] = new
        else:
            del items[name]
        write(d, ALONE, tiny.shard_bytes(list(items.items())))
    return damage


def byte(name, at, value):
    return change(name, lambda dtype, shape, raw: (dtype, shape, raw[:at] + bytes([value]) + raw[at + 1:]))


def inside(key, **changes):
    """An object in the config, changed."""
    def damage(d):
        c = json.loads(read(d, CONFIG))
        c[key].update(changes)
        write(d, CONFIG, json.dumps(c))
    return damage


def unquantised(dtype, shape, raw):  # as some publish it: transposed blocks
    return "BF16", [shape[0], shape[2] * 32, shape[1]], b"\0\0" * (len(raw) * 2)


W1, TABLE, APE = "layers.1.ffn.experts.2.w1", "layers.0.ffn.gate.tid2eid", "layers.1.attn.compressor.ape"
EXPERT = "model.layers.1.mlp.experts.%d.up_proj.weight"
# Formats and options of single families: (model, what, damage, words)
FAMILIES = [
    ("gqa_pieces", "pieces without scales", change(QKV + ".weight_scale_inv", lambda *t: None), [QKV + ".weight_scale_inv", "missing"]),
    ("gqa_pieces", "pieces without weights", change(QKV + ".weight", lambda *t: None), [QKV + ".weight", "missing"]),
    ("gqa_pieces", "scales of one piece", change(QKV + ".weight_scale_inv", lambda t, s, raw: (t, [s[0] // 2, s[1]], raw[:len(raw) // 2])), [QKV + ".weight_scale_inv", "[4, 2]"]),
    ("gqa_pieces", "scales of another type", change(QKV + ".weight_scale_inv", lambda t, s, raw: ("I32", s, raw)), [QKV + ".weight_scale_inv", "[4, 2]"]),
    ("gqa_pieces", "pieces of integers", change(QKV + ".weight", lambda t, s, raw: ("I8", s, raw)), [QKV + ".weight", "F8_E4M3"]),
    ("gqa_pieces", "a row too few", change(QKV + ".weight", lambda t, s, raw: (t, [s[0] - 1, s[1]], raw[s[1]:])), [QKV + ".weight", "280, 152"]),
    ("gqa_sinks", "MXFP4 without scales", change(UP + "_scales", lambda *t: None), [UP + "_scales", "missing"]),
    ("gqa_sinks", "MXFP4 without blocks", change(UP + "_blocks", lambda *t: None), [UP, "missing"]),
    ("gqa_sinks", "MXFP4 in blocks of 64", change(UP + "_blocks", lambda t, s, raw: (t, [s[0], s[1], s[2], 8, 2], raw)), [UP + "_blocks"]),
    ("gqa_sinks", "MXFP4 blocks that are cut otherwise", change(UP + "_blocks", lambda t, s, raw: (t, [s[0], s[1], s[2] * 2, 8], raw)), [UP + "_blocks", "MXFP4"]),
    ("gqa_sinks", "MXFP4 of fewer experts", change(UP + "_blocks", lambda t, s, raw: (t, [s[0] - 1, *s[1:]], raw[:len(raw) // s[0] * (s[0] - 1)])), [UP + "_blocks", "7"]),
    ("gqa_sinks", "MXFP4 scales of another shape", change(UP + "_scales", lambda t, s, raw: (t, [s[0], s[2], s[1]], raw)), [UP + "_scales", "192, 5"]),
    ("gqa_sinks", "MXFP4 scales of another type", change(UP + "_scales", lambda t, s, raw: ("I8", s, raw)), [UP + "_scales", "U8"]),
    ("gqa_sinks", "experts the other way round", change(UP + "_blocks", unquantised), [UP]),
    ("gqa_sinks", "an expert's bias missing", change(UP + "_bias", lambda *t: None), [UP + "_bias", "missing"]),
    ("gqa_sinks", "biases of another shape", change(UP + "_bias", lambda t, s, raw: (t, [s[0] * s[1]], raw)), [UP + "_bias", "7, 192"]),
    ("gqa_sinks", "sinks missing", change("model.layers.2.self_attn.sinks", lambda *t: None), ["model.layers.2.self_attn.sinks"]),
    ("gqa_sinks", "two numbers of experts", config_edit(experts_per_token=2), ["experts_per_token"]),
    ("gqa_sinks", "a layer of an unknown kind", config_edit(layer_types=["full_attention", "chunked_attention", "full_attention"]), ["layer_types", "1"]),
    ("gqa_half", "scales of too few rows", change("model.layers.1.self_attn.o_proj.weight_scale", lambda t, s, raw: (t, [s[0] - 1, 1], raw[2:])), ["o_proj.weight_scale", "152"]),
    ("gqa_half", "weights in another format of compressed-tensors", inside("quantization_config", format="marlin-24"), ["marlin-24"]),
    ("gqa_flat", "linear attention", config_edit(attn_type_list=[1, 0, 1]), ["attn_type_list", "1"]),
    ("gqa_flat", "a shared expert", config_edit(shared_intermediate_size=64), ["shared_intermediate_size"]),
    ("gqa_flat", "another scale of the residual", config_edit(layernorm_mlp_beta=0.5), ["layernorm_mlp_beta"]),
    ("gqa_flat", "a norm of one head alone", change("model.layers.0.self_attn.q_norm.weight", lambda t, s, raw: (t, [28], raw[:56])), ["q_norm", "168"]),
    ("gqa_images", "a router the other way round", change("model.layers.1.mlp.gate.weight", lambda t, s, raw: (t, s[::-1], raw)), ["mlp.gate.weight", "[152, 9]"]),
    ("gqa_images", "a router in 8 bits", change("model.layers.1.mlp.gate.weight", lambda t, s, raw: ("I8", s, raw[:s[0] * s[1]])), ["mlp.gate.weight", "scale"]),
    ("gqa_images", "biases of text alone", change("model.layers.3.mlp.moe_statics.e_score_correction_bias", lambda t, s, raw: (t, [1, s[1]], raw[:len(raw) // 2])),
     ["e_score_correction_bias", "[2, 9]"]),
    ("gqa_images", "a router missing", change("model.layers.1.mlp.gate.weight", lambda *t: None), ["mlp.gate.weight", "missing"]),
    ("gqa_images", "another number of experts", inside("text_config", moe_num_experts=4), ["mlp.gate.weight", "[152, 4]"]),
    ("gqa_images", "an expert for neither text nor images", header_edit(ALONE, lambda h, names: h.update({EXPERT % 18: h.pop(EXPERT % 17)})), [EXPERT % 18, "unknown tensor"]),
    ("gqa_mixer", "three experts a token", config_edit(num_experts_per_tok=3), ["num_experts_per_tok"]),
    ("gqa_mixer", "too few factors", inside("rope_scaling", long_factor=[1.0] * 18), ["long_factor", "19"]),
    ("gqa_mixer", "a factor of nothing", inside("rope_scaling", short_factor=[0] * 19), ["short_factor"]),
    ("gqa_mixer", "the head's bias missing", change("lm_head.bias", lambda *t: None), ["lm_head.bias"]),
    ("gqa_fused", "an option of attention", inside("attn_config", alibi=True), ["attn_config.alibi"]),
    ("gqa_fused", "another activation", inside("ffn_config", ffn_act_fn={"name": "gelu"}), ["gelu"]),
    ("gqa_fused", "another norm of the chosen", inside("ffn_config", moe_normalize_expert_weights=2), ["moe_normalize_expert_weights"]),
    ("gqa_fused", "no size", config_edit(d_model=DROP), ["d_model"]),
    ("gqa_fused", "q, k and v of another size", change("transformer.blocks.0.norm_attn_norm.attn.Wqkv.weight", lambda t, s, raw: (t, [s[0] - 1, s[1]], raw[:-2 * s[1]])), ["Wqkv", "304, 152"]),
    ("gqa_fused", "experts of another size", change("transformer.blocks.1.ffn.experts.mlp.w2", lambda t, s, raw: (t, [s[1], s[0]], raw)), ["mlp.w2", "7, 72, 152"]),
    ("streams", "FP4 without scales", change(W1 + ".scale", lambda *t: None), [W1, "asks for [96, 160]"]),
    ("streams", "FP4 of another shape", change(W1 + ".weight", lambda t, s, raw: (t, [s[1], s[0]], raw)), [W1 + ".weight", "96, 80"]),
    ("streams", "FP4 scales of blocks of 64", change(W1 + ".scale", lambda t, s, raw: (t, [s[0] // 2, s[1]], raw[:len(raw) // 2])), [W1 + ".scale", "96, 5"]),
    ("streams", "FP4 scales of another type", change(W1 + ".scale", lambda t, s, raw: ("I8", s, raw)), [W1 + ".scale", "F8_E8M0"]),
    ("streams", "a table of floats", change(TABLE, lambda t, s, raw: ("F32", s, raw)), [TABLE, "I64 or I32"]),
    ("streams", "a table of another shape", change(TABLE, lambda t, s, raw: (t, [s[1], s[0]], raw)), [TABLE, "120, 3"]),
    ("streams", "a token whose expert is none", byte(TABLE, 12 * 7, 7), [TABLE, "token 7", "7 of 7"]),
    ("streams", "an expert below the first", change(TABLE, lambda t, s, raw: (t, s, raw[:-4] + b"\xff" * 4)), [TABLE, "token 119", "-1"]),
    ("streams", "no table", change(TABLE, lambda *t: None), [TABLE, "missing"]),
    ("streams", "a compressor's places of another shape", change(APE, lambda t, s, raw: (t, [s[1], s[0]], raw)), [APE, "3, 80"]),
    ("streams", "one residual stream fewer than the weights have", config_edit(hc_mult=2), ["hc_head_fn", "2, 320"]),
    ("streams", "more residual streams than hearth takes", config_edit(hc_mult=17), ["hc_mult"]),
    ("streams", "a layer of an unknown kind", config_edit(layer_types=["full_attention"] * 5), ["layer_types", "layer 0"]),
    ("streams", "groups that heads do not divide into", config_edit(o_groups=4), ["6 attention heads", "4 groups"]),
]


def families(tmp):
    for model, what, damage, words in FAMILIES:
        d = os.path.join(tmp, "family")
        shutil.rmtree(d, ignore_errors=True)
        models.make(d, model)
        damage(d)
        rc, out, err = run(d, "--inspect")
        check(rc == 3 and out == b"" and all(w in err for w in words), f"{model}, {what}", f"exit {rc}, {err.strip()!r}, wanted 3 and {words}")
    for model in ("gqa_pieces", "gqa_sinks", "gqa_half", "gqa_flat", "gqa_mixer", "gqa_fused", "streams"):
        d = os.path.join(tmp, model)
        models.make(d, model)
        rc, out, err = run(d, "--verify")
        check(rc == 0, f"{model} verifies", err)
    d = os.path.join(tmp, "mamba_beside")  # its layers are two of hearth's
    models.make(d, "mamba_beside")
    rc, out, err = run(d, "--inspect", "--json", "--gpus", "emu:1")
    info, n = json.loads(out) if rc == 0 else {}, json.loads(read(d, CONFIG))["num_hidden_layers"]
    where = {r["layers"][1] for r in info["runs"]["where"] if "layers" in r} if info else None
    check((info.get("layers"), info.get("dense", {}).get("layers"), where) == (n, n, {n - 1}), "published layers are counted", (where, out, err))
    d = os.path.join(tmp, "gqa_sinks")
    byte(UP + "_scales", 192 * 5 + 7, 255)(d)  # of the second expert
    rc, out, err = run(d, "--verify")
    check(rc == 3 and UP + "_scales" in err and "column 2" in err, "an exponent of MXFP4 that is NaN", f"exit {rc} {err!r}")
    for e in range(7):
        byte(UP + "_scales", e * 192 * 5, 255)(d)
    rc, out, err = run(d, "--tokens", "5,6,7", "-n", "2", "--ids")
    check(rc == 3 and "feed-forward of layer 1" in err, "it is met in a forward pass, which names the layer", f"exit {rc} {err!r}")
    d = os.path.join(tmp, "streams")
    for e in range(7):
        byte(f"layers.2.ffn.experts.{e}.w1.scale", 0, 255)(d)
    rc, out, err = run(d, "--verify")
    check(rc == 3 and "layers.2.ffn.experts" in err and "w1.scale" in err, "an exponent of FP4 that is NaN", f"exit {rc} {err!r}")
    rc, out, err = run(d, "--tokens", "5,6,7", "-n", "2", "--ids")
    check(rc == 3 and "feed-forward of layer 2" in err or "attention of layer 3" in err, "it is met in a forward pass, which names the layer", f"exit {rc} {err!r}")
    d = os.path.join(tmp, "gqa_half")
    byte("model.layers.1.self_attn.o_proj.weight", 152 * 2, 0x7f)(d)
    rc, out, err = run(d, "--tokens", "5,6,7", "-n", "2", "--ids")
    check(rc == 3 and "o_proj" in err and "row 2" in err, "a NaN in FP8 with a scale a row", f"exit {rc} {err!r}")


def shrinks(tmp):
    """A file that shrinks while several threads read it: each time the message has its full name, sanitised for a terminal."""
    d = os.path.join(tmp, "sh\x1b[31mrunk")
    wanted = os.path.join(tmp, "sh\u241b[31mrunk", TWO) + ": the file was truncated"
    met = 0
    for i in range(12):
        shutil.rmtree(d, ignore_errors=True)
        tiny.make(d)
        master, slave = pty.openpty()
        p = subprocess.Popen([HEARTH, "-m", d, "--bench", "-v", "-t", "8"], stdout=subprocess.PIPE, stderr=slave, env={**os.environ, "HEARTH_LIMITS": "read=67108864"})
        p.stdout.readline()
        os.truncate(os.path.join(d, TWO), 4096)
        p.stdout.read()
        os.close(slave)
        err = b""
        try:
            while chunk := os.read(master, 65536):
                err += chunk
        except OSError:
            pass
        os.close(master)
        p.stdout.close()
        p.wait()
        if p.returncode == 0:  # finished before the file shrank
            continue
        met += 1
        text = err.decode("utf-8", "replace")
        check(p.returncode == 3 and wanted in text and text.count("hearth:") == 1, "a file that shrinks", f"exit {p.returncode} {err!r}")
    check(met, "a file that shrinks is met")


def main():
    with tempfile.TemporaryDirectory() as tmp:
        good = os.path.join(tmp, "good")
        tiny.make(good)
        rc, out, err = run(good, "--inspect", "--json")
        check(rc == 0 and json.loads(out)["skipped"]["prediction_layers"] > 0, "the undamaged checkpoint opens", err)
        rc, out, err = run(good, "--verify")
        check(rc == 0, "the undamaged checkpoint verifies", err)
        rc, out, err = run(good, "--tokens", "5,6,7", "-n", "4", "--temp", "0", "--ids")
        check(rc == 0 and len(json.loads(out)) == 4, "the undamaged checkpoint answers", err)
        # An unaligned start of the data is valid: the logits do not depend on the header's length.
        plain, odd = os.path.join(tmp, "plain"), os.path.join(tmp, "odd")
        run(good, "--tokens", "5,6,7", "--logits-out", plain)
        for f in (ONE, TWO):
            header, data = split(good, f)
            write(good, f, tiny.pack(header, data, " " * (4 - (len(json.dumps(header)) + 3) % 4)))
        rc, out, err = run(good, "--tokens", "5,6,7", "--logits-out", odd)
        check(rc == 0 and open(plain, "rb").read() == open(odd, "rb").read(), "an unaligned start gives the same logits", err)
        for what, edit in (("names another file for a tensor", move_tensor), ("names a tensor that is not there", index_edit(lambda m: m.__setitem__("ghost.weight", ONE))), ("names other files", stale_index),
                           ("names the first of two files for a tensor", overlay(True)), ("names the second of two files for a tensor", overlay(False)),
                           ("lists no tensor of an expert in another format", superseded)):
            stale = os.path.join(tmp, "stale")
            shutil.copytree(good, stale)
            edit(stale)
            rc, out, err = run(stale, "--tokens", "5,6,7", "--logits-out", odd)
            check(rc == 0 and open(plain, "rb").read() == open(odd, "rb").read(), f"an index that {what} changes nothing", err)
            shutil.rmtree(stale)
        for what, edit in (("shards without a list of them", no_list), ("one file of any name", one_file), ("paths with folders in the list", in_folder), ("other parts of rare types", odd_elements)):
            other = os.path.join(tmp, "other")
            shutil.copytree(good, other)
            edit(other)
            rc, out, err = run(other, "--tokens", "5,6,7", "--logits-out", odd)
            check(rc == 0 and open(plain, "rb").read() == open(odd, "rb").read(), f"{what}: the same logits", err)
            shutil.rmtree(other)
        config_edit(tie_word_embeddings=True)(good)
        rc, out, err = run(good, "--tokens", "5,6,7", "--logits-out", odd)
        check(rc == 0 and open(plain, "rb").read() == open(odd, "rb").read(), "a head of its own is taken whatever the config says of tying", err)
        config_edit(tie_word_embeddings=False, model_type="wonder")(good)
        text = open(os.path.join(good, CONFIG)).read()
        write(good, CONFIG, '{"vocab_size": 2, ' + text[1:])
        rc, out, err = run(good, "--tokens", "5,6,7", "--logits-out", odd)
        same = rc == 0 and open(plain, "rb").read() == open(odd, "rb").read()
        check(same, "the last of two values and the family of the class count, as in transformers", err)
        for cases, args in ((CASES, ["--inspect"]), (CASES[:4], ["--tokens", "5", "-n", "1", "--ids"]), (VERIFY, ["--verify"])):
            for what, damage, words in cases:
                d = os.path.join(tmp, "bad")
                shutil.rmtree(d, ignore_errors=True)
                tiny.make(d)
                damage(d)
                rc, out, err = run(d, *args)
                check(rc == 3 and out == b"" and all(w in err for w in words), what, f"exit {rc}, {err.strip()!r}, wanted 3 and {words}")
        # NaN weights that were not verified are found when first used; in other formats the error names the layer.
        d = os.path.join(tmp, "nan")
        for code in (b"\x7f", b"\xff"):  # both signs
            for name, n in (("self_attn.o_proj", 1), ("mlp.experts.{}.up_proj", 4)):
                tiny.make(d)
                for i in range(n):
                    flip(f"model.layers.1.{name.format(i)}.weight", code, at=0)(d)
                rc, out, err = run(d, "--tokens", "5,6,7", "-n", "2", "--ids")
                check(rc == 3 and name.split(".")[-1] in err and "row 0, column 0" in err, f"a NaN {code} in FP8 is found before it is used", f"exit {rc} {err!r}")
        tiny.make(d)
        flip("model.layers.1.mlp.experts.0.up_proj.weight", b"\x7f", at=0)(d)  # the prompt does not choose this expert
        sent = "--tokens", "5", "--ids", "--prefill", "cpu", "--gpus", "emu:1", "--expert-cache", "sent:1"
        rc, out, err = run(d, *sent, "-n", "1")
        check(rc == 0, "an expert with NaN that no token chooses", f"exit {rc} {err!r}")
        rc, out, err = run(d, *sent, "-n", "8")
        check(rc == 3 and "experts.0.up_proj" in err and "row 0, column 0" in err, "a NaN is found before its expert is sent", f"exit {rc} {err!r}")
        tiny.make(d)
        flip("model.layers.1.mlp.gate.weight", b"\xc0\x7f", at=0)(d)
        rc, out, err = run(d, "--tokens", "5,6,7", "-n", "2", "--ids")
        check(rc == 0 or (rc == 3 and "layer 1" in err), "a NaN router does not crash", f"exit {rc} {err!r}")
        tiny.make(d)
        flip("model.layers.0.post_attention_layernorm.weight", b"\xc0\x7f", at=0)(d)
        rc, out, err = run(d, "--tokens", "5,6,7", "-n", "2", "--ids")
        check(rc == 3 and "feed-forward of layer 0" in err, "NaN in a forward pass names the layer", f"exit {rc} {err!r}")
        rc, out, err = run(d, "--tokens", "5,6,7", "-n", "2", "--ids", "--prefill", "slp", "--gpus", "emu:1")
        check(rc == 3 and "feed-forward of layer 0" in err, "NaN in a device's forward pass names the layer", f"exit {rc} {err!r}")
        families(tmp)
        shrinks(tmp)
    return end()


sys.exit(main())
