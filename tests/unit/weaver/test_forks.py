"""Forks: two branches of one author, kept as evidence and reported once."""

from __future__ import annotations

import pytest

from datalattice.errors import BadFormat
from datalattice.testing.log_kit import KIT_STORE, Author, LogFixture, author
from datalattice.weaver import ZERO_HASH, Fork, SignedIntention


def branches(prev: bytes = ZERO_HASH) -> tuple[SignedIntention, SignedIntention]:
    """Return two intentions of one author after the same predecessor."""
    writer = Author(1)
    return writer.write(b"one", prev=prev), writer.write(b"two", prev=prev)


def pair(fork: Fork) -> tuple[bytes, bytes]:
    return fork.witnessed.hash, fork.other.hash


def stored(store: LogFixture) -> list[Fork]:
    forks: list[Fork] = store.read(store.log.forks)
    return forks


def test_two_first_intentions_in_one_batch() -> None:
    store = LogFixture()
    one, two = branches()
    done = store.ingest(one, two)
    assert (done.witnessed, done.floating, done.result) == ((1,), (two.hash,), "applied")
    assert [pair(fork) for fork in done.forks] == [(one.hash, two.hash)]
    assert store.floating() == {two.hash: "fork"}
    assert stored(store) == list(done.forks)
    assert store.fsck() == []


def test_two_successors_in_one_batch_go_on_with_the_first() -> None:
    store, writer = LogFixture(), Author(1)
    root = writer.write(b"root")
    one = writer.write(b"one")
    two = writer.write(b"two", prev=root.hash)
    after_two = writer.write(b"after two")
    after_one = writer.write(b"after one", prev=one.hash)
    done = store.ingest(two, one, after_one, after_two, root)
    assert store.witnessed() == [root.hash, two.hash, after_two.hash]
    assert [pair(fork) for fork in done.forks] == [(two.hash, one.hash)]
    # What follows the other branch waits for it: it proves nothing more.
    assert store.floating() == {one.hash: "fork", after_one.hash: "prev"}


def test_a_branch_that_comes_later_even_much_later() -> None:
    store, writer = LogFixture(), Author(1)
    chain = writer.chain(100)
    store.ingest(*chain)
    for height in (0, 1, 31, 32, 63, 98):
        prev = chain[height - 1].hash if height else ZERO_HASH
        late = Author(1).write(b"late %d" % height, prev=prev)
        done = store.ingest(late)
        assert [pair(fork) for fork in done.forks] == [(chain[height].hash, late.hash)]
        assert done.witnessed == ()
        assert done.missing == ()
        assert done.missing_condition == ()
    assert len(stored(store)) == 6
    assert store.head().seq == 100
    assert store.fsck() == []


def test_a_branch_that_waited_for_its_predecessor() -> None:
    store, writer = LogFixture(), Author(1)
    root = writer.write(b"root")
    one = writer.write(b"one")
    two = writer.write(b"two", prev=root.hash)
    assert store.ingest(one).forks == store.ingest(two).forks == ()
    assert store.floating() == {one.hash: "prev", two.hash: "prev"}
    done = store.ingest(root)
    assert store.witnessed() == [root.hash, one.hash]
    assert [pair(fork) for fork in done.forks] == [(one.hash, two.hash)]


def test_a_branch_that_waits_for_a_condition_becomes_the_other() -> None:
    store, writer = LogFixture(), Author(1)
    awaited = Author(2).write()
    waits = writer.write(b"waits", [awaited.hash])
    assert store.ingest(waits).forks == ()
    assert store.floating() == {waits.hash: "condition"}
    quick = writer.write(b"quick", prev=ZERO_HASH)
    done = store.ingest(quick)
    assert [pair(fork) for fork in done.forks] == [(quick.hash, waits.hash)]
    assert store.floating() == {waits.hash: "fork"}
    assert store.ingest(awaited).witnessed == (2,)
    assert store.floating() == {waits.hash: "fork"}
    assert store.fsck() == []


def test_reported_once() -> None:
    store = LogFixture()
    one, two = branches()
    assert len(store.ingest(one, two).forks) == 1
    assert store.ingest(two, one, two).forks == ()
    assert store.ingest(Author(2).write()).forks == ()
    three = Author(1).write(b"three", prev=ZERO_HASH)
    assert [pair(fork) for fork in store.ingest(three).forks] == [(one.hash, three.hash)]
    assert {pair(fork)[1] for fork in stored(store)} == {two.hash, three.hash}


def test_nodes_differ_in_the_branch_and_both_hold_the_evidence() -> None:
    one, two = branches()
    here, there = LogFixture(), LogFixture()
    here.ingest(one)
    there.ingest(two)
    (ours,) = here.ingest(two).forks
    (theirs,) = there.ingest(one).forks
    assert pair(ours) == (one.hash, two.hash)
    assert pair(theirs) == (two.hash, one.hash)


def test_a_fork_of_the_local_author_is_found_as_well() -> None:
    """The same key on two machines."""
    store, copy = LogFixture(), Author(1)
    ours = store.submit(author(1), b"here")
    theirs = copy.write(b"there")
    assert [pair(fork) for fork in store.ingest(theirs).forks] == [(ours.hash, theirs.hash)]
    assert store.submit(author(1)).intention.store_prev == ours.hash


def test_evidence_is_portable() -> None:
    store = LogFixture()
    (fork,) = store.ingest(*branches()).forks
    # A third party decodes and verifies it without any store.
    proved = Fork.decode(fork.encode())
    assert proved == fork
    assert (proved.author, proved.store_prev) == (author(1).public_key, ZERO_HASH)


def test_what_is_no_evidence() -> None:
    one, two = branches()
    stranger = Author(2).write(b"x")
    chain = Author(1).chain(2)
    unsigned = two._replace(signature=bytes(64))
    elsewhere = Author(1, bytes(16)).write(b"one")
    for other in (one, stranger, chain[1], unsigned, elsewhere):
        with pytest.raises(BadFormat):
            Fork.decode(Fork(one.intention.author, ZERO_HASH, one, other).encode())
    for data in (b"", b"\x0a\x00", one.encode(), b"\xff"):
        with pytest.raises(BadFormat):
            Fork.decode(data)
    assert one.intention.store_id == KIT_STORE
