"""Walk: traversals of the cells below a value. Explicit stacks, since chains can be millions long.

Source: CAD006 "Memory size", "Storage", "Novelty"; docs/cells.md "Embedding", "Signed", "Partial
    values"; CAD003 "Signed", "Branches"; CAD036 "Delta", "Missing data".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from datalattice.cells.cell import Cell, Loader, Ref, Value, can_branch, encode, value_hash
from datalattice.cells.index import Edit, Index
from datalattice.cells.maps import Map
from datalattice.cells.message import branch_kids, cell_children
from datalattice.cells.parse import value_in
from datalattice.cells.scan import branch_places, may_refer
from datalattice.cells.tagged import Signed
from datalattice.crypto import sha3_256_many
from datalattice.errors import MissingData
from datalattice.limits import EMBEDDED_BYTES_MAX

OPEN_CELLS_MAX: Final = 64
"""Most cells of a commit that stay open until the next one."""

_SHORT: Final = EMBEDDED_BYTES_MAX - 3  # most bytes of an embedded string
EncodedCell = tuple[bytes, bytes, Value]
"""(hash, encoding, value) of one cell."""

Front = dict[bytes, tuple[object, bytes]]
"""Hash of a kid -> (the kid, the hash of the cell that holds it)."""


def encode_levels(top: Value) -> None:
    """Encode and hash the new cells at and below `top`, those of one depth together.

    Only Index, Map and Signed cells are entered; new cells below other types are encoded with them.
    """
    levels: list[list[Cell]] = []
    level = [top] if isinstance(top, Cell) and top._encoding is None else []
    seen: set[int] = set()  # a cell may be shared by many: the paths to it can be 2**depth
    while level:
        levels.append(level)
        level = [kid for cell in level for kid in _new_kids(cell, seen)]
    for level in reversed(levels):
        if len(level) == 1:
            continue  # encoded with its parent
        encodings = [cell._encode(0) for cell in level]
        long = [
            place
            for place, encoding in enumerate(encodings)
            if len(encoding) > EMBEDDED_BYTES_MAX and level[place]._hash is None
        ]
        digests = sha3_256_many([encodings[place] for place in long])
        for place, digest in zip(long, digests, strict=True):
            level[place]._hash = digest


def _new_kids(cell: Cell, seen: set[int]) -> list[Cell]:
    """Return the kids of a node that were never encoded and are not in `seen`; add their ids."""
    kids = cell._kids if isinstance(cell, (Index, Map, Signed)) else None
    edit = cell._edit if isinstance(cell, Index) else None
    if edit is not None:
        kids = edit.kids
    if kids is None:
        return []
    found: list[Cell] = []
    for kid in kids:
        if isinstance(kid, Cell) and kid._encoding is None and id(kid) not in seen:
            seen.add(id(kid))
            found.append(kid)
    return found


def novelty(value: Value, home: Loader | None = None) -> list[EncodedCell]:
    """Return the branches at or below `value` that `home` does not load.

    Children come before parents, each cell once. A cell that `home` loads counts as stored, and is
    not visited.
    Raises: MissingData: a cell is missing.
    Cost:   proportional to the cells returned and their direct children.
    """
    found: list[EncodedCell] = []
    seen: set[bytes] = set()
    # Kids to visit, and cells whose kids are all done.
    stack: list[Value | Ref | EncodedCell] = [value]
    while stack:
        kid = stack.pop()
        if isinstance(kid, tuple):
            found.append(kid)
            continue
        known: bytes | None = None
        if isinstance(kid, Ref):
            # A cell that `home` loads is stored, with everything below it.
            if home is not None and kid.loader is home:
                continue
            # "Children come before parents, each cell once": a cell may be shared by many.
            if kid.hash in seen:
                continue
            known = kid.hash
            kid = kid.resolve()
        if isinstance(kid, Cell):
            encoding = kid.encoding
            digest = kid.hash if len(encoding) > EMBEDDED_BYTES_MAX else None
        elif _may_branch(kid):
            encoding = encode(kid)
            # A chunk was hashed when the node above it was encoded: its Ref has the hash.
            digest = None
            if len(encoding) > EMBEDDED_BYTES_MAX:
                digest = value_hash(kid) if known is None else known
        else:
            continue
        if digest is not None:
            if digest in seen:
                continue
            seen.add(digest)
            stack.append((digest, encoding, kid))
        stack += _branching(kid, encoding, home) if isinstance(kid, Cell) else cell_children(kid)
    return found


def _branching(cell: Cell, encoding: bytes, home: Loader | None) -> list[object]:
    """Return the kids of a cell that can be or contain a branch which `home` does not load.

    A cell without references in its encoding has none, and is not opened.
    """
    is_closed = cell._is_closed()
    # All that a closed cell refers to is loaded by its own loader.
    if is_closed and home is not None and cell._loader is home:
        return []
    if not may_refer(encoding) or (is_closed and not branch_places(encoding)):
        return []
    edit = cell._edit if isinstance(cell, Index) else None
    # The other children are in the base, so `home` loads them.
    kids = cell._children() if edit is None or edit.loader is not home else edit.kids
    return [child for child in kids if _may_branch(child)]


def _may_branch(kid: object) -> bool:
    """Return whether a kid can be or contain a branch; short strings are neither."""
    if isinstance(kid, str):
        return len(kid) > _SHORT if kid.isascii() else len(kid) > _SHORT // 4
    if isinstance(kid, bytes):
        return len(kid) > _SHORT
    return isinstance(kid, Ref) or can_branch(kid)


def close_cells(parts: list[EncodedCell], home: Loader) -> None:
    """Close cells that `home` holds: their memory is freed and their kids load through it."""
    for _digest, _encoding, cell in parts:
        if isinstance(cell, Cell):
            cell._close(home)


class OpenCells:
    """The cells of the last commit to `home`, if they are few: they stay open for the next one.

    A small write opens the same path each time, from the root to nearly the same leaf. One thread
    at a time uses it.
    """

    def __init__(self, home: Loader) -> None:
        self._home: Final = home
        self._cells: list[Cell] = []
        self._refs: list[Ref] = []

    def follow(self, parts: list[EncodedCell]) -> None:
        """Close the cells of the last commit; keep those of this one open if they are few."""
        for cell in self._cells:
            if cell._loader is self._home:  # else a commit to another store keeps it open
                cell._close(self._home)
        for ref in self._refs:
            ref.drop()
        self._cells, self._refs = [], []
        if len(parts) > OPEN_CELLS_MAX:
            close_cells(parts, self._home)
            return
        for _digest, encoding, value in parts:
            # A short root without references loads nothing: `EMPTY_MAP`, which all share, must not
            # keep a store.
            if isinstance(value, Cell) and (
                len(encoding) > EMBEDDED_BYTES_MAX or branch_places(encoding)
            ):
                self._keep(value)

    def _keep(self, cell: Cell) -> None:
        if not self._keep_kids(cell, cell):
            cell._close(self._home)

    def _keep_kids(self, cell: Cell, made: Cell) -> bool:
        """Give `made`, equal to `cell` and stored, its kids; return whether it has any."""
        edit = cell._edit if isinstance(cell, Index) else None
        kids = cell._kids
        if edit is not None and isinstance(made, Index):
            kept = self._kept(edit.kids)
            made._edit = Edit(made.encoding, self._home, edit.digits, kept)
            made._kids = None
        elif kids is not None and isinstance(made, (Index, Map, Signed)):
            made._kids = self._kept(kids)
        else:
            return False
        made._loader = self._home
        self._cells.append(made)
        return True

    def _kept(self, kids: list[object]) -> list[object]:
        """Return the kids of a stored cell, all of which load what they refer to from `home`."""
        kept = kids[:]
        for place, kid in enumerate(kids):
            if isinstance(kid, Cell):
                if len(kid.encoding) > EMBEDDED_BYTES_MAX:
                    ref = Ref(kid.hash, self._home, kid, present=True)
                    self._refs.append(ref)
                    kept[place] = ref
                elif kid._kids is not None or kid._loader is not self._home:
                    kept[place] = self._copy(kid)
            elif isinstance(kid, Ref) and kid.loader is not self._home:
                kept[place] = Ref(kid.hash, self._home)  # a long text or blob
        return kept

    def _copy(self, cell: Cell) -> Value:
        """Return a copy of an embedded cell; the original stays independent of the store."""
        encoding = cell.encoding
        made = value_in(encoding, 0, len(encoding), self._home)
        is_open = isinstance(made, Cell) and self._keep_kids(cell, made)
        if is_open and isinstance(made, Index) and isinstance(cell, Index):
            made._sample = cell._sample  # else the next put reads one from far below
        elif is_open and isinstance(made, Map) and isinstance(cell, Map):
            made._hashes = cell._hashes  # else the next look-up hashes the keys again
        return made


def missing(value: Value, limit: int | None = None) -> list[bytes]:
    """Return the hashes of missing cells below `value`, at most `limit` of them."""
    absent: list[bytes] = []
    seen: set[bytes] = set()
    stack: list[Value] = [value]
    while stack:
        for digest, kid in branch_kids(stack.pop()):
            if digest in seen:
                continue
            seen.add(digest)
            try:
                stack.append(kid.resolve() if isinstance(kid, Ref) else kid)
            except MissingData:
                absent.append(digest)
                # A foreign value may lack millions of cells.
                if limit is not None and len(absent) >= limit:
                    return absent
    return absent


def difference(own: Value, other: Value) -> Iterator[EncodedCell]:
    """Yield the branches of `other`, level by level, without subtrees seen in `own` so far.

    A cell that moved to a distant position may be yielded although `own` has it.
    Raises: MissingData: a cell is missing.
    """
    if value_hash(own) == value_hash(other):
        return
    top = value_hash(own)
    have: set[bytes] = {top}
    met: set[bytes] = set()  # hashes seen in other: not entered on either side
    front: Front = {}
    _enter(own, top, have, front)
    if len(encode(other)) > EMBEDDED_BYTES_MAX:
        yield value_hash(other), encode(other), other
    level: list[Value] = [other]
    sent: set[bytes] = set()
    while level:
        wanted = [(digest, kid) for value in level for digest, kid in branch_kids(value)]
        names = {digest for digest, _kid in wanted}
        met |= names
        front = _advance(front, have, met)
        level = []
        for digest, kid in wanted:
            if digest in have or digest in sent:
                continue
            sent.add(digest)
            value = kid.resolve() if isinstance(kid, Ref) else kid
            yield digest, encode(value), value
            level.append(value)


def _advance(front: Front, have: set[bytes], met: set[bytes]) -> Front:
    """Return the cells one level below `front`, and note their hashes in `have`.

    Cells shared with the other side are skipped. So are cells inside a shared one: a growing tree
    moves its former top one level down.
    """
    below: Front = {}
    for digest, (kid, above) in front.items():
        if digest not in met and above not in met:
            _enter(kid.resolve() if isinstance(kid, Ref) else kid, digest, have, below)
    return below


def _enter(value: Value, digest: bytes, have: set[bytes], below: Front) -> None:
    """Add the branches of `value` that are not in `have` to `below`."""
    for hash, kid in branch_kids(value):
        if hash not in have:
            have.add(hash)
            below[hash] = (kid, digest)


def inline_signed(value: Value) -> Iterator[Signed]:
    """Yield the signed values in the cell of `value`: itself, and embedded ones at any depth."""
    stack: list[object] = [value]
    while stack:
        kid = stack.pop()
        if isinstance(kid, Signed):
            yield kid
        if isinstance(kid, Cell):
            for child in cell_children(kid):
                # A longer child is a cell of its own.
                if isinstance(child, Cell) and len(child.encoding) <= EMBEDDED_BYTES_MAX:
                    stack.append(child)


def memory_size(value: Value) -> int:
    """Return the memory size of a value: the bytes that storing all its cells takes."""
    sizes: dict[bytes, int] = {}
    stack: list[Value] = [value]
    while stack:
        top = stack[-1]
        digest = value_hash(top)
        if digest in sizes:
            stack.pop()
            continue
        kids = [kid.resolve() if isinstance(kid, Ref) else kid for kid in cell_children(top)]
        waiting = [kid for kid in kids if can_branch(kid) and value_hash(kid) not in sizes]
        if waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        # "Each branch counts as the length of its encoding and 64 more, as often as it occurs"
        # (docs/cells.md "Embedding").
        size = sum(sizes[value_hash(kid)] for kid in kids if can_branch(kid))
        encoding = encode(top)
        sizes[digest] = size + (len(encoding) + 64 if len(encoding) > EMBEDDED_BYTES_MAX else 0)
    return sizes[value_hash(value)]
