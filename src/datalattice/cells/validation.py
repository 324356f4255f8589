"""Validation: the complete check of a value, branches included.

It finds what one cell alone cannot show: children of the wrong kind, size or place.
"""

from __future__ import annotations

from itertools import pairwise

from datalattice.cells.blobs import Blob, Chunked
from datalattice.cells.cell import Cell, Ref, Value, broken, deref, encode, kid_hash
from datalattice.cells.index import Index, index_node, key_bytes
from datalattice.cells.scan import block_size, chunk_span, scan_top
from datalattice.cells.tagged import Record, Syntax
from datalattice.cells.trie import Trie, digit_at, trie_of
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
        self.samples: dict[bytes, bytes | None] = {}
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
        """Check a leaf's order, or that each child of a node belongs under its digit.

        That all keys below a child share the digits its sample shows follows from the check of the
        child itself, so each node is looked at once.
        """
        if node._count <= MAP_LEAF_MAX:
            keys = _leaf_keys(node)
            if any(a >= b for a, b in pairwise(keys)):
                raise broken("map keys are not in strictly increasing order of their hashes")
            return
        total = 0
        complete = True
        first: bytes | None = None
        digits = [digit for digit in range(16) if node._mask & (1 << digit)]
        for digit, kid in zip(digits, node._children(), strict=True):
            found = self._fetch(kid)
            if found is None and isinstance(kid, Ref):
                complete = False
                continue
            child = trie_of(found, node._tag, node._count, node._shift)
            total += child._count
            sample = self._trie_sample(child)
            if sample is None:
                continue
            if digit_at(sample, node._shift) != digit or not _leaf_agrees(child, node._shift):
                raise broken("a key stands under the wrong digit")
            first = sample if first is None else first
            if sample.hex()[: node._shift] != first.hex()[: node._shift]:
                raise broken("the keys of a map node share fewer digits than it says")
        if total > node._count or (complete and total != node._count):
            raise broken(f"a map node of {node._count} entries holds {total}")

    def _trie_sample(self, node: Trie) -> bytes | None:
        """Return the hash of some key below a node, None when none is here."""
        if node._count <= MAP_LEAF_MAX:
            return _leaf_keys(node)[0]
        if node.hash not in self.samples:
            sample: bytes | None = None
            for kid in node._children():
                found = self._fetch(kid)
                if found is not None or not isinstance(kid, Ref):
                    child = trie_of(found, node._tag, node._count, node._shift)
                    sample = self._trie_sample(child)
                if sample is not None:
                    break
            self.samples[node.hash] = sample
        return self.samples[node.hash]

    def _index(self, node: Index) -> None:
        """Check that each child of a node belongs under its digit; see `_trie`."""
        if node._count == 0:
            return
        kids = node._children()
        if node._count == 1:
            self._key_of(node)
            return
        total = 0
        complete = True
        first: bytes | None = None
        if node._has_entry:
            total = 1
            first = self._key_of(node)
            if first is not None and 2 * len(first) != node._depth:
                raise broken("the entry of an index node does not end at its depth")
        digits = [digit for digit in range(16) if node._mask & (1 << digit)]
        for digit, kid in zip(digits, kids[2 if node._has_entry else 0 :], strict=True):
            found = self._fetch(kid)
            if found is None and isinstance(kid, Ref):
                complete = False
                continue
            child = index_node(found, node._count, node._depth)
            total += child._count
            key = self._index_sample(child)
            if key is None:
                continue
            if 2 * len(key) <= node._depth or digit_at(key, node._depth) != digit:
                raise broken("a key stands under the wrong digit of an index")
            first = key if first is None else first
            if key.hex()[: node._depth] != first.hex()[: node._depth]:
                raise broken("the keys of an index node share fewer digits than it says")
        if total > node._count or (complete and total != node._count):
            raise broken(f"an index node of {node._count} entries holds {total}")

    def _key_of(self, node: Index) -> bytes | None:
        """Return the bytes of a node's own key, None when the key is not here."""
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

    def _index_sample(self, node: Index) -> bytes | None:
        """Return the bytes of some key below a node, None when none is here."""
        kids = node._children()
        if node._has_entry:
            key = self._key_of(node)
            if key is not None or node._count == 1:
                return key
        if node.hash not in self.samples:
            sample: bytes | None = None
            for kid in kids[2 if node._has_entry else 0 :]:
                found = self._fetch(kid)
                if found is not None or not isinstance(kid, Ref):
                    sample = self._index_sample(index_node(found, node._count, node._depth))
                if sample is not None:
                    break
            self.samples[node.hash] = sample
        return self.samples[node.hash]

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


def _leaf_keys(node: Trie) -> list[bytes]:
    return [kid_hash(kid) for kid in node._children()[:: node._width()]]


def _leaf_agrees(node: Trie, shift: int) -> bool:
    """Return whether the keys of a leaf agree up to and with digit `shift`; nodes say so."""
    if node._count > MAP_LEAF_MAX:
        return True
    keys = _leaf_keys(node)
    return all(key.hex()[: shift + 1] == keys[0].hex()[: shift + 1] for key in keys)
