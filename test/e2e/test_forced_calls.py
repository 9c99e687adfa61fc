"""Required tool calls with published vocabularies and templates of ../shared: random weights answer, and every answer is calls that are valid by their schemas, also when
the markers of calls are the likeliest tokens everywhere. Writes checkpoints of 160 MB: only with -Dlong_tests=true. HEARTH_FORMS: the forms to test, with commas."""
import json
import os
import subprocess
import sys

import driver
from server import Case, ask
from test_protocols import CITY, TEMPLATE, is_city

SHARED = os.environ.get("HEARTH_SHARED", "")
MKMODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "mkmodel.py")
NOTE = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 30}, "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2}}, "required": ["text"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "description": "d", "parameters": p}} for name, p in (("get_weather", CITY), ("write-note", NOTE))]
HARMONY = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")
GLM = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
DSML = "｜DSML｜"
LONGCAT = ("<longcat_tool_call>", "</longcat_tool_call>")
# name: (vocabulary, template file or text, markers that are made likely, those of them that the vocabulary is given, whether an answer may have several calls)
FORMS = {
    "qwen3": ("qwen3", "Qwen-Qwen3-0.6B.jinja", ("<tool_call>", "</tool_call>", "</think>"), (), True),
    "qwen2.5": ("qwen3", "Qwen-Qwen2.5-7B-Instruct.jinja", ("<tool_call>", "</tool_call>"), (), True),
    "kimi-k2": ("kimi_k2", "Kimi-K2-Instruct.jinja", ("<|tool_calls_section_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"), (), False),
    "kimi-k3": ("kimi_k3", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tokenizer", "chat", "kimi_k3.jinja"), ("<|open|>", "<|close|>", "<|sep|>"), (), False),
    "gpt-oss": ("qwen3", "openai-gpt-oss-120b.jinja", HARMONY, HARMONY, False),
    "mistral-nemo": ("qwen3", "mistralai-Mistral-Nemo-Instruct-2407.jinja", ("[TOOL_CALLS]", "[INST]"), ("[TOOL_CALLS]", "[INST]"), True),
    "longcat": ("qwen3", TEMPLATE.replace("tool_call>", "longcat_tool_call>"), LONGCAT, LONGCAT, True),
    "glm-4.6": ("qwen3", "GLM-4.6.jinja", GLM, GLM[2:], True),
    "glm-4.7": ("qwen3", TEMPLATE.replace("Write <tool_call>", "Write <tool_call><arg_key>x</arg_key><arg_value>x</arg_value>"), GLM, GLM[2:], True),
    "qwen3-coder": ("qwen3", "Qwen3-Coder.jinja", GLM[:2], (), True),
    "deepseek-v3.2": ("qwen3", "deepseek-ai-DeepSeek-V3.2.jinja", (DSML,), (DSML,), True),
    "deepseek-v4": ("qwen3", TEMPLATE.replace("Write <tool_call>", "Write <" + DSML + "tool_calls>"), (), (), True),
    "deepseek-v4.1": ("qwen3", TEMPLATE.replace("Write <tool_call>", "Write <" + DSML + " calls>"), (), (), True),
    "minimax-m2": ("qwen3", TEMPLATE.replace("Write <tool_call>", "Write <minimax:tool_call><invoke name="), (), (), True),
    "text": ("qwen3", TEMPLATE.replace("tool_call>", "longcat_tool_call>"), (), (), True),  # markers without a token
}
REFUSED = {"microsoft-Phi-3.5-mini-instruct.jinja": "a form that cannot be required", "deepseek-ai-DeepSeek-V3.1.jinja": "tools are not supported",
           "llama-cpp-deepseek-r1.jinja": "not JSON serializable"}
KIMI = {163584: "[BOS]", 163585: "[EOS]", 163586: "<|im_end|>", 163587: "<|im_user|>", 163588: "<|im_assistant|>", 163594: "<|im_system|>", 163601: "<|im_middle|>",
        **{163595 + i: f"<|tool_{s}|>" for i, s in enumerate(("calls_section_begin", "calls_section_end", "call_begin", "call_argument_begin", "call_end"))}}
KIMI_K3 = {163584: "[BOS]", 163585: "[EOS]", 163586: "<|end_of_msg|>", 163587: "<|open|>", 163588: "<|close|>", 163589: "<|sep|>"}


def is_valid(name, arguments):
    if name == "get_weather":
        return is_city(arguments)
    text, tags = arguments.get("text"), arguments.get("tags", [])
    return name == "write-note" and set(arguments) <= {"text", "tags"} and isinstance(text, str) and len(text) <= 30 and len(tags) <= 2 and all(isinstance(t, str) for t in tags)


class Forced(Case):
    def vocabulary(self, name, markers):
        """Returns the tokenizer's files {name: text or path} and its number of ids, with these markers added."""
        path = os.path.join(SHARED, "tokenizers", name)
        if name.startswith("kimi"):
            path, control = os.path.join(SHARED, "tokenizers", "kimi_k2"), KIMI_K3 if name == "kimi_k3" else KIMI
            config = {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {str(i): {"content": c, "special": True} for i, c in control.items()}, "bos_token": "[BOS]", "eos_token": "[EOS]"}
            return {"tiktoken.model": path + ".tiktoken", "tokenizer_config.json": json.dumps(config)}, 163840
        with open(path + ".tokenizer.json", encoding="utf-8") as f:
            t = json.load(f)
        n = max([*t["model"]["vocab"].values(), *(a["id"] for a in t["added_tokens"])]) + 1
        t["added_tokens"] += [{**t["added_tokens"][0], "id": n + i, "content": c, "special": True} for i, c in enumerate(markers)]
        with open(path + ".tokenizer_config.json", encoding="utf-8") as f:
            config = json.load(f)
        config.pop("chat_template", None)
        config.pop("added_tokens_decoder", None)
        return {"tokenizer.json": json.dumps(t), "tokenizer_config.json": json.dumps(config)}, n + len(markers)

    def model(self, vocabulary, markers):
        """Writes a random checkpoint with the vocabulary, once for each size; returns its directory."""
        files, n = self.vocabulary(vocabulary, markers)
        out = os.path.join(self.home, vocabulary)
        if not os.path.isdir(out):
            subprocess.run([sys.executable, MKMODEL, "--shape", "toy", "--layers", "1", "--vocab", str(max(n, 163840)), "--out", out], check=True, stdout=subprocess.DEVNULL)
        for name in ("tokenizer.json", "tokenizer_config.json", "tiktoken.model"):
            if os.path.lexists(os.path.join(out, name)):
                os.unlink(os.path.join(out, name))
        for name, text in files.items():
            if os.path.isabs(text):
                os.symlink(text, os.path.join(out, name))
            else:
                with open(os.path.join(out, name), "w") as f:
                    f.write(text)
        return out

    def template(self, text):
        path = os.path.join(SHARED, "templates", text)
        if text.endswith(".jinja"):
            return path
        path = os.path.join(self.home, "given.jinja")
        with open(path, "w") as f:
            f.write(text)
        return path

    def calls(self, s, form, **more):
        """Returns the calls of an answer as [(name, arguments)]."""
        status, j = s.chat("hello", tools=TOOLS, max_tokens=250, **more)
        self.assertEqual(status, 200, (form, more, j))
        choice = j["choices"][0]
        self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("tool_calls", None), (form, more, choice))
        out = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in choice["message"]["tool_calls"]]
        for name, arguments in out:
            self.assertTrue(is_valid(name, arguments), (form, more, out))
        return out

    def check(self, s, form, markers, several):
        ids = {m: json.loads(s.request("POST", "/tokenize", {"content": m, "parse_special": True})[2])["tokens"] for m in markers}
        self.assertTrue(all(len(v) == 1 for v in ids.values()), ids)
        n = most = 0
        for seed in range(2):
            for bias in ({}, {str(v[0]): 100 for v in ids.values()}):
                # thinking that the prompt has opened goes on until its closing token is drawn
                body = {"seed": seed, "temperature": 1, "logit_bias": bias, "chat_template_kwargs": {"enable_thinking": False, "thinking": False}}
                got = self.calls(s, form, tool_choice="required", **body)
                most = max(most, len(got))
                self.assertEqual(len(self.calls(s, form, tool_choice="required", parallel_tool_calls=False, **body)), 1)
                for t in TOOLS:
                    name = t["function"]["name"]
                    self.assertEqual([c[0] for c in self.calls(s, form, tool_choice={"type": "function", "function": {"name": name}}, **body)], [name])
                n += len(got) + 3
        if not several:
            self.assertEqual(most, 1)
        print(f"{form}: {n} calls, at most {most} in an answer", flush=True)

    def test_forms(self):
        if not os.path.isdir(os.path.join(SHARED, "tokenizers")):
            self.skipTest("no ../shared/tokenizers")
        only = os.environ.get("HEARTH_FORMS", ",".join(FORMS)).split(",")
        for form, (vocabulary, template, markers, added, several) in FORMS.items():
            if form not in only:
                continue
            with self.subTest(form=form):
                s = self.serve("-m", self.model(vocabulary, added), "--template", self.template(template), "--kv-cache", "off", "-c", "4096", "--force", "-t", "1")
                try:
                    self.check(s, form, markers, several)
                finally:
                    s.end()

    def test_refused(self):
        if not os.path.isdir(os.path.join(SHARED, "tokenizers")):
            self.skipTest("no ../shared/tokenizers")
        model = self.model("qwen3", ())
        for template, why in REFUSED.items():
            s = self.serve("-m", model, "--template", self.template(template), "--kv-cache", "off", "-c", "4096", "--force", "-t", "1")
            status, j = s.chat("x", tools=TOOLS, tool_choice="required")
            self.assertEqual(status, 400, template)
            self.assertIn(why, j["error"]["message"])
            s.end()


if __name__ == "__main__":
    driver.unittest.main()
