"""Rendering: the bounded text of `repr` and `str`.

Small containers print as calls that make them again. Only the shown parts are loaded, and a part
that cannot be loaded is named in its place.

Source: docs/cells.md "In a terminal".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from datalattice.cells.blobs import Chunked, Text
from datalattice.cells.cell import Cell, Ref, Value
from datalattice.cells.holes import Hole
from datalattice.cells.index import Index
from datalattice.cells.maps import Map, Set
from datalattice.cells.scalars import (
    Address,
    Char,
    Extension,
    Flag,
    Keyword,
    NanBits,
    Scalar,
    Symbol,
    repr_hook,
)
from datalattice.cells.tagged import Coded, Record, Signed, Syntax
from datalattice.cells.vectors import List, Vector
from datalattice.cells.work import Work
from datalattice.errors import DataLatticeError, MissingData, WorkExceeded
from datalattice.limits import WORK_LIMITS

RENDERED_MAX: Final = 1_000
"""Characters of the text of any value."""

RENDERED_CELLS_MAX: Final = 32
"""Cells visited or loaded for it."""

RENDERED_DEPTH_MAX: Final = 3
"""Levels of containers shown; deeper ones are folded, as in `<Map of 5>`."""

RENDERED_ITEMS_MAX: Final = 16
"""Entries shown of one container."""

_LEAF_MAX: Final = 80  # characters of one text, blob or name
_BITS_MAX: Final = 256  # longer integers are folded
_TAIL: Final = 60  # room for a count of hidden entries and the closing brackets
_ROOM: Final = RENDERED_MAX - 2 * _LEAF_MAX - (RENDERED_DEPTH_MAX + 1) * _TAIL
_LIMITS: Final = WORK_LIMITS._replace(start=RENDERED_CELLS_MAX, node=1)
_CONTAINERS: Final = (Map, Index, Set, Vector, List, Record)


class _Rendering:
    """The text of one value, and the characters and cells that it may still use."""

    def __init__(self) -> None:
        self.room = _ROOM
        self.work: Final = Work(_LIMITS, earn_max=0)

    def kid(self, kid: object, depth: int) -> str:
        """Return the text of a kid. Raises: WorkExceeded: no more cells may be loaded."""
        if not isinstance(kid, Ref):
            return self.value(kid, depth)
        # Only loading costs: cells in memory are shown freely.
        if not kid.present:
            self.work.spend(1)
        try:
            value = kid.resolve()
        except MissingData:
            return f"<missing {kid.hash.hex()[:8]}>"
        except DataLatticeError as error:
            return f"<{type(error).__name__} {kid.hash.hex()[:8]}>"
        return self.value(value, depth)

    def value(self, value: Value, depth: int) -> str:
        """Return the text of a value at a depth of containers."""
        if not isinstance(value, Cell):
            return _leaf(value)
        if isinstance(value, _CONTAINERS):
            # Folded: nothing below it is loaded.
            if depth >= RENDERED_DEPTH_MAX:
                return f"<{type(value).__name__} of {len(value):,}>"
            return self.container(value, depth)
        if isinstance(value, Chunked):
            return self.chunked(value)
        if isinstance(value, Hole):
            return f"<hole {value.hash.hex()[:8]}>"
        name = type(value).__name__
        if depth >= RENDERED_DEPTH_MAX:
            return f"<{name}>"
        if isinstance(value, Signed):
            return (
                f"<Signed by {value.public_key.hex()[:8]}: {self.kid(value._open()[0], depth + 1)}>"
            )
        if isinstance(value, Coded):
            code, held = value._open()
            return f"Coded({value.digit}, {self.kid(code, depth + 1)}, {self.kid(held, depth + 1)})"
        if isinstance(value, Syntax):
            meta = "" if value.meta is None else f", {self.value(value.meta, depth + 1)}"
            return f"Syntax({self.kid(value._open()[0], depth + 1)}{meta})"
        return f"<{name}>"

    def chunked(self, value: Chunked) -> str:
        """Return the first characters of a long text or blob, and its length."""
        size = value.byte_length()
        try:
            head = value.read(0, _LEAF_MAX, self.work)
        except (DataLatticeError, WorkExceeded):
            return f"<{type(value).__name__} of {size:,} bytes>"
        shown = repr(head.decode("utf-8", "ignore") if isinstance(value, Text) else head)
        return f"<{type(value).__name__} {shown[:_LEAF_MAX]}... of {size:,} bytes>"

    def container(self, value: Value, depth: int) -> str:
        """Return a container as the call that makes it, cut to the room left."""
        head, tail = _brackets(value)
        assert isinstance(value, _CONTAINERS)
        total, shown = len(value), 0
        parts: list[str] = []
        self.room -= len(head) + len(tail)
        try:
            for key, kid in self.items(value):
                if shown >= RENDERED_ITEMS_MAX or self.room < 0:
                    break
                text = self.kid(kid, depth + 1)
                if isinstance(value, (Map, Index)):
                    text = f"{self.kid(key, depth + 1)}: {text}"
                # A container has counted its own parts.
                self.room -= 4 + (len(text) if not isinstance(kid, _CONTAINERS) else 0)
                parts.append(text)
                shown += 1
        except WorkExceeded:
            pass  # the rest is counted below
        except MissingData as error:
            parts.append(f"<missing {error.hashes[0].hex()[:8]}>")
        except DataLatticeError as error:
            parts.append(f"<{type(error).__name__}>")
        if shown < total:
            parts.append(f"... {total - shown:,} more")
        return head + ", ".join(parts) + tail

    def items(self, value: Value) -> Iterator[tuple[object, object]]:
        """Yield (key, value) of the kids of a container; the key is None without keys."""
        if isinstance(value, (Map, Set)):
            step = 2 if isinstance(value, Map) else 1
            for leaf in value._leaves(self.work):
                kids = leaf._open()
                for at in range(0, len(kids), step):
                    yield kids[at], kids[at + step - 1]
        elif isinstance(value, Index):
            for node in value._nodes(self.work):
                kids = node._open()
                yield kids[0], kids[1]
        else:
            assert isinstance(value, (Vector, List, Record))
            body = value if isinstance(value, Vector) else value._body
            total = len(body)
            # A node has 16 children, 4 bits of a position, so a leaf is at most so many cells down.
            levels = max((total.bit_length() + 3) // 4, 1)
            row: list[object] = []
            first = 0
            for at in range(min(total, RENDERED_ITEMS_MAX + 1)):
                # A List is the Vector of its elements in reverse.
                place = total - 1 - at if isinstance(value, List) else at
                if not first <= place < first + len(row):
                    self.work.spend(levels)
                    holder, position = body._leaf(place)
                    row, first = holder._open(), place - position
                yield None, row[place - first]


def _brackets(value: Value) -> tuple[str, str]:
    if isinstance(value, Record):
        return f"Record({value.digit}, [", "])"
    name = type(value).__name__
    return (f"{name}({{", "})") if isinstance(value, (Map, Index)) else (f"{name}([", "])")


def _leaf(value: Value) -> str:
    if isinstance(value, Scalar):
        return _scalar(value)
    if isinstance(value, int) and value.bit_length() > _BITS_MAX:
        return f"<Integer of {value.bit_length():,} bits>"
    if isinstance(value, (str, bytes)):
        text = repr(value[:_LEAF_MAX])
        if len(value) <= _LEAF_MAX and len(text) <= _LEAF_MAX:
            return text
        return f"{text[:_LEAF_MAX]}... of {len(value):,}"
    return repr(value)


def _scalar(value: Scalar) -> str:
    name = type(value).__name__
    if isinstance(value, (Keyword, Symbol)):
        return f"{name}({_leaf(value.name)})"
    if isinstance(value, Char):
        return f"Char({value.code})"
    if isinstance(value, (Address, Flag)):
        return f"{name}({value.number})"
    if isinstance(value, Extension):
        return f"Extension({value.digit}, {value.number})"
    if isinstance(value, NanBits):
        return f"NanBits({value.bits:#x})"
    return f"<{name} {value.text()[:_LEAF_MAX]}>"


def render(value: object) -> str:
    """Return a text of a value for people, of at most 1,000 characters; never raises.

    Cost:   at most 32 cells are loaded, three levels deep.
    """
    try:
        text = _Rendering().value(value, 0)
    except Exception as error:  # noqa: BLE001 - "it never raises": a debugger calls it anywhere
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    return text if len(text) <= RENDERED_MAX else f"{text[: RENDERED_MAX - 3]}..."


repr_hook[0] = render


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `1 key`, `2,000 keys`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
