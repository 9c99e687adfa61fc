#!/usr/bin/env python3
"""embed.py OUT.c MODEL_TYPE=FILE...: prompt formats as a table of bytes (builtin_templates.h)."""
import os, sys

out = ['#include "tokenizer/chat/builtin_templates.h"', ""]
rows = []
for i, arg in enumerate(sys.argv[2:]):
    model, path = arg.split("=", 1)
    data = open(path, "rb").read()
    out.append("static const char text%d[] = {" % i)
    for k in range(0, len(data), 32):
        out.append("    " + "".join("%d," % (b if b < 128 else b - 256) for b in data[k:k + 32]))
    out.append("};")
    rows.append('    {"%s", "%s", text%d, sizeof text%d},' % (model, os.path.basename(path), i, i))
open(sys.argv[1], "w").write("\n".join(out + ["const struct builtin_template builtin_templates[] = {"] + rows + ["    {0},", "};", ""]))
