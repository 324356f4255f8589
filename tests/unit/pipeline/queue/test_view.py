"""Views: the partitions that a root holds, and what is wrong with a root."""

from __future__ import annotations

import json

import pytest

from datalattice.apps.queue import QUEUE_SECTION, make_entry
from datalattice.cells import (
    Index,
    Keyword,
    Map,
    Signed,
    Symbol,
    Value,
    Vector,
    decode_message,
    encode,
    to_text,
)
from datalattice.crypto import KeyPair
from datalattice.errors import BadFormat, BadSignature, UsageError
from datalattice.lattice import did_of
from datalattice.pipeline.queue import view
from datalattice.pipeline.queue.options import parse_options
from datalattice.pipeline.queue.plan import PartitionName
from datalattice.pipeline.queue.view import QueueViews, offsets_since, read_view
from datalattice.pipeline.signatures import check_signed
from datalattice.store import MemoryStore
from datalattice.testing.cells_kit import CellDict

ALICE, BOB = KeyPair(bytes([1]) * 32), KeyPair(bytes([2]) * 32)
PARTITIONS = Keyword("partitions")


def name_of(keys: KeyPair) -> str:
    return "0x" + keys.public_key.hex()


def queue(*values: Value, start: int = 0, stamp: int = 1_000) -> Vector:
    entries = [make_entry(None, value, stamp + i) for i, value in enumerate(values)]
    return Vector.of((Vector.of(entries), Map.of([]), stamp, start))


def topic(*partitions: tuple[Value, Value]) -> Index:
    return Index.of([(PARTITIONS, Map.of(partitions))])


def signed(keys: KeyPair, *topics: tuple[Value, Value]) -> tuple[Value, Value]:
    return keys.public_key, Signed.sign(keys, Map.of(topics))


def root(*owners: tuple[Value, Value]) -> Index:
    return Index.of([(QUEUE_SECTION, Map.of(owners))])


def read(value: Value, *, must_exist: bool = True, **options: str) -> dict[tuple[str, ...], object]:
    view = read_view(value, parse_options({"store": "s", **options}), must_exist=must_exist)
    return {tuple(name): (log.start, log.end) for name, log in view.items()}


TWO = root(
    signed(ALICE, ("a", topic((0, queue("x", "y", start=5)), (1, queue()))), ("b", topic())),
    signed(BOB, ("a", topic((0, queue("z"))))),
)


def test_every_partition_is_found_with_its_range() -> None:
    assert read(TWO) == {
        (name_of(ALICE), "a", "0"): (5, 7),
        (name_of(ALICE), "a", "1"): (0, 0),
        (name_of(BOB), "a", "0"): (0, 1),
    }


def test_the_options_choose() -> None:
    assert list(read(TWO, owner=name_of(BOB)[2:])) == [(name_of(BOB), "a", "0")]
    assert read(TWO, topic="b") == {}
    assert len(read(TWO, topic="a,b")) == 3


def test_the_entries_travel_as_their_encoding() -> None:
    view = read_view(TWO, parse_options({"store": "s", "owner": name_of(BOB)}), must_exist=True)
    (log,) = view.values()
    assert log.entries == encode(Vector.of([make_entry(None, "z", 1_000)]))


@pytest.mark.parametrize("empty", [None, Index.of([]), root(), Map.of([]), 17])
def test_a_store_without_queues_has_none(empty: Value) -> None:
    assert read(empty) == {}


def test_a_name_that_is_not_there_is_an_error_or_waited_for() -> None:
    with pytest.raises(UsageError, match=r"option topic='c' .* it has: a, b"):
        read(TWO, topic="a,c")
    with pytest.raises(UsageError, match=r"option owner='carol' .* it has: 0x"):
        read(TWO, owner="carol")
    with pytest.raises(UsageError, match="it has: none"):
        read(None, topic="a")
    assert read(TWO, must_exist=False, topic="c") == {}
    assert read(TWO, must_exist=False, owner="carol") == {}


def test_names_of_any_kind_have_a_text() -> None:
    value = root(
        ("did:example:x", Signed.sign(ALICE, Map.of([(Keyword("k"), topic((b"\x01", queue())))]))),
        signed(BOB, ("t", topic(("0", queue()), (-7, queue()), (Keyword("p"), queue())))),
    )
    assert sorted(read(value)) == sorted(
        [
            ("did:example:x", ":k", "0x01"),
            (name_of(BOB), "t", '"0"'),
            (name_of(BOB), "t", "-7"),
            (name_of(BOB), "t", ":p"),
        ]
    )


def test_a_name_that_is_not_text_is_printed() -> None:
    odd = decode_message(b"\x30\x02\xff\xfe")
    value = root(signed(ALICE, (odd, topic((odd, queue("x"))))))
    assert list(read(value)) == [(name_of(ALICE), '"\\udcff\\udcfe"', '"\\udcff\\udcfe"')]
    assert list(read(value, topic=to_text(odd))) == list(read(value))


@pytest.mark.parametrize("name", ["t", Keyword("k"), -7, b"\x01", Vector.of([1, "a"]), "5", " "])
def test_a_topic_is_found_by_its_text(name: Value) -> None:
    value = root(signed(ALICE, (name, topic((0, queue("x")))), ("other", topic((0, queue())))))
    (found,) = [one for one in read(value) if one[1] != "other"]
    assert list(read(value, topic=json.dumps([found[1]]))) == [found]


@pytest.mark.parametrize("last", [2**63 - 2, 2**63 - 1, 2**63])
def test_offsets_end_where_their_column_does(last: int) -> None:
    value = root(signed(ALICE, ("t", topic((0, queue("x", "y", start=last - 1))))))
    if last < 2**63:
        assert list(read(value).values()) == [(last - 1, last + 1)]
        return
    with pytest.raises(BadFormat, match=f"partition 0 of topic 't' .* up to {last}; the greatest"):
        read(value)


def test_names_that_read_the_same_are_refused() -> None:
    both = Map.of([(":k", topic((0, queue()))), (Keyword("k"), topic((0, queue())))])
    with pytest.raises(BadFormat, match="read the same"):
        read(root((ALICE.public_key, Signed.sign(ALICE, both))))


def test_a_wrong_signature_is_refused() -> None:
    forged = Signed(ALICE.public_key, bytes(64), Map.of([("a", topic((0, queue("x"))))]))
    with pytest.raises(BadSignature, match=name_of(ALICE)):
        read(root((ALICE.public_key, forged)))
    assert read(root((ALICE.public_key, forged), signed(BOB)), owner=name_of(BOB)) == {}


DID = did_of(ALICE.public_key)


@pytest.mark.parametrize("owner", [ALICE.public_key, DID, name_of(ALICE)])
def test_what_another_key_signed_is_refused(owner: Value) -> None:
    theirs = Signed.sign(BOB, Map.of([("a", topic((0, queue("x"))))]))
    text = owner if isinstance(owner, str) else name_of(ALICE)
    with pytest.raises(BadSignature, match=f"queues of owner '?{text}"):
        read(root((owner, theirs)))


def test_an_owner_may_be_a_did() -> None:
    mine = Signed.sign(ALICE, Map.of([("a", topic((0, queue("x"))))]))
    by_document = "did:web:example.com"  # its keys were looked up when it came in
    assert read(root((DID, mine), (by_document, mine))) == {
        (DID, "a", "0"): (0, 1),
        (by_document, "a", "0"): (0, 1),
    }


def test_of_many_owners_only_those_that_changed_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[Value] = []
    check = check_signed

    def counted(owner: Value, signed: Signed, what: str) -> None:
        checked.append(owner)
        check(owner, signed, what)

    monkeypatch.setattr(view, "check_signed", counted)
    carol = KeyPair(bytes([3]) * 32)
    views = QueueViews(parse_options({"store": "s"}))
    assert len(views.read(TWO)) == 3
    assert set(checked) == {ALICE.public_key, BOB.public_key}
    checked.clear()
    section = TWO.get(QUEUE_SECTION)
    assert isinstance(section, Map)
    name, state = signed(BOB, ("a", topic((0, queue("z", "new")))))
    changed = section.put(name, state).remove(ALICE.public_key)
    changed = changed.put(*signed(carol, ("c", topic((0, queue())))))
    for _ in range(2):
        seen = views.read(Index.of([(QUEUE_SECTION, changed)]))
        assert {tuple(name): log.end for name, log in seen.items()} == {
            (name_of(BOB), "a", "0"): 2,
            (name_of(carol), "c", "0"): 0,
        }
    assert sorted(checked, key=repr) == sorted([BOB.public_key, carol.public_key], key=repr)
    forged = changed.put(BOB.public_key, Signed.sign(carol, Map.of([])))
    for _ in range(2):
        with pytest.raises(BadSignature, match=name_of(BOB)):
            views.read(Index.of([(QUEUE_SECTION, forged)]))
    assert len(views.read(TWO)) == 3


def test_a_topic_is_planned_by_a_look_up_not_by_a_walk_of_all() -> None:
    def loads(topics: int, **options: str) -> int:
        states = [(f"topic {n}", topic((0, queue("x" * 200)))) for n in range(topics)]
        cells = CellDict()
        kept = cells.kept(root(signed(ALICE, *states)))
        views = QueueViews(parse_options({"store": "s", **options}))
        assert len(views.read(kept, must_exist=True)) == (1 if options else topics)
        return cells.loads

    assert loads(4_000) > 500
    # One node for each level of the map of topics, and the topic: few more for 100 times as many.
    assert loads(4_000, topic="topic 77") <= loads(40, topic="topic 7") + 4


def test_what_there_was_before_may_be_gone() -> None:
    cells = CellDict()
    views = QueueViews(parse_options({"store": "s", "owner": name_of(BOB)}))
    for name in ("a", "b"):
        others = [KeyPair(bytes([number]) * 32) for number in range(2, 40)]
        made = root(*(signed(keys, (name, topic((0, queue("x" * 200))))) for keys in others))
        cells.clear()
        assert {one.topic for one in views.read(cells.kept(made))} == {name}


@pytest.mark.parametrize("odd", [None, 5, Map.of([]), Vector.of([1, 2])])
def test_what_is_not_a_queue_reads_as_empty(odd: Value) -> None:
    assert read(root(signed(ALICE, ("a", topic((0, odd)))))) == {(name_of(ALICE), "a", "0"): (0, 0)}
    assert read(root(signed(ALICE, ("a", odd)))) == {}
    assert read(root((ALICE.public_key, Signed.sign(ALICE, odd)))) == {}
    assert read(root((ALICE.public_key, odd))) == {}


@pytest.mark.parametrize(
    ("stamp", "offset"), [(0, 5), (1_000, 5), (1_001, 6), (1_050, 55), (1_099, 104), (1_100, 105)]
)
def test_a_time_is_the_offset_of_the_first_record_not_before_it(stamp: int, offset: int) -> None:
    value = root(signed(ALICE, ("a", topic((0, queue(*range(100), start=5)), (1, queue())))))
    view = read_view(value, parse_options({"store": "s"}), must_exist=True)
    name = PartitionName(name_of(ALICE), "a", "0")
    store = MemoryStore()
    store.commit(value)
    assert offsets_since(view, stamp, store) == {name: offset, name._replace(partition="1"): 0}


def test_what_only_reads_like_a_public_key_owns_nothing() -> None:
    for owner in (name_of(ALICE), Symbol(name_of(ALICE)), Symbol(did_of(ALICE.public_key))):
        forged = root((owner, Signed.sign(BOB, Map.of([("t", topic((0, queue(1))))]))))
        with pytest.raises(BadSignature, match="looks like a public key"):
            read(forged)
