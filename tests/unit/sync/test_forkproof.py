"""A fork proof is checked from its bytes alone, and shows forks only."""

from __future__ import annotations

import pytest

from datalattice.apps.kv import Database
from datalattice.apps.queue import Topics
from datalattice.cells import Keyword, Signed, Value, Vector, encode, encode_message
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import MergeContext, get_in, root_lattice
from datalattice.store import MemoryStore
from datalattice.sync.lattice.forkproof import CHAIN, FORK, INVALID, check_proof, write_proof
from datalattice.testing.clocks import StoppedClock

OWNER, OTHER = KeyPair(b"o" * 32), KeyPair(b"x" * 32)


def queue_root(values: list[str], stamp: int, base: Value = None) -> Value:
    root = RootLattice(root_lattice(), base, MergeContext(key_pair=OWNER))
    Topics.at(root, OWNER.public_key, StoppedClock(stamp)).partition("t", 0).offer_many(values)
    return root.get()


def kv_root(entries: dict[str, int], stamp: int, base: Value = None) -> Value:
    root = RootLattice(root_lattice(), base, MergeContext(key_pair=OWNER))
    database = Database.at(root, OWNER.public_key, "d", clock=StoppedClock(stamp), replica="x")
    for name, value in entries.items():
        database.set(name, value)
    return root.get()


def proof_of(left: Value, right: Value, section: str) -> bytes:
    path = (Keyword(section), OWNER.public_key)
    store = MemoryStore()
    store.put(left, right)
    one, other = get_in(left, path), get_in(right, path)
    assert isinstance(one, Signed)
    assert isinstance(other, Signed)
    return write_proof(path, OWNER.public_key, one, other, store.get_encodings)


QUEUES = [
    queue_root([text], 9_000 + len(text), queue_root([f"{n}" for n in range(3_000)], 5))
    for text in ("left", "right!")
]
BASE = kv_root({f"k{n}": n for n in range(2_000)}, 5)
DATABASES = [kv_root({name: 1}, 9, BASE) for name in ("left", "right")]


@pytest.mark.parametrize(("roots", "section"), [(QUEUES, "queue"), (DATABASES, "kv")])
def test_a_fork_is_proved_by_what_differs(roots: list[Value], section: str) -> None:
    data = proof_of(roots[0], roots[1], section)
    found = check_proof(data)
    assert (found.kind, found.owner) == (FORK, OWNER.public_key)
    assert len(data) < 8_000
    whole = encode_message(roots[0])
    assert len(data) < len(whole) / 5


def test_a_chain_proves_nothing_and_is_not_written() -> None:
    first = queue_root(["a"], 5)
    later = queue_root(["b"], 9, first)
    path = (Keyword("queue"), OWNER.public_key)
    cells = [get_in(root, path) for root in (first, later)]
    top = Vector.of((Keyword("fork-proof"), 1, Vector.of(path), OWNER.public_key, Vector.of(cells)))
    assert check_proof(encode_message(top)).kind == CHAIN
    with pytest.raises(UsageError, match="no proof of a fork"):
        proof_of(first, later, "queue")


def test_what_is_forged_foreign_cut_or_something_else_is_invalid() -> None:
    path = (Keyword("queue"), OWNER.public_key)
    one, other = (get_in(root, path) for root in QUEUES)
    assert isinstance(one, Signed)
    assert isinstance(other, Signed)
    forged = Signed(OWNER.public_key, one.signature, other.value)
    stranger = Signed.sign(OTHER, other.value)
    kind, owner = Keyword("fork-proof"), OWNER.public_key
    for top, says in (
        ((kind, 1, Vector.of(path), owner, Vector.of((one, forged))), "signature"),
        ((kind, 1, Vector.of(path), owner, Vector.of((one, stranger))), "may not sign"),
        ((kind, 1, Vector.of(path), OTHER.public_key, Vector.of((one, other))), "does not end"),
        ((kind, 2, Vector.of(path), owner, Vector.of((one, other))), "another version"),
        ((kind, 1, Vector.of((Keyword("no"), owner)), owner, Vector.of((one, other))), ""),
        ((kind, 1, Vector.of(path), owner, Vector.of((one, 5))), "not signed"),
        ((kind, 1, Vector.of(path), owner, Vector.of((one,))), "two cells"),
    ):
        found = check_proof(encode_message(Vector.of(top)))
        assert found.kind == INVALID
        assert says in found.text
    cut = encode(Vector.of((kind, 1, Vector.of(path), owner, Vector.of((one, other)))))
    assert check_proof(cut).text == "a cell is missing that the check has to look at"
    assert check_proof(b"nothing").kind == INVALID
