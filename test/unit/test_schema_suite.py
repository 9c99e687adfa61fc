#!/usr/bin/env python3
"""JSON-Schema-Test-Suite, draft 2020-12: a schema is refused, or no text of its grammar is invalid and none of the suite's invalid documents is a text of it. Prints a
table by keyword. The suite is in the source package of jsonschema on PyPI: only with -Dlong_tests=true.

usage: test_schema_suite.py GRAMMAR_WALK [--refused]; HEARTH_SCHEMA_SUITE: the suite's tests/draft2020-12"""
import json
import os
import subprocess
import sys
import tarfile
import tempfile

TEXTS = 30  # random ones of each schema


def download(place):
    """Returns the path of the suite, or None."""
    p = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", place, "jsonschema"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    names = [n for n in os.listdir(place) if n.endswith(".tar.gz")]
    if p.returncode or not names:
        return None
    with tarfile.open(os.path.join(place, names[0])) as t:
        t.extractall(place, filter="data")
    return os.path.join(place, names[0][:-len(".tar.gz")], "json", "tests", "draft2020-12")


def suites(path):
    """Yields (name, cases, whether formats are enforced) of each file."""
    for at, _, names in sorted(os.walk(path)):
        for name in sorted(names):
            with open(os.path.join(at, name), encoding="utf-8") as f:
                yield os.path.relpath(os.path.join(at, name[:-len(".json")]), path), json.load(f), "format" in os.path.join(at, name)


class Suite:
    def __init__(self, tool):
        self.p = subprocess.Popen([tool], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.wrong, self.refusals = [], []

    def ask(self, schema, **more):
        self.p.stdin.write(json.dumps({"kind": "schema", "source": json.dumps(schema), "seed": 1, **more}) + "\n")
        self.p.stdin.flush()
        return json.loads(self.p.stdout.readline())

    def texts(self, where, schema, texts, formats):
        """Validates generated texts."""
        import jsonschema
        draft = jsonschema.Draft202012Validator
        validator = draft(schema, format_checker=draft.FORMAT_CHECKER if formats else None)
        for text in texts:
            try:
                validator.validate(json.loads(text))
            except Exception as e:
                return self.wrong.append(f"{where}: generated {text[:100]!r}: {str(e).splitlines()[0][:150]}")

    def case(self, where, case, formats, row):
        schema, tests = case["schema"], case["tests"]
        row["schemas"] += 1
        reply = self.ask(schema, count=TEXTS)
        if "error" in reply:
            row["refused"] += 1
            return self.refusals.append(f"{where}: {reply['error']}")
        before = len(self.wrong)
        self.texts(where, schema, reply["texts"], formats)
        documents = [json.dumps(t["data"], separators=(",", ":"), ensure_ascii=False) for t in tests]
        for t, text, accepted in zip(tests, documents, self.ask(schema, accept=documents)["accepted"]):
            row["valid"] += t["valid"]
            row["generated"] += t["valid"] and accepted
            row["invalid"] += not t["valid"]
            if accepted and not t["valid"]:
                self.wrong.append(f"{where}: accepts {text}, {t['description']}")
        row["wrong"] += len(self.wrong) > before
        row["agreeing"] += len(self.wrong) == before


def main():
    with tempfile.TemporaryDirectory() as place:
        try:
            import jsonschema  # noqa: F401
        except ImportError:
            print("SKIPPED: no jsonschema (pip install jsonschema)")
            return 77
        path = os.environ.get("HEARTH_SCHEMA_SUITE") or download(place)
        if not path:
            print("SKIPPED: the source package of jsonschema cannot be downloaded from PyPI")
            return 77
        s, columns = Suite(sys.argv[1]), ("schemas", "agreeing", "refused", "wrong", "valid", "generated", "invalid")
        total = dict.fromkeys(columns, 0)
        print("| file | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
        for name, cases, formats in suites(path):
            row = dict.fromkeys(columns, 0)
            for case in cases:
                s.case(f"{name}: {case['description']}", case, formats, row)
            print(f"| {name} | " + " | ".join(str(row[c]) for c in columns) + " |")
            total = {c: total[c] + row[c] for c in columns}
        print("| all | " + " | ".join(str(total[c]) for c in columns) + " |")
        for line in s.refusals if "--refused" in sys.argv else []:
            print(f"refused: {line}")
        for line in s.wrong:
            print(f"WRONG: {line}")
        return 1 if s.wrong or total["schemas"] < 300 else 0


if __name__ == "__main__":
    sys.exit(main())
