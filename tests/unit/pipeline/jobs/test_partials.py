"""Partials: grouping does not show, whoever holds the key, and whatever the order of forks."""

from __future__ import annotations

import itertools
import pickle
from functools import reduce

import pytest
from hypothesis import given, settings, strategies as st

from datalattice.cells import (
    EMPTY_INDEX,
    Index,
    Keyword,
    Map,
    Signed,
    Value,
    Vector,
    decode_message,
    encode_message,
    value_hash,
)
from datalattice.crypto import KeyPair, KeyRing
from datalattice.lattice import get_in, set_local
from datalattice.pipeline.jobs.partials import (
    Deputy,
    KeyRange,
    OwnerBucket,
    Partial,
    UnitMerger,
    slots_of,
    united,
    with_databases,
)
from datalattice.pipeline.jobs.reduction import Reduction
from datalattice.testing.replicas import ALICE, BOB, CAROL, SampleRoot, merged

WHOLE = OwnerBucket(0, 1)


def in_groups(
    roots: list[Value], sizes: list[int], key: KeyPair | None, unit: OwnerBucket = WHOLE
) -> Value:
    """Merge roots in groups of these sizes, the last having the rest, then what they made."""
    ring = KeyRing() if key is None else KeyRing(key)
    merger = UnitMerger([pair.public_key for pair in ring], ())
    cuts = [0, *itertools.accumulate(sizes), len(roots)]
    made = [
        merger.merge(unit, [merger.take(root, unit) for root in roots[low:high]])
        for low, high in itertools.pairwise(cuts)
        if low < high
    ]
    for one in made:
        # As what was staged comes back: nothing is known of its signatures.
        one.value = merger.resealed(decode_message(encode_message(one.value)))
    return merger.finished(merger.merge(unit, made), ring)


def history(steps: list[tuple[int, int]]) -> list[Value]:
    """Return the roots of replicas of one owner: each step writes to one, perhaps after a merge."""
    start = SampleRoot().set(ALICE, {"k": 0})
    replicas = [start.fork(1_000_000 * (i + 1)) for i in range(4)]
    for number, (target, source) in enumerate(steps):
        if source != target:
            roots = [replicas[target].root, replicas[source].root]
            replicas[target].root = merged(roots, ALICE)
        replicas[target].set(ALICE, {f"k{number % 3}": number})
    return [one.root for one in replicas]


STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6)


@settings(max_examples=40)
@given(STEPS, st.permutations(range(4)), st.lists(st.integers(1, 3), max_size=3), st.booleans())
def test_any_grouping_gives_what_one_process_gives(
    steps: list[tuple[int, int]], order: list[int], sizes: list[int], has_key: bool
) -> None:
    roots = [history(steps)[i] for i in order]
    key = ALICE if has_key else None
    assert value_hash(in_groups(roots, sizes, key)) == value_hash(merged(roots, key))


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
@pytest.mark.parametrize("sizes", [[2], [1], [3], [1, 2], [1, 1, 1]])
def test_which_of_concurrent_values_stays_depends_on_their_order_alone(
    order: tuple[int, ...], sizes: list[int]
) -> None:
    """Two concurrent values, and one after each of them."""
    start = SampleRoot().set(ALICE, {"k": 0})
    one = start.fork(10_000).set(ALICE, {"a": 1})
    two = start.fork(20_000).set(ALICE, {"b": 2})
    four = [one, two, one.fork(30_000).set(ALICE, {"a": 3}), two.fork(40_000).set(ALICE, {"b": 4})]
    roots = [four[i].root for i in order]
    assert value_hash(in_groups(roots, sizes, None)) == value_hash(merged(roots))


def test_the_shares_of_a_root_have_nothing_in_common_and_are_all_of_it() -> None:
    root = (
        SampleRoot().set(ALICE, {"a": 1}).set(BOB, {"b": 1}).offer(CAROL, [1]).offer(BOB, [2]).root
    )
    shares = [in_groups([root], [], None, OwnerBucket(number, 5)) for number in range(5)]
    found = [path for share in shares for path, _ in slots_of(share)]
    assert len(found) == 4
    assert value_hash(united(shares)) == value_hash(root)


def test_what_is_private_is_in_no_share() -> None:
    root = set_local(SampleRoot().set(ALICE, {"a": 1}).root, ALICE, 1)
    assert get_in(in_groups([root], [], None), [Keyword("local")]) is None


def test_the_deputy_has_no_secret_and_its_signature_is_none() -> None:
    deputy = Deputy(ALICE.public_key)
    assert not Signed(deputy.public_key, deputy.sign(b"x"), 1).verify()
    assert pickle.loads(pickle.dumps(deputy)).public_key == ALICE.public_key
    assert ALICE.seed not in pickle.dumps(deputy)
    assert not hasattr(deputy, "_secret")


def test_a_forged_value_with_the_signature_of_a_deputy_is_not_taken() -> None:
    honest = SampleRoot().set(BOB, {"b": 1}).root
    forged = Signed(ALICE.public_key, bytes(64), get_in(honest, []))
    bad = SampleRoot(honest).root
    assert isinstance(bad, Index)
    section = bad.get(Keyword("kv"))
    assert isinstance(section, Map)
    hostile = bad.put(Keyword("kv"), section.put(ALICE.public_key, forged))
    assert value_hash(in_groups([hostile, honest], [1], ALICE)) == value_hash(honest)


SLOT = (Keyword("kv"), ALICE.public_key)


def ranges(*bounds: bytes) -> list[KeyRange]:
    return [
        KeyRange(SLOT, "main", low, high) for low, high in itertools.pairwise([None, *bounds, None])
    ]


def by_ranges(roots: list[Value], found: list[KeyRange]) -> Value:
    merger = UnitMerger([ALICE.public_key], found)
    rest = merger.merge(WHOLE, [merger.take(root, WHOLE) for root in roots])
    parts = [merger.merge(one, [merger.take(root, one) for root in roots]) for one in found]
    entries = [part.value for part in parts if isinstance(part.value, Index)]
    index = reduce(lambda made, one: made.put_many(one.entries()), entries, EMPTY_INDEX)
    whole = merger.finished(rest, KeyRing(ALICE))
    databases: dict[Value, Index] = {"main": index} if entries else {}
    return with_databases(whole, SLOT, databases, rest.seals.get(SLOT, ()), KeyRing(ALICE))


@pytest.mark.parametrize("bounds", [(), (b"k1",), (b"k0", b"k2", b"k2x"), (b"zzz",)])
def test_ranges_of_keys_give_the_same_signed_value(bounds: tuple[bytes, ...]) -> None:
    roots = history([(0, 0), (1, 1), (2, 0), (3, 3)])
    wanted = merged(roots, ALICE)
    assert value_hash(by_ranges(roots, ranges(*bounds))) == value_hash(wanted)


def test_an_input_without_the_database_or_with_a_bad_signature_adds_nothing_to_its_ranges() -> None:
    roots = history([(0, 0)])[:2]
    bad = Signed(ALICE.public_key, bytes(64), get_in(roots[0], [*SLOT, Keyword("value")]))
    hostile = Index({Keyword("kv"): SampleRoot().set(BOB, {"x": 1}).root.get(Keyword("kv"))})  # type: ignore[attr-defined]
    section = hostile.get(Keyword("kv"))
    hostile = hostile.put(Keyword("kv"), section.put(ALICE.public_key, bad))  # type: ignore[attr-defined]
    other = SampleRoot().set(CAROL, {"y": 1}).root
    chosen = [hostile, roots[0], other, roots[1]]
    assert value_hash(by_ranges(chosen, ranges(b"k1"))) == value_hash(merged(chosen, ALICE))


def test_units_and_what_tasks_know_travel_as_what_they_are() -> None:
    units: list[OwnerBucket | KeyRange] = [OwnerBucket(3, 7), *ranges(b"a", b"\xff")]
    known = Reduction("staging", "base", (ALICE.public_key,), tuple(units))
    assert pickle.loads(pickle.dumps(known)) == known
    assert list(known.ranges) == units[1:]
    assert ALICE.seed not in pickle.dumps(known)


def test_a_range_that_nobody_has_is_nothing() -> None:
    merger = UnitMerger([ALICE.public_key], ranges())
    root = SampleRoot().set(BOB, {"x": 1}).root
    made = merger.merge(ranges()[0], [merger.take(root, ranges()[0]), Partial(None)])
    assert made.value is None
    assert merger.take(Vector.of([1]), ranges()[0]).value is None
