"""Writes of what this node may not write: refused at the write, which leaves all as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from datalattice.apps.kv import Database
from datalattice.cells import EMPTY_INDEX, Index, Keyword, Map, Signed, Value, same, value_hash
from datalattice.crypto import KeyPair
from datalattice.cursors import LatticeCursor, PathCursor, RootLattice
from datalattice.errors import (
    BadSignature,
    DataLatticeError,
    NoSigningKey,
    NoSuchPath,
    NotContained,
    TypeMismatch,
    UsageError,
)
from datalattice.lattice import (
    EMPTY_CONTEXT,
    VALUE_KEY,
    DIDOwnerLattice,
    KeyedLattice,
    Lattice,
    MapLattice,
    MaxLattice,
    MergeContext,
    OwnerLattice,
    assoc_in,
    did_of,
    root_lattice,
    verify_did,
)

ANN, BEN, EVE = KeyPair(b"\x01" * 32), KeyPair(b"\x02" * 32), KeyPair(b"\x03" * 32)
A, B, E = ANN.public_key, BEN.public_key, EVE.public_key
KV, DATA, UNKNOWN = Keyword("kv"), Keyword("data"), Keyword("nosuch")
EMPTY: Map = Map()
CONTENT = Index.of([(value_hash(b"held"), b"held")])
CONTEXT = MergeContext(key_pair=ANN, verifier=verify_did)


def database(keys: KeyPair, **fields: Value) -> Signed:
    """Return the slot of an owner with one database."""
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=keys))
    Database.at(root, keys.public_key, "x").update(fields)
    slot = root.get(KV, keys.public_key)
    assert isinstance(slot, Signed)
    return slot


HELD = database(BEN, a=1)
ROOT = Index.of([(KV, Map.of([(A, database(ANN, a=1)), (B, HELD)])), (DATA, CONTENT)])

Write = Callable[[LatticeCursor], object]
REFUSED: dict[str, tuple[Write, type[DataLatticeError], str]] = {
    "unsigned in another's slot": (
        lambda cursor: cursor.path(KV, E).set(EMPTY),
        NoSigningKey,
        "no key here may sign for the owner of .*got Map without a signature",
    ),
    "signed by this node in another's slot": (
        lambda cursor: cursor.path(KV, E).set(Signed.sign(ANN, EMPTY)),
        NoSigningKey,
        f"signed by 0x{A.hex()}, which may not sign for its owner",
    ),
    "in the place of another's value": (
        lambda cursor: cursor.path(KV, B).set(Signed.sign(ANN, EMPTY)),
        NoSigningKey,
        "it takes only values that the owner signed",
    ),
    "removal of another's slot": (
        lambda cursor: cursor.path(KV, B).set(None),
        NoSigningKey,
        "cannot be removed",
    ),
    "removal of what another signed": (
        lambda cursor: cursor.path(KV, B, VALUE_KEY).set(None),
        NoSigningKey,
        "no key here may sign for the owner",
    ),
    "an earlier value of another": (
        lambda cursor: cursor.path(KV, B).set(Signed.sign(BEN, EMPTY)),
        NotContained,
        "an earlier or a different state",
    ),
    "with a signature that does not hold": (
        lambda cursor: cursor.path(KV, B).set(Signed(B, HELD.signature, EMPTY)),
        BadSignature,
        "is not what 0x",
    ),
    "unsigned in the own slot": (
        lambda cursor: cursor.path(KV, A).set(EMPTY),
        TypeMismatch,
        "takes a Signed value by a key of its owner, got Map without a signature",
    ),
    "signed by another in the own slot": (
        lambda cursor: cursor.path(KV, A).set(Signed.sign(BEN, EMPTY)),
        BadSignature,
        f"signed by 0x{B.hex()}, which may not sign for its owner",
    ),
    "a signed value of a wrong kind": (
        lambda cursor: cursor.path(KV, A).set(Signed.sign(ANN, 5)),
        TypeMismatch,
        "a signed int is not accepted at",
    ),
    "a value of a wrong kind to sign": (
        lambda cursor: cursor.path(KV, A, VALUE_KEY).set(5),
        TypeMismatch,
        "a int is not accepted at",
    ),
    "a section of unsigned values": (
        lambda cursor: cursor.path(KV).set(Map.of([(E, EMPTY)])),
        NoSigningKey,
        "so it cannot be removed|without a signature",
    ),
    "a section of a wrong kind": (
        lambda cursor: cursor.path(KV).set(5),
        TypeMismatch,
        "a int is not accepted at",
    ),
    "removal of a section": (
        lambda cursor: cursor.path(KV).set(None),
        NoSigningKey,
        "cannot be removed",
    ),
    "an unknown section": (
        lambda cursor: cursor.path(UNKNOWN).set(5),
        NoSuchPath,
        "accepted here are .*:kv",
    ),
    "content under a false key": (
        lambda cursor: cursor.path(DATA).set(CONTENT.put(b"x" * 32, b"y")),
        UsageError,
        f"write it under 0x{value_hash(b'y').hex()}",
    ),
    "one entry of content under a false key": (
        lambda cursor: cursor.path(DATA, b"x" * 32).set(b"y"),
        UsageError,
        "does not have the hash in its key",
    ),
    "a root of a wrong kind": (lambda cursor: cursor.set(5), TypeMismatch, "a int is not accepted"),
    "an empty root": (
        lambda cursor: cursor.set(EMPTY_INDEX),
        NoSigningKey,
        "cannot be removed",
    ),
    "an update": (
        lambda cursor: cursor.update(lambda root: assoc_in(root, [KV], EMPTY)),
        NoSigningKey,
        "cannot be removed",
    ),
    "a place inside": (
        lambda cursor: cursor.assoc_in(EMPTY, KV, E),
        NoSigningKey,
        "without a signature",
    ),
    "a plain path": (
        lambda cursor: PathCursor(cursor, (KV, E)).set(EMPTY),
        NoSigningKey,
        "without a signature",
    ),
}


@pytest.mark.parametrize("place", ["root", "fork"])
@pytest.mark.parametrize("case", list(REFUSED))
def test_a_write_of_what_this_node_may_not_write_is_refused_and_changes_nothing(
    case: str, place: str
) -> None:
    write, error, text = REFUSED[case]
    root = RootLattice(root_lattice(), ROOT, CONTEXT)
    cursor: LatticeCursor = root if place == "root" else root.fork()
    with pytest.raises(error, match=text):
        write(cursor)
    assert cursor.get() is ROOT
    cursor.path(KV, A, VALUE_KEY).set(EMPTY)  # an honest write goes on
    cursor.sync()
    assert same(root.get(KV, A), Signed.sign(ANN, EMPTY))
    assert same(root.get(KV, B), HELD)


@pytest.mark.parametrize("path", [(KV,), (KV, E)], ids=["section", "slot"])
def test_a_fork_of_a_part_of_the_root_refuses_what_the_root_refuses(
    path: tuple[Value, ...],
) -> None:
    root = RootLattice(root_lattice(), ROOT, CONTEXT)
    fork = root.path(*path).fork()
    with pytest.raises(NoSigningKey, match="without a signature"):
        fork.path(*(KV, E)[len(path) :]).set(EMPTY)
    assert same(fork.get(), root.get(*path))
    assert root.get() is ROOT


def test_the_sync_of_a_fork_with_a_key_of_its_own_is_judged_by_the_keys_of_its_parent() -> None:
    root = RootLattice(root_lattice(), ROOT, CONTEXT)
    fork = root.fork()
    fork.with_context(MergeContext(key_pair=BEN))
    fork.path(KV, B).set(None)
    with pytest.raises(NoSigningKey, match="so it cannot be removed"):
        fork.sync()
    assert root.get() is ROOT
    fork.path(KV, B).set(HELD)
    fork.path(KV, B, VALUE_KEY, "more").set(EMPTY_INDEX)  # news of the owner, signed by the owner
    fork.sync()
    assert same(root.get(KV, B), fork.get(KV, B))
    assert not same(root.get(KV, B), HELD)


def test_what_a_merge_could_make_of_it_is_accepted() -> None:
    root = RootLattice(root_lattice(), ROOT, CONTEXT)
    news = database(EVE, a=1)
    root.path(KV, E).set(news)
    root.path(KV).update(lambda section: section)
    root.path(DATA, value_hash(b"new")).set(b"new")
    assert same(root.get(KV, E), news)
    assert same(root.get(DATA, value_hash(b"new")), b"new")
    root.path(KV, A).set(None)  # the own slot is the owner's to empty
    root.path(KV, A).set(Signed.sign(ANN, EMPTY))
    forged = Index.of([(KV, Map.of([(B, None), (E, EMPTY)])), (UNKNOWN, 5)])
    before = root.get()
    assert root.merge(forged) is before


def test_a_lenient_root_takes_what_it_is_given() -> None:
    root = RootLattice(root_lattice(), ROOT, CONTEXT, strict=False)
    root.path(KV, B).set(EMPTY)
    root.path(UNKNOWN).set(5)
    assert root.get(KV, B) is not None
    assert root.get(UNKNOWN) == 5


DIDS = DIDOwnerLattice(MapLattice(MaxLattice()))
SITE = "did:web:a-name-that-is-longer-than-a-key.example"


def knows(owner: Value, signer: bytes) -> bool:
    if owner == did_of(A):
        return signer == A
    return signer == (B if owner == SITE + ":ben" else E)


def test_owners_named_by_dids_are_judged_by_the_verifier_and_told_apart_by_every_byte() -> None:
    lattice = KeyedLattice({"d": DIDS})
    root = RootLattice(lattice, None, MergeContext(key_pair=ANN, verifier=knows))
    own = did_of(A)
    root.path("d", own, VALUE_KEY).set({"n": 1})
    root.path("d", SITE + ":ben").set(Signed.sign(BEN, {"n": 1}))
    held = root.get()
    for wrong in (EMPTY, Signed.sign(ANN, EMPTY), Signed.sign(BEN, EMPTY)):
        with pytest.raises((NoSigningKey, NotContained)):
            root.path("d", SITE + ":ben").set(wrong)
    with pytest.raises(NoSigningKey, match="cannot be removed"):
        # As far as an Index looks, this is the key of the other one.
        root.path("d", SITE + ":eve").set(Signed.sign(EVE, {"n": 1}))
    with pytest.raises(TypeMismatch, match="without a signature"):
        root.path("d", own).set({})
    assert root.get() is held


def test_a_key_here_speaks_for_a_did_whose_document_is_not_known_where_no_other_key_does() -> None:
    lattice = KeyedLattice({"d": DIDS})
    root = RootLattice(lattice, None, MergeContext(key_pair=ANN, verifier=verify_did))
    for count in (1, 2):
        root.path("d", SITE).set(Signed.sign(ANN, {"n": count}))
    root.adopt(lambda held: assoc_in(held, [Keyword("d"), SITE], Signed.sign(BEN, {"n": 1})))
    for keys in (ANN, EVE):  # it is another's, and EVE's key is not here
        with pytest.raises(NoSigningKey, match="which may not sign for its owner"):
            root.path("d", SITE).set(Signed.sign(keys, {"n": 3}))


def test_slots_below_unsigned_containers_are_found() -> None:
    lattice = MapLattice(OwnerLattice(MaxLattice()))
    root = RootLattice(lattice, None, MergeContext(key_pair=ANN))
    with pytest.raises(NoSigningKey):
        root.set({"x": {B: 5}})
    root.set({"x": {A: Signed.sign(ANN, 5)}})
    with pytest.raises(TypeMismatch):
        root.path("x", A).set(6)
    assert root.path("x", A, VALUE_KEY).get() == 5


class _Asked(Lattice):
    """The greater number; counts the values that it is asked about."""

    def __init__(self) -> None:
        self.count = 0
        self._numbers = MaxLattice()

    def merge(self, own: Value, other: Value, context: MergeContext = EMPTY_CONTEXT) -> Value:
        return self._numbers.merge(own, other, context)

    def zero(self) -> Value:
        return self._numbers.zero()

    def check_foreign(self, value: Value) -> bool:
        self.count += 1
        return self._numbers.check_foreign(value)


def test_a_write_is_judged_by_what_it_changes_alone() -> None:
    owners = [(KeyPair(bytes([n]) * 32)) for n in range(1, 200)]
    slots = Map.of([(keys.public_key, Signed.sign(keys, 1)) for keys in owners])
    asked = _Asked()
    lattice = KeyedLattice({"o": OwnerLattice(asked)})
    root = RootLattice(lattice, {}, MergeContext(key_pair=ANN))
    root.merge(Index.of([(Keyword("o"), slots)]))
    asked.count = 0
    root.path("o", A).set(Signed.sign(ANN, 2))
    changed = slots.put(A, Signed.sign(ANN, 3))
    root.update(lambda held: assoc_in(held, [Keyword("o")], changed))
    assert asked.count <= 2
