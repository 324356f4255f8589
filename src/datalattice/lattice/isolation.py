"""Isolation: a bad part of a foreign value is dropped, and everything beside it merges.

The parts are the smallest units with a signature or an address: an owner's slot or a section.
Entries of content stores are checked by their lattice. No other code catches these errors in a
merge.

Source: docs/design/foreign-data.md "Isolation".
"""

from __future__ import annotations

from collections.abc import Callable

from datalattice.cells import ABSENT, Hole, Signed, Value, validate
from datalattice.errors import BadFormat, TypeMismatch, WorkExceeded
from datalattice.lattice.context import (
    MALFORMED,
    MISMATCHED,
    TOO_COSTLY,
    EntryDropped,
    MergeContext,
    OwnMalformed,
    SectionDropped,
)


def isolated(context: MergeContext, own: Value, other: Value, merge: Callable[[], Value]) -> Value:
    """Return the result of `merge`; if `other` spoils it, report that and return `own`.

    A slot (a context with an owner) rejects an `other` with a hole anywhere; a section rejects a
    result that would contain one. Inside a slot nothing is caught: a signed value is accepted or
    rejected in full.
    Raises: MissingData, Corruption, StoreError: faults of the own store.
    """
    # "Inside a signed value nothing is caught" (docs/design/foreign-data.md "Isolation").
    if context.is_signed:
        return merge()
    holes = context.holes
    if isinstance(other, Hole) or (context.owner is not None and holes.spoils(other)):
        return _dropped(context, own, MALFORMED)
    work = context.work
    try:
        if work is None:
            merged = merge()
        else:
            merged = work.attempt(None if own is ABSENT else own, other, merge)
    # Only the part that is too costly is left out; its neighbours merge.
    except WorkExceeded:
        return _dropped(context, own, TOO_COSTLY)
    except TypeMismatch:
        return _dropped(context, own, MISMATCHED)
    except BadFormat as error:
        if not _is_malformed(own):
            return _dropped(context, own, MALFORMED)
        # Either side may be malformed: blame own only if it fails validation alone.
        context.report(OwnMalformed(context.path, str(error)))
        return other if _is_signed_and_sound(other, context) else own
    # "A result that contains a hole is not committed" (docs/design/foreign-data.md "Holes").
    if merged is not own and holes.is_planted(merged):
        return _dropped(context, own, MALFORMED)
    return merged


def _dropped(context: MergeContext, own: Value, reason: str) -> Value:
    # A section has no owner; an owner's slot is reported as an entry.
    if context.owner is None:
        context.report(SectionDropped(context.path, reason))
    else:
        context.report(EntryDropped(context.path, reason))
    return own


def _is_malformed(value: object) -> bool:
    if value is ABSENT:
        return False
    try:
        validate(value)
    except BadFormat:
        return True
    return False


def _is_signed_and_sound(value: Value, context: MergeContext) -> bool:
    """Return whether a slot may be replaced by `value`, whose owner is verified already."""
    return (
        context.owner is not None
        and isinstance(value, Signed)
        and value.verify()
        and not _is_malformed(value)
    )
