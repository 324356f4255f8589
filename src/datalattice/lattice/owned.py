"""Owned: signed values, and maps from an owner to the value that the owner signed.

This merge is the security boundary. A signature must verify, and the owner must accept the signer.
Of two values of one owner every node takes the greater by one total order, so all nodes choose
alike. A node with a key of the owner signs their merge, if it is greater than both. So the rank of
a slot never decreases, and an old signed value that arrives again changes nothing. A value that the
chosen one does not contain is reported, and kept as evidence until the owner merges it.

Source: CAD024 "Owner lattice", "Signed lattice"; docs/lattices.md "Owners", "Signed values"; CAD038
    "Owner verification", "DID owners"; docs/design/decisions.md "D4", "D5", "D9", "D8", "D10";
    docs/design/forks.md "Keys", "Evidence", "Merge of a slot".
"""

from __future__ import annotations

import re
from typing import Final

from datalattice.cells import (
    ABSENT,
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    Keyword,
    Map,
    Signed,
    Value,
    same,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.errors import TypeMismatch
from datalattice.lattice.base import Lattice, as_operand, greater, is_greater, same_elements
from datalattice.lattice.containers import need_lattice
from datalattice.lattice.context import (
    BAD_SIGNATURE,
    EMPTY_CONTEXT,
    ENTRY_DROPPED,
    LOG_BRANCH,
    NOT_OWNER,
    OTHER,
    OWN,
    VALUE_KEY,
    EntryDropped,
    MergeContext,
    MergeNotice,
    OwnerForked,
    QueueForked,
    WriteSuperseded,
    discard,
)
from datalattice.lattice.exact import Judge, merge_judged
from datalattice.lattice.identity import DIDVerifier, is_bare_did
from datalattice.lattice.isolation import isolated
from datalattice.lattice.keyed import name_bytes
from datalattice.lattice.order import Walk

_VALUE_BYTES: Final = b"value"
_HEX: Final = re.compile("(?:[0-9a-fA-F]{2})+")


class SignedLattice(Lattice):
    """A Signed cell around a value with its own lattice.

    A first value is accepted as signed. With `whole`, it is accepted only if the inner lattice
    keeps all of it, because others cannot correct a signed value.

    Args:   key_pair: signs merged values if the context's key may not.
    """

    def __init__(
        self, inner: Lattice, key_pair: KeyPair | None = None, *, whole: bool = False
    ) -> None:
        need_lattice(inner, "the child of a SignedLattice")
        if key_pair is not None and not isinstance(key_pair, KeyPair):
            raise TypeMismatch(
                f"the key of a SignedLattice is not a KeyPair: {type(key_pair).__name__}"
            )
        self.inner: Final = inner
        self._key_pair: Final = key_pair
        self.whole: Final = whole

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the greater of two signed values, or their merge signed by an authorised key.

        Below an owner, a key of the owner signs the merge, and only if it is greater than both;
        `OwnerForked` is reported if a part of either side is left out. Without an owner, the key of
        the context or of this lattice signs every merge.
        Cost:   one signature check for a cell not checked before, the order, and the merge.
        """
        if other is None or own is other:
            return own
        work = context.work
        if work is not None:
            # A signature check costs far more than its bytes, so it is paid for by itself.
            work.verify(value_hash(other))
        # The signature first: an unsigned value is not even compared.
        if not isinstance(other, Signed) or not other.verify():
            kind = BAD_SIGNATURE if isinstance(other, Signed) else ENTRY_DROPPED
            context.report(EntryDropped(context.path, kind))
            return own
        # The owner second: a valid signature by another key has no right here.
        if not _is_by_owner(other, context):
            context.report(EntryDropped(context.path, NOT_OWNER))
            return own
        # The shape last: the value is loaded only for this.
        if not self.inner.check_foreign(other.value):
            context.report(EntryDropped(context.path))
            return own
        # "own is never preferred for being own": an own cell that fails the checks is replaced.
        if not isinstance(own, Signed) or not own.verify() or not _is_by_owner(own, context):
            return self._first(own, other, context)
        # "If two cells have equal values, the valid one with the greater cell hash stays"
        # (docs/design/decisions.md "D5").
        if same(own.value, other.value):
            return greater(own, other)
        return _SlotMerge(self, context).joined(own, other)

    def left_out(self, high: Signed, low: Signed, context: MergeContext) -> OwnerForked | None:
        """Return the fork by which `high` leaves the lesser `low` out; None if it contains it.

        Both cells must be verified and ordered already.
        Cost:   the merge.
        Raises: MissingData: a differing cell is missing.
        """
        return _SlotMerge(self, context).left_out(high, low)

    def _first(self, own: Value, other: Signed, context: MergeContext) -> Value:
        """Return the first valid value of a slot, as its signer wrote it."""
        if self.whole:
            below = context.at((*context.path, VALUE_KEY), context.owner)
            merged = self.inner.merge(self.inner.zero(), other.value, below)
            # The form in which a merge writes the complete value.
            in_full = self.inner.merge(other.value, self.inner.zero(), below)
            if not same(merged, in_full):
                # An owner's own node may correct what its devices wrote, and sign that.
                signer = self.signer(context)
                if signer is not None:
                    return Signed.sign(signer, merged)
                context.report(EntryDropped(context.path))
                return own
        return other

    def check_foreign(self, value: Value) -> bool:
        """Return whether the value is a Signed cell whose signature verifies."""
        # Security: an unsigned value, or a signature that does not verify, never enters a slot.
        return isinstance(value, Signed) and value.verify()

    def child(self, key: Value) -> Lattice | None:
        """Return the inner lattice for `:value`, else None."""
        return self.inner if isinstance(key, Keyword) and key == VALUE_KEY else None

    def resolve_key(self, key: Value) -> Value:
        """Return `:value` for a key with the bytes "value", else None."""
        return VALUE_KEY if name_bytes(key) == _VALUE_BYTES else None

    def canonical_key(self, key: Value) -> Value:
        """Return `:value` for a key with the bytes "value"; any other key unchanged."""
        return VALUE_KEY if name_bytes(key) == _VALUE_BYTES else key

    def signer(self, context: MergeContext) -> KeyPair | None:
        """Return the key pair that may sign a merge, or None; without an owner, any key may."""
        own = self._key_pair
        if context.owner is None:
            return own if context.key_pair is None else context.key_pair
        found = context.signer(context.owner)
        if found is None and own is not None and context.authorises(context.owner, own.public_key):
            return own
        return found

    def _arguments(self) -> tuple[object, ...]:
        return self.inner, self._key_pair

    def __reduce__(self) -> tuple[object, ...]:
        return _signed_lattice, (self.inner, self._key_pair, self.whole)


def _signed_lattice(inner: Lattice, key_pair: KeyPair | None, whole: bool) -> SignedLattice:
    return SignedLattice(inner, key_pair, whole=whole)


def _is_by_owner(cell: Signed, context: MergeContext) -> bool:
    """Return whether the owner of the slot, if any, accepts the signer of a cell."""
    return context.owner is None or context.verify_owner(context.owner, cell.public_key)


class _SlotMerge:
    """One merge of two valid values of a slot: the order, then what the greater one leaves out."""

    def __init__(self, lattice: SignedLattice, context: MergeContext) -> None:
        self._lattice: Final = lattice
        self._inner: Final = lattice.inner
        self._context: Final = context
        below = context.at((*context.path, VALUE_KEY), context.owner)
        self._below: Final = below.preferring(OWN).reporting(self._note)
        self._reports: Final[list[MergeNotice]] = []
        self._walk: Final = Walk(context.work)

    def _note(self, report: MergeNotice) -> None:
        self._reports.append(report)

    def joined(self, own: Signed, other: Signed) -> Value:
        """Return the merged value of the slot."""
        # A value is merged as a whole or refused; own was checked when it was stored.
        if self._lattice.whole and self._is_partly_bad(own, other):
            return own
        own_greater = self._is_greater(own, other)
        high, low = (own, other) if own_greater else (other, own)
        value, contained, logs = self._join(high, low)
        if contained and not logs:
            self._pass_on(own_greater)
            return high
        signed = high if contained else self._signed_join(high, value)
        if signed is high and not contained:
            # The merge was made only to find what is missing and is discarded.
            self._reports[:] = [r for r in self._reports if not isinstance(r, WriteSuperseded)]
        self._pass_on(own_greater)
        for fork in self._forks(high, low, signed, contained, logs):
            self._context.report(fork)
        return signed

    def _join(self, high: Signed, low: Signed) -> tuple[Value, bool, list[QueueForked]]:
        """Return the merge, whether `high` contains all of it, and the logs that fork."""
        # "merge(greater, lesser)": the same cell on every node, whatever is malformed inside.
        value = self._inner.merge(high.value, low.value, self._below)
        logs = [report for report in self._reports if isinstance(report, QueueForked)]
        return value, same_elements(self._inner, value, high.value, self._walk), logs

    def left_out(self, high: Signed, low: Signed) -> OwnerForked | None:
        """Return the fork by which `high` leaves `low` out; None if it contains it."""
        _, contained, logs = self._join(high, low)
        found = self._forks(high, low, high, contained, logs)
        return found[0] if found else None

    def _is_greater(self, own: Signed, other: Signed) -> bool:
        """Return whether `own` is the greater of two cells with different values."""
        inner = self._inner
        if inner.has_order():
            hashes = value_hash(own), value_hash(other)
            return is_greater(inner, own.value, hashes[0], other.value, hashes[1], self._walk)
        # A lattice without an order: "the side that covers from both directions".
        silent = self._below.reporting(discard)
        one = inner.merge(own.value, other.value, silent)
        two = inner.merge(other.value, own.value, silent)
        if same(one, two) and same(one, own.value):
            return True
        if same(one, two) and same(one, other.value):
            return False
        # "The greater hash stays", so that all nodes choose alike.
        return value_hash(own) > value_hash(other)

    def _is_partly_bad(self, own: Signed, other: Signed) -> bool:
        """Return whether a part of `other` would be left out; report it if so."""
        joined = self._inner.merge(own.value, other.value, self._below)
        found = [report for report in self._reports if isinstance(report, EntryDropped)]
        # Merged the other way, bad parts of other stay, since parts of own are not checked: the
        # results differ. Where a valid entry of own stays both times, only the report shows it.
        back = self._inner.merge(other.value, joined, self._below)
        self._reports.clear()
        if not found and same(back, joined):
            return False
        for report in found or [EntryDropped(self._context.path)]:
            self._context.report(report)
        return True

    def _signed_join(self, high: Signed, value: Value) -> Signed:
        """Return the merge signed by a key of the owner; `high` without one, or if it ranks less.

        Without an owner any key signs, and the signed merge is always returned.
        """
        context = self._context
        key = self._lattice.signer(context)
        # Without a key of the owner nothing may be signed: the greater value stays as it is.
        if key is None:
            return high
        cell = Signed.sign(key, value)
        # "The rank never falls": a signed merge that is not greater is discarded.
        return cell if context.owner is None or self._is_greater(cell, high) else high

    def _pass_on(self, own_greater: bool) -> None:
        """Report what the merge reported, with the sides as the caller gave them."""
        for report in self._reports:
            if own_greater:
                self._context.report(report)
            # The merge had the greater side as own, which was the caller's other.
            elif isinstance(report, (QueueForked, WriteSuperseded)):
                self._context.report(report.swapped())
            else:
                self._context.report(report)

    def _forks(
        self, high: Signed, low: Signed, kept: Signed, contained: bool, logs: list[QueueForked]
    ) -> list[OwnerForked]:
        """Return a report for each side that the kept value leaves out."""
        context = self._context
        owner = high.public_key if context.owner is None else context.owner
        path = context.path
        # No key here signed the merge, so the lesser value is kept as evidence.
        if kept is high and not contained:
            return [OwnerForked(owner, path, high, low)]
        found: list[OwnerForked] = []
        for side, cell in ((OTHER, low), (OWN, high)):
            lost = tuple([report for report in logs if report.lost == side])
            # The slot still has the kept cell; only a cell that leaves it is needed as evidence.
            if lost and cell is not kept:
                found.append(OwnerForked(owner, path, kept, cell, LOG_BRANCH, lost))
        return found


class OwnerLattice(Lattice):
    """A Map from an owner to the value that the owner signed.

    An owner is a public key (32 bytes), an Address, a DID String, or anything else that the
    context's verifier knows.
    """

    def __init__(self, inner: Lattice) -> None:
        need_lattice(inner, f"the child of an {type(self).__name__}")
        self._inner: Final = inner
        self._signed_child: Final = self._signed(inner)

    def within(self) -> tuple[Lattice, ...]:
        """Return the lattice of the values that owners sign."""
        return (self._inner,)

    def _signed(self, inner: Lattice) -> SignedLattice:
        return SignedLattice(inner)

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return own merged with every entry of other that its owner signed.

        Cost: owners whose entries differ.
        """
        if other is None or own is other or not self.accepts(other, context):
            return own
        assert isinstance(other, Map)
        join = _OwnerMerge(self._signed_child, context).join
        if isinstance(own, Map):
            return own.merge_with(other, join, context.work)
        return as_operand(EMPTY_MAP.merge_with(other, join, context.work), other, other)

    def zero(self) -> Value:
        return EMPTY_MAP

    def check_foreign(self, value: Value) -> bool:
        return isinstance(value, Map)

    def child(self, key: Value) -> Lattice | None:
        """Return the lattice of an owner's signed value, the same for every owner."""
        return self._signed_child

    def resolve_key(self, key: Value) -> Value:
        """Return the bytes of a String of hex digits (with or without 0x), any other key unchanged.

        "Otherwise owners named by a DID could not be reached" (docs/design/decisions.md "D8").
        """
        if not isinstance(key, str):
            return key
        # A key in hex addresses the slot of its bytes, which is where owners write.
        digits = key.removeprefix("0x")
        return bytes.fromhex(digits) if _HEX.fullmatch(digits) else key

    def _arguments(self) -> tuple[object, ...]:
        return (self._inner,)


class DIDOwnerLattice(OwnerLattice):
    """An Index from an owner's DID to the value that the owner signed.

    Owners are bare DIDs. A `did:key` contains its key; the context's verifier knows the keys of
    other methods, and without one no signer is accepted for them. A value is accepted or rejected
    in full.
    """

    def _signed(self, inner: Lattice) -> SignedLattice:
        return SignedLattice(inner, whole=True)

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        if other is None or own is other or not self.accepts(other, context):
            return own
        theirs = other if isinstance(other, Index) else EMPTY_INDEX
        judge = _DIDJudge(self._signed_child, context.verified_by(DIDVerifier(context.verifier)))
        if isinstance(own, Index):
            return merge_judged(own, theirs, judge, context.work)
        return as_operand(merge_judged(EMPTY_INDEX, theirs, judge, context.work), other, other)

    def zero(self) -> Value:
        return EMPTY_INDEX

    def check_foreign(self, value: Value) -> bool:
        """Return whether the value is an Index; an empty Map counts as an empty one."""
        return isinstance(value, Index) or (isinstance(value, Map) and not len(value))

    def resolve_key(self, key: Value) -> Value:
        """Return a bare DID as it is, None for any other key."""
        return key if is_bare_did(key) else None


class _DIDJudge(Judge):
    """Merges the entries of an index of DIDs: checks the signer first, then merges the values."""

    def __init__(self, signed: SignedLattice, context: MergeContext) -> None:
        self._signed_child: Final = signed
        self._context: Final = context

    def admits(self, key: Value, value: Value) -> bool:
        """Return whether the value is signed by a key of the DID."""
        context = self._context
        if isinstance(value, Signed) and is_bare_did(key):
            # Security: the signer is checked before the value is loaded or merged.
            if context.verify_owner(key, value.public_key):
                return True
            kind = NOT_OWNER
        else:
            kind = ENTRY_DROPPED
        context.report(EntryDropped((*context.path, key), kind))
        return False

    def join(self, key: Value, own: Value, other: Value) -> Value:
        """Return the merged entry of one DID."""
        above = self._context
        context = above.at((*above.path, key), key)
        signed = self._signed_child
        return isolated(context, own, other, lambda: signed.merge(own, other, context))


class _OwnerMerge:
    """Merges the entries of an owner map: checks the signer first, then merges the values."""

    def __init__(self, signed: SignedLattice, context: MergeContext) -> None:
        self._signed_child: Final = signed
        self._context: Final = context

    def join(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        """Return the merged entry of one owner, or ABSENT."""
        if not other_present or other is None:
            return own if own_present or other_present else ABSENT
        above = self._context
        context = above.at((*above.path, key), key)
        # Security: the signer is checked before the value is loaded or merged.
        if not isinstance(other, Signed) or not above.verify_owner(key, other.public_key):
            kind = NOT_OWNER if isinstance(other, Signed) else ENTRY_DROPPED
            context.report(EntryDropped(context.path, kind))
            merged = own
        else:
            signed = self._signed_child
            merged = isolated(context, own, other, lambda: signed.merge(own, other, context))
        # A refused first value leaves no entry: an owner with None would differ from an absent one.
        return ABSENT if merged is None and not own_present else merged
