"""Message: decoding a cell, and several cells in one byte string.

A message is the encoding of its top cell, then each branch below it once, with its length in front. What is left out must be known to
the reader, who looks for it through a loader.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from datalattice.cells.blobs import make_blob, make_text
from datalattice.cells.cell import (
    Cell,
    Loader,
    Ref,
    Value,
    encode,
    pickle_hook,
    put_vlq,
    restore_hook,
)
from datalattice.cells.parse import read_value
from datalattice.cells.scan import branch_hashes, read_vlq, scan, scan_top
from datalattice.errors import BadFormat, LimitExceeded, MissingData
from datalattice.limits import CELL_BYTES_MAX, EMBEDDED_BYTES_MAX, MESSAGE_BYTES_MAX

_sha3: Final = hashlib.sha3_256


def decode(data: bytes, loader: Loader | None = None) -> Value:
    """Return the value of the encoding of one cell; its branches are loaded through `loader` when they are looked at.

    Raises: BadFormat: the bytes are not the canonical encoding of one cell.
    Source: CAD003.
    """
    scan_top(data)
    return read_value(data, 0, len(data), loader)


def decode_trusted(data: bytes, digest: bytes, loader: Loader | None) -> Value:
    """Return the value of an encoding that was scanned before and whose hash is known: a store's own cells.

    Source: CAD003.
    """
    value = read_value(data, 0, len(data), loader)
    if isinstance(value, Cell):
        value._hash = digest
    return value


class Parts:
    """The cells that came with a message, by hash, with another loader behind them.

    Source: CAD003 "Multi-cell encoding".
    """

    def __init__(self, loader: Loader | None) -> None:
        self._encodings: dict[bytes, bytes] = {}
        self._values: dict[bytes, Value] = {}
        self._behind = loader

    def add(self, encoding: bytes) -> bytes:
        """Keep a scanned cell; return its hash."""
        digest = _sha3(encoding).digest()
        self._encodings[digest] = encoding
        return digest

    def load(self, hash: bytes) -> Value:
        """Return the cell with this hash.

        Raises: MissingData: neither the message nor the loader behind it has the cell.
        """
        if hash in self._values:
            return self._values[hash]
        encoding = self._encodings.get(hash)
        if encoding is None:
            if self._behind is None:
                raise MissingData([hash])
            return self._behind.load(hash)
        value = decode_trusted(encoding, hash, self)
        self._values[hash] = value
        return value

    def __len__(self) -> int:
        return len(self._encodings)

    def __contains__(self, hash: bytes) -> bool:
        return hash in self._encodings

    def encodings(self) -> dict[bytes, bytes]:
        """Return the cells by hash, as received."""
        return self._encodings


def decode_message(
    data: bytes, loader: Loader | None = None, limit: int = MESSAGE_BYTES_MAX
) -> Value:
    """Return the value of a message; cells it leaves out are loaded through `loader` when they are looked at.

    Raises: BadFormat: the bytes are not a message; LimitExceeded: longer than `limit` bytes.
    Source: CAD003 "Multi-cell encoding".
    """
    return decode_parts(data, loader, limit)[0]


def decode_parts(
    data: bytes, loader: Loader | None = None, limit: int = MESSAGE_BYTES_MAX
) -> tuple[Value, Parts]:
    """Return (value, the cells that came with it) of a message.

    Raises: BadFormat: the bytes are not a message; LimitExceeded: longer than `limit` bytes.
    Source: CAD003 "Multi-cell encoding".
    """
    total: i64 = len(data)
    if total > limit:
        raise LimitExceeded(f"a message has at most {limit} bytes, got {total}")
    parts = Parts(loader)
    at: i64 = scan(data, 0, total, 0, True, None)
    if at > CELL_BYTES_MAX:
        raise BadFormat(f"a cell has at most {CELL_BYTES_MAX} bytes, got {at}")
    if at == 1 and data[0] == 0 and total > 1:
        raise BadFormat("bytes after a nil message")
    value = read_value(data, 0, at, parts)
    while at < total:
        length, start = read_vlq(data, at, total)
        if length <= EMBEDDED_BYTES_MAX:
            raise BadFormat(
                f"bad message at byte {at}: a cell of {length} bytes stands inside its parent, not beside it"
            )
        if length > CELL_BYTES_MAX or start + length > total:
            raise BadFormat(f"bad message at byte {at}: a cell of {length} bytes does not fit")
        end: i64 = start + length
        if scan(data, start, end, 0, True, None) != end:
            raise BadFormat(
                f"bad message at byte {start}: a cell is shorter than its stated length of {length} bytes"
            )
        parts.add(data[start:end])
        at = end
    return value, parts


def encode_message(
    value: Value, known: Callable[[bytes], bool] | None = None, limit: int = MESSAGE_BYTES_MAX
) -> bytes:
    """Return the message of `value`: its cell and every branch below it, depth first.

    known: given a branch's hash, says whether the reader has it and all below; such branches are left out.
    Raises: LimitExceeded: it would be longer than `limit` bytes; MissingData: a branch is not at hand.
    Source: CAD003 "Multi-cell encoding".
    """
    top = encode(value)
    out = BytesWriter()
    out.write(top)
    size: int = len(top)
    seen: set[bytes] = set()
    stack: list[object] = list(reversed(cell_children(value)))
    while stack:
        kid = stack.pop()
        if isinstance(kid, Cell) and len(kid.encoding) <= EMBEDDED_BYTES_MAX:
            stack.extend(reversed(cell_children(kid)))
            continue
        if not isinstance(kid, (Cell, Ref)):
            if not isinstance(kid, (str, bytes)) or len(encode(kid)) <= EMBEDDED_BYTES_MAX:
                if isinstance(kid, (str, bytes)):
                    stack.extend(reversed(cell_children(kid)))
                continue
        digest = kid.hash if isinstance(kid, (Cell, Ref)) else _sha3(encode(kid)).digest()
        if digest in seen or (known is not None and known(digest)):
            continue
        seen.add(digest)
        found = kid.resolve() if isinstance(kid, Ref) else kid
        encoding = encode(found)
        size += len(encoding) + 3
        if size > limit:
            raise LimitExceeded(f"a message has at most {limit} bytes; this value needs more")
        put_vlq(out, len(encoding))
        out.write(encoding)
        stack.extend(reversed(cell_children(found)))
    return out.getvalue()


def cell_children(value: Value) -> list[object]:
    """Return the kids of a value: none for scalars and short strings; long plain strings and blobs have chunks.

    Source: CAD003.
    """
    if isinstance(value, Cell):
        return value._children()
    if isinstance(value, (str, bytes)) and len(value) > 1024:
        from_plain = read_back(value)
        return from_plain._children() if isinstance(from_plain, Cell) else []
    return []


def read_back(value: Value) -> Value:
    """Return a long plain string or blob as the tree it is encoded as; anything else as it is.

    Source: CAD003 "Blob".
    """
    if isinstance(value, bytes):
        return make_blob(value)
    if isinstance(value, str):
        return make_text(value)
    return value


def references(encoding: bytes) -> list[bytes]:
    """Return the distinct hashes of the branches that a cell with this encoding refers to, in order.

    Source: CAD003 "Branches".
    """
    return list(dict.fromkeys(branch_hashes(encoding)))


pickle_hook[0] = encode_message
restore_hook[0] = decode_message
