"""A node with weaver stores stops at every write of its disk, in the middle of what it does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.engine import JOURNAL_TABLE, Engine, GroupCommit, JournaledEngine, JournalFile
from datalattice.errors import StoreError
from datalattice.testing.clocks import TickingClock
from datalattice.testing.disk import SimDisk, SimulatedCrash
from datalattice.testing.journal import JournalEngine
from datalattice.weaver import STORE_TABLES, PutRequest, Stores, WeaverStore

KEY = KeyPair(b"\x07" * 32)


def opened(disk: SimDisk, boot: bytes = b"first", *, journaled: bool = True) -> Stores:
    engine: Engine = JournalEngine(disk, "weaver", (*STORE_TABLES, JOURNAL_TABLE))
    if journaled:

        def open_file(name: str) -> JournalFile:
            path = f"weaver/front-{name}"
            file = disk.open(path, create=not disk.exists(path), write=True)
            disk.sync_folder("weaver")
            return file

        engine = JournaledEngine(engine, open_file, boot, full_bytes=4_000)
    return Stores(GroupCommit(engine), KEY, TickingClock(1_000), SeededEntropy(7))


def life(stores: Stores) -> Iterator[str]:
    """Do what a node does with stores; yield after each call that returned."""
    team = stores.create("kv", "team")
    yield "team"
    notes = stores.create("kv", "notes", parent=team.id)
    yield "notes"
    for value in (b"1", b"2"):
        notes.execute("Put", PutRequest(b"k", value))
        yield "put"
    token = stores.peers.create_invite(team.id)
    yield "invite"
    stores.peers.accept_join(team.id, b"\x55" * 32, token.secret)
    yield "join"
    stores.archive(team.id, notes.id)
    yield "archive"
    stores.restore(team.id, notes.id)
    yield "restore"
    notes = stores.open(notes.id)
    notes.rebuild()
    yield "rebuild"


def live_until_crash(disk: SimDisk, done: list[str], *, journaled: bool) -> None:
    """Note in `done` what returned before the crash."""
    try:
        done.extend(life(opened(disk, journaled=journaled)))  # item by item
    except (SimulatedCrash, StoreError):
        return


def check(stores: Stores, done: list[str]) -> None:
    """Check that what returned is there, and that all parts fit."""
    roots = {info.name: info for info in stores.list()}
    assert set(roots) <= {"team"}
    if "team" not in done and not roots:
        return
    team = roots["team"]
    children = {info.name: info for info in stores.list(team.id)}
    # A child and its declaration are one transaction.
    assert len(children) in ((1,) if "notes" in done else (0, 1))
    assert all(stores.has(child.id) for child in children.values())
    for store in stores.open_all():
        status = store.status()
        assert (status.applied, status.stall, status.floating, status.forks) == (
            status.intentions,
            None,
            0,
            0,
        )
        with store.read() as view:
            assert view.fsck(3) == []
            assert view.genesis() is not None
            assert all(len(heads) <= 1 for _, _, heads in rows_of(view.system))
    if "join" in done:
        assert stores.peers.policy(team.id).can_connect(b"\x55" * 32)
    if done.count("put") == 2 and "restore" in done:
        notes = stores.get(children["notes"].id)
        assert isinstance(notes, WeaverStore)


def rows_of(system: object) -> Iterator[tuple[bytes, bytes | None, list[bytes]]]:
    table = system.table  # type: ignore[attr-defined]
    for key, value, _ in table.scan():
        yield key, value, table.heads(key)


@pytest.mark.parametrize("journaled", [False, True], ids=["tables", "journal"])
@pytest.mark.parametrize("power_failure", [False, True], ids=["process", "power"])
def test_a_crash_at_any_write_leaves_what_returned_and_no_half_of_anything(
    power_failure: bool, journaled: bool
) -> None:
    whole = SimDisk(1)
    finished = list(life(opened(whole, journaled=journaled)))
    for crash_at in range(1, whole.steps + 1):
        disk = SimDisk(crash_at)
        disk.crash_at = crash_at
        done: list[str] = []
        live_until_crash(disk, done, journaled=journaled)
        disk.restart(power_failure=power_failure)
        boot = b"second" if power_failure else b"first"
        stores = opened(disk, boot, journaled=journaled)
        check(stores, done)
        if not done and not stores.list():
            assert list(life(stores)) == finished  # what is left of a crash is in no one's way
