"""Patch: the cells of a changed value, written as the difference to a value that the peer has.

One changed key in a large tree makes a new cell at every level, and each repeats fifteen hashes
that the peer has and one that it can compute. A patch has neither: it names the references of the
old cell that are replaced, and continues with the cells behind them. The reader builds the new
cells from the leaves up and hashes them; the hash of the top shows whether all are right.

    patch  = cell
    cell   = head, one gap for each replaced reference, edit, one cell for each of them
    head   = VLQ of (replaced references * 4 + kind of edit)
    gap    = VLQ: references between this one and the one replaced before it
    edit   = SAME:  nothing, the bytes of the old cell
             HUNKS: VLQ hunks, then for each VLQ copied, VLQ skipped, VLQ length, bytes: bytes of
                    the old cell that stay and that go, and new ones; its rest stays
             WHOLE: VLQ length, bytes: there is no old cell

The old cell of the top is the base. The old cell of any other is the one behind the reference with
the same number in the old cell above; without such a reference a constant stands in its position.

Nothing in a patch has to be believed: cells are named by their hashes.

Source: docs/design/patches.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from datalattice.cells import LoadEncoding, branch_hashes, branch_places
from datalattice.crypto import sha3_256
from datalattice.errors import BadFormat, LimitExceeded, MissingData
from datalattice.limits import CELL_BYTES_MAX, HASH_BYTES, VLQ_BYTES_MAX
from datalattice.wire import encode_length, encode_lengths

SAME: Final = 0
HUNKS: Final = 1
WHOLE: Final = 2

MATCH_BYTES: Final = 6
"""Bytes that must agree for a position to count as the same in the old and the new cell."""

SKIP_MAX: Final = 64
"""Most old bytes that are skipped in search of a match; beyond, all further ones are removed."""

HUNKS_MAX: Final = 256
"""Greatest number of hunks of one edit; a cell with more changes is written whole."""

PATCH_CELLS_MAX: Final = 4_096
"""Most cells of a patch below its top: each takes a load of its old cell."""

PATCH_HUNKS_MAX: Final = 8_192
"""Most hunks that a writer tries for one patch; cells after them are written whole."""

CELL_PATCH_BYTES: Final = 3
"""Least bytes of a patch for each of its cells: two name it, and one at least changes it."""

FREE_CELLS: Final = 64
"""Cells that any patch may have, however short: the way to a single change."""


def cells_worth(patch_bytes: int) -> int:
    """Return how many cells a patch of this length may have below its top."""
    # "A few bytes that stand for many cells cost a reader more than their sender"
    # (docs/design/patches.md).
    return min(PATCH_CELLS_MAX, FREE_CELLS + patch_bytes // CELL_PATCH_BYTES)


_UNKNOWN: Final = sha3_256(b"a hash to be computed")


def write_patch(top: bytes, cells: Mapping[bytes, bytes], base: bytes, load: LoadEncoding) -> bytes:
    """Return the patch that makes `top`, and what of `cells` is below it, from `base`.

    Shapes: top, base: encodings; cells: encodings by hash.
    Cost:   a load and two scans for each cell.
    """
    out = bytearray()
    hunks_room = PATCH_HUNKS_MAX
    stack: list[tuple[bytes, bytes]] = [(top, base)]
    written = {sha3_256(top)}
    while stack:
        cell, old = stack.pop()
        old_refs = branch_hashes(old) if old else []
        draft = bytearray(cell)
        below: list[tuple[bytes, bytes]] = []
        gaps: list[int] = []
        next_index = 0
        for index, place in enumerate(branch_places(cell)):
            ref = cell[place : place + HASH_BYTES]
            old_ref = old_refs[index] if index < len(old_refs) else None
            # A reference that is shared, or whose cell was written before, stays in the draft.
            if ref not in cells or ref in written or ref == old_ref:
                continue
            written.add(ref)
            # With the old hash in its position the draft differs in its other changes only.
            draft[place : place + HASH_BYTES] = old_ref or _UNKNOWN
            below.append((cells[ref], (None if old_ref is None else load(old_ref)) or b""))
            gaps.append(index - next_index)
            next_index = index + 1
        kind, edit, hunks = _edit(bytes(draft), old, min(hunks_room, HUNKS_MAX))
        hunks_room -= hunks
        out += encode_lengths((len(below) * 4 + kind, *gaps)) + edit
        stack.extend(reversed(below))
    return bytes(out)


def _edit(draft: bytes, old: bytes, hunks_max: int) -> tuple[int, bytes, int]:
    """Return (kind, bytes, hunks tried) of a short edit that makes `draft` of `old`."""
    # 0 same: only references below it change, as on the way to most edits.
    if draft == old:
        return SAME, b"", 0
    whole = encode_length(len(draft)) + draft
    hunks: list[bytes] = []
    size = at = new_at = 0
    while old and len(hunks) < hunks_max and size < len(whole):
        copied = _run(old, at, draft, new_at)
        at, new_at = at + copied, new_at + copied
        if at == len(old) and new_at == len(draft):
            break
        skipped, next_at = _resume(old, at, draft, new_at)
        added = draft[new_at:next_at]
        hunks.append(encode_lengths((copied, skipped, len(added))) + added)
        size += len(hunks[-1])
        at, new_at = at + skipped, next_at
    else:
        return WHOLE, whole, len(hunks)
    edit = encode_length(len(hunks)) + b"".join(hunks)
    if len(edit) < len(whole):
        return HUNKS, edit, len(hunks)
    return WHOLE, whole, len(hunks)


def _run(old: bytes, at: int, new: bytes, new_at: int) -> int:
    """Return how many bytes agree from these positions on, by bisection."""
    low, high = 0, min(len(old) - at, len(new) - new_at)
    while low < high:
        middle = (low + high + 1) // 2
        if old[at + low : at + middle] == new[new_at + low : new_at + middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _resume(old: bytes, at: int, new: bytes, new_at: int) -> tuple[int, int]:
    """Return (bytes of `old` to skip, position in `new`) from which the two agree again."""
    best = (len(old) - at, len(new))
    cost = sum(best) - new_at
    for skipped in range(min(SKIP_MAX, len(old) - at - MATCH_BYTES) + 1):
        if skipped >= cost:
            break
        start = at + skipped
        # Only nearer matches than the best so far: equal bytes further on may be chance.
        end = new_at + cost - skipped + MATCH_BYTES - 1
        found = new.find(old[start : start + MATCH_BYTES], new_at, end)
        if found >= 0:
            best, cost = (skipped, found), skipped + found - new_at
    return best


@dataclass(slots=True)
class _Frame:
    """A cell whose replaced references are being read.

    places: positions of their hashes, last first.
    olds:   hashes that they replace, last first.
    """

    draft: bytearray
    places: list[int] = field(default_factory=list)
    olds: list[bytes | None] = field(default_factory=list)


def read_patch(
    patch: bytes, base: bytes, load: LoadEncoding, bytes_max: int, cells_max: int = PATCH_CELLS_MAX
) -> dict[bytes, bytes]:
    """Return the cells of a patch by hash, children before parents; the last one is its top.

    Shapes: base: an encoding.
    Raises: BadFormat: not a patch, or not one of `base`. MissingData: not all of `base` is here.
            LimitExceeded: the cells have more than `bytes_max` bytes, are more than `cells_max`
            below the top, or one of them stays as it was.
    Cost:   a load, a scan and a hash for each cell; memory for `bytes_max` bytes at most.
    """
    reader = _PatchReader(patch, load, bytes_max, cells_max)
    cells: dict[bytes, bytes] = {}
    frames = [reader.frame(None, base)]
    while True:
        frame = frames[-1]
        if frame.olds:
            frames.append(reader.frame(frame.olds.pop()))
            continue
        cell = bytes(frame.draft)
        hash = sha3_256(cell)
        # Hashed here, from the leaves up: the patch itself names no hash of a new cell.
        cells[hash] = cell
        frames.pop()
        if not frames:
            reader.check_end()
            return cells
        place = frames[-1].places.pop()
        frames[-1].draft[place : place + HASH_BYTES] = hash


class _PatchReader:
    """A patch that is being read, and the limits of what it may make."""

    def __init__(self, patch: bytes, load: LoadEncoding, bytes_max: int, cells_max: int) -> None:
        self._patch = patch
        self._load = load
        self._room = bytes_max
        self._cells_max = cells_max
        self._cell_room = cells_max + 1
        self._at = 0

    def frame(self, old_hash: bytes | None, old: bytes | None = None) -> _Frame:
        """Read the edit of one cell: of `old`, or of the cell with the hash `old_hash`.

        Raises: BadFormat: malformed, or an edit without an old cell. MissingData: the old cell is
                not here. LimitExceeded: it makes more cells or bytes than allowed, or changes
                nothing.
        """
        self._cell_room -= 1
        if self._cell_room < 0:
            raise LimitExceeded(f"a patch makes more than {self._cells_max} cells below its top")
        count, kind = divmod(self._number(), 4)
        # No cell has room for more references, so the number is not worth a loop.
        if count > CELL_BYTES_MAX // HASH_BYTES:
            raise BadFormat(f"a patch replaces {count} references of one cell")
        indexes: list[int] = []
        index = 0
        for _ in range(count):
            index += self._number()
            indexes.append(index)
            index += 1
        if kind != WHOLE and old is None:
            if old_hash is None:
                raise BadFormat("a patch of a cell that does not exist")
            old = self._load(old_hash)
            if old is None:
                raise MissingData([old_hash])
        draft = self._draft(kind, old or b"")
        # "Every cell of it changes": naming unchanged cells would cost the reader alone.
        if kind == SAME and not count and old_hash is not None:
            raise LimitExceeded("a patch names a cell that stays as it was")
        # "No more bytes than are ever pushed", whatever few bytes of patch stand for.
        self._room -= len(draft)
        if self._room < 0:
            raise LimitExceeded("a patch stands for more bytes of cells than a message may have")
        if not count:
            return _Frame(draft)
        places = branch_places(bytes(draft))
        if indexes[-1] >= len(places):
            raise BadFormat(f"a patch replaces reference {indexes[-1]} of {len(places)}")
        chosen = [places[index] for index in reversed(indexes)]
        refs = [bytes(draft[place : place + HASH_BYTES]) for place in chosen]
        return _Frame(draft, chosen, [None if ref == _UNKNOWN else ref for ref in refs])

    def _draft(self, kind: int, old: bytes) -> bytearray:
        if kind == SAME:
            return bytearray(old)
        if kind == WHOLE:
            return bytearray(self._bytes(self._number()))
        if kind != HUNKS:
            raise BadFormat(f"a patch has edits of kinds 0 to 2, got {kind}")
        draft = bytearray()
        at = 0
        hunks = self._number()
        # "256 hunks a cell" (docs/protocol.md, Limits).
        if hunks > HUNKS_MAX:
            raise BadFormat(f"a patch has at most {HUNKS_MAX} hunks for a cell, got {hunks}")
        for _ in range(hunks):
            copied, skipped, added = self._three_numbers()
            draft += old[at : at + copied]
            draft += self._bytes(added)
            at += copied + skipped
            if at > len(old) or len(draft) > CELL_BYTES_MAX:
                raise BadFormat(f"a patch edits {at} bytes of a cell of {len(old)}")
        draft += old[at:]
        if len(draft) > CELL_BYTES_MAX:
            raise BadFormat(f"a patch makes a cell of more than {CELL_BYTES_MAX} bytes")
        return draft

    def _bytes(self, length: int) -> bytes:
        end = self._at + length
        if length > CELL_BYTES_MAX or end > len(self._patch):
            raise BadFormat(f"a patch is cut off, or has {length} bytes for one cell")
        found = self._patch[self._at : end]
        self._at = end
        return found

    def _three_numbers(self) -> tuple[int, int, int]:
        octets = self._patch[self._at : self._at + 3]
        if len(octets) == 3 and max(octets) < 0x80:  # one octet each, as nearly always
            self._at += 3
            return octets[0], octets[1], octets[2]
        return self._number(), self._number(), self._number()

    def _number(self) -> int:
        at = self._at
        if at < len(self._patch) and self._patch[at] < 0x80:  # one octet, as nearly always
            self._at = at + 1
            return self._patch[at]
        value = 0
        for octet in self._patch[at : at + VLQ_BYTES_MAX]:
            self._at += 1
            value = value << 7 | octet & 0x7F
            if not octet & 0x80:
                return value
        raise BadFormat("a number in a patch is cut off or too long")

    def check_end(self) -> None:
        """Check that nothing follows."""
        if self._at != len(self._patch):
            raise BadFormat(f"{len(self._patch) - self._at} bytes follow a patch")
