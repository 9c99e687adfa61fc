#!/usr/bin/env python3
"""Records what transformers computes of test/e2e/eyes.py's models with images, for images.py. Needs torch, transformers and Pillow; a person runs it when a
case or a family is added. images_reference.py FILE KIND...    replaces what FILE, images.json, has of these kinds"""
import io
import json
import os
import sys
import tempfile

import images as cases
import numpy
import torch
import transformers
from PIL import Image
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

PROCESSORS = {"glm4v_moe": Glm4vImageProcessorPil}  # of kinds that have none of Qwen's


def main(path, *kinds):
    eyes = cases.eyes
    with open(path, encoding="utf-8") as f:
        out = [want for want in json.load(f) if want["kind"] not in kinds]
    for kind in kinds:
        processor = PROCESSORS.get(kind, Qwen2VLImageProcessorPil)(**eyes.KINDS[kind].processor)
        with tempfile.TemporaryDirectory() as d:
            eyes.make(d, kind)
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
                ids += [eyes.IMAGE] * int(processor(images=[images[-1]], return_tensors="pt")["image_grid_thw"].prod() // 4)
            batch, tokens = processor(images=images, return_tensors="pt"), torch.tensor([ids])
            with torch.no_grad():
                logits = model.eval()(input_ids=tokens, mm_token_type_ids=(tokens == eyes.IMAGE).int(), **batch).logits[0].numpy()
            rows = cases.rows(len(ids))
            out.append({"kind": kind, "n": len(ids), "largest": float(numpy.abs(logits).max()),
                        "logits": [[round(float(x), 6) for x in logits[r, ::cases.EVERY]] for r in rows]})
    with open(path, "w", encoding="utf-8") as f:
        json.dump(out, f)


main(os.path.abspath(sys.argv[1]), *sys.argv[2:])
