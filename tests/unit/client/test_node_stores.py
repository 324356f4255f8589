"""Weaver stores through the front door: `node.store`, handles, batches, streams, processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

import datalattice
from datalattice import KVStore, LogStore
from datalattice.errors import (
    BadFormat,
    ConsumerBusy,
    NoSuchPath,
    ReadOnly,
    StoreClosed,
    TypeMismatch,
    UnsupportedOperation,
    UsageError,
)
from datalattice.protobuf import Field, Message
from datalattice.testing.polling import LIMIT_S
from datalattice.testing.stores_kit import envelopes_of
from datalattice.weaver import (
    Dag,
    Machine,
    MachineStore,
    Op,
    Proposal,
    StateReader,
    StateWriter,
    SystemBatch,
    command,
    query,
    store_id_text,
    stream,
)


class Count(Message, name="test.counter.Count"):
    by: Annotated[int, Field(1, "uint32")] = 0


class Total(Message, name="test.counter.Total"):
    total: Annotated[int, Field(1, "uint32")] = 0


class Counter(Machine):
    kind = "test:counter"

    def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterable[Message]:
        by = Count.decode(op.payload)
        state.put(op.hash, bytes([by.by]))
        return (by,)

    @command
    def count(self, request: Count, state: StateReader, dag: Dag) -> Proposal[Total]:
        """Count up."""
        if not request.by:
            raise UsageError("count by 1 or more")
        return Proposal(request.encode())

    @query
    def total(self, request: Count, state: StateReader, dag: Dag) -> Total:
        """Return the total."""
        return Total(sum(value[0] for _, value in state.scan()))

    @stream
    def counts(self, params: Count) -> Callable[[Message], Count | None]:
        """Yield each count."""
        return lambda event: event if isinstance(event, Count) else None


@pytest.fixture
def node(tmp_path: Path) -> Iterator[datalattice.Node]:
    with datalattice.open(tmp_path / "data") as opened:
        yield opened


# --- keys and values ------------------------------------------------------------------------------


def test_a_store_of_keys_is_a_mutable_mapping(node: datalattice.Node) -> None:
    notes = node.store("notes", kind="kv")
    assert isinstance(notes, KVStore)
    notes["title"] = "Shopping"
    notes.update({"a": "1", "b": "2"})
    assert dict(notes) == {"a": "1", "b": "2", "title": "Shopping"}
    assert "a" in notes
    assert "z" not in notes
    assert 7 not in notes  # type: ignore[comparison-overlap]
    assert notes.pop("a") == "1"
    assert notes.setdefault("b", "3") == "2"
    assert list(notes.scan("t")) == [("title", "Shopping")]
    del notes["b"]
    with pytest.raises(KeyError):
        del notes["b"]
    with pytest.raises(KeyError):
        notes["b"]
    assert len(notes) == 1
    assert repr(notes) == "<KVStore 'notes': 1 key>"


def test_values_are_text_unless_another_type_is_named(node: datalattice.Node) -> None:
    notes = node.store("notes", kind="kv")
    with pytest.raises(TypeMismatch, match="of=bytes"):
        notes["n"] = 3  # type: ignore[assignment]
    raw = node.store("notes", of=bytes)
    raw["bytes"] = b"\xff\x00"
    notes["again"] = notes["bytes"]
    assert raw["again"] == b"\xff\x00"
    typed = node.store("typed", kind="kv", of=dict[str, int])
    typed["tea"] = {"count": 3}
    assert typed["tea"] == {"count": 3}
    with pytest.raises(TypeMismatch, match="bytes"):
        raw["x"] = "text"


def test_wrong_calls_are_refused_by_what_they_got(node: datalattice.Node) -> None:
    calls: list[tuple[Any, Any, Any, str]] = [
        (5, None, None, "a store is named by text, got 5"),
        ("s", 5, None, "kind= is 'kv', 'log' or a class of Machine, got 5"),
        ("s", dict, None, "a class of Machine, got <class 'dict'>"),
        ("s", "kv", "team", "parent= is a store, .* got 'team'"),
    ]
    for name, kind, parent, text in calls:
        with pytest.raises(TypeMismatch, match=text):
            node.store(name, kind=kind, parent=parent)
    diary = node.store("diary", kind="log")
    diary.append("rain")
    wrongs: list[Any] = ["a", 1.5, slice("2026", None), slice(0, "2026")]
    for wrong in wrongs:
        with pytest.raises(TypeMismatch, match="a position in a log is a number, got"):
            diary[wrong]
    with pytest.raises(BadFormat, match="b'rain' was not written with this of=: "):
        node.store("diary", of=int)[0]


def test_a_batch_refuses_a_key_where_it_is_written(node: datalattice.Node) -> None:
    notes = node.store("notes", kind="kv")
    with notes.batch():
        for key in ("", "k" * 32_769):
            with pytest.raises(UsageError, match="a key has 1 to 32768 bytes"):
                notes[key] = "v"
        notes["k" * 32_768] = "v"
    assert len(notes) == 1


def test_an_empty_key_is_refused_and_an_empty_value_is_a_value(node: datalattice.Node) -> None:
    notes = node.store("notes", kind="kv")
    with pytest.raises(UsageError):
        notes[""] = "x"
    notes["x"] = ""
    assert notes["x"] == ""
    with pytest.raises(TypeMismatch):
        notes[3]  # type: ignore[index]


def test_half_a_character_is_refused_by_name_in_keys_and_in_values(
    node: datalattice.Node,
) -> None:
    notes = node.store("notes", kind="kv")
    for write, what in (
        (lambda: notes.update({"a\ud800": "v"}), "a key"),
        (lambda: notes.update({"k": "a\udfff"}), "a value"),
        (lambda: node.store("log", kind="log").append("a\ud800"), "a value"),
    ):
        with pytest.raises(
            UsageError, match=f"{what} must be text that UTF-8 can encode; character 1 is"
        ):
            write()
    notes["x\udc80"] = "\udcff"  # what other bytes are read as
    assert dict(notes) == {"x\udc80": "\udcff"}


def test_a_batch_is_one_operation_and_reads_see_it(node: datalattice.Node) -> None:
    notes = node.store("notes", kind="kv")
    notes["old"] = "1"
    before = notes.status().intentions
    with notes.batch():
        notes["a"] = "1"
        notes["a"] = "2"
        del notes["old"]
        with notes.batch():
            notes["b"] = "3"
        assert dict(notes) == {"a": "2", "b": "3"}
    assert dict(notes) == {"a": "2", "b": "3"}
    assert notes.status().intentions == before + 1
    with notes.batch():
        pass
    assert notes.status().intentions == before + 1


def test_an_exception_undoes_a_batch(node: datalattice.Node) -> None:
    notes = node.store("notes", kind="kv")

    def fail() -> None:
        with notes.batch():
            notes["a"] = "1"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert dict(notes) == {}


def test_history_is_every_write_of_a_key_the_newest_first(node: datalattice.Node) -> None:
    notes = node.store("notes", kind="kv")
    notes["k"] = "1"
    with notes.batch():
        notes["k"], notes["other"] = "2", "x"
    notes["other"] = "y"
    del notes["k"]
    notes["k"] = "3"
    versions = notes.history("k")
    assert [version.value for version in versions] == ["3", None, "2", "1"]
    assert {version.author for version in versions} == {notes.store.author}
    assert versions[0].time >= versions[-1].time
    assert notes.history("nothing") == []
    assert re.fullmatch(
        rf"<Version '\w+' by {versions[0].author.hex()[:8]} at [-0-9]+ [:.0-9]+\+00:00, "
        rf"hash {versions[0].hash.hex()[:12]}>",
        repr(versions[0]),
    )


def test_concurrent_writes_are_a_conflict_until_the_next_write(tmp_path: Path) -> None:
    with datalattice.open(tmp_path / "a") as anna, datalattice.open(tmp_path / "b") as bert:
        ours = anna.store("notes", kind="kv")
        bert.weaver.adopt(ours.store.id, ours.store.kind)
        theirs = bert.store(ours.id, kind="kv")

        def meet() -> None:
            sent = envelopes_of(ours.store), envelopes_of(theirs.store)
            theirs.store.ingest(sent[0])
            ours.store.ingest(sent[1])

        meet()
        ours["k"] = "anna"
        theirs["k"] = "bert"
        assert ours.conflicts("k") == []
        meet()
        assert ours["k"] == theirs["k"]
        conflict = ours.conflicts("k")
        assert conflict == theirs.conflicts("k")
        assert {version.value for version in conflict} == {"anna", "bert"}
        assert conflict[0].value == ours["k"]
        assert ours.conflicted() == ["k"]
        theirs["k"] = "both"
        meet()
        assert ours["k"] == "both"
        assert ours.conflicts("k") == []
        assert ours.conflicted() == []
        assert len(ours.history("k")) == 3


def test_a_watch_yields_what_keys_hold_after_they_are_written(node: datalattice.Node) -> None:
    notes = node.store("notes", kind="kv")
    notes["before"] = "x"
    with notes.watch("t", wait=False) as watch:
        notes["title"] = "1"
        notes["other"] = "2"
        assert watch.poll() == [("title", "1")]
        del notes["title"]
        assert watch.poll() == [("title", None)]
        assert watch.poll() == []


def test_a_watch_sees_what_another_process_writes(node: datalattice.Node, tmp_path: Path) -> None:
    notes = node.store("notes", kind="kv")
    with notes.watch(timeout=50) as watch:
        child = multiprocessing.get_context("spawn").Process(
            target=_put_in_another_process, args=(str(tmp_path / "data"), "from", "outside")
        )
        child.start()
        try:
            assert next(watch) == ("from", "outside")
        finally:
            child.join(50)


def _put_in_another_process(path: str, key: str, value: str) -> None:
    with datalattice.open(path) as node:
        node.store("notes")[key] = value


# --- logs -----------------------------------------------------------------------------------------


def test_a_log_is_a_sequence(node: datalattice.Node) -> None:
    diary = node.store("diary", kind="log")
    assert isinstance(diary, LogStore)
    assert len(diary.append("rain")) == 32
    for text in ("sun", "snow", "fog"):
        diary.append(text)
    assert list(diary) == ["rain", "sun", "snow", "fog"]
    assert list(reversed(diary)) == ["fog", "snow", "sun", "rain"]
    assert (diary[0], diary[-1], diary[-4]) == ("rain", "fog", "rain")
    assert (diary[1:3], diary[-2:], diary[:-1], diary[-3:-1], diary[5:]) == (
        ["sun", "snow"],
        ["snow", "fog"],
        ["rain", "sun", "snow"],
        ["sun", "snow"],
        [],
    )
    assert diary.tail(2) == ["snow", "fog"]
    assert diary.tail(0) == []
    assert len(diary) == 4
    assert "sun" in diary
    for index in (4, -5):
        with pytest.raises(IndexError):
            diary[index]
    with pytest.raises(UsageError, match="step"):
        diary[::2]
    with pytest.raises(UsageError, match="empty"):
        diary.append("")
    assert repr(diary) == "<LogStore 'diary': 4 entries>"


def test_a_log_is_followed_from_the_start_and_from_the_end(node: datalattice.Node) -> None:
    diary = node.store("diary", kind="log")
    diary.append("rain")
    with (
        diary.follow(wait=False) as all_entries,
        diary.follow("end", wait=False) as new,
    ):
        diary.append("sun")
        assert [record.value for record in all_entries] == ["rain", "sun"]
        (record,) = new
        assert record.value == "sun"
        assert record.author == diary.store.author
        assert record.time.year > 2000
    with pytest.raises(UsageError, match="start"):
        diary.follow("middle")


def test_a_log_is_followed_on_from_a_record(node: datalattice.Node) -> None:
    diary = node.store("diary", kind="log")
    hashes = diary.extend(["rain", "sun", "fog"])
    with diary.follow(hashes[0], wait=False) as follow:
        assert [record.value for record in follow] == ["sun", "fog"]
    with pytest.raises(NoSuchPath, match="00000000"):
        diary.follow(bytes(32))


def test_a_follower_waits_for_what_another_thread_appends(node: datalattice.Node) -> None:
    diary = node.store("diary", kind="log")
    with diary.follow("end", timeout=50) as follow:
        thread = threading.Thread(target=diary.append, args=("sun",))
        thread.start()
        assert next(follow).value == "sun"
        thread.join()


def test_a_consumer_goes_on_where_it_was_left(node: datalattice.Node) -> None:
    diary = node.store("diary", kind="log")
    diary.extend(["rain", "sun", "fog"])
    with diary.consumer("printer", wait=False) as records:
        assert records.position is None
        for record in records:
            if record.value == "sun":
                break  # "sun" is not done: it comes again
    with diary.consumer("printer", wait=False) as records:
        assert [record.value for record in records] == ["sun", "fog"]
    diary.append("snow")
    with diary.consumer("printer", wait=False) as records:
        assert [record.value for record in records.poll()] == ["snow"]
        assert records.poll() == []
    with diary.consumer("printer", wait=False) as records:
        assert list(records) == []
    with diary.consumer("other", start="end", wait=False) as records:
        assert list(records) == []


def test_a_consumer_keeps_its_place_over_an_error_and_commit_moves_it(
    node: datalattice.Node,
) -> None:
    diary = node.store("diary", kind="log")
    hashes = diary.extend(["rain", "sun"])

    def fail() -> None:
        with diary.consumer("printer", wait=False) as records:
            for record in records:
                raise ValueError(record.value)

    with pytest.raises(ValueError, match="rain"):
        fail()
    with diary.consumer("printer", wait=False, commit_every=0.0) as records:
        assert next(records).value == "rain"
        records.commit()
        assert records.position == hashes[0]
        assert next(records).value == "sun"
    with diary.consumer("printer", wait=False) as records:
        assert [record.value for record in records] == ["sun"]


def test_a_consumer_takes_seeks_and_says_its_lag_as_one_of_a_queue_does(
    node: datalattice.Node,
) -> None:
    diary = node.store("diary", kind="log")
    queue = node.queue("diary")
    values = ["rain", "sun", "fog", "snow"]
    hashes = diary.extend(values)
    for value in values:
        queue.offer(value)
    consumers: tuple[Any, ...] = (
        diary.consumer("p", wait=False),
        queue.consumer("p", wait=False),
    )
    for records in consumers:
        with records:
            assert records.lag() == 4
            with records.take(2) as taken:
                assert [one.value for one in taken] == ["rain", "sun"]
                assert records.lag() == 4  # not done yet
            assert records.lag() == 2
            with pytest.raises(ValueError, match="fog"), records.take(1) as taken:
                raise ValueError(taken[0].value)
            assert [one.value for one in records.take(9)] == ["fog", "snow"]
            records.rewind()
            assert [one.value for one in records] == ["fog", "snow"]
            assert records.take(1, timeout=0.01) == []
            records.seek("start")
            assert next(records).value == "rain"
            assert [one.value for one in records] == values  # `next` alone does not say it is done
            records.seek("end")
            assert (records.lag(), records.take(1)) == (0, [])
            with pytest.raises(UsageError, match="count"):
                records.take(0)
    with diary.consumer("p", wait=False) as records:
        assert records.committed == records.position == hashes[-1]
        records.seek(hashes[1])
        assert (records.committed, records.lag()) == (hashes[1], 2)
        with pytest.raises(NoSuchPath):
            records.seek(bytes(31) + b"x")
        with pytest.raises(UsageError, match="start"):
            records.seek("middle")
    with diary.consumer("p", wait=False, start="end") as records:
        assert [one.value for one in records] == ["fog", "snow"]


def test_where_a_consumer_begins_is_stored_though_nothing_was_read(node: datalattice.Node) -> None:
    diary = node.store("diary", kind="log")
    diary.append("before")
    diary.consumer("printer", start="end").close()
    diary.append("between")
    with diary.consumer("printer", start="end", wait=False) as records:
        assert [one.value for one in records] == ["between"]


def test_a_consumer_that_takes_wakes_for_what_another_thread_appends(
    node: datalattice.Node,
) -> None:
    diary = node.store("diary", kind="log")
    with diary.consumer("printer") as records:
        thread = threading.Thread(target=diary.append, args=("sun",))
        thread.start()
        assert [one.value for one in records.take(5, timeout=50)] == ["sun"]
        thread.join()


def test_a_consumer_s_name_is_used_once_at_a_time(node: datalattice.Node, tmp_path: Path) -> None:
    diary = node.store("diary", kind="log")
    with diary.consumer("printer"), pytest.raises(ConsumerBusy, match="printer"):
        diary.consumer("printer")
    with pytest.raises(NoSuchPath):
        diary.consumer("other", start=bytes(32))
    diary.consumer("printer").close()
    with (
        datalattice.open(tmp_path / "data", read_only=True) as reader,
        pytest.raises(ReadOnly),
    ):
        reader.store("diary").consumer("printer")


# --- machines -------------------------------------------------------------------------------------


def test_a_machine_gives_its_methods(node: datalattice.Node) -> None:
    counter = node.store("visits", kind=Counter)
    assert isinstance(counter, MachineStore)
    with counter.subscribe("counts", wait=False) as counts:
        counter.count(by=2)
        counter.call("Count", Count(3))
        assert counts.poll() == [Count(2), Count(3)]
    assert counter.total() == Total(5)
    assert {"count", "total"} <= set(dir(counter))
    with pytest.raises(AttributeError, match="nothing"):
        counter.nothing()
    with pytest.raises(UsageError, match="1 or more"):
        counter.count()
    assert repr(counter) == "<MachineStore 'visits' of test:counter>"
    with pytest.raises(UsageError, match="of="):
        node.store("visits", of=str)


# --- finding and making ---------------------------------------------------------------------------


def test_a_store_is_made_by_its_kind_and_found_without(node: datalattice.Node) -> None:
    with pytest.raises(NoSuchPath, match="kind='kv'"):
        node.store("notes")
    made = node.store("notes", kind="kv")
    assert node.store("notes") == made
    assert node.store(made.id) == made
    assert node.store("notes", kind="core:kvstore") == made
    with pytest.raises(UsageError, match="of kind core:kvstore, not core:logstore"):
        node.store("notes", kind="log")
    with pytest.raises(UsageError, match="no machine of kind"):
        node.store("other", kind="nothing")
    assert node.stores() == ["notes"]


def test_a_child_opens_as_soon_as_its_parent_declares_it(
    node: datalattice.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = node.store("team", kind="kv")
    id = bytes(range(16))
    with monkeypatch.context() as patched:
        # As between the commit of a declaration, here or in another process, and what follows it.
        patched.setattr(type(node.weaver), "_reconcile_quietly", lambda _stores, _id: None)
        team.store.write_system(SystemBatch().add_child(id, "diary", "core:logstore"))
    assert not node.weaver.has(id)
    assert node.stores(team) == ["diary"]
    assert list(node.store("diary", parent=team)) == []
    assert node.store("team/diary").id == store_id_text(id)


def test_children_are_found_below_their_parent(node: datalattice.Node) -> None:
    team = node.store("team", kind="kv")
    diary = node.store("diary", kind="log", parent=team)
    diary.append("rain")
    assert node.stores() == ["team"]
    assert node.stores(team) == ["diary"]
    assert node.store("diary", parent=team) == diary
    node.weaver.archive(team.store.id, diary.store.id)
    assert node.stores(team) == []


def test_a_node_without_stores_has_none_and_makes_no_folder(
    node: datalattice.Node, tmp_path: Path
) -> None:
    assert node.stores() == []
    assert not (tmp_path / "data" / "weaver").exists()


def test_nodes_of_one_process_share_the_stores(node: datalattice.Node, tmp_path: Path) -> None:
    notes = node.store("notes", kind="kv")
    with datalattice.open(tmp_path / "data") as beside:
        other = beside.store("notes")
        other["k"] = "v"
        assert notes["k"] == "v"
        assert other.store is notes.store
    notes["k"] = "w"
    with pytest.raises(StoreClosed):
        other["k"]


def test_a_read_only_node_reads_without_a_key(node: datalattice.Node, tmp_path: Path) -> None:
    with datalattice.open(tmp_path / "data", read_only=True) as reader:
        with pytest.raises(NoSuchPath):
            reader.store("notes")
        node.store("notes", kind="kv")["k"] = "v"
        notes = reader.store("notes")
        assert notes["k"] == "v"
        with pytest.raises(ReadOnly):
            notes["k"] = "w"
        with pytest.raises(ReadOnly):
            reader.store("other", kind="kv")


def test_a_former_root_shows_no_stores(node: datalattice.Node) -> None:
    node.database("shop")["a"] = 1
    with node.as_of("HEAD") as past, pytest.raises(UnsupportedOperation, match="history"):
        past.store("notes")


def test_a_node_in_memory_has_stores_and_they_do_not_travel() -> None:
    with datalattice.open(":memory:") as node:
        notes = node.store("notes", kind="kv")
        notes["k"] = "v"
        assert node.stores() == ["notes"]
        with pytest.raises(UsageError, match="memory"):
            pickle.dumps(notes)


def test_handles_travel_by_pickle(node: datalattice.Node) -> None:
    notes = node.store("notes", kind="kv", of=bytes)
    notes["k"] = b"v"
    counter = node.store("visits", kind=Counter)
    counter.count(by=1)
    again = pickle.loads(pickle.dumps(notes))
    assert again["k"] == b"v"
    assert pickle.loads(pickle.dumps(counter)).total() == Total(1)


def test_a_forked_child_writes_to_the_same_store(node: datalattice.Node) -> None:
    notes = node.store("notes", kind="kv")
    notes["from"] = "parent"
    pid = os.fork()
    if pid == 0:
        try:
            notes["child"] = notes["from"]
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert notes["child"] == "parent"
    notes["from"] = "parent again"
    assert notes.status().forks == 0


def test_a_node_shows_its_stores(node: datalattice.Node) -> None:
    assert repr(node).endswith(": empty>")
    node.store("notes", kind="kv")
    assert repr(node).endswith(": 1 store>")
    assert "notes" in node._repr_html_()


def test_a_long_log_is_read_in_lots(node: datalattice.Node) -> None:
    diary = node.store("diary", kind="log")

    assert len(diary.extend(str(at) for at in range(2_001))) == 2_001
    with pytest.raises(UsageError, match="empty"):
        diary.extend(["x", ""])
    assert diary.extend([]) == []
    assert list(diary) == [str(at) for at in range(2_001)]
    assert list(reversed(diary)) == list(diary)[::-1]
    with diary.follow(wait=False) as follow:
        assert [record.value for record in follow] == list(diary)


def test_the_id_of_another_node_s_store_takes_it_empty(node: datalattice.Node) -> None:
    id = "11111111-2222-4333-8444-555555555555"
    with pytest.raises(NoSuchPath):
        node.store(id)
    taken = node.store(id, kind="kv")
    assert (taken.id, dict(taken)) == (id, {})
    assert taken.status().intentions == 0
    assert node.stores() == [id]


def test_threads_that_make_one_store_at_once_get_the_same(tmp_path: Path) -> None:
    found: list[str] = []
    barrier = threading.Barrier(6)

    def work(number: int) -> None:
        with datalattice.open(tmp_path / "data") as node:
            barrier.wait(LIMIT_S)
            notes = node.store("notes", kind="kv")
            notes[str(number)] = "x"
            found.append(notes.id)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1
    with datalattice.open(tmp_path / "data") as node:
        assert sorted(node.store("notes")) == ["0", "1", "2", "3", "4", "5"]
        assert node.stores() == ["notes"]
