#!/usr/bin/env python3
"""Holds the constants of the modelled machines to constants.md, which says of each where it comes from.

    constants.py FORESIGHT [constants.md]

FORESIGHT is BUILD/test/bench/foresight. Each number of each machine must stand in exactly one row, with its value: a constant that changes, or a new
one, needs a row with a class and a source. The second table has the data sheets' entries as their sources write them. Classes: vendor (data sheet), measured (by us), printed (in the paper), derived (from the others, as the
source says), assumed, fitted (to the rows that the source names)."""
import fnmatch
import os
import re
import subprocess
import sys

MACHINES = ["paper-a-1", "paper-a-2", "paper-a-1-fp8", "paper-a-2-fp8", "paper-b-t4", "paper-b-2t4", "paper-b-4t4", "paper-b-l4", "paper-c", "paper-d",
            "epyc-9004-12ch+rtx4090", "desktop-ddr5-96+rtx5090,math=fp8"]
HERE = os.path.dirname(os.path.abspath(__file__))
PLACEMENT = os.path.join(HERE, "..", "..", "engine", "placement")
CLASSES = {"vendor", "measured", "printed", "derived", "assumed", "fitted"}
COUNTS = {"cpu_chunk", "devices", "near", "nodes", "name", "cpu.name", "gpu0.name", "near0.name"}


def short(text):
    """4 significant digits of each number; rows of a curve are kept."""
    return " ".join(":".join([*part.split(":")[:-1], f"{float(part.split(':')[-1]):.4g}"]) for part in text.split())


def numbers(foresight, machine):
    out = subprocess.run([foresight, "constants", machine], stdout=subprocess.PIPE, text=True, check=True).stdout
    for line in out.splitlines():
        key, _, value = line.partition(" = ")
        other_device = key[:3] == "gpu" and not key.startswith("gpu0.") or key[:4] == "near" and not key.startswith("near0.")
        if value and key not in COUNTS and not other_device and not line.startswith("#"):
            yield key, short(value)


def rows(path, width=5):
    for line in open(path):
        cells = [c.strip() for c in line.strip().strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == width and cells[0] not in ("machines", "entry"):
            yield cells


def sheets():
    """Entries of the tables of datasheet.c and datasheet_preset.c, and their named numbers: name -> text."""
    found = {}
    for name in ("datasheet.c", "datasheet_preset.c"):
        text = open(os.path.join(PLACEMENT, name)).read()
        for table in re.findall(r"^static const struct \w+ \{[^}]*?(?:\}[^}]*?)*?\} \w+\[\] = \{(.*?)^\};", text, re.M | re.S):
            table = re.sub(r'\},[ \n]+\{"', '},\n    {"', table)  # one entry a line
            for entry in re.findall(r'^    \{("(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\},', table, re.M):
                key, value = re.match(r'"([^"]*)",\s*(.*)', " ".join(entry.split())).groups()
                if ".why_not" not in value:
                    found[key] = re.sub(r'^"[^"]*", ', "", value)
        for line in re.findall(r"^static const double (\w+(?:\[\d+\])? = .*?);", text, re.M | re.S):
            for key, value in re.findall(r"(\w+)(?:\[\d+\])? = (\{[^}]*\}|[^,;]+)", line):
                found[key] = value
    return found


def main():
    path = sys.argv[2] if len(sys.argv) > 2 else os.path.join(HERE, "constants.md")
    table = list(rows(path))
    failed, used, count = 0, set(), 0
    for machines, keys, value, kind, source in table:
        if kind not in CLASSES or not source:
            failed += 1
            print(f"{machines}, {keys}: {kind!r} is no class, or the source is missing")
    for machine in MACHINES:
        for key, value in numbers(sys.argv[1], machine):
            count += 1
            found = [i for i, r in enumerate(table) if any(fnmatch.fnmatch(machine, m) for m in r[0].split()) and any(fnmatch.fnmatch(key, k) for k in r[1].split())]
            used.update(found)
            if len(found) != 1 or table[found[0]][2] != value:
                failed += 1
                print(f"{machine}: {key} = {value}: " + ("no row" if not found else "several rows" if len(found) > 1 else f"its row says {table[found[0]][2]}"))
    for i in set(range(len(table))) - used:
        failed += 1
        print(f"{table[i][0]}, {table[i][1]}: no machine has it")
    found, listed = sheets(), {key: (value, kind, source) for key, value, kind, source in rows(path, 4)}
    for key in sorted({*found, *listed}):
        value, kind, source = listed.get(key, ("", "", ""))
        if found.get(key) != value or kind not in CLASSES or not source:
            failed += 1
            print(f"{key}: datasheet.c has {found.get(key)!r}, the table {value!r}, class {kind!r}, source {source!r}")
    print(f"{count} constants of {len(MACHINES)} machines, {len(found)} entries of data sheets, {failed} failed")
    return failed != 0 or not count


if __name__ == "__main__":
    sys.exit(main())
