"""Laws of the grid at every level: job, collections, venue, plain grid and signed grid."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import permutations

import pytest
from hypothesis import given, settings, strategies as st

from datalattice.apps.grid import (
    ASSETS_LATTICE,
    GRID,
    JOB_LATTICE,
    JOBS_LATTICE,
    META_LATTICE,
    PLAIN_GRID,
    STORAGE_LATTICE,
    VENUE,
    check_foreign,
    sanitise,
)
from datalattice.cells import EMPTY_INDEX, Index, Keyword, Map, Signed, Value, same, to_cell
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.lattice import Lattice, MergeContext, did_of
from datalattice.testing.lattice_kit import (
    check_foreign_merge,
    check_joins_rise,
    check_lattice,
    check_order,
)
from datalattice.testing.strategies import values

KEYS = [KeyPair.generate(SeededEntropy(number)) for number in range(3)]
DIDS = [did_of(key.public_key) for key in KEYS]
TEXTS = ['{"name":"one"}', '{"name":"two"}', '{"name":"three"} ', '{"name":"three"}']
BLOBS = [b"", b"one", b"two" * 3000]
EXAMPLES = settings().max_examples
FEWER = EXAMPLES if EXAMPLES >= 10_000 else EXAMPLES // 4  # signatures take their time
JOB_IDS = [bytes([number]) * 16 for number in range(1, 4)]


def digest(data: str | bytes) -> bytes:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).digest()


TIMES = st.one_of(
    st.integers(-2, 4), st.sampled_from([None, True, "5", 5.0, 2**63, 2**63 - 1, -(2**63)])
)
RECORDS = st.builds(
    lambda status, updated, output: to_cell(
        {"status": status}
        | ({} if updated == 4 else {"updated": updated})
        | ({} if output is None else {"output": output})
    ),
    st.sampled_from(["PENDING", "COMPLETE"]),
    TIMES,
    st.sampled_from([None, 1, {"a": [1]}]),
)
METAS = st.sets(st.sampled_from(TEXTS)).map(lambda some: Index.of({digest(t): t for t in some}))
STORED = st.sets(st.sampled_from(BLOBS)).map(lambda some: Index.of({digest(b): b for b in some}))
ASSET_RECORDS = st.builds(
    lambda text, more: to_cell({"metadata": text, **more}),
    st.sampled_from(TEXTS),
    st.sampled_from([{}, {}, {"more": 1}, {"more": 2}]),
)


def assets_of(records: list[Value]) -> Index:
    made = EMPTY_INDEX
    for record in records:
        assert isinstance(record, Map)
        made = made.put(digest(str(record["metadata"])), record)
    return made


ASSET_INDEXES = st.lists(ASSET_RECORDS, max_size=3).map(assets_of)
JOB_INDEXES = st.dictionaries(st.sampled_from(JOB_IDS), RECORDS, max_size=3).map(Index.of)
VENUES = st.builds(
    lambda assets, jobs, storage: Index.of(
        {Keyword("assets"): assets, Keyword("jobs"): jobs, Keyword("storage"): storage}
    ),
    ASSET_INDEXES,
    JOB_INDEXES,
    STORED,
)


def grid_of(venues: Mapping[str, Value], meta: Value) -> Index:
    return Index.of({Keyword("venues"): Index.of(venues), Keyword("meta"): meta})


PLAIN_GRIDS = st.builds(
    grid_of, st.dictionaries(st.sampled_from([*DIDS[:2], "did:web:a"]), VENUES, max_size=2), METAS
)

LEVELS: dict[str, tuple[Lattice, st.SearchStrategy[Value]]] = {
    "job": (JOB_LATTICE, RECORDS),
    "jobs": (JOBS_LATTICE, JOB_INDEXES),
    "meta": (META_LATTICE, METAS),
    "assets": (ASSETS_LATTICE, ASSET_INDEXES),
    "storage": (STORAGE_LATTICE, STORED),
    "venue": (VENUE, VENUES),
    "plain grid": (PLAIN_GRID, PLAIN_GRIDS),
}

SEVERAL = {level: st.lists(states, min_size=2, max_size=3) for level, (_, states) in LEVELS.items()}


@pytest.mark.parametrize("level", LEVELS)
@given(data=st.data())
def test_every_level_is_a_lattice(level: str, data: st.DataObject) -> None:
    check_lattice(LEVELS[level][0], data.draw(SEVERAL[level]))


@given(st.lists(VENUES, min_size=3, max_size=3))
def test_venues_are_in_a_total_order(venues: list[Value]) -> None:
    some = [*venues, VENUE.merge(venues[0], venues[1])]
    check_order(VENUE, some)
    check_joins_rise(VENUE, some)


@given(st.lists(PLAIN_GRIDS, min_size=3, max_size=3))
def test_any_order_of_merges_gives_one_grid(grids: list[Value]) -> None:
    results = []
    for order in permutations(grids):
        merged: Value = PLAIN_GRID.zero()
        for grid in order:
            merged = PLAIN_GRID.merge(merged, grid)
        results.append(merged)
    assert all(same(result, results[0]) for result in results)


def chain(states: list[Value]) -> list[Value]:
    """Return the states that one writer goes through who takes over each of these."""
    made: list[Value] = []
    state = VENUE.zero()
    for other in states:
        state = VENUE.merge(state, other)
        made.append(state)
    return made


def lean(draw: st.DrawFn, state: Value) -> Value:
    """Return a state of a venue as one may write it who leaves out what is empty."""
    assert isinstance(state, Index)
    for key, part in state.entries():
        if same(part, EMPTY_INDEX) and draw(st.booleans()):
            state = draw(st.sampled_from([state.remove(key), state.put(key, Map.of({}))]))
    return state


@st.composite
def signed_grids(draw: st.DrawFn) -> list[Value]:
    """Grids as nodes have them that hear of two venues, and hold the key of a third."""
    chains = [chain(draw(st.lists(VENUES, min_size=1, max_size=2))) for _ in DIDS[1:]]
    grids: list[Value] = []
    for _ in range(draw(st.integers(2, 3))):
        venues: dict[str, Value] = {}
        if draw(st.booleans()):
            venues[DIDS[0]] = Signed.sign(KEYS[0], draw(VENUES))
        for did, key, states in zip(DIDS[1:], KEYS[1:], chains, strict=True):
            at = draw(st.integers(-1, len(states) - 1))
            if at >= 0:
                venues[did] = Signed.sign(key, lean(draw, states[at]))
        grids.append(grid_of(venues, draw(METAS)))
    return grids


def test_a_signed_state_may_leave_out_what_is_empty_and_no_more() -> None:
    full = VENUE.merge(VENUE.zero(), Index.of({Keyword("storage"): Index.of({digest(b"a"): b"a"})}))
    assert isinstance(full, Index)
    bad = Index.of({Keyword("storage"): Index.of({digest(b"a"): b"a", digest(b"b"): b"c"})})
    empty = grid_of({DIDS[1]: Signed.sign(KEYS[1], VENUE.zero())}, EMPTY_INDEX)
    for state, is_taken in (
        (full.remove(Keyword("jobs")), True),
        (full.put(Keyword("jobs"), Map.of({})), True),
        (full.put(Keyword("jobs"), None), True),
        (bad, False),
        (full.put(Keyword("users"), EMPTY_INDEX), False),
    ):
        grid = grid_of({DIDS[1]: Signed.sign(KEYS[1], state)}, EMPTY_INDEX)
        for own in (GRID.zero(), empty):
            assert same(GRID.merge(own, grid), grid if is_taken else own)


@settings(max_examples=FEWER)
@given(signed_grids())
def test_signed_grids_are_a_lattice_for_their_writers_and_relays(grids: list[Value]) -> None:
    check_lattice(GRID, grids, MergeContext(key_pair=KEYS[0]))


# --- what comes from outside -----------------------------------------------------------------

SPELLINGS = st.sampled_from(
    [
        lambda key: key,
        lambda key: key[:31],
        lambda key: key + b"0",
        lambda key: key.decode("utf-8", "surrogateescape"),
        lambda key: bytes([key[0] ^ 1]) + key[1:],
    ]
)
BAD_VALUES = st.one_of(
    st.sampled_from([None, "x", b"x", 7, {"metadata": TEXTS[0]}, {"status": "PENDING"}]),
    st.sampled_from([{"status": "A", "id": "00"}, {"metadata": 7}, *TEXTS, *BLOBS]),
).map(to_cell)


@st.composite
def spoiled(draw: st.DrawFn, states: st.SearchStrategy[Value]) -> Value:
    """Draw a collection in which some keys or values are not what they should be."""
    state = draw(states)
    assert isinstance(state, Index)
    made = EMPTY_INDEX
    for key, value in state.entries():
        spelled = draw(SPELLINGS)(key)
        made = made.put(spelled, draw(BAD_VALUES) if draw(st.booleans()) else value)
    return made


SPOILED = {
    "jobs": (JOBS_LATTICE, JOB_INDEXES),
    "meta": (META_LATTICE, METAS),
    "assets": (ASSETS_LATTICE, ASSET_INDEXES),
    "storage": (STORAGE_LATTICE, STORED),
}


@pytest.mark.parametrize("level", SPOILED)
@given(data=st.data())
def test_a_bad_entry_never_gets_in_and_never_puts_anything_out(
    level: str, data: st.DataObject
) -> None:
    lattice, states = SPOILED[level]
    own, foreign = data.draw(states), data.draw(spoiled(states))
    check_foreign_merge(lattice, own, foreign)
    merged = lattice.merge(own, foreign)
    assert check_foreign(merged, lattice)
    assert isinstance(own, Index)
    assert isinstance(merged, Index)
    assert all(merged.key_cell(key) == key for key, _ in own.entries())
    clean, rejected = sanitise(foreign, lattice)
    assert same(lattice.merge(own, clean), merged)
    assert isinstance(foreign, Index)
    assert isinstance(clean, Index)
    assert len(clean) + len(rejected) == len(foreign)


VENUE_STATE = VENUE.merge(
    VENUE.zero(),
    Index.of({Keyword("jobs"): Index.of({JOB_IDS[0]: {"status": "PENDING"}})}),
)
SOME: dict[str, tuple[Lattice, Value]] = {
    "jobs": (JOBS_LATTICE, Index.of({JOB_IDS[0]: {"status": "PENDING"}})),
    "meta": (META_LATTICE, Index.of({digest(TEXTS[0]): TEXTS[0]})),
    "assets": (ASSETS_LATTICE, Index.of({digest(TEXTS[0]): {"metadata": TEXTS[0]}})),
    "storage": (STORAGE_LATTICE, Index.of({digest(BLOBS[1]): BLOBS[1]})),
    "venue": (VENUE, VENUE_STATE),
    "plain grid": (PLAIN_GRID, grid_of({DIDS[0]: VENUE_STATE}, EMPTY_INDEX)),
    "signed grid": (GRID, grid_of({DIDS[0]: Signed.sign(KEYS[0], VENUE_STATE)}, EMPTY_INDEX)),
}


@given(values(max_leaves=5), st.sampled_from(["", "venues", "jobs", "assets", "storage", "meta"]))
def test_anything_at_all_can_be_merged_in(foreign: Value, part: str) -> None:
    value = Index.of({Keyword(part): foreign}) if part else foreign
    for lattice, own in SOME.values():
        check_foreign_merge(lattice, own, value)
        check_foreign_merge(lattice, None, value)


@given(VENUES, VENUES, st.data())
def test_a_signed_state_with_a_bad_entry_is_refused_as_a_whole(
    first: Value, second: Value, data: st.DataObject
) -> None:
    assert isinstance(second, Index)
    bad = second.put(Keyword("storage"), Index.of({digest("x"): b"y"}))
    own = grid_of({DIDS[1]: Signed.sign(KEYS[1], first)}, EMPTY_INDEX)
    foreign = grid_of({DIDS[1]: Signed.sign(KEYS[1], bad)}, EMPTY_INDEX)
    relay = MergeContext(key_pair=KEYS[0])
    held = data.draw(st.sampled_from([own, GRID.zero()]))
    reports = check_foreign_merge(GRID, held, foreign, relay)
    assert "bad-content" in {report.kind for report in reports}
    assert GRID.merge(held, foreign, relay) is held
