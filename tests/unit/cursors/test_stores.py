"""A store of roots: what is committed contains what was there, unless something else is asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from datalattice import Database, Drive, KeyPair, Keyword, to_cell, value_hash
from datalattice.apps.queue import Topics
from datalattice.cells import Index, Value
from datalattice.cursors import RootLattice, open_store
from datalattice.errors import NotContained
from datalattice.lattice import MergeContext, root_contains, root_lattice
from datalattice.store import MemoryStore, Store
from datalattice.testing.clocks import StoppedClock

KEYS = KeyPair(bytes(32))
OWNER = KEYS.public_key
SHOP = "shop"


def root_of(store: Store) -> RootLattice:
    """Return a cursor on the root of a store, as a program begins with it."""
    return RootLattice(root_lattice(), store.root(), MergeContext(key_pair=KEYS))


@pytest.fixture(params=["memory", "folder"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    def new() -> Store:
        return open_store("memory://" if request.param == "memory" else tmp_path / "store")

    return new


def test_a_program_that_starts_from_nothing_does_not_overwrite_what_is_there(
    make: Callable[[], Store],
) -> None:
    with make() as store:
        first = root_of(store)
        Database.at(first, OWNER, SHOP)["opened"] = True
        present = store.commit(first.get()).root_hash

        second = RootLattice(root_lattice(), None, MergeContext(key_pair=KEYS))
        Topics.at(second, OWNER).partition("log", 0).offer("hello")
        with pytest.raises(NotContained, match=r"store\.root\(\)"):
            store.commit(second.get())
        assert store.root_hash() == present
        with pytest.raises(NotContained):
            store.commit(second.get(), present)
        assert store.commit(second.get(), bytes(32)) is None

        assert store.commit(second.get(), contains=False).root_hash == value_hash(second.get())
        assert Database.at(root_of(store), OWNER, SHOP).get("opened") is None


def test_what_every_application_writes_contains_what_was_there() -> None:
    store = open_store("memory://")
    clock = StoppedClock(1_000_000)
    cursor = RootLattice(root_lattice(), None, MergeContext(key_pair=KEYS))
    shop = Database.at(cursor, OWNER, SHOP, clock=clock)
    log = Topics.at(cursor, OWNER, clock).partition("log", 0)
    papers = Drive.at(cursor, OWNER, "papers", clock=clock)

    def later(ms: int) -> None:
        clock.now += ms

    steps: list[Callable[[], object]] = [
        lambda: shop.__setitem__("a", 1),
        lambda: shop.set("b", 2, ttl=0.01),
        lambda: shop.zadd("scores", 7.5, "Ada"),
        lambda: shop.hset_many("fields", {"one": 1, "two": 2}),
        lambda: shop.incr("visits", 5),
        lambda: log.offer_many(list(range(40))),
        lambda: papers.mkdir("/d"),
        lambda: papers.write("/d/one", b"1" * 9_000),
        lambda: papers.write("/d/two", b"2"),
        lambda: shop.delete("a"),
        lambda: shop.zrem("scores", "Ada"),
        lambda: shop.hdel("fields", "one"),
        lambda: log.truncate(30),
        lambda: papers.move("/d/one", "/one"),
        lambda: papers.delete("/d/two"),
        lambda: papers.delete("/d"),
        lambda: later(10**10),
        lambda: shop.__setitem__("a", 2),
        lambda: log.offer("last"),
    ]
    for step in steps:
        step()
        later(7)
        store.commit(cursor.get())  # raises where one of them would drop something
    assert store.root_hash() == value_hash(cursor.get())

    assert shop.gc()  # forgets deletions: another replica may bring such a key back
    with pytest.raises(NotContained):
        store.commit(cursor.get())
    store.commit(cursor.get(), contains=False)


def test_a_fork_is_not_contained_in_the_other_branch() -> None:
    store = open_store("memory://")
    clock = StoppedClock(1_000)
    branches = [RootLattice(root_lattice(), None, MergeContext(key_pair=KEYS)) for _ in range(2)]
    for number, branch in enumerate(branches):
        clock.now += 10
        Topics.at(branch, OWNER, clock).partition("log", 0).offer_many([number] * 5)
    for other, present in (branches, branches[::-1]):
        store.commit(present.get(), contains=False)
        with pytest.raises(NotContained):
            store.commit(other.get())


def test_a_section_without_a_lattice_has_to_be_equal() -> None:
    unknown = Keyword("nobody-registered-this")
    before = Index.of([(unknown, to_cell([1]))])
    assert root_contains(before.put(Keyword("data"), Index.of([])), before)
    assert not root_contains(Index.of([]), before)
    assert not root_contains(before.put(unknown, to_cell([1, 2])), before)


@pytest.mark.parametrize(
    ("root", "other", "is_contained"),
    [
        (to_cell({"a": 2}), to_cell({"a": 1}), True),  # no root of sections: nothing to contain
        (None, to_cell([1]), True),
        (to_cell({"a": 2}), Index.of([]), False),
        (None, Index.of([]), False),
    ],
)
def test_only_roots_of_sections_are_compared(root: Value, other: Value, is_contained: bool) -> None:
    assert root_contains(root, other) is is_contained
    store = open_store("memory://")
    store.commit(other)
    if is_contained:
        store.commit(root)
    else:
        with pytest.raises(NotContained):
            store.commit(root)


def test_comparing_a_root_costs_what_differs() -> None:
    loads = count()

    class Counting(MemoryStore):
        def get_encoding(self, hash: bytes, *, verify: bool = True) -> bytes | None:
            next(loads)
            return super().get_encoding(hash, verify=verify)

    store = Counting(cache_bytes=0)
    store.root_contains = root_contains
    cursor = root_of(store)
    shop = Database.at(cursor, OWNER, SHOP)
    with shop.batch() as batch:
        for number in range(10_000):
            batch.set(f"key {number}", f"a value that is longer than most {number}" * 4)
    store.commit(cursor.get())
    cursor = root_of(store)
    Database.at(cursor, OWNER, SHOP)["key 77"] = "new"
    before = next(loads)
    store.commit(cursor.get())
    assert 1 < next(loads) - before < 60  # of more than 10,000 cells


def test_commits_of_many_threads_each_contain_the_one_before(make: Callable[[], Store]) -> None:
    with make() as store:
        begin = threading.Barrier(4)

        def write(number: int) -> None:
            begin.wait()
            for step in range(10):
                done = None
                while done is None:
                    expected = store.root_hash()
                    cursor = root_of(store)
                    Database.at(cursor, OWNER, SHOP)[f"{number} {step}"] = step
                    try:
                        done = store.commit(cursor.get(), expected)
                    except NotContained:  # another thread was first
                        assert store.root_hash() != expected

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(write, range(4))) == [None] * 4
        assert len(Database.at(root_of(store), OWNER, SHOP)) == 40
