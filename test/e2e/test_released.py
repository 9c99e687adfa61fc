#!/usr/bin/env python3
"""A program built without -Dtesting ignores what makes tests' programs fail. test_released.py WITH WITHOUT"""
import os
import subprocess
import sys
import tempfile

VARIABLES = {"HEARTH_FAULT": "alloc:1!", "HEARTH_LIMITS": "rows=nonsense"}
with tempfile.TemporaryDirectory() as home:
    for program, obeys in zip(sys.argv[1:3], (True, False)):
        for name, value in VARIABLES.items():
            p = subprocess.run([program, "-p", "hello"], env={**os.environ, "HOME": home, "XDG_STATE_HOME": home, "XDG_CONFIG_HOME": home, name: value}, stdin=subprocess.DEVNULL, capture_output=True)
            assert (p.returncode != 0) == obeys and (obeys or p.stdout), (program, name, p)
            with open(program, "rb") as f:
                assert (name.encode() in f.read()) == obeys, (program, name)
