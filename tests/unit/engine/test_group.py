"""Group commit when a thread is interrupted or the disk is full; its contract is in the kit."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from datalattice.engine import GroupCommit, GroupTxn, LmdbEngine, MemoryEngine
from datalattice.engine import group as group_module
from datalattice.engine import lmdb as lmdb_module
from datalattice.errors import StoreFull
from datalattice.testing.engine_kit import LIMIT_S, SignallingQueue, Work, run_together


class Interrupted(BaseException):
    """A signal, such as KeyboardInterrupt."""


class Wake:
    """A lock whose acquisition is interrupted: at once, or when it could succeed."""

    def __init__(self, *, at_once: bool) -> None:
        self._released = threading.Semaphore(1 if at_once else 0)

    def acquire(self) -> None:
        assert self._released.acquire(timeout=LIMIT_S)
        raise Interrupted

    def release(self) -> None:
        self._released.release()


@pytest.mark.parametrize("at_once", [True, False])
def test_an_interrupted_thread_runs_nothing_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    engine = MemoryEngine(("t",))
    group = GroupCommit(engine)
    queue = group._queue = SignallingQueue()
    threads: list[threading.Thread] = []
    seen: list[bytes] = []

    def put(key: bytes) -> None:
        try:
            group.run(lambda txn: txn.put("t", key, b""))
        except Interrupted:
            seen.append(key)

    def begin(key: bytes) -> None:
        threads.append(threading.Thread(target=put, args=(key,)))
        threads[-1].start()
        assert queue.arrivals.acquire(timeout=LIMIT_S)

    class InterruptedPiece(group_module._Piece):
        def __init__(self, work: object) -> None:
            super().__init__(work)  # type: ignore[arg-type]
            self.wake = Wake(at_once=at_once)  # type: ignore[assignment]

    def while_leading() -> None:  # the queue was taken; these wait for the next commit
        with monkeypatch.context() as patched:
            patched.setattr(group_module, "_Piece", InterruptedPiece)
            begin(b"interrupted")
        begin(b"behind")

    def lead(txn: GroupTxn) -> None:
        assert queue.arrivals.acquire(timeout=LIMIT_S)
        txn.after_commit(while_leading)

    group.run(lead)
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    with group.read() as view:
        assert [key for key, _ in view.scan("t")] == [b"behind"]
    assert seen == [b"interrupted"]


def test_work_that_finds_no_room_fails_its_transaction_and_the_next_one_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_module, "MAP_BYTES_MAX", 1 << 20)
    engine = LmdbEngine(tmp_path, ("t",))
    group = GroupCommit(engine)

    def put(size: int) -> Work:
        return lambda txn: txn.put("t", b"%d" % size, bytes(size))

    small, large, other = run_together(group, [put(1), put(2 << 20), put(2)])
    assert isinstance(small, StoreFull)
    assert small is large is other
    with pytest.raises(StoreFull):
        group.run(put(2 << 20))
    group.run(put(3))
    with group.read() as view:
        assert list(view.scan("t")) == [(b"3", bytes(3))]
    engine.close()
