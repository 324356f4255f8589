"""Peers are served cells that a committed root reaches, and no others, whoever brought them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from datalattice.cells import (
    Index,
    Map,
    MessageCells,
    Value,
    decode_parts,
    encode,
    encode_message,
    join_cells,
    missing,
    novelty,
    references,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.lattice import (
    LOCAL_KEY,
    Lattice,
    MapLattice,
    MaxLattice,
    MergeContext,
    get_in,
    root_lattice,
    set_local,
)
from datalattice.store import CellStore, MemoryStore, Store
from datalattice.store.kept.history import KEEP_NOTHING
from datalattice.sync import LatticeReplica, Offer, Part, Peer, Probe
from datalattice.sync.lattice.incoming import Incoming

NUMBERS = MapLattice(MaxLattice())
STRANGER = KeyPair(b"s" * 32)
KINDS = ("memory", "folder")


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[Store]:
    if kind == "memory":
        yield MemoryStore()
    else:
        with CellStore.open(folder / "store") as store:
            yield store


def stated(value: Value, left_out: set[bytes]) -> Offer:
    """Return the message of a value that lacks some of its cells."""
    _, parts = decode_parts(encode_message(value))
    cells = [cell for hash, cell in parts.encodings().items() if hash not in left_out]
    found, sent = decode_parts(join_cells(encode(value), cells))
    return Offer(Probe(value_hash(value), Incoming((), found, sent)))


def given(replica: LatticeReplica, hash: bytes) -> bytes | None:
    (part,) = replica.views.supply([hash])
    return None if part is None else part.data


@pytest.mark.parametrize("kind", KINDS)
def test_cells_of_a_value_that_is_incomplete_are_given_to_nobody(kind: str, tmp_path: Path) -> None:
    value = Map.of([(f"key {number}", number) for number in range(300)])
    branches = references(encode(value))
    withheld, brought = branches[0], branches[1:]
    with opened(kind, tmp_path) as store:
        replica = LatticeReplica(store, NUMBERS)
        absorbed = replica.absorb(stated(value, {withheld}), Peer("mallory"))
        assert absorbed.missing == [withheld]
        # They are in the store, complete below, so that only the rule keeps them in.
        assert store.has_many(brought) == set(brought)
        assert [given(replica, hash) for hash in brought] == [None] * len(brought)
        assert given(replica, value_hash(value)) is None
        cells = {hash: data for hash, data, _ in novelty(value, MessageCells(None))}
        done = replica.absorb(Offer(None, (Part(withheld, cells[withheld]),)), Peer("mallory"))
        assert done.changed
        assert [given(replica, hash) for hash in brought] == [cells[hash] for hash in brought]


def test_cells_of_an_incomplete_value_stay_unserved_in_the_next_process(tmp_path: Path) -> None:
    value = Map.of([(f"key {number}", number) for number in range(300)])
    branches = references(encode(value))
    with opened("folder", tmp_path) as store:
        LatticeReplica(store, NUMBERS).absorb(stated(value, {branches[0]}), Peer("mallory"))
        store.sync()
    with opened("folder", tmp_path) as store:
        replica = LatticeReplica(store, NUMBERS)
        assert store.has_many(branches[1:]) == set(branches[1:])
        assert [given(replica, hash) for hash in branches] == [None] * len(branches)


@pytest.mark.parametrize("last", ["a branch", "the top", "a leaf"])
def test_a_collection_takes_nothing_of_a_value_that_arrives_meanwhile(
    last: str, tmp_path: Path
) -> None:
    """Without any grace its cells go; they are asked for again when it is stated again."""
    value = Map.of([(f"key {number}", number) for number in range(3_000)])
    cells = {hash: data for hash, data, _ in novelty(value, MessageCells(None))}
    branch = references(encode(value))[0]
    leaf = references(cells[branch])[0]
    left_out = {"a branch": branch, "the top": value_hash(value), "a leaf": leaf}[last]
    with CellStore.open(tmp_path, segment_bytes=16_384, retention=KEEP_NOTHING) as store:
        replica = LatticeReplica(store, NUMBERS)
        own = Map.of([(f"own {number}", number) for number in range(1_000)])
        replica.cursor.merge(own)
        replica.publish()
        absorbed = replica.absorb(stated(value, {left_out}), Peer("alice"))
        if not absorbed.changed:
            assert store.collect(grace_ms=0).cells_removed > 100
            absorbed = replica.absorb(
                Offer(None, (Part(left_out, cells[left_out]),)), Peer("alice")
            )
        for _ in range(10):  # as a peer does: it gives what is asked for, or states its root
            found = tuple(Part(hash, cells[hash]) for hash in absorbed.missing)
            offer = Offer(None, found) if found else stated(value, set(cells))
            absorbed = replica.absorb(offer, Peer("alice"))
        merged = replica.announced
        assert isinstance(merged, Map)
        assert len(merged) == 4_000
        assert missing(merged) == []
        assert store.check().is_clean


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_peer_sends_below_local_is_given_to_nobody(kind: str, tmp_path: Path) -> None:
    lattice: Lattice = root_lattice()
    secret = "planted below :local ".ljust(400, "!")
    slot = Map.of([("timestamp", 1), ("note", secret)])
    foreign = set_local(lattice.zero(), STRANGER, slot)
    open_text = "for everybody ".ljust(400, "?")
    data = Index.of([(value_hash(open_text), open_text)])
    assert isinstance(foreign, Index)
    foreign = lattice.merge(foreign, Index.of([("data", data)]), MergeContext())
    section: Value = get_in(foreign, [LOCAL_KEY])
    planted = [hash for hash, _, _ in novelty(section, MessageCells(None))]
    assert value_hash(secret) in planted
    with opened(kind, tmp_path) as store:
        replica = LatticeReplica(store, lattice)
        assert replica.absorb(stated(foreign, set()), Peer("mallory")).changed
        assert given(replica, value_hash(open_text)) is not None
        assert [given(replica, hash) for hash in planted] == [None] * len(planted)
