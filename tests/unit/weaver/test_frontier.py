"""Frontiers, observations, acknowledgements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from datalattice.engine import ReadTxn
from datalattice.errors import UsageError
from datalattice.testing.log_kit import Author, LogFixture, NaiveLog
from datalattice.weaver import (
    ack_deps,
    frontier,
    is_ack_pending,
    observations,
    unacknowledged,
)
from datalattice.weaver.append import FRONTIER_DEPTH_MAX, FRONTIER_ENTRIES_MAX


def ask(store: LogFixture, question: Callable[..., Any], *arguments: object) -> Any:
    """Ask one of the functions of the frontier about a store."""
    return store.read(question, *arguments)


def seen(store: LogFixture) -> dict[tuple[bytes, bytes], int]:
    return {(each.observer, each.observed): each.seen for each in ask(store, observations)}


def test_frontier_is_transitive_and_includes_itself() -> None:
    store = LogFixture()
    a, b, c = Author(1), Author(2), Author(3)
    a1, a2 = a.write(), a.write()
    b1 = b.write(b"", [a1.hash])
    c1 = c.write(b"", [b1.hash])
    store.ingest(a1, a2, b1, c1)
    assert ask(store, frontier, a2.hash) == {a.public_key: 2}
    assert ask(store, frontier, c1.hash) == {
        a.public_key: 1,
        b.public_key: 3,
        c.public_key: 4,
    }
    assert list(ask(store, frontier, c1.hash)) == sorted([a.public_key, b.public_key, c.public_key])


def test_frontier_of_a_merge_has_all_its_dependencies() -> None:
    store, c = LogFixture(), Author(9)
    others = [Author(n) for n in range(3)]
    heads = [each.write() for each in others]
    merge = c.write(b"", [head.hash for head in heads])
    again = [each.write(b"", [merge.hash]) for each in others]
    last = c.write(b"", [head.hash for head in again])
    store.ingest(*heads, merge, *again, last)
    first = {each.public_key: seq for seq, each in enumerate([*others, c], 1)}
    assert ask(store, frontier, merge.hash) == first
    second = {each.public_key: seq for seq, each in enumerate([*others, c], 5)}
    assert ask(store, frontier, last.hash) == second


def test_frontier_of_an_unwitnessed_intention_is_an_error() -> None:
    store, writer = LogFixture(), Author()
    store.ingest(writer.chain(2)[1])
    with pytest.raises(UsageError, match="no witnessed intention"):
        ask(store, frontier, writer.last)


def test_deep_frontier_is_read_from_at_most_64_rows() -> None:
    store, a, b = LogFixture(), Author(1), Author(2)
    written = [b.write(b"b")]
    for n in range(300):
        written.append(a.write(b"a", [b.last] if n == 3 else ()))
    store.ingest(*written)

    class Counting:
        def __init__(self, txn: ReadTxn) -> None:
            self.txn = txn
            self.rows = 0

        def get(self, table: str, key: bytes) -> bytes | None:
            self.rows += table == "witness"
            return self.txn.get(table, key)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.txn, name)

    def rows_of(txn: ReadTxn, hash: bytes) -> tuple[dict[bytes, int], int]:
        counting = Counting(txn)
        return frontier(counting, hash), counting.rows

    most = 0
    for seq, signed in enumerate(written[1:], 2):
        found, rows = store.read(rows_of, signed.hash)
        wanted = {a.public_key: seq}
        if seq >= 5:
            wanted[b.public_key] = 1
        assert found == wanted
        most = max(most, rows)
    assert most == FRONTIER_DEPTH_MAX + 1


def test_frontier_over_many_authors_equals_the_naive_one() -> None:
    """Each author depends on the newest of all: what is seen moves in large steps."""
    store, model = LogFixture(), NaiveLog()
    writers = [Author(n) for n in range(12)]
    last = b""
    for turn in range(240):
        writer = writers[(turn * 7) % 12]
        signed = writer.write(b"", [last] if last and turn % 3 else ())
        store.ingest(signed)
        model.ingest([signed])
        last = signed.hash
    for hash in model.hashes:
        assert ask(store, frontier, hash) == dict(sorted(model.frontier(hash).items()))


def test_frontier_rebuild_equals_incremental() -> None:
    store = LogFixture()
    writers = [Author(n) for n in range(5)]
    for turn in range(60):
        deps = [writers[(turn + 2) % 5].last] if turn > 5 else ()
        store.ingest(writers[turn % 5].write(b"x", deps))
    rows = store.rows()
    store.rebuild()
    assert store.rows() == rows


def test_observations() -> None:
    store = LogFixture()
    a, b = Author(1), Author(2)
    a1, a2 = a.write(), a.write()
    b1 = b.write(b"content", [a1.hash])
    store.ingest(a1, a2, b1)
    assert seen(store) == {
        (a.public_key, a.public_key): 2,
        (b.public_key, b.public_key): 1,
        (b.public_key, a.public_key): 1,
    }


def test_an_ack_is_no_content() -> None:
    store = LogFixture()
    a, b = Author(1), Author(2)
    a1 = a.write(b"content")
    ack = b.write(b"", [a1.hash])
    store.ingest(a1, ack)
    assert seen(store) == {
        (a.public_key, a.public_key): 1,
        (b.public_key, a.public_key): 1,
    }
    assert ask(store, unacknowledged, a.public_key) == []
    assert store.read(store.log.tip, b.public_key).contents == 0


def test_unacknowledged_counts_contents_and_names_the_newest() -> None:
    store = LogFixture()
    a, b, me = Author(1), Author(2), Author(3)
    a1, a2, a3 = a.write(), a.write(), a.write()
    a4 = a.write(b"")
    b1 = b.write()
    mine = me.write(b"mine", [a1.hash])
    store.ingest(a1, mine, a2, a3, a4, b1)
    found = {u.author: u for u in ask(store, unacknowledged, me.public_key)}
    assert list(found) == sorted([a.public_key, b.public_key])
    first = found[a.public_key]
    assert (first.tip_hash, first.tip_count, first.acknowledged_count) == (a3.hash, 3, 1)
    second = found[b.public_key]
    assert (second.tip_hash, second.tip_count, second.acknowledged_count) == (b1.hash, 1, 0)
    assert ask(store, is_ack_pending, me.public_key)
    assert ask(store, ack_deps, me.public_key, 1024) == [u.tip_hash for u in found.values()]
    assert len(ask(store, ack_deps, me.public_key, 1)) == 1


def test_author_without_an_intention_acknowledges_nothing() -> None:
    store, a, me = LogFixture(), Author(1), Author(3)
    store.ingest(a.write())
    assert ask(store, is_ack_pending, me.public_key)
    assert len(ask(store, ack_deps, me.public_key, 1024)) == 1
    assert not ask(LogFixture(), is_ack_pending, me.public_key)


def test_converge_after_mutual_ack() -> None:
    """After both have acknowledged, each other's ack is pending, but there is nothing to ack."""
    store = LogFixture()
    a, b = Author(1).key, Author(2).key
    store.submit(a, b"a")
    store.submit(b, b"b")
    for key in (a, b, a, b):
        deps = ask(store, ack_deps, key.public_key, 1024)
        if deps:
            store.submit(key, b"", deps)
    assert store.head().seq == 4
    for key in (a, b):
        assert ask(store, ack_deps, key.public_key, 1024) == []
    assert ask(store, is_ack_pending, a.public_key)
    assert seen(store) == {(x.public_key, y.public_key): 1 for x in (a, b) for y in (a, b)}


CARRIERS = 64
WIDTH = FRONTIER_ENTRIES_MAX // CARRIERS
"""Authors that each of the dependencies has seen."""


@pytest.mark.parametrize(("more", "is_exact"), [(-1, True), (0, True), (1, False)])
def test_the_work_that_many_dependencies_are_is_bounded(more: int, is_exact: bool) -> None:
    """64 dependencies that have seen 1,024 authors each, less one, exactly, and one more."""
    store, hidden = LogFixture(), Author(1)
    leaves = [Author(10 + n).write() for n in range(WIDTH - 3)]
    wide = Author(2).write(b"", sorted(leaf.hash for leaf in leaves))
    extra = [Author(3 + n).write() for n in range(2)]
    only = hidden.write()
    # The oldest one is looked at last, and it alone has seen the hidden author.
    carriers = [Author(5_000).write(b"", sorted([wide.hash, only.hash]))]
    for number in range(1, CARRIERS):
        count = 1 + more if number == 1 else 1
        deps = [wide.hash, *(one.hash for one in extra[:count])]
        carriers.append(Author(5_000 + number).write(b"", sorted(deps)))
    last = Author(9_000).write(b"", sorted(one.hash for one in carriers))
    store.ingest(*leaves, wide, *extra, only, *carriers, last)
    found = ask(store, frontier, last.hash)
    assert (hidden.public_key in found) == is_exact
    # Whatever the bound: all dependencies themselves, and all that the others have seen.
    assert all(one.intention.author in found for one in (*carriers, *leaves, wide))
    assert store.fsck() == []
