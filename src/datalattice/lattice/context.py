"""Context: what a merge knows beside its two values, and what it reports.

One context travels from the root of a merge to every child. It carries the clock reading and the
key of the one who merges, who may sign for whom, the path walked so far, and a callable that is
told what the merge could not take. Reporting never changes a result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from datalattice.cells import NO_HOLES, Holes, Keyword, Value, Work, brief, same
from datalattice.crypto import NO_KEYS, PUBLIC_KEY_BYTES, KeyPair, KeyRing

ENTRY_DROPPED: Final = "entry-dropped"
BAD_SIGNATURE: Final = "bad-signature"
NOT_OWNER: Final = "not-owner"
MALFORMED: Final = "malformed"
MISMATCHED: Final = "type-mismatch"
TOO_COSTLY: Final = "too-costly"
SECTION_DROPPED: Final = "section-dropped"
OWN_MALFORMED: Final = "own-malformed"
"""Why a value was not taken, as words to count by: no value of the kind, not signed rightly, not
sound, of another kind inside, or more work than its size allows."""

VALUE: Final = Keyword("value")
"""The key that leads from a signed cell to the value inside."""

OWN: Final = "own"
OTHER: Final = "other"

OWNER_BRANCH: Final = "owner"
LOG_BRANCH: Final = "log"
"""What a fork of an owner's slot leaves out: a value not joined, or records of a log."""

Path = tuple[Value, ...]
Verifier = Callable[[Value, bytes], bool]
"""Tells whether a signer (public key) may write for an owner.

It answers for any value as owner and does not raise.
"""


class Report:
    """Base of what a merge reports. `kind` is a word to count it by."""

    kind: str = "reported"

    def __init__(self, path: Path) -> None:
        self.path: Final = path

    def _fields(self) -> Path:
        return self.path

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Report) or type(other) is not type(self):
            return False
        own, theirs = self._fields(), other._fields()
        return len(own) == len(theirs) and all(same(a, b) for a, b in zip(own, theirs, strict=True))

    def __hash__(self) -> int:
        return hash((type(self).__name__, len(self.path)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(path={brief(self.path)})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path,)


class EntryDropped(Report):
    """A value of the other side was not taken; own's, or nothing, stands at `path`.

    `kind` says why where that is known: it is for counting, and two reports are equal without.

    Source: docs/design/decisions.md "D9".
    """

    def __init__(self, path: Path, kind: str = ENTRY_DROPPED) -> None:
        super().__init__(path)
        self.kind = kind

    def __reduce__(self) -> tuple[object, ...]:
        return EntryDropped, (self.path, self.kind)


class SectionDropped(Report):
    """What the other side has in the section at `path` was not taken; own's stands.

    Source: docs/design/foreign-data.md "Isolation".
    """

    kind = SECTION_DROPPED

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path)
        self.reason: Final = reason

    def __repr__(self) -> str:
        return f"SectionDropped(path={brief(self.path)}, reason={self.reason!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return SectionDropped, (self.path, self.reason)


class OwnMalformed(Report):
    """What this node itself has at `path` is not sound, and cannot be merged.

    The other side's stands there now if it is sound and signed by the owner; else own's stays, and
    `lattice store repair` ends it.

    Source: docs/design/foreign-data.md "Isolation".
    """

    kind = OWN_MALFORMED

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path)
        self.reason: Final = reason

    def __repr__(self) -> str:
        return f"OwnMalformed(path={brief(self.path)}, reason={self.reason!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return OwnMalformed, (self.path, self.reason)


class QueueForked(Report):
    """Two leaders wrote one queue: the entries at `path` differ from `offset` on.

    `lost` is the side whose records the join leaves out, "own" or "other", and `lost_end` the
    offset behind the last of them; two reports are equal without.

    Source: docs/design/decisions.md "D-Q2".
    """

    kind = "queue-forked"

    def __init__(self, path: Path, offset: int, lost: str = OTHER, lost_end: int = 0) -> None:
        super().__init__(path)
        self.offset: Final = offset
        self.lost: Final = lost
        self.lost_end: Final = lost_end

    def swapped(self) -> QueueForked:
        """Return the report as it reads with the sides exchanged.

        Source: docs/design/decisions.md "D-Q2".
        """
        lost = OWN if self.lost == OTHER else OTHER
        return QueueForked(self.path, self.offset, lost, self.lost_end)

    def _fields(self) -> Path:
        return (*self.path, self.offset)

    def __repr__(self) -> str:
        return f"QueueForked(path={brief(self.path)}, offset={brief(self.offset)})"

    def __reduce__(self) -> tuple[object, ...]:
        return QueueForked, (self.path, self.offset, self.lost, self.lost_end)


class OwnerForked(Report):
    """Two values signed for `owner` fork: `kept` stands now, `other` is not contained in it.

    `branch` says what is missing: "owner" when the values were not joined, for no key here may sign
    the join, and "log" when a join left out the records that `logs` name. Two reports are equal
    when path and owner are.

    Shapes: kept, other: Signed cells.
    Source: docs/design/decisions.md "D5"; docs/design/forks.md "Evidence".
    """

    kind = "owner-forked"

    def __init__(
        self,
        owner: Value,
        path: Path,
        kept: Value = None,
        other: Value = None,
        branch: str = OWNER_BRANCH,
        logs: tuple[QueueForked, ...] = (),
    ) -> None:
        super().__init__(path)
        self.owner: Final = owner
        self.kept: Final = kept
        self.other: Final = other
        self.branch: Final = branch
        self.logs: Final = logs

    def _fields(self) -> Path:
        return (*self.path, self.owner)

    def __repr__(self) -> str:
        return f"OwnerForked(owner={brief(self.owner)}, path={brief(self.path)})"

    def __reduce__(self) -> tuple[object, ...]:
        fields = (self.owner, self.path, self.kept, self.other, self.branch, self.logs)
        return OwnerForked, fields


class MetadataUnstamped(Report):
    """Two values of one metadata key at `path` carry no stamp; that of the greater branch stays.

    Source: docs/design/forks.md "Merge of a slot".
    """

    kind = "metadata-unstamped"

    def __reduce__(self) -> tuple[object, ...]:
        return MetadataUnstamped, (self.path,)


class WriteSuperseded(Report):
    """A write was lost: a later write or a delete of the same place won over it.

    Every replacement is told, also of a value that the later writer had seen: a merge cannot know
    what a writer saw. `lost` is the side that gave way, "own" or "other".

    Source: docs/design/decisions.md "Base".
    """

    kind = "write-superseded"

    def __init__(self, path: Path, lost: str) -> None:
        super().__init__(path)
        self.lost: Final = lost

    def swapped(self) -> WriteSuperseded:
        """Return the report as it reads with the sides exchanged.

        Source: docs/design/decisions.md "Base".
        """
        return WriteSuperseded(self.path, OWN if self.lost == OTHER else OTHER)

    def _fields(self) -> Path:
        return (*self.path, self.lost)

    def __repr__(self) -> str:
        return f"WriteSuperseded(path={brief(self.path)}, lost={self.lost!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return WriteSuperseded, (self.path, self.lost)


Reporter = Callable[[Report], None]
"""Is told what a merge could not take. It does not raise."""


def discard(_report: Report) -> None:
    """Do nothing with a report: the default.

    Source: docs/design/decisions.md "D7".
    """


class MergeContext:
    """What a merge knows beside its two values. Never changed; the methods return new ones.

    Shapes: timestamp, when given, Unix milliseconds; key_pair, the identity of this machine, which
            may sign like a key of the ring; keys, the ring of owners' keys; owner, the identity
            whose signed value is being merged, or nil; prefer, "own" or "other" when one side wins
            what nothing else decides (last-write-preferred), else nil; work, the account of a merge
            of foreign data, nil for a local one; holes, what of the foreign value is not sound.
    Source: CAD024 "Lattice context"; CAD038; docs/lattices.md "Context", "Owners";
            docs/design/decisions.md "D7".
    """

    def __init__(
        self,
        timestamp: int | None = None,
        key_pair: KeyPair | None = None,
        verifier: Verifier | None = None,
        *,
        path: Path = (),
        report: Reporter = discard,
        owner: Value = None,
        prefer: str | None = None,
        keys: KeyRing = NO_KEYS,
        work: Work | None = None,
        holes: Holes = NO_HOLES,
    ) -> None:
        self.timestamp: Final = timestamp
        self.key_pair: Final = key_pair
        self.verifier: Final = verifier
        self.path: Final = path
        self.report: Final = report
        self.owner: Final = owner
        self.prefer: Final = prefer
        self.keys: Final = keys
        self.work: Final = work
        self.holes: Final = holes

    def child(self, key: Value) -> MergeContext:
        """Return the context one key further down.

        Source: docs/design/decisions.md "D7".
        """
        return self.at((*self.path, key), self.owner)

    def at(self, path: Path, owner: Value = None) -> MergeContext:
        """Return the context at another place: this path, below this owner.

        Source: docs/design/decisions.md "D7".
        """
        return MergeContext(
            self.timestamp,
            self.key_pair,
            self.verifier,
            path=path,
            report=self.report,
            owner=owner,
            prefer=self.prefer,
            keys=self.keys,
            work=self.work,
            holes=self.holes,
        )

    def preferring(self, side: str | None) -> MergeContext:
        """Return the context in which `side` ("own", "other", nil) wins what nothing else decides.

        Source: CAD024 "Last write preferred"; docs/lattices.md "Last write preferred";
                docs/design/decisions.md "D3".
        """
        return MergeContext(
            self.timestamp,
            self.key_pair,
            self.verifier,
            path=self.path,
            report=self.report,
            owner=self.owner,
            prefer=side,
            keys=self.keys,
            work=self.work,
            holes=self.holes,
        )

    def reporting(self, report: Reporter) -> MergeContext:
        """Return the context that reports to `report`.

        Source: docs/design/decisions.md "D7".
        """
        return MergeContext(
            self.timestamp,
            self.key_pair,
            self.verifier,
            path=self.path,
            report=report,
            owner=self.owner,
            prefer=self.prefer,
            keys=self.keys,
            work=self.work,
            holes=self.holes,
        )

    def verified_by(self, verifier: Verifier) -> MergeContext:
        """Return the context in which `verifier` judges who may write for an owner.

        Source: CAD038 "Owner verification"; docs/lattices.md "Owners".
        """
        return MergeContext(
            self.timestamp,
            self.key_pair,
            verifier,
            path=self.path,
            report=self.report,
            owner=self.owner,
            prefer=self.prefer,
            keys=self.keys,
            work=self.work,
            holes=self.holes,
        )

    def for_foreign(self, report: Reporter, work: Work, holes: Holes = NO_HOLES) -> MergeContext:
        """Return the context for one merge of foreign data.

        Its reports, its account of work, and what of it is not sound.
        """
        return MergeContext(
            self.timestamp,
            self.key_pair,
            self.verifier,
            path=self.path,
            report=report,
            owner=self.owner,
            prefer=self.prefer,
            keys=self.keys,
            work=work,
            holes=holes,
        )

    @property
    def is_signed(self) -> bool:
        """Whether this place is inside a signed value, which is taken as one or not at all.

        Source: docs/design/foreign-data.md "Isolation".
        """
        return any(isinstance(key, Keyword) and key == VALUE for key in self.path)

    def verify_owner(self, owner: Value, signer: bytes) -> bool:
        """Return whether values of `owner` signed by `signer` are accepted.

        An owner of 32 bytes is a public key and speaks for itself. Any other owner is for the
        verifier to judge; without one everybody is accepted, which serves development only.
        Source: CAD038 "Owner verification"; docs/lattices.md "Owners".
        """
        if is_public_key(owner):
            return owner == signer
        verifier = self.verifier
        return True if verifier is None else verifier(owner, signer)

    def authorises(self, owner: Value, signer: bytes) -> bool:
        """Return whether `signer` may sign new values of `owner`.

        As `verify_owner`, but nobody may without a verifier's word.

        Source: docs/design/decisions.md "D5".
        """
        if is_public_key(owner):
            return owner == signer
        verifier = self.verifier
        return False if verifier is None else verifier(owner, signer)

    def holds(self, public_key: bytes) -> bool:
        """Return whether this key signs here: the identity's, or one of the ring.

        Source: docs/design/forks.md "Keys".
        """
        identity = self.key_pair
        return public_key in self.keys or (
            identity is not None and identity.public_key == public_key
        )

    def signer(self, owner: Value) -> KeyPair | None:
        """Return the key pair here that may sign new values of `owner`, or None.

        The identity counts as a key of the ring. Of several that may, the one with the least
        public key signs, so that all calls choose alike.
        Source: docs/design/forks.md "Keys".
        """
        identity = self.key_pair
        if is_public_key(owner):
            if identity is not None and identity.public_key == owner:
                return identity
            assert isinstance(owner, bytes)
            return self.keys.get(owner)
        pairs = self.keys if identity is None else KeyRing(*self.keys, identity)
        for pair in pairs:
            if self.authorises(owner, pair.public_key):
                return pair
        return None

    def __repr__(self) -> str:
        key = None if self.key_pair is None else self.key_pair.public_key.hex()
        return (
            f"MergeContext(timestamp={self.timestamp}, key_pair={key}, "
            f"verifier={self.verifier is not None}, path={self.path!r}, owner={self.owner!r}, "
            f"prefer={self.prefer!r})"
        )

    def __reduce__(self) -> tuple[object, ...]:
        fields = (self.timestamp, self.key_pair, self.verifier, self.report, self.prefer, self.keys)
        return _restore, (fields, self.path, self.owner)


def _restore(
    fields: tuple[int | None, KeyPair | None, Verifier | None, Reporter, str | None, KeyRing],
    path: Path,
    owner: Value,
) -> MergeContext:
    timestamp, key_pair, verifier, report, prefer, keys = fields
    return MergeContext(
        timestamp,
        key_pair,
        verifier,
        path=path,
        report=report,
        owner=owner,
        prefer=prefer,
        keys=keys,
    )


def is_public_key(owner: Value) -> bool:
    """Return whether an owner identity is a public key: bytes, exactly 32 of them.

    Source: CAD038 "Owner verification"; docs/lattices.md "Owners".
    """
    return isinstance(owner, bytes) and len(owner) == PUBLIC_KEY_BYTES


EMPTY_CONTEXT: Final = MergeContext()
"""The context that knows nothing and discards reports."""
