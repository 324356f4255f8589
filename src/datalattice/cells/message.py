"""Message: decoding one cell, or several cells in one byte string.

A message is the encoding of its top cell, then each branch below it once, with its length before
it. The receiver must already have the cells left out, and loads them through a loader.

Source: CAD003 "Branches", "Multi-cell encoding"; docs/cells.md "Embedding", "Decoding", "Messages".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from datalattice.cells.blobs import make_blob, make_text
from datalattice.cells.cell import (
    Cell,
    Loader,
    Ref,
    UncachedLoader,
    Value,
    can_branch,
    encode,
    pickle_hook,
    put_vlq,
    restore_hook,
    value_hash,
)
from datalattice.cells.parse import value_in
from datalattice.cells.scalars import require_type
from datalattice.cells.scan import branch_hashes, may_refer, read_vlq, scan, scan_top
from datalattice.crypto import sha3_256_many
from datalattice.errors import BadFormat, LimitExceeded, MissingData
from datalattice.limits import CELL_BYTES_MAX, CHUNK_BYTES, EMBEDDED_BYTES_MAX, MESSAGE_BYTES_MAX

_BYTES: Final = (bytes, bytearray, memoryview)


def decode(data: bytes | bytearray | memoryview, loader: Loader | None = None) -> Value:
    """Return the value of the encoding of one cell; its branches are loaded on demand.

    Raises: BadFormat: the bytes are not the canonical encoding of one cell.
    """
    require_type(data, _BYTES, "an encoding is bytes")
    raw = data if isinstance(data, bytes) else bytes(data)
    # Every rule of one cell is checked here; reading the value then trusts its shape.
    scan_top(raw)
    return value_in(raw, 0, len(raw), loader)


def decode_trusted(data: bytes, digest: bytes, loader: Loader | None) -> Value:
    """Return the value of an encoding that was scanned before, with a known hash: a stored cell."""
    value = value_in(data, 0, len(data), loader)
    if isinstance(value, Cell):
        # Known already: hashing it again would cost as much as reading it.
        value._hash = digest
    return value


TOGETHER_BYTES: Final = 1 << 17
"""Bytes of a message that are split into cells before these are hashed together."""


class MessageCells(UncachedLoader):
    """Loads the cells of a message, and all others from another loader."""

    def __init__(self, loader: Loader | None) -> None:
        self._encodings: dict[bytes, bytes] = {}
        self._behind = loader

    def add(self, encodings: list[bytes]) -> None:
        """Add scanned cells."""
        self._encodings.update(zip(sha3_256_many(encodings), encodings, strict=True))

    def load(self, hash: bytes) -> Value:
        """Return the cell with this hash.

        Raises: MissingData: neither the message nor the other loader has the cell.
        """
        encoding = self._encodings.get(hash)
        if encoding is None:
            if self._behind is None:
                raise MissingData([hash])
            # "A message may leave out branches; the reader loads them through a loader"
            # (docs/cells.md "Messages").
            return self._behind.load(hash)
        return decode_trusted(encoding, hash, self)

    def __len__(self) -> int:
        return len(self._encodings)

    def __contains__(self, hash: bytes) -> bool:
        return hash in self._encodings

    def encodings(self) -> dict[bytes, bytes]:
        """Return the cells by hash, as received."""
        return self._encodings


def decode_message(
    data: bytes | bytearray | memoryview,
    loader: Loader | None = None,
    limit: int = MESSAGE_BYTES_MAX,
) -> Value:
    """Return the value of a message; cells that it leaves out are loaded on demand.

    Raises: BadFormat: the bytes are not a message. LimitExceeded: longer than `limit` bytes.
    """
    return decode_parts(data, loader, limit)[0]


def decode_parts(
    data: bytes | bytearray | memoryview,
    loader: Loader | None = None,
    limit: int = MESSAGE_BYTES_MAX,
    *,
    ordered: bool = True,
) -> tuple[Value, MessageCells]:
    """Return (value, cells) of a message.

    ordered: also check the order of map keys in the cells after the first, one hash for each key.
        Without it the caller must check the cells with `check_cell`.
    Raises: BadFormat: the bytes are not a message. LimitExceeded: longer than `limit` bytes.
    """
    require_type(data, _BYTES, "a message is bytes")
    total: i64 = len(data)
    # Before any byte is looked at, so a long message costs nothing.
    if total > limit:
        raise LimitExceeded(f"a message has at most {limit} bytes, got {total}")
    raw: bytes = data if isinstance(data, bytes) else bytes(data)
    parts = MessageCells(loader)
    at: i64 = scan(raw, 0, total, 0, True, None)
    if at > CELL_BYTES_MAX:
        raise BadFormat(f"a cell has at most {CELL_BYTES_MAX} bytes, got {at}")
    # Refused: "in a message ... anything after nil" (docs/cells.md "Decoding").
    if at == 1 and raw[0] == 0 and total > 1:
        raise BadFormat("bytes after a nil message")
    value = value_in(raw, 0, at, parts)
    cells: list[bytes] = []
    begun: i64 = at
    # [top cell]([VLQ of the length][cell])*, in any order.
    while at < total:
        length, start = read_vlq(raw, at, total)
        # Refused: "in a message a cell of at most 140 bytes, one that does not have its stated
        # length".
        if length <= EMBEDDED_BYTES_MAX:
            raise BadFormat(
                f"bad message at byte {at}: a cell of {length} bytes belongs inside its parent"
            )
        if length > CELL_BYTES_MAX or start + length > total:
            raise BadFormat(f"bad message at byte {at}: a cell of {length} bytes does not fit")
        end: i64 = start + length
        # Each cell is checked before it is kept, whether or not anything refers to it.
        if scan(raw, start, end, 0, ordered, None) != end:
            raise BadFormat(
                f"bad message at byte {start}: a cell is shorter than its stated {length} bytes"
            )
        cells.append(raw[start:end])
        at = end
        # Hashed while the caches of the processor have them: in one go it takes a sixth longer.
        if at - begun >= TOGETHER_BYTES:
            parts.add(cells)
            cells = []
            begun = at
    parts.add(cells)
    return value, parts


def encode_message(
    value: Value, known: Callable[[bytes], bool] | None = None, limit: int = MESSAGE_BYTES_MAX
) -> bytes:
    """Return the message of `value`: its cell and every branch below it, depth first.

    known: returns whether the receiver has a branch and all below it; such branches are left out.
    Raises: LimitExceeded: the message exceeds `limit` bytes. MissingData: a branch is missing.
    """
    top = encode(value)
    out = BytesWriter()
    out.write(top)
    size: int = len(top)
    seen: set[bytes] = set()
    # Reversed, so that the first branch is written first: "this package writes branches depth
    # first".
    stack = list(branch_kids(value))[::-1]
    while stack:
        digest, kid = stack.pop()
        # "Then each branch below it once" (docs/cells.md "Messages"): shared cells are sent once.
        if digest in seen or (known is not None and known(digest)):
            continue
        seen.add(digest)
        found = kid.resolve() if isinstance(kid, Ref) else kid
        encoding = encode(found)
        # A cell has at most 16,383 bytes, so its length takes two bytes; three is an upper bound.
        size += len(encoding) + 3
        if size > limit:
            raise LimitExceeded(
                f"a message has at most {limit} bytes, and this value needs more: divide it into "
                "several values, and put large content into files"
            )
        put_vlq(out, len(encoding))
        out.write(encoding)
        stack.extend(list(branch_kids(found))[::-1])
    return out.getvalue()


def join_cells(top: bytes, branches: Iterable[bytes]) -> bytes:
    """Return the message of one cell and branches, all given as encodings."""
    out = BytesWriter()
    # "First the encoding of the top cell, then each branch below it once" (docs/cells.md
    # "Messages").
    out.write(top)
    for encoding in branches:
        put_vlq(out, len(encoding))
        out.write(encoding)
    return out.getvalue()


def cell_children(value: Value) -> list[object]:
    """Return the kids of a value: none for scalars and short strings.

    Long plain strings and blobs have chunks.
    """
    if isinstance(value, Cell):
        return value._children()
    if isinstance(value, (str, bytes)) and len(value) > CHUNK_BYTES // 4:  # 4 bytes a character
        tree = make_blob(value) if isinstance(value, bytes) else make_text(value)
        return tree._children() if isinstance(tree, Cell) else []
    return []


def branch_kids(value: Value) -> Iterator[tuple[bytes, object]]:
    """Yield (hash, kid) of the branches of the cell of `value`, in order, embedded ones included.

    A kid is a value or a Ref.
    """
    stack: list[object] = cell_children(value)[::-1]
    while stack:
        kid = stack.pop()
        if isinstance(kid, Ref):
            yield kid.hash, kid
        elif can_branch(kid):
            # A branch; the references of an embedded child count as this cell's own.
            if len(encode(kid)) > EMBEDDED_BYTES_MAX:
                yield value_hash(kid), kid
            else:
                stack.extend(cell_children(kid)[::-1])


def references(encoding: bytes) -> list[bytes]:
    """Return the distinct hashes that an encoded cell references, in order."""
    return list(dict.fromkeys(branch_hashes(encoding)))


def all_references(encodings: Iterable[bytes]) -> list[bytes]:
    """Return the hashes that some encoded cells reference, cell by cell, repeats included."""
    found: list[bytes] = []
    for encoding in encodings:
        if may_refer(encoding):
            found.extend(branch_hashes(encoding))
    return found


pickle_hook[0] = encode_message
restore_hook[0] = decode_message
