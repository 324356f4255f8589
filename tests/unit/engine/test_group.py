"""Group commit when a thread is interrupted or the disk is full; its contract is in the kit."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import lmdb
import pytest

from datalattice.engine import (
    GroupCommit,
    GroupTxn,
    LmdbEngine,
    MemoryEngine,
    group as group_module,
)
from datalattice.errors import ReadOnly, StoreFull
from datalattice.testing.engine_kit import KIT_LIMIT_S, SignallingQueue, TxnWork, run_together


class Interrupted(BaseException):
    """A signal, such as that of KeyboardInterrupt."""


def put(size: int) -> TxnWork:
    return lambda txn: txn.put("t", b"%d" % size, bytes(size))


def keys(group: GroupCommit) -> list[bytes]:
    with group.read() as view:
        return [key for key, _ in view.scan("t")]


def test_a_thread_interrupted_in_its_wait_runs_nothing() -> None:
    group = GroupCommit(MemoryEngine(("t",)))
    queue = group._queue = SignallingQueue()
    main = threading.get_ident()
    leading = threading.Event()

    def interrupt(_: int, __: FrameType | None) -> None:
        raise Interrupted

    def while_leading() -> None:  # the queue was taken: what comes now waits for the next commit
        leading.set()
        assert queue.arrivals.acquire(timeout=KIT_LIMIT_S)
        signal.pthread_kill(main, signal.SIGUSR1)

    def lead(txn: GroupTxn) -> None:
        assert queue.arrivals.acquire(timeout=KIT_LIMIT_S)
        txn.after_commit(while_leading)

    before = signal.signal(signal.SIGUSR1, interrupt)
    leader = threading.Thread(target=group.run, args=(lead,))
    try:
        leader.start()
        assert leading.wait(KIT_LIMIT_S)
        with pytest.raises(Interrupted):
            group.run(put(1))
    finally:
        leader.join(KIT_LIMIT_S)
        signal.signal(signal.SIGUSR1, before)
    group.run(put(2))
    assert keys(group) == [b"2"]


def test_a_leader_interrupted_before_it_begins_hands_over() -> None:
    group = GroupCommit(MemoryEngine(("t",)))
    first, second = (group_module._Piece(put(size)) for size in (1, 2))
    group._busy = first.leads = True
    group._queue.extend((first, second))
    group._withdraw(first)
    assert second.leads
    assert second.wake.acquire(timeout=KIT_LIMIT_S)
    group._lead()
    assert keys(group) == [b"2"]


def test_work_that_finds_no_room_fails_its_transaction_and_the_next_one_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lmdb_open = lmdb.open

    def open_small(path: str, **options: Any) -> Any:
        return lmdb_open(path, **{**options, "map_size": 1 << 20})

    monkeypatch.setattr(lmdb, "open", open_small)
    engine = LmdbEngine(tmp_path, ("t",))
    group = GroupCommit(engine)

    small, large, other = run_together(group, [put(1), put(2 << 20), put(2)])
    assert isinstance(small, StoreFull)
    assert small is large is other
    with pytest.raises(StoreFull):
        group.run(put(2 << 20))
    group.run(put(3))
    assert keys(group) == [b"3"]
    engine.close()


def test_a_transaction_that_cannot_begin_is_the_error_of_each_caller(tmp_path: Path) -> None:
    LmdbEngine(tmp_path, ("t",)).close()
    engine = LmdbEngine(tmp_path, ("t",), read_only=True)
    group = GroupCommit(engine)
    for _ in range(2):
        with pytest.raises(ReadOnly):
            group.run(put(1))
    engine.close()
