"""--pull, and -m of a model that is absent: a local hub (hub_server.py), the layout of the cache, interruptions, hostile answers.
One file, since all classes share the hub and its repositories of setUp()."""
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest

import driver
import hub_server
import tiny
from small_gguf import gguf, one, read

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import eyes  # noqa: E402
import eyes_gguf  # noqa: E402

EMBER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../engine/ember/model")
NEEDED = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


class Case(driver.Case):
    def setUp(self):
        super().setUp()
        self.hub = hub_server.Hub(self)
        self.env.update(HF_ENDPOINT=self.hub.url, HEARTH_LIMITS="patience=20,read=100000,spin=100", no_proxy="*")
        ember = {n: read(os.path.join(EMBER, n)) for n in NEEDED}
        self.hub.add("org/ember", {**ember, "README.md": b"text", "onnx/model.onnx": b"x" * 1000, "pytorch_model.bin": b"y" * 1000, "scope.json": b"{}"})
        self.quants = {"Q8_0": one("Q8_0"), "Q4_K": one("Q4_K"), "BF16": one("BF16")}
        self.hub.add("org/tiny-GGUF", {f"Tiny-{q}.gguf": data for q, data in self.quants.items()} | {"tiny.imatrix.gguf": b"GGUFy", "README.md": b"."})
        self.cache = os.path.join(self.home, ".cache/huggingface/hub")

    def folder(self, name="org/ember"):
        return os.path.join(self.cache, "models--" + name.replace("/", "--"))

    def snapshot(self, name="org/ember"):
        return os.path.join(self.folder(name), "snapshots", self.hub.commits[name])

    def names(self, folder):
        return sorted(os.path.relpath(os.path.join(d, f), folder) for d, _, files in os.walk(folder) for f in files)

    def pull(self, name, **more):
        return self.run_bin("--pull", name, **more)

    def complete(self, name, files):
        """The layout that huggingface_hub writes and reads: blobs by checksum, links, refs/main, nothing incomplete."""
        self.assertEqual(self.names(self.snapshot(name)), sorted(files))
        with open(os.path.join(self.folder(name), "refs/main")) as f:
            self.assertEqual(f.read(), self.hub.commits[name])
        for path in files:
            data, at = self.hub.repos[name][path], os.path.join(self.snapshot(name), path)
            with open(at, "rb") as f:
                self.assertEqual(f.read(), data, path)
            oid = self.hub.entry(path, data)
            oid = oid["lfs"]["oid"] if "lfs" in oid else oid["oid"]
            self.assertEqual(os.readlink(at), "../" * path.count("/") + "../../blobs/" + oid)
        self.assertFalse([n for n in os.listdir(os.path.join(self.folder(name), "blobs")) if n.endswith(".incomplete")])


class Pull(Case):
    def test_checkpoint(self):
        """Only what hearth reads; what --inspect says comes before the first byte of the weights; the model then answers by its name."""
        rc, out, err = self.pull("org/ember")
        self.assertEqual((rc, out), (0, b""), err)
        self.complete("org/ember", NEEDED)
        self.assertRegex(err, r"^org/ember · 17\.1 MB in 1 file\nDeepSeek-V3 · 10\.1M .*\nfits: 17\.1 MB of .* tok/s.*\nruns: .*\nhearth: downloading 17\.\d MB in 3 files\n(.*\n)*hearth: pulled org/ember: 17\.\d MB in .*; hearth -m org/ember opens it\n$")
        self.assertEqual([row[2] for row in self.hub.sent("model.safetensors")], ["header", 0])
        said = self.run_bin("-m", "org/ember", "--inspect")
        self.assertIn(said[1].decode().splitlines()[1], err)
        rc, out, err = self.run_bin("-m", "org/ember", "-p", "hi", "--temp", "0", "--json")
        self.assertEqual(rc, 0, err)
        before = len(self.hub.sent())
        rc, out, err = self.pull("org/ember")
        self.assertEqual((rc, err), (0, "hearth: org/ember is complete already; hearth -m org/ember opens it\n"))
        self.assertEqual(len(self.hub.sent()), before)
        self.assertEqual(self.pull("org/ember", env={"HF_HUB_OFFLINE": "1"})[0], 1)
        self.assertEqual(self.run_bin("--pull", "org/ember", "-q"), (0, b"", ""))

    def test_shards(self):
        tiny.make(os.path.join(self.home, "t"))
        files = {n: read(os.path.join(self.home, "t", n)) for n in os.listdir(os.path.join(self.home, "t"))}
        self.hub.add("org/tiny", {**files, "consolidated.safetensors": b"\0" * 100, "original/model.safetensors": b"\0" * 100})
        self.hub.page = 3  # the list comes in pages
        self.assertEqual(self.pull("org/tiny")[0], 0)
        self.complete("org/tiny", list(files))
        self.assertEqual(self.run_bin("-m", "org/tiny", "--verify")[0], 0)
        for name in ("config.json", "../x.safetensors", "a/../x.safetensors", "/x.safetensors", 5):
            index = json.dumps({"weight_map": {"a": name}}).encode()
            self.hub.add("org/odd", {**self.hub.repos["org/tiny"], "model.safetensors.index.json": index})
            rc, out, err = self.pull("org/odd")
            self.assertEqual(rc, 1)
            self.assertIn("names a file that is none of weights", err)
        stale = read(os.path.join(self.home, "t", "model.safetensors.index.json")).replace(b"-of-00002", b"-of-00003")
        self.hub.add("org/stale", {**files, "model.safetensors.index.json": stale})  # it names none of the files
        self.assertEqual(self.pull("org/stale")[0], 0)
        self.complete("org/stale", list(files))
        self.assertEqual(self.run_bin("-m", "org/stale", "--verify")[0], 0)
        deep = {n.replace("model-00002", "more/model-00002"): data for n, data in files.items()}  # paths of a list lead into folders
        deep["model.safetensors.index.json"] = files["model.safetensors.index.json"].replace(b"model-00002", b"./more/model-00002")
        self.hub.add("org/deep", deep)
        self.hub.add("org/unlisted", {n: data for n, data in files.items() if "index" not in n})  # no list: what -m takes then
        for name in ("org/deep", "org/unlisted"):
            rc, out, err = self.pull(name)
            self.assertEqual(rc, 0, err)
            self.complete(name, list(self.hub.repos[name]))
            self.assertEqual(self.run_bin("-m", name, "--verify")[0], 0)
        del self.hub.repos["org/tiny"]["model-00002-of-00002.safetensors"]
        self.hub.add("org/less", self.hub.repos["org/tiny"])
        rc, out, err = self.pull("org/less")
        self.assertEqual(rc, 1)
        self.assertIn("org/less: lacks model-00002-of-00002.safetensors, which its index names", err)

    def test_file_of_any_name(self):
        """The only file of weights, whatever its name; of two nothing says which are the model's."""
        ember = {n: read(os.path.join(EMBER, n)) for n in NEEDED}
        ember["weights.safetensors"] = ember.pop("model.safetensors")
        self.hub.add("org/one", {**ember, "adapter_model.safetensors": b"x" * 100, "onnx/model.safetensors": b"y" * 100})
        rc, out, err = self.pull("org/one")
        self.assertEqual(rc, 0, err)
        self.complete("org/one", list(ember))
        self.assertEqual(self.run_bin("-m", "org/one", "-p", "hi", "--temp", "0", "--json")[0], 0)
        self.hub.add("org/two", {**ember, "other.safetensors": b"x" * 100})
        rc, out, err = self.pull("org/two")
        self.assertEqual(rc, 1)
        self.assertIn("org/two: has 2 files of safetensors, but no list of them (model.safetensors.index.json)", err)

    def test_quants(self):
        """Without a quant the one that suits the machine, never 16 bits beside others; by name without regard to case, or by its beginning."""
        rc, out, err = self.pull("org/tiny-GGUF")
        self.assertEqual(rc, 0, err)
        self.assertIn("org/tiny-GGUF has 3 quants; Q8_0 suits this machine best, org/tiny-GGUF:QUANT takes another", err)
        self.complete("org/tiny-GGUF", ["Tiny-Q8_0.gguf"])
        for wanted in ("q4_k", "Q4"):
            rc, out, err = self.pull("org/tiny-GGUF:" + wanted)
            self.assertEqual(rc, 0, err)
            self.assertIn("org/tiny-GGUF:Q4_K", err)
            self.complete("org/tiny-GGUF", ["Tiny-Q8_0.gguf", "Tiny-Q4_K.gguf"])
        for wanted, text in (("Q", "Q is the beginning of several quants: Q4_K Q8_0"), ("Q2_K", "has no quant Q2_K; it has: Q4_K Q8_0 BF16")):
            rc, out, err = self.pull("org/tiny-GGUF:" + wanted)
            self.assertEqual(rc, 1)
            self.assertIn(text, err)

    def test_split_sets(self):
        """A set in a folder of its own comes complete, or is refused by the name of what is missing."""
        parts = {"Q8_0/Tiny-Q8_0-" + n[-19:]: data for n, data in gguf("Q8_0", 3).items()}
        self.assertEqual(len(parts), 3)
        self.hub.add("org/sets", {**parts, "Q4_K/Tiny-Q4_K-00002-of-00002.gguf": b"GGUF"})
        rc, out, err = self.pull("org/sets:Q8_0")
        self.assertEqual(rc, 0, err)
        self.complete("org/sets", list(parts))
        rc, out, err = self.pull("org/sets:Q4_K")
        self.assertEqual(rc, 1)
        self.assertIn("org/sets:Q4_K: the repository lacks Q4_K/Tiny-Q4_K-00001-of-00002.gguf, so the set is incomplete", err)

    def eyes(self, **how):
        """The bytes of a model that reads images and of its tower."""
        where = os.path.join(self.home, "eyes")
        eyes_gguf.make(where, **how)
        return read(os.path.join(where, "model.gguf")), read(os.path.join(where, "mmproj-F32.gguf"))

    def linked(self, name):
        """What the snapshot has: {path: the bytes of the file}."""
        return {f: read(os.path.join(self.snapshot(name), f)) for f in self.names(self.snapshot(name))}

    def test_tower(self):
        """A quant comes with one file of the vision tower, of several the best; it counts in sizes, is resumed and verified as others are, and the model then sees."""
        model, tower = self.eyes()
        others = {kind: tower + kind.encode() for kind in ("F32", "Q8_0", "F16", "BF16")}  # what follows the tensors is ignored
        names = {"F32": "mmproj-F32.gguf", "Q8_0": "Eyes-mmproj-Q8_0.gguf", "F16": "mmproj-model-f16.gguf", "BF16": "EYES-MMPROJ-bf16.gguf"}
        files = {"Eyes-Q8_0.gguf": model, "Eyes-Q4_K.gguf": self.quants["Q4_K"]}
        for kinds in (["F32"], ["F32", "Q8_0"], ["F32", "Q8_0", "F16"], ["F32", "Q8_0", "F16", "BF16"]):
            name, best = "org/eyes-" + kinds[-1], names[kinds[-1]]
            self.hub.add(name, {**{names[k]: others[k] for k in kinds}, **files})
            rc, out, err = self.pull(name + ":Q8_0")
            self.assertEqual(rc, 0, err)
            self.complete(name, ["Eyes-Q8_0.gguf", best])
            size = (len(model) + len(others[kinds[-1]])) / 1000
            self.assertIn(f"{name}:Q8_0 · {size:.0f} kB in 2 files\n", err)
            self.assertIn(f"reads images with the tower in {best}\n", err)
            self.assertIn(f"downloading {size:.0f} kB in 2 files\n", err)
            self.assertIn(f"pulled {name}:Q8_0: {size:.0f} kB", err)
            self.assertLess(err.index("reads images"), err.index("downloading"))
            self.assertEqual([row[2] for row in self.hub.sent(best)], ["header", 0])
            said = err
        picture = os.path.join(self.home, "wide.png")
        with open(picture, "wb") as f:
            f.write(eyes.picture(96, 40, 0))
        rc, out, err = self.run_bin("-m", name + ":Q8_0", "-f", picture, "-p", "What is this?", "--temp", "0", "-n", "3", "-v")
        self.assertEqual(rc, 0, err)
        self.assertIn("wide.png: 96 x 40 pixels, 12 tokens", err)
        of = json.loads(self.run_bin("-m", name + ":Q8_0", "--inspect", "--json")[1])["bytes"]
        self.assertGreater(of["vision"], 10000)
        fits = f"fits: {(of['all'] + of['vision']) / 1000:.0f} kB of "
        self.assertIn(fits, said)
        self.assertIn(fits, self.run_bin("-m", name + ":Q8_0", "--inspect")[1].decode())
        before = len(self.hub.sent())
        self.assertIn("is complete already", self.pull(name + ":Q8_0")[2])
        self.assertEqual(len(self.hub.sent()), before)
        rows = json.loads(self.run_bin("--models", "--json")[1])
        self.assertEqual([r["name"] for r in rows if name in r["name"]], [name + ":Q8_0"])

        cut, wrong = "org/eyes-cut", "org/eyes-wrong"  # verified and resumed
        self.hub.add(cut, {"Eyes-Q8_0.gguf": model, "mmproj-F16.gguf": others["F16"]})
        self.hub.add(wrong, {"Eyes-Q8_0.gguf": model, "mmproj-F16.gguf": others["Q8_0"]})
        self.hub.data["mmproj-F16.gguf"] = others["F16"][:-4] + b"F61!"
        rc, out, err = self.pull(cut + ":Q8_0")
        self.assertEqual(rc, 1)
        self.assertIn("mmproj-F16.gguf", err)
        self.assertFalse(os.path.exists(self.snapshot(cut)))
        del self.hub.data["mmproj-F16.gguf"]
        blobs = os.path.join(self.folder(wrong), "blobs")
        os.makedirs(blobs)
        half = len(others["Q8_0"]) // 2
        with open(os.path.join(blobs, hashlib.sha256(others["Q8_0"]).hexdigest() + ".incomplete"), "wb") as f:
            f.write(others["Q8_0"][:half])
        self.hub.log.clear()
        self.assertEqual(self.pull(wrong + ":Q8_0")[0], 0)
        self.assertEqual([row[2] for row in self.hub.sent("mmproj")], ["header", half])
        self.complete(wrong, ["Eyes-Q8_0.gguf", "mmproj-F16.gguf"])

    def test_towers_in_folders(self):
        """The tower is linked beside the model, where it is looked for; of several models in folders each has its own; one that hearth does not compute is named."""
        model, tower = self.eyes()
        strange = self.eyes(meta={"clip.projector_type": "gemma3"})[1]
        self.hub.add("org/deep", {"Q8_0/Eyes-Q8_0.gguf": model, "mmproj-F16.gguf": tower})
        self.assertEqual(self.pull("org/deep:Q8_0")[0], 0)
        self.assertTrue(self.linked("org/deep") == {"Q8_0/Eyes-Q8_0.gguf": model, "Q8_0/mmproj-F16.gguf": tower})  # a list of differences of megabytes would take hours
        self.assertTrue(json.loads(self.run_bin("-m", "org/deep:Q8_0", "--inspect", "--json")[1])["images"]["read"])
        self.hub.add("org/sizes", {"2B/Eyes-2B-Q8_0.gguf": model, "2B/mmproj-F16.gguf": tower, "8B/Eyes-8B-Q4_K.gguf": self.quants["Q4_K"], "8B/mmproj-BF16.gguf": strange})
        self.assertEqual(self.pull("org/sizes:Q8_0")[0], 0)
        self.assertTrue(self.linked("org/sizes") == {"2B/Eyes-2B-Q8_0.gguf": model, "2B/mmproj-F16.gguf": tower})  # a list of differences of megabytes would take hours
        self.hub.add("org/strange", {"Eyes-Q8_0.gguf": model, "mmproj-F16.gguf": strange, "mmproj-00001-of-00002.gguf": tower})
        rc, out, err = self.pull("org/strange:Q8_0")
        self.assertEqual(rc, 0, err)
        self.complete("org/strange", ["Eyes-Q8_0.gguf", "mmproj-F16.gguf"])
        self.assertIn("\nreads no images: mmproj-F16.gguf: a tower of the kind 'gemma3', which hearth does not compute yet\n", err)
        rc, out, err = self.pull("org/deep")  # one quant, which needs no name
        self.assertIn("org/deep:Q8_0 is complete already", err)

    def test_not_for_hearth(self):
        """A model that hearth cannot open is refused from its headers, before its weights are downloaded; --force pulls it."""
        config = json.loads(self.hub.repos["org/ember"]["config.json"])
        config.update(model_type="unheard_of", architectures=["UnheardOf"])
        self.hub.add("org/other", {**self.hub.repos["org/ember"], "config.json": json.dumps(config).encode()})
        rc, out, err = self.pull("org/other")
        self.assertEqual((rc, out), (1, b""))
        self.assertRegex(err, r"org/other: hearth cannot open it: config\.json: .*unheard_of.*; --force pulls it all the same")
        self.assertNotIn(0, [row[2] for row in self.hub.sent("model.safetensors")])
        self.assertFalse(os.path.exists(self.snapshot("org/other")))
        self.assertEqual(self.run_bin("--pull", "org/other", "--force")[0], 0)
        self.complete("org/other", NEEDED)
        self.hub.add("org/pictures", {"model.onnx": b"x", "README.md": b"y"})
        self.assertIn("no GGUF file and no safetensors with config.json", self.pull("org/pictures")[2])

    def test_places(self):
        """HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME name the cache, as for Hugging Face's own programs."""
        for env, below in (({"HF_HUB_CACHE": self.home + "/a", "HF_HOME": self.home + "/b"}, "a"), ({"HF_HOME": self.home + "/b"}, "b/hub"), ({"XDG_CACHE_HOME": self.home + "/c"}, "c/huggingface/hub")):
            rc, out, err = self.pull("org/tiny-GGUF:Q4_K", env=env)
            self.assertEqual(rc, 0, err)
            self.assertEqual(os.listdir(os.path.join(self.home, below, "models--org--tiny-GGUF/snapshots", self.hub.commits["org/tiny-GGUF"])), ["Tiny-Q4_K.gguf"])
            self.assertEqual(self.run_bin("-m", "org/tiny-GGUF", "--inspect", env=env)[0], 0)
        self.assertFalse(os.path.exists(self.cache))

    def test_names(self):
        for name in ("foo", "org/", "/etc/passwd", "org/../x", "a/b/c", "org/x:", "org/a--b", "https://x/y", "org/x:a\"b"):
            rc, out, err = self.pull(name)
            self.assertEqual((rc, out), (2, b""), name)
            self.assertIn("not a name on a hub; give ORG/NAME or ORG/NAME:QUANT", err)
        self.assertEqual(self.run_bin("--pull")[0], 2)

    def test_other_programs(self):
        """huggingface_hub finds in the cache what hearth has pulled, without a network, and hearth what it has left there half."""
        try:
            import huggingface_hub
        except ImportError:
            self.skipTest("no huggingface_hub (pip install huggingface_hub)")
        self.assertEqual(self.pull("org/ember")[0], 0)
        self.assertEqual(self.pull("org/tiny-GGUF:Q4_K")[0], 0)
        p = huggingface_hub.snapshot_download("org/ember", cache_dir=self.cache, local_files_only=True)
        self.assertEqual(p, self.snapshot())
        self.assertEqual(huggingface_hub.hf_hub_download("org/tiny-GGUF", "Tiny-Q4_K.gguf", cache_dir=self.cache, local_files_only=True), os.path.join(self.snapshot("org/tiny-GGUF"), "Tiny-Q4_K.gguf"))
        info = huggingface_hub.scan_cache_dir(self.cache)
        self.assertEqual((sorted(r.repo_id for r in info.repos), info.warnings), (["org/ember", "org/tiny-GGUF"], []))
        self.assertEqual({r.repo_id: list(r.refs) for r in info.repos}, {"org/ember": ["main"], "org/tiny-GGUF": ["main"]})


class Server(Case):
    """What servers and networks do."""

    def test_token(self):
        """The endpoint gets the token, the host to which it redirects does not; it comes from HF_TOKEN or the file of other programs."""
        self.hub.token = "hf_secret"
        rc, out, err = self.pull("org/ember")
        self.assertEqual(rc, 1)
        self.assertIn(f"org/ember: {self.hub.url} wants a token (status 401): there is no such repository, or it is private or gated; check the name, or set HF_TOKEN", err)
        self.assertIn("rejected the token", self.pull("org/ember", env={"HF_TOKEN": "hf_wrong"})[2])
        rc, out, err = self.pull("org/ember", env={"HF_TOKEN": "hf_secret"})
        self.assertEqual(rc, 0, err)
        self.assertNotIn("hf_secret", err)
        self.assertEqual({(row[0], row[3]) for row in self.hub.sent()}, {("endpoint", True), ("store", False)})
        self.write(".cache/huggingface/token", "hf_secret\n")
        self.assertEqual(self.pull("org/tiny-GGUF:Q4_K")[0], 0)
        self.assertEqual({row[3] for row in self.hub.sent(".gguf")}, {False})
        self.assertEqual(self.pull("org/tiny-GGUF:Q8_0", env={"HF_TOKEN": "a b"})[0], 2)

    def test_refusals(self):
        self.hub.gated = True
        self.assertIn(f"org/ember: access is refused (status 403): accept the model's terms at {self.hub.url}/org/ember, then set HF_TOKEN", self.pull("org/ember")[2])
        rc, out, err = self.pull("org/none")
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("org/none: not found", err)
        self.assertFalse(os.path.exists(self.folder("org/none")))
        for endpoint, code, text in (("ftp://x", 2, "HF_ENDPOINT"), ("http://127.0.0.1:1", 1, "after 6 attempts"), (self.hub.cdn, 1, "org/ember: ")):
            rc, out, err = self.pull("org/ember", env={"HF_ENDPOINT": endpoint})
            self.assertEqual(rc, code, err)
            self.assertIn(text, err)
        self.assertIn("HF_HUB_OFFLINE is set", self.pull("org/ember", env={"HF_HUB_OFFLINE": "1"})[2])

    def test_short_reads_and_busy_servers(self):
        """Closed connections, stalls, busy servers and expired addresses: the download continues where it was."""
        size = len(self.hub.repos["org/ember"]["model.safetensors"])
        gate = threading.Event()
        self.addCleanup(gate.set)
        self.hub.faults = [hub_server.status("model.safetensors", 503), hub_server.cut_after(self.hub, "model.safetensors", 1000000), hub_server.status("model.safetensors", 403),
                           hub_server.stall_after(self.hub, "model.safetensors", 500000, gate), hub_server.status("model.safetensors", 429, more={"Retry-After": "1"})]
        rc, out, err = self.pull("org/ember")
        self.assertEqual(rc, 0, err)
        self.complete("org/ember", NEEDED)
        begins = [row[2] for row in self.hub.sent("model.safetensors")]
        self.assertEqual(begins, ["header", 0, 0, 1000000, 1000000, 1500000, 1500000])
        self.assertGreater(size, 1500000)

    def test_gives_up(self):
        self.hub.faults = [hub_server.cut_after(self.hub, "model.safetensors", 1000, times=1000)]
        rc, out, err = self.pull("org/ember")
        self.assertEqual(rc, 1)
        self.assertRegex(err, "model.safetensors: .*; gave up after 6 attempts, the same command continues the download")
        self.assertFalse(os.path.exists(self.snapshot()))
        self.hub.faults = []
        self.assertEqual(self.pull("org/ember")[0], 0)
        self.complete("org/ember", NEEDED)
        self.assertEqual(self.hub.sent("model.safetensors")[-1][2], 6000)

    def test_server_without_ranges(self):
        """A server that sends everything again: so be it."""
        def whole(path, h):
            if hub_server.is_header(h):
                return False
            h.answer(200, self.hub.repos["org/ember"][path])
            return True
        self.hub.faults = [hub_server.cut_after(self.hub, "model.safetensors", 100000), whole]
        rc, out, err = self.pull("org/ember")
        self.assertEqual(rc, 0, err)
        self.complete("org/ember", NEEDED)

    def test_other_range(self):
        def wrong(path, h):
            if not h.first_byte():
                return False
            h.answer(206, b"zz", {"Content-Range": "bytes 5-6/100"})
            return True
        self.hub.faults = [hub_server.cut_after(self.hub, "model.safetensors", 100000), wrong]
        rc, out, err = self.pull("org/ember")
        self.assertEqual(rc, 1)
        self.assertIn("model.safetensors: the server sent another range than it was asked for", err)

    def test_range_not_satisfiable(self):
        self.hub.faults = [hub_server.cut_after(self.hub, "model.safetensors", 100000), hub_server.status("model.safetensors", 416)]
        rc, out, err = self.pull("org/ember")
        self.assertEqual(rc, 0, err)
        self.complete("org/ember", NEEDED)
        self.assertEqual([row[2] for row in self.hub.sent("model.safetensors")], ["header", 0, 100000, 0])

    def test_wrong_bytes(self):
        """A file that differs from its checksum is not kept, large or small; nor one that is longer or shorter."""
        right = self.hub.repos["org/ember"]
        for path in ("tokenizer_config.json", "model.safetensors"):
            shutil.rmtree(self.folder(), ignore_errors=True)
            for data, text in ((right[path][:-1] + b"?", "sends other bytes than it lists: checksum"), (right[path] + b"??", "sends more than the"), (right[path][:-1], "closed before the end of the file|status 416")):
                self.hub.data = {path: data}
                rc, out, err = self.pull("org/ember")
                self.assertEqual(rc, 1, err)
                self.assertRegex(err, path + ".*" + text)
                self.assertFalse(os.path.exists(self.snapshot()))
                self.assertNotIn(hashlib.sha256(right["model.safetensors"]).hexdigest() if path == "model.safetensors" else "-", os.listdir(os.path.join(self.folder(), "blobs")))
        self.hub.data = {}
        self.assertEqual(self.pull("org/ember")[0], 0)
        self.complete("org/ember", NEEDED)

    def test_redirects(self):
        """Redirects without an end, and a renamed repository."""
        def loop(path, h):
            h.answer(302, b"", {"Location": h.path})
            return True
        self.hub.faults = [loop]
        self.assertIn("config.json: the server redirects without an end", self.pull("org/ember")[2])

    def test_hostile_lists(self):
        for path in ("../../x.gguf", "/tmp/x.gguf", "a/../../x.gguf", "a//x.gguf", "x\\..\\y.gguf", "a/\u0001.gguf"):
            self.hub.add("org/bad", {path: b"GGUF"})
            rc, out, err = self.pull("org/bad")
            self.assertEqual((rc, out), (1, b""), path)
            self.assertIn("a file whose name leads out of its folder", err, path)
        for change in ({"oid": "../../x"}, {"size": -1}, {"size": 1 << 60}, {"lfs": {"oid": "A" * 64, "size": 4}}, {"lfs": {"oid": 5, "size": 4}}, {"size": "4"}):
            self.hub.lists = {"x.gguf": {"lfs": None, **change}}
            self.hub.add("org/bad", {"x.gguf": b"GGUF"})
            rc, out, err = self.pull("org/bad")
            self.assertEqual((rc, out), (1, b""), change)
            self.assertIn("without a valid size and checksum", err, change)
        self.assertFalse(os.path.exists(self.folder("org/bad")))
        self.hub.lists = {}
        for answer in (b"[]", b"{}", b"<html>", b'{"sha": "../../../x"}', b"[" * 1000):
            self.hub.servers[0].RequestHandlerClass.do_GET = lambda h: h.answer(200, answer)
            rc, out, err = self.pull("org/ember")
            self.assertEqual((rc, out), (1, b""), answer)
            self.assertRegex(err, "names no commit|is no hub")

    def test_disk_space(self):
        """More than the disk holds is refused before the first byte."""
        large = self.hub.entry("x.gguf", b"")["lfs"] | {"size": 1 << 45}
        self.hub.lists = {"model.safetensors": {"lfs": large}}
        rc, out, err = self.run_bin("--pull", "org/ember", "--force")
        self.assertEqual((rc, out), (1, b""))
        self.assertRegex(err, r"org/ember: 35\.2 TB are to be downloaded, but .* has room for .*; make room, or set HF_HOME")
        self.assertNotIn(0, [row[2] for row in self.hub.sent("model.safetensors")])


class Interrupted(Case):
    def begin(self, *args, n=3000000):
        """Starts a pull and returns when n bytes of the weights are on the disk, and the event that lets the server go on."""
        gate = threading.Event()
        self.addCleanup(gate.set)
        self.hub.faults.append(hub_server.stall_after(self.hub, "model.safetensors", n, gate))
        p = subprocess.Popen([driver.BIN, "--pull", "org/ember", *args], env={**self.env, "HEARTH_LIMITS": "read=100000"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.addCleanup(lambda: (p.poll() is None and p.kill(), p.wait(), p.stdout.close(), p.stderr.close()))
        part = os.path.join(self.folder(), "blobs", hashlib.sha256(self.hub.repos["org/ember"]["model.safetensors"]).hexdigest() + ".incomplete")
        end = time.monotonic() + driver.PATIENCE
        while not (os.path.exists(part) and os.path.getsize(part) >= n):
            self.assertLess(time.monotonic(), end)
            self.assertIsNone(p.poll())
            time.sleep(0.02)
        return p, gate, part

    def test_killed(self):
        """After kill -9 the same command continues; nothing of a half snapshot is a model meanwhile."""
        p, gate, part = self.begin()
        p.kill()
        p.wait()
        self.assertEqual(self.run_bin("-m", "org/ember", "-p", "hi")[0], 3)
        rc, out, err = self.pull("org/ember")
        self.assertEqual(rc, 0, err)
        self.assertRegex(err, r"hearth: continuing the download: 3\.\d MB of 17\.\d MB are there")
        self.assertEqual(self.hub.sent("model.safetensors")[-1][2], 3000000)
        self.complete("org/ember", NEEDED)

    def test_interrupted(self):
        p, gate, part = self.begin()
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(driver.PATIENCE), -signal.SIGINT)
        self.assertEqual(self.pull("org/ember")[0], 0)
        self.complete("org/ember", NEEDED)

    def test_damaged_part(self):
        """What a power loss has damaged is downloaded again."""
        p, gate, part = self.begin()
        p.kill()
        p.wait()
        with open(part, "r+b") as f:
            f.seek(1000)
            f.write(b"\0" * 5000)
        rc, out, err = self.pull("org/ember")
        self.assertEqual(rc, 0, err)
        self.assertEqual([row[2] for row in self.hub.sent("model.safetensors")][-2:], [3000000, 0])
        self.complete("org/ember", NEEDED)

    def test_other_parts(self):
        """A part that is longer than the file, and one that is complete."""
        blobs = os.path.join(self.folder(), "blobs")
        os.makedirs(blobs)
        data = self.hub.repos["org/ember"]["model.safetensors"]
        part = os.path.join(blobs, hashlib.sha256(data).hexdigest() + ".incomplete")
        for content, begins in ((data + b"more", ["header", 0]), (data, ["header"])):
            with open(part, "wb") as f:
                f.write(content)
            self.hub.log.clear()
            rc, out, err = self.pull("org/ember")
            self.assertEqual(rc, 0, err)
            self.complete("org/ember", NEEDED)
            self.assertEqual([row[2] for row in self.hub.sent("model.safetensors")], begins)
            os.unlink(part.removesuffix(".incomplete"))

    def test_two_at_once(self):
        p, gate, part = self.begin()
        rc, out, err = self.pull("org/ember")
        self.assertEqual((rc, out), (1, b""))
        self.assertIn("org/ember: another hearth pulls this repository now; wait for its end", err)
        self.assertEqual(self.pull("org/tiny-GGUF:Q4_K")[0], 0)  # another repository
        self.assertIsNone(p.poll())
        p.kill()

    def test_lock_of_others(self):
        """A blob that another program downloads under its lock is left to it."""
        oid = hashlib.sha256(self.hub.repos["org/ember"]["model.safetensors"]).hexdigest()
        with open(self.write(f".cache/huggingface/hub/.locks/models--org--ember/{oid}.lock", ""), "r+") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            rc, out, err = self.pull("org/ember")
            self.assertEqual((rc, out), (1, b""))
            self.assertIn("model.safetensors: another program downloads this file now; wait for its end", err)
        self.assertEqual(self.pull("org/ember")[0], 0)

    def test_changed_revision(self):
        """An update: what is the same is kept, refs/main names the new commit, and the new files answer."""
        self.assertEqual(self.pull("org/ember")[0], 0)
        old = self.snapshot()
        self.hub.log.clear()
        self.hub.add("org/ember", {**self.hub.repos["org/ember"], "generation_config.json": b'{"temperature": 0.25}'}, revision=2)
        self.assertEqual(self.pull("org/ember")[0], 0)
        self.complete("org/ember", NEEDED)
        self.assertNotEqual(self.snapshot(), old)
        self.assertEqual({row[1] for row in self.hub.sent()}, {"generation_config.json"})
        self.assertEqual(json.loads(self.run_bin("-m", "org/ember", "--inspect", "--json")[1])["path"], self.snapshot())

    def test_full_disk(self):
        """A write that fails, at each place: said, and continued; so are failing renames and syncs."""
        for kind in ("write", "rename", "sync", "open", "read"):
            for n in (1, 2, 5, 9, 40, 200):
                rc, out, err = self.pull("org/ember", env={"HEARTH_FAULT": f"{kind}:{n}"})
                self.assertEqual(out, b"", (kind, n))
                if rc:
                    self.assertEqual(rc, 1, (kind, n, err))
                    self.assertRegex(err, r"hearth: \S", (kind, n))
                    self.assertFalse(os.path.exists(os.path.join(self.snapshot(), "config.json")), (kind, n))
                rc, out, err = self.pull("org/ember")
                self.assertEqual(rc, 0, (kind, n, err))
                self.complete("org/ember", NEEDED)
                shutil.rmtree(self.folder())

    def test_power_loss(self):
        """Killed at each write, sync and rename: the next run completes the model, and never a half one opens."""
        for kind in ("write", "rename", "sync"):
            for n in (1, 2, 3, 5, 8, 13, 60):
                rc, out, err = self.pull("org/ember", env={"HEARTH_FAULT": f"{kind}:{n}!"})
                if rc == -signal.SIGKILL and os.path.exists(os.path.join(self.snapshot(), "config.json")):
                    self.assertEqual(self.names(self.snapshot()), sorted(NEEDED), (kind, n))
                self.assertEqual(self.pull("org/ember")[0], 0, (kind, n))
                self.complete("org/ember", NEEDED)
                shutil.rmtree(self.folder())


class Asked(Case):
    """On a terminal."""

    def test_offer(self):
        """-m of an absent model offers to pull it; Enter means yes, and the chat opens."""
        t = self.terminal("-m", "org/ember", cols=100)
        at = t.until("org/ember is not on this machine")
        at = t.until("fits: 17.1 MB", at)
        at = t.until("Enter: yes, n: no >", at)
        self.assertEqual(self.hub.sent("model.safetensors")[-1][2], "header")
        t.send("\r")
        at = t.until("pulled org/ember", at)
        t.prompt(at)
        t.send("\x04")
        self.assertEqual(t.wait(), 0)
        self.complete("org/ember", NEEDED)

    def test_offer_of_a_quant(self):
        """-m ORG/NAME:QUANT of a repository that is here with another quant."""
        self.assertEqual(self.pull("org/tiny-GGUF:Q4_K")[0], 0)
        self.assertIn("org/tiny-GGUF:Q8_0: not in the Hugging Face cache; this downloads it: hearth --pull org/tiny-GGUF:Q8_0", self.run_bin("-m", "org/tiny-GGUF:Q8_0", "-p", "x")[2])
        t = self.terminal("-m", "org/tiny-GGUF:q8_0")
        at = t.until("Enter: yes, n: no >")
        t.send("y\r")
        at = t.until("pulled org/tiny-GGUF:Q8_0", at)
        t.prompt(at)
        t.send("\x04")
        self.assertEqual(t.wait(), 0)
        self.complete("org/tiny-GGUF", ["Tiny-Q4_K.gguf", "Tiny-Q8_0.gguf"])

    def test_declined(self):
        t = self.terminal("-m", "org/ember", "-p", "hi")
        t.until("Enter: yes, n: no >")
        t.send("n\r")
        t.until("org/ember was not downloaded; hearth --pull org/ember does it later")
        self.assertEqual(t.wait(), 1)
        self.assertNotIn(0, [row[2] for row in self.hub.sent("model.safetensors")])

    def test_mistyped_path(self):
        """A path below a folder that exists is not asked for on the network."""
        os.makedirs(os.path.join(self.home, "org"))
        t = self.terminal("-m", "org/ember", "-p", "hi", cwd=self.home)
        t.until("this downloads it: hearth --pull org/ember")
        self.assertEqual(t.wait(), 3)
        self.assertEqual(self.hub.sent(), [])

    def test_never_in_scripts(self):
        rc, out, err = self.run_bin("-m", "org/ember", "-p", "hi")
        self.assertEqual((rc, out), (3, b""))
        self.assertIn("this downloads it: hearth --pull org/ember", err)
        self.assertEqual(self.hub.sent(), [])

    def test_choice(self):
        """Several quants: sizes, what fits, a proposal that Enter takes."""
        t = self.terminal("--pull", "org/tiny-GGUF", cols=100)
        t.until("Which one? Enter takes Q8_0 >")
        screen = "\n".join(t.screen(24, 100))
        self.assertRegex(screen, r"Q4_K +1\.2 MB +fits, .*tok/s\s+Q8_0 +2\.3 MB +fits, .*<- suits this machine best\s+BF16 +4\.\d MB +fits")
        t.send("q4\r")
        t.until("pulled org/tiny-GGUF:Q4_K")
        self.assertEqual(t.wait(), 0)
        self.complete("org/tiny-GGUF", ["Tiny-Q4_K.gguf"])

    def test_progress(self):
        """A bar with amounts and a rate while bytes arrive."""
        gate = threading.Event()
        self.addCleanup(gate.set)
        self.hub.faults.append(hub_server.stall_after(self.hub, "model.safetensors", 9000000, gate))
        t = self.terminal("--pull", "org/ember", cols=100, env={"HEARTH_LIMITS": "read=100000"})
        t.until(rb"9\.\d MB of 17\.\d MB, [0-9.]+ [kM]?B/s \[#+-+\] 5\d %")
        gate.set()
        t.until("pulled org/ember")
        self.assertEqual(t.wait(), 0)


if __name__ == "__main__":
    unittest.main()
