"""Witness records: content, chain, signatures."""

from __future__ import annotations

import tracemalloc

import pytest

from datalattice.errors import BadFormat
from datalattice.protobuf import read_fields, varint
from datalattice.testing.log_kit import KIT_NODE, KIT_STORE, Author, LogFixture, author
from datalattice.weaver import ZERO_HASH, ChainBroken, ChainEnd, WitnessRecord, check_chain
from datalattice.weaver.witness import WitnessContent

EXTREME_WALLS = (0, 1, 127, 128, 2**32, 2**63, 2**64 - 1)


def chain(walls: tuple[int, ...] = (10, 20, 30)) -> list[WitnessRecord]:
    records: list[WitnessRecord] = []
    for number, wall in enumerate(walls):
        before = records[-1].content_hash if records else ZERO_HASH
        records.append(WitnessRecord.build(KIT_STORE, bytes([number]) * 32, wall, before, KIT_NODE))
    return records


def broken_at(records: list[WitnessRecord], after: ChainEnd | None = None) -> int:
    with pytest.raises(ChainBroken) as broken:
        check_chain(records, KIT_STORE, KIT_NODE.public_key, after or ChainEnd(0, ZERO_HASH))
    return broken.value.seq


@pytest.mark.parametrize("wall", EXTREME_WALLS)
def test_extreme_wall_times(wall: int) -> None:
    record = WitnessRecord.build(KIT_STORE, bytes(32), wall, ZERO_HASH, KIT_NODE)
    assert record.read() == WitnessContent(KIT_STORE, bytes(32), wall, ZERO_HASH)
    # The content that is hashed has the one canonical form: no field for 0.
    assert record.content == record.read().encode()


FIELDS = [b"\x0a\x10" + KIT_STORE, b"\x12\x20" + bytes(32), b"\x18\x05", b"\x22\x20" + bytes(32)]


@pytest.mark.parametrize(
    "content",
    [
        b"".join(FIELDS),
        b"".join(reversed(FIELDS)),
        b"".join([*FIELDS, b"\x28\x01"]),
        b"".join([*FIELDS[:3], b"\x18\x07", FIELDS[3]]),
        b"".join([FIELDS[0], FIELDS[1], b"\x18\x85\x00", FIELDS[3]]),
        b"".join([FIELDS[0], FIELDS[1], FIELDS[3]]),
    ],
    ids=["canonical", "reversed", "unknown", "repeated", "padded", "no time"],
)
def test_a_content_reads_alike_however_it_is_written(content: bytes) -> None:
    read = WitnessRecord(content, bytes(64)).read()
    # As protobuf has it: what the general decoder reads.
    assert read == WitnessContent.decode(content)
    for envelope in (
        WitnessRecord(content, bytes(64)).encode(),
        b"\x12\x40" + bytes(64) + b"\x0a" + varint(len(content)) + content,
    ):
        assert WitnessRecord.decode(envelope) == WitnessRecord(content, bytes(64))


@pytest.mark.parametrize("lengths", [(0, 64), (3, 0), (3, 63), (3, 65), (200, 64)])
def test_a_record_is_written_as_any_message(lengths: tuple[int, int]) -> None:
    content, signature = bytes(lengths[0]), bytes(lengths[1])
    written = WitnessRecord(content, signature).encode()
    assert {number: value for number, _, value in read_fields(written)} == {
        number: value for number, value in ((1, content), (2, signature)) if value
    }
    assert WitnessRecord.decode(written) == WitnessRecord(content, signature)


def test_link_integrity() -> None:
    records = chain()
    assert check_chain([], KIT_STORE, KIT_NODE.public_key) == ChainEnd(0, ZERO_HASH)
    end = check_chain(records, KIT_STORE, KIT_NODE.public_key)
    assert end == ChainEnd(3, records[-1].content_hash)


def test_a_chain_is_checked_across_batches() -> None:
    records = chain((1, 2, 3, 4))
    half = check_chain(records[:2], KIT_STORE, KIT_NODE.public_key)
    assert check_chain(records[2:], KIT_STORE, KIT_NODE.public_key, half).seq == 4
    assert broken_at(records[3:], half) == 3
    assert broken_at(records[1:]) == 1


def test_tamper_detected() -> None:
    records = chain()
    other = WitnessRecord.build(KIT_STORE, bytes(32), 21, records[0].content_hash, KIT_NODE)
    assert broken_at([records[0], other, records[2]]) == 3
    forged = WitnessRecord(records[1].content, bytes(64))
    assert broken_at([records[0], forged, records[2]]) == 2
    stranger = WitnessRecord.build(KIT_STORE, bytes(32), 5, ZERO_HASH, author(3))
    assert broken_at([stranger]) == 1
    elsewhere = WitnessRecord.build(bytes(16), bytes(32), 5, ZERO_HASH, KIT_NODE)
    assert broken_at([elsewhere]) == 1


def test_malformed_contents_are_refused() -> None:
    for content in (b"", b"\xff", WitnessContent(KIT_STORE, b"short", 1, ZERO_HASH).encode()):
        assert broken_at([WitnessRecord(content, KIT_NODE.sign(content))]) == 1
    with pytest.raises(BadFormat, match="64 bytes"):
        WitnessRecord(chain()[0].content, b"short").read()


def test_one_signature_covers_the_records_before_it() -> None:
    first, second, third = (WitnessRecord(each.content) for each in chain())
    signed = chain()[2]
    assert WitnessRecord.decode(first.encode()) == first
    assert check_chain([first, second, signed], KIT_STORE, KIT_NODE.public_key) == check_chain(
        chain(), KIT_STORE, KIT_NODE.public_key
    )
    # None that nothing signed follows, even behind records that are signed.
    assert broken_at([first, second, third]) == 3
    assert broken_at([*chain()[:2], third]) == 3
    assert broken_at([first, second, WitnessRecord(signed.content, bytes(64))]) == 3
    other = WitnessRecord.build(KIT_STORE, bytes(32), 21, first.content_hash, KIT_NODE)
    assert broken_at([first, WitnessRecord(other.content), signed]) == 3
    assert broken_at([first, WitnessRecord(second.content, bytes(64)), signed]) == 2


def test_unknown_fields_inside_a_content_are_tolerated() -> None:
    content = chain()[0].content + b"\x28\x01"
    record = WitnessRecord(content, b"")
    record = WitnessRecord(content, KIT_NODE.sign(record.content_hash))
    assert check_chain([record], KIT_STORE, KIT_NODE.public_key).content_hash == record.content_hash


def test_of_long_contents_nothing_is_kept_once_they_are_read() -> None:
    content = chain()[0].content
    tracemalloc.start()
    try:
        for number in range(20):
            padding = number.to_bytes(1) + bytes(2**18)
            record = WitnessRecord(content + b"\x2a" + varint(len(padding)) + padding)
            assert record.read().wall_time == 10
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2**20


def test_witness_creation() -> None:
    """The log's own records form a chain that others can check."""
    store, writer = LogFixture(), Author()
    store.ingest(*writer.chain(3))
    store.clock.now += 5
    store.submit(author(2))
    entries = store.entries()
    records = [entry.record for entry in entries]
    end = check_chain(records, KIT_STORE, KIT_NODE.public_key)
    assert end == ChainEnd(4, store.head().content_hash)
    assert [record.read().intention_hash for record in records] == store.witnessed()
    assert [entry.wall_ms for entry in entries] == [store.clock.now - 5] * 3 + [store.clock.now]
    assert store.head().seal == KIT_NODE.seal(end.content_hash)
