"""Writes GGUF files with the standard library only: the container, and the tensor formats (random blocks and their values, from the
formats' descriptions)."""
import array
import functools
import os
import random
import re
import struct

import normal

U32, I32, F32, BOOL, STR, ARR, U64 = 4, 5, 6, 7, 8, 9, 10
TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "IQ2_XXS": 16, "IQ2_XS": 17, "IQ3_XXS": 18, "IQ1_S": 19,
         "IQ3_S": 21, "IQ2_S": 22, "IQ1_M": 29, "TQ1_0": 34, "TQ2_0": 35, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30, "MXFP4": 39, "Q1_0": 41, "Q2_0": 42, "NVFP4": 40, "IQ4_KS": 144, "IQ5_KS": 152, "IQ2_KL": 157}
ALIGN = 32


# --- The container -----------------------------------------------------------------------------------------------------

def string(s):
    s = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(s)) + s


def value(v):
    """Returns (type, bytes); a type can be given as (type, value), or (U64, list)."""
    if isinstance(v, tuple):
        t, v = v
        if isinstance(v, list):
            return ARR, struct.pack("<IQ", t, len(v)) + array.array("Q", v).tobytes()
        return t, struct.pack({U32: "<I", I32: "<i", F32: "<f", U64: "<Q"}[t], v)
    if isinstance(v, bool):
        return BOOL, struct.pack("<B", v)
    if isinstance(v, int):
        return U32, struct.pack("<I", v)
    if isinstance(v, float):
        return F32, struct.pack("<f", v)
    if isinstance(v, (str, bytes)):
        return STR, string(v)
    if isinstance(v[0], int) and not isinstance(v[0], bool):  # token types and the like
        return ARR, struct.pack("<IQ", I32, len(v)) + array.array("i", v).tobytes()
    items = [value(x) for x in v]
    return ARR, struct.pack("<IQ", items[0][0], len(items)) + b"".join(b for _, b in items)


def pack(meta, tensors, version=3, head=None):
    """meta: dict; tensors: [(name, type, shape with rows first, bytes)]. head: overrides the header's numbers, to damage it."""
    out = struct.pack("<4sIQQ", b"GGUF", version, *(head or (len(tensors), len(meta))))
    for k, v in meta.items():
        t, raw = value(v)
        out += string(k) + struct.pack("<I", t) + raw
    at, data = 0, []
    for name, t, shape, raw in tensors:
        out += string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        out += struct.pack("<IQ", TYPES.get(t, t), at)
        data.append(raw + b"\0" * (-len(raw) % ALIGN))
        at += len(data[-1])
    return out + b"\0" * (-len(out) % ALIGN) + b"".join(data)


def write(path, meta, tensors, splits=1):
    """Writes one file, or split ones; returns the first."""
    if splits == 1:
        with open(path, "wb") as f:
            f.write(pack(meta, tensors))
        return path
    per, first = -(-len(tensors) // splits), None
    for i in range(splits):
        own = {"split.no": i, "split.count": splits, "split.tensors.count": (I32, len(tensors))}
        name = path.replace(".gguf", f"-{i + 1:05d}-of-{splits:05d}.gguf")
        first = first or name
        with open(name, "wb") as f:
            f.write(pack({**(meta if i == 0 else {}), **own}, tensors[i * per : (i + 1) * per]))
    return first


# --- The formats -------------------------------------------------------------------------------------------------------

def half(b, at):
    return struct.unpack_from("<e", b, at)[0]


def k_scales(s):
    """The eight scales and minima of a Q4_K or Q5_K block, six bits each in twelve bytes."""
    return [(s[j] & 63, s[j + 4] & 63) if j < 4 else (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4) for j in range(8)]


def de_q4_0(b):
    d = half(b, 0)
    return [d * ((b[2 + i % 16] >> (4 * (i // 16)) & 15) - 8) for i in range(32)]


def de_q4_1(b):
    d, m = half(b, 0), half(b, 2)
    return [d * (b[4 + i % 16] >> (4 * (i // 16)) & 15) + m for i in range(32)]


def fifth(b, at, i):
    return (b[at + i // 8] >> (i % 8) & 1) << 4


def de_q5_0(b):
    d = half(b, 0)
    return [d * ((b[6 + i % 16] >> (4 * (i // 16)) & 15 | fifth(b, 2, i)) - 16) for i in range(32)]


def de_q5_1(b):
    d, m = half(b, 0), half(b, 2)
    return [d * (b[8 + i % 16] >> (4 * (i // 16)) & 15 | fifth(b, 4, i)) + m for i in range(32)]


def two_bits(b, at, i):
    return b[at + i // 128 * 32 + i % 32] >> (2 * (i % 128 // 32)) & 3


def de_q2_k(b):
    d, m = half(b, 80), half(b, 82)
    return [d * (b[i // 16] & 15) * two_bits(b, 16, i) - m * (b[i // 16] >> 4) for i in range(256)]


def de_q3_k(b):
    d, s = half(b, 108), b[96:108]
    scales = [(s[k % 8] >> (4 * (k // 8)) & 15 | (s[8 + k % 4] >> (2 * (k // 4)) & 3) << 4) - 32 for k in range(16)]
    return [d * scales[i // 16] * (two_bits(b, 32, i) - (0 if b[i % 32] >> (i // 32) & 1 else 4)) for i in range(256)]


def grid(name, bits, levels, cache={}):
    """The rows of a grid of base/iq_grids.h, which test_gguf checks against the gguf package's values."""
    if name not in cache:
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "base", "iq_grids.h")
        with open(path) as f:
            text = f.read().split(f"#define GRID_{name} ")[1].split("#define")[0]
        codes = [int(w, 16) for w in re.findall(r"G\((\w+)\)", text)]
        cache[name] = [[levels[c >> bits * k & (1 << bits) - 1] for k in range(8 if bits == 2 else 4)] for c in codes]
    return cache[name]


TWO, THREE, ODD = (8, 25, 43), (4, 12, 20, 28, 36, 44, 52, 62), tuple(range(1, 16, 2))


def signed(row, bits):
    return [-v if bits >> k & 1 else v for k, v in enumerate(row)]


def seven(bits):
    return bits & 127 | bin(bits & 127).count("1") % 2 << 7


def de_iq2_xxs(b):
    d, out, g = half(b, 0), [], grid("IQ2_XXS", 2, TWO)
    for p in range(8):
        w = struct.unpack_from("<I", b, 6 + 8 * p)[0]
        for k in range(4):
            out += [d * (0.5 + (w >> 28)) * 0.25 * v for v in signed(g[b[2 + 8 * p + k]], seven(w >> 7 * k))]
    return out


def de_iq2_xs(b):
    d, out, g = half(b, 0), [], grid("IQ2_XS", 2, TWO)
    for i in range(32):
        q = struct.unpack_from("<H", b, 2 + 2 * i)[0]
        out += [d * (0.5 + (b[66 + i // 4] >> (i // 2 % 2 * 4) & 15)) * 0.25 * v for v in signed(g[q & 511], seven(q >> 9))]
    return out


def de_iq2_s(b):
    d, out, g = half(b, 0), [], grid("IQ2_S", 2, TWO)
    for i in range(32):
        q = b[2 + i] | (b[66 + i // 4] >> 2 * (i % 4) & 3) << 8
        out += [d * (0.5 + (b[74 + i // 4] >> (i // 2 % 2 * 4) & 15)) * 0.25 * v for v in signed(g[q], b[34 + i])]
    return out


def de_iq3_xxs(b):
    d, out, g = half(b, 0), [], grid("IQ3_XXS", 3, THREE)
    for i in range(32):
        w = struct.unpack_from("<I", b, 66 + i // 4 * 4)[0]
        out += [d * (0.5 + (w >> 28)) * 0.5 * v for v in signed(g[b[2 + 2 * i]] + g[b[3 + 2 * i]], seven(w >> 7 * (i % 4)))]
    return out


def de_iq3_s(b):
    d, out, g = half(b, 0), [], grid("IQ3_S", 3, ODD)
    for i in range(32):
        q = [b[2 + 2 * i + k] | (b[66 + i // 4] >> (2 * (i % 4) + k) & 1) << 8 for k in (0, 1)]
        out += [d * (1 + 2 * (b[106 + i // 8] >> (i // 4 % 2 * 4) & 15)) * v for v in signed(g[q[0]] + g[q[1]], b[74 + i])]
    return out


def de_iq1_s(b):
    d, out, g = half(b, 0), [], grid("IQ1_S", 2, (-1, 0, 1))
    for i in range(32):
        w = struct.unpack_from("<H", b, 34 + i // 4 * 2)[0]
        out += [d * (2 * (w >> 12 & 7) + 1) * (v + (-0.125 if w >> 15 else 0.125)) for v in g[b[2 + i] | (w >> 3 * (i % 4) & 7) << 8]]
    return out


def de_iq1_m(b):
    s, out, g = struct.unpack_from("<4H", b, 48), [], grid("IQ1_S", 2, (-1, 0, 1))
    d = half(struct.pack("<H", s[0] >> 12 | s[1] >> 8 & 0xF0 | s[2] >> 4 & 0xF00 | s[3] & 0xF000), 0)
    for i in range(32):
        high = b[32 + i // 2] >> (i % 2 * 4)
        scale = d * (2 * (s[i // 8] >> (i // 2 % 4 * 3) & 7) + 1)
        out += [scale * (v + (-0.125 if high & 8 else 0.125)) for v in g[b[i] | (high & 7) << 8]]
    return out


def de_tq1_0(b):
    d = half(b, 52)
    bytes_ = [b[i % 32] * 3 ** (i // 32) for i in range(160)] + [b[32 + i % 16] * 3 ** (i // 16) for i in range(80)] + [b[48 + i % 4] * 3 ** (i // 4) for i in range(16)]
    return [d * ((x & 255) * 3 // 256 - 1) for x in bytes_]


def de_tq2_0(b):
    return [half(b, 64) * (two_bits(b, 0, i) - 1) for i in range(256)]


def de_q1_0(b):
    return [half(b, 0) if b[2 + i // 8] >> i % 8 & 1 else -half(b, 0) for i in range(128)]


def de_q2_0(b):
    return [half(b, 0) * ((b[2 + i // 4] >> 2 * (i % 4) & 3) - 1) for i in range(64)]


def de_q8_0(b):
    d = half(b, 0)
    return [d * q for q in struct.unpack_from("<32b", b, 2)]


def de_q4_k(b):
    d, m, s = half(b, 0), half(b, 2), k_scales(b[4:16])
    return [d * s[i // 32][0] * (b[16 + i // 64 * 32 + i % 32] >> (4 * (i // 32 % 2)) & 15) - m * s[i // 32][1] for i in range(256)]


def de_q5_k(b):
    d, m, s = half(b, 0), half(b, 2), k_scales(b[4:16])
    return [d * s[i // 32][0] * ((b[48 + i // 64 * 32 + i % 32] >> (4 * (i // 32 % 2)) & 15) | (b[16 + i % 32] >> (i // 32) & 1) << 4) - m * s[i // 32][1] for i in range(256)]


def de_q6_k(b):
    d, out = half(b, 208), []
    for i in range(256):
        h, l, part = i // 128, i % 32, i % 128 // 32
        low = b[64 * h + l + 32 * (part & 1)] >> (4 * (part // 2)) & 15
        high = b[128 + 32 * h + l] >> (2 * part) & 3
        out.append(d * struct.unpack_from("b", b, 192 + 8 * h + l // 16 + 2 * part)[0] * ((low | high << 4) - 32))
    return out


NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def de_iq4_nl(b):
    d = half(b, 0)
    return [d * NL[b[2 + i % 16] >> (4 * (i // 16)) & 15] for i in range(32)]


def de_iq4_xs(b):
    d, high = half(b, 0), struct.unpack_from("<H", b, 2)[0]
    out = []
    for i in range(256):
        k = i // 32
        scale = (b[4 + k // 2] >> (4 * (k % 2)) & 15 | (high >> (2 * k) & 3) << 4) - 32
        out.append(d * scale * NL[b[8 + 16 * k + i % 16] >> (4 * (i % 32 // 16)) & 15])
    return out


FP4 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)


def de_mxfp4(b):
    return [2.0 ** (b[0] - 127) * FP4[b[1 + i % 16] >> (4 * (i // 16)) & 15] for i in range(32)]


def de_nvfp4(b):
    scales = [(s & 7 | 8) * 2.0 ** ((s >> 3) - 10) for s in b[:4]]  # none is subnormal
    return [scales[i // 16] * FP4[b[4 + i // 16 * 8 + i % 8] >> (4 * (i % 16 // 8)) & 15] for i in range(64)]


# ik_llama.cpp's, without the scale of the row (ROW_HEADS)
FIVE_NL = (-126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36, -30, -24, -18, -12, -6, -1, 5, 11, 17, 23, 29, 36, 43, 51, 59, 68, 77, 87, 97, 109, 121)
PAIRS_KL = (0xE9C1, 0x0DC1, 0xC1D8, 0xF6D8, 0x0DD8, 0x2FD8, 0xD8E9, 0xE9E9, 0x01E9, 0x0DE9, 0x1CE9, 0xC1F6, 0x01F6, 0x0DF6, 0x2FF6, 0xE901,
            0xF601, 0x0101, 0x0D01, 0x1C01, 0xD80D, 0xE90D, 0xF60D, 0x010D, 0x0D0D, 0xC11C, 0xE91C, 0x011C, 0x1C1C, 0x2F1C, 0xE92F, 0x0D2F)


def ks_scale(s):
    return (s & 254) - 127


def de_iq4_ks(b):
    return [ks_scale(b[i // 32]) * (NL[b[8 + i // 32 * 16 + i % 16] >> (4 * (i % 32 // 16)) & 15] + 4 * (b[i // 32] & 1)) for i in range(256)]


def de_iq5_ks(b):
    def code(i):
        return b[8 + i // 64 * 32 + i % 32] >> (4 * (i // 32 % 2)) & 15 | (b[136 + i % 32] >> (i // 32) & 1) << 4
    return [ks_scale(b[i // 32]) * (FIVE_NL[code(i)] + 2 * (b[i // 32] & 1)) for i in range(256)]


def de_iq2_kl(b):
    high, out = struct.unpack_from("<H", b, 0)[0], []
    for k in range(8):
        scale = (b[2 + k % 4] >> (4 * (k // 4)) & 15 | (high >> 2 * k & 3) << 4) - 32
        for j in range(16):
            pair = PAIRS_KL[b[6 + k // 2 * 16 + j] >> (4 * (k % 2)) & 15 | (b[70 + j] >> k & 1) << 4]
            out += [scale * v for v in struct.unpack("2b", struct.pack("<H", pair))]
    return out


ROW_HEADS = {"IQ4_KS": ("<f", 0.2 / 127 / 127), "IQ5_KS": ("<f", 0.2 / 127 / 126), "IQ2_KL": ("<e", 0.2 / 31 / 63)}  # the format of a row's scale, and its size
# elements, bytes, decode, places of float16 scales
BLOCKS = {"Q4_0": (32, 18, de_q4_0, (0,)), "Q8_0": (32, 34, de_q8_0, (0,)), "Q4_K": (256, 144, de_q4_k, (0, 2)), "Q5_K": (256, 176, de_q5_k, (0, 2)),
          "Q6_K": (256, 210, de_q6_k, (208,)), "IQ4_NL": (32, 18, de_iq4_nl, (0,)), "IQ4_XS": (256, 136, de_iq4_xs, (0,)), "MXFP4": (32, 17, de_mxfp4, ()),
          "Q4_1": (32, 20, de_q4_1, (0, 2)), "Q5_0": (32, 22, de_q5_0, (0,)), "Q5_1": (32, 24, de_q5_1, (0, 2)), "Q2_K": (256, 84, de_q2_k, (80, 82)),
          "Q3_K": (256, 110, de_q3_k, (108,)), "IQ2_XXS": (256, 66, de_iq2_xxs, (0,)), "IQ2_XS": (256, 74, de_iq2_xs, (0,)), "IQ2_S": (256, 82, de_iq2_s, (0,)),
          "IQ3_XXS": (256, 98, de_iq3_xxs, (0,)), "IQ3_S": (256, 110, de_iq3_s, (0,)), "IQ1_S": (256, 50, de_iq1_s, (0,)), "IQ1_M": (256, 56, de_iq1_m, ()),
          "TQ1_0": (256, 54, de_tq1_0, (52,)), "TQ2_0": (256, 66, de_tq2_0, (64,)), "Q1_0": (128, 18, de_q1_0, (0,)), "Q2_0": (64, 18, de_q2_0, (0,)), "NVFP4": (64, 36, de_nvfp4, ()),
          "IQ4_KS": (256, 136, de_iq4_ks, ()), "IQ5_KS": (256, 168, de_iq5_ks, ()), "IQ2_KL": (256, 86, de_iq2_kl, ())}
# upper limits of the scales, such that weights are near 0.1
REACH = {"Q4_0": 8, "Q8_0": 127, "Q4_K": 63 * 15, "Q5_K": 63 * 31, "Q6_K": 127 * 32, "IQ4_NL": 127, "IQ4_XS": 31 * 127, "Q4_1": 15,
         "Q5_0": 16, "Q5_1": 31, "Q2_K": 45, "Q3_K": 128, "IQ2_XXS": 166, "IQ2_XS": 166, "IQ2_S": 166, "IQ3_XXS": 480,
         "IQ3_S": 465, "IQ1_S": 17, "TQ1_0": 1, "TQ2_0": 2, "Q1_0": 1, "Q2_0": 2}


def random_block(rng, fmt):
    n, size, _, halves = BLOCKS[fmt]
    b = bytearray(rng.randbytes(size))
    for at in halves:
        struct.pack_into("<e", b, at, rng.uniform(0.5, 1) * 0.2 / REACH[fmt])
    if fmt == "IQ1_M":
        scale, = struct.unpack("<H", struct.pack("<e", rng.uniform(0.5, 1) * 0.2 / 17))
        for k in range(4):
            b[49 + 2 * k] = b[49 + 2 * k] & 15 | (scale >> 4 * k & 15) << 4
    if fmt == "MXFP4":
        b[0] = rng.randrange(121, 124)
    if fmt == "NVFP4":
        b[:4] = bytes(rng.randrange(8, 36) for _ in range(4))
    return bytes(b)


@functools.lru_cache
def some_blocks(fmt):
    """Returns random blocks and their values as float32; to decode each block of a model takes far longer than to choose among these."""
    rng = random.Random(fmt)
    blocks = [random_block(rng, fmt) for _ in range(1 << 17 >> BLOCKS[fmt][0].bit_length())]
    return [(b, array.array("f", BLOCKS[fmt][2](b)).tobytes()) for b in blocks]


def with_heads(rng, fmt, blocks, per_row):
    """Rows of blocks, each behind its scale: (bytes, values)."""
    form, size = ROW_HEADS[fmt]
    raw, values = [], array.array("f")
    for r in range(0, len(blocks), per_row):
        head = struct.pack(form, rng.uniform(0.5, 1) * size)
        scale, = struct.unpack(form, head)
        raw += [head, *(b for b, _ in blocks[r:r + per_row])]
        values.extend(v * scale for _, row in blocks[r:r + per_row] for v in array.array("f", row))
    return b"".join(raw), values


def encode(rng, fmt, n, cols, spread):
    """Random data of n numbers in rows of cols: (format used, bytes, their values)."""
    if fmt in BLOCKS and cols % BLOCKS[fmt][0]:
        fmt = "F16"  # like llama.cpp, falls back to a format that fits
    if fmt in BLOCKS:
        blocks = rng.choices(some_blocks(fmt), k=n // BLOCKS[fmt][0])
        if fmt in ROW_HEADS:
            return fmt, *with_heads(rng, fmt, blocks, cols // BLOCKS[fmt][0])
        return fmt, b"".join(b for b, _ in blocks), array.array("f", b"".join(values for _, values in blocks))
    f = normal.numbers(rng, n, 0, spread)
    if fmt == "F32":
        return fmt, f.tobytes(), f
    if fmt == "F16":
        raw = struct.pack(f"<{n}e", *f)
        return fmt, raw, array.array("f", struct.unpack(f"<{n}e", raw))
    values = array.array("H", bytes(4 * n))
    values[1::2] = halves = normal.upper_halves(f)
    return fmt, halves.tobytes(), array.array("f", values.tobytes())
