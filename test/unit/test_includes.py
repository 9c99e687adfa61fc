#!/usr/bin/env python3
"""Who may include whom, and who may print: the rules of the house, held against every #include line and every call that
writes to a descriptor of the terminal. Prints each breach; exit 1 on any."""
import os
import re
import sys

root = sys.argv[1]
# Floors, from bottom to top; area -> areas (or single headers) that it may include, besides itself. Nothing runs upwards.
WEIGHTS = ["base", "engine/model", "engine/weights"]
LAYER = WEIGHTS + ["engine/layer", "engine/kv", "cpu", "gpu/gpu.h", "gpu/op.h", "gpu/spec.h"]
TRANSFER = LAYER + ["engine/transfer"]
EXPERTS = TRANSFER + ["engine/experts", "engine/placement"]
EXEC = EXPERTS + ["engine/vision", "engine/exec", "engine/exec/decode", "engine/exec/blend", "engine/exec/stream", "engine/exec/throughput"]
SESSION = EXEC + ["engine/draft", "engine/sampling", "engine/session", "engine/engine.h", "engine/engine_experts.h"]
TERMINAL = ["base", "cli/options"]
TURN = TERMINAL + ["cli/terminal", "cli", "engine/engine.h", "engine/engine_experts.h", "engine/ember/topic.h", "tokenizer", "tokenizer/chat", "tokenizer/grammar"]
FLOORS = [
    {"base": []},
    {
        "cpu": ["base"],
        "gpu": ["base"],
        "gpu/emu": ["base", "gpu", "cpu/cpu.h", "cpu/pool.h"],  # an emulated device computes with the CPU's operations
        "tokenizer": ["base"],
        "tokenizer/jinja": ["base", "tokenizer"],
        "tokenizer/chat": ["base", "tokenizer", "tokenizer/jinja"],
        "tokenizer/grammar": ["base", "tokenizer"],
        "engine/ember": ["base"],
    },
    {
        "engine/model": ["base"],
        "engine/weights": ["base", "engine/model", "cpu/numa.h", "cpu/pool.h", "tokenizer/tokenizer.h"],
    },
    {
        "engine/kv": WEIGHTS + ["cpu"],
        "engine/layer": LAYER,
        "engine/transfer": LAYER,
        "engine/vision": WEIGHTS + ["engine/layer/rows.h"],
    },
    {
        "engine/placement": ["base", "engine/model", "cpu", "gpu/gpu.h", "gpu/op.h", "gpu/spec.h"],
        "engine/experts": TRANSFER + ["engine/placement"],
        "engine/draft": LAYER,
        "engine/exec": EXPERTS + ["engine/vision/image.h"],
        "engine/exec/decode": EXPERTS + ["engine/exec"],
        "engine/exec/blend": EXPERTS + ["engine/exec", "engine/exec/decode"],
        "engine/exec/stream": TRANSFER + ["engine/exec", "engine/exec/decode/decode.h"],
        "engine/exec/throughput": TRANSFER + ["engine/placement", "engine/exec"],
    },
    {
        "engine/sampling": ["base"],
        "engine/session": SESSION,
        "engine/plan": SESSION,
        "engine": SESSION + ["engine/plan"],
    },
    {
        "cli/options": ["base"],
        "cli/terminal": TERMINAL,
        "cli/turn": TURN,
        "cli/saved": TURN + ["cli/turn"],
        "cli/tools": TURN + ["cli/turn", "cli/remote/lib_curl.h", "cli/remote/remote_connection.h"],
        "cli/chat": TURN + ["cli/turn", "cli/tools", "cli/saved", "cli/modes/models.h"],
        "cli/remote": TURN + ["cli/turn", "cli/server/resident.h"],
        "cli/server": TURN + ["cli/turn", "cli/tools/gpu_check.h"],
        "cli/hub": TURN + ["cli/turn", "cli/remote", "cli/modes/bandwidth.h", "cli/modes/verdict.h"],
        "cli/modes": TURN + ["cli/turn", "cli/tools", "cli/saved"],
        "cli": TURN + ["cli/turn", "cli/tools", "cli/chat", "cli/saved", "cli/remote", "cli/server", "cli/modes", "cli/hub"],
        "main.c": ["cli", "base", "engine/ember/ember.h"],
    },
]
RULES = {area: may for floor in FLOORS for area, may in floor.items()}
INTERFACE = ["engine/engine.h", "engine/engine_experts.h"]  # the API of the engine: types and prototypes, which its session floor includes and its top implements
# Recursive by nature: files that may call each other in circles. A template's values, filters and statements evaluate each other; a schema contains schemas;
# an emulated device and CUDA wake streams whose commands wake streams.
RECURSIVE = re.compile(r"^(tokenizer/jinja/|tokenizer/grammar/schema|gpu/emu/|gpu/cuda)")
# Decisions take numbers and give an answer: no clock, no files, nothing that could know where it runs.
PURE = re.compile(r"^(engine/(placement/(cost|cost_model|numa_cost|preset|split\w*|policy)|experts/(score|budget|lookahead|predict)|draft/(governor|lookup))|gpu/cuda_path)\.[ch]$")
PURE_MAY = re.compile(r"^(gpu/cuda_path\.h|engine/placement/(cost|cost_model|numa_cost|split|split_internal|policy)\.h|engine/experts/(score|budget|lookahead|predict)\.h|engine/draft/(governor|lookup)\.h|engine/model/[^/]*\.h|base/(exec_mode|mat|ops)\.h|(float|limits|math|stdarg|stdbool|stddef|stdint|stdio|string)\.h)$")
CUDA = re.compile(r"^gpu/(cuda[^/]*\.(c|h|cuh)|[^/]*\.cu)$")
# cli/terminal/out.c is where everything passes the filter of a terminal; term.c sets its modes; main.c speaks before there is either.
PRINTS = re.compile(r"\b(v?f?printf|vdprintf|dprintf|f?puts|f?putc|putchar|fwrite|perror)\s*\(|\b(write|file_write_all)\s*\(\s*[12]\b|/dev/tty")
MAY_PRINT = ["cli/terminal/out.c", "cli/terminal/term.c", "main.c"]


def area(path):
    return path if path == "main.c" else os.path.dirname(path)


def allowed(source, target):
    here, there = area(source), area(target)
    return here == there or target in RULES.get(here, []) or there in RULES.get(here, [])


def sources():
    for top, dirs, names in os.walk(root):
        dirs[:] = [d for d in dirs if not d.startswith((".", "build")) and d != "test"]
        for name in names:
            path = os.path.relpath(os.path.join(top, name), root)
            if re.search(r"\.(c|h|cu|cuh)$", name) and area(path) in RULES:
                yield path, open(os.path.join(root, path), encoding="utf-8").read()


def prototypes(files):
    """Returns {function: header} for every function that a header declares."""
    found = {}
    for path, text in files:
        if path.endswith(".h"):
            for m in re.finditer(r"^(?!static|typedef|#|extern|struct \w+ \{)[A-Za-z_][\w *]*?\b(\w+)\([^;{]*\)[^;{]*;", text, re.M):
                found.setdefault(m.group(1), path)
    return found


def strip_comments(text):
    return re.sub(r"/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", " ", text, flags=re.S)


def called(code):
    """Returns the names of the functions that code may call."""
    return set(re.findall(r"(?<![\w.>])(\w+)\s*\(", code))


def find_cycle(edges):
    """Returns a cycle of a graph {node: set of nodes} as a list of nodes, or None."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node):] + [node]
        if node in done:
            return None
        path.append(node)
        found = next(filter(None, map(visit, sorted(edges.get(node, ())))), None)
        path.pop()
        done.add(node)
        return found

    return next(filter(None, map(visit, sorted(edges))), None)


def unit(path):
    """Returns the unit of a file: a source and the header of its stem, with the header NAME_internal.h of the folder."""
    return re.sub(r"_internal$", "", path.rsplit(".", 1)[0])


def cycles(files):
    """Yields a cycle of includes among units, and a cycle of calls among sources, where there are any."""
    includes, calls, defined = {}, {}, {}
    code = {path: strip_comments(text) for path, text in files if not RECURSIVE.match(path)}
    for path in code:
        for m in re.finditer(r"^(?!static|typedef|#|[A-Z_]+ )[A-Za-z_][\w *]*?\b(\w+)\([^;{]*\)\s*\{", code[path], re.M):
            defined.setdefault(m.group(1), path)
    for path, text in files:
        if path in code:
            targets = {unit(h) for h in re.findall(r'^#include "([^"]+)"', text, re.M) if h in code}
            includes.setdefault(unit(path), set()).update(targets - {unit(path)})
            if path.endswith(".c"):
                own = set(re.findall(r"^static[\w *]*?\b(\w+)\(", code[path], re.M))
                calls[path] = {defined[name] for name in called(code[path]) & defined.keys() - own} - {path}
    yield from filter(None, map(find_cycle, (includes, calls)))


def upward():
    """Yields areas whose rules name an area of a higher floor."""
    floor_of = {area: i for i, floor in enumerate(FLOORS) for area in floor}
    for area, may in RULES.items():
        for other in may:
            if other not in INTERFACE and floor_of[other if other in floor_of else os.path.dirname(other)] > floor_of[area]:
                yield area, other


def main():
    bad = 0
    files = list(sources())
    declared = prototypes(files)

    def breach(path, line, what):
        nonlocal bad
        print(f"{path}:{line}: {what}")
        bad += 1

    for path, text in files:
        for i, line in enumerate(text.split("\n"), 1):
            if PRINTS.search(line) and path not in MAY_PRINT and "format(" not in line:
                breach(path, i, "prints by itself")
            if "__CUDA_ARCH__" in line and not re.search(r"__CUDA_ARCH__ >= 890$", line):
                breach(path, i, "a kernel that depends on another architecture than sm_89: gpu/meson.build must compile it for each of them in CI too")
            m = re.match(r'\s*#\s*include\s+([<"])([^>"]+)[>"]', line)
            if not m:
                continue
            kind, target = m.groups()
            if PURE.match(path) and not PURE_MAY.match(target):
                breach(path, i, f"a pure file may not include {target}")
            if kind == "<":
                if re.match(r"(cuda|cublas|nv)", target) and not CUDA.match(path):
                    breach(path, i, f"CUDA header {target} outside gpu/cuda*")
            elif os.path.exists(os.path.join(root, target)) and not allowed(path, target):
                breach(path, i, f"{area(path)} may not include {target}")
            elif not os.path.exists(os.path.join(root, target)) and os.path.exists(os.path.join(root, os.path.dirname(path), target)):
                breach(path, i, f"include {target} by its path from the top")
        # a call may reach a forbidden area through an indirect include
        if path.endswith(".c"):
            code = strip_comments(text)
            for name in called(code) & declared.keys():
                header = declared[name]
                if not allowed(path, header) and not re.search(rf"^[\w *]+\b{name}\([^;]*$", code, re.M):
                    breach(path, 0, f"calls {name}() of {header}")
    for here, there in upward():
        breach("test/unit/test_includes.py", 0, f"{here} may include {there}, which is on a higher floor")
    for cycle in cycles(files):
        breach(cycle[0], 0, "a cycle: " + " -> ".join(cycle))
    print(f"{len(files)} files, {bad} breaches")
    return 1 if bad or not files else 0


sys.exit(main())
