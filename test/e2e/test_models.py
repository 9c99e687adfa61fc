"""Models that other programs have left on the machine, and what they are called: Hugging Face's cache, LM Studio, llama.cpp, ollama."""
import json
import os
import shutil
import unittest

import driver
from small_gguf import gguf, one, read


class Models(driver.Case):
    def setUp(self):
        super().setUp()
        self.env["HEARTH_LIMITS"] = "read=100000,spin=100"

    def put(self, path, data):
        path = os.path.join(self.home, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def repo(self, name, commit, files, main=True):
        """Writes a snapshot as huggingface_hub does, with links to blobs."""
        folder = ".cache/huggingface/hub/models--" + name.replace("/", "--")
        for path, data in files.items():
            blob = self.put(f"{folder}/blobs/{abs(hash((path, data))):x}", data)
            link = os.path.join(self.home, folder, "snapshots", commit, path)
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(os.path.relpath(blob, os.path.dirname(link)), link)
        if main:
            self.put(folder + "/refs/main", commit.encode())
        return os.path.join(self.home, folder, "snapshots", commit)

    def listed(self):
        rows = json.loads(self.run_bin("--models", "--json")[1])
        return {r["name"]: (os.path.relpath(r["dir"], self.home), r["source"]) for r in rows if r["name"] != "ember"}

    def opened(self, name):
        """Returns the path that a name opens, or the exit code and the message."""
        rc, out, err = self.run_bin("-m", name, "--inspect", "--json")
        return json.loads(out)["path"] if rc == 0 else (rc, err)

    def ember(self):
        folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../engine/ember/model")
        return {n: read(os.path.join(folder, n)) for n in os.listdir(folder) if not n.startswith("sco")}

    def test_quants(self):
        """Several quants in a repository, in files and in folders, also beside a config.json; vision towers and later parts are none."""
        at = self.repo("org/tiny-GGUF", "a" * 40, {"tiny-q8_0.gguf": one("Q8_0"), "config.json": b"{}", "mmproj-F16.gguf": b"GGUF", "UD-Q4_K_XL/tiny-UD-Q4_K_XL.gguf": one("Q4_K"),
                                                   **{"BF16/tiny-BF16-" + n[-19:]: d for n, d in gguf("BF16", 3).items()}})
        self.assertEqual(sorted(self.listed()), ["org/tiny-GGUF:BF16", "org/tiny-GGUF:Q8_0", "org/tiny-GGUF:UD-Q4_K_XL"])
        q8, q4, bf = (os.path.join(at, n) for n in ("tiny-q8_0.gguf", "UD-Q4_K_XL/tiny-UD-Q4_K_XL.gguf", "BF16/tiny-BF16-00001-of-00003.gguf"))
        for name, path in (("org/tiny-GGUF:Q8_0", q8), ("org/tiny-GGUF:q8", q8), ("org/tiny-GGUF:Q4_K_XL", q4), ("org/tiny-GGUF:UD-Q4_K_XL", q4), ("tiny-gguf:bf16", bf), ("q8_0", q8), ("Q4_K", q4)):
            self.assertEqual(self.opened(name), path, name)
        rc, err = self.opened("org/tiny-GGUF")
        self.assertEqual(rc, 2)
        self.assertIn("contains 3 models; give -m one of: org/tiny-GGUF:BF16 org/tiny-GGUF:Q8_0 org/tiny-GGUF:UD-Q4_K_XL", err)
        rc, err = self.opened("org/tiny-GGUF:Q2_K")
        self.assertEqual(rc, 3)
        self.assertIn("org/tiny-GGUF:Q2_K: not in the Hugging Face cache; this downloads it: hearth --pull org/tiny-GGUF:Q2_K; there: org/tiny-GGUF:BF16", err)
        rc, err = self.opened("tiny")
        self.assertEqual(rc, 2)
        self.assertIn("-m tiny is ambiguous: org/tiny-GGUF:BF16, org/tiny-GGUF:Q8_0, org/tiny-GGUF:UD-Q4_K_XL", err)

    def test_towers_are_no_models(self):
        """Neither in a folder of models, by whatever name, nor in those of other programs; a folder of one model and its tower is that model."""
        towers = ("mmproj-BF16.gguf", "mmproj-model-f16.gguf", "Tiny-mmproj-F16.gguf", "MMPROJ-F32.gguf")
        for at in ("models/", "models/both/", ".lmstudio/models/maker/Tiny-GGUF/", ".cache/llama.cpp/"):
            for tower in towers:
                self.put(at + tower, one("Q8_0"))
        self.put("models/only/mmproj-F16.gguf", one("Q8_0"))
        flat, both = self.put("models/Tiny-Q8_0.gguf", one("Q8_0")), self.put("models/both/Tiny-Q4_K.gguf", one("Q4_K"))
        self.put(".lmstudio/models/maker/Tiny-GGUF/Tiny-BF16.gguf", one("BF16"))
        models = os.path.join(self.home, "models")
        self.env["HEARTH_MODEL_PATH"] = models
        self.assertEqual(sorted(self.listed()), ["Tiny-Q8_0.gguf", "both", "maker/Tiny-GGUF:BF16"])
        text = self.run_bin("--models")[1].decode()
        self.assertNotIn("mmproj", text.lower())
        self.assertEqual((self.opened(flat), self.opened(os.path.dirname(both))), (flat, os.path.dirname(both)))
        os.unlink(flat)
        shutil.rmtree(os.path.dirname(both))
        rc, err = self.opened(models)
        self.assertIn("no model found: neither config.json nor a GGUF file", err)

    def test_called_by_name(self):
        """Answers, saved sessions and the server call a model ORG/NAME[:QUANT], not by a hash."""
        self.repo("org/ember", "b" * 40, self.ember())
        self.repo("org/tiny-GGUF", "c" * 40, {"tiny-Q8_0.gguf": one("Q8_0")})
        for name in ("org/ember", "org/tiny-GGUF:Q8_0"):
            rc, out, err = self.run_bin("-m", name, "-p", "hi", "-n", "2", "--temp", "0", "--json", "--save", "x")
            self.assertEqual(rc, 0, err)
            self.assertEqual(json.loads(out)["model"], name)
            with open(self.session_file("x")) as f:
                body = json.load(f)["body"]
            self.assertEqual((body["model"], body["path"]), (name, name))
            rc, out, err = self.run_bin("--continue", "x", "-p", "more", "-n", "2", "--temp", "0", "--json")
            self.assertEqual(rc, 0, err)
            self.assertEqual(json.loads(out)["model"], name)
            self.assertNotIn("started with", err)
            os.unlink(self.session_file("x"))
        self.assertEqual(self.run_bin("--use", "tiny-gguf")[0], 0)
        self.assertIn("\norg/tiny-GGUF:Q8_0 ", "\n" + self.run_bin("--models")[1].decode())
        with open(os.path.join(self.home, ".config/hearth/config")) as f:
            self.assertIn("model = org/tiny-GGUF:Q8_0\n", f.read())
        t = self.terminal("-m", "org/ember")
        t.until("org/ember. Type a question")
        t.send("\x04")
        self.assertEqual(t.wait(), 0)

    def test_update(self):
        """After an update refs/main decides; what only an earlier snapshot has is found too; a saved chat continues with the new files after a word."""
        files = self.ember()
        old = self.repo("org/ember", "1" * 40, files)
        self.repo("org/tiny-GGUF", "2" * 40, {"tiny-Q8_0.gguf": one("Q8_0"), "tiny-Q4_K.gguf": one("Q4_K")})
        self.assertEqual(self.opened("org/ember"), old)
        new = self.repo("org/ember", "0" * 40, {**files, "generation_config.json": b'{"temperature": 0.5}'})
        self.assertEqual(self.opened("org/ember"), new)
        newer = self.repo("org/tiny-GGUF", "3" * 40, {"tiny-Q8_0.gguf": one("Q8_0")})
        self.assertEqual({n: d[0].split("/")[-2] for n, d in self.listed().items() if "tiny" in n}, {"org/tiny-GGUF:Q8_0": "3" * 40, "org/tiny-GGUF:Q4_K": "2" * 40})
        self.assertEqual(self.opened("org/tiny-GGUF:Q8_0"), os.path.join(newer, "tiny-Q8_0.gguf"))
        os.unlink(os.path.join(self.home, ".cache/huggingface/hub/models--org--ember/refs/main"))
        rc, err = self.opened("org/ember")
        self.assertEqual(rc, 2)
        self.assertRegex(err, "contains 2 models; .*/0+ .*/1+")

    def test_other_programs(self):
        """LM Studio, llama.cpp and ollama: listed with their names and the source, and opened by them."""
        lm = self.put(".lmstudio/models/maker/Tiny-GGUF/Tiny-Q8_0.gguf", one("Q8_0"))
        cpp = self.put(".cache/llama.cpp/maker_Tiny-GGUF_tiny-q4_k.gguf", one("Q4_K"))
        digest = "ab" * 32
        blob = self.put(f".ollama/models/blobs/sha256-{digest}", one("BF16"))
        manifest = {"layers": [{"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "00" * 32}, {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + digest}]}
        for tag in ("latest", "1b"):
            self.put(f".ollama/models/manifests/registry.ollama.ai/library/small/{tag}", json.dumps(manifest).encode())
        self.put(".ollama/models/manifests/hf.co/maker/Else/Q4", json.dumps(manifest).encode())
        adapted = {"layers": manifest["layers"] + [{"mediaType": "application/vnd.ollama.image.adapter", "digest": "sha256:" + "ab" * 32}]}
        self.put(".ollama/models/manifests/registry.ollama.ai/library/tuned/latest", json.dumps(adapted).encode())
        for tuned in ("tuned", "tuned:latest"):
            rc, _, err = self.run_bin("-m", tuned, "-p", "x")
            self.assertEqual(rc, 3, err)
            self.assertIn("LoRA adapter", err)
        for name, text in (("up", {"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../../../../../../../../../../../../../../../../../../etc/passwd"}]}), ("bad", [1]), ("gone", {"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "cd" * 32}]})):
            self.put(f".ollama/models/manifests/registry.ollama.ai/library/{name}/latest", json.dumps(text).encode())
        listed = self.listed()
        self.assertEqual({n: s for n, (d, s) in listed.items()}, {"maker/Tiny-GGUF:Q8_0": "LM Studio", "maker_Tiny-GGUF_tiny-q4_k.gguf": "llama.cpp", "small:latest": "ollama", "small:1b": "ollama", "hf.co/maker/Else:Q4": "ollama"})
        for name, path in (("maker/Tiny-GGUF:Q8_0", lm), ("small", blob), ("small:1b", blob), ("tiny-q4", cpp)):
            self.assertEqual(self.opened(name), path, name)
        text = self.run_bin("--models")[1].decode()
        self.assertRegex(text, r"\nsmall:1b .*tok/s \(ollama\)\n")
        self.assertEqual(json.loads(self.run_bin("-m", "small", "-p", "x", "-n", "1", "--temp", "0", "--json")[1])["model"], json.loads(self.run_bin("-m", "small:1b", "-p", "x", "-n", "1", "--temp", "0", "--json")[1])["model"])
        self.assertRegex(json.loads(self.run_bin("-m", "small", "-p", "x", "-n", "1", "--temp", "0", "--json")[1])["model"], "^(small:|hf.co/maker/Else:Q4)")
        link = os.path.join(self.home, "Tiny-Q8_0.gguf")
        os.symlink(lm, link)
        for path, name in ((lm, "maker/Tiny-GGUF:Q8_0"), (link, "maker/Tiny-GGUF:Q8_0"), (cpp, "maker_Tiny-GGUF_tiny-q4_k.gguf"), (self.put("Tiny-Q8_0/Tiny-Q8_0.gguf", one("Q8_0")), "Tiny-Q8_0.gguf")):
            self.assertEqual(json.loads(self.run_bin("-m", path, "-p", "x", "-n", "1", "--temp", "0", "--json")[1])["model"], name)  # as in the list, whichever way it was named

    def test_parts_of_names(self):
        """A part of one name is enough; the beginning of a name comes before a part within others, the whole name before both."""
        for name in ("Alpha-7B", "Beta-Alpha-7B", "Gamma"):
            shutil.copytree(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../engine/ember/model"), os.path.join(self.home, "models", name))
        self.env["HEARTH_MODEL_PATH"] = os.path.join(self.home, "models")
        for text, name in (("alpha", "Alpha-7B"), ("beta", "Beta-Alpha-7B"), ("amm", "Gamma"), ("a-alpha", "Beta-Alpha-7B"), ("gamma", "Gamma")):
            self.assertEqual(self.opened(text), os.path.join(self.home, "models", name), text)
        rc, err = self.opened("7b")
        self.assertEqual((rc, "-m 7b is ambiguous: Alpha-7B, Beta-Alpha-7B" in err), (2, True), err)


if __name__ == "__main__":
    unittest.main()
