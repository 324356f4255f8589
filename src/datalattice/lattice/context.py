"""Context: the inputs of a merge beside its two values, and the reports it makes.

One context is passed from the root of a merge to every child. It carries the time, the merger's
keys, the verifier of owners, the path of the current value, and a callable that receives reports.
Reports never change a result.

Source: CAD038 "Owner verification"; docs/lattices.md "Owners", "Last write preferred", "Context";
    docs/design/forks.md "Keys", "Merge of a slot", "Evidence"; docs/design/decisions.md;
    docs/design/foreign-data.md "Isolation"; CAD024 "Last write preferred", "Lattice context".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

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
"""Rejection reasons, used as metric labels."""

VALUE_KEY: Final = Keyword("value")
"""The path step from a Signed cell to its value."""

OWN: Final = "own"
OTHER: Final = "other"
"""The two sides of a merge."""

OWNER_BRANCH: Final = "owner"
LOG_BRANCH: Final = "log"
"""The part that a fork of an owner's slot leaves out: an unmerged value, or records of a log."""

ValuePath = tuple[Value, ...]
Verifier = Callable[[Value, bytes], bool]
"""Returns whether a signer (public key) may write for an owner, which may be any value.

Verifiers do not raise.
"""


class MergeNotice:
    """Base of merge reports. `kind` is a metric label."""

    kind: str = "reported"

    def __init__(self, path: ValuePath) -> None:
        self.path: Final = path

    def _fields(self) -> ValuePath:
        return self.path

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MergeNotice) or type(other) is not type(self):
            return False
        own, theirs = self._fields(), other._fields()
        # As values: Python finds 1 and True equal.
        return len(own) == len(theirs) and all(same(a, b) for a, b in zip(own, theirs, strict=True))

    def __hash__(self) -> int:
        # Without the keys: long foreign ones would be encoded for it, and equality compares them.
        return hash((type(self).__name__, len(self.path)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(path={brief(self.path)})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path,)


class EntryDropped(MergeNotice):
    """A foreign value at `path` was rejected; own's value, if any, is kept.

    `kind` is the reason if known. Equality ignores it.
    """

    def __init__(self, path: ValuePath, kind: str = ENTRY_DROPPED) -> None:
        super().__init__(path)
        self.kind = kind

    def __reduce__(self) -> tuple[object, ...]:
        return EntryDropped, (self.path, self.kind)


class _Reasoned(MergeNotice):
    """Base of reports that carry the text of an error."""

    def __init__(self, path: ValuePath, reason: str) -> None:
        super().__init__(path)
        self.reason: Final = reason

    def __repr__(self) -> str:
        return f"{type(self).__name__}(path={brief(self.path)}, reason={self.reason!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path, self.reason)


class SectionDropped(_Reasoned):
    """The foreign value of the section at `path` was rejected; own's is kept."""

    kind = SECTION_DROPPED


class OwnMalformed(_Reasoned):
    """This node's own value at `path` is malformed and cannot be merged.

    The foreign value replaces it if it is well-formed and signed by the owner. Otherwise own's
    stays, and `lattice disk repair` fixes it.
    """

    kind = OWN_MALFORMED


class QueueForked(MergeNotice):
    """Two leaders wrote one queue: the records at `path` differ from `offset` on.

    `lost` is the side whose records the merge leaves out, "own" or "other"; `lost_end` is the
    offset after the last of them. Equality ignores both.
    """

    kind = "queue-forked"

    def __init__(self, path: ValuePath, offset: int, lost: str = OTHER, lost_end: int = 0) -> None:
        super().__init__(path)
        self.offset: Final = offset
        self.lost: Final = lost
        self.lost_end: Final = lost_end

    def swapped(self) -> QueueForked:
        """Return the report with the sides exchanged."""
        # A merge may run with the sides exchanged; a report is always from own's point of view.
        lost = OWN if self.lost == OTHER else OTHER
        return QueueForked(self.path, self.offset, lost, self.lost_end)

    def _fields(self) -> ValuePath:
        return (*self.path, self.offset)

    def __repr__(self) -> str:
        return f"QueueForked(path={brief(self.path)}, offset={brief(self.offset)})"

    def __reduce__(self) -> tuple[object, ...]:
        return QueueForked, (self.path, self.offset, self.lost, self.lost_end)


class RecordsSkipped(MergeNotice):
    """A reader of the queue at `path` missed the records `first` .. `offset - 1`.

    `first` equals `offset` if the log forked: then it is unknown which records differ.
    """

    kind = "records-skipped"

    def __init__(self, path: ValuePath, first: int, offset: int) -> None:
        super().__init__(path)
        self.first: Final = first
        self.offset: Final = offset

    def _fields(self) -> ValuePath:
        return (*self.path, self.first, self.offset)

    def __repr__(self) -> str:
        return f"RecordsSkipped(path={brief(self.path)}, {self.first} to {self.offset})"

    def __reduce__(self) -> tuple[object, ...]:
        return RecordsSkipped, (self.path, self.first, self.offset)


class OwnerForked(MergeNotice):
    """Two values signed for `owner` fork: `kept` stays, and does not contain all of `other`.

    Both are Signed cells. `branch` says what is missing: "owner" if no key here may sign the merge
    of the values, "log" if a merge left out the records that `logs` describe. Reports are equal if
    path and owner are.
    """

    kind = "owner-forked"

    def __init__(
        self,
        owner: Value,
        path: ValuePath,
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

    def _fields(self) -> ValuePath:
        # One report for an owner and path, whatever the two values are.
        return (*self.path, self.owner)

    def __repr__(self) -> str:
        return f"OwnerForked(owner={brief(self.owner)}, path={brief(self.path)})"

    def __reduce__(self) -> tuple[object, ...]:
        fields = (self.owner, self.path, self.kept, self.other, self.branch, self.logs)
        return OwnerForked, fields


class MetadataUnstamped(MergeNotice):
    """Two values of a metadata key at `path` have no stamp; the greater branch's value stays."""

    kind = "metadata-unstamped"


class WriteSuperseded(MergeNotice):
    """A write was replaced by a later write or delete of the same path.

    `lost` is the losing side, "own" or "other". Every replacement is reported, including those that
    the later writer intended: a merge cannot tell what a writer had seen.
    """

    kind = "write-superseded"

    def __init__(self, path: ValuePath, lost: str) -> None:
        super().__init__(path)
        self.lost: Final = lost

    def swapped(self) -> WriteSuperseded:
        """Return the report with the sides exchanged."""
        return WriteSuperseded(self.path, OWN if self.lost == OTHER else OTHER)

    def _fields(self) -> ValuePath:
        return (*self.path, self.lost)

    def __repr__(self) -> str:
        return f"WriteSuperseded(path={brief(self.path)}, lost={self.lost!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return WriteSuperseded, (self.path, self.lost)


Reporter = Callable[[MergeNotice], None]
"""Receives the reports of a merge; does not raise."""


def discard(_report: MergeNotice) -> None:
    """Ignore a report: the default reporter."""


class MergeContext:
    """The inputs of a merge beside its two values. Immutable; methods return new contexts.

    Args:   timestamp: Unix milliseconds. key_pair: the identity of this machine, which may sign
            like a key of the ring. keys: owners' key pairs. owner: the owner of the signed value
            being merged. prefer: "own" or "other", the side that wins undecided conflicts
            (last-write-preferred). work: budget of a merge of foreign data, None for a local merge.
            holes: malformed parts of the foreign value. copy_id: distinguishes a copied folder from
            the original, which has the same identity; empty for the original.
    """

    def __init__(
        self,
        timestamp: int | None = None,
        key_pair: KeyPair | None = None,
        verifier: Verifier | None = None,
        *,
        path: ValuePath = (),
        report: Reporter = discard,
        owner: Value = None,
        prefer: str | None = None,
        keys: KeyRing = NO_KEYS,
        work: Work | None = None,
        holes: Holes = NO_HOLES,
        copy_id: str = "",
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
        self.copy_id: Final = copy_id

    def child(self, key: Value) -> MergeContext:
        """Return the context for the value at `key`."""
        return self.at((*self.path, key), self.owner)

    def at(self, path: ValuePath, owner: Value = None) -> MergeContext:
        """Return the context for another path and owner."""
        return MergeContext(  # spelt out, for speed: each step of a merge makes one
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
            copy_id=self.copy_id,
        )

    def preferring(self, side: str | None) -> MergeContext:
        """Return a context in which `side` ("own", "other", None) wins undecided conflicts."""
        return self._with(prefer=side)

    def reporting(self, report: Reporter) -> MergeContext:
        """Return a context that reports to `report`."""
        return self._with(report=report)

    def verified_by(self, verifier: Verifier) -> MergeContext:
        """Return a context in which `verifier` decides who may write for an owner."""
        return self._with(verifier=verifier)

    def for_foreign(self, report: Reporter, work: Work, holes: Holes = NO_HOLES) -> MergeContext:
        """Return the context of one foreign merge: its reporter, budget and malformed parts."""
        return self._with(report=report, work=work, holes=holes)

    def of_copy(self, copy_id: str) -> MergeContext:
        """Return the context of a copied folder, whose counters have columns of their own."""
        return self._with(copy_id=copy_id)

    def _with(self, **changes: Any) -> MergeContext:
        return MergeContext(**(self._fields() | changes))

    def _fields(self) -> dict[str, Any]:
        return {
            "timestamp": self.timestamp,
            "key_pair": self.key_pair,
            "verifier": self.verifier,
            "path": self.path,
            "report": self.report,
            "owner": self.owner,
            "prefer": self.prefer,
            "keys": self.keys,
            "work": self.work,
            "holes": self.holes,
            "copy_id": self.copy_id,
        }

    @property
    def is_signed(self) -> bool:
        """Whether the path is inside a signed value, which is accepted or rejected in full."""
        # The path into a signed value has `:value` after its owner.
        return any(isinstance(key, Keyword) and key == VALUE_KEY for key in self.path)

    def verify_owner(self, owner: Value, signer: bytes) -> bool:
        """Return whether values of `owner` signed by `signer` are accepted.

        A public key accepts only itself. Other owners are decided by the verifier; without one,
        every signer is accepted, which is for development only.
        """
        # An owner of 32 bytes is a key and cannot delegate: no verifier is asked.
        if is_public_key(owner):
            return owner == signer
        verifier = self.verifier
        return True if verifier is None else verifier(owner, signer)

    def authorises(self, owner: Value, signer: bytes) -> bool:
        """Return whether `signer` may sign new values of `owner`.

        Like `verify_owner`, except that no signer is accepted without a verifier.
        """
        if is_public_key(owner):
            return owner == signer
        verifier = self.verifier
        # Security: to accept without a verifier is lenient, to sign without one would be a false
        # claim.
        return False if verifier is None else verifier(owner, signer)

    def holds(self, public_key: bytes) -> bool:
        """Return whether this context has the key pair of `public_key`."""
        identity = self.key_pair
        # The identity may sign like a key of the ring.
        return public_key in self.keys or (
            identity is not None and identity.public_key == public_key
        )

    def signer(self, owner: Value) -> KeyPair | None:
        """Return the key pair of this context that may sign new values of `owner`, or None.

        Of several, the one with the least public key is returned, so that all calls agree.
        """
        identity = self.key_pair
        if is_public_key(owner):
            if identity is not None and identity.public_key == owner:
                # A key signs for itself, whatever a verifier says.
                return identity
            assert isinstance(owner, bytes)
            return self.keys.get(owner)
        # The identity may sign for an owner by delegation, "like a key of the ring".
        pairs = self.keys if identity is None else KeyRing(*self.keys, identity)
        # "Of several keys that may sign for an owner, the one with the least public key signs"
        # (docs/design/forks.md "Keys"); a ring is in this order.
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
        # Budget and holes belong to one merge in this process; a worker begins without them.
        fields = self._fields()
        del fields["work"], fields["holes"]
        return _restore, (fields,)


def _restore(fields: dict[str, Any]) -> MergeContext:
    return MergeContext(**fields)


def is_public_key(owner: Value) -> bool:
    """Return whether an owner is a public key: bytes, exactly 32."""
    return isinstance(owner, bytes) and len(owner) == PUBLIC_KEY_BYTES


EMPTY_CONTEXT: Final = MergeContext()
"""A context without keys or verifier that ignores reports."""
