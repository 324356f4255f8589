"""The journal in front of tables: an engine by the kit, durable at any crash, with many users."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from datalattice.engine import (
    JOURNAL_BYTES,
    JOURNAL_END_FILE,
    JOURNAL_FILE,
    JOURNAL_TABLE,
    Engine,
    JournaledEngine,
    JournalFile,
    LmdbEngine,
    MemoryEngine,
    WriteTxn,
    copy_tables,
    open_engine,
)
from datalattice.engine.journal import RECORD_BYTES_MAX
from datalattice.errors import Corruption, StoreError, StoreFailed
from datalattice.testing.disk import SimDisk, SimulatedCrash
from datalattice.testing.engine_kit import KIT_TABLES, check_engine
from datalattice.testing.journal import JournalEngine
from datalattice.testing.processes import killing

SMALL = 700
"""Bytes of a journal that is full after a few transactions."""


class MemoryFile:
    """A file in memory."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.fails = False
        self.on_sync: Callable[[], object] = lambda: None

    def read(self, offset: int, count: int) -> bytes:
        return bytes(self.data[offset : offset + count])

    def write(self, offset: int, data: bytes) -> None:
        self.data.extend(bytes(max(0, offset + len(data) - len(self.data))))
        self.data[offset : offset + len(data)] = data

    def sync(self) -> None:
        self.on_sync()
        if self.fails:
            raise OSError(5, "Input/output error")

    def size(self) -> int:
        return len(self.data)

    def close(self) -> None:
        pass


class MemoryFiles:
    """The files of a journal in memory, for as many engines as are opened on them."""

    def __init__(self) -> None:
        self.journal = MemoryFile()
        self.end = MemoryFile()

    def __call__(self, name: str) -> MemoryFile:
        return {JOURNAL_FILE: self.journal, JOURNAL_END_FILE: self.end}[name]


@pytest.mark.parametrize("full_bytes", [0, SMALL, 1 << 20])
def test_it_is_an_engine(full_bytes: int) -> None:
    def make() -> Engine:
        base = MemoryEngine((*KIT_TABLES, JOURNAL_TABLE))
        return JournaledEngine(base, MemoryFiles(), b"boot", full_bytes=full_bytes)

    check_engine(make)


def test_it_is_an_engine_in_a_folder(tmp_path: Path) -> None:
    numbers = count()
    check_engine(lambda: open_engine(tmp_path / str(next(numbers)), KIT_TABLES))


# --- crashes ------------------------------------------------------------------------------------

Change = Callable[[WriteTxn], object]


def changes() -> Iterator[Change]:
    """Yield transactions, some of which fill the journal."""

    def fill(txn: WriteTxn, number: int) -> None:
        for key in range(3):
            txn.put("one", b"%d" % key, b"%d" % number * (number % 5))
        txn.delete("one", b"%d" % (number % 3))
        if number % 4 == 3:
            txn.put("two", b"large", bytes(SMALL))

    for number in range(12):
        yield partial(fill, number=number)


def contents(engine: Engine) -> dict[tuple[str, bytes], bytes]:
    with engine.read() as view:
        return {(table, key): value for table in engine.tables for key, value in view.scan(table)}


def opened(disk: SimDisk, boot: int = 0) -> JournaledEngine:
    base = JournalEngine(disk, "tables", (*KIT_TABLES, JOURNAL_TABLE))

    def open_file(name: str) -> JournalFile:
        path = f"tables/front-{name}"
        file = disk.open(path, create=not disk.exists(path), write=True)
        disk.sync_folder("tables")
        return file

    return JournaledEngine(base, open_file, b"%d" % boot, full_bytes=SMALL)


def states() -> list[dict[tuple[str, bytes], bytes]]:
    engine = opened(SimDisk(0))
    found = [contents(engine)]
    for change in changes():
        with engine.write() as txn:
            change(txn)
        found.append(contents(engine))
    return found


def live(engine: Engine, first: int, done: list[int]) -> None:
    for number, change in enumerate(changes()):
        if number >= first:
            with engine.write() as txn:
                change(txn)
            done.append(number)


@pytest.mark.parametrize("power_failure", [False, True], ids=["process", "power"])
def test_a_crash_at_any_write_keeps_what_returned(power_failure: bool) -> None:
    expected = states()
    whole = SimDisk(1)
    live(opened(whole), 0, [])
    for crash_at in range(1, whole.steps + 1):
        disk = SimDisk(crash_at)
        disk.crash_at = crash_at
        done: list[int] = []
        with contextlib.suppress(SimulatedCrash, StoreError):
            live(opened(disk), 0, done)
        disk.restart(power_failure=power_failure)
        engine = opened(disk, boot=int(power_failure))
        reached = contents(engine)
        # What returned is there; what did not is there in full or not at all.
        assert reached in expected[len(done) : len(done) + 2]
        at = expected.index(reached, len(done))
        live(engine, at, [])
        assert contents(engine) == contents(opened(disk, boot=2)) == expected[-1]


def test_a_failed_sync_leaves_nothing_behind() -> None:
    files, base = MemoryFiles(), MemoryEngine((*KIT_TABLES, JOURNAL_TABLE))
    engine = JournaledEngine(base, files, b"boot")
    with engine.write() as txn:
        txn.put("one", b"k", b"1")
    files.journal.fails = True
    with pytest.raises(StoreFailed), engine.write() as txn:
        txn.put("one", b"k", b"2")
    files.journal.fails = False
    assert contents(engine) == {("one", b"k"): b"1"}
    again = JournaledEngine(base, files, b"later boot")
    assert contents(again) == {("one", b"k"): b"1"}
    with again.write() as txn:
        txn.put("one", b"k", b"3")
    assert contents(engine) == contents(again) == {("one", b"k"): b"3"}


def test_a_damaged_journal_is_an_error_and_not_an_older_state() -> None:
    files, base = MemoryFiles(), MemoryEngine((*KIT_TABLES, JOURNAL_TABLE))
    engine = JournaledEngine(base, files, b"boot")
    for number in range(3):
        with engine.write() as txn:
            txn.put("one", b"k", b"%d" % number)
    files.journal.data[files.journal.data.index(b"k\0\0\0\x011") + 5] ^= 1
    for boot in (b"boot", b"later boot"):
        again = JournaledEngine(base, files, boot)
        with pytest.raises(Corruption, match="journal"):
            again.read()
        with pytest.raises(Corruption, match="journal"), again.write():
            pass
        assert again.is_damaged


# --- the header ---------------------------------------------------------------------------------


def test_a_commit_writes_its_record_and_nothing_else_to_the_disk() -> None:
    class Watched(MemoryFile):
        def write(self, offset: int, data: bytes) -> None:
            calls.append((offset, offset + len(data)))
            super().write(offset, data)

        def sync(self) -> None:
            calls.append("sync")

    calls: list[object] = []
    files = MemoryFiles()
    files.journal = Watched()
    engine = JournaledEngine(MemoryEngine((*KIT_TABLES, JOURNAL_TABLE)), files, b"boot")
    with engine.write() as txn:  # the first of this boot
        txn.put("one", b"k", b"v")
    begin = len(files.journal.data) - 4  # over the length that says that no record follows
    for number in range(3):
        calls.clear()
        with engine.write() as txn:
            txn.put("one", bytes([number]), b"x")
        end = len(files.journal.data)
        assert calls == [(begin, end), "sync"]
        begin = end - 4


def numbered(folder: Path, numbers: range) -> None:
    engine = open_engine(folder, ("one",))
    for number in numbers:
        with engine.write() as txn:
            txn.put("one", bytes([number]), b"x")
    engine.close()


def numbers_in(folder: Path, *, read_only: bool) -> list[int]:
    engine = open_engine(folder, ("one",), read_only=read_only)
    with engine.read() as view:
        found = [key[0] for key, _ in view.scan("one")]
    engine.close()
    return found


def make_earlier(folder: Path) -> None:
    """Put the header at the beginning of the journal, as an earlier version did."""
    header = (folder / JOURNAL_END_FILE).read_bytes()[:48]
    with (folder / JOURNAL_FILE).open("rb+") as file:
        file.write(header + header)


def test_a_journal_of_an_earlier_version_keeps_its_records(tmp_path: Path) -> None:
    numbered(tmp_path, range(3))
    make_earlier(tmp_path)
    (tmp_path / JOURNAL_END_FILE).unlink()
    assert numbers_in(tmp_path, read_only=True) == [0, 1, 2]
    numbered(tmp_path, range(3, 6))
    assert numbers_in(tmp_path, read_only=True) == list(range(6))
    assert not any((tmp_path / JOURNAL_FILE).read_bytes()[:128])


def test_records_of_an_earlier_version_that_came_later_count(tmp_path: Path) -> None:
    numbered(tmp_path, range(3))
    before = (tmp_path / JOURNAL_END_FILE).read_bytes()
    numbered(tmp_path, range(3, 6))
    make_earlier(tmp_path)
    (tmp_path / JOURNAL_END_FILE).write_bytes(before)  # the earlier version does not know it
    assert numbers_in(tmp_path, read_only=False) == list(range(6))
    numbered(tmp_path, range(6, 9))
    assert numbers_in(tmp_path, read_only=True) == list(range(9))


def test_a_process_of_an_earlier_version_may_write_meanwhile(tmp_path: Path) -> None:
    engine = open_engine(tmp_path, ("one",))
    with engine.write() as txn:
        txn.put("one", b"\0", b"x")
    before = (tmp_path / JOURNAL_END_FILE).read_bytes()
    numbered(tmp_path, range(1, 3))
    make_earlier(tmp_path)
    with (tmp_path / JOURNAL_END_FILE).open("rb+") as file:  # the earlier version does not know it
        file.write(before)
    with engine.write() as txn:
        txn.put("one", b"\3", b"x")
    engine.close()
    assert numbers_in(tmp_path, read_only=True) == list(range(4))


def test_a_header_of_an_earlier_moment_of_this_boot_takes_no_record_with_it(tmp_path: Path) -> None:
    numbered(tmp_path, range(3))
    before = (tmp_path / JOURNAL_END_FILE).read_bytes()
    numbered(tmp_path, range(3, 6))
    (tmp_path / JOURNAL_END_FILE).write_bytes(before)  # as on a volume that was taken off
    numbered(tmp_path, range(6, 9))
    assert numbers_in(tmp_path, read_only=True) == list(range(9))


@pytest.mark.parametrize("left", [b"", bytes(52), b"x" * 52])
def test_a_header_that_is_lost_takes_no_record_with_it(tmp_path: Path, left: bytes) -> None:
    numbered(tmp_path, range(3))
    (tmp_path / JOURNAL_END_FILE).write_bytes(left)  # as a power failure may leave it
    assert numbers_in(tmp_path, read_only=True) == [0, 1, 2]
    numbered(tmp_path, range(3, 6))
    assert numbers_in(tmp_path, read_only=True) == list(range(6))


def test_a_journal_that_was_not_filled_is_filled_behind_its_records(tmp_path: Path) -> None:
    numbered(tmp_path, range(3))
    journal = tmp_path / JOURNAL_FILE
    journal.write_bytes(journal.read_bytes()[:4_000])
    assert numbers_in(tmp_path, read_only=False) == [0, 1, 2]
    assert journal.stat().st_size == JOURNAL_BYTES


def test_tables_that_are_replaced_take_their_journal_with_them(tmp_path: Path) -> None:
    numbered(tmp_path / "old", range(3))
    numbered(tmp_path / "new", range(7, 9))
    engine = open_engine(tmp_path / "new", ("one",), read_only=True)
    copy_tables(engine, tmp_path / "old")
    engine.close()
    assert numbers_in(tmp_path / "old", read_only=True) == [7, 8]
    numbered(tmp_path / "old", range(1))
    assert numbers_in(tmp_path / "old", read_only=True) == [0, 7, 8]


# --- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_record_has_a_greatest_size(more: int) -> None:
    files, base = MemoryFiles(), MemoryEngine((*KIT_TABLES, JOURNAL_TABLE))
    engine = JournaledEngine(base, files, b"boot")
    with engine.write() as txn:  # a change counts 8 bytes besides key and value
        txn.put("one", b"k", bytes(RECORD_BYTES_MAX - 9 + more))
    with base.read() as tables:
        assert tables.count("one") == (more > 0)
    again = JournaledEngine(base, files, b"later boot")
    assert len(contents(again)["one", b"k"]) == RECORD_BYTES_MAX - 9 + more


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_the_journal_goes_to_the_tables_once_it_is_full(more: int) -> None:
    files, base = MemoryFiles(), MemoryEngine((*KIT_TABLES, JOURNAL_TABLE))
    engine = JournaledEngine(base, files, b"boot", full_bytes=SMALL)
    with engine.write() as txn:
        txn.put("one", b"first", b"")
    end = files.journal.data.rindex(b"first") + len(b"first") + 4  # where the next record begins
    with engine.write() as txn:
        txn.put("one", b"k", bytes(SMALL - end - 9 + more))
    with base.read() as tables:
        assert tables.count("one") == (2 if more > 0 else 0)
    assert contents(engine).keys() == {("one", b"first"), ("one", b"k")}


# --- several engines ----------------------------------------------------------------------------


def test_engines_on_one_journal_see_each_other_at_once() -> None:
    files, base = MemoryFiles(), MemoryEngine((*KIT_TABLES, JOURNAL_TABLE))
    one, other = (JournaledEngine(base, files, b"boot", full_bytes=SMALL) for _ in range(2))
    for number in range(40):
        writer, reader = (one, other) if number % 3 else (other, one)
        before, seen = reader.read(), contents(reader)
        commits = reader.last_commit
        with writer.write() as txn:
            txn.put("one", b"%d" % (number % 7), b"%d" % number)
        assert reader.last_commit > commits
        assert contents(one) == contents(other)
        assert contents(one)["one", b"%d" % (number % 7)] == b"%d" % number
        assert {("one", key): value for key, value in before.scan("one")} == seen
        before.close()


def test_what_is_not_durable_yet_is_seen_by_no_one() -> None:
    files, base = MemoryFiles(), MemoryEngine((*KIT_TABLES, JOURNAL_TABLE))
    writer = JournaledEngine(base, files, b"boot")
    reader = JournaledEngine(base, files, b"boot")
    with writer.write() as txn:
        txn.put("one", b"k", b"1")
    seen = []
    files.journal.on_sync = lambda: seen.append(contents(reader))
    with writer.write() as txn:
        txn.put("one", b"k", b"2")
    assert seen == [{("one", b"k"): b"1"}]
    assert contents(reader) == {("one", b"k"): b"2"}


WRITER = """
import sys
from datalattice.engine import open_engine
engine = open_engine(sys.argv[1], ("one",))
for number in range(int(sys.argv[3])):
    with engine.write() as txn:
        last = int(txn.get("one", b"count") or b"0")
        txn.put("one", b"count", b"%d" % (last + 1))
        txn.put("one", b"%s/%d" % (sys.argv[2].encode(), number), bytes(300))
"""


def test_a_thread_that_reads_while_a_record_is_published_does_not_take_it_twice() -> None:
    readers: list[threading.Thread] = []
    engines: list[JournaledEngine] = []

    class Published(MemoryFile):
        def write(self, offset: int, data: bytes) -> None:
            super().write(offset, data)
            if not engines:
                return
            reader = threading.Thread(target=lambda: engines[0].read().close())
            readers.append(reader)
            reader.start()
            reader.join(0.2)  # it has read the record by then, or waits for the writer

    files = MemoryFiles()
    files.end = Published()
    base = MemoryEngine((*KIT_TABLES, JOURNAL_TABLE))
    engine = JournaledEngine(base, files, b"boot")
    engines.append(engine)
    for number in range(3):
        with engine.write() as txn:
            txn.put("one", bytes([number]), b"x")
    assert len(readers) == 3
    for reader in readers:
        reader.join()
    other = JournaledEngine(base, files, b"boot")
    with other.read() as seen:
        assert [key for key, _ in seen.scan("one")] == [b"\0", b"\1", b"\2"]


@pytest.mark.processes
def test_processes_that_write_at_once_lose_nothing(tmp_path: Path, ending: ExitStack) -> None:
    turns = 600  # fills the journal
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    open_engine(tmp_path, ("one",)).close()
    running = [
        ending.enter_context(killing(subprocess.Popen([*command, name, str(turns)])))
        for name in ("a", "b")
    ]
    reader = open_engine(tmp_path, ("one",), read_only=True)
    with reader.read() as view:
        last = 0
        while any(one.poll() is None for one in running):
            view.renew()
            found = int(view.get("one", b"count") or b"0")
            assert found >= last
            assert view.count("one") == found + (found > 0)
            last = found
        view.renew()
        assert [one.returncode for one in running] == [0, 0]
        assert view.get("one", b"count") == b"%d" % (2 * turns)
        assert view.count("one") == 2 * turns + 1
    reader.close()


def test_tables_that_need_not_be_durable_go_on_from_the_journal(tmp_path: Path) -> None:
    engine = open_engine(tmp_path, ("one",))
    with engine.write() as txn:
        txn.put("one", b"k", b"1")
    engine.close()
    engine = open_engine(tmp_path, ("one",), durable=False)
    assert contents(engine) == {("one", b"k"): b"1"}
    with engine.write() as txn:
        txn.put("one", b"l", b"2")
    engine.close()
    # Nothing of it is in the journal any more.
    engine = LmdbEngine(tmp_path, ("one",), read_only=True)
    assert contents(engine) == {("one", b"k"): b"1", ("one", b"l"): b"2"}
    engine.close()


def test_where_no_boot_id_is_known_nothing_is_acknowledged_in_the_journal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datalattice.engine.boot_id", lambda: b"")
    engine = open_engine(tmp_path, ("t",))
    with engine.write() as txn:
        txn.put("t", b"k", b"v")
    engine.close()
    (tmp_path / JOURNAL_FILE).unlink()
    (tmp_path / JOURNAL_END_FILE).unlink()
    engine = open_engine(tmp_path, ("t",))
    with engine.read() as view:
        assert view.get("t", b"k") == b"v"
    engine.close()
