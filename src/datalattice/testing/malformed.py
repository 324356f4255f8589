"""Malformed: values of well-formed cells that do not fit together.

A hostile peer can sign and send them: one cell below the top is replaced, and every cell above it
is rewritten, so that all hashes are right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from datalattice.cells import (
    Index,
    Keyword,
    Map,
    MessageCells,
    Ref,
    Signed,
    Value,
    branch_kids,
    decode,
    encode,
    references,
    value_hash,
)
from datalattice.crypto import KeyPair, sha3_256
from datalattice.errors import BadFormat
from datalattice.lattice import get_in
from datalattice.limits import EMBEDDED_BYTES_MAX
from datalattice.testing.dice import Dice

_KV, _BLOB = Keyword("kv"), b"b" * 200


Below = dict[bytes, bytes]
"""Encodings by hash of the cells below a top."""


def cells_of(value: Value) -> tuple[bytes, Below]:
    """Return the encoding of a value, and those of the cells below it."""
    below: Below = {}
    front = list(branch_kids(value))  # a cell that is only a reference is loaded
    while front:
        hash, kid = front.pop()
        if hash not in below:
            cell = kid.resolve() if isinstance(kid, Ref) else kid
            below[hash] = encode(cell)
            front += branch_kids(cell)
    return encode(value), below


def with_blob(value: Value) -> Value:
    """Return a container of several levels in which a node is a Blob."""
    top, below = cells_of(value)
    # A child of the same kind: an inner node.
    node = next(hash for hash in references(top) if below[hash][0] == top[0])
    below[value_hash(_BLOB)] = encode(_BLOB)
    return value_from_cells(*with_cell(top, below, node, encode(_BLOB)))


def with_malformed_database(root: Value, key: KeyPair) -> Value:
    """Return a root in which a node of the first database of an owner is a Blob, signed."""
    slot, section = get_in(root, (_KV, key.public_key)), get_in(root, (_KV,))
    assert isinstance(root, Index)
    assert isinstance(section, Map)
    assert isinstance(slot, Signed)
    assert isinstance(slot.value, Map)
    name, database = next(iter(slot.value.entries()))
    signed = Signed.sign(key, slot.value.put(name, with_blob(database)))
    return root.put(_KV, section.put(key.public_key, signed))


def value_from_cells(top: bytes, below: Mapping[bytes, bytes]) -> Value:
    """Return the value of these cells; others are missing.

    Raises: BadFormat: a single cell is not well formed.
    """
    parts = MessageCells(None)
    for encoding in below.values():
        decode(encoding)  # each by itself is well formed: only together they are not
    parts.add(list(below.values()))
    return decode(top, parts)


def with_cell(top: bytes, below: Below, old: bytes, new: bytes) -> tuple[bytes, Below]:
    """Return the cells with `new` in place of the cell with the hash `old`, all hashes right."""
    found: Below = {}
    renamed: dict[bytes, bytes] = {}
    done: set[bytes] = set()
    stack: list[tuple[bytes, bool]] = [(hash, False) for hash in references(top)]
    while stack:
        hash, is_done = stack.pop()
        if not is_done:
            if hash not in done and hash in below:
                done.add(hash)
                stack.append((hash, True))  # first all below it: hashes are made from the leaves up
                if hash != old:
                    stack += [(ref, False) for ref in references(below[hash])]
            continue
        encoding = new if hash == old else _renamed(below[hash], renamed)
        made = sha3_256(encoding)
        found[made] = encoding
        if made != hash:  # every cell above gets a new name
            renamed[hash] = made
    if old in renamed or old not in below:  # the new cell may refer to others
        found |= {hash: cell for hash, cell in below.items() if hash in references(new)}
    return _renamed(top, renamed), found


def _renamed(encoding: bytes, names: Mapping[bytes, bytes]) -> bytes:
    for ref in references(encoding):
        if ref in names:
            # With the tag of a reference: 32 bytes may be data, too.
            encoding = encoding.replace(b"\x20" + ref, b"\x20" + names[ref])
    return encoding


CellChange = Callable[[bytes, list[bytes], Dice], bytes]
"""Returns a cell changed at random; it may refer to these others."""


def mutated(
    value: Value, dice: Dice, strangers: Mapping[bytes, bytes], change: CellChange | None = None
) -> Value:
    """Return a value with one of its cells changed at random; each cell is well formed by itself.

    strangers: cells that may take the place of others.
    """
    top, below = cells_of(value)
    pool = {**below, **strangers}
    change = change or _mutated_cell
    while True:
        old = dice.pick([b"", *below])  # the top as well
        new = change(below[old] if old else top, list(pool), dice)
        try:
            decode(new)
        except BadFormat:  # most changes break the cell itself, and say nothing
            continue
        # An embedded child would not be a cell.
        if old and len(new) <= EMBEDDED_BYTES_MAX and dice.below(10):
            continue
        changed, cells = (new, below) if not old else with_cell(top, below, old, new)
        used = set(references(changed)).union(*map(references, cells.values()))
        cells |= {hash: cell for hash, cell in strangers.items() if hash in used}
        try:
            return value_from_cells(changed, cells)
        except BadFormat:  # a new hash changed the order of map keys
            continue


def another_key(encoding: bytes, pool: list[bytes], dice: Dice) -> bytes:
    """Return a cell in which a key of 32 bytes has another digit; or else any other change."""
    found = [at for at in range(len(encoding) - 33) if encoding[at : at + 2] == b"\x31\x20"]
    if not found or dice.chance(0.5):
        return _mutated_cell(encoding, pool, dice)
    # A tree of hashes sorts its keys by their first digits: another digit is in the wrong branch.
    at = dice.pick(found) + 2 + dice.pick((0, 0, 0, 1, dice.below(32)))
    mask = dice.pick((0x10, 0x20, 0x40, 0x80, 1, 2, 0xF0))
    return encoding[:at] + bytes((encoding[at] ^ mask,)) + encoding[at + 1 :]


def _mutated_cell(encoding: bytes, pool: list[bytes], dice: Dice) -> bytes:
    refs = references(encoding)
    kind = dice.below(4 if refs else 2)  # references can only be swapped where there are some
    if kind == 0:
        draft = bytearray(encoding)
        # The front: tags, counts and lengths.
        draft[dice.below(min(12, len(draft)))] ^= 1 << dice.below(8)
        return bytes(draft)
    if kind == 1:
        draft = bytearray(encoding)
        position = dice.below(4 if dice.chance(0.5) else len(draft))
        draft[position] = (draft[position] + dice.pick((1, -1))) % 256
        return bytes(draft)
    if kind == 2 and pool:
        return encoding.replace(dice.pick(refs), dice.pick(pool))
    first, second = dice.pick(refs), dice.pick(refs)
    # Two references change places.
    return encoding.replace(first, bytes(32)).replace(second, first).replace(bytes(32), second)
