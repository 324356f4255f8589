"""Lattice kit: the laws of every lattice type, checked on given values.

Run `check_lattice` on states that a type's own writers produce, and on foreign states without their
bad entries; `check_foreign_merge` on any foreign state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

from datalattice.cells import Value, decode_message, encode_message, same, to_text
from datalattice.lattice import (
    EMPTY_CONTEXT,
    Lattice,
    MergeContext,
    MergeNotice,
    Walk,
    get_in,
    to_json_key,
    verdict,
)


def check_lattice(
    lattice: Lattice,
    values: Sequence[Value],
    context: MergeContext = EMPTY_CONTEXT,
    *,
    associative: bool = True,
) -> None:
    """Check every law of a lattice on `values` and their pairs, and on triples if `associative`.

    Identity of zero and nil, idempotence, commutativity, absorption, associativity; that a merge
    returns an operand itself when the result equals it, own before other; that nothing is reported.
    """
    reports: list[MergeNotice] = []
    context = observed(context, reports)
    zero = lattice.zero()
    nothing = lattice.merge(None, None, context)  # nil with nil may stay nil
    assert nothing is None or same(nothing, zero), "nil with nil"
    for value in values:
        assert value is not None, "nil is checked with every value"
        _check_one(lattice, value, zero, context)
    copies = [copy_of(value) for value in values]
    for at, own in enumerate(values):
        for position, other in enumerate(values):
            merged = _check_two(lattice, own, other, zero, context)
            # Equal values that share no cell with these: decided by hashes, with the same result.
            apart = lattice.merge(copies[at], copies[position], context)
            assert same(apart, merged), _say("sharing matters", own, other, merged, apart)
    if associative:
        for group in permutations(values[:4], 3):  # the number of triples grows with the cube
            _check_three(lattice, group, context)
    assert not reports, f"reported on good values: {reports}"


def check_total_order(lattice: Lattice, values: Sequence[Value]) -> None:
    """Check that one of any two values is the greater, and that there are no cycles."""
    assert lattice.has_order()
    ranks: dict[tuple[int, int], int] = {}  # every pair is asked once
    for at, own in enumerate(values):
        for position, other in enumerate(values):
            # The reverse, with copies: identity must not decide.
            found = verdict(lattice.latest(own, other, Walk()))
            back = verdict(lattice.latest(copy_of(other), copy_of(own), Walk()))
            assert found == -back, _say("both are the greater", own, other)
            assert found == 0 or not same(own, other), _say("unlike itself", own)
            ranks[at, position] = found
    for a, b, c in permutations(range(len(values)), 3):
        if ranks[a, b] >= 0 and ranks[b, c] >= 0:
            # Transitive: no cycle of three.
            assert ranks[a, c] >= 0, _say("a cycle", values[a], values[b], values[c])
            strict = ranks[a, b] > 0 or ranks[b, c] > 0
            assert not strict or ranks[a, c] > 0, _say("a tie", values[a], values[b], values[c])


def check_order(lattice: Lattice, values: Sequence[Value]) -> None:
    """Check the order of forked values: it is total, and a value that covers another is greater.

    Values may be malformed inside: one covers another if their join, from both sides, is itself.
    """
    check_total_order(lattice, values)
    for own in values:
        for other in values:
            joined = lattice.merge(own, other)
            # Covers: the join is own, from both sides.
            if same(joined, own) and same(lattice.merge(other, own), own):
                found = verdict(lattice.latest(own, other, Walk()))
                assert found >= 0, _say("covers, and is the lesser", own, other)


def check_joins_rise(lattice: Lattice, values: Sequence[Value]) -> None:
    """Check that the join of two sound values is as great as each, and greater where it adds."""
    for own in values:
        for other in values:
            joined = lattice.merge(own, other)
            found = verdict(lattice.latest(joined, own, Walk()))
            # A join that is less would lose against its parts.
            assert found >= 0, _say("the join is the lesser", own, other, joined)


def check_paths(
    lattice: Lattice, own: Value, other: Value, paths: Iterable[Sequence[Value]]
) -> None:
    """Check that at each of `paths` the children's join is what the join has there."""
    merged = lattice.merge(own, other)
    for path in paths:
        child = lattice.path(*path)
        assert child is not None, f"no lattice at {path!r}"
        joined = child.merge(get_in(own, path), get_in(other, path))
        assert same(joined, get_in(merged, path)), f"the join at {path!r}"
        # A key that JSON cannot name is out of reach of REST.
        outside = lattice.resolve_key(to_json_key(path[0]))
        assert lattice.child(outside) is not None, f"{path[0]!r} is lost in JSON"


def check_foreign_merge(
    lattice: Lattice, own: Value, foreign: Value, context: MergeContext = EMPTY_CONTEXT
) -> list[MergeNotice]:
    """Check that any value at all can be merged in, and that a second time changes nothing.

    Returns what was reported the first time.
    """
    reports: list[MergeNotice] = []
    context = observed(context, reports)
    merged = lattice.merge(own, foreign, context)
    first = list(reports)
    # A second time changes nothing, and returns the very value.
    assert lattice.merge(merged, foreign, context) is merged, _say("again", merged, foreign)
    if own is not None:
        assert lattice.merge(merged, own, context) is merged, _say("own again", merged, own)
    return first


def observed(context: MergeContext, reports: list[MergeNotice]) -> MergeContext:
    """Return the context with its reports going to a list."""
    return context.reporting(reports.append)


def copy_of(value: Value) -> Value:
    """Return an equal value that shares no cell with `value`."""
    return decode_message(encode_message(value))  # through bytes: nothing is shared


def _check_one(lattice: Lattice, value: Value, zero: Value, context: MergeContext) -> None:
    assert lattice.check_foreign(value), _say("refused its own value", value)
    assert same(lattice.merge(zero, value, context), value), _say("zero with", value)
    # The very object: caches and signatures stay.
    assert lattice.merge(value, zero, context) is value, _say("with zero", value)
    assert lattice.merge(value, None, context) is value, _say("with nil", value)
    assert lattice.merge(None, value, context) is value, _say("nil with", value)
    assert lattice.merge(value, value, context) is value, _say("with itself", value)
    assert lattice.merge(value, copy_of(value), context) is value, _say("with its equal", value)


def _check_two(
    lattice: Lattice, own: Value, other: Value, zero: Value, context: MergeContext
) -> Value:
    merged = lattice.merge(own, other, context)
    back = lattice.merge(other, own, context)
    assert same(merged, back), _say("not commutative", own, other, merged, back)
    if same(merged, own):
        assert merged is own, _say("own rebuilt", own, other)
    elif same(merged, other):
        assert merged is other, _say("other rebuilt", own, other)
    assert same(lattice.merge(zero, merged, context), merged), _say("zero with", merged)
    assert lattice.merge(merged, zero, context) is merged, _say("with zero", merged)
    for part in (own, other, merged):
        # Absorption: a merge with a part changes nothing.
        assert same(lattice.merge(part, merged, context), merged), _say("absorb", part, merged)
        assert lattice.merge(merged, part, context) is merged, _say("absorbed", merged, part)
    return merged


def _check_three(
    lattice: Lattice, group: tuple[Value, Value, Value], context: MergeContext
) -> None:
    a, b, c = group
    left = lattice.merge(lattice.merge(a, b, context), c, context)
    right = lattice.merge(a, lattice.merge(b, c, context), context)
    assert same(left, right), _say("not associative", a, b, c, left, right)


def _say(what: str, *values: Value) -> str:
    return what + ": " + " / ".join(to_text(value) for value in values)
