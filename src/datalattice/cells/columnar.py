"""Columns: fields of many small vectors, read from the leaves that hold them.

A log is a vector of records, and a record a short vector embedded in a leaf. Reading one field of
every record through Vector objects would create all of them, with all fields. Here only the wanted
fields become objects.

Source: CAD003 "Vector"; docs/design/columns.md.
"""

from __future__ import annotations

from mypy_extensions import i64

from datalattice.cells.cell import TAG_REF, Loader, Ref, Value, deref, deref_many
from datalattice.cells.parse import value_in
from datalattice.cells.scan import block_size, read_vlq, skip_kid
from datalattice.cells.vectors import TAG_VECTOR, Vector, node_of


def columns(
    rows: Vector, fields: list[int], width: int, start: int = 0, stop: int | None = None
) -> list[list[Value]]:
    """Return, for each of `fields`, the list of that element of every row.

    Rows of `rows[start:stop]` are vectors of at least `width` elements; fields are increasing and
    below `width`. Any other row gives None in each column.
    Raises: MissingData: a row or a field is a branch that is missing.
    Cost:   each leaf is visited once; closed leaves stay closed.
    """
    out: list[list[Value]] = [[] for _ in fields]
    size: int = len(rows)
    last: i64 = size if stop is None else min(stop, size)
    first: i64 = min(max(start, 0), size)
    if first < last:
        _visit(rows, fields, width, first, last, out)
    return out


def _visit(
    node: Vector, fields: list[int], width: i64, start: i64, stop: i64, out: list[list[Value]]
) -> None:
    """Append the fields of rows `start` .. `stop - 1` of a node, at least one."""
    count: i64 = node._count
    tail: i64 = count if count <= 16 else count & 15
    base: i64 = count - tail
    # "The last `count mod 16` elements come first, and then the Vector of all elements before them"
    # (docs/cells.md "Vector and List").
    if tail:
        if start < base:
            node._open()  # also reads the prefix
            _visit(node_of(node._prefix, base), fields, width, start, min(stop, base), out)
        low: i64 = max(start - base, 0)
        if low < stop - base:
            if node._kids is None:
                _read_leaf(node, fields, width, low, stop - base, out)
            else:
                for i in range(low, stop - base):
                    _append(deref(node._open()[i]), fields, width, out)
        return
    kids = node._open()
    block: i64 = block_size(count)
    child: i64 = start // block
    begin: i64 = child * block
    # Up to 16 siblings, which lie together in a store.
    for kid in deref_many(kids[child : (stop - 1) // block + 1], cached=True):
        size: i64 = min(block, count - begin)
        below = node_of(kid, size)
        _visit(below, fields, width, max(start - begin, 0), min(stop - begin, size), out)
        begin += block


def _append(row: Value, fields: list[int], width: i64, out: list[list[Value]]) -> None:
    fits = isinstance(row, Vector) and row._count >= width
    for column in range(len(fields)):
        out[column].append(row[fields[column]] if fits and isinstance(row, Vector) else None)


def _read_leaf(
    leaf: Vector, fields: list[int], width: i64, start: i64, stop: i64, out: list[list[Value]]
) -> None:
    data = leaf._encoding
    assert data is not None
    loader = leaf._loader
    at: i64 = read_vlq(data, 1, len(data))[1]
    # Elements have different lengths, so those before are skipped one by one.
    for _ in range(start):
        at = skip_kid(data, at)
    for _ in range(stop - start):
        # A row that is embedded in the leaf is read from its bytes, without an object for it.
        if data[at] == TAG_VECTOR:
            count, inside = read_vlq(data, at + 1, len(data))
            # Such a row is one leaf, so this encoding has its fields, one after the other.
            if width <= count <= 16:
                at = _read_row(data, inside, count, loader, fields, out)
                continue
        after: i64 = skip_kid(data, at)
        row = (
            Ref(data[at + 1 : at + 33], loader).resolve()
            if data[at] == TAG_REF
            else value_in(data, at, after, loader)
        )
        _append(row, fields, width, out)
        at = after


def _read_row(
    data: bytes,
    pos: i64,
    count: i64,
    loader: Loader | None,
    fields: list[int],
    out: list[list[Value]],
) -> i64:
    """Append the wanted of `count` kids from `pos`; return the position after the last kid."""
    at: i64 = pos
    column: i64 = 0
    wanted: i64 = fields[0]
    for field in range(count):
        after: i64 = skip_kid(data, at)
        if field == wanted:
            out[column].append(
                Ref(data[at + 1 : at + 33], loader).resolve()
                if data[at] == TAG_REF
                else value_in(data, at, after, loader)
            )
            column += 1
            wanted = fields[column] if column < len(fields) else -1
        at = after
    return at
