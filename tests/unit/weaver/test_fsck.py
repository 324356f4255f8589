"""Fsck finds every planted fault at its level; a rebuild heals every index."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from datalattice.engine import section
from datalattice.errors import Corruption, UsageError
from datalattice.testing.log_kit import Author, LogFixture, author
from datalattice.weaver import LogFault, fsck
from datalattice.weaver.append import Appender
from datalattice.weaver.fsck import INDEX_TABLES
from datalattice.weaver.rows import (
    AUTHOR_TIPS,
    AUTHORS,
    FLOATING,
    FLOATING_BY_DEP,
    FLOATING_BY_PREV,
    LOG_META,
    WITNESS,
    WITNESS_INDEX,
    Head,
    WitnessRow,
    decode_head,
    decode_tip,
    decode_witness,
    read_head,
    seq_key,
)


@pytest.fixture
def store() -> LogFixture:
    """Return a store with chains, dependencies, acks, a fork and both kinds of waiting."""
    store = LogFixture()
    a, b, c = Author(1), Author(2), Author(3)
    a1 = a.write(b"a1")
    b1 = b.write(b"b1", [a1.hash])
    a2 = a.write(b"", [b1.hash])
    a3 = a.write(b"a3")
    other = a.write(b"other", prev=a2.hash)
    awaited = c.write(b"awaited")
    waits = b.write(b"waits", [awaited.hash])
    after = c.write(b"after")
    store.ingest(a1, b1, a2, a3)
    store.submit(author(4), b"local", [b1.hash])
    store.ingest(other, waits, after)
    assert list(store.floating().values()) == ["fork", "condition", "prev"]
    return store


def edit(store: LogFixture, table: str, key: bytes, change: Callable[[bytes], bytes]) -> None:
    row = store.rows()[table, key]
    store.plant(table, key, change(row))


def edit_row(store: LogFixture, seq: int, **changed: object) -> None:
    def change(data: bytes) -> bytes:
        row: WitnessRow = decode_witness(data, seq)
        for name, value in changed.items():
            setattr(row, name, value)
        return row.encode()

    edit(store, WITNESS, seq_key(seq), change)


def found(store: LogFixture, level: int) -> list[LogFault]:
    """Return the faults of a level, none of which the levels below find."""
    if level > 1:
        assert store.fsck(level - 1) == []
    faults = store.fsck(level)
    assert faults
    assert faults == store.fsck(level)
    return faults


def keys(store: LogFixture, table: str) -> list[bytes]:
    return [key for name, key in store.rows() if name == table]


def test_a_sound_log_has_no_faults(store: LogFixture) -> None:
    for level in (1, 2, 3):
        assert store.fsck(level) == []
    with pytest.raises(UsageError, match="levels 1, 2 and 3"):
        store.fsck(4)


# --- level 1 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq", [1, 3, 5])
def test_a_missing_row(store: LogFixture, seq: int) -> None:
    store.plant(WITNESS, seq_key(seq), None)
    assert found(store, 1)[0].level == 1
    if seq < 5:
        with pytest.raises(Corruption, match="filled again"):
            store.rebuild()


@pytest.mark.parametrize("seq", [1, 3, 5])
def test_a_row_cut_short(store: LogFixture, seq: int) -> None:
    edit(store, WITNESS, seq_key(seq), lambda row: row[:-1])
    (fault, *_) = found(store, 1)
    assert (fault.table, fault.key) == (WITNESS, seq_key(seq))
    with pytest.raises(Corruption):
        store.rebuild()


def test_a_changed_payload_breaks_the_chain(store: LogFixture) -> None:
    edit(store, WITNESS, seq_key(2), lambda row: row[:-1] + b"X")
    (fault, *_) = found(store, 1)
    assert (fault.key, fault.text) == (seq_key(3), "it does not name the record before it")


def test_a_changed_payload_of_the_last_row_differs_from_the_head(store: LogFixture) -> None:
    edit(store, WITNESS, seq_key(5), lambda row: row[:-1] + b"X")
    assert found(store, 1)[0].table == LOG_META


def test_a_changed_time_of_witnessing(store: LogFixture) -> None:
    edit_row(store, 2, wall=5)
    assert found(store, 1)[0].key == seq_key(3)


def test_a_row_of_another_author(store: LogFixture) -> None:
    edit_row(store, 3, number=2)
    assert found(store, 1)[0].key == seq_key(4)
    edit_row(store, 3, number=77)
    assert "author 77" in found(store, 1)[0].text


def test_a_row_appended_by_something_else(store: LogFixture) -> None:
    row = store.rows()[WITNESS, seq_key(5)]
    store.plant(WITNESS, seq_key(6), row)
    assert found(store, 1)


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_damaged_head(store: LogFixture, damage: str) -> None:
    if damage == "missing":
        store.plant(LOG_META, b"head", None)
    else:
        edit(store, LOG_META, b"head", lambda row: row[:-1])
    assert found(store, 1)[0].table == LOG_META


def test_a_log_of_another_store(store: LogFixture) -> None:
    with store.engine.read() as txn:
        view = section(txn, store.prefix)
        assert fsck(view, bytes(16), store.log.signer, 1)


# --- level 2 ------------------------------------------------------------------------------------


def test_an_author_that_did_not_sign(store: LogFixture) -> None:
    edit_row(store, 3, signature=bytes(64))
    (fault,) = found(store, 2)
    assert (fault.level, fault.key, fault.text) == (2, seq_key(3), "its author did not sign it")


def test_a_node_that_did_not_seal(store: LogFixture) -> None:
    edit(store, LOG_META, b"head", lambda row: row[:-32] + bytes(32))
    (fault,) = found(store, 2)
    assert (fault.table, fault.key) == (LOG_META, b"head")


@pytest.mark.parametrize("damage", ["signature", "cut"])
def test_a_damaged_waiting_intention(store: LogFixture, damage: str) -> None:
    key = keys(store, FLOATING)[0]
    change: Callable[[bytes], bytes] = (
        (lambda row: row[:16] + bytes(64) + row[80:]) if damage == "signature" else lambda r: r[:-1]
    )
    edit(store, FLOATING, key, change)
    assert next((fault.table, fault.key) for fault in found(store, 2)) == (FLOATING, key)


# --- level 3 ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {"height": 4},
        {"contents": 9},
        {"prev": 2},
        {"skip": 1},
        {"base": 1},
        {"depth": 9},
        {"flags": 2},
        {"frontier": b"\2\1"},
    ],
)
def test_a_row_that_says_something_else_of_its_chain(
    store: LogFixture, changed: dict[str, object]
) -> None:
    edit_row(store, 4, **changed)
    assert any((fault.table, fault.key) == (WITNESS, seq_key(4)) for fault in found(store, 3))


@pytest.mark.parametrize("table", [*INDEX_TABLES])
def test_a_missing_index_row(store: LogFixture, table: str) -> None:
    for key in keys(store, table):
        if key == b"head":
            continue
        rows = store.rows()
        store.plant(table, key, None)
        assert any(fault.table == table for fault in found(store, 3)), key.hex()
        store.rebuild()
        assert store.rows() == rows


@pytest.mark.parametrize("table", [*INDEX_TABLES])
def test_a_changed_index_row(store: LogFixture, table: str) -> None:
    for key in keys(store, table):
        if key == b"head":
            continue
        rows = store.rows()
        edit(store, table, key, lambda row: row[:-1] + bytes([row[-1] ^ 1]))
        assert any(fault.table == table for fault in store.fsck(3)), key.hex()
        store.rebuild()
        assert store.rows() == rows


@pytest.mark.parametrize("table", [*INDEX_TABLES])
def test_an_index_row_too_many(store: LogFixture, table: str) -> None:
    rows = store.rows()
    value = next(value for (name, key), value in rows.items() if name == table and key != b"head")
    store.plant(table, b"\x07" * 32, value)
    assert any((fault.table, fault.key) == (table, b"") for fault in found(store, 3))
    store.rebuild()
    assert store.rows() == rows


@pytest.mark.parametrize(
    "changed",
    [
        {"authors": 9},
        {"floating_count": 9},
        {"floating_bytes": 9},
        {"fingerprint": bytes(32)},
    ],
)
def test_a_head_with_other_counts(store: LogFixture, changed: dict[str, object]) -> None:
    rows = store.rows()
    edit(
        store,
        LOG_META,
        b"head",
        lambda row: dataclasses.replace(decode_head(row), **changed).encode(),  # type: ignore[arg-type]
    )
    assert (found(store, 3)[0].table, found(store, 3)[0].key) == (LOG_META, b"head")
    store.rebuild()
    assert store.rows() == rows


def test_a_tip_with_another_frontier(store: LogFixture) -> None:
    def change(row: bytes) -> bytes:
        tip = decode_tip(row)
        tip.frontier[1] = 3
        return tip.encode()

    key = author(4).public_key
    edit(store, AUTHOR_TIPS, key, change)
    assert [(f.table, f.key) for f in found(store, 3)] == [(AUTHOR_TIPS, key)]


def test_an_intention_before_what_it_depends_on() -> None:
    """Rows that someone else wrote, well chained: the order itself is wrong."""
    store = LogFixture()
    a, b = Author(1), Author(2)
    a1, a2 = a.chain(2)
    b1 = b.write(b"", [a2.hash])
    with store.engine.write() as raw:
        txn = section(raw, store.prefix)
        log = Appender(txn, store.store_id, read_head(txn))
        for signed in (a1, b1, a2):
            log.append(signed, 5)
        log.write()
        content = log.content_hash
        seal = store.log.signer.seal(content)
        head = Head(3, 2, 0, 0, 1, log.clock, content, log.fingerprint, seal)
        txn.put(LOG_META, b"head", head.encode())
    assert any("dependency is not before" in fault.text for fault in found(store, 3))


# --- rebuild ------------------------------------------------------------------------------------


def test_rebuild_gives_identical_bytes(store: LogFixture) -> None:
    rows = store.rows()
    head = store.rebuild()
    assert store.rows() == rows
    assert head == store.head()


@pytest.mark.parametrize("table", [*INDEX_TABLES])
def test_missing_index_table_rebuilt(store: LogFixture, table: str) -> None:
    rows = store.rows()
    store.empty(table)
    assert store.fsck(3)
    store.rebuild()
    assert store.fsck(3) == []
    after = store.rows()
    if table == LOG_META:
        # Only the number of the next arrival can be another: nothing of the past needs it.
        assert {k: v for k, v in after.items() if k[1] != b"head"} == {
            k: v for k, v in rows.items() if k[1] != b"head"
        }
        assert store.head().clock == decode_head(rows[LOG_META, b"head"]).clock
    else:
        assert after == rows


def test_all_indexes_lost_at_once_and_the_log_goes_on(store: LogFixture) -> None:
    for table in INDEX_TABLES:
        store.empty(table)
    store.rebuild()
    assert store.fsck(3) == []
    store.ingest(Author(3).write(b"awaited"))
    assert list(store.floating().values()) == ["fork"]
    assert store.fsck(3) == []


def test_tips_with_a_gap_behind_them(store: LogFixture) -> None:
    """What waits behind a gap is no tip after a rebuild either."""
    assert Author(3).public_key not in store.read(store.log.tips)
    store.rebuild()
    assert Author(3).public_key not in store.read(store.log.tips)
    assert len(store.read(store.log.forks)) == 1
    assert {FLOATING_BY_DEP, FLOATING_BY_PREV, AUTHORS, WITNESS_INDEX} <= {
        table for table, _ in store.rows()
    }


def test_an_empty_log_is_rebuilt_to_an_empty_log() -> None:
    store = LogFixture()
    assert store.rebuild().seq == 0
    assert store.fsck(3) == []


def test_rebuild_of_a_long_log_is_the_same_across_its_pieces() -> None:
    store = LogFixture()
    writers = [Author(n) for n in range(3)]
    signed = []
    for turn in range(2100):
        deps = [writers[(turn + 1) % 3].last] if turn > 3 and turn % 5 == 0 else ()
        signed.append(writers[turn % 3].write(b"", deps))
    store.ingest(*signed)
    rows = store.rows()
    store.rebuild()
    assert store.rows() == rows
    assert store.fsck(1) == []
