#!/usr/bin/env python3
"""Records what transformers computes of test/e2e/eyes.py's models with images, for images.py. Needs torch, transformers and Pillow; a person runs it when a
case is added. images_reference.py OUT.json"""
import io
import json
import sys
import tempfile

import images as cases
import numpy
import torch
import transformers
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

CLASSES = {False: transformers.Qwen3VLForConditionalGeneration, True: transformers.Qwen3VLMoeForConditionalGeneration}


def main():
    out = []
    processor = Qwen2VLImageProcessorPil(**cases.eyes.PROCESSOR)
    for moe in (False, True):
        with tempfile.TemporaryDirectory() as d:
            model = CLASSES[moe].from_pretrained(cases.eyes.make(d, moe), dtype=torch.float32).eval()
        for case in cases.CASES:
            ids, images = [], []
            for piece in case:
                if isinstance(piece, int):
                    ids.append(piece)
                    continue
                images.append(Image.open(io.BytesIO(cases.eyes.picture(*piece))))
                ids += [cases.eyes.IMAGE] * int(processor(images=[images[-1]], return_tensors="pt")["image_grid_thw"].prod() // 4)
            batch, tokens = processor(images=images, return_tensors="pt"), torch.tensor([ids])
            with torch.no_grad():
                logits = model(input_ids=tokens, mm_token_type_ids=(tokens == cases.eyes.IMAGE).int(), **batch).logits[0].numpy()
            rows = cases.rows(len(ids))
            out.append({"moe": moe, "n": len(ids), "largest": float(numpy.abs(logits).max()),
                        "logits": [[round(float(x), 6) for x in logits[r, ::cases.EVERY]] for r in rows]})
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        json.dump(out, f)


main()
