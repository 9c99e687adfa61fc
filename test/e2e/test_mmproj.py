#!/usr/bin/env python3
"""Vision towers in GGUF files of their own, as people have them beside a GGUF model: which file is taken, what one of another model gives, and damaged ones.
test_mmproj.py HEARTH"""
import json
import os
import shutil
import sys
import unittest

if len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
    os.environ["HEARTH_BIN"] = os.path.abspath(sys.argv.pop(1))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import driver  # noqa: E402
import eyes  # noqa: E402
import eyes_gguf  # noqa: E402

GREEDY = ("--temp", "0", "-n", "12")


class Mmproj(driver.ChatCase):
    def setUp(self):
        super().setUp()
        self.wide, self.other = self.put("wide.png", eyes.picture(96, 40, 0)), self.put("other.png", eyes.picture(96, 40, 2))

    def path(self, name):
        return os.path.join(self.home, name)

    def put(self, name, data):
        with open(self.path(name), "wb") as f:
            f.write(data)
        return self.path(name)

    def make(self, name, **how):
        return eyes_gguf.make(self.path(name), **how)

    def ask(self, model, *args, files=None):
        attached = [x for f in files or [self.wide] for x in ("-f", f)]
        return self.run_bin("-m", model, *attached, "-p", "What is this?", *GREEDY, *args)

    def answer(self, *args, **how):
        rc, out, err = self.ask(*args, **how)
        self.assertEqual(rc, 0, err)
        return out

    def refused(self, why, model, *args, codes=(2, 3)):
        rc, out, err = self.ask(model, *args)
        self.assertIn(rc, codes, err)
        self.assertEqual(out, b"")
        self.assertIn(why, err)

    def test_the_file_beside_the_model_is_taken(self):
        model = self.make("seen")
        rc, out, err = self.ask(model, "-v")
        self.assertEqual(rc, 0, err)
        self.assertIn("wide.png: 96 x 40 pixels, 12 tokens", err)
        self.assertNotEqual(out, self.answer(model, files=[self.other]))
        self.assertEqual(out, self.answer(self.path("seen")), "by its directory")
        self.assertEqual(out, self.answer(eyes.make(self.path("published"))), "the published form of the same model")
        both = self.answer(model, files=[self.wide, self.other])
        self.assertNotEqual(both, self.answer(model, files=[self.other, self.wide]))
        rc, report, err = self.run_bin("-m", model, "--inspect", "--json")
        self.assertEqual(rc, 0, err)
        tower = sum(len(raw) for _, _, _, raw in eyes_gguf.tower(eyes.config(), eyes.KINDS["qwen3_vl"].processor)[1])
        self.assertEqual(json.loads(report)["bytes"]["vision"], tower)
        self.assertEqual(json.loads(report)["images"], {"read": True, "file": "mmproj-F32.gguf"})
        self.assertIn(b"reads images with the tower in mmproj-F32.gguf", self.run_bin("-m", model, "--inspect")[1])

    def test_a_file_that_is_named(self):
        model, elsewhere = self.make("blind", mmproj=None), self.make("seen")
        file = self.path("seen/mmproj-F32.gguf")
        self.refused("blind cannot read images: no file mmproj*.gguf is beside this model, and --mmproj names none", self.path("blind"), codes=(2,))
        want = self.answer(elsewhere)
        self.assertEqual(self.answer(model, "--mmproj", file), want)
        self.assertFalse(json.loads(self.run_bin("-m", model, "--inspect", "--json")[1])["images"]["read"])
        self.assertTrue(json.loads(self.run_bin("-m", model, "--inspect", "--json", "--mmproj", file)[1])["images"]["read"])
        self.env["HEARTH_MMPROJ"] = file
        self.assertEqual(self.answer(model), want)
        del self.env["HEARTH_MMPROJ"]
        shutil.copy(file, self.path("seen/mmproj-F16.gguf"))
        self.assertEqual(self.answer(elsewhere, "--mmproj", file), want)
        self.refused("--mmproj /nowhere.gguf: there is no such file", model, "--mmproj", "/nowhere.gguf", codes=(2,))
        self.refused("not a GGUF file", model, "--mmproj", self.wide, codes=(2,))
        self.refused("is no GGUF model", eyes.make(self.path("published")), "--mmproj", file, codes=(2,))
        self.refused("has no vision tower: 'general.architecture' is qwen3vl, not clip", model, "--mmproj", elsewhere)

    def test_several_files(self):
        """The one that fits is taken, of several that with 16 bits; whatever stands before mmproj in their names."""
        model = self.make("seen")
        want, file = self.answer(model), self.path("seen/mmproj-F32.gguf")

        def taken():
            return json.loads(self.run_bin("-m", self.path("seen"), "--inspect", "--json")[1])["images"].get("file")

        shutil.copy(file, self.path("seen/mmproj-Q8_0.gguf"))
        self.assertEqual(taken(), "mmproj-Q8_0.gguf")
        shutil.copy(file, self.path("seen/Model-mmproj-model-f16.gguf"))
        self.assertEqual(taken(), "Model-mmproj-model-f16.gguf")
        shutil.copy(file, self.path("seen/MMPROJ-BF16.gguf"))
        self.assertEqual(taken(), "MMPROJ-BF16.gguf")
        self.assertEqual(self.answer(self.path("seen")), want)  # none of them is taken for the model
        self.make("narrow", vision_config={**eyes.KINDS["qwen3_vl"].vision, "out_hidden_size": 48})
        shutil.copy(self.path("narrow/mmproj-F32.gguf"), self.path("seen/MMPROJ-BF16.gguf"))
        self.assertEqual(taken(), "Model-mmproj-model-f16.gguf")
        self.assertEqual(self.answer(model), want)
        for name in ("mmproj-F32.gguf", "mmproj-Q8_0.gguf", "Model-mmproj-model-f16.gguf"):
            os.unlink(self.path("seen/" + name))
        self.refused("is of another model: its rows have 48 numbers, this model's 40", model, codes=(2,))

    def test_halves(self):
        """Most files have matrices in F16, which are as exact as they can be; the caches keep apart what each file makes of a picture."""
        model = self.make("half", half=True)
        self.assertTrue(self.answer(model))

    def test_a_file_of_another_model(self):
        """A model still answers texts with a wrong file beside it."""
        wide = {**eyes.KINDS["qwen3_vl"].vision, "out_hidden_size": 48}
        cases = {"narrow": (dict(vision_config=wide), "is of another model: its rows have 48 numbers, this model's 40"),
                 "kind": (dict(meta={"clip.projector_type": "gemma3"}), "a tower of the kind 'gemma3', which hearth does not compute yet"),
                 "none": (dict(meta={"clip.projector_type": None}), "a tower of the kind '(none)'"),
                 "audio": (dict(meta={"general.architecture": None}), "'general.architecture' is missing, not clip"),
                 "lacks": (dict(drop=("v.blk.1.ffn_up.bias",)), "v.blk.1.ffn_up"), "patch": (dict(drop=("v.patch_embd.weight.1",)), "v.patch_embd.weight.1"),
                 "more": (dict(more=[("v.blk.0.ls1.weight", "F32", [24], bytes(96))]), "tensor 'v.blk.0.ls1.weight' is none of this kind of tower"),
                 "silu": (dict(meta={"clip.use_silu": True}), "'clip.use_silu' is true"), "side": (dict(meta={"clip.vision.image_size": 41}), "of broken sizes"),
                 "depth": (dict(meta={"clip.vision.block_count": None}), "clip.vision.block_count"), "heads": (dict(meta={"clip.vision.attention.head_count": 5}), "of broken sizes"),
                 "layers": (dict(meta={"clip.vision.is_deepstack_layers": [True] * 3}), "v.deepstack.2"), "std": (dict(meta={"clip.vision.image_std": [0.0, 1.0, 1.0]}), "must be above 0"),
                 "pixels": (dict(meta={"clip.vision.image_max_pixels": 1}), "limits of pixels"), "table": (dict(meta={"clip.vision.image_size": 65536}), "a table of positions of")}
        for name, (how, why) in cases.items():
            model = self.make(name, **how)
            rc, out, err = self.run_bin("-m", model, "-p", "Hello.", *GREEDY)
            self.assertEqual(rc, 0, (name, err))
            rc, out, err = self.ask(model)
            self.assertEqual((rc, out), (2, b""), (name, err))
            self.assertIn(f"cannot read images: {self.home}"[:24], err)
            rc, out, err = self.ask(model, "--mmproj", self.path(name + "/mmproj-F32.gguf"))
            self.assertNotEqual(rc, 0, name)
            self.assertEqual(out, b"", name)
            self.assertIn(why, err, name)
            self.assertIn("mmproj-F32.gguf", err, name)

    def test_verify(self):
        """--verify reads the towers beside the model, or the one that is named, and names the file of a bad tensor."""
        def verify(*args):
            rc, out, err = self.run_bin("-m", *args, "--verify")
            return rc, out, err.replace(self.home, "~")

        def damage(path):
            with open(path, "r+b") as f:
                f.seek(-4, os.SEEK_END)
                f.write(b"\xff\xff\xff\x7f")

        model = self.make("seen")
        self.assertEqual(verify(model)[:2], (0, b"ok\n"))
        shutil.copy(self.path("seen/mmproj-F32.gguf"), self.path("seen/mmproj-F16.gguf"))
        damage(self.path("seen/mmproj-F32.gguf"))  # not the one that is taken
        rc, out, err = verify(model)
        self.assertEqual((rc, out), (3, b""))
        self.assertRegex(err, r"~/seen/mmproj-F32\.gguf: tensor \S+: F32 that is not a number at row \d+, column \d+: the file is damaged")
        self.assertEqual(verify(model, "--mmproj", self.path("seen/mmproj-F16.gguf"))[:2], (0, b"ok\n"))
        rc, out, err = verify(self.make("blind", mmproj=None), "--mmproj", self.path("seen/mmproj-F32.gguf"))
        self.assertEqual((rc, out), (3, b""))
        self.assertIn("~/seen/mmproj-F32.gguf: tensor ", err)
        self.assertEqual(verify(self.path("blind"))[:2], (0, b"ok\n"))
        os.truncate(self.path("seen/mmproj-F32.gguf"), 3000)
        rc, out, err = verify(model)
        self.assertEqual((rc, out), (3, b""))
        self.assertIn("~/seen/mmproj-F32.gguf: ", err)
        os.unlink(self.path("seen/mmproj-F32.gguf"))
        damage(model)
        self.assertIn("~/seen/model.gguf: tensor ", verify(model)[2])
        self.assertEqual(verify(self.path("blind"), "--mmproj", "/nowhere.gguf")[0], 2)
        self.assertIn("is no GGUF model", verify(eyes.make(self.path("published")), "--mmproj", self.path("seen/mmproj-F16.gguf"))[2])
        wide = self.make("narrow", vision_config={**eyes.KINDS["qwen3_vl"].vision, "out_hidden_size": 48})
        self.assertEqual(verify(wide)[:2], (0, b"ok\n"))  # of another model, and sound
        self.assertIn("is of another model", verify(wide, "--mmproj", self.path("narrow/mmproj-F32.gguf"))[2])

    def test_a_file_beside_a_model_of_text(self):
        model = self.make("seen")
        text = os.path.join(self.path("text"), "model.gguf")
        os.makedirs(self.path("text"))
        meta = {"qwen3vl.rope.dimension_sections": None}
        import gguf_formats  # noqa: E402
        write = gguf_formats.write
        gguf_formats.write = lambda path, m, t, *more: write(path, {k: v for k, v in m.items() if k not in meta}, t, *more)
        self.addCleanup(setattr, gguf_formats, "write", write)
        eyes_gguf.make(self.path("text"))
        self.refused("this one does not place images by row and column", text, "--mmproj", self.path("seen/mmproj-F32.gguf"))
        self.assertTrue(os.path.exists(model))


if __name__ == "__main__":
    unittest.main()
