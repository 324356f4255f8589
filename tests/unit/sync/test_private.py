"""What lies below `:local` alone is given to nobody, not even to who knows its hash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from datalattice.cells import (
    Index,
    Keyword,
    Map,
    Value,
    Vector,
    decode,
    decode_parts,
    encode,
    encode_message,
    is_embedded,
    references,
    value_hash,
)
from datalattice.crypto import KeyPair
from datalattice.lattice import LOCAL_KEY, MergeContext, get_in, local_slot, root_lattice, set_local
from datalattice.store import CellStore, MemoryStore, Store
from datalattice.sync import LatticeReplica, Offer, Peer, Probe
from datalattice.sync.lattice.incoming import Incoming

KEYS = KeyPair(b"p" * 32)
SECRET = "for this node alone ".ljust(300, "!")
OPEN = "for everybody ".ljust(300, "?")


Opening = Callable[[], AbstractContextManager[Store]]


@pytest.fixture(params=["memory", "folder"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening:
    """Return what opens one store, as each process of a node does."""
    memory = MemoryStore()

    @contextmanager
    def open_again() -> Iterator[Store]:
        if request.param == "memory":
            yield memory
            return
        with CellStore.open(tmp_path / "store") as store:
            yield store

    return open_again


def replica_over(store: Store) -> LatticeReplica:
    return LatticeReplica(store, root_lattice(), MergeContext(key_pair=KEYS))


def keep(replica: LatticeReplica, *texts: str) -> None:
    slot = Map.of([(Keyword("note"), Map.of([(Keyword("timestamp"), 1), ("texts", list(texts))]))])
    replica.cursor.update(lambda root: set_local(root, KEYS, slot))
    replica.publish()


def show(replica: LatticeReplica, text: str) -> None:
    replica.cursor.path(Keyword("data")).merge(Index.of([(value_hash(text), text)]))
    replica.publish()


def gives(replica: LatticeReplica, hash: bytes) -> bool:
    return replica.views.supply([hash]) != [None]


def private_hashes(replica: LatticeReplica) -> list[bytes]:
    """Return the cells below `:local`, and the root that refers to them."""
    root = replica.cursor.get()
    slot = local_slot(root, KEYS.public_key)
    section: Value = get_in(root, [LOCAL_KEY])
    return [value_hash(root), value_hash(section), value_hash(slot), value_hash(SECRET)]


def announced_is_complete(replica: LatticeReplica) -> bool:
    front = references(encode(replica.announced))
    while front:
        (part,) = replica.views.supply([front.pop()])
        if part is None:
            return False
        front.extend(references(part.data))
    return True


def test_private_cells_are_not_given() -> None:
    replica = replica_over(MemoryStore())
    show(replica, OPEN)
    keep(replica, SECRET)
    assert not any(gives(replica, hash) for hash in private_hashes(replica))
    assert gives(replica, value_hash(OPEN))
    assert announced_is_complete(replica)


def test_what_is_public_too_is_given_whichever_came_first() -> None:
    first, second = replica_over(MemoryStore()), replica_over(MemoryStore())
    show(first, OPEN)
    keep(first, SECRET, OPEN)
    keep(second, SECRET, OPEN)
    assert not gives(second, value_hash(OPEN))
    show(second, OPEN)
    for replica in (first, second):
        assert gives(replica, value_hash(OPEN))
        assert not gives(replica, value_hash(SECRET))
        assert announced_is_complete(replica)


def test_what_was_private_stays_so_when_it_is_replaced() -> None:
    replica = replica_over(MemoryStore())
    keep(replica, SECRET)
    before = private_hashes(replica)
    keep(replica, "something else ".ljust(300, "#"))
    show(replica, OPEN)
    assert not any(gives(replica, hash) for hash in before)


def test_a_new_process_knows_what_is_private() -> None:
    store = MemoryStore()
    replica = replica_over(store)
    show(replica, OPEN)
    keep(replica, SECRET, OPEN)
    again = replica_over(store)
    assert not any(gives(again, hash) for hash in private_hashes(again))
    assert gives(again, value_hash(OPEN))
    assert announced_is_complete(again)


def test_what_was_private_stays_so_in_the_next_process(opening: Opening) -> None:
    with opening() as store:
        replica = replica_over(store)
        show(replica, OPEN)
        keep(replica, SECRET, OPEN)
        before = private_hashes(replica)
        keep(replica, "something else ".ljust(300, "#"))
        assert store.has(value_hash(SECRET))
    with opening() as store:
        again = replica_over(store)
        assert store.has(value_hash(SECRET))
        assert not any(gives(again, hash) for hash in before)
        assert gives(again, value_hash(OPEN))
        show(again, SECRET)
        assert gives(again, value_hash(SECRET)), "it is not private any more"
        assert announced_is_complete(again)


def test_what_a_program_commits_below_local_is_private_too(opening: Opening) -> None:
    with opening() as store:
        root = set_local(Index.of([]), KEYS, Map.of([(Keyword("note"), SECRET)]))
        store.commit(root)
        replica = replica_over(store)
        assert not any(gives(replica, hash) for hash in private_hashes(replica))


def test_an_announced_value_is_given_by_its_hash_however_short_it_is() -> None:
    replica = replica_over(MemoryStore())
    keep(replica, SECRET)
    show(replica, OPEN)
    assert is_embedded(replica.announced)
    before = replica.announced_hash
    show(replica, "more " * 100)
    for hash in (before, replica.announced_hash):
        (part,) = replica.views.supply([hash])
        assert part is not None
        assert value_hash(decode(part.data)) == hash


def test_what_a_peer_shows_is_given_though_it_was_private_here() -> None:
    first, second = replica_over(MemoryStore()), replica_over(MemoryStore())
    keep(first, SECRET, OPEN)
    assert not gives(first, value_hash(OPEN))
    shown = Vector.of([OPEN, *(f"and more {n}".ljust(300, ".") for n in range(8))])
    assert not is_embedded(shown)
    second.cursor.path(Keyword("data")).merge(Index.of([(value_hash(shown), shown)]))
    second.publish()
    value, parts = decode_parts(encode_message(second.announced))
    absorbed = first.absorb(
        Offer(Probe(value_hash(value), Incoming((), value, parts))), Peer("peer")
    )
    assert absorbed.changed
    assert announced_is_complete(first)
    assert not gives(first, value_hash(SECRET))


def test_a_root_that_has_all_of_local_in_its_own_cell_is_not_given() -> None:
    replica = replica_over(MemoryStore())
    replica.cursor.update(lambda root: set_local(root, KEYS, Map.of([])))
    replica.publish()
    assert is_embedded(get_in(replica.root, [LOCAL_KEY]))
    assert not gives(replica, value_hash(replica.root))
