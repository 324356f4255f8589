"""Merges of partitions and topics, example by example."""

from __future__ import annotations

from itertools import product

import pytest

from datalattice.apps.queue import QueueLattice, TopicLattice, make_entry, topic_map_lattice
from datalattice.cells import (
    EMPTY_INDEX,
    EMPTY_MAP,
    Address,
    Index,
    Keyword,
    Map,
    Value,
    Vector,
    decode,
    encode,
    novelty,
    same,
    to_cell,
    value_hash,
)
from datalattice.lattice import (
    EntryDropped,
    MergeContext,
    MergeNotice,
    MetadataUnstamped,
    QueueForked,
    root_lattice,
)

QUEUE = QueueLattice()
TOPIC = TopicLattice()
PARTITIONS, META, STAMPS = Keyword("partitions"), Keyword("meta"), Keyword("meta-stamps")


def log(first: int, last: int, name: str = "r") -> Vector:
    return Vector.of([make_entry(None, f"{name}{i}", i) for i in range(first, last)])


def state(
    first: int, last: int, meta: object = None, stamp: int = 0, stamps: object = None
) -> Vector:
    return Vector.of([log(first, last), metadata(meta, stamps), stamp, first])


def metadata(values: object = None, stamps: object = None) -> Map:
    made = to_cell(values or {})
    assert isinstance(made, Map)
    return made if stamps is None else made.put(STAMPS, to_cell(stamps))


def topic(**parts: object) -> Index:
    return Index.of({Keyword(key.replace("_", "-")): to_cell(part) for key, part in parts.items()})


def reports(lattice: QueueLattice | TopicLattice, own: Value, other: Value) -> list[object]:
    seen: list[object] = []
    lattice.merge(own, other, MergeContext(report=seen.append))
    return seen


def both_ways(own: Value, other: Value) -> Value:
    there, back = QUEUE.merge(own, other), QUEUE.merge(other, own)
    assert same(there, back)
    return there


def test_the_log_that_reaches_further_wins() -> None:
    own, other = state(0, 5), state(0, 8)
    assert QUEUE.merge(own, other) is other
    assert QUEUE.merge(other, own) is other


def test_start_and_time_are_the_greater_ones() -> None:
    merged = both_ways(state(0, 10, stamp=9), state(5, 13, stamp=4))
    assert same(merged, state(5, 13, stamp=9))


def test_a_truncated_side_keeps_the_newer_records_of_the_other() -> None:
    assert same(both_ways(state(10, 12), state(0, 21)), state(10, 21))


def test_a_log_truncated_past_the_others_end_empties_it() -> None:
    assert same(both_ways(state(10, 12), state(0, 8)), state(10, 12))
    assert same(both_ways(state(0, 8), Vector.of((Vector.of(()), EMPTY_MAP, 0, 30))), state(30, 30))


@pytest.mark.parametrize("start", [1, 15, 16, 17, 32, 256, 300])
def test_cutting_keeps_what_stays_at_any_start(start: int) -> None:
    assert same(both_ways(state(0, 600), state(start, start + 3)), state(start, 600))
    assert reports(QUEUE, state(0, 600), state(start, start + 3)) == []


def test_merging_with_zero_or_itself_gives_the_very_object() -> None:
    value = state(3, 40, {"k": 1}, 7)
    for other in (QUEUE.zero(), None, value, state(3, 40, {"k": 1}, 7)):
        assert QUEUE.merge(value, other) is value
    assert QUEUE.merge(QUEUE.zero(), value) is value
    assert QUEUE.merge(None, value) is value


def test_metadata_of_both_sides_is_kept() -> None:
    merged = both_ways(state(0, 1, {"a": 1}), state(0, 1, {"b": 2}))
    assert same(merged, state(0, 1, {"a": 1, "b": 2}))


def test_the_greater_stamp_decides_metadata() -> None:
    merged = both_ways(state(0, 1, {"a": "old"}), state(0, 1, {"a": "new"}, stamps={"a": 5}))
    assert same(merged, state(0, 1, {"a": "new"}, stamps={"a": 5}))
    merged = both_ways(
        state(0, 1, {"a": "x"}, stamps={"a": 6}), state(0, 1, {"a": "y"}, stamps={"a": 5})
    )
    assert same(merged, state(0, 1, {"a": "x"}, stamps={"a": 6}))


def test_equal_values_keep_the_greater_stamp() -> None:
    merged = both_ways(state(0, 1, {"a": 1}, stamps={"a": 3}), state(0, 1, {"a": 1}))
    assert same(merged, state(0, 1, {"a": 1}, stamps={"a": 3}))


def test_a_nil_value_is_a_value_and_a_value_beats_a_lone_stamp() -> None:
    nil = both_ways(state(0, 1, {"a": None}, stamps={"a": 9}), state(0, 1, {"a": 1}))
    assert same(nil, state(0, 1, {"a": None}, stamps={"a": 9}))
    lone = both_ways(state(0, 1, stamps={"a": 9}), state(0, 1, {"a": 1}))
    assert same(lone, state(0, 1, {"a": 1}))


@pytest.mark.parametrize("last", [39, 25])
def test_of_equally_long_logs_the_greater_record_where_they_last_differ_decides(last: int) -> None:
    own = Vector.of((log(0, 40, "a"), EMPTY_MAP, 5, 0))
    forked = log(0, 20, "a").concat(log(20, last + 1, "b")).concat(log(last + 1, 40, "a"))
    other = Vector.of((forked, EMPTY_MAP, 5, 0))
    mine, theirs = (value_hash(entries[last]) for entries in (log(0, 40, "a"), forked))
    winner, lost = (own, "other") if mine > theirs else (other, "own")
    assert QUEUE.merge(own, other) is winner
    assert QUEUE.merge(other, own) is winner
    (report,) = reports(QUEUE, own, other)
    assert report == QueueForked((), 20)
    assert isinstance(report, QueueForked)
    assert (report.lost, report.lost_end) == (lost, 40)
    assert report.swapped().lost != lost


def test_equally_long_logs_of_different_starts_are_decided_and_cut_alike() -> None:
    own = Vector.of((log(0, 40, "a"), EMPTY_MAP, 5, 0))
    other = Vector.of((log(7, 20, "a").concat(log(20, 40, "b")), EMPTY_MAP, 5, 7))
    merged = QUEUE.merge(own, other)
    assert same(merged, QUEUE.merge(other, own))
    assert isinstance(merged, Vector)
    mine = value_hash(log(39, 40, "a")[0]) > value_hash(log(39, 40, "b")[0])
    assert same(merged[0], log(7, 40, "a") if mine else other[0])
    assert merged[3] == 7


def test_below_a_slot_unstamped_metadata_of_the_greater_side_stays_and_is_reported() -> None:
    own, other = state(0, 1, {"a": "x", "b": 1}), state(0, 1, {"a": "y", "b": 1})
    found: list[MergeNotice] = []
    context = MergeContext(report=found.append).preferring("own")
    assert QUEUE.merge(own, other, context) is own
    assert QUEUE.merge(other, own, context) is other
    assert found == [MetadataUnstamped(("a",)), MetadataUnstamped(("a",))]
    stamped = state(0, 1, {"a": "z", "b": 1}, stamps={"a": 4})
    assert QUEUE.merge(own, stamped, context) is stamped


@pytest.mark.parametrize("start", [3, 16])
def test_a_fork_behind_a_cut_is_reported_with_its_offset(start: int) -> None:
    own = Vector.of((log(0, 40, "a"), EMPTY_MAP, 5, 0))
    theirs = [make_entry(None, f"{'a' if i < 30 else 'b'}{i}", i) for i in range(start, 45)]
    other = Vector.of((Vector.of(theirs), EMPTY_MAP, 5, start))
    assert QUEUE.merge(own, other) is other
    assert reports(QUEUE, own, other) == [QueueForked((), 30)]
    assert reports(QUEUE, other, own) == [QueueForked((), 30)]


def test_logs_without_a_common_offset_are_no_fork() -> None:
    assert reports(QUEUE, state(0, 5), state(5, 9)) == []
    assert reports(QUEUE, state(7, 9), state(0, 5)) == []


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        "text",
        [],
        [[], {}, 0],
        [[], {}, None, 0],
        [[], {}, 0, None],
        [[], {}, -1, 0],
        [[], {}, 0, -1],
        [[], {}, 2**63, 0],
        [[], {}, True, 0],
        [[], {}, 0, 0.0],
        ["x", {}, 0, 0],
        [{}, {}, 0, 0],
        [[], [], 0, 0],
        [[], {STAMPS: 7}, 0, 0],
        [[], {STAMPS: None}, 0, 0],
        [[], {STAMPS: {"k": "no stamp"}}, 0, 0],
        [[], {STAMPS: {"k": True}}, 0, 0],
    ],
)
def test_a_state_of_the_wrong_shape_is_refused(value: object) -> None:
    cell = to_cell(value)
    own = state(0, 3)
    assert not QUEUE.check_foreign(cell)
    assert QUEUE.merge(own, cell) is own
    assert QUEUE.merge(None, cell) is (None if cell is None else QUEUE.zero())
    assert reports(QUEUE, own, cell) == ([] if cell is None else [EntryDropped(())])


@pytest.mark.parametrize(
    "value",
    [
        [[], {}, 0, 0],
        [None, None, 0, 0],
        [[], {}, 2**63 - 1, 2**63 - 1],
        [[], {STAMPS: {}}, 0, 0],
        [[1, "not an entry"], {STAMPS: {"k": -(2**70)}}, 0, 0],
        [[], {"meta-stamps": "a String is a key like any other"}, 0, 0],
        [[], {}, 0, 0, "more"],
    ],
)
def test_a_state_of_the_right_shape_is_accepted(value: object) -> None:
    assert QUEUE.check_foreign(to_cell(value))


def test_spellings_of_one_state_settle_on_one_whatever_the_order() -> None:
    states: list[object] = [
        [None, None, 5, 0],
        [[], {}, 5, 0],
        [[], {STAMPS: {}}, 5, 0],
        [None, {STAMPS: {}}, 5, 0],
        [None, {}, 4, 0],
        [[], {}, 0, 0],
    ]
    spelled = [to_cell(one) for one in states]
    for a, b, c in product(spelled, repeat=3):
        both_ways(a, b)
        assert same(QUEUE.merge(QUEUE.merge(a, b), c), QUEUE.merge(a, QUEUE.merge(b, c)))


def test_own_positions_past_the_fourth_stay_and_others_are_dropped() -> None:
    own = to_cell([log(0, 1), {}, 0, 0, None, "mine"])
    assert same(QUEUE.merge(own, state(0, 2)), to_cell([log(0, 2), {}, 0, 0, None, "mine"]))
    theirs = to_cell([log(0, 3), {}, 0, 0, None, "theirs"])
    assert same(QUEUE.merge(state(0, 2), theirs), state(0, 3))


# --- topics ---


def test_partitions_merge_one_by_one() -> None:
    own = topic(partitions={0: state(0, 3), 1: state(0, 1)})
    other = topic(partitions={1: state(0, 4), 2: state(0, 2)})
    merged = topic(partitions={0: state(0, 3), 1: state(0, 4), 2: state(0, 2)})
    assert same(TOPIC.merge(own, other), merged)
    assert same(TOPIC.merge(other, own), merged)


def test_topic_merges_give_the_very_object_where_nothing_changes() -> None:
    small = topic(partitions={0: state(0, 3)})
    great = topic(partitions={0: state(0, 5)}, meta={"num-partitions": 1})
    for other in (small, TOPIC.zero(), None, great):
        assert TOPIC.merge(great, other) is great
    for own in (small, TOPIC.zero(), None):
        assert TOPIC.merge(own, great) is great


def test_a_bad_partition_is_dropped_alone_and_reported() -> None:
    seen: list[object] = []
    own = topic(partitions={0: state(0, 3)})
    other = topic(partitions={0: 7, 1: [1, 2], 2: state(0, 2)})
    merged = TOPIC.merge(own, other, MergeContext(report=seen.append))
    assert same(merged, topic(partitions={0: state(0, 3), 2: state(0, 2)}))
    assert {report.path for report in seen} == {(PARTITIONS, 0), (PARTITIONS, 1)}  # type: ignore[attr-defined]


def test_first_contact_checks_every_partition() -> None:
    other = topic(partitions={0: 7, 1: state(0, 2)})
    for own in (None, TOPIC.zero()):
        assert same(TOPIC.merge(own, other), topic(partitions={1: state(0, 2)}))


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ({"partitions": 5}, (PARTITIONS,)),
        ({"partitions": None}, (PARTITIONS,)),
        ({"meta": "x"}, (META,)),
        ({"meta": None}, (META,)),
        ({"meta": {"k": "v", STAMPS: {"k": "x"}}}, (META,)),
        ({"meta": {"k": "v", STAMPS: 7}}, (META,)),
    ],
)
def test_a_bad_part_of_a_topic_is_dropped_and_reported(
    parts: dict[str, object], path: tuple[Value, ...]
) -> None:
    own = topic(partitions={0: state(0, 1)}, meta={"k": "own"})
    assert TOPIC.merge(own, topic(**parts)) is own
    assert reports(TOPIC, own, topic(**parts)) == [EntryDropped(path)]


def test_topic_metadata_follows_the_stamps() -> None:
    own = topic(meta={"k": "own"})
    other = topic(meta={"k": "other", STAMPS: {"k": 4}})
    assert TOPIC.merge(own, other) is other
    assert TOPIC.merge(other, own) is other


def test_stamps_beside_the_metadata_are_unknown_keys() -> None:
    other = topic(meta={"k": 1}, meta_stamps={"k": 4})
    assert same(TOPIC.merge(topic(), other), topic(meta={"k": 1}))


def test_spellings_of_one_topic_settle_on_one_whatever_the_order() -> None:
    spelled = [topic(), topic(meta={}), topic(meta={STAMPS: {}}), topic(meta={STAMPS: {"k": 1}})]
    for a, b, c in product(spelled, repeat=3):
        assert same(TOPIC.merge(a, b), TOPIC.merge(b, a))
        assert same(TOPIC.merge(TOPIC.merge(a, b), c), TOPIC.merge(a, TOPIC.merge(b, c)))
    for one in spelled:
        assert TOPIC.merge(topic(), one) is one
        assert TOPIC.merge(one, topic()) is one


def test_unknown_keys_of_own_stay_and_those_of_other_are_dropped() -> None:
    own, other = topic(mine=1), topic(theirs=2, partitions={0: state(0, 1)})
    assert same(TOPIC.merge(own, other), topic(mine=1, partitions={0: state(0, 1)}))


def test_what_is_no_index_is_no_topic() -> None:
    own = topic(meta={"k": 1})
    assert TOPIC.merge(own, EMPTY_MAP) is own
    assert same(TOPIC.merge(None, EMPTY_MAP), EMPTY_INDEX)
    assert reports(TOPIC, own, EMPTY_MAP) == [EntryDropped(())]
    assert TOPIC.merge(own, None) is own


def test_paths_reach_partitions_by_keyword_or_string() -> None:
    for key in (PARTITIONS, "partitions"):
        assert isinstance(TOPIC.path(key, 3), QueueLattice)
        assert TOPIC.resolve_key(key) is not None
    assert TOPIC.path(META) is None
    assert TOPIC.resolve_key("nothing") is None
    assert TOPIC.canonical_key("nothing") == "nothing"
    assert same(TOPIC.canonical_key("meta"), META)
    assert QUEUE.path(0) is None


def test_the_root_has_the_queue_section() -> None:
    owner = bytes(32)
    path = (Keyword("queue"), owner, Keyword("value"), "topic", PARTITIONS, 0)
    assert isinstance(root_lattice().path(*path), QueueLattice)
    assert isinstance(topic_map_lattice().path("t"), TopicLattice)


class Shelf:
    def __init__(self) -> None:
        self.cells: dict[bytes, bytes] = {}

    def load(self, hash: bytes) -> Value:
        return decode(self.cells[hash], self)


def endless(name: str, start: int, levels: int = 12) -> Value:
    """Return a state with 16**(levels + 1) times one record: a few cells that anybody can send."""
    shelf = Shelf()
    leaf = Vector.of([make_entry(None, name * 100, 1)] * 16)
    shelf.cells = {digest: encoding for digest, encoding, _ in novelty(leaf)}
    encoding, count = encode(leaf), 16
    for _ in range(levels):
        count *= 16
        shelf.cells[value_hash(decode(encoding))] = encoding
        encoding = Address(count).encoding.replace(b"\xea", b"\x80", 1) + 16 * (
            b"\x20" + value_hash(decode(encoding))
        )
    return Vector.of([decode(encoding, shelf), {}, 1, start])


@pytest.mark.parametrize("start", [0, 1, 16, 4096, 16**12 + 1])
@pytest.mark.parametrize("other", ["x", "y"])
def test_merges_of_endless_logs_end(start: int, other: str) -> None:
    own, theirs = endless("x", 0), endless(other, start)
    for a, b in ((own, theirs), (theirs, own), (state(5, 9), theirs), (theirs, state(5, 9))):
        merged = QUEUE.merge(a, b)
        assert QUEUE.check_foreign(merged)
        assert merged is a or merged is b or isinstance(merged, Vector)


def test_an_endless_log_that_would_have_to_be_cut_is_dropped_and_reported() -> None:
    own = state(5, 9)
    assert QUEUE.merge(own, endless("x", 0)) is own
    assert EntryDropped(()) in reports(QUEUE, own, endless("x", 0))


def test_an_equal_log_that_is_cut_already_is_taken_as_it_is() -> None:
    own, other = state(0, 5_000), state(3, 5_000)
    assert QUEUE.merge(own, other) is other
    assert QUEUE.merge(other, own) is other
    assert reports(QUEUE, own, other) == []
