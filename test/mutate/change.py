"""The changes that test/mutate/run applies. Each has a name, what it breaks, the names of the tests ("; " between them) that must
each fail, and edits (file, old, new). `old` must occur exactly once in its file; keep it as short as that allows, so that it
survives unrelated changes."""

CHANGES = []


def change(name, breaks, tests, *edits):
    CHANGES.append({"name": name, "breaks": breaks, "tests": tests.split("; "), "edits": edits})
