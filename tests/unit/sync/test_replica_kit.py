"""Every kind of replica keeps to what the kit checks; a kind that does not is noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from datalattice.lattice import MapLattice, MaxLattice
from datalattice.store import MemoryStore
from datalattice.sync import LatticeProtocol, LatticeReplica, News, Offer, Peer
from datalattice.testing.counters import Counters, JsonProtocol, Ranges
from datalattice.testing.replica_kit import KitReplica, check_replica


def lattice() -> KitReplica:
    replica = LatticeReplica(MemoryStore(), MapLattice(MaxLattice()))
    return KitReplica(
        replica,
        LatticeProtocol(),
        lambda number: replica.cursor.assoc(f"name {number % 17}", number + 1),
    )


def counters() -> KitReplica:
    replica = Counters()
    return KitReplica(replica, JsonProtocol(), lambda number: replica.add(f"name {number % 17}"))


@pytest.mark.parametrize("make", [lattice, counters])
@pytest.mark.parametrize("seed", range(6))
def test_a_replica_keeps_to_the_kit(make: Callable[[], KitReplica], seed: int) -> None:
    check_replica(make, seed)


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (Counters, "news", lambda *_: None),
        (Counters, "news", lambda self, _peer, _known: News((Offer(self.probe),))),
        (Counters, "compare", lambda *_: None),
        (Counters, "equals", lambda *_: False),
        (Ranges, "_smaller", lambda *_: []),
        (LatticeReplica, "compare", lambda *_: None),
        (LatticeReplica, "equals", lambda *_: False),
    ],
    ids=[
        "tells nothing",
        "tells everything again",
        "compares nothing",
        "is never equal",
        "overlooks a range",
        "a lattice that compares nothing",
        "a lattice that is never equal",
    ],
)
def test_a_replica_that_does_not_is_noticed(
    owner: type, name: str, fault: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, fault)
    make = lattice if owner is LatticeReplica else counters
    noticed = 0
    for seed in range(6):
        try:
            check_replica(make, seed)
        except AssertionError:
            noticed += 1
    assert noticed


def test_who_never_wrote_has_nothing_to_tell() -> None:
    assert Counters().news(Peer("p"), [Counters().probe]) is None
