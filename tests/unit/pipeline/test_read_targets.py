"""Places: where a format reads from, named by options, opened once for each process."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest

from datalattice.cells import Index, Value, Vector, encode, same, value_hash
from datalattice.client import write_key
from datalattice.clock import SystemClock
from datalattice.crypto import KeyPair
from datalattice.errors import MissingData, NoSigningKey, PeerUnavailable, StoreFailed, UsageError
from datalattice.pipeline import read_targets, remote
from datalattice.pipeline.options import Given
from datalattice.pipeline.read_targets import (
    LEASE_SECONDS,
    OPEN_MAX,
    ReadTarget,
    encodings,
    open_target,
    read_target_option,
)
from datalattice.store import CellStore
from datalattice.store.gc import collection
from datalattice.store.kept import KEEP_NOTHING, LEASE_SECONDS_MAX
from datalattice.store.kept.pins import PINS_LOCK
from datalattice.testing.background import BackgroundNode
from datalattice.testing.clocks import LateClock

HASH = "ab" * 32


def place(**options: str) -> ReadTarget:
    return read_target_option(Given.of(options, ReadTarget))


def value(number: int) -> Index:
    return Index.of([("n", Vector.of(range(number, number + 1_000)))])


def store_of(folder: Path, *values: Value) -> Path:
    with CellStore.open(folder) as store:
        for one in values:
            store.commit(one)
    return folder


# --- options ------------------------------------------------------------------------------------


def test_a_place_is_a_folder_or_a_node() -> None:
    assert place(store="s") == place(path="s") == place(path="s", store="s") == ReadTarget("s")
    assert place(node="tcp://h:5") == ReadTarget(node="tcp://h:5")
    assert place(node="tls://h:5") == place(node="h:5")
    assert place(store="s").lease_seconds == LEASE_SECONDS
    assert place(store="s", asOf="@10m", leaseSeconds="0") == ReadTarget(
        "s", as_of="@10m", lease_seconds=0
    )
    assert place(store="s", leaseSeconds=str(LEASE_SECONDS_MAX)).lease_seconds == LEASE_SECONDS_MAX
    for digits in (HASH, "0x" + HASH):
        assert place(node="h:5", asOf=digits).as_of == digits
    assert pickle.loads(pickle.dumps(place(store="s", asOf="pin"))) == ReadTarget("s", as_of="pin")
    assert (str(ReadTarget("s")), str(ReadTarget(node="h:5"))) == ("s", "node h:5")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "option store is missing"),
        ({"store": ""}, "option store=''"),
        ({"node": ""}, "an address is host:port"),
        ({"node": "nowhere"}, "option node='nowhere' is not accepted: an address is"),
        ({"node": "http://h:5"}, "an address is host:port"),
        ({"node": "h:70000"}, "a port to dial"),
        ({"store": "a", "path": "b"}, "another folder"),
        (
            {"store": "a", "node": "h:5"},
            "option node='h:5' is not accepted: the option store is given",
        ),
        ({"path": "a", "node": "h:5"}, "the option store is given"),
        ({"node": "h:5", "asOf": "@10m"}, "option asOf='@10m' is not accepted: a node finds"),
        ({"node": "h:5", "asOf": HASH[2:]}, "64 hex digits"),
        ({"node": "h:5", "asOf": HASH + "ab"}, "64 hex digits"),
        ({"store": "a", "asOf": ""}, "option asOf=''"),
        ({"store": "a", "nodeKey": "k"}, "option nodeKey='k' is not accepted: it authenticates"),
        ({"store": "a", "leaseSeconds": "-1"}, "option leaseSeconds='-1' is not accepted: whole"),
        ({"store": "a", "leaseSeconds": str(LEASE_SECONDS_MAX + 1)}, str(LEASE_SECONDS_MAX)),
    ],
)
def test_a_malformed_target_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError) as refused:
        place(**options)
    assert text in str(refused.value)


# --- stores -------------------------------------------------------------------------------------


def test_a_store_and_the_folder_of_its_node_are_the_same_place(tmp_path: Path) -> None:
    store_of(tmp_path / "store", value(1))
    for folder in (tmp_path, tmp_path / "store"):
        source = open_target(ReadTarget(str(folder)))
        assert source.root_hash() == value_hash(value(1))
        assert same(source.root(), value(1))
    assert len([name for name in read_targets._open if name.startswith(str(tmp_path))]) == 1


def test_a_place_that_is_open_sees_what_comes(tmp_path: Path) -> None:
    store_of(tmp_path, value(1))
    source = open_target(ReadTarget(str(tmp_path)))
    assert same(source.root(), value(1))
    store_of(tmp_path, value(2))
    assert same(source.root(), value(2))
    assert same(open_target(ReadTarget(str(tmp_path))).root(), value(2))


def test_a_folder_made_anew_is_another_place(tmp_path: Path) -> None:
    folder = store_of(tmp_path / "s", value(1))
    assert same(open_target(ReadTarget(str(folder))).root(), value(1))
    other = store_of(tmp_path / "other", value(2))
    shutil.rmtree(folder)
    other.rename(folder)
    assert same(open_target(ReadTarget(str(folder))).root(), value(2))


@pytest.mark.parametrize(("first", "second"), [(1, 30), (30, 1)])
def test_a_store_made_anew_under_readers_is_read_as_it_is_now(
    tmp_path: Path, first: int, second: int
) -> None:
    folder = store_of(tmp_path / "s", *map(value, range(first)))
    asked = place(store=str(folder), leaseSeconds="0")
    with CellStore.open(folder, read_only=True) as other:  # holds the old index in this process
        source = open_target(asked)
        gone = source.root_hash()
        assert gone is not None
        assert same(source.root(), other.root())
        shutil.rmtree(folder)
        present = Vector.of(map(value, range(100, 100 + second)))
        store_of(folder, present)
        for reader in (source, other):
            assert reader.root_hash() == value_hash(present)
            assert reader.get_encoding(gone) is None
            assert same(reader.root(), present)
        assert same(open_target(asked).root(), present)


def test_a_store_that_this_user_may_not_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store_of(tmp_path / "s", value(1))
    real = os.open

    def refused(path: str, *given: int) -> int:  # as root may read everything
        if str(path).endswith("STORE"):
            raise PermissionError(13, "Permission denied")
        return real(path, *given)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(UsageError, match="is not the folder of a store: Permission denied"):
        open_target(place(store=str(folder)))


def test_a_copy_that_only_looks_like_what_was_there_is_another_place(tmp_path: Path) -> None:
    """A file system may give the number of a removed file to the next, `cp -a` keeps its time."""
    folder = store_of(tmp_path / "s", value(1))
    before = open_target(ReadTarget(str(folder)))._cells
    assert open_target(ReadTarget(str(folder)))._cells is before
    file = folder / "STORE"
    kept = file.stat()
    os.utime(file, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    assert open_target(ReadTarget(str(folder)))._cells is not before


@pytest.mark.parametrize("name", ["a\0b", "a" * 5_000, "a/" * 5_000])
def test_what_cannot_be_a_folder_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"^option store='a.*' is not the folder of a store: "):
        open_target(ReadTarget(name))


def test_a_place_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"option store='.*/none' is not the folder of a store"):
        open_target(ReadTarget(str(tmp_path / "none")))
    with pytest.raises(UsageError):
        open_target(ReadTarget(str(tmp_path)))


def test_an_empty_store_has_no_root(tmp_path: Path) -> None:
    source = open_target(ReadTarget(str(store_of(tmp_path))))
    assert source.root_hash() is None
    assert source.root() is None
    assert source.snapshot().root_hash is None


def test_only_so_many_are_kept_open(tmp_path: Path) -> None:
    folders = [store_of(tmp_path / str(i), value(i)) for i in range(OPEN_MAX + 1)]
    for i, folder in enumerate(folders):
        assert same(open_target(ReadTarget(str(folder))).root(), value(i))
        assert len(read_targets._open) <= OPEN_MAX
    assert list(read_targets._open) == [str(folder) for folder in folders[1:]]
    open_target(ReadTarget(str(folders[1])))
    open_target(ReadTarget(str(folders[0])))
    assert str(folders[1]) in read_targets._open
    assert str(folders[2]) not in read_targets._open, "the one that was asked for longest ago goes"


def test_a_fork_opens_its_own(tmp_path: Path) -> None:
    source = open_target(ReadTarget(str(store_of(tmp_path, value(1)))))
    child = os.fork()
    if not child:
        is_good = False
        try:
            found = open_target(ReadTarget(str(tmp_path)))
            is_good = found._cells is not source._cells and same(found.root(), value(1))
        finally:
            os._exit(0 if is_good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert same(source.root(), value(1)), "it was left open here"


def test_the_past_is_named_as_on_the_command_line(tmp_path: Path) -> None:
    store_of(tmp_path, value(1), value(2), value(3))
    with CellStore.open(tmp_path) as store:
        store.pins.pin(value_hash(value(2)), "second")
        first_ms = store.history.entries()[0].time_ms
    for as_of, number in [
        ("second", 2),
        ("HEAD~2", 1),
        ("HEAD", 3),
        ("0x" + value_hash(value(1)).hex(), 1),
        (value_hash(value(2)).hex()[:10], 2),
    ]:
        source = open_target(ReadTarget(str(tmp_path), as_of=as_of))
        assert source.root_hash() == value_hash(value(number)), as_of
        assert same(source.root(), value(number))
        assert source.snapshot().root_hash == value_hash(value(number))
    # The three were committed within a moment, so any of them may be the one of its millisecond.
    for as_of in (str(first_ms), f"@{first_ms}"):
        root = open_target(ReadTarget(str(tmp_path), as_of=as_of)).root_hash()
        assert root in [value_hash(value(number)) for number in (1, 2, 3)]
    for as_of in ("nobody", "@2001-01-01", "2001-01-01"):
        with pytest.raises(UsageError):
            open_target(ReadTarget(str(tmp_path), as_of=as_of)).root_hash()


def test_cells_by_hash(tmp_path: Path) -> None:
    source = open_target(ReadTarget(str(store_of(tmp_path, value(1)))))
    top = value_hash(value(1))
    assert source.get_encoding(top) == encode(value(1))
    assert source.get_encodings([bytes(32), top]) == [None, encode(value(1))]
    assert encodings(source)(top) == encode(value(1))
    with pytest.raises(MissingData):
        encodings(source)(bytes(32))
    with pytest.raises(MissingData):
        source.load(bytes(32))


@pytest.mark.parametrize("lease_seconds", [LEASE_SECONDS, 0])
def test_a_snapshot_stays_when_garbage_is_collected(
    tmp_path: Path, lease_seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "FREED_BYTES_MIN", 1)  # a little is worth a collection
    clock = LateClock()
    with CellStore.open(
        tmp_path, retention=KEEP_NOTHING, clock=clock, segment_bytes=4_096
    ) as writer:
        writer.commit(value(1))
        source = open_target(ReadTarget(str(tmp_path), lease_seconds=lease_seconds))
        snapshot = source.snapshot()
        assert snapshot.root_hash == value_hash(value(1))
        writer.commit(value(500_000))
        clock.late_ms = 600_000
        assert writer.collect(grace_ms=0).leases_ended == 0
        if not lease_seconds:
            assert snapshot.expires_ms == 0
            assert source.root_hash() == value_hash(value(500_000))
            with pytest.raises(MissingData):
                source.load(value_hash(value(1)))
            return
        left_ms = snapshot.expires_ms - SystemClock().now_ms()
        assert (LEASE_SECONDS - 60) * 1_000 < left_ms <= LEASE_SECONDS * 1_000
        assert same(source.load(value_hash(value(1))), value(1))
        with source.keeping(snapshot) as keeper:
            keeper.touch()
        assert len(writer.pins.leases()) == 1


def test_a_store_that_cannot_be_written_to_is_read_without_a_lease(tmp_path: Path) -> None:
    store_of(tmp_path, value(1))
    (tmp_path / PINS_LOCK).unlink(missing_ok=True)
    (tmp_path / PINS_LOCK).mkdir()  # nobody can lock that
    with pytest.raises(StoreFailed, match=r"cannot be written .*; leaseSeconds=0 reads it without"):
        open_target(ReadTarget(str(tmp_path))).snapshot()
    source = open_target(ReadTarget(str(tmp_path), lease_seconds=0))
    assert source.snapshot().root_hash == value_hash(value(1))


# --- nodes --------------------------------------------------------------------------------------


def test_a_node_is_a_place(tmp_path: Path) -> None:
    with BackgroundNode(tmp_path / "store") as node:
        node.edit(lambda cursor: cursor.assoc_in("x" * 500, "data", value_hash("x" * 500)))
        source = open_target(ReadTarget(node=node.address))
        root_hash = source.root_hash()
        assert root_hash == node.node.root_hash
        snapshot = source.snapshot()
        assert (snapshot.root_hash, snapshot.expires_ms) == (root_hash, 0)
        assert source.get_encodings([value_hash("x" * 500)]) == [encode("x" * 500)]
        past = open_target(ReadTarget(node=node.address, as_of="0x" + root_hash.hex()))
        node.edit(lambda cursor: cursor.assoc_in("y" * 500, "data", value_hash("y" * 500)))
        assert source.root_hash() == node.node.root_hash != root_hash
        assert past.root_hash() == root_hash
        assert value_hash(past.root()) == root_hash
        with past.keeping(past.snapshot()) as keeper:
            keeper.touch()
        source.close()


def test_a_node_that_lets_only_some_in_wants_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "PATIENCE_S", 0.1)
    keys = KeyPair(bytes([9]) * 32)
    write_key(tmp_path / "key", keys)
    with BackgroundNode(tmp_path / "store", allow=(keys.public_key.hex(),)) as node:
        node.edit(lambda cursor: cursor.assoc_in("x", "data", value_hash("x")))
        known = open_target(place(node=node.address, nodeKey=str(tmp_path / "key")))
        assert known.root_hash() == node.node.root_hash
        known.close()
        with pytest.raises(PeerUnavailable, match=r"closed.*does it let only some keys in"):
            open_target(place(node=node.address)).root_hash()
        with pytest.raises(NoSigningKey, match="no key at"):
            open_target(place(node=node.address, nodeKey=str(tmp_path / "none")))
