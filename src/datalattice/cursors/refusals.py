"""Refusals: the parts of a write that this node may not write.

The parts are those that a merge checks: a section, an owner's slot, an entry of a content store. A
node with a key of the owner may sign any value for a slot. In the slot of another owner it may only
write the result of a merge: a value that the owner signed and that contains the current one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from datalattice.cells import (
    ABSENT,
    EMPTY_INDEX,
    EMPTY_MAP,
    Index,
    Map,
    Signed,
    Value,
    brief,
    same,
    value_hash,
)
from datalattice.errors import (
    BadSignature,
    DataLatticeError,
    NoSigningKey,
    NoSuchPath,
    NotContained,
    TypeMismatch,
    UsageError,
)
from datalattice.lattice import (
    DataLattice,
    DIDOwnerLattice,
    DIDVerifier,
    KeyedLattice,
    Lattice,
    MergeContext,
    OwnerLattice,
    SignedLattice,
    StringKeyedLattice,
    discard,
    is_bare_did,
    public_key_of,
    shown_key,
)

_NAMED: Final = (KeyedLattice, StringKeyedLattice)
_GUARDED: Final = (*_NAMED, OwnerLattice, SignedLattice, DataLattice)


class Refusal(NamedTuple):
    """A part of a write that is not accepted.

    path: keys from the top of the written value. before, after: values at it, or ABSENT.
    """

    path: tuple[Value, ...]
    before: object
    after: object
    error: DataLatticeError


def is_guarded(lattice: Lattice) -> bool:
    """Return whether this lattice or one below it restricts writes beyond the type of the value."""
    return isinstance(lattice, _GUARDED) or any(is_guarded(one) for one in lattice.within())


def refusals(
    lattice: Lattice, before: Value, after: Value, context: MergeContext
) -> Iterator[Refusal]:
    """Yield the parts of `after` that may not replace those of `before`.

    Args:   context: that of the value, with the keys that sign here and the verifier.
    Cost:   the difference, down to the slots; a merge for each differing slot of another owner.
    Raises: MissingData: a differing cell is missing.
    """
    # The usual case: most values are below no owner, and cost nothing here.
    if before is after or not is_guarded(lattice):
        return
    context = context.reporting(discard)
    if isinstance(lattice, SignedLattice) and lattice.whole:
        context = context.verified_by(DIDVerifier(context.verifier))
    yield from _WriteCheck(context).parts(lattice, before, after, ())


def restored(value: Value, refused: Refusal) -> Value:
    """Return `value` with the refused part put back, unless it has changed since."""
    return _put_back(value, refused.path, refused)


def _put_back(value: Value, path: tuple[Value, ...], refused: Refusal) -> Value:
    if not path:
        before = None if refused.before is ABSENT else refused.before
        return before if _is_same(value, refused.after) else value
    if not isinstance(value, (Map, Index)):
        return value
    key = path[0]
    below = value.get(key, ABSENT)
    if len(path) == 1:
        # Another write has replaced the refused part meanwhile: it stays.
        if not _is_same(below, refused.after):
            return value
        if refused.before is ABSENT:
            return value.remove(key)
        # put keeps the key cell that an Index has, so the key is removed first.
        return value.remove(key).put(key, refused.before)
    if below is ABSENT:
        return value
    return value.put(key, _put_back(below, path[1:], refused))


def _is_same(a: object, b: object) -> bool:
    if a is ABSENT or b is ABSENT:
        return a is b
    return same(a, b)


class _WriteCheck:
    """Checks one write, with the keys and the verifier of a context."""

    def __init__(self, context: MergeContext) -> None:
        self._context: Final = context

    def parts(
        self, lattice: Lattice, before: object, after: object, path: tuple[Value, ...]
    ) -> Iterator[Refusal]:
        """Yield the refused parts at a path where the values differ, and below it."""
        # The signature covers the whole value, so no part of it can be written alone.
        if isinstance(lattice, SignedLattice):
            error = self._slot(lattice, before, after, path)
            if error is not None:
                yield Refusal(path, before, after, error)
        elif _is_nothing(after) or _is_alike(before, after) or lattice.check_foreign(_value(after)):
            if isinstance(lattice, _GUARDED) or is_guarded(lattice):
                yield from self._entries(lattice, before, after, path)
        else:
            text = f"a {_kind(after)} is not accepted at {self._at(path)}: {lattice!r} takes "
            zero = lattice.zero()
            text += "another type" if zero is None else f"a value like {brief(zero)}"
            yield Refusal(path, before, after, TypeMismatch(text))

    def _entries(
        self, lattice: Lattice, before: object, after: object, path: tuple[Value, ...]
    ) -> Iterator[Refusal]:
        # An Index compares the first 32 bytes of a key; in these lattices all bytes count, so two
        # longer keys may share one position.
        is_exact = isinstance(lattice, (DIDOwnerLattice, DataLattice))
        for own, other in _pairs(before, after):
            for key, has, mine, had, theirs in own.differences(other):  # type: ignore[arg-type]
                old, new = mine if has else ABSENT, theirs if had else ABSENT
                new_key = key
                if is_exact and isinstance(other, Index) and had:
                    new_key = other.key_cell(key)
                    if has and not same(key, new_key):  # another owner's slot in the same position
                        yield from self._entry(lattice, key, old, ABSENT, (*path, key))
                        old = ABSENT
                yield from self._entry(lattice, new_key, old, new, (*path, new_key))

    def _entry(
        self, lattice: Lattice, key: Value, before: object, after: object, path: tuple[Value, ...]
    ) -> Iterator[Refusal]:
        if isinstance(lattice, DataLattice):
            error = self._content(key, after, path)
            if error is not None:
                yield Refusal(path, before, after, error)
            return
        child = lattice.child(key)
        if child is not None:
            yield from self._below(lattice, key).parts(child, before, after, path)
        # Merges ignore unknown names, so a value there would never be replicated.
        elif isinstance(lattice, _NAMED):
            text = f"{self._at(path)} may not be written: {lattice!r} has no such part"
            if isinstance(lattice, KeyedLattice):
                known = ", ".join([name.text() for name in lattice.children()])
                text = f"{self._at(path)} may not be written: accepted here are {known}"
            yield Refusal(path, before, after, NoSuchPath(text))

    def _below(self, lattice: Lattice, key: Value) -> _WriteCheck:
        """Return the check of an entry; in an owner map its context has the owner."""
        context = self._context
        if not isinstance(lattice, OwnerLattice):
            return self
        owner = key
        if isinstance(lattice, DIDOwnerLattice):
            owner = shown_key(key)
            context = context.verified_by(DIDVerifier(context.verifier))
        return _WriteCheck(context.at(context.path, owner))

    def _content(self, key: Value, after: object, path: tuple[Value, ...]) -> UsageError | None:
        if after is ABSENT:
            return None  # content has no owner, and another holder can bring it back
        hash = value_hash(after)
        # A content store files every value under its hash (docs/lattices.md "Content stores").
        if isinstance(key, bytes) and key == hash:
            return None
        return UsageError(
            f"the value at {self._at(path)} does not have the hash in its key: "
            f"write it under 0x{hash.hex()}"
        )

    def _slot(
        self, lattice: SignedLattice, before: object, after: object, path: tuple[Value, ...]
    ) -> DataLatticeError | None:
        """Return why a value may not be written into an owner's slot, or None."""
        context, owner = self._context, self._context.owner
        # Without an owner in the path the slot belongs to this node.
        is_own = owner is None or context.signer(owner) is not None
        # A node with a key of the owner may sign any value for a slot, and remove it.
        if _is_nothing(after):
            if is_own or _is_nothing(before):
                return None
            return NoSigningKey(f"{self._foreign(path)}, so it cannot be removed")
        if not isinstance(after, Signed):
            got = f"got {_kind(after)} without a signature"
            if is_own:
                at = self._at(path)
                return TypeMismatch(f"{at} takes a Signed value by a key of its owner, {got}")
            return NoSigningKey(f"{self._foreign(path)}; {got}")
        signer = after.public_key
        is_claimed = self._is_claimed(before, signer)
        if owner is not None and not is_claimed and not context.verify_owner(owner, signer):
            got = f"got one signed by 0x{signer.hex()}, which may not sign for its owner"
            if is_own:
                return BadSignature(
                    f"{self._at(path)} takes values signed by a key of its owner, {got}"
                )
            return NoSigningKey(f"{self._foreign(path)}; {got}")
        # The signer first, then the signature: the first error names the key to use.
        if not after.verify():
            return BadSignature(f"{self._at(path)} is not what 0x{signer.hex()} signed")
        inner = lattice.inner
        known = before.value if isinstance(before, Signed) else ABSENT
        if not _is_alike(known, after.value) and not inner.check_foreign(after.value):
            return TypeMismatch(
                f"a signed {_kind(after.value)} is not accepted at {self._at(path)}: "
                f"{inner!r} takes another type"
            )
        # This node signed it, so the write may drop parts of the current value.
        if is_claimed or (is_own and (owner is None or context.holds(signer))):
            return None
        below = context.at((*context.path, *path), owner)
        # If merging adds nothing to the write, it contains everything that the owner has signed.
        if same(lattice.merge(_value(before), after, below), after):
            return None
        return NotContained(f"{self._foreign(path)}; got an earlier or a different state")

    def _is_claimed(self, before: object, signer: bytes) -> bool:
        """Return whether a key of this node speaks for a DID whose document is elsewhere.

        A verifier that has not read the document knows no key of the DID, so an own signature is
        accepted in an empty slot or over a value of the same key.
        """
        owner = self._context.owner
        is_remote = is_bare_did(owner) and public_key_of(owner) is None
        if not is_remote or not self._context.holds(signer):
            return False
        # Over the value of another key the claim proves nothing: the verifier decides.
        if isinstance(before, Signed):
            return before.public_key == signer
        return _is_nothing(before)

    def _foreign(self, path: tuple[Value, ...]) -> str:
        return (
            f"no key here may sign for the owner of {self._at(path)}: "
            "it takes only values that the owner signed and that contain the current one"
        )

    def _at(self, path: tuple[Value, ...]) -> str:
        return brief((*self._context.path, *path))


def _pairs(before: object, after: object) -> Iterator[tuple[Map | Index, Map | Index]]:
    """Yield the values to compare, as pairs of containers of one type."""
    left = before if isinstance(before, (Map, Index)) else None
    right = after if isinstance(after, (Map, Index)) else None
    if left is not None and (right is None or isinstance(left, Map) != isinstance(right, Map)):
        yield left, EMPTY_MAP if isinstance(left, Map) else EMPTY_INDEX
        left = None
    if right is not None:
        empty = EMPTY_MAP if isinstance(right, Map) else EMPTY_INDEX
        yield empty if left is None else left, right


def _value(value: object) -> Value:
    return None if value is ABSENT else value


def _is_nothing(value: object) -> bool:
    return value is None or value is ABSENT


def _is_alike(before: object, after: object) -> bool:
    """Return whether both values have one type, so that `check_foreign` can be skipped.

    Checking all of a large value would cost more than the write.
    """
    return type(before) is type(after)


def _kind(value: object) -> str:
    return type(value).__name__
