#!/usr/bin/env python3
"""Records what transformers computes of test/e2e/eyes.py's models with images, for images.py. Needs torch, transformers and Pillow; a person runs it when a
case or a family is added. images_reference.py FILE KIND...    replaces what FILE, images.json, has of these kinds"""
import io
import json
import os
import sys
import tempfile

import images as cases
import eyes_families
import numpy
import torch
import transformers
from PIL import Image
from transformers.models.kimi_k25.image_processing_kimi_k25 import navit_resize
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil



class KimiProcessor:
    """As published: shrinks with Pillow, pads with black. transformers has one for torchvision only, which resizes otherwise."""

    def __init__(self, media_proc_cfg):
        self.c = media_proc_cfg

    def __call__(self, images, return_tensors):
        pixels, grids, c, p = [], [], self.c, self.c["patch_size"]
        for image in images:
            size, whole = navit_resize(image.height, image.width, p, c["merge_kernel_size"], c["in_patch_limit"], c["patch_limit_on_one_side"])
            array = numpy.zeros((*whole, 3), dtype=numpy.float32)
            array[:size[0], :size[1]] = numpy.asarray(image.convert("RGB").resize(size[::-1], Image.BICUBIC))
            array = (array / 255 - numpy.array(c["image_mean"])) / numpy.array(c["image_std"])
            h, w = whole[0] // p, whole[1] // p
            pixels.append(array.reshape(h, p, w, p, 3).transpose(0, 2, 4, 1, 3).reshape(h * w, 3, p, p))
            grids.append([1, h, w])
        return {"pixel_values": torch.tensor(numpy.concatenate(pixels), dtype=torch.float32), "image_grid_thw": torch.tensor(grids)}


KIMI = eyes_families.KIMI_TOWER
CHANGES = {"kimi_k25": {"image_token_id": cases.eyes.IMAGE, "projection_hidden_size": KIMI["vt_hidden_size"], "vision_config": {
    **KIMI, "model_type": "kimi_k25_vision", "hidden_size": KIMI["vt_hidden_size"], "intermediate_size": KIMI["vt_intermediate_size"],
    "num_attention_heads": KIMI["vt_num_attention_heads"], "num_hidden_layers": KIMI["vt_num_hidden_layers"], "pos_emb_height": KIMI["init_pos_emb_height"],
    "pos_emb_width": KIMI["init_pos_emb_width"]}}}  # names that transformers reads
PROCESSORS = {"glm4v_moe": Glm4vImageProcessorPil, "kimi_k25": KimiProcessor, "gemma4": Gemma4ImageProcessorPil, "gemma4_moe": Gemma4ImageProcessorPil}  # of kinds that have none of Qwen's


def main(path, *kinds):
    eyes = cases.eyes
    with open(path, encoding="utf-8") as f:
        out = [want for want in json.load(f) if want["kind"] not in kinds]
    for kind in kinds:
        processor = PROCESSORS.get(kind, Qwen2VLImageProcessorPil)(**eyes.KINDS[kind].processor)
        with tempfile.TemporaryDirectory() as d:
            eyes.make(d, kind, **CHANGES.get(kind, {}))
            model, report = getattr(transformers, eyes.KINDS[kind].architecture).from_pretrained(d, dtype=torch.float32, output_loading_info=True)
        for wrong in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if report[wrong]:
                sys.exit(f"{kind}: {wrong} {report[wrong]}")
        for case in cases.CASES:
            ids, images = [], []
            for piece in case:
                if isinstance(piece, int):
                    ids.append(piece)
                    continue
                images.append(Image.open(io.BytesIO(eyes.picture(*piece))))
                one = processor(images=[images[-1]], return_tensors="pt")
                marks = [[eyes.KINDS[kind].more[key]] if key in eyes.KINDS[kind].more else [] for key in ("boi_token_id", "eoi_token_id")]
                ids += marks[0] + [eyes.IMAGE] * int(one["num_soft_tokens_per_image"][0] if marks[0] else one["image_grid_thw"].prod() // 4) + marks[1]
            batch, tokens = dict(processor(images=images, return_tensors="pt")), torch.tensor([ids])
            batch.pop("num_soft_tokens_per_image", None)
            with torch.no_grad():
                types = {} if kind == "kimi_k25" else {"mm_token_type_ids": (tokens == eyes.IMAGE).int()}
                logits = model.eval()(input_ids=tokens, **types, **batch).logits[0].numpy()
            rows = cases.rows(len(ids))
            out.append({"kind": kind, "n": len(ids), "largest": float(numpy.abs(logits).max()),
                        "logits": [[round(float(x), 6) for x in logits[r, ::cases.EVERY]] for r in rows]})
    with open(path, "w", encoding="utf-8") as f:
        json.dump(out, f)


main(os.path.abspath(sys.argv[1]), *sys.argv[2:])
