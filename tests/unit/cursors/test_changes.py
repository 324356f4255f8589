"""Changes: every kind of cursor tells of the last change, in time, and of none without one."""

from __future__ import annotations

import threading

import pytest

from datalattice.cells import EMPTY_MAP, Index, Map, Signed
from datalattice.crypto import KeyPair
from datalattice.cursors import (
    Changes,
    Cursor,
    LatticeCursor,
    Root,
    RootLattice,
    SignedCursor,
    Transformer,
    ValueChange,
)
from datalattice.errors import UsageError
from datalattice.lattice import LWWLattice, MapLattice, MergeContext
from datalattice.testing.polling import LIMIT_S

LATTICE = MapLattice(MapLattice(LWWLattice()))


def lattice_root() -> LatticeCursor:
    return RootLattice(LATTICE, EMPTY_MAP)


def test_a_change_is_told_once_with_both_values() -> None:
    cursor = Root(1)
    with Changes(cursor) as changes:
        assert changes.poll() == []
        cursor.set(2)
        cursor.set(3)
        assert changes.poll() == [ValueChange(1, 3)]
        assert changes.poll() == []
        cursor.set(3)
        assert changes.poll() == []  # the same value again is no change


@pytest.mark.parametrize("kind", ["path", "descended", "fork", "view", "signed"])
def test_every_kind_of_cursor_is_woken(kind: str) -> None:
    plain = Root(Map.of([("a", 1)]))
    root = lattice_root()
    pair = KeyPair(bytes(32))
    sealed = Root(Signed.sign(pair, 1))
    watched, writer = {
        "path": (plain.path("a"), plain.path("a")),
        "descended": (root.path("a"), root.path("a")),
        "fork": (fork := root.fork(), fork),
        "view": (Transformer(plain, lambda value: value), plain),
        "signed": (signed := SignedCursor(sealed, None, MergeContext(key_pair=pair)), signed),
    }[kind]
    assert isinstance(watched, Cursor)
    woken: list[bool] = []
    end = watched.subscribe(lambda: woken.append(True))
    with Changes(watched) as changes:
        writer.set(Map.of([("x", Map.of([("y", 2)]))]))
        assert woken == [True]
        (change,) = changes.poll()
        assert change.after == watched.get()
    end()
    writer.set(Map.of([]))
    assert woken == [True]


def test_a_change_elsewhere_below_the_root_is_none() -> None:
    root = lattice_root()
    with Changes(root.path("a")) as changes:
        root.path("b").set(Map.of([("y", 2)]))
        assert changes.poll() == []


def test_a_listener_ends_alone() -> None:
    cursor = Root(0)
    told: list[str] = []

    def listener(name: str) -> None:
        told.append(name)

    def first() -> None:
        listener("first")

    end = cursor.subscribe(first)
    cursor.subscribe(lambda: listener("second"))
    cursor.set(1)
    end()
    end()
    cursor.set(2)
    assert told == ["first", "second", "second"]


def test_a_loop_comes_to_the_last_change_of_many_threads() -> None:
    cursor = Root(0)

    def count() -> None:
        for _ in range(200):
            cursor.update(lambda value: value + 1)  # type: ignore[operator]

    with Changes(cursor, timeout=LIMIT_S) as changes:
        threads = [threading.Thread(target=count) for _ in range(3)]
        for thread in threads:
            thread.start()
        last = 0
        while last != 600:
            change = next(changes)
            assert change.before == last
            assert isinstance(change.after, int)
            assert change.after > last
            last = change.after
        for thread in threads:
            thread.join()
        assert changes.poll() == []


def test_close_ends_a_waiting_iterator() -> None:
    cursor = Root(0)
    changes = Changes(cursor)
    seen: list[ValueChange] = []
    first = threading.Event()

    def run() -> None:
        for change in changes:
            seen.append(change)
            first.set()

    thread = threading.Thread(target=run)
    thread.start()
    cursor.set(5)
    assert first.wait(LIMIT_S)
    changes.close()
    changes.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert changes.closed
    assert seen == [ValueChange(0, 5)]
    assert list(changes) == []


def test_a_wake_comes_from_the_thread_that_writes_and_on_close() -> None:
    cursor = Root(Index())
    woken: list[int] = []
    changes = Changes(cursor)
    changes.on_wake(lambda: woken.append(threading.get_ident()))
    cursor.set(1)
    changes.close()
    assert woken == [threading.get_ident()] * 2
    cursor.set(2)
    assert len(woken) == 2


def test_a_negative_timeout_is_refused() -> None:
    with pytest.raises(UsageError, match="0 or more"):
        Changes(Root(0), timeout=-1)


def test_a_version_is_the_same_until_something_is_written() -> None:
    root = lattice_root()
    below = root.path("a")
    before = below.version()
    assert below.version() is before
    root.path("b").set(Map.of([("y", 2)]))
    assert below.version() is not before
