"""Answers: replies with cells of a store, built from stored encodings without decoding.

Source: docs/protocol.md "Messages", "Queries".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from datalattice.cells import Value, all_references, encode, join_cells, novelty, references
from datalattice.crypto import sha3_256
from datalattice.limits import EMBEDDED_BYTES_MAX, FAN_OUT
from datalattice.wire.framing import encode_length
from datalattice.wire.lattice import RESULT_DIGIT, RESULT_FIELDS, Result, result_cell

_TAG_RECORD: Final = 0xD0
_TAG_VECTOR: Final = b"\x80"
_TAG_REF: Final = b"\x20"
_NIL: Final = b"\x00"
_LOADED_MAX: Final = 256  # cells that are loaded at a time


def encode_supply(id: Value, cells: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """Return the answer to a DATA_REQUEST: the requested cells without the cells below them.

    The children of the answer are only the requested cells and, for long vectors, the inner cells
    of the vector itself.

    Shapes: cells: (hash, encoding) in the order of the request; None for a missing cell.
    """
    # "Returned as it came, with all its cells": the asker matches answers by the id.
    branches = _cells_of(id)
    slots: list[bytes] = []
    for hash, encoding in cells:
        if encoding is None:
            slots.append(_NIL)  # nil for a missing cell: the answer keeps the order of the request
        elif len(encoding) <= EMBEDDED_BYTES_MAX:
            slots.append(encoding)  # a short cell stands inside its parent, without a hash
        else:
            branches[hash] = encoding
            slots.append(_TAG_REF + hash)
    slot = _slot(_vector(slots, branches), branches)
    top = (
        bytes((_TAG_RECORD | RESULT_DIGIT, RESULT_FIELDS))
        + _slot(encode(id), branches)
        + slot
        + 3 * _NIL
    )
    return join_cells(top, branches.values())


def _cells_of(id: Value) -> dict[bytes, bytes]:
    """Return the branch cells of an id."""
    return {hash: encoding for hash, encoding, _ in novelty(id)}


def _slot(encoding: bytes, branches: dict[bytes, bytes]) -> bytes:
    """Return a cell's encoding inside its parent; add the cell to `branches` if it is one."""
    if len(encoding) <= EMBEDDED_BYTES_MAX:
        return encoding
    hash = sha3_256(encoding)
    branches[hash] = encoding
    return _TAG_REF + hash


def _vector(slots: list[bytes], branches: dict[bytes, bytes]) -> bytes:
    """Return the encoding of a vector of at most 255 elements, given as encoded in a parent.

    Up to 16 elements are one leaf. A count that is a multiple of 16 is a tree of leaves. Any other
    count writes the tail elements first, then the vector of the others.
    """
    assert len(slots) < FAN_OUT * FAN_OUT
    # 80, count in base 128, then elements or the references of leaves.
    head = _TAG_VECTOR + encode_length(len(slots))
    tail = len(slots) % FAN_OUT
    if len(slots) <= FAN_OUT:
        return head + b"".join(slots)
    # "Tail first": the elements after the last full leaf stand in the top cell.
    if tail:
        prefix = _slot(_vector(slots[:-tail], branches), branches)
        return head + b"".join(slots[-tail:]) + prefix
    leaves = (
        _slot(_vector(slots[start : start + FAN_OUT], branches), branches)
        for start in range(0, len(slots), FAN_OUT)
    )
    return head + b"".join(leaves)


def encode_answer(
    id: Value,
    value: Value,
    load_all: Callable[[Sequence[bytes]], Sequence[bytes | None]],
    branches_bytes_max: int,
) -> bytes:
    """Return the answer to a LATTICE_QUERY: `value` and the cells below it, up to the byte limit.

    Cells come breadth first; the value's own cell is always sent. A cell for which `load_all` has
    None is left out with its subtree; the asker requests it by DATA_REQUEST from any node.
    """
    top = encode(result_cell(Result(id, value)))
    of_id = _cells_of(id)
    # Joined batch by batch, while the caches of the processor have the cells.
    pieces = [join_cells(top, of_id.values())]
    seen = set(of_id)
    is_first = True
    level = references(top)
    size = 0
    while level:
        fresh: list[bytes] = []
        for hash in level:
            if hash not in seen:
                seen.add(hash)
                fresh.append(hash)
        level = []  # breadth first, so that a cut answer has the upper cells
        begin = 0
        while begin < len(fresh):
            # A branch is longer than EMBEDDED_BYTES_MAX, which bounds how many still have room.
            room = max(0, branches_bytes_max - size) // EMBEDDED_BYTES_MAX
            some = fresh[begin : begin + min(_LOADED_MAX, room + 1)]
            begin += len(some)
            found = load_all(some)
            here = [encoding for encoding in found if encoding is not None]
            piece = join_cells(b"", here)
            # The usual case: there is room for all of them.
            if size + len(piece) <= branches_bytes_max:
                size += len(piece)
                pieces.append(piece)
                level += all_references(here)
                is_first = is_first and not here
                continue
            for encoding in here:
                # The value's own cell is always sent: the asker does not know its hash and could
                # not request it.
                if not is_first and size + len(encoding) > branches_bytes_max:
                    return b"".join(pieces)
                piece = join_cells(b"", [encoding])
                size += len(piece)
                pieces.append(piece)
                is_first = False
                level.extend(references(encoding))
    return b"".join(pieces)
