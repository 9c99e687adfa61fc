#!/usr/bin/env python3
"""How the sources are named, how long they are (CONTRIBUTING.md, Style), and which read the wall clock. Prints each breach; exit 1 on any.

An exported function starts with one of these, followed by '_', a digit or nothing:
- the name of its source or of the header that declares it, or leading words of it (attention_gqa.c: attention_...),
- the folder and such a name (gpu/spec.c: gpu_spec_...),
- the name of a struct or enum that this header defines (struct arena: arena_...).
Operations (rows X(name, CODE, ...) of base/op_*.h) are computed by cpu_name(), which cpu/cpu_exec.h declares by that list.
Of engine/engine.h: engine_ or session_. Of tokenizer/jinja: j.
"""
import os
import re
import sys

TOPS = ["base", "cpu", "gpu", "engine", "tokenizer", "cli"]
MOST_LINES = {".c": 600, ".h": 300}
# Files that may be longer, with the reason.
LONG = {
    "base/iq_grids.h": "tables of numbers",
    "cpu/gemm_amx_inner.h": "kernels, included once per format",
    "cpu/gemv_inner.h": "kernels, included once per format and instruction set",
    "engine/model/config.h": "one field per property of a model",
}
# Functions whose names others give.
KNOWN = {
    "__wrap___cudaRegisterFunction": "of the linker's --wrap",
    "__tsan_read_range": "of ThreadSanitizer's library",
    "__tsan_write_range": "of ThreadSanitizer's library",
}
# Files that read the wall clock or times that it gave. It may be set back: no order, no wait and no promise hangs on it.
WALL_CLOCK = {
    "base/file.c": "random names",
    "cli/modes/bandwidth.c": "age of a measurement; one of the future is measured again",
    "cli/saved/saver.c": "each save is newer than all others, whatever the clock says",
    "cli/saved/store.c": "the time of a save, for people",
    "cli/saved/store_list.c": "the order that saver.c makes",
    "cli/server/resident.c": "identity of a file",
    "cli/server/serve.c": "times in answers",
    "cli/server/serve_http.c": "times in answers",
    "cli/server/serve_models.c": "times in answers",
    "cli/server/serve_turns.c": "times in answers",
    "engine/kv/kv_disk.c": "order of eviction, kept when the clock is set back",
    "engine/session/prefix.c": "identity of a file",
    "tokenizer/jinja/jcall.c": "the date that a template asks for",
}
READS_WALL_CLOCK = re.compile(r"\bCLOCK_REALTIME\b|\btime\((?:NULL|0|&)|\bgettimeofday\b|\bst_[mac]tim\b|\bst_[mac]time\b")

root = sys.argv[1]
EXPORTED = r"^(?!(?:[\w]+ )?static|typedef|extern|return|else|struct \w+ \{|[A-Z_]+ )[A-Za-z_][\w *]*?\b([a-z_]\w*)\([^;{]*\)"
PROTOTYPE, DEFINITION = re.compile(EXPORTED + r"[^;{]*;", re.M), re.compile(EXPORTED + r"\s*\{", re.M)
TYPE = re.compile(r"\b(?:struct|enum|union)\s+(\w+)\s*\{")


def sources():
    """Returns {path: text} of the C files."""
    found = {}
    for top in TOPS:
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in names:
                if name.endswith((".c", ".h")):
                    path = os.path.relpath(os.path.join(folder, name), root)
                    with open(os.path.join(root, path), encoding="utf-8") as f:
                        found[path] = f.read()
    return found


def code_of(text):
    """Returns text without comments, strings and preprocessor lines."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", " ", text, flags=re.S)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.M)


def prefixes(path):
    """Returns what functions of a file may start with: its name and leading words of it, also behind the folder's."""
    folder, stem = os.path.basename(os.path.dirname(path)), re.sub(r"_internal$", "", os.path.basename(path)[:-2])
    words = stem.split("_")
    leading = {"_".join(words[:k + 1]) for k in range(len(words))}
    return leading | {folder + "_" + word for word in leading}


def starts_with(name, allowed):
    return any(re.match(re.escape(x) + r"(_|\d|$)", name) for x in allowed)


def main():
    bad = 0
    files = sources()
    code = {path: code_of(text) for path, text in files.items()}
    declared, defined = {}, {}
    for path in sorted(code):
        for name in (PROTOTYPE if path.endswith(".h") else DEFINITION).findall(code[path]):
            (declared if path.endswith(".h") else defined).setdefault(name, path)
    for name in re.findall(r"\bX\((\w+), [A-Z_]+, ", "".join(text for path, text in files.items() if path.startswith("base/op_"))):
        declared.setdefault("cpu_" + name, "cpu/cpu_exec.h")
    for name in sorted(declared.keys() | defined.keys() - {"main"}):
        header, source = declared.get(name), defined.get(name)
        allowed = set().union(*(prefixes(p) for p in (header, source) if p), TYPE.findall(code[header]) if header else [])
        if header == "engine/engine.h":
            allowed = {"engine", "session"}
        if starts_with(name, allowed) or name in KNOWN or ((header or source).startswith("tokenizer/jinja/") and name.startswith("j")):
            continue
        print(f"{source or header}: {name}() starts with no name of its file{', ' + header if header and source else ''}, or of a type of its header")
        bad += 1
    for path, text in sorted(files.items()):
        most, n = MOST_LINES[path[-2:]], text.count("\n")
        if n > most and path not in LONG:
            print(f"{path}: {n} lines, more than {most}")
            bad += 1
        if n <= most and path in LONG:
            print(f"{path}: {n} lines need no exception")
            bad += 1
    clocks = {path for path, text in code.items() if READS_WALL_CLOCK.search(text)}
    for path in sorted(clocks ^ WALL_CLOCK.keys()):
        print(f"{path}: {'reads the wall clock, which may be set back: see base/clock.h, base/cond.h' if path in clocks else 'an exception for what does not read it'}")
        bad += 1
    for what in sorted(LONG.keys() - files.keys() | KNOWN.keys() - declared.keys() - defined.keys()):
        print(f"{what}: an exception for what does not exist")
        bad += 1
    print(f"{len(files)} files, {len(declared.keys() | defined.keys())} functions, {bad} breaches")
    return 1 if bad or not files else 0


sys.exit(main())
