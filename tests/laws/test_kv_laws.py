"""Laws of the database: merges of all states that writers make or peers may send, and a model."""

from __future__ import annotations

from contextlib import suppress
from itertools import permutations
from typing import Any

from hypothesis import example, given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from datalattice.apps.kv import Batch, Database, KVEntryLattice, KVStoreLattice
from datalattice.cells import (
    EMPTY_INDEX,
    Index,
    Value,
    Vector,
    same,
    to_cell,
    to_python,
    value_hash,
)
from datalattice.crypto import SeededEntropy
from datalattice.errors import WrongType
from datalattice.lattice import (
    EntryDropped,
    ExactKeys,
    Lattice,
    MergeContext,
    MergeNotice,
    WriteSuperseded,
    key_of,
    named,
)
from datalattice.store import CellStore
from datalattice.testing.clocks import StoppedClock
from datalattice.testing.disk import SimDisk
from datalattice.testing.lattice_kit import check_joins_rise, check_order

ENTRY = KVEntryLattice()
STORE = KVStoreLattice()

TIMES = st.integers(0, 9)
EXPIRIES = st.sampled_from([None, None, 3, 7])
LEAVES = st.sampled_from([None, 0, 1, 1.0, True, "x"])


# --- entries that peers may send ----------------------------------------------------------------


@st.composite
def hashes(draw: st.DrawFn) -> Index:
    fields = draw(st.dictionaries(st.sampled_from("abc"), st.tuples(LEAVES, TIMES), max_size=3))
    return Index.of([(name, Vector.of(pair)) for name, pair in fields.items()])


@st.composite
def sets(draw: st.DrawFn) -> Index:
    rows = draw(st.dictionaries(st.sampled_from("xyz"), st.tuples(TIMES, TIMES), max_size=3))
    return Index.of([(value_hash(m), Vector.of((m, *times))) for m, times in rows.items()])


@st.composite
def zsets(draw: st.DrawFn) -> Index:
    scores = st.sampled_from([0.0, -0.0, 1.5, -2.0])
    members = st.sampled_from("xyz")
    rows = draw(st.dictionaries(members, st.tuples(scores, TIMES, TIMES), max_size=3))
    return Index.of([(value_hash(m), Vector.of((m, *row))) for m, row in rows.items()])


@st.composite
def counters(draw: st.DrawFn) -> Index:
    rows = draw(st.dictionaries(st.sampled_from("rs"), st.tuples(TIMES, TIMES), max_size=2))
    return Index.of([(name, Vector.of(row)) for name, row in rows.items()])


@st.composite
def entries(draw: st.DrawFn) -> Vector:
    """Return an entry as our writers, the reference or a strange peer may have made it."""
    tag = draw(st.sampled_from([None, 0, 4, 6, 1, 1, 2, 2, 3, 5]))
    utime, expire = draw(TIMES), draw(EXPIRIES)
    parts: dict[int, st.SearchStrategy[Index]] = {1: hashes(), 2: sets(), 3: zsets(), 5: counters()}
    if tag not in parts:
        value = to_cell(draw(st.one_of(LEAVES, st.just([1, 2]))))
        more = draw(st.sampled_from([(), (), (None,), (2,)]))
        return Vector.of((None if tag is None else value, tag, utime, expire, *more))
    index: Value = draw(parts[tag])
    if not index and draw(st.booleans()):
        index = None
    base = draw(st.one_of(st.none(), st.integers(0, utime - 1))) if utime else None
    fifth = () if base is None and draw(st.booleans()) else (base,)
    return Vector.of((index, tag, utime, expire, *fifth))


def assert_join(lattice: Lattice, values: list[Value]) -> None:
    """Assert that every order of merges gives one value, and the same object where none changes."""
    expected: Value = None
    for order in permutations(values):
        left: Value = lattice.zero()
        for value in order:
            left = lattice.merge(left, value)
        right: Value = lattice.zero()
        for value in reversed(order):
            right = lattice.merge(value, right)
        expected = left if expected is None else expected
        assert same(left, expected)
        assert same(right, expected)
    for value in [*values, lattice.zero(), expected]:
        assert lattice.check_foreign(value)
        assert lattice.merge(expected, value) is expected
        assert same(lattice.merge(value, expected), expected)
        assert lattice.merge(value, value) is value
        assert lattice.merge(None, value) is value
        assert lattice.merge(value, None) is value


@settings(max_examples=settings().max_examples * 2)
@given(st.lists(entries(), min_size=2, max_size=3))
def test_entries_of_any_kind_join_in_any_order(values: list[Value]) -> None:
    assert_join(ENTRY, values)


def hash_of(name: str, time: int) -> Vector:
    """Return an entry with one field, written at a time."""
    return Vector.of((Index.of([(name, Vector.of((0, time)))]), 1, time, None))


@given(entries(), entries(), entries())
@example(hash_of("a", 5), Vector.of(("x", 0, 3, None)), hash_of("b", 1))
def test_entries_join_in_any_grouping(a: Value, b: Value, c: Value) -> None:
    left = ENTRY.merge(ENTRY.merge(a, b), c)
    right = ENTRY.merge(a, ENTRY.merge(b, c))
    assert same(left, right)


@given(
    st.lists(st.dictionaries(st.sampled_from("kl"), entries(), max_size=2), min_size=3, max_size=3)
)
def test_stores_join_in_any_order(stores: list[dict[str, Vector]]) -> None:
    assert_join(STORE, [Index.of(store) for store in stores])


@given(st.lists(entries(), min_size=3, max_size=4))
def test_entries_are_in_a_total_order(values: list[Value]) -> None:
    some = [*values, ENTRY.merge(values[0], values[1])]
    check_order(ENTRY, some)
    check_joins_rise(ENTRY, some)


@given(
    st.lists(st.dictionaries(st.sampled_from("kl"), entries(), max_size=2), min_size=3, max_size=3)
)
def test_stores_are_in_a_total_order(stores: list[dict[str, Vector]]) -> None:
    some = [Index.of(store) for store in stores]
    check_order(STORE, some)
    check_joins_rise(STORE, some)


LONG = "k" * 32
LONG_KEYS = st.sampled_from(
    [LONG, LONG + "a", LONG + "b", b"k" * 32, "k" * 31, key_of(LONG + "a"), key_of(LONG + "b")]
)


@given(st.lists(st.dictionaries(LONG_KEYS, entries(), max_size=3), min_size=3, max_size=3))
def test_stores_with_keys_that_share_32_bytes_join_in_any_order(
    stores: list[dict[str | bytes, Vector]],
) -> None:
    assert_join(STORE, [Index.of(store) for store in stores])


@given(st.dictionaries(LONG_KEYS, entries(), max_size=4))
def test_names_read_together_are_those_read_one_by_one(store: dict[str | bytes, Vector]) -> None:
    names = [LONG, LONG + "a", LONG + "b", "k" * 31, "k", LONG]
    keys, index = ExactKeys(lambda own, _other: own, texts=True), Index.of(store)
    assert keys.get_many(index, names) == [keys.get(index, name) for name in names]
    keys = ExactKeys(lambda own, _other: own, texts=False)
    assert keys.get_many(index, names) == [keys.get(index, name) for name in names]


@given(st.lists(st.dictionaries(LONG_KEYS, st.tuples(LEAVES, TIMES), max_size=3), max_size=3))
def test_fields_that_share_32_bytes_join_in_any_order(
    hashes: list[dict[str | bytes, tuple[object, int]]],
) -> None:
    indexes = [Index.of([(k, Vector.of(pair)) for k, pair in one.items()]) for one in hashes]
    assert_join(ENTRY, [Vector.of((index, 1, 9, None)) for index in indexes])


@given(
    st.sampled_from([2, 3]),
    st.booleans(),
    st.binary(max_size=2),
    TIMES,
    st.one_of(st.none(), st.integers(0, 8)),
)
def test_a_member_under_a_key_that_only_begins_with_its_hash_takes_no_place(
    tag: int, text: bool, more: bytes, time: int, base: int | None
) -> None:
    name = value_hash("m")
    row = ("m", 0) if tag == 2 else ("m", 1.0, 0)
    own = Vector.of((Index.of([(name, Vector.of((*row[:-1], 9, 0)))]), tag, 9, None))
    strange: Value = name + more
    if text:
        strange = name.decode("utf-8", "surrogateescape") + more.decode("latin-1")
    elif not more:
        strange = name + b"x"
    member = Vector.of((*row[:-1], time, 0))
    tail = () if base is None else (base,)
    other = Vector.of((Index.of([(strange, member)]), tag, 9, None, *tail))
    reports: list[MergeNotice] = []
    merged = ENTRY.merge(own, other, MergeContext(report=reports.append))
    assert ENTRY.check_foreign(merged)
    assert same(merged[0], own[0])  # type: ignore[index]
    assert [report for report in reports if isinstance(report, EntryDropped)] == [
        EntryDropped((strange,))
    ]


# --- the rules, spelled out without any short cut -------------------------------------------------


def _plain(entry: Any) -> Any:
    """Return (tag, members, utime, expire, base) of a structure, None for a register."""
    assert isinstance(entry, Vector)
    tag = entry[1]
    if tag not in (1, 2, 3, 5) or type(tag) is not int:
        return None
    members = dict(entry[0].entries()) if isinstance(entry[0], Index) else {}
    base = entry[4] if len(entry) > 4 and entry[4] is not None else -1
    return tag, members, entry[2], entry[3], base


def _times(tag: int, member: Any) -> Any:
    return {1: member[1:2], 2: member[1:3], 3: member[2:4], 5: ()}[tag]


def _time(entry: Any) -> Any:
    parts = _plain(entry)
    inner = [] if parts is None else [t for m in parts[1].values() for t in _times(parts[0], m)]
    return max([entry[2], *inner])


def _cut(tag: int, members: dict[Value, Any], base: int, at: int) -> dict[Value, Any]:
    if at < 0:
        return members
    if tag == 5:
        return {} if at > base else members
    left: dict[Value, Any] = {}
    for key, member in members.items():
        row = list(member)
        if tag == 1:
            if row[1] > at:
                left[key] = member
            continue
        add, remove = (t if t > at else 0 for t in row[-2:])
        if tag == 3 and not add:
            row[1] = 0.0
        if add or remove:
            left[key] = Vector.of((*row[:-2], add, remove))
    return left


def _joined(tag: int, a: Any, b: Any) -> Any:
    if tag == 1:
        return max(a, b, key=lambda m: (m[1], value_hash(m)))
    if tag == 5:
        return Vector.of((max(a[0], b[0]), max(a[1], b[1])))
    add, remove = max(a[-2], b[-2]), max(a[-1], b[-1])
    if tag == 2:
        return Vector.of((a[0], add, remove))
    scored = max(a, b, key=lambda m: (m[2], value_hash(Vector.of((m[0], m[1])))))
    return Vector.of((a[0], scored[1], add, remove))


def model_merge(a: Any, b: Any) -> Any:
    """Return the join by the letter of the rules: everything walked, nothing remembered."""
    zero = Vector.of((None, None, 0, None))
    if same(a, b) or same(b, zero):
        return a
    if same(a, zero):
        return b
    left, right = _plain(a), _plain(b)
    if left is None and right is None:
        return max(a, b, key=lambda e: (e[2], value_hash(e)))
    if left is not None and right is not None and left[0] == right[0]:
        tag, base = left[0], max(left[4], right[4])
        members = _cut(tag, left[1], left[4], base)
        for key, member in _cut(tag, right[1], right[4], base).items():
            held = members.get(key)
            members = {**members, key: member if held is None else _joined(tag, held, member)}
        if _time(a) != _time(b):
            expire = (left if _time(a) > _time(b) else right)[3]
        else:
            both = None not in (left[3], right[3])
            expire = max(left[3], right[3]) if both else None
        tail = (base,) if base >= 0 else ()
        return Vector.of((Index.of(members), tag, max(_time(a), _time(b)), expire, *tail))

    def rank(entry: Any) -> tuple[int, int]:
        parts = _plain(entry)
        return _time(entry), 9 if parts is None else parts[0]

    winner, loser = (a, b) if rank(a) > rank(b) else (b, a)
    parts = _plain(winner)
    if parts is None:
        return winner
    tag, members, _utime, expire, base = parts
    past = _time(loser) if rank(loser)[1] > tag else _time(loser) - 1
    at = max(base, past)
    tail = (at,) if at >= 0 else ()
    index = Index.of(_cut(tag, members, base, at))
    return Vector.of((index, tag, _time(winner), expire, *tail))


@settings(max_examples=settings().max_examples * 2)
@given(entries(), entries())
def test_a_merge_is_what_the_rules_say_letter_by_letter(a: Vector, b: Vector) -> None:
    assert same(ENTRY.merge(a, b), model_merge(a, b))


def test_times_of_large_structures_are_remembered_and_right() -> None:
    fields = [(f"f{i}", Vector.of((i, 10 + i))) for i in range(300)]
    old = Vector.of((Index.of(fields), 1, 5, None))  # the reference's style: utime below the fields
    new = Vector.of((Index.of([("g", Vector.of((1, 400)))]), 1, 400, 900, 150))
    tomb = Vector.of((None, None, 200, None))
    for a, b, c in permutations([old, new, tomb]):
        merged = ENTRY.merge(ENTRY.merge(a, b), c)
        again = ENTRY.merge(a, ENTRY.merge(b, c))
        assert same(merged, again)
        assert same(merged, model_merge(model_merge(a, b), c))


# --- states that our own writers make -------------------------------------------------------------

KEYS = st.sampled_from([LONG + "k", LONG + "l"])
SPANS = st.none() | st.integers(1, 6).map(lambda ms: ms / 1_000)
OPERATIONS = st.one_of(
    st.tuples(st.just("set"), KEYS, LEAVES, SPANS),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("expire"), KEYS, SPANS.filter(bool)),
    st.tuples(st.just("persist"), KEYS),
    st.tuples(st.just("hset"), KEYS, st.sampled_from("ab"), LEAVES),
    st.tuples(st.just("hdel"), KEYS, st.sampled_from("ab")),
    st.tuples(st.just("sadd"), KEYS, st.sampled_from("xy")),
    st.tuples(st.just("srem"), KEYS, st.sampled_from("xy")),
    st.tuples(st.just("zadd"), KEYS, st.sampled_from([0.0, 1.5]), st.sampled_from("xy")),
    st.tuples(st.just("zrem"), KEYS, st.sampled_from("xy")),
    st.tuples(st.just("rpush"), KEYS, st.integers(0, 3)),
    st.tuples(st.just("lpop"), KEYS),
    st.tuples(st.just("incr"), KEYS, st.integers(-3, 3)),
    st.tuples(st.just("gc"), st.integers(0, 3).map(lambda ms: ms / 1_000)),
    st.tuples(st.just("clear")),
)


def perform(database: Database | Batch, operation: tuple[object, ...]) -> None:
    name, *arguments = operation
    with suppress(WrongType):
        getattr(database, str(name))(*arguments)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(-1, 3), OPERATIONS, st.integers(0, 5)),
        max_size=14,
    )
)
def test_what_writers_make_joins_in_any_order(
    steps: list[tuple[int, int, tuple[object, ...], int]],
) -> None:
    clock = StoppedClock(1)
    databases = [Database.create(replica=name, clock=clock) for name in "abc"]
    for who, advance, operation, partner in steps:
        clock.now = max(1, clock.now + advance)
        database = databases[who]
        perform(database, operation)
        for _key, stored in database.store().entries():
            assert ENTRY.check_foreign(stored)
        if partner < len(databases) and partner != who:
            database.merge(databases[partner])
    assert_join(STORE, [database.store() for database in databases])
    for database in databases:
        for other in databases:
            database.merge(other)
    databases[0].merge(databases[2])
    databases[1].merge(databases[2])
    assert same(databases[0].store(), databases[1].store())
    assert same(databases[0].store(), databases[2].store())


@given(st.lists(OPERATIONS, min_size=1, max_size=8), st.lists(OPERATIONS, max_size=8))
def test_a_fork_s_edits_win_over_what_it_saw(
    before: list[tuple[object, ...]], after: list[tuple[object, ...]]
) -> None:
    database = Database.create(clock=StoppedClock(3))
    for operation in before:
        perform(database, operation)
    fork = database.fork()
    for operation in after:
        perform(fork, operation)
    mine = fork.store()
    # A clean-up forgets, and a merge with what was forgotten brings it back: not asked for here.
    if not any(operation[0] == "gc" for operation in after):
        assert same(STORE.merge(database.store(), mine), mine)


# --- bad entries ----------------------------------------------------------------------------------

JUNK = st.sampled_from(
    [
        None,
        5,
        Vector.of(()),
        Vector.of((1, 0, None, None)),
        Vector.of((1, 0, -1, None)),
        Vector.of((1, 0, 2**63, None)),
        Vector.of((Vector.of((1,)), 1, 5, None)),
        Vector.of((EMPTY_INDEX, 2, 5, "soon")),
        Vector.of((EMPTY_INDEX, 3, 5, None, 5)),
        Vector.of((EMPTY_INDEX, 5, 5, None, -1)),
    ]
)
BAD_MEMBERS = st.sampled_from(
    [None, 7, Vector.of(()), Vector.of((1, -1)), Vector.of((1, 2, 3, 4, 5)), Vector.of((1, None))]
)


@given(entries(), JUNK)
def test_what_is_no_entry_is_dropped_and_reported(own: Value, junk: Value) -> None:
    reports: list[MergeNotice] = []
    context = MergeContext(report=reports.append)
    store = Index.of({"k": own})
    other = Index.of({"k": junk, "new": junk})
    assert STORE.merge(store, other, context) is store or junk is None
    if junk is not None:
        assert reports == [EntryDropped(("k",)), EntryDropped(("new",))]


@given(st.sampled_from([1, 2, 3, 5]), BAD_MEMBERS, entries(), TIMES)
def test_bad_members_are_dropped_one_by_one(tag: int, bad: Value, own: Vector, utime: int) -> None:
    good = {
        1: ("good", Vector.of((1, 9))),
        2: (value_hash("good"), Vector.of(("good", 9, 0))),
        3: (value_hash("good"), Vector.of(("good", 1.0, 9, 0))),
        5: ("good", Vector.of((1, 0))),
    }[tag]
    sound = Vector.of((Index.of([good]), tag, utime, None))
    spoiled = Vector.of((Index.of([good, ("bad", bad)]), tag, utime, None))
    assert not ENTRY.check_foreign(spoiled)
    reports: list[MergeNotice] = []
    context = MergeContext(path=("k",), report=reports.append)
    assert same(ENTRY.merge(None, spoiled, context), sound)
    assert reports == [EntryDropped(("k", "bad"))]
    assert same(ENTRY.merge(own, spoiled), ENTRY.merge(own, sound))
    # A signed value keeps what its owner wrote: readers and writers go on without the bad member.
    database = Database.create(clock=StoppedClock(5))
    database.cursor.set(Index.of({"k": spoiled}))
    assert to_python(database.hgetall("k")) == {"good": 1} if tag == 1 else "k" in database
    database.cursor.merge(Index.of({"k": own}))
    assert database.delete("k") in (True, False)


@given(entries(), entries())
def test_reports_change_nothing_and_name_what_is_lost(a: Vector, b: Vector) -> None:
    reports: list[MergeNotice] = []
    told = ENTRY.merge(a, b, MergeContext(path=("k",), report=reports.append))
    assert same(told, ENTRY.merge(a, b))
    for report in reports:
        assert isinstance(report, WriteSuperseded)
        assert report.path[0] == "k"
    if same(told, a) and same(told, b):
        assert reports == []


# --- a model: dicts with stamps -------------------------------------------------------------------

Model = dict[str, Any]
REPLICA = "r"


def _seen(entry: Any, now: int) -> str:
    """Return absent, dead, empty or live: how a writer at `now` finds an entry."""
    if entry is None:
        return "absent"
    if entry[3] is not None and now >= entry[3]:
        return "dead"
    parts = _plain(entry)
    if parts is not None:
        return "live" if parts[1] else "empty"
    return "dead" if entry[0] is None and entry[1] is None else "live"


def _replace(entry: Any, now: int) -> int:
    return now if entry is None else max(now, _time(entry) + 1)


def model_structure(
    model: Model, key: str, tag: int, now: int, change: str, name: str, given: Any
) -> None:
    """Write one member of a structure by the table of writes."""
    entry = model.get(key)
    seen = _seen(entry, now)
    members: dict[Value, Any] = {}
    utime, expire, base = 0, None, -1
    if entry is not None and seen == "live" and entry[1] != tag:
        return  # another type: refused
    if entry is not None and seen in ("live", "empty") and entry[1] == tag:
        parts = _plain(entry)
        assert parts is not None
        _tag, members, utime, expire, base = parts
    elif entry is not None:
        late = entry[3] if entry[3] is not None and now >= entry[3] else -1
        base = max(_time(entry), late)
    stamp = max(now, base + 1)
    place: Value = name if tag in (1, 5) else value_hash(name)
    old = members.get(place)
    row = None if old is None else list(old)
    if change == "hset":
        stamp = stamp if row is None else max(stamp, row[1] + 1)
        row = [given, stamp]
    elif change == "hdel":
        if row is None or row[0] is None:
            return
        stamp = max(stamp, row[1] + 1)
        row = [None, stamp]
    elif change == "sadd":
        stamp = stamp if row is None else max(stamp, row[1], row[2] + 1)
        row = [name, stamp, 0 if row is None else row[2]]
    elif change == "zadd":
        if row is not None:
            stays = same(row[1], given)
            stamp = max(stamp, row[2] if stays else row[2] + 1, row[3] + 1)
        row = [name, given, stamp, 0 if row is None else row[3]]
    elif change in ("srem", "zrem"):
        if row is None or row[-2] <= row[-1]:
            return
        stamp = max(stamp, row[-2])
        row = [*row[:-1], stamp]
    else:
        assert isinstance(given, int)
        row = row or [0, 0]
        row = [row[0] + max(given, 0), row[1] + max(-given, 0)]
    if old is not None and same(Vector.of(row), old) and change != "incr":
        return
    tail = (base,) if base >= 0 else ()
    index = Index.of({**members, place: Vector.of(row)})
    model[key] = Vector.of((index, tag, max(utime, stamp), expire, *tail))


def model_write(model: Model, operation: tuple[Any, ...], now: int) -> None:
    """Write into the model what the operation writes into a database."""
    name, *arguments = operation
    if name == "clear":
        for key in list(model):
            model_write(model, ("delete", key), now)
        return
    if name == "gc":
        for key, entry in list(model.items()):
            due = entry[3] if entry[3] is not None and now >= entry[3] else -1
            age = max(now - max(entry[2], due), 0)
            if _seen(entry, now) in ("dead", "empty") and age >= round(arguments[0] * 1_000):
                del model[key]
        return
    key = str(arguments[0])
    entry, seen = model.get(key), _seen(model.get(key), now)
    stamp = _replace(entry, now)
    if name == "set":
        due = None if arguments[2] is None else now + round(arguments[2] * 1_000)
        model[key] = Vector.of((arguments[1], 0, stamp, due))
    elif name == "delete":
        if seen == "live":
            model[key] = Vector.of((None, None, stamp, None))
    elif name in ("expire", "persist"):
        if entry is not None and seen == "live" and (name == "expire" or entry[3] is not None):
            due = now + round(arguments[1] * 1_000) if name == "expire" else None
            parts = _plain(entry)
            tail = (parts[4],) if parts is not None and parts[4] >= 0 else ()
            model[key] = Vector.of((entry[0], entry[1], stamp, due, *tail))
    elif name in ("rpush", "lpop"):
        held = list(entry[0]) if entry is not None and seen == "live" and entry[1] == 4 else []
        if (entry is None or seen != "live" or entry[1] == 4) and (name == "rpush" or held):
            items = [*held, arguments[1]] if name == "rpush" else held[1:]
            due = entry[3] if entry is not None and seen == "live" else None
            model[key] = Vector.of((Vector.of(items), 4, stamp, due))
    else:
        tag = {"h": 1, "s": 2, "z": 3, "i": 5}[str(name)[0]]
        given: Any = None
        member = REPLICA if tag == 5 else str(arguments[-1])
        if name == "hset":
            member, given = str(arguments[1]), arguments[2]
        elif name in ("zadd", "incr"):
            given = arguments[1]
        model_structure(model, key, tag, now, str(name), member, given)


class DatabaseMachine(RuleBasedStateMachine):
    """A database and its forks against dicts with stamps, over a store that is opened again."""

    @initialize()
    def begin(self) -> None:
        self.clock = StoppedClock(1)
        self.disk = SimDisk(1)
        self.store = CellStore.open("store", disk=self.disk, entropy=SeededEntropy(1))
        self.main = Database.create(replica=REPLICA, clock=self.clock)
        self.forks: list[tuple[Database, Model, Vector | Index]] = []
        self.model: Model = {}

    def side(self, who: int) -> tuple[Database, Model]:
        if who >= len(self.forks):
            return self.main, self.model
        return self.forks[who][0], self.forks[who][1]

    @rule(who=st.integers(0, 3), operation=OPERATIONS)
    def write(self, who: int, operation: tuple[Any, ...]) -> None:
        database, model = self.side(who)
        perform(database, operation)
        model_write(model, operation, self.clock.now)

    @rule(advance=st.integers(-1, 4))
    def tick(self, advance: int) -> None:
        self.clock.now = max(1, self.clock.now + advance)

    @rule()
    def fork(self) -> None:
        if len(self.forks) < 2:
            fork = self.main.fork()
            self.forks.append((fork, dict(self.model), fork.store()))

    @rule(who=st.integers(0, 1))
    def sync(self, who: int) -> None:
        if who >= len(self.forks):
            return
        fork, model, seen = self.forks[who]
        if same(self.main.store(), seen):
            # Nobody wrote to the parent: it takes over what the fork has, what gc forgot included.
            self.model = dict(model)
        else:
            self.model = joined_models(model, self.model)
        fork.sync()
        self.forks[who] = (fork, dict(self.model), self.main.store())

    @rule(who=st.integers(0, 1))
    def merge(self, who: int) -> None:
        if who < len(self.forks):
            self.main.merge(self.forks[who][0])
            self.model = joined_models(self.model, self.forks[who][1])

    @rule(operations=st.lists(OPERATIONS, max_size=4))
    def batch(self, operations: list[tuple[Any, ...]]) -> None:
        with self.main.batch() as batch:
            for operation in operations:
                perform(batch, operation)
                model_write(self.model, operation, self.clock.now)

    @rule(power_failure=st.booleans())
    def reopen(self, power_failure: bool) -> None:
        self.store.commit(self.main.store())
        self.store.close()
        self.disk.restart(power_failure=power_failure)
        self.store = CellStore.open("store", disk=self.disk, entropy=SeededEntropy(1))
        held = self.store.root()
        self.forks.clear()
        self.main = Database.create(replica=REPLICA, clock=self.clock)
        self.main.cursor.set(held)

    @invariant()
    def equal(self) -> None:
        for who in range(len(self.forks) + 1):
            database, model = self.side(who if who < len(self.forks) else 9)
            assert same(database.store(), named(model.items()))
            live = [key for key in model if _seen(model[key], self.clock.now) == "live"]
            assert sorted(database) == sorted(live)  # longer keys come by their hashes

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


def joined_models(own: Model, other: Model) -> Model:
    """Return the join of two models by the letter of the rules."""
    joined = {**other, **own}
    for key in own.keys() & other.keys():
        merged = model_merge(own[key], other[key])
        assert isinstance(merged, Vector)
        joined[key] = merged
    return joined


TestDatabase = DatabaseMachine.TestCase
TestDatabase.settings = settings(stateful_step_count=30)
