#!/usr/bin/env python3
"""Random texts of grammars are valid: JSON schemas by python-jsonschema, patterns by re. Bad schemas are refused with the place of the keyword.

usage: test_grammar_walk.py GRAMMAR_WALK [texts of each grammar] [directory of a tokenizer, whose tokens then make the texts]"""
import json
import os
import re
import subprocess
import sys

from schemas import REFUSED, VALID

try:
    import jsonschema
except ImportError:
    jsonschema = None

REGEX = ["abc", "a|b|cd", "(ab)*c?", "[a-f0-9]{8}", "x{2,3}y+?", "^start.*end$", "\\d+(\\.\\d{1,2})?", "[^\\d\\W]+", "\\u00e9[\u4e00-\u9fff]", "(a?b?){2,3}c", "a{0}b", "[\\]\\-x]+", "\\S+@\\S+"]
GBNF = {
    'root ::= "a" b | [0-9]+ # comment\nb ::= ("x" | "y"){2,3}\n': r"a[xy]{2,3}|[0-9]+",
    'root ::= item ("," item)*\nitem ::= [^,\\n"]+ | "\\"" "q"? "\\""': r'([^,\n"]+|"q?")(,([^,\n"]+|"q?"))*',
    'ws ::= [ \\t]*\nroot ::= "[" ws (\n  "\\x41" |\n  "\\u00e9"\n) ws "]"': "\\[[ \\t]*(A|\u00e9)[ \\t]*\\]",
}
BAD = {"regex": ["(", "a)", "[a", "a**", "(?=a)", "\\1", "[z-a]", "a{3,1}", "a^b", "\\p{L}"],
       "gbnf": ["root ::= x", 'root ::= root "a" | "b"', 'a ::= "x"', 'root ::= "x', "root = 1", 'root ::= [a', 'root ::= "a"\nroot ::= "b"', "root ::= (", "root ::= <think>"],
       "choices": ["[]", "[1]", "{}", "[\"\"]"]}


def check_schemas(ask, count, fail):
    if jsonschema is None:
        print("SKIPPED: documents are not validated: no jsonschema (pip install jsonschema)")
    n = 0
    for name, schema in VALID.items():
        reply = ask("schema", json.dumps(schema), count)
        if "error" in reply:
            fail(f"schema {name}: refused: {reply['error']}")
            continue
        validator = jsonschema and jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        for text in reply["texts"]:
            n += 1
            try:
                value = json.loads(text)
                if validator:
                    validator.validate(value)
            except Exception as e:
                fail(f"schema {name}: {text!r}: {str(e).splitlines()[0]}")
    for name, (schema, where) in REFUSED.items():
        reply = ask("schema", json.dumps(schema), 1)
        if where is not None and where not in reply.get("error", "<accepted>") or "error" not in reply:
            fail(f"schema {name}: expected a refusal with {where}: {reply}")
    return n


def check_texts(ask, count, fail):
    n = 0
    for pattern in REGEX:
        reply = ask("regex", pattern, count)
        for text in reply.get("texts", [reply.get("error")]):
            n += 1
            if not re.fullmatch(pattern, text):
                fail(f"regex {pattern}: {text!r}")
    for grammar, pattern in GBNF.items():
        reply = ask("gbnf", grammar, count)
        for text in reply.get("texts", [reply.get("error")]):
            n += 1
            if not re.fullmatch(pattern, text):
                fail(f"gbnf {grammar!r}: {text!r}")
    for text in ask("choices", '["a", "b,c", "\u00e9"]', count)["texts"]:
        n += 1
        if text not in ("a", "b,c", "\u00e9"):
            fail(f"choices: {text!r}")
    for text in ask("json-object", "", count)["texts"]:
        n += 1
        if not isinstance(json.loads(text), dict):
            fail(f"json-object: {text!r}")
    for kind, sources in BAD.items():
        for source in sources:
            if "error" not in ask(kind, source, 1):
                fail(f"{kind} {source!r}: not refused")
    return n


def main():
    if len(sys.argv) > 3 and not os.path.isdir(sys.argv[3]):
        print(f"SKIPPED: no {sys.argv[3]}")
        return 77
    tool, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20
    process = subprocess.Popen([tool, *sys.argv[3:4]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    failures = []

    def fail(text):
        failures.append(text)
        print(text)

    def ask(kind, source, n):
        process.stdin.write(json.dumps({"kind": kind, "source": source, "seed": 1, "count": n}) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    n = check_schemas(ask, count, fail) + check_texts(ask, count, fail)
    process.stdin.close()
    print(f"{n} texts, {len(failures)} failures")
    return 1 if failures or process.wait() or n < count * 60 else 0


sys.exit(main())
