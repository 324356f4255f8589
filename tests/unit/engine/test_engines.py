"""Every engine keeps the protocol, and open_engine says clearly what it cannot open."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from unittest.mock import Mock

import lmdb
import pytest

from datalattice.engine import (
    MEMORY_URL,
    TABLES_MAX,
    Engine,
    LmdbEngine,
    MemoryEngine,
    open_engine,
)
from datalattice.engine.lmdb import READERS_MAX
from datalattice.errors import Corruption, ReadOnly, StoreClosed, StoreFailed, UsageError
from datalattice.testing.children import in_child
from datalattice.testing.engine_kit import KIT_TABLES, check_engine


@pytest.fixture(params=["memory", "lmdb", "lmdb-not-durable"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Engine]]:
    count = 0
    stack = ExitStack()

    def new() -> Engine:
        nonlocal count
        count += 1
        if request.param == "memory":
            return open_engine(MEMORY_URL, KIT_TABLES)
        engine = LmdbEngine(tmp_path / str(count), KIT_TABLES, durable=request.param == "lmdb")
        stack.callback(engine.close)
        return engine

    yield new
    stack.close()


def test_every_engine_keeps_the_protocol(make: Callable[[], Engine]) -> None:
    check_engine(make)


def test_what_was_committed_is_there_after_reopening(tmp_path: Path) -> None:
    with_data = open_engine(tmp_path, KIT_TABLES)
    with with_data.write() as txn:
        txn.put("one", b"k", b"v")
    with_data.close()
    again = open_engine(tmp_path, KIT_TABLES)
    with again.read() as view:
        assert view.get("one", b"k") == b"v"
    again.close()


@pytest.mark.parametrize("reader_first", [True, False])
def test_reader_and_writer_share_one_process(tmp_path: Path, reader_first: bool) -> None:
    LmdbEngine(tmp_path, ("one",)).close()
    first = LmdbEngine(tmp_path, ("one", "late"), read_only=reader_first)
    second = LmdbEngine(tmp_path, ("one", "late"), read_only=not reader_first)
    reader, writer = (first, second) if reader_first else (second, first)
    view = reader.read()
    assert view.get("late", b"k") is None or not reader_first
    with writer.write() as txn:
        txn.put("late", b"k", b"v")
    view.renew()
    assert view.get("late", b"k") == b"v"
    with pytest.raises(ReadOnly, match="reading only"), reader.write():
        pass
    view.close()
    writer.close()
    with reader.read() as still:
        assert still.get("late", b"k") == b"v"
    reader.close()


def test_one_process_cannot_mix_durable_and_not(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, KIT_TABLES)
    with pytest.raises(UsageError, match="durable=True"):
        LmdbEngine(tmp_path, KIT_TABLES, durable=False)
    engine.close()


def test_a_forked_child_opens_the_folder_anew(tmp_path: Path) -> None:
    program = """
import os, sys
from datalattice.engine import LmdbEngine
engine = LmdbEngine(sys.argv[1], ("one",))
with engine.write() as txn:
    txn.put("one", b"k", b"v")
child = os.fork()
if child == 0:
    reader = LmdbEngine(sys.argv[1], ("one",), read_only=True)
    with reader.read() as view:
        os._exit(0 if view.get("one", b"k") == b"v" else 1)
_, status = os.waitpid(child, 0)
with engine.write() as txn:
    txn.put("one", b"k2", b"v")
sys.exit(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == 0


def changed_in_child(path: Path) -> None:
    """Open the folder in a forked child, and change it so often that old pages are used again."""

    def change() -> None:
        with closing(LmdbEngine(path, ("one",))) as engine:
            for number in range(50):
                with engine.write() as txn:
                    for key in range(50):
                        txn.put("one", b"%d" % key, b"%d" % number)

    in_child(change)


def test_a_forked_child_that_writes_leaves_the_parent_its_views(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, ("one",))
    with engine.write() as txn:
        for key in range(50):
            txn.put("one", b"%d" % key, b"parent")
    engine.read().close()  # py-lmdb keeps an ended one, with its slot
    view = engine.read()
    changed_in_child(tmp_path)
    assert view.get("one", b"7") == b"parent"
    assert {value for _, value in view.scan("one")} == {b"parent"}
    with engine.read() as newest:
        assert newest.get("one", b"7") == b"49"
    with engine.write() as txn:
        txn.put("one", b"7", b"again")
    assert view.get("one", b"7") == b"parent"
    view.close()
    engine.close()


def test_a_forked_child_cannot_use_the_transactions_of_its_parent(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, ("one",))
    with engine.write() as txn:
        txn.put("one", b"k", b"v")
    view = engine.read()

    def use() -> bytes | None:
        with pytest.raises(UsageError, match="before a fork"):
            view.get("one", b"k")
        view.close()
        with engine.read() as own:  # the engine opens the folder anew
            return own.get("one", b"k")

    assert in_child(use) == b"v"
    changed_in_child(tmp_path)
    assert view.get("one", b"k") == b"v"
    with engine.write() as txn:
        txn.put("one", b"k", b"w")
        with pytest.raises(UsageError, match="before a fork"):
            in_child(lambda: txn.put("one", b"child", b"w"))
    with engine.read() as newest:
        assert newest.get("one", b"child") is None
    view.close()
    engine.close()


def test_a_write_of_the_parent_is_not_ended_by_a_child(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, ("one",))
    with engine.write() as txn:
        txn.put("one", b"k", b"v")

        def leave() -> None:
            txn.__exit__(None, None, None)

        with pytest.raises(UsageError, match="before a fork"):
            in_child(leave)
    with engine.read() as view:
        assert view.get("one", b"k") == b"v"
    engine.close()


def test_slots_of_processes_that_are_gone_are_used_again(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, ("one",))
    with engine.write() as txn:
        txn.put("one", b"k", b"v")

    def fill() -> int:
        with engine.read() as view:
            views = [engine.read() for _ in range(READERS_MAX - 1)]
            assert view.get("one", b"k") == b"v"
            return len(views)

    for _ in range(2):
        assert in_child(fill) == READERS_MAX - 1
    with engine.read() as view:
        assert view.get("one", b"k") == b"v"
    engine.close()


def test_a_second_process_reads_beside_the_writer(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path, ("one",))
    with engine.write() as txn:
        txn.put("one", b"k", b"v")
    program = """
import sys
from datalattice.engine import LmdbEngine
reader = LmdbEngine(sys.argv[1], ("one",), read_only=True)
with reader.read() as view:
    sys.exit(0 if view.get("one", b"k") == b"v" else 1)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    engine.close()
    assert done.returncode == 0


def test_a_folder_without_tables_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this folder has no tables"):
        open_engine(tmp_path / "none", KIT_TABLES, read_only=True)


def test_a_folder_with_something_else_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"hello " * 3000)
    with pytest.raises(Corruption, match=str(tmp_path)):
        open_engine(tmp_path, KIT_TABLES)


@pytest.mark.parametrize("names", [[], ["a b"], [""], ["é"], ["x" * 65]])
def test_table_names_are_checked(names: list[str]) -> None:
    with pytest.raises(UsageError):
        MemoryEngine(names)


def test_the_number_of_tables_is_bounded() -> None:
    MemoryEngine([f"t{i}" for i in range(TABLES_MAX)])
    with pytest.raises(UsageError, match=str(TABLES_MAX)):
        MemoryEngine([f"t{i}" for i in range(TABLES_MAX + 1)])


@pytest.mark.parametrize(("where", "read_only"), [("redis://x", False), (MEMORY_URL, True)])
def test_other_places_are_refused(where: str, read_only: bool) -> None:
    with pytest.raises(UsageError):
        open_engine(where, KIT_TABLES, read_only=read_only)


def test_a_snapshot_of_a_closed_engine_is_refused(make: Callable[[], Engine]) -> None:
    engine = make()
    view = engine.read()
    view.close()
    engine.close()
    with pytest.raises(StoreClosed):
        view.renew()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_reader_without_write_permission(tmp_path: Path) -> None:
    LmdbEngine(tmp_path, ("one",)).close()
    (tmp_path / "data.mdb").chmod(0o444)
    LmdbEngine(tmp_path, ("one",), read_only=True).close()


def test_a_reader_that_may_not_note_what_it_reads_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LmdbEngine(tmp_path, ("one",)).close()
    monkeypatch.setattr(lmdb, "open", Mock(side_effect=lmdb.Error("d: Permission denied")))
    with pytest.raises(StoreFailed, match=r"readers also need write access to lock\.mdb there"):
        LmdbEngine(tmp_path, ("one",), read_only=True)


def test_tables_made_anew_are_not_those_that_somebody_has_open(tmp_path: Path) -> None:
    first = LmdbEngine(tmp_path / "e", ("one",))
    with first.write() as txn:
        txn.put("one", b"k", b"old")
    shutil.rmtree(tmp_path / "e")
    second = LmdbEngine(tmp_path / "e", ("one",))
    with second.write() as txn:
        txn.put("one", b"k", b"new")
    third = LmdbEngine(tmp_path / "e", ("one",), read_only=True)
    first.close()
    with ExitStack() as stack:
        views = [stack.enter_context(engine.read()) for engine in (second, third)]
        assert [view.get("one", b"k") for view in views] == [b"new", b"new"]
    third.close()
    second.close()


def test_a_link_that_leads_elsewhere_meanwhile_leaves_no_closed_tables_behind(
    tmp_path: Path,
) -> None:
    LmdbEngine(tmp_path / "e", ("one",)).close()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "e")
    linked = LmdbEngine(link, ("one",))
    link.unlink()
    link.symlink_to(tmp_path / "other")
    linked.close()
    again = LmdbEngine(tmp_path / "e", ("one",))
    with again.write() as txn:
        txn.put("one", b"k", b"v")
    again.close()


def test_a_renewed_snapshot_of_a_reader_still_knows_the_tables(tmp_path: Path) -> None:
    with_one = LmdbEngine(tmp_path, ("one",))
    with with_one.write() as txn:
        txn.put("one", b"k", b"v")
    with_one.close()
    reader = LmdbEngine(tmp_path, ("one", "later"), read_only=True)
    view = reader.read()
    for _ in range(3):
        assert (view.get("one", b"k"), view.get("later", b"k")) == (b"v", None)
        view.renew()
    view.close()
    reader.close()
