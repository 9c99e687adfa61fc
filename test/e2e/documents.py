"""Documents of constrained answers: the schemas of ../unit/schemas.py, and python-jsonschema as the judge."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "unit"))
from schemas import VALID  # noqa: E402

FIXTURES = os.path.join(os.environ.get("HEARTH_SHARED", ""), "fixtures")
NAMES = ("qwen3_moe", "mixtral", "deepseek_v3")  # three tokenizers


def fixtures(case):
    """Returns the paths of the fixtures; skips the test without them."""
    paths = [os.path.join(FIXTURES, name) for name in NAMES]
    for path in paths:
        if not os.path.isdir(path):
            case.skipTest(f"no fixture {path}")
    return paths


def validators(case):
    """Returns {label: validator}; skips the test without jsonschema."""
    try:
        import jsonschema
    except ImportError:
        case.skipTest("no jsonschema to validate with (pip install jsonschema)")
    draft = jsonschema.Draft202012Validator
    return {label: draft(schema, format_checker=draft.FORMAT_CHECKER) for label, schema in VALID.items()}


def fault(validator, text):
    """Returns why the text is not a valid document, or None."""
    try:
        validator.validate(json.loads(text))
    except Exception as e:
        return f"{text!r}: {str(e).splitlines()[0]}"[:400]
    return None
