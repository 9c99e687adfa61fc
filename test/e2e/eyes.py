"""Makes a tiny checkpoint of a model that reads images, of each family in eyes_families.py, with the standard library only: random weights, a byte-level
tokenizer with the marks of images, a chat template of our own that takes content parts, and pictures to show it."""
import json
import os
import struct
import zlib

import eyes_families
import tiny

IMAGE, BEGIN, END = 258, 259, 260
KINDS = eyes_families.KINDS
TEMPLATE = """{%- for m in messages %}<{{ m.role }}>
{%- if m.content is string %}{{ m.content }}
{%- else %}{%- for part in m.content %}{%- if part.type == 'image' %}<|begin|><|image|><|end|>{%- else %}{{ part.text }}{%- endif %}{%- endfor %}
{%- endif %}<eos>{%- endfor %}<assistant>"""


def config(kind="qwen3_vl"):
    family = KINDS[kind]
    return {"model_type": family.model_type or kind, **family.more, "architectures": [family.architecture], family.image_key: IMAGE, "tie_word_embeddings": False, "text_config": family.text,
            "vision_config": family.vision}


def tensors(c, kind=None):
    """{name: (dtype, shape, bytes)}, as published but in float32"""
    w = eyes_families.Writer()
    family = KINDS[kind or c["model_type"]]
    family.write_text(w, c["text_config"])
    family.write_tower(w, c["vision_config"], c["text_config"])
    return w.out


def is_of_tower(name):
    return not name.startswith(eyes_families.TEXT_PREFIXES)


def tokenizer():
    t = tiny.tokenizer()
    added = t["added_tokens"]
    for i, s in ((IMAGE, "<|image|>"), (BEGIN, "<|begin|>"), (END, "<|end|>")):
        added.append({**added[0], "id": i, "content": s})
    return t


def make(directory, kind="qwen3_vl", blind=False, processor=None, **changes):
    """Writes the checkpoint. blind: without the tensors of its tower. changes: of config.json's members."""
    os.makedirs(directory, exist_ok=True)
    c = {**config(kind), **changes}
    all_ = {k: v for k, v in tensors(c, kind).items() if not blind or not is_of_tower(k)}
    with open(os.path.join(directory, "model.safetensors"), "wb") as f:
        f.write(tiny.shard_bytes(list(all_.items())))
    files = {"config.json": c, "preprocessor_config.json": {**KINDS[kind].processor, **(processor or {})}, "tokenizer.json": tokenizer(), "generation_config.json": {"eos_token_id": [1], "do_sample": False},
             "tokenizer_config.json": {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": TEMPLATE}}
    for name, value in files.items():
        with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
            json.dump(value, f, ensure_ascii=False)
    return directory


# --- Pictures -----------------------------------------------------------------------------------


def pixels(width, height, seed=0):
    """RGB rows of a picture with edges and gradients."""
    return [bytes(v for x in range(width) for v in ((x * 255 // max(1, width - 1) + seed * 40) % 256, y * 255 // max(1, height - 1), (x * 7 + y * 13 + seed * 90) % 256))
            for y in range(height)]


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, rows, colour=2, depth=8, before=b"", claims=None):
    """The bytes of a PNG file. rows: of packed samples. before: chunks before the data. claims: another size in the header."""
    w, h = claims or (width, height)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 6)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, colour, 0, 0, 0)) + before + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def picture(width, height, seed=0):
    return png(width, height, pixels(width, height, seed))
