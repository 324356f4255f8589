"""Partitions of devices: one for each, known by the identity."""

from __future__ import annotations

import pytest

from datalattice.apps.queue import Topics, device_partition
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import MergeContext, root_lattice

OWNER = KeyPair(b"o" * 32)


def device(seed: int) -> bytes:
    return KeyPair(bytes([seed]) * 32).public_key


def test_the_id_is_the_same_for_one_identity_and_beyond_numbered_partitions() -> None:
    ids = [device_partition(device(seed)) for seed in range(200)]
    assert ids == [device_partition(device(seed)) for seed in range(200)]
    assert len(set(ids)) == 200
    assert all(2**32 <= one < 2**48 for one in ids)


@pytest.mark.parametrize("wrong", [b"", b"x" * 31, "x" * 32, None, 5])
def test_anything_but_a_public_key_is_refused(wrong: bytes) -> None:
    with pytest.raises(UsageError, match="public key"):
        device_partition(wrong)


def test_records_of_two_devices_at_the_same_moment_are_all_kept() -> None:
    lattice, context = root_lattice(), MergeContext(key_pair=OWNER)
    roots = []
    for seed in (1, 2):
        cursor = RootLattice(lattice, lattice.zero(), context)
        place = device_partition(device(seed))
        queue = Topics.at(cursor, OWNER.public_key).partition("t", place)
        queue.offer_many([f"{seed}-{number}" for number in range(30)])
        roots.append(cursor.get())
    merged = RootLattice(lattice, lattice.merge(roots[0], roots[1], context), context)
    topic = Topics.at(merged, OWNER.public_key).topic("t")
    assert sum(topic.partition(place).size() for place in topic.partitions()) == 60
