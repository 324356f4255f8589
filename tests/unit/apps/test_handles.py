"""What handles of applications print, and the calls for which they need a node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from datalattice.apps.binding import handle_text
from datalattice.apps.dlfs import Drive
from datalattice.apps.grid import Venue
from datalattice.apps.kv import Database
from datalattice.apps.queue import Queue
from datalattice.crypto import KeyPair
from datalattice.errors import StoreClosed, UsageError
from datalattice.testing.bindings import MemoryBinding
from datalattice.testing.clocks import StoppedClock

KEYS = KeyPair(b"\x01" * 32)
OTHER = KeyPair(b"\x02" * 32)


@pytest.fixture
def binding() -> MemoryBinding:
    return MemoryBinding(KEYS, StoppedClock(1_000))


def test_a_handle_prints_its_name_owner_and_size(binding: MemoryBinding) -> None:
    shop = Database.at(binding.root, KEYS.public_key, "shop", binding=binding)
    assert repr(shop) == "<Database 'shop' of own: 0 keys>"
    shop["a"] = 1
    assert str(shop) == repr(shop) == "<Database 'shop' of own: 1 key>"
    assert repr(list(shop.scan())) == "[('a', <Entry: value>)]"
    shop.update({f"k{number}": number for number in range(20_000)})
    assert repr(shop) == "<Database 'shop' of own: up to 20,001 keys>"
    others = Database.at(binding.root, OTHER.public_key, "shop", binding=binding)
    assert repr(others) == f"<Database 'shop' of {OTHER.public_key.hex()[:8]}: 0 keys>"
    binding.is_read_only = True
    assert repr(others).endswith("(read only): 0 keys>")
    assert repr(Drive.at(binding.root, KEYS.public_key, "papers")).endswith(": 0 entries>")
    assert repr(Drive.create()) == "<Drive: 0 entries>"
    venue = Venue.create(KEYS)
    assert repr(venue) == f"<Venue {venue.did}: 0 assets, 0 jobs>"


def test_queues_print_their_offsets_and_an_empty_one_where_else_there_are_records() -> None:
    binding = MemoryBinding(KEYS, StoppedClock(1_000), OTHER)
    theirs = Queue.at(binding.root, OTHER.public_key, "log", binding=binding)
    log = Queue.at(binding.root, KEYS.public_key, "log", binding=binding)
    assert repr(log) == "<Queue 'log'[0] of own: empty>"
    theirs.offer("x" * 500)
    name = OTHER.public_key.hex()[:8]
    assert repr(log) == f"<Queue 'log'[0] of own: empty; also kept here: {name}>"
    assert len(repr(theirs)) < 250
    log.offer_many(["a", "b", "c"])
    log.truncate(1)
    assert repr(log) == "<Queue 'log'[0] of own: 2 records, 1 to 2, last 'c'>"
    assert repr(binding.topic("log")) == "<Topic 'log' of own: 1 partition>"
    assert repr(binding.feed("log")) == "<Feed 'log': 2 owners>"


def test_a_handle_prints_whatever_happened() -> None:
    def closed() -> str:
        raise StoreClosed("closed")

    assert handle_text("Queue", "'log'", None, None, closed) == "<Queue 'log': StoreClosed>"


def test_an_owner_is_named_alike_everywhere(binding: MemoryBinding) -> None:
    owner = binding.owner(KEYS.public_key)
    make: list[Callable[[object], object]] = [
        lambda one: Database.at(binding.root, one, "d").owner,
        lambda one: Drive.at(binding.root, one, "d").cursor.context.owner,
        lambda one: Venue.at(binding.root, one).did,  # type: ignore[arg-type]
    ]
    for one in make:
        assert one(owner) == one(KEYS.public_key)


def test_a_venue_writes_with_the_key_that_the_node_has(binding: MemoryBinding) -> None:
    venue = Venue.at(binding.root, KEYS.public_key)
    venue.register('{"name": "Iris"}')
    assert len(Venue.at(binding.root, venue.did).assets()) == 1


def test_a_file_system_needs_a_node(binding: MemoryBinding) -> None:
    with pytest.raises(UsageError, match=r"Drive\.fs needs a node"):
        _ = Drive.create().fs
    drive = Drive.at(binding.root, KEYS.public_key, "papers", binding=binding)
    drive.fs.pipe_file("a/b", b"1")
    assert drive.read("/a/b") == b"1"
