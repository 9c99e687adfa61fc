"""ember is taught only what this binary does: options, values, commands, families and modes in its answers are checked against the binary's own
lists. Missing features may be named only where they are refused: in a sentence with "does not", "yet" or "refuses"."""
import os
import re
import sys

import driver

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "training", "ember"))
import corpus  # noqa: E402

REFUSING = re.compile(r"\bdoes not\b|\byet\b|\brefuses\b")
SENTENCE = re.compile(r"(?<=[.;:?!]) +(?=[A-Zh-])")  # of an answer; "hearth" and options may start a command line
# Names of models in answers, and the model_type that a binary which opens them lists.
MODELS = {
    r"DeepSeek V2\b": "deepseek_v2", r"\bV3(?!\.2)(?:\.1)?\b": "deepseek_v3", r"\bR1\b": "deepseek_v3", r"\bKimi\b": "kimi_k2", r"\bQwen2\b": "qwen2_moe",
    r"\bQwen3\b(?![-.])": "qwen3_moe", r"\bQwen3-Next\b": "qwen3_next", r"\bQwen3\.5\b": "qwen3_5_moe", r"\bQwen3\.5 MoE\b": "qwen3_5_moe_text",
    r"\bMixtral\b": "mixtral", r"\bV3\.2\b": "deepseek_v32", r"\bV4\b": "deepseek_v4", r"\bGLM\b(?!-5)": "glm4_moe", r"\bGLM-5\b": "glm_moe_dsa", r"\bMiniMax\b": "minimax_m2",
    r"\bgpt-oss\b": "gpt_oss", r"\bPhi\b": "phimoe", r"\bDBRX\b": "dbrx", r"\bLlama\b": "llama", r"\bMistral\b": "mistral", r"\bGrok\b": "grok", r"\bGemma\b": "gemma3",
}
# Features, and the options that come with them.
FEATURES = {
    r"expert cache|hot experts": "expert-cache", r"[Ss]peculat|\bdraft\b|\bMTP\b": "draft", r"on disk too|KV caches? in|on disk yet": "kv-cache",
    r"\bAPI\b|server mode": "serve",
}
FORMATS = r"EXL[23]|HQQ|bitsandbytes"  # none of them can be opened


class Corpus(driver.Case):
    def setUp(self):
        super().setUp()
        self.answers = {name: topic.answer for name, topic in corpus.load_topics().items()}
        self.assertGreater(len(self.answers), 100)
        text = self.run_bin("--help", "all")[1].decode()
        text = text[text.index("\nModel:"):]
        self.options = set(re.findall(r"--([a-z][a-z-]*)", text))
        # An option that the command line parses but this build refuses does not count.
        self.options -= {o for o in ("plan",) if "this build cannot" in self.run_bin("--" + o, "x")[2]}
        self.choices = {m[1]: set(m[2].split(", ")) for m in re.finditer(r"(?m)^ +(?:-\w, )?--([a-z-]+) [A-Z]+ .*: ([a-z0-9]+(?:, [a-z0-9]+)+)$", text)}
        self.letters = set(re.findall(r"(?m)^ +-(\w), ", text))
        self.families = set(re.search(r"(?m)^families: (.*)$", self.run_bin("--version", "--verbose")[1].decode())[1].split(", "))

    def sentences(self):
        for name, answer in self.answers.items():
            for sentence in SENTENCE.split(answer):
                yield name, sentence, bool(REFUSING.search(sentence))

    def wrong(self, found):
        self.assertFalse(found, "\n" + "\n".join(f"[{name}] {what}" for name, what in found))

    def test_options(self):
        self.assertIn("max-tokens", self.options)
        named = [(name, o) for name, s, refusing in self.sentences() if not refusing for o in re.findall(r"--([a-z][a-z-]*)", s)]
        wrong = [(name, "--" + o) for name, o in named if o not in self.options]
        named = [(name, o) for name, a in self.answers.items() if name != "build" for o in re.findall(r"(?<![\w-])-([a-zA-Z])(?![\w=-])", a)]
        wrong += [(name, "-" + o) for name, o in named if o not in self.letters]
        self.wrong(wrong)

    def test_values(self):
        """A value after an option is one of its values, and a list of values is complete."""
        self.assertLessEqual({"prefill", "decode", "split", "kv", "cpu", "color"}, set(self.choices))
        wrong = []
        for name, s, refusing in self.sentences():
            named = [o for o in self.choices if "--" + o in s]
            for o in named:
                for value in re.findall(rf"--{o}[ =]([a-z0-9]+)", s):
                    if value not in self.choices[o] and not re.fullmatch(r"[a-z]+s", value):
                        wrong.append((name, f"--{o} {value}"))
        for name, answer in self.answers.items():
            for values in re.findall(r"\b[a-z0-9]+(?:, [a-z0-9]+)*,? or [a-z0-9]+", answer):
                values = set(re.split(r",? or |, ", values))
                for o in self.choices:
                    if "--" + o in answer and len(values) > 1 and len(values & self.choices[o]) > 1 and values != self.choices[o]:
                        wrong.append((name, f"--{o}: {sorted(values ^ self.choices[o])}"))
        self.wrong(wrong)

    def test_commands(self):
        t = self.terminal(rows=70)
        at = t.prompt()
        t.send("/help all\r")
        t.until("Ctrl-D leaves", at)
        commands = set(re.findall(r"\n(?:\x1b\[\d*m)* +/([a-z]+)", t.out[at:].decode("utf-8", "replace")))
        t.send("/bye\r")
        self.assertEqual(t.wait(), 0)
        self.assertLess({"help", "bye", "compact"}, commands)
        self.wrong([(n, "/" + c) for n, s, refusing in self.sentences() if not refusing for c in re.findall(r"(?<![\w.~/])/([a-z]+)\b(?!/)", s) if c not in commands])
        self.assertEqual(set(re.findall(r"/([a-z]+)", self.answers["slash-commands"])), commands)

    def test_families(self):
        self.assertIn("deepseek_v3", self.families)
        wrong = []
        for name, s, refusing in self.sentences():
            for pattern, family in MODELS.items():
                if re.search(pattern, s) and refusing == (family in self.families) and (name == "families" or not refusing):
                    wrong.append((name, f"{re.search(pattern, s)[0]} is {'not ' * (not refusing)}refused"))
        self.wrong(wrong)
        opened = " ".join(s for n, s, refusing in self.sentences() if n == "families" and not refusing)
        named = {family for pattern, family in MODELS.items() if re.search(pattern, opened)}
        self.assertLessEqual(named, self.families)
        self.assertGreater(len(named), 10)
        self.assertIn("--version -v", opened)  # names the rest

    def test_features(self):
        wrong = []
        for name, s, refusing in self.sentences():
            for pattern, option in FEATURES.items():
                if re.search(pattern, s) and refusing == (option in self.options):
                    wrong.append((name, s))
            if re.search(FORMATS, s) and not refusing:
                wrong.append((name, s))
        self.wrong(wrong)

    def test_variables(self):
        shown = self.run_bin("--print-config")[1].decode()
        settings = {"HEARTH_" + k.upper().replace("-", "_") for k in re.findall(r"(?m)^#? ?([a-z-]+) *=", shown)}
        self.assertIn("HEARTH_MAX_TOKENS", settings)
        self.wrong([(n, v) for n, a in self.answers.items() for v in re.findall(r"HEARTH_[A-Z_]+", a) if v != "HEARTH_" and v not in settings])

    def test_facts(self):
        """An answer contains the words that other wordings of its question are graded by; otherwise it could never be right."""
        self.wrong([(n, f) for n, t in corpus.load_topics().items() for f in t.facts if f not in t.answer])


if __name__ == "__main__":
    driver.unittest.main()
