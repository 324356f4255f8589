"""Owned: signed values, and maps from an owner to what the owner signed.

The merge is the security boundary.

Only incoming values are judged: a signature must verify, and the signer must be one the owner
accepts. Own values were judged when they came in. A merged value that neither side signed is signed
again only by a key that may speak for the owner; a relay that holds no such key keeps own and
reports the fork, and the owner's next merge on one of its own nodes ends it.
"""

from __future__ import annotations

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
)
from datalattice.crypto import KeyPair
from datalattice.errors import TypeMismatch
from datalattice.lattice.base import Lattice, as_operand, greater
from datalattice.lattice.containers import need_lattice
from datalattice.lattice.context import (
    BAD_SIGNATURE,
    EMPTY_CONTEXT,
    ENTRY_DROPPED,
    NOT_OWNER,
    EntryDropped,
    MergeContext,
    OwnerForked,
)
from datalattice.lattice.exact import Judge, merge_exact
from datalattice.lattice.identity import DIDVerifier, is_bare_did
from datalattice.lattice.keyed import name_bytes

VALUE: Final = Keyword("value")
"""The key that leads from a signed cell to the value inside."""

_VALUE_BYTES: Final = b"value"


class SignedLattice(Lattice):
    """A Signed cell around a value with its own lattice.

    A first value is taken as its signer made it; with `whole` it is taken only if the inner lattice
    leaves nothing out of it, because what is signed cannot be put right by others.

    Shapes: key_pair, when given, signs merged values if the context's key may not.
    Source: CAD024 "Signed lattice"; CAD038; docs/lattices.md "Signed values", "Owners".
    """

    def __init__(
        self, inner: Lattice, key_pair: KeyPair | None = None, *, whole: bool = False
    ) -> None:
        need_lattice(inner, "the child of a SignedLattice")
        if key_pair is not None and not isinstance(key_pair, KeyPair):
            raise TypeMismatch(
                f"the key of a SignedLattice is a KeyPair, got {type(key_pair).__name__}"
            )
        self.inner: Final = inner
        self._key_pair: Final = key_pair
        self._whole: Final = whole

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return the side whose value covers the other's, or the join signed by a key that may.

        When nobody here may sign, own is kept and `OwnerForked` reported.
        Cost:   one signature check for a cell not checked before; then the inner merge.
        Source: CAD024 "Signed lattice"; docs/lattices.md "Signed values";
                docs/design/decisions.md "D4", "D5".
        """
        if other is None or own is other:
            return own
        if not isinstance(other, Signed) or not other.verify():
            kind = BAD_SIGNATURE if isinstance(other, Signed) else ENTRY_DROPPED
            context.report(EntryDropped(context.path, kind))
            return own
        theirs = other.value
        mine = own.value if isinstance(own, Signed) else None
        if isinstance(own, Signed) and same(mine, theirs):
            return _one_cell(own, other)
        if not self.inner.check_foreign(theirs):
            context.report(EntryDropped(context.path))
            return own
        is_first = not isinstance(own, Signed)
        if is_first and not self._whole:
            return other
        below = context.at((*context.path, VALUE), context.owner)
        merged = self.inner.merge(self.inner.zero() if is_first else mine, theirs, below)
        theirs = self._in_full(theirs, below)
        if isinstance(own, Signed) and same(merged, self._in_full(mine, below)):
            return _one_cell(own, other) if same(merged, theirs) else own
        if same(merged, theirs):
            return other
        signer = self._signer(context)
        if signer is not None:
            return Signed.sign(signer, merged)
        if isinstance(own, Signed):
            owner = own.public_key if context.owner is None else context.owner
            context.report(OwnerForked(owner, context.path))
        else:
            context.report(EntryDropped(context.path))
        return own

    def check_foreign(self, value: Value) -> bool:
        """Return whether the value is a Signed cell whose signature verifies.

        Source: CAD024 "Signed lattice"; CAD038; docs/lattices.md "Signed values", "Owners".
        """
        return isinstance(value, Signed) and value.verify()

    def child(self, key: Value) -> Lattice | None:
        """Return the inner lattice for `:value`, else nil.

        Source: CAD024 "Signed lattice"; docs/lattices.md "Signed values".
        """
        return self.inner if isinstance(key, Keyword) and key == VALUE else None

    def resolve_key(self, key: Value) -> Value:
        """Return `:value` for a key with the bytes "value", else nil.

        Source: CAD024 "Signed lattice"; docs/lattices.md "Signed values".
        """
        return VALUE if name_bytes(key) == _VALUE_BYTES else None

    def canonical_key(self, key: Value) -> Value:
        """Return `:value` for a key with the bytes "value"; any other key as it is.

        Source: docs/design/decisions.md "D10".
        """
        return VALUE if name_bytes(key) == _VALUE_BYTES else key

    def _in_full(self, value: Value, context: MergeContext) -> Value:
        """Return a value as a merge would write it: what stands for nothing need not be there."""
        return self.inner.merge(value, self.inner.zero(), context) if self._whole else value

    def _signer(self, context: MergeContext) -> KeyPair | None:
        for key_pair in (context.key_pair, self._key_pair):
            if key_pair is not None and (
                context.owner is None or context.authorises(context.owner, key_pair.public_key)
            ):
                return key_pair
        return None

    def _arguments(self) -> tuple[object, ...]:
        return self.inner, self._key_pair

    def __reduce__(self) -> tuple[object, ...]:
        return _signed_lattice, (self.inner, self._key_pair, self._whole)


def _signed_lattice(inner: Lattice, key_pair: KeyPair | None, whole: bool) -> SignedLattice:
    return SignedLattice(inner, key_pair, whole=whole)


def _one_cell(own: Signed, other: Signed) -> Value:
    """Return the one cell of two that sign the same value.

    The one that verifies, of two such the greater hash (D5).
    """
    return greater(own, other) if own.verify() else other


class OwnerLattice(Lattice):
    """A Map from an owner to the value that the owner signed.

    An owner is a public key (32 bytes), an Address, a DID String, or anything else the context's
    verifier knows.
    Source: CAD024 "Owner lattice"; CAD038; docs/lattices.md "Owners".
    """

    def __init__(self, inner: Lattice) -> None:
        need_lattice(inner, f"the child of an {type(self).__name__}")
        self._inner: Final = inner
        self._signed_child: Final = self._signed(inner)

    def _signed(self, inner: Lattice) -> SignedLattice:
        return SignedLattice(inner)

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return own with every entry of other that its owner signed joined in.

        Cost: owners whose entries differ.
        Source: CAD024 "Owner lattice"; CAD038 "Owner verification"; docs/lattices.md "Owners";
                docs/design/decisions.md "D4", "D5", "D9".
        """
        if other is None or own is other or not self.accepts(other, context):
            return own
        assert isinstance(other, Map)
        join = _OwnerMerge(self._signed_child, context).join
        if isinstance(own, Map):
            return own.merge_with(other, join)
        return as_operand(EMPTY_MAP.merge_with(other, join), other, other)

    def zero(self) -> Value:
        """Return the empty Map.

        Source: CAD024 "Owner lattice"; docs/lattices.md "Owners".
        """
        return EMPTY_MAP

    def check_foreign(self, value: Value) -> bool:
        """Return whether the value is a Map.

        Source: CAD024 "Owner lattice"; docs/lattices.md "Owners".
        """
        return isinstance(value, Map)

    def child(self, key: Value) -> Lattice | None:
        """Return the lattice of an owner's signed value, the same for every owner.

        Source: CAD024 "Owner lattice"; docs/lattices.md "Owners".
        """
        return self._signed_child

    def resolve_key(self, key: Value) -> Value:
        """Return the bytes of a String of hex digits (with or without 0x).

        Any other key stands for itself.

        Source: CAD024 "Owner lattice"; docs/lattices.md "Owners"; docs/design/decisions.md "D8".
        """
        if not isinstance(key, str):
            return key
        digits = key.removeprefix("0x")
        return bytes.fromhex(digits) if _is_hex(digits) else key

    def _arguments(self) -> tuple[object, ...]:
        return (self._inner,)


class DIDOwnerLattice(OwnerLattice):
    """An Index from an owner's DID to the value that the owner signed.

    Owners are bare DIDs alone: a `did:key` speaks for itself, of other methods the context's
    verifier knows the keys, and without one nobody may write for them. A value is taken whole or
    not at all.
    Source: CAD038 "DID owners"; docs/lattices.md "Owners".
    """

    def _signed(self, inner: Lattice) -> SignedLattice:
        return SignedLattice(inner, whole=True)

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        """Return own with every entry of other that its owner signed joined in.

        Cost: owners whose entries differ.
        Source: CAD024 "Owner lattice"; CAD038 "Owner verification"; docs/lattices.md "Owners";
                docs/design/decisions.md "D4", "D5", "D9".
        """
        if other is None or own is other or not self.accepts(other, context):
            return own
        theirs = other if isinstance(other, Index) else EMPTY_INDEX
        judge = _DIDJudge(self._signed_child, context.verified_by(DIDVerifier(context.verifier)))
        if isinstance(own, Index):
            return merge_exact(own, theirs, judge)
        return as_operand(merge_exact(EMPTY_INDEX, theirs, judge), other, other)

    def zero(self) -> Value:
        """Return the empty Index.

        Source: CAD024 "Owner lattice"; docs/lattices.md "Owners".
        """
        return EMPTY_INDEX

    def check_foreign(self, value: Value) -> bool:
        """Return whether the value is an Index; an empty Map counts as an empty one.

        Source: CAD024 "Owner lattice"; docs/lattices.md "Owners".
        """
        return isinstance(value, Index) or (isinstance(value, Map) and not len(value))

    def resolve_key(self, key: Value) -> Value:
        """Return a bare DID as it is, nil for any other key.

        Source: CAD024 "Owner lattice"; docs/lattices.md "Owners".
        """
        return key if is_bare_did(key) else None


class _DIDJudge(Judge):
    """Joins the entries of an index of DIDs: first who signed, then what."""

    def __init__(self, signed: SignedLattice, context: MergeContext) -> None:
        self._signed_child: Final = signed
        self._context: Final = context

    def admits(self, key: Value, value: Value) -> bool:
        """Return whether the value is signed by a key of the DID."""
        context = self._context
        if isinstance(value, Signed) and is_bare_did(key):
            if context.verify_owner(key, value.public_key):
                return True
            kind = NOT_OWNER
        else:
            kind = ENTRY_DROPPED
        context.report(EntryDropped((*context.path, key), kind))
        return False

    def join(self, key: Value, own: Value, other: Value) -> Value:
        """Return the joined entry of one DID."""
        context = self._context
        return self._signed_child.merge(own, other, context.at((*context.path, key), key))


class _OwnerMerge:
    """Joins the entries of an owner map: first who signed, then what."""

    def __init__(self, signed: SignedLattice, context: MergeContext) -> None:
        self._signed_child: Final = signed
        self._context: Final = context

    def join(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        """Return the joined entry of one owner, or ABSENT."""
        if not other_present or other is None:
            return own if own_present or other_present else ABSENT
        above = self._context
        context = above.at((*above.path, key), key)
        if not isinstance(other, Signed) or not above.verify_owner(key, other.public_key):
            kind = NOT_OWNER if isinstance(other, Signed) else ENTRY_DROPPED
            context.report(EntryDropped(context.path, kind))
            merged = own
        else:
            merged = self._signed_child.merge(own, other, context)
        return ABSENT if merged is None and not own_present else merged


def _is_hex(digits: str) -> bool:
    if not digits or len(digits) % 2:
        return False
    return all(digit in "0123456789abcdefABCDEF" for digit in digits)
