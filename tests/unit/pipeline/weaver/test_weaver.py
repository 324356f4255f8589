"""Weaver stores as tables: what is written, by whom, and what the state was at any record."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

import datalattice
from datalattice.engine import open_engine
from datalattice.errors import BadSignature, DataLoss, NoSuchPath, UsageError
from datalattice.pipeline.weaver import rows as weaver_rows
from datalattice.pipeline.weaver.options import WEAVER_COLUMNS, WeaverTable, parse_options
from datalattice.testing.stores_kit import envelopes_of
from datalattice.weaver import STORE_TABLES, Position, PutRequest, StoreView, store_id_text

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from datalattice.pipeline.weaver.source import WeaverSource
from datalattice.testing.spark_kit import rows_of, struct_of

ALL = ReadAllAvailable()
SYSTEM_RECORDS = 2
"""The genesis of a store, and what it says about itself."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    with datalattice.open(tmp_path / "home") as node, datalattice.open(tmp_path / "away") as other:
        yield Home(tmp_path / "home", node, other)


class Home:
    """A node with a store of keys, which another node has as well."""

    def __init__(self, folder: Path, node: datalattice.Node, other: datalattice.Node) -> None:
        self.folder = folder
        self.notes = node.store("notes", kind="kv")
        self.id = store_id_text(self.notes.store.id)
        self.other = other.store(self.id, kind="kv")
        self.node = node
        self.exchange()

    def exchange(self) -> None:
        ours, theirs = envelopes_of(self.notes.store), envelopes_of(self.other.store)
        self.other.store.ingest(ours)
        self.notes.store.ingest(theirs)

    def source(self, **options: str) -> WeaverSource:
        return WeaverSource({"store": str(self.folder), "name": "notes", **options})

    def read(self, **options: str) -> list[dict[str, Any]]:
        source = self.source(**options)
        reader: Any = source.reader(struct_of(source.parsed.types))
        return rows_of(reader, reader.partitions())

    def stream(self, **options: str) -> Any:
        source = self.source(**options)
        return source.streamReader(struct_of(source.parsed.types))

    def state(self, **options: str) -> dict[str, str]:
        return {row["key"]: row["value"] for row in self.read(table="state", **options)}

    def rejoin(self) -> None:
        """Lose the stores of the folder, and take the notes of the other node."""
        self.node.close()
        shutil.rmtree(self.folder / "weaver")
        with datalattice.open(self.folder) as again:
            copy = again.store(self.id, kind="kv")
            # In two calls, so that the records are made at two times.
            envelopes = envelopes_of(self.other.store)
            copy.store.ingest(envelopes[:3])
            copy.store.ingest(envelopes[3:])


# --- tables -----------------------------------------------------------------------------------


def test_intentions_are_the_witness_log(home: Home) -> None:
    home.notes["a"] = "1"
    home.notes["a"] = "2"
    home.other.store.acknowledge()
    home.exchange()
    found = home.read()
    with home.notes.store.read() as view:
        entries = list(view.entries())
    signed = [entry.signed for entry in entries]
    assert [row["seq"] for row in found] == list(range(1, len(entries) + 1))
    assert [row["hash"] for row in found] == [one.hash.hex() for one in signed]
    assert [row["author"] for row in found] == [one.intention.author.hex() for one in signed]
    assert [row["size"] for row in found] == [len(one.intention.payload) for one in signed]
    assert [row["kind"] for row in found] == ["genesis", "system", "data", "data", "ack"]
    assert [row["op"] for row in found[2:]] == [
        '(data (put "a" "1"))',
        '(data (put "a" "2"))',
        "()",
    ]
    assert found[3]["store_prev"] == found[2]["hash"]
    assert found[3]["condition"] == [found[2]["hash"]]
    assert found[0]["store_prev"] is None
    stamp = signed[2].intention.stamp
    assert (found[2]["time"], found[2]["counter"]) == (_time(stamp.wall), stamp.counter)
    assert found[2]["witnessed"] == _time(entries[2].wall_ms)
    assert b"1" in found[2]["payload"]
    assert [row["payload"] for row in (found[0], found[1], found[4])] == [None] * 3


def _time(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


def test_state_is_what_a_reader_of_the_store_sees(home: Home) -> None:
    with home.notes.batch():
        home.notes["a"], home.notes["b"] = "1", "2"
    home.notes["b"] = "3"
    home.notes["c"] = "4"
    del home.notes["c"]
    assert home.state() == dict(home.notes) == {"a": "1", "b": "3"}
    (row,) = [row for row in home.read(table="state") if row["key"] == "b"]
    version = home.notes.history("b")[0]
    assert row["author"] == version.author.hex()
    assert row["hash"] == version.hash.hex()
    assert (row["time"], row["counter"]) == (_time(version.stamp.wall), version.stamp.counter)
    assert row["conflicts"] == 0


def test_conflicts_are_the_heads_of_a_key_and_end_with_the_next_write(home: Home) -> None:
    home.notes["agreed"] = "x"
    home.exchange()
    home.notes["title"], home.other["title"] = "ours", "theirs"
    home.exchange()
    versions = home.notes.conflicts("title")
    found = home.read(table="conflicts")
    assert [(row["rank"], row["value"], row["hash"], row["author"]) for row in found] == [
        (rank, one.value, one.hash.hex(), one.author.hex()) for rank, one in enumerate(versions)
    ]
    assert len(found) == 2
    assert {row["key"]: row["conflicts"] for row in home.read(table="state")} == {
        "agreed": 0,
        "title": 1,
    }
    with home.notes.store.read() as view:
        end = view.last_seq() + 1
    home.notes["title"] = "both"
    assert home.read(table="conflicts") == []
    # The past still has it.
    assert home.read(table="conflicts", endingOffsets=str(end)) == found


def test_the_state_of_any_record_can_be_read(home: Home) -> None:
    states: list[tuple[int, dict[str, str]]] = []
    for number in range(4):
        home.notes["a"] = f"ours {number}"
        home.other["a"] = f"theirs {number}"
        home.notes[f"only {number}"] = "x"
        if number == 2:
            del home.notes["only 1"]
        home.exchange()
        with home.notes.store.read() as view:
            states.append((view.last_seq(), dict(home.notes)))
    for seq, state in states:
        for tasks in ("1", "5"):
            found = home.state(endingOffsets=str(seq + 1), minPartitions=tasks)
            assert found == state


def test_a_batch_from_a_record_on_has_the_keys_written_since(home: Home) -> None:
    home.notes.update({"a": "1", "b": "2", "c": "3"})
    with home.notes.store.read() as view:
        start = str(view.last_seq() + 1)
    home.notes["a"] = "4"
    del home.notes["b"]
    assert home.state(startingOffsets=start) == {"a": "4", "b": None}
    assert home.state(startingOffsets=start, endingOffsets=start) == {}


def test_entries_of_a_log_are_the_state_of_its_store(home: Home) -> None:
    diary = home.node.store("diary", kind="log")
    diary.extend(["rain", "sun"])
    found = home.read(name="diary", table="state")
    assert [row["value"] for row in found] == ["rain", "sun"]
    assert [row["hash"] for row in found] == [one.hash.hex() for one in diary.follow(wait=False)]
    order = sorted(found, key=lambda row: (row["time"], row["counter"], row["author"]))
    assert [row["value"] for row in order] == list(diary)


def test_values_and_keys_in_other_forms(home: Home) -> None:
    raw = home.node.store("notes", of=bytes)
    raw[b"\xff"] = b"\xfe"
    (row,) = home.read(table="state")
    assert (row["key"], row["value"]) == ("\ufffd", "\ufffd")
    (row,) = home.read(table="state", keyFormat="bytes", valueFormat="bytes")
    assert (row["key"], row["value"]) == (b"\xff", b"\xfe")
    with pytest.raises(UsageError, match=r"valueFormat='json' is not accepted: .*stored as cells"):
        home.read(table="state", valueFormat="json")
    counts = home.node.store("counts", kind="kv", of=dict)
    counts["a"] = {"n": 7}
    (row,) = home.read(name="counts", table="state", valueFormat="json", columns="value")
    assert row == {"value": '{"n":7}'}


# --- tasks ------------------------------------------------------------------------------------


def test_tasks_divide_the_records_and_read_them_whatever_is_written_meanwhile(home: Home) -> None:
    for number in range(20):
        home.notes[f"key {number % 7}"] = str(number)
    whole = home.read()
    source = home.source(minPartitions="4")
    reader: Any = source.reader(struct_of(source.parsed.types))
    tasks = reader.partitions()
    assert len(tasks) == 4
    state_source = home.source(table="state", minPartitions="4")
    state: Any = state_source.reader(struct_of(state_source.parsed.types))
    planned, before = state.partitions(), dict(home.notes)
    home.notes["key 1"] = "later"
    home.notes["new"] = "later"
    assert rows_of(reader, tasks) == whole
    assert {row["key"]: row["value"] for row in rows_of(state, planned)} == before


def test_a_plan_has_at_least_the_tasks_asked_for_and_none_without_a_record() -> None:
    view = cast("StoreView", Numbers())
    most = weaver_rows._RECORDS_PER_TASK_MAX

    def sizes(start: int, end: int, tasks: int = 1) -> list[int]:
        positions = Numbers().position(start), Numbers().position(end)
        return [one.end.seq - one.start.seq for one in weaver_rows.plan(view, *positions, tasks)]

    assert sizes(0, most) == [most]
    assert sizes(0, most + 1) == [most // 2, most // 2 + 1]
    assert sizes(7, 10, tasks=5) == [1, 1, 1]
    assert sizes(7, 10, tasks=2) == [1, 2]
    assert sizes(7, 7, tasks=5) == []


class Numbers:
    """A log in which every record is there."""

    def position(self, seq: int) -> Position:
        return Position(seq, seq.to_bytes(32, "big"))


def test_a_task_of_many_records_takes_several_snapshots(home: Home) -> None:
    count = weaver_rows._RECORDS_AT_ONCE + 1
    puts = [PutRequest(b"k%d" % number, b"v") for number in range(count)]
    home.notes.store.execute_all("Put", puts)
    assert len(home.read(columns="seq", verify="false")) == count + SYSTEM_RECORDS
    # And one of large records too.
    large = home.node.store("large", kind="log")
    large.extend(["x" * 1_000_000] * 6)
    found = home.read(name="large", table="state", columns="value")
    assert [len(row["value"]) for row in found] == [1_000_000] * 6


# --- verification -----------------------------------------------------------------------------


def test_signatures_are_verified_unless_that_is_turned_off(home: Home) -> None:
    home.notes["a"] = "1"
    home.notes["b"] = "2"
    home.node.close()
    engine = open_engine(home.folder / "weaver", STORE_TABLES)
    with engine.write() as txn:
        # The signature is no part of what is hashed, so the chain of records stays in order.
        key, row = list(txn.scan("witness"))[-1]
        at = row.index(_signature(home, 4))
        txn.put("witness", key, row[:at] + bytes([row[at] ^ 1]) + row[at + 1 :])
    engine.close()
    for table in ("intentions", "state"):
        with pytest.raises(BadSignature, match="is not signed by its author"):
            home.read(table=table)
    assert home.state(verify="false") == {"a": "1", "b": "2"}
    assert len(home.read(verify="false")) == 2 + SYSTEM_RECORDS


def _signature(home: Home, seq: int) -> bytes:
    with (
        datalattice.open(home.folder, read_only=True) as node,
        node.store("notes").store.read() as view,
    ):
        (entry,) = view.entries(seq, 1)
        signature: bytes = entry.signed.signature
        return signature


# --- streams ----------------------------------------------------------------------------------


def test_a_stream_goes_on_where_its_checkpoint_stands(home: Home) -> None:
    home.notes["a"] = "1"
    stream = home.stream(maxOffsetsPerTrigger="2")
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxRows(2)
    at = stream.initialOffset()
    seen: list[int] = []
    while (end := stream.latestOffset(at, limit)) != at:
        seen += [row["seq"] for row in rows_of(stream, stream.partitions(at, end))]
        stream.commit(end)
        at = end
    assert seen == [1, 2, 3]
    home.notes["a"] = "2"
    again = home.stream()
    end = again.latestOffset(at, ALL)
    assert [row["seq"] for row in rows_of(again, again.partitions(at, end))] == [4]
    assert again.reportLatestOffset() == end


def test_a_stream_for_what_is_there_ends_where_it_began(home: Home) -> None:
    home.notes["a"] = "1"
    stream = home.stream()
    stream.prepareForTriggerAvailableNow()
    home.notes["a"] = "2"
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert (end["seq"], stream.latestOffset(end, ALL)) == (3, end)


def test_a_stream_begins_at_a_record_or_with_the_next_one(home: Home) -> None:
    home.notes.update({"a": "1", "b": "2"})
    for starting, seen in (("latest", []), ("4", [4]), ("5", [])):
        stream = home.stream(startingOffsets=starting)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ALL)
        parts = stream.partitions(start, end)
        assert [row["seq"] for row in rows_of(stream, parts)] == seen
    with pytest.raises(UsageError, match="the log has 4 records; the next one has the number 5"):
        home.stream(startingOffsets="6").initialOffset()


def test_a_stream_of_the_state_has_each_written_key_once_and_again_the_same(home: Home) -> None:
    stream = home.stream(table="state", columns="key,value")
    start = stream.initialOffset()
    home.notes.update({"a": "1", "b": "2", "c": "3"})
    home.notes["a"] = "4"
    first = stream.latestOffset(start, ALL)
    home.notes["b"] = "5"
    del home.notes["c"]
    second = stream.latestOffset(first, ALL)
    home.notes["a"] = "6"

    def batch(begin: Any, end: Any) -> list[tuple[str, str]]:
        return sorted(
            (r["key"], r["value"]) for r in rows_of(stream, stream.partitions(begin, end))
        )

    assert batch(start, first) == [("a", "4"), ("b", "2"), ("c", "3")]
    assert batch(first, second) == [("b", "5"), ("c", None)]
    assert batch(start, first) == [("a", "4"), ("b", "2"), ("c", "3")]


def test_a_log_made_anew_is_a_loss_and_not_read_again_in_silence(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    home.notes.update({"a": "1", "b": "2"})
    home.exchange()
    stream = home.stream()
    start = stream.initialOffset()
    half = stream.latestOffset(start, ReadMaxRows(3))
    end = stream.latestOffset(start, ALL)
    tasks = stream.partitions(half, end)
    source = home.source()
    home.rejoin()
    named = f"record 4 with the hash {end['hash']} is not in the log of the weaver store 'notes'"
    for position in (half, end):
        with pytest.raises(DataLoss, match="the log was made anew"):
            stream.latestOffset(position, ALL)
    with pytest.raises(DataLoss, match=named):
        stream.partitions(start, end)
    # A task that was planned before meets it, too.
    with pytest.raises(DataLoss, match="the log was made anew"):
        rows_of(stream, tasks)
    assert source.parsed.fail_on_data_loss

    forgiving = home.stream(failOnDataLoss="false", columns="seq")
    with caplog.at_level(logging.WARNING, "datalattice.pipeline"):
        # The batch that was planned cannot be read; the one after it has all of the log, once.
        assert forgiving.partitions(half, end) == []
        after = forgiving.latestOffset(end, ALL)
        found = rows_of(forgiving, forgiving.partitions(end, after))
    assert [row["seq"] for row in found] == [1, 2, 3, 4]
    assert forgiving.latestOffset(after, ALL) == after
    assert named in caplog.text
    assert "reading it from the beginning" in caplog.text


def test_a_log_that_became_shorter_is_a_loss(home: Home) -> None:
    home.exchange()
    home.notes["a"] = "1"
    stream = home.stream()
    end = stream.latestOffset(stream.initialOffset(), ALL)
    home.rejoin()
    with pytest.raises(DataLoss, match="record 3 with the hash"):
        stream.latestOffset(end, ALL)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"store": "00000000-0000-0000-0000-000000000000"},
        {"seq": -1},
        {"seq": True},
        {"seq": "1"},
        {"hash": "0"},
        {"hash": None},
        {"root": None},
    ],
)
def test_a_checkpoint_of_another_source_is_refused(home: Home, change: dict[str, object]) -> None:
    stream = home.stream()
    with pytest.raises(UsageError, match="holds no position of the weaver store 'notes'"):
        stream.partitions(stream.initialOffset() | change, stream.initialOffset())


# --- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "nots"}, "the store has no such name; it has: diary, notes"),
        ({"name": ""}, "a text of at least one character"),
        ({"table": "heads"}, "one of intentions, state, conflicts"),
        ({"table": "conflicts", "name": "diary"}, "only stores of kind core:kvstore have it"),
        ({"columns": "key"}, "one or more of seq, hash"),
        ({"startingOffsets": "0"}, "earliest, latest, or the number of a record, from 1"),
        ({"startingOffsets": "latest"}, "a batch would read nothing from there"),
        ({"startingOffsets": "4"}, "the log has 2 records; the next one has the number 3"),
        ({"endingOffsets": "4"}, "the log has 2 records; the next one has the number 3"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streams"),
        ({"failOnDataLoss": "false"}, "failOnDataLoss is for streams"),
        ({"asOf": "HEAD~1"}, "unknown option asOf"),
    ],
)
def test_options_that_are_not_accepted(home: Home, options: dict[str, str], text: str) -> None:
    home.node.store("diary", kind="log")
    with pytest.raises(UsageError, match=text):
        home.read(**options)


def test_what_a_stream_does_not_take(home: Home) -> None:
    with pytest.raises(UsageError, match="the table conflicts is for batches"):
        home.stream(table="conflicts")
    with pytest.raises(UsageError, match="endingOffsets is for batches"):
        home.stream(endingOffsets="2")


def test_a_store_is_named_by_folder_and_name(home: Home, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="option store is missing"):
        parse_options({"name": "notes"})
    with pytest.raises(UsageError, match="option name is missing"):
        parse_options({"store": str(home.folder)})
    with pytest.raises(NoSuchPath, match="there are no stores in"):
        parse_options({"store": str(tmp_path / "none"), "name": "notes"})
    by_id = parse_options({"path": str(home.folder), "name": home.id})
    assert by_id.columns == WEAVER_COLUMNS[WeaverTable.INTENTIONS]["any"]
    home.node.store("child", kind="log", parent=home.notes)
    assert parse_options({"store": str(home.folder), "name": "notes/child"}).kind == "core:logstore"
