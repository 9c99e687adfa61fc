"""Answers end at the tokens that config files, tokenizer, template or GGUF metadata name, each by itself.
test_ends.py HEARTH"""
import json
import os
import sys
import tempfile

import gguf_file
import gguf_pair
import tiny
from checks import check, end, run


def edit(directory, name, change):
    path = os.path.join(directory, name)
    with open(path, encoding="utf-8") as f:
        value = json.load(f)
    change(value)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False)


def answer(model, *args):
    """Returns why the answer to "hi" ended before or after its first token, or the error."""
    rc, out, err = run("-m", model, "-p", "hi", "--temp", "0", "-n", "1", "--json", "--no-save", *args)
    return json.loads(out)["reason"] if rc == 0 else f"exit {rc} {err}"


def first_id(model, text):
    """The id that a model answers first."""
    rc, out, err = run("-m", model, "--tokens", ",".join(map(str, text)), "-n", "1", "--temp", "0", "--ids")
    return json.loads(out)[-1] if rc == 0 else check(False, "the first id", err)


def checkpoint(tmp):
    d = os.path.join(tmp, "tiny")
    tiny.make(d)
    template = "{% for m in messages %}{{ m['content'] }}X{% endfor %}"
    edit(d, "tokenizer_config.json", lambda c: c.update(chat_template=template.replace("X", "")))
    first = first_id(d, b"hi")
    token = next(t for t, i in tiny.tokenizer()["model"]["vocab"].items() if i == first)
    check(answer(d) == "length", "no file names the token", answer(d))
    edit(d, "tokenizer_config.json", lambda c: c.update(eos_token=token))
    check(answer(d) == "stop", "eos_token of tokenizer_config.json", answer(d))
    check(answer(d, "--raw") == "stop", "without a template", answer(d, "--raw"))
    # a token that only the template names; the prompt ends with it, too
    edit(d, "tokenizer_config.json", lambda c: c.update(eos_token="<eos>", chat_template=template.replace("X", "<end>")))
    edit(d, "tokenizer.json", lambda t: t["added_tokens"].append({"id": 287, "content": "<end>", "special": True, "normalized": False}))
    first = first_id(d, [*b"hi", 287])
    token = next(t for t, i in tiny.tokenizer()["model"]["vocab"].items() if i == first)
    check(answer(d) == "length", "another token ends the template's answers", answer(d))
    edit(d, "tokenizer.json", lambda t: t["added_tokens"].insert(0, {"id": first, "content": token, "special": True, "normalized": False}))
    edit(d, "tokenizer_config.json", lambda c: c.update(
        chat_template="{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'user' %}<end>{% else %}" + token + "{% endif %}{% endfor %}"))
    check(answer(d) == "stop", "the template's own end", answer(d))


def gguf(tmp):
    """The token that the model writes first gets a name, a type, and company."""
    d = os.path.join(tmp, "gguf")
    original = gguf_pair.vocabulary
    first, names, kind = None, {}, 3

    def vocabulary(n):
        tokens, kinds, merges = original(n)
        for i, name in names.items():
            if name in tokens:
                tokens[tokens.index(name)] = "<was " + name
            tokens[i], kinds[i] = name, kind
        return tokens, kinds, merges

    def reason():
        return answer(gguf_file.qwen3moe("Q8_0").save(d)[0], "--raw")

    gguf_pair.vocabulary = vocabulary
    try:
        file, _ = gguf_file.qwen3moe("Q8_0").save(d)
        prompt = [original(288)[0].index(c) for c in "hi"]
        first = first_id(file, prompt)
        check(reason() != "stop", "a nameless token goes on", reason())
        for name, kind, wanted in (("<|im_end|>", 1, "stop"), ("<|fim_pad|>", 3, "stop"), ("</s>", 3, "stop"), ("</s>", 4, "length"),
                                   ("<|end|>", 3, "stop"), ("<|calls|>", 4, "stop"), ("<other>", 3, "length")):
            names = {first: name}
            got = reason()
            check(got == wanted, f"{name} of type {kind}", got)
        for pair in (("<|return|>", "<|call|>"), ("<|flush|>", "<|calls|>")):
            names, kind = {first: "<|end|>", 280: pair[0], 281: pair[1]}, 3
            got = reason()
            check(got == "length", f"<|end|> beside {pair}", got)
    finally:
        gguf_pair.vocabulary = original


def main():
    with tempfile.TemporaryDirectory() as tmp:
        checkpoint(tmp)
        gguf(tmp)
    return end()


sys.exit(main())
