"""Validate: the complete check of a value, branches included.

Against everything that one cell alone cannot show.
"""

from __future__ import annotations

from itertools import pairwise

from datalattice.cells.blobs import Blob, Chunked
from datalattice.cells.cell import Cell, Ref, Value, broken, deref, encode, kid_hash
from datalattice.cells.index import Index, key_bytes
from datalattice.cells.scan import block_size, chunk_span, scan_top
from datalattice.cells.tagged import Record, Syntax
from datalattice.cells.trie import Trie, digit_at
from datalattice.cells.vectors import List, Vector
from datalattice.errors import BadFormat, MissingData, TypeMismatch
from datalattice.limits import CHUNK_BYTES, EMBEDDED_BYTES_MAX, MAP_LEAF_MAX


def validate(value: Value) -> list[bytes]:
    """Check that `value` and all below it is canonical.

    Return the hashes of the branches that are not here.

    Faults that can be seen are raised even when other branches are missing.
    Raises: BadFormat: some part has the wrong kind, length, order or place.
    Source: CAD003; docs/cells.md "Decoding".
    """
    checker = _Checker()
    checker.run(value)
    return list(checker.absent)


class _Checker:
    def __init__(self) -> None:
        self.absent: dict[bytes, None] = {}
        self.seen: set[bytes] = set()
        self.stack: list[Value] = []

    def run(self, value: Value) -> None:
        self.stack.append(value)
        while self.stack:
            node = self.stack.pop()
            if isinstance(node, Cell):
                if node.hash in self.seen:
                    continue
                self.seen.add(node.hash)
                scan_top(node.encoding)
                self._check(node)
                for kid in node._children():
                    self._visit(kid)

    def _visit(self, kid: object) -> None:
        if isinstance(kid, Ref):
            found = self._fetch(kid)
            if found is not None and len(encode(found)) <= EMBEDDED_BYTES_MAX:
                raise broken("a child that fits inside its parent is referenced by hash")
            self.stack.append(found)
        elif isinstance(kid, Cell):
            self.stack.append(kid)

    def _fetch(self, kid: object) -> Value:
        """Return a kid, or None when it is not here (and note it)."""
        try:
            return deref(kid)
        except MissingData as error:
            for digest in error.hashes:
                self.absent[digest] = None
            return None

    def _check(self, node: Cell) -> None:
        if isinstance(node, Vector):
            self._vector(node)
        elif isinstance(node, (List, Record)):
            self._vector(node._body)
        elif isinstance(node, Trie):
            self._trie(node)
        elif isinstance(node, Index):
            self._index(node)
        elif isinstance(node, Chunked):
            self._chunked(node)
        elif isinstance(node, Syntax) and node.meta is not None:
            self._trie(node.meta)

    def _vector(self, node: Vector) -> None:
        count = len(node)
        if count <= 16:
            return
        tail = count % 16
        if tail:
            self._vector_child(node._children()[-1], count - tail)
            return
        block = block_size(count)
        for i, kid in enumerate(node._children()):
            self._vector_child(kid, min(block, count - i * block))

    def _vector_child(self, kid: object, count: int) -> None:
        child = self._fetch(kid)
        if child is None and isinstance(kid, Ref):
            return
        if not isinstance(child, Vector) or len(child) != count:
            raise broken(f"a vector child of {count} elements is something else")

    def _trie(self, node: Trie) -> None:
        if node._count <= MAP_LEAF_MAX:
            keys = [kid_hash(kid) for kid in node._children()[:: node._width()]]
            if any(a >= b for a, b in pairwise(keys)):
                raise broken("map keys are not in strictly increasing order of their hashes")
            return
        total = 0
        complete = True
        digits = [digit for digit in range(16) if node._mask & (1 << digit)]
        samples: list[bytes] = []
        for digit, kid in zip(digits, node._children(), strict=True):
            child = self._fetch(kid)
            if child is None and isinstance(kid, Ref):
                complete = False
                continue
            if (
                not isinstance(child, Trie)
                or child._tag != node._tag
                or not 0 < child._count < node._count
            ):
                raise broken("a map or set child is something else")
            total += child._count
            keys = self._keys(child)
            if any(digit_at(key, node._shift) != digit for key in keys):
                raise broken("a key stands under the wrong digit")
            samples.extend(keys)
        if total > node._count or (complete and total != node._count):
            raise broken(f"a map node of {node._count} entries holds {total}")
        if any(a[: node._shift // 2] != samples[0][: node._shift // 2] for a in samples) or (
            node._shift % 2
            and any(
                digit_at(a, node._shift - 1) != digit_at(samples[0], node._shift - 1)
                for a in samples
            )
        ):
            raise broken("the keys of a map node share fewer digits than it says")

    def _keys(self, node: Trie) -> list[bytes]:
        """Return the key hashes of a leaf, or of one leaf below each child.

        Each node is checked itself, and so all are.
        """
        if node._count <= MAP_LEAF_MAX:
            return [kid_hash(kid) for kid in node._children()[:: node._width()]]
        out: list[bytes] = []
        stack: list[Trie] = [node]
        while stack:
            at = stack.pop()
            if at._count <= MAP_LEAF_MAX:
                out.extend(kid_hash(kid) for kid in at._children()[:: at._width()])
                continue
            for kid in at._children():
                child = self._fetch(kid)
                if (
                    isinstance(child, Trie)
                    and child._tag == node._tag
                    and 0 < child._count < at._count
                ):
                    stack.append(child)
        return out

    def _index(self, node: Index) -> None:
        if node._count == 0:
            return
        kids = node._children()
        if node._count == 1:
            self._key_of(node)
            return
        total = 0
        complete = True
        keys: list[tuple[int, bytes]] = []
        if node._has_entry:
            total = 1
            key = self._key_of(node)
            if key is not None and 2 * len(key) != node._depth:
                raise broken("the entry of an index node does not end at its depth")
            if key is not None:
                keys.append((-1, key))
        digits = [digit for digit in range(16) if node._mask & (1 << digit)]
        for digit, kid in zip(digits, kids[2 if node._has_entry else 0 :], strict=True):
            child = self._fetch(kid)
            if child is None and isinstance(kid, Ref):
                complete = False
                continue
            if not isinstance(child, Index) or not 0 < child._count < node._count:
                raise broken("an index child is something else")
            total += child._count
            keys.extend((digit, key) for key in self._index_keys(child))
        if total > node._count or (complete and total != node._count):
            raise broken(f"an index node of {node._count} entries holds {total}")
        for digit, key in keys:
            if digit >= 0 and (2 * len(key) <= node._depth or digit_at(key, node._depth) != digit):
                raise broken("a key stands under the wrong digit of an index")
            if key.hex()[: node._depth] != keys[0][1].hex()[: node._depth]:
                raise broken("the keys of an index node share fewer digits than it says")

    def _key_of(self, node: Index) -> bytes | None:
        kid = node._children()[0]
        key = self._fetch(kid)
        if key is None and isinstance(kid, Ref):
            return None
        try:
            return key_bytes(key)
        except MissingData as error:
            for digest in error.hashes:
                self.absent[digest] = None
            return None
        except TypeMismatch as error:
            raise BadFormat(f"not a canonical value: {error}") from error

    def _index_keys(self, node: Index) -> list[bytes]:
        out: list[bytes] = []
        stack: list[Index] = [node]
        while stack:
            at = stack.pop()
            kids = at._children()
            if at._has_entry:
                key = self._key_of(at)
                if key is not None:
                    out.append(key)
            for kid in kids[2 if at._has_entry else 0 :]:
                child = self._fetch(kid)
                if isinstance(child, Index) and 0 < child._count < at._count:
                    stack.append(child)
        return out

    def _chunked(self, node: Chunked) -> None:
        span = chunk_span(node._length)
        for i, kid in enumerate(node._children()):
            size = min(span, node._length - i * span)
            chunk = self._fetch(kid)
            if chunk is None and isinstance(kid, Ref):
                continue
            length = (
                len(chunk)
                if isinstance(chunk, bytes) and size <= CHUNK_BYTES
                else chunk._length
                if isinstance(chunk, Blob)
                else -1
            )
            if length != size:
                raise broken(f"a blob chunk of {size} bytes is something else")
