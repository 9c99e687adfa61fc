#!/usr/bin/env python3
"""Random texts of grammars are valid: JSON schemas by python-jsonschema, patterns by re; calls in each family's form are read as arguments that are valid by
the tool's schema. Bad schemas are refused with the place of the keyword.

usage: test_grammar_walk.py GRAMMAR_WALK [texts of each grammar] [directory of a tokenizer, whose tokens then make the texts]"""
import json
import os
import re
import subprocess
import sys
import tempfile

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
# marks of chat templates: the families whose arguments are between tags, and one whose arguments are JSON
FORMS = {"glm": "{{ tools }}<tool_call><arg_key>", "glm4.7": "{{ tools }}<tool_call></arg_key><arg_value><arg_key>", "qwen3-coder": "{{ tools }}<tool_call><function=",
         "deepseek-v3.2": "{{ tools }}｜DSML｜{{ 'function_calls>' }}", "deepseek-v4": "{{ tools }}｜DSML｜{{ 'tool_calls>' }}", "deepseek-v4.1": "{{ tools }}｜DSML｜{{ ' calls>' }}",
         "minimax": "{{ tools }}<minimax:tool_call><invoke name=", "hermes": "{{ tools }}<tool_call>", "longcat": "{{ tools }}<longcat_tool_call><longcat_arg_key>", "cohere": "{{ tools }}<|START_ACTION|>",
         "hunyuan": "{{ tools }}<tool_call><arg_key><tool_sep>", "hunyuan-joined": "{{ tools }}{% set s = ':opensource' %}<tool_sep", "seed": "{{ tools }}<seed:tool_call><function=",
         "mistral": "{{ tools }}[TOOL_CALLS][ARGS]", "mistral-ids": "{{ tools }}[TOOL_CALLS][CALL_ID][ARGS]", "nemotron": "{{ tools }}<TOOLCALL>", "apriel": "{{ tools }}<tool_calls>[",
         "minimax-m1": "{{ tools }}<beginning_of_sentence><tool_calls>", "solar": "{{ tools }}<|begin|>assistant<|tool_calls|><|tool_call:begin|>", "gigachat": "{{ tools }}<|function_call|>",
         "kimi-k3": "{{ tools }}{{ '<|open|>' ~ tag ~ '<|sep|>' }}", "gigachat3.5": "{{ tools }}｜GCML｜{{ 'tool_calls>' }}",
         "step3": "{{ tools }}<｜tool_calls_begin｜><steptml:invoke", "pangu": "{{ tools }}[unused11]", "minicpm5": '{{ tools }}<function name="f"><param name="k">'}
JSON_ARGUMENTS = ("hermes", "cohere", "mistral", "mistral-ids", "nemotron", "apriel", "minimax-m1", "solar", "gigachat", "kimi-k3", "pangu")  # may also have keys that tags cannot
TAGS = {"type": "string", "pattern": "^(a|<|</arg_value>|</parameter>|</param>|</｜DSML｜parameter>|</｜GCML｜parameter>|</steptml:parameter>|</tool_call>|</function>|</minimax:tool_call>|</longcat_arg_value>|</arg_value:opensource>|</seed:tool_call>|</?){1,6}$"}  # many ends of values
ARGUMENTS = {  # schemas of a tool's arguments; those of VALID are added
    "none": {"type": "object", "additionalProperties": False}, "any": {"type": "object"}, "open": {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": TAGS},
    "tags": {"type": "object", "properties": {"a": TAGS, "b": {"type": "array", "items": TAGS, "minItems": 3}, "c": {**TAGS, "pattern": "</?a"}, "d": {"type": "object", "additionalProperties": TAGS, "properties": {"</a": TAGS}}}, "required": ["a", "b", "c"]},
    "long": {"type": "object", "properties": {"a": {"type": "string", "minLength": 1, "maxLength": 3000}}, "required": ["a"]},
    "listed": {"type": "object", "properties": {"a": {"type": "string", "enum": ["x</b>", "", "1", "</arg_value>", "a</parameter>", "\n"]}, "b": {"enum": ["</arg_value>", 1, None, ["</parameter>", "</｜DSML｜parameter>"]]}, "c": {"const": "7"}, "e": {"type": ["string", "null"]}}, "required": ["a", "b", "c", "e"]},
    "refs": {"type": "object", "properties": {"a": {"$ref": "#/$defs/s"}, "b": {"type": "string", "$ref": "#/$defs/s"}, "self": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["a", "b", "self"], "$defs": {"s": {"type": "string", "maxLength": 9}}},
    "either": {"type": "object", "anyOf": [{"properties": {"a": {"type": "string", "minLength": 1}}, "required": ["a"]}, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}]},
    "counted": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}, "c": {"type": "boolean"}}, "minProperties": 1, "maxProperties": 2},
}
REFUSED_ARGUMENTS = [{"type": "object", "properties": {"a<b": {"type": "string"}}, "required": ["a<b"]}, {"type": "object", "enum": [{"a": 1}]}, {"type": "string"}]
BAD = {"regex": ["(", "a)", "[a", "a**", "(?=a)", "\\1", "[z-a]", "a{3,1}", "a^b", "\\p{L}"],
       "gbnf": ["root ::= x", 'root ::= root "a" | "b"', 'a ::= "x"', 'root ::= "x', "root = 1", 'root ::= [a', 'root ::= "a"\nroot ::= "b"', "root ::= (", "root ::= <think>"],
       "choices": ["[]", "[1]", "{}", "[\"\"]"]}


def validate(label, schema, texts, fail):
    """Validates each text, or only parses it without jsonschema; returns how many there were."""
    validator = jsonschema and jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    for text in texts:
        try:
            value = json.loads(text)
            if validator:
                validator.validate(value)
        except Exception as e:
            fail(f"{label}: {text!r}: {str(e).splitlines()[0]}")
    return len(texts)


def check_schemas(ask, count, fail):
    if jsonschema is None:
        print("SKIPPED: documents are not validated: no jsonschema (pip install jsonschema)")
    n = 0
    for name, schema in VALID.items():
        reply = ask("schema", json.dumps(schema), count)
        if "error" in reply:
            fail(f"schema {name}: refused: {reply['error']}")
            continue
        n += validate(f"schema {name}", schema, reply["texts"], fail)
    for name, (schema, where) in REFUSED.items():
        reply = ask("schema", json.dumps(schema), 1)
        if where is not None and where not in reply.get("error", "<accepted>") or "error" not in reply:
            fail(f"schema {name}: expected a refusal with {where}: {reply}")
    return n


def arguments():
    """Returns {name: schema of arguments}; each schema of VALID as a property, and objects also as they are."""
    out = dict(ARGUMENTS)
    for name, schema in VALID.items():
        if '"#"' in json.dumps(schema):
            continue
        defs = {k: v for k, v in schema.items() if k == "$defs"} if isinstance(schema, dict) else {}
        out["member " + name] = {"type": "object", "properties": {"first": {"type": "string", "maxLength": 5}, "v": schema}, "required": ["v"], **defs}
        if isinstance(schema, dict) and schema.get("type") == "object" and not schema.keys() & {"const", "enum"} and all(re.fullmatch(r"[\w ]+", k) for k in schema.get("properties", {})):
            out[name] = schema
    return out


def check_calls(ask, count, fail):
    n = 0
    schemas = arguments()
    with tempfile.TemporaryDirectory() as place:
        for form, template in FORMS.items():
            path = os.path.join(place, form)
            with open(path, "w", encoding="utf-8") as f:
                f.write(template)
            for name, schema in schemas.items():
                reply = ask("calls", json.dumps(schema), count, template=path)
                if "error" in reply:
                    fail(f"{form} {name}: refused: {reply['error']}")
                    continue
                n += validate(f"{form} {name}", schema, reply["texts"], fail)
            for schema in REFUSED_ARGUMENTS:
                if form not in JSON_ARGUMENTS and "parameters of tool f: #" not in ask("calls", json.dumps(schema), 1, template=path).get("error", ""):
                    fail(f"{form} {schema}: not refused with its place")
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

    def ask(kind, source, n, **more):
        process.stdin.write(json.dumps({"kind": kind, "source": source, "seed": 1, "count": n, **more}) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    n = check_schemas(ask, count, fail) + check_texts(ask, count, fail) + check_calls(ask, max(count // 4, 1), fail)
    process.stdin.close()
    print(f"{n} texts, {len(failures)} failures")
    return 1 if failures or process.wait() or n < count * 60 else 0


sys.exit(main())
