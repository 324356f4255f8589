"""Repair: a stored root without its malformed parts.

Sound sections are kept as they are. The others are merged into an empty value, as if a peer had
sent them: owner slots with a malformed cell are left out, content stores keep their sound entries.

Source: docs/design/foreign-data.md "Repair".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from datalattice.cells import (
    EMPTY_INDEX,
    Holes,
    Index,
    Keyword,
    Value,
    decode_trusted,
    encode,
    references,
    value_hash,
)
from datalattice.crypto import sha3_256
from datalattice.errors import BadFormat
from datalattice.lattice import (
    MALFORMED,
    EntryDropped,
    MergeContext,
    MergeNotice,
    SectionDropped,
    isolated,
    root_lattice,
)
from datalattice.store import Store, children_first


@dataclass(frozen=True)
class LeftOut:
    """A part of the root that a repair leaves out.

    path: a section, or a section and the owner or key of one entry.
    """

    path: tuple[Value, ...]
    reason: str


@dataclass(frozen=True)
class Repair:
    """The repaired root; `left_out` is empty if the root was sound."""

    root: Value
    left_out: tuple[LeftOut, ...]


def without_malformed(store: Store, unsound: Mapping[bytes, str]) -> Repair:
    """Return the current root without the parts that contain one of the `unsound` cells.

    unsound: hash to reason, as `CellStore.check` returns them.
    Raises: MissingData, Corruption: a cell below the root is missing; heal the store first.
            BadFormat: the root's own cells are malformed, so nothing can be kept.
    Cost:   reads every cell below the root, unless `unsound` is empty.
    """
    root = store.root()
    if not unsound:
        return Repair(root, ())
    encoding = encode(root)
    top = value_hash(root)
    if top in unsound:
        raise BadFormat(f"the root itself is malformed: {unsound[top]}")
    tainted = _above(store, encoding, unsound)
    # The root does not reach the unsound cells, so nothing has to be left out.
    if not tainted:
        return Repair(root, ())
    holes = Holes(unsound, tainted)
    read = decode_trusted(encoding, top, holes.loader(store))
    # Only the root has sections; without them nothing can be kept apart.
    if not isinstance(read, Index):
        raise BadFormat("the root is not an Index of sections, so its parts cannot be separated")
    left_out: list[LeftOut] = []
    sound = EMPTY_INDEX
    for key, section in read.entries():
        kept = _sound_section(key, section, holes, left_out)
        if kept is not None:
            sound = sound.put(key, kept)
    return Repair(sound, tuple(left_out))


def _sound_section(key: Value, section: Value, holes: Holes, left_out: list[LeftOut]) -> Value:
    """Return the sound part of one section, or None."""
    # "A sound section stays as it is, unread" (docs/design/foreign-data.md "Repair").
    if not holes.spoils(section):
        return section
    reports: list[MergeNotice] = []
    lattice = root_lattice().child(key) if isinstance(key, Keyword) else None
    context = MergeContext(report=reports.append, holes=holes).child(key)
    kept: Value = None
    if lattice is None:
        reports.append(SectionDropped((key,), MALFORMED))
    else:
        section_lattice = lattice
        # "What `isolated` leaves out is left out": "so a repair has no rules of its own"
        # (docs/design/foreign-data.md "Repair").
        kept = isolated(
            context, None, section, lambda: section_lattice.merge(None, section, context)
        )
    left_out += [
        LeftOut(report.path, holes.reason() if report.kind == MALFORMED else report.kind)
        for report in reports
        if isinstance(report, (EntryDropped, SectionDropped))
    ]
    return kept


def _above(store: Store, top: bytes, unsound: Mapping[bytes, str]) -> dict[bytes, bytes]:
    """Return the encodings, by hash, of the cells with an unsound cell below; `top` is encoded."""
    tainted: dict[bytes, bytes] = {}
    seen: set[bytes] = set()
    top_hash = sha3_256(top)

    def is_done(hash: bytes) -> bool:
        # Nothing below an unsound cell is read: it is left out with it.
        return hash in seen or hash in unsound

    # Children first: each cell is examined after all cells below it. A short root is in no cell.
    for hash, encoding in children_first(
        [top_hash],
        lambda hashes: [top] if hashes[0] == top_hash else store.get_encodings(hashes),
        is_done,
        lambda _, encoding: references(encoding),
    ):
        seen.add(hash)
        if any(below in unsound or below in tainted for below in references(encoding)):
            tainted[hash] = encoding
    return tainted
