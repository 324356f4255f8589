"""Locks on files: what excludes what, what a write needs, their ends and their bounds."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from datalattice.actions import LOCK_S_MAX
from datalattice.crypto import SeededEntropy
from datalattice.errors import Backpressure, FileLocked, LimitExceeded, NoSuchPath, UsageError
from datalattice.service import filelocks
from datalattice.service.filelocks import (
    LOCKS_MAX,
    NOTE_BYTES_MAX,
    FileLocks,
    HeldLock,
    LockPlace,
    Touched,
)

OWNER = b"\x01" * 32


class HandClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def locks(clock: HandClock) -> FileLocks:
    return FileLocks(clock, SeededEntropy(1), write_wait_s=0.01)


def at(path: str, drive: str = "files") -> LockPlace:
    return LockPlace(OWNER, drive, tuple(one for one in path.split("/") if one))


def lock(
    locks: FileLocks, path: str, who: str = "a", *, is_shared: bool = False, is_deep: bool = False
) -> HeldLock:
    return locks.lock(
        who, at(path), is_shared=is_shared, is_deep=is_deep, note="", timeout_s=LOCK_S_MAX
    )


def write(
    locks: FileLocks,
    path: str,
    *tokens: str,
    who: str = "a",
    is_tree: bool = False,
    is_member: bool = False,
) -> None:
    touched = Touched(at(path).names, is_tree=is_tree, is_member=is_member)
    with locks.writing(who, OWNER, "files", [touched], tokens):
        pass


@pytest.mark.parametrize("deep", [False, True])
def test_an_exclusive_lock_excludes_all_and_a_shared_one_the_exclusive(
    locks: FileLocks, deep: bool
) -> None:
    lock(locks, "/x", is_shared=True, is_deep=deep)
    lock(locks, "/x", "b", is_shared=True)
    with pytest.raises(FileLocked):
        lock(locks, "/x", "c")
    lock(locks, "/y", is_deep=deep)
    for shared in (False, True):
        with pytest.raises(FileLocked):
            lock(locks, "/y", is_shared=shared)


def test_a_deep_lock_meets_what_is_below_it_both_ways(locks: FileLocks) -> None:
    lock(locks, "/d", is_deep=True)
    with pytest.raises(FileLocked):
        lock(locks, "/d/e/f")
    lock(locks, "/dd")
    lock(locks, "/g/h")
    with pytest.raises(FileLocked):
        lock(locks, "/g", is_deep=True)
    lock(locks, "/g")  # of the directory alone
    locks.lock("b", at("/d", "other"), is_shared=False, is_deep=True, note="", timeout_s=1)


def test_a_write_needs_the_token_of_its_holder(locks: FileLocks) -> None:
    token = lock(locks, "/x").token
    for tokens, who in (((), "a"), (("none",), "a"), ((token,), "b")):
        with pytest.raises(FileLocked):
            write(locks, "/x", *tokens, who=who)
    write(locks, "/x", token)
    write(locks, "/y", who="b")


def test_of_shared_locks_the_token_of_one_is_enough(locks: FileLocks) -> None:
    tokens = [lock(locks, "/x", who, is_shared=True).token for who in "ab"]
    write(locks, "/x", tokens[0])
    write(locks, "/x", *tokens, who="b")
    with pytest.raises(FileLocked):
        write(locks, "/x", *tokens, who="c")


@pytest.mark.parametrize(
    ("path", "deep", "needed"),
    [
        ("/d/e", False, ["member"]),
        ("/d/e", True, ["plain", "member", "tree"]),
        ("/d/e/f", False, ["plain", "member", "tree"]),
        ("/d", False, []),
        ("/d/e/f/g", False, ["tree"]),
    ],
)
def test_a_lock_on_a_directory_guards_its_members_and_a_tree_what_is_in_it(
    locks: FileLocks, path: str, deep: bool, needed: list[str]
) -> None:
    lock(locks, path, is_deep=deep)
    kinds: dict[str, Callable[[], None]] = {
        "plain": lambda: write(locks, "/d/e/f"),
        "member": lambda: write(locks, "/d/e/f", is_member=True),
        "tree": lambda: write(locks, "/d/e/f", is_tree=True),
    }
    for name, act in kinds.items():
        if name in needed:
            with pytest.raises(FileLocked):
                act()
        else:
            act()


def test_locks_end_and_can_be_refreshed(locks: FileLocks, clock: HandClock) -> None:
    made = locks.lock("a", at("/x"), is_shared=False, is_deep=False, note="", timeout_s=10)
    clock.ms += 9_999
    found = locks.refresh("a", at("/x"), made.token, LOCK_S_MAX + 5)
    assert found.expires_ms == clock.ms + LOCK_S_MAX * 1_000
    clock.ms += LOCK_S_MAX * 1_000 - 1
    with pytest.raises(FileLocked):
        write(locks, "/x")
    clock.ms += 1
    write(locks, "/x")
    with pytest.raises(NoSuchPath):
        locks.refresh("a", at("/x"), made.token, 10)
    with pytest.raises(UsageError):
        locks.lock("a", at("/x"), is_shared=False, is_deep=False, note="", timeout_s=0)


def test_only_its_holder_ends_or_refreshes_a_lock_where_it_is(locks: FileLocks) -> None:
    token = lock(locks, "/d", is_deep=True).token
    for who, place in (("b", at("/d")), ("a", at("/e")), ("a", at("/d", "other"))):
        with pytest.raises(NoSuchPath):
            locks.unlock(who, place, token)
        with pytest.raises(NoSuchPath):
            locks.refresh(who, place, token, 10)
    assert [one.token for one in locks.around(at("/d/e"))] == [token]
    assert [one.token for one in locks.around(at("/"))] == [token]
    assert locks.around(at("/e")) == []
    locks.unlock("a", at("/d/below"), token)
    write(locks, "/d")


def test_what_is_gone_is_not_locked(locks: FileLocks) -> None:
    for path in ("/d", "/d/e", "/dd"):
        lock(locks, path)
    locks.removed(at("/d"))
    assert [one.place.names for one in locks.around(at("/"))] == [("dd",)]


def test_a_lock_waits_for_the_write_that_has_begun(locks: FileLocks) -> None:
    begun, end, done = threading.Event(), threading.Event(), threading.Event()

    def slow() -> None:
        with locks.writing("b", OWNER, "files", [Touched(("x",))]):
            begun.set()
            assert end.wait(60)

    def patient() -> None:
        FileLocks.lock(waiting, "a", at("/x"), is_shared=False, is_deep=False, note="", timeout_s=9)
        done.set()

    waiting = locks
    threads = [threading.Thread(target=slow)]
    threads[0].start()
    assert begun.wait(60)
    with pytest.raises(FileLocked):
        lock(locks, "/x")  # it waits a hundredth of a second here
    lock(locks, "/y")
    locks._write_wait_s = 60  # type: ignore[misc]
    threads.append(threading.Thread(target=patient))
    threads[1].start()
    assert not done.is_set()
    end.set()
    for one in threads:
        one.join(60)
    assert done.is_set()


def test_locks_and_notes_are_bounded(locks: FileLocks, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(LOCKS_MAX):
        lock(locks, f"/{number}")
    with pytest.raises(Backpressure):
        lock(locks, "/more")
    lock(locks, "/more", "b")
    monkeypatch.setattr(filelocks, "LOCKS_IN_ALL_MAX", LOCKS_MAX + 2)
    lock(locks, "/more2", "c")
    with pytest.raises(Backpressure):
        lock(locks, "/more3", "d")
    monkeypatch.undo()

    def noted(size: int) -> None:
        locks.lock(
            "e", at(f"/n{size}"), is_shared=False, is_deep=False, note="x" * size, timeout_s=1
        )

    noted(NOTE_BYTES_MAX)
    with pytest.raises(LimitExceeded):
        noted(NOTE_BYTES_MAX + 1)


PATHS = st.sampled_from(["/d", "/d/e", "/f"])


@given(st.lists(st.tuples(st.sampled_from("ab"), PATHS, st.booleans(), st.booleans()), max_size=12))
def test_no_two_locks_overlap_unless_both_are_shared(
    asked: list[tuple[str, str, bool, bool]],
) -> None:
    locks = FileLocks(HandClock(), SeededEntropy(2), write_wait_s=0)
    for who, path, shared, deep in asked:
        try:
            lock(locks, path, who, is_shared=shared, is_deep=deep)
        except FileLocked:
            continue
    held = locks.around(at("/"))
    assert held or not asked
    for one in held:
        for other in held:
            if one is not other and one.covers(other.place.names):
                assert one.is_shared
                assert other.is_shared
