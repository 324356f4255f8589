"""Shapes: maps with the same names, encoded from columns without an object per map.

The order of keys in a map, and its division into cells, depend only on the keys. Both are found
once, by building one such map; for each row only the values are inserted between the names.

Cells too long to be embedded are added to a list, each after the cells below it.

Source: CAD003 "Map"; docs/cells.md "Map and Set", "Embedding".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from librt.strings import BytesWriter, read_i32_le, read_i64_le, write_i64_be
from mypy_extensions import i64, u8

from datalattice.cells.blobs import make_blob, make_text
from datalattice.cells.cell import TAG_REF, Value, encode, put_vlq, value_hash
from datalattice.cells.maps import Map
from datalattice.cells.trie import TAG_MAP, trie_of
from datalattice.cells.walk import novelty
from datalattice.crypto import sha3_256
from datalattice.errors import UsageError
from datalattice.limits import CHUNK_BYTES, EMBEDDED_BYTES_MAX, MAP_LEAF_MAX

CellList = list[tuple[bytes, bytes]]
"""(hash, encoding) of cells, children first."""

_NIL: Final = b"\x00"
_REF: Final = bytes([TAG_REF])
_TAG_TEXT: Final = 0x30
_TAG_BLOB: Final = 0x31
_NUMBER: Final = 8  # bytes of an integer or double in a column
_OFFSET: Final = 4  # bytes of an offset into a column of strings
_EXPONENT: Final = 0x7FF0000000000000
_FRACTION: Final = 0x000FFFFFFFFFFFFF
_NAN: Final = encode(float("nan"))


def as_kid(value: Value, cells: CellList) -> bytes:
    """Return a value as its parent holds it: its encoding or its hash.

    Cells below it are added to `cells`, and its own if it is not embedded.
    """
    for hash, encoding, _ in novelty(value):
        cells.append((hash, encoding))
    encoding = encode(value)
    # "If the encoding of a child has at most 140 bytes, its parent contains that encoding"
    # (docs/cells.md "Embedding").
    return encoding if len(encoding) <= EMBEDDED_BYTES_MAX else _REF + value_hash(value)


def cell_as_kid(encoding: bytes, cells: CellList) -> bytes:
    """Return an encoding as its parent holds it, or its hash after adding it to `cells`."""
    if len(encoding) <= EMBEDDED_BYTES_MAX:
        return encoding
    digest = sha3_256(encoding)
    cells.append((digest, encoding))
    # A branch: "its parent contains `20` and its hash, 33 bytes" (docs/cells.md "Embedding").
    return _REF + digest


class Column:
    """The values of one name, row by row.

    `valid` has one byte per row, zero for None; it is None if no row is None.
    """

    def __init__(self, valid: bytes | None) -> None:
        self._valid: Final = valid

    def has(self, row: i64) -> bool:
        """Return whether the value of a row is not None."""
        valid = self._valid
        return valid is None or valid[row] != 0

    def put(self, out: BytesWriter, row: i64, cells: CellList) -> None:
        """Append the value of a row as its parent holds it."""
        raise UsageError(type(self).__name__ + " is not a concrete kind of column")

    def kids(self, count: int, cells: CellList) -> list[bytes]:
        """Return the values of the first `count` rows as their parents hold them."""
        made: list[bytes] = []
        for row in range(count):
            out = BytesWriter()
            self.put(out, row, cells)
            made.append(out.getvalue())
        return made


class IntegerColumn(Column):
    """Integers, 64 bits each, little-endian."""

    def __init__(self, data: bytes, valid: bytes | None) -> None:
        super().__init__(valid)
        self._data: Final = data

    def put(self, out: BytesWriter, row: i64, cells: CellList) -> None:
        """Append the value of a row as its parent holds it."""
        if not self.has(row):
            out.append(u8(0))
            return
        number: i64 = read_i64_le(self._data, row * _NUMBER)
        length: i64 = 0
        if number:
            length = 1
            rest: i64 = number
            # Shortest two's complement; 0 has no bytes (docs/cells.md "Encoding table").
            while rest < -128 or rest > 127:
                rest >>= 8
                length += 1
        out.append(u8(0x10 + length))
        shift: i64 = 8 * (length - 1)
        while shift >= 0:
            out.append(u8((number >> shift) & 0xFF))
            shift -= 8


class DoubleColumn(Column):
    """Doubles, 64 bits each, little-endian."""

    def __init__(self, data: bytes, valid: bytes | None) -> None:
        super().__init__(valid)
        self._data: Final = data

    def put(self, out: BytesWriter, row: i64, cells: CellList) -> None:
        """Append the value of a row as its parent holds it."""
        if not self.has(row):
            out.append(u8(0))
            return
        bits: i64 = read_i64_le(self._data, row * _NUMBER)
        if bits & _EXPONENT == _EXPONENT and bits & _FRACTION:
            # "Every NaN that a program makes is `7ff8000000000000`".
            out.write(_NAN)
            return
        out.append(u8(0x1D))
        write_i64_be(out, bits)


class TruthColumn(Column):
    """Booleans, one byte each."""

    def __init__(self, data: bytes, valid: bytes | None) -> None:
        super().__init__(valid)
        self._data: Final = data

    def put(self, out: BytesWriter, row: i64, cells: CellList) -> None:
        """Append the value of a row as its parent holds it."""
        if not self.has(row):
            out.append(u8(0))
        elif self._data[row]:
            out.append(u8(0xB1))
        else:
            out.append(u8(0xB0))


class StringColumn(Column):
    """Strings, or blobs: their bytes end to end.

    `ends` has the offsets of all rows and the final end, 32 bits each, little-endian, from which
    `base` is subtracted.
    """

    def __init__(
        self, data: bytes, ends: bytes, base: int, valid: bytes | None, *, is_text: bool
    ) -> None:
        super().__init__(valid)
        self._data: Final = data
        self._ends: Final = ends
        self._base: Final[i64] = base
        self._is_text: Final = is_text

    def put(self, out: BytesWriter, row: i64, cells: CellList) -> None:
        """Append the value of a row as its parent holds it."""
        if not self.has(row):
            out.append(u8(0))
            return
        begin: i64 = i64(read_i32_le(self._ends, row * _OFFSET)) - self._base
        end: i64 = i64(read_i32_le(self._ends, row * _OFFSET + _OFFSET)) - self._base
        size: i64 = end - begin
        # "One cell holds up to 4,096 bytes"; longer ones are a tree (docs/cells.md "Blob and
        # String").
        if size > CHUNK_BYTES:
            raw = self._data[begin:end]
            whole = make_text(raw.decode()) if self._is_text else make_blob(raw)
            out.write(as_kid(whole, cells))
            return
        tag: i64 = _TAG_TEXT if self._is_text else _TAG_BLOB
        # A tag and a VLQ of at most two bytes come before the bytes.
        if size + 3 <= EMBEDDED_BYTES_MAX:
            out.append(u8(tag))
            put_vlq(out, size)
            out.write(self._data[begin:end])
            return
        alone = BytesWriter()
        alone.append(u8(tag))
        put_vlq(alone, size)
        alone.write(self._data[begin:end])
        out.write(cell_as_kid(alone.getvalue(), cells))


class KidColumn(Column):
    """Any values, given as their parents hold them."""

    def __init__(self, kids: list[bytes]) -> None:
        super().__init__(None)
        self._kids: Final = kids

    def has(self, row: i64) -> bool:
        """Return whether the value of a row is not None."""
        return self._kids[row] != _NIL

    def put(self, out: BytesWriter, row: i64, cells: CellList) -> None:
        """Append the value of a row as its parent holds it."""
        out.write(self._kids[row])


class _MapPart:
    """A node or leaf of a map; a leaf has the column of each key."""

    def __init__(
        self, head: bytes, keys: list[bytes], columns: list[int], below: list[_MapPart]
    ) -> None:
        self.head: Final = head
        self.keys: Final = keys
        self.columns: Final = columns
        self.below: Final = below


class Shape:
    """The layout that all maps with the same names share. See `shape_of`."""

    def __init__(self, top: _MapPart) -> None:
        self._top: Final = top

    @property
    def is_leaf(self) -> bool:
        """Whether each of these maps is one cell, apart from its values."""
        return not self._top.below

    def encodings(
        self, columns: list[Column], count: int, cells: CellList, *, drop_nils: bool = False
    ) -> list[bytes]:
        """Return the encodings of `count` maps.

        columns: in the order of the names.
        cells:   receives the cells that the maps reference, not the maps themselves.
        drop_nils: leave out names whose value is None; only for maps that are leaves.
        """
        if drop_nils:
            assert self.is_leaf
            return [_sparse(self._top, columns, row, cells) for row in range(count)]
        return [_row(self._top, columns, row, cells) for row in range(count)]


def shape_of(names: Sequence[str]) -> Shape | None:
    """Return the shape of maps with these names, which are distinct.

    None if a name is too long to be embedded, or has cells below it.
    """
    # Names stand in every row's cell, so they must be embedded: "at most 140 bytes" (docs/cells.md
    # "Embedding").
    if any(len(name.encode()) + 3 > EMBEDDED_BYTES_MAX for name in names):
        return None
    return Shape(_part(Map.of({name: place for place, name in enumerate(names)})))


def _part(node: Map) -> _MapPart:
    out = BytesWriter()
    out.append(u8(TAG_MAP))
    put_vlq(out, node._count)
    kids = node._open()
    # In a leaf keys and values alternate; a node has one child for each digit.
    if node._count <= MAP_LEAF_MAX:
        keys = [encode(kids[i]) for i in range(0, len(kids), 2)]
        places = [kids[i] for i in range(1, len(kids), 2)]
        columns = [place for place in places if isinstance(place, int)]
        return _MapPart(out.getvalue(), keys, columns, [])
    out.append(u8(node._shift))
    out.append(u8(node._mask >> 8))
    out.append(u8(node._mask & 0xFF))
    below: list[_MapPart] = []
    for kid in kids:
        child = trie_of(kid, TAG_MAP, node._count, node._shift)
        assert isinstance(child, Map)
        below.append(_part(child))
    return _MapPart(out.getvalue(), [], [], below)


def _row(part: _MapPart, columns: list[Column], row: i64, cells: CellList) -> bytes:
    out = BytesWriter()
    out.write(part.head)
    for below in part.below:
        out.write(cell_as_kid(_row(below, columns, row, cells), cells))
    for i in range(len(part.keys)):
        out.write(part.keys[i])
        columns[part.columns[i]].put(out, row, cells)
    return out.getvalue()


def _sparse(part: _MapPart, columns: list[Column], row: i64, cells: CellList) -> bytes:
    count: i64 = 0
    for column in columns:
        if column.has(row):
            count += 1
    out = BytesWriter()
    out.append(u8(TAG_MAP))
    # A leaf has at most 15 entries, so its count is one byte. The order of the remaining keys does
    # not change.
    out.append(u8(count))
    for i in range(len(part.keys)):
        column = columns[part.columns[i]]
        if column.has(row):
            out.write(part.keys[i])
            column.put(out, row, cells)
    return out.getvalue()
