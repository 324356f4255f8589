"""Mutants: values with one changed cell, and the cells above it hashed again, as attackers do."""

from __future__ import annotations

from datalattice.cells import Value, decode, encode, references, value_hash
from datalattice.crypto import sha3_256
from datalattice.errors import BadFormat
from datalattice.testing.cells_kit import CellDict
from datalattice.testing.dice import Chance

_KEY_HEAD = b"\x31\x20"  # of a Blob of 32 bytes, as hashes stand in a tree
_REF_TAG = 0x20
_HASH_BYTES = 32


def mutant(value: Value, random: Chance) -> Value:
    """Return `value` with one cell changed at random; None if the bytes are no longer a value.

    Cells below it load from memory, and no two calls share any.
    """
    cells = CellDict()
    cells.kept(value)
    top = value_hash(value)
    cells[top] = encode(value)
    old = random.choice(sorted(cells))
    changed = _mutated(cells[old], cells, random)
    if changed == cells[old]:
        return None
    renamed = {old: _kept(changed, cells)}
    while top not in renamed:
        stale = [(hash, data) for hash, data in cells.items() if hash not in renamed]
        for hash, data in stale:
            fresh = data
            for before, after in renamed.items():
                fresh = fresh.replace(before, after)
            if fresh != data:
                renamed[hash] = _kept(fresh, cells)
        if not any(hash in renamed for hash, _ in stale) and top not in renamed:
            return None
    try:
        for data in cells.values():
            decode(data)
        return decode(cells[renamed[top]], cells)
    except BadFormat:
        return None


def _kept(encoding: bytes, cells: CellDict) -> bytes:
    """Keep an encoding, which may be malformed; return its hash."""
    hash = sha3_256(encoding)
    cells[hash] = encoding
    return hash


def _mutated(data: bytes, cells: CellDict, random: Chance) -> bytes:
    """Return an encoding with one thing changed."""
    way = random.randrange(6)
    if way == 0:
        return _another_key(data, random)
    if way == 1:
        return _another_child(data, cells, random)
    if way == 2:
        return _swapped(data, random)
    at = random.randrange(len(data))
    if way == 3:
        return data[:at] + bytes((random.randrange(256),)) + data[at + 1 :]
    if way == 4:
        return data[:at] + bytes((data[at] ^ (1 << random.randrange(8)),)) + data[at + 1 :]
    return _another_head(data, random)


def _another_key(data: bytes, random: Chance) -> bytes:
    """Return a cell in which one key of 32 bytes has another digit, most often its first."""
    found = [at for at in range(len(data) - 33) if data[at : at + 2] == _KEY_HEAD]
    if not found:
        return data
    at = random.choice(found) + 2 + random.choice((0, 0, 0, 1, random.randrange(_HASH_BYTES)))
    mask = random.choice((0x10, 0x20, 0x40, 0x80, 1, 2, 0xF0))
    return data[:at] + bytes((data[at] ^ mask,)) + data[at + 1 :]


def _another_child(data: bytes, cells: CellDict, random: Chance) -> bytes:
    """Return a cell in which one reference leads to another cell of the value."""
    refs = references(data)
    if not refs:
        return data
    return data.replace(random.choice(refs), random.choice(sorted(cells)), 1)


def _swapped(data: bytes, random: Chance) -> bytes:
    """Return a cell in which two references change places."""
    refs = references(data)
    if len(refs) < 2:
        return data
    a, b = random.sample(refs, 2)
    mark = bytes(_HASH_BYTES)
    return data.replace(a, mark, 1).replace(b, a, 1).replace(mark, b, 1)


def _another_head(data: bytes, random: Chance) -> bytes:
    """Return a cell with another count, depth or mask: they are among its first bytes."""
    at = random.randrange(1, min(len(data), 8)) if len(data) > 1 else 0
    change = random.choice((-1, 1, 2, -2, 16, -16))
    return data[:at] + bytes(((data[at] + change) & 0xFF,)) + data[at + 1 :]
