"""Isolation: one bad part of a foreign value costs that part, and all beside it merges.

The parts are the smallest that carry a signature or an address: an owner's slot, a section; an
entry of a content store judges itself. No other code catches these errors in a merge.

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
    """Return what `merge` makes of own and other; own where other spoils it, which is reported.

    In a slot (a context with an owner), an other with a hole anywhere is left out; in a section,
    a result that would contain one. Inside a slot nothing is caught: what was signed together is
    taken together.
    Raises: MissingData, Corruption, StoreError: they are about the own disk.
    Source: docs/design/foreign-data.md "Isolation".
    """
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
    except WorkExceeded:
        return _dropped(context, own, TOO_COSTLY)
    except TypeMismatch:
        return _dropped(context, own, MISMATCHED)
    except BadFormat as error:
        if not _is_malformed(own):
            return _dropped(context, own, MALFORMED)
        context.report(OwnMalformed(context.path, str(error)))
        return other if _is_signed_and_sound(other, context) else own
    if merged is not own and holes.is_planted(merged):
        return _dropped(context, own, MALFORMED)
    return merged


def _dropped(context: MergeContext, own: Value, reason: str) -> Value:
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
    """Return whether a slot may be replaced by this value, of an owner who is accepted already."""
    return (
        context.owner is not None
        and isinstance(value, Signed)
        and value.verify()
        and not _is_malformed(value)
    )
