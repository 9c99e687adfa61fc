"""Whose sampling defaults an answer has: those of generation_config.json, of a GGUF file's metadata, or hearth's."""
import json
import os
import re

import driver
import gguf_file
import tiny


class Defaults(driver.ChatCase):
    def shown(self, model):
        """Returns {setting: (value, whose)}."""
        t = self.chat("-m", model, "--no-save", rows=60)
        out = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", self.ask(t, "/show", "resets it")).replace("\r", "")
        return {m[1]: (m[2], m[3].strip()) for m in re.finditer(r"(?m)^  (\S+) +(\S+) +(.+)", out)}

    def gguf(self, keys):
        p = gguf_file.qwen3moe("Q8_0")
        p.meta.update({f"general.sampling.{k}": v for k, v in keys.items()})
        return p.save(os.path.join(self.home, "gguf"))[0]

    def test_gguf(self):
        own, vendor = "hearth's default", "model default"
        for keys, want in (({}, {"temp": ("0.7", own), "top-p": ("0.95", own), "top-k": ("40", own), "min-p": ("0.05", own)}),
                           ({"temp": 0.6, "top_k": 20}, {"temp": ("0.6", vendor), "top-p": ("1", vendor), "top-k": ("20", vendor), "min-p": ("0", vendor)}),
                           ({"temp": 0.0}, {"temp": ("0", vendor)}), ({"temp": -1.0, "top_k": 0}, {"temp": ("0.7", own), "top-k": ("40", own)}),
                           ({"top_p": 0.5, "penalty_repeat": 1.25}, {"temp": ("1", vendor), "top-p": ("0.5", vendor), "repeat-penalty": ("1.25", vendor)})):
            with self.subTest(keys=keys):
                got = self.shown(self.gguf(keys))
                self.assertEqual({k: got.get(k) for k in want}, want)

    def test_answers_differ(self):
        file = self.gguf({})
        answers = {self.run_bin("-m", file, "-p", "hello", "-n", "8", "--no-save", "--raw", "--seed", str(seed))[1] for seed in range(4)}
        self.assertGreater(len(answers), 1)

    def test_checkpoint(self):
        d = os.path.join(self.home, "tiny")
        tiny.make(d)
        got = self.shown(d)  # its generation_config.json samples nothing
        self.assertEqual(got["temp"], ("0", "model default"))
        path = os.path.join(d, "generation_config.json")
        own, vendor = "hearth's default", "model default"
        ids = {"eos_token_id": 1}
        for file, want in ((ids, {"temp": ("0.7", own), "top-k": ("40", own)}), ({"temperature": 0.6}, {"temp": ("0.6", vendor), "top-k": ("0", vendor)}), ({"do_sample": True}, {"temp": ("1", vendor)}),
                           ({"do_sample": False, "temperature": 0.6}, {"temp": ("0", vendor)}), ({"do_sample": None, "temperature": None, "top_k": 0}, {"temp": ("0.7", own)}),
                           ({"do_sample": True, "temperature": -1, "top_p": 1.5, "min_p": -1, "repetition_penalty": 0}, {"temp": ("1", vendor), "top-p": ("1", vendor), "min-p": ("0", vendor), "repeat-penalty": ("1", vendor)})):
            with open(path, "w", encoding="utf-8") as f:
                json.dump({**ids, **file}, f)
            got = self.shown(d)
            self.assertEqual({k: got.get(k) for k in want}, want, file)
        open(path, "w").close()
        for _ in range(2):  # empty, then missing
            got = self.shown(d)
            self.assertEqual([got[k] for k in ("temp", "top-k")], [("0.7", "hearth's default"), ("40", "hearth's default")])
            if os.path.exists(path):
                os.remove(path)


if __name__ == "__main__":
    driver.unittest.main()
