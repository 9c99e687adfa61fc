"""Writes a precompiled_charsmap, SentencePiece's table of replacements: a double array of Darts-clone and the texts."""
import base64
import struct


def charsmap(table):
    """table: replaced text -> text, as bytes."""
    texts, place = b"", {}
    for to in table.values():
        if to not in place:
            place[to] = len(texts)
            texts += to + b"\0"
    trie = {}
    for key, to in table.items():
        node = trie
        for b in key:
            node = node.setdefault(b, {})
        node[0] = place[to]
    units, free_from = {0: 0}, 1

    def put(at, label, node):
        nonlocal free_from
        base = free_from
        while any(base ^ k in units for k in node):
            base += 1
        units[at] = label | (0 in node) << 8 | (at ^ base) << 10
        for k in node:
            units[base ^ k] = 0
        while free_from in units:
            free_from += 1
        for k, v in node.items():
            if k:
                put(base ^ k, k, v)
            else:
                units[base] = v | 1 << 31
    put(0, 0, trie)
    n = max(units) + 1
    array = b"".join(struct.pack("<I", units.get(i, 0)) for i in range(n))
    return struct.pack("<I", len(array)) + array + texts


def charsmap_base64(table):
    return base64.b64encode(charsmap(table)).decode()
