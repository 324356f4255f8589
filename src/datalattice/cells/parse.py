"""Parse: scanned encodings to values, one level at a time.

Each type of cell registers a function that makes a closed cell of its tag; scalars are made at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from datalattice.cells.cell import Cell, Loader, Ref, Value, double_value
from datalattice.cells.scalars import Char, Flag, Keyword, Symbol, make_extension
from datalattice.cells.scan import read_vlq, skip
from datalattice.limits import CHUNK_BYTES

Wrapper = Callable[[bytes, "Loader | None"], Cell]
wrappers: Final[list[Wrapper | None]] = [None] * 256
"""The function that makes a closed cell from (encoding, loader), by tag."""


def value_in(data: bytes, pos: i64, end: i64, loader: Loader | None) -> Value:
    """Return the value with the canonical encoding `data[pos:end]`."""
    tag: i64 = data[pos]
    # Tags in the order of how often they occur; `scan` has refused all that are not canonical.
    if tag <= 0x19:
        if tag <= 0x10:
            return None if tag == 0 else 0
        # "`10` to `18`: 0 to 8 bytes of two's complement"; `19`: a count first (docs/cells.md
        # "Encoding table").
        if end >= 8 and tag < 0x18:  # as the last bytes of a word, without a slice of the data
            bits: i64 = 8 * (tag - 0x10)
            unit: i64 = 1  # compiled, a literal that is shifted has 32 bits
            unit <<= bits
            number: i64 = read_i64_be(data, end - 8) & (unit - 1)
            return number - unit if number >> (bits - 1) else number
        start: i64 = pos + 1 if tag < 0x19 else read_vlq(data, pos + 1, end)[1]
        return int.from_bytes(data[start:end], "big", signed=True)
    if tag == 0x30 or tag == 0x31:
        length, at = read_vlq(data, pos + 1, end)
        if length <= CHUNK_BYTES:
            raw = data[at:end]
            # Bytes that are not UTF-8 are kept, and written again unchanged.
            return raw if tag == 0x31 else raw.decode("utf-8", "surrogateescape")
    wrapper = wrappers[tag]
    if wrapper is not None:
        return wrapper(data[pos:end], loader)
    if tag == 0x33:
        return Keyword(data[pos + 2 : end])
    if tag == 0x1D:
        return double_value(data[pos + 1 : end])
    if tag == 0xB0:
        return False
    if tag == 0xB1:
        return True
    if tag == 0x32:
        return Symbol(data[pos + 2 : end])
    if 0x3C <= tag <= 0x3F:
        return Char(int.from_bytes(data[pos + 1 : end], "big"))
    if (tag & 0xF0) == 0xB0:
        return Flag(tag & 15)
    return make_extension(tag & 15, read_vlq(data, pos + 1, end)[0])


def kids_in(data: bytes, pos: i64, count: i64, loader: Loader | None) -> tuple[list[object], i64]:
    """Return (`count` kids read from `pos`, position after them); references stay unloaded."""
    kids: list[object] = []
    at: i64 = pos
    for _ in range(count):
        # "`20` and its hash, 33 bytes": a branch, which is loaded when it is looked at.
        if data[at] == 0x20:
            kids.append(Ref(data[at + 1 : at + 33], loader))
            at += 33
        else:
            after: i64 = skip(data, at)
            kids.append(value_in(data, at, after, loader))
            at = after
    return kids, at
