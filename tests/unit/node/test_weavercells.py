"""Values that intentions name: fetched cell by cell, pinned when they are complete, reported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from datalattice.cells import Value, encode, make_blob, novelty, value_hash
from datalattice.clock import Clock
from datalattice.errors import StoreFull
from datalattice.node import weavercells
from datalattice.node.weavercells import ASKED_MAX, REFERENCES_MAX, REPORT_MS, RETRY_MS, NamedCells
from datalattice.store import MemoryStore
from datalattice.testing.gallery import Gallery, Photos
from datalattice.testing.stores_kit import WeaverNode, envelopes_of
from datalattice.weaver import (
    CORE_MACHINES,
    WeaverStore,
)

PHOTO: Value = make_blob(bytes(range(256)) * 200)
"""A value of many cells."""


class Cellar:
    """A clock, a store, and peers that have the cells of some values."""

    def __init__(self, *values: Value, has_all: bool = False) -> None:
        self.now_ms = 0
        clock: Clock = _Still(self)
        self.store = MemoryStore()
        self.asked: list[list[bytes]] = []
        self.peers = {hash: encoding for one in values for hash, encoding, _ in novelty(one)}
        self.peers |= {value_hash(one): encode(one) for one in values}
        if has_all:
            self.store.heal(self.peers.items())
        node = WeaverNode(1, machines=(*CORE_MACHINES, Gallery))
        self.gallery = node.stores.create("test:gallery", "photos")
        self.cells = NamedCells(self.store, self.fetch, clock, lambda: None)
        self.clock = clock

    def fetch(self, hashes: Sequence[bytes]) -> None:
        self.asked.append(list(hashes))
        self.store.heal((one, self.peers[one]) for one in hashes if one in self.peers)

    def add(self, *hashes: bytes) -> None:
        self.gallery.execute("Add", Photos(hashes))

    def look(self, times: int = 1, *stores: WeaverStore) -> None:
        for _ in range(times):
            self.cells.look(stores or [self.gallery])

    @property
    def trouble(self) -> str:
        return self.cells.trouble or ""

    @property
    def pinned(self) -> list[bytes]:
        return [pin.root_hash for pin in self.store.pins.all()]


class _Still:
    def __init__(self, cellar: Cellar) -> None:
        self._cellar = cellar

    def now_ms(self) -> int:
        return self._cellar.now_ms


def test_a_named_value_is_fetched_from_the_top_down_and_pinned_once_complete() -> None:
    cellar = Cellar(PHOTO)
    top = value_hash(PHOTO)
    cellar.add(top)
    cellar.look()
    assert cellar.asked == [[top]]
    assert cellar.pinned == []
    cellar.look(5)
    assert cellar.pinned == [top]
    assert set(cellar.store.missing(cellar.peers)) == set()
    (pin,) = cellar.store.pins.all()
    assert pin.name == f"weaver-{top.hex()}"
    assert pin.owner == "weaver"
    rounds = len(cellar.asked)
    cellar.add(top)
    cellar.look(3)
    assert len(cellar.asked) == rounds, "it is here already"


def test_a_value_that_is_here_is_pinned_without_asking() -> None:
    cellar = Cellar(PHOTO, has_all=True)
    cellar.add(value_hash(PHOTO))
    cellar.look()
    assert cellar.pinned == [value_hash(PHOTO)]
    assert cellar.asked == []


def test_a_missing_value_is_asked_for_again_and_reported_after_a_while() -> None:
    cellar = Cellar()
    missing = value_hash(PHOTO)
    cellar.add(missing)
    cellar.look(3)
    assert cellar.asked == [[missing]]
    cellar.now_ms = RETRY_MS
    cellar.look(3)
    assert cellar.asked == [[missing]] * 2
    cellar.now_ms = REPORT_MS - 1
    cellar.look()
    assert cellar.trouble == ""
    cellar.now_ms = REPORT_MS
    cellar.look()
    with cellar.gallery.read() as view:
        hash = list(view.entries())[-1].signed.hash.hex()
    assert f"a value: 0x{missing.hex()}, named in store" in cellar.trouble
    assert f"by {hash} of {cellar.gallery.author.hex()}: cells of it are missing" in cellar.trouble
    # Once a peer has it, it comes.
    cellar.peers = Cellar(PHOTO).peers
    cellar.now_ms += RETRY_MS
    cellar.look(6)
    assert cellar.pinned == [missing]
    assert cellar.trouble == ""


def test_values_that_no_peer_has_do_not_hold_up_others() -> None:
    cellar = Cellar(PHOTO)
    for first in range(0, ASKED_MAX + 100, 100):
        cellar.add(*[number.to_bytes(32, "big") for number in range(first + 1, first + 101)])
    cellar.add(value_hash(PHOTO))
    for _ in range(8):
        cellar.look(3)
        cellar.now_ms += RETRY_MS
    assert cellar.pinned == [value_hash(PHOTO)]
    assert max(map(len, cellar.asked)) <= ASKED_MAX


def test_an_intention_names_a_bounded_number_of_values() -> None:
    cellar = Cellar()
    named = [number.to_bytes(32, "big") for number in range(REFERENCES_MAX + 1)]
    cellar.add(*named, b"no hash")
    cellar.look()
    assert cellar.asked == [named[:REFERENCES_MAX]]
    cellar.now_ms = REPORT_MS
    cellar.look()
    assert cellar.trouble.startswith(f"{REFERENCES_MAX} values that intentions name: 0x")


def test_a_value_of_too_many_cells_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    most = len(Cellar(PHOTO).peers)
    for limit, pinned in ((most, [value_hash(PHOTO)]), (most - 1, [])):
        monkeypatch.setattr(weavercells, "CELLS_MAX", limit)
        cellar = Cellar(PHOTO)
        cellar.add(value_hash(PHOTO))
        cellar.look(6)
        assert cellar.pinned == pinned
    cellar.now_ms = REPORT_MS
    cellar.look()
    assert f"it has more than {most - 1} cells" in cellar.trouble


def test_a_restart_goes_on_behind_what_is_pinned() -> None:
    cellar = Cellar(PHOTO)
    cellar.add(value_hash(PHOTO))
    cellar.look(6)
    missing = b"\x07" * 32
    cellar.add(missing)
    cellar.look()
    read: list[bytes] = []

    class Watched(Gallery):
        def references(self, payload: bytes) -> Iterable[bytes]:
            read.extend(super().references(payload))
            return super().references(payload)

    cellar.gallery.machine.__class__ = Watched
    again = NamedCells(cellar.store, cellar.fetch, cellar.clock, lambda: None)
    again.look([cellar.gallery])
    assert read == [missing]
    assert cellar.asked[-1] == [missing]


def test_what_cannot_be_pinned_is_tried_again_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    cellar = Cellar(PHOTO, has_all=True)
    cellar.add(value_hash(PHOTO))
    with monkeypatch.context() as patch:
        patch.setattr("datalattice.store.kept.pins.PINS_MAX", 0)
        cellar.look(3)
        cellar.now_ms = REPORT_MS
        cellar.look()
        assert "a store has at most 0 pins" in cellar.trouble
    cellar.now_ms += RETRY_MS
    cellar.look()
    assert cellar.pinned == [value_hash(PHOTO)]
    assert cellar.trouble == ""


def test_a_failure_is_reported_and_the_next_look_goes_on() -> None:
    cellar = Cellar(PHOTO, has_all=True)
    cellar.add(value_hash(PHOTO))
    fails = True

    def all_pins() -> list[object]:
        if fails:
            raise StoreFull("the disk is full")
        return []

    cellar.store.pins.all = all_pins  # type: ignore[method-assign, assignment]
    cellar.look()
    assert "the disk is full" in cellar.trouble
    fails = False
    cellar.look()
    assert cellar.trouble == ""
    assert cellar.store.pins.roots() == [value_hash(PHOTO)]


def test_a_machine_that_fails_stops_its_own_store_alone() -> None:
    class Broken(Gallery):
        kind = "test:broken"

        def references(self, payload: bytes) -> Iterable[bytes]:
            raise ZeroDivisionError("oops")

    node = WeaverNode(2, machines=(*CORE_MACHINES, Broken))
    broken = node.stores.create("test:broken")
    broken.execute("Add", Photos((b"\x01" * 32,)))
    cellar = Cellar(PHOTO, has_all=True)
    cellar.add(value_hash(PHOTO))
    cellar.look(1, broken, cellar.gallery)
    assert cellar.pinned == [value_hash(PHOTO)]
    assert "Broken.references failed: ZeroDivisionError('oops')" in cellar.trouble


def test_a_payload_of_any_author_may_be_anything() -> None:
    cellar = Cellar(PHOTO, has_all=True)
    other = WeaverNode(3, machines=(*CORE_MACHINES, Gallery)).join(cellar.gallery)
    other.ingest(envelopes_of(cellar.gallery))
    other.submit(b"\xff\xff")
    cellar.gallery.ingest(envelopes_of(other))
    cellar.add(value_hash(PHOTO))
    cellar.look()
    assert cellar.pinned == [value_hash(PHOTO)]
    assert cellar.trouble == ""
