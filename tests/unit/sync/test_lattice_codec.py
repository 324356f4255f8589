"""Answers to requests for cells: what was asked for, or nothing."""

from __future__ import annotations

import pytest

from datalattice.cells import Text, Value, Vector, encode, value_hash
from datalattice.errors import BadFormat, ProtocolViolation
from datalattice.lattice import SetLattice
from datalattice.store import MemoryStore
from datalattice.sync import Answered, LatticeCodec, LatticeReplica, Offered, Part, Replicator
from datalattice.sync.incoming import Incoming
from datalattice.sync.patch import write_patch
from datalattice.testing.clocks import StoppedClock
from datalattice.wire import (
    Request,
    Result,
    decode_payload,
    encode_announcement,
    encode_patched,
    encode_result,
    encode_supply,
)

LONG = Text.of("long " * 100)
OTHER = Text.of("other " * 100)


def codec() -> LatticeCodec:
    return LatticeCodec(
        LatticeReplica(MemoryStore(), SetLattice()), StoppedClock(1_800_000_000_000)
    )


def parts_of(payload: bytes, *wanted: Value) -> list[Part | None]:
    one = codec()
    heard = one.decode(payload, "p")
    assert isinstance(heard, Answered)
    return one.parts(heard.content, [value_hash(value) for value in wanted])


def supplied(*cells: Value | None) -> bytes:
    return encode_supply(
        1, [(value_hash(cell), None if cell is None else encode(cell)) for cell in cells]
    )


def test_cells_come_by_their_hash_embedded_ones_too() -> None:
    assert parts_of(supplied(LONG, 5, None), LONG, 5, OTHER) == [
        Part(value_hash(LONG), encode(LONG)),
        Part(value_hash(5), encode(5)),
        None,
    ]


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (supplied(LONG), "the answer to a request of 2 cells"),
        (supplied(LONG, LONG, LONG), "the answer to a request of 2 cells"),
        (encode_result(Result(1, 5)), "the answer to a request of 2 cells"),
        (supplied(LONG, 5), "a cell that was not asked for"),
        (encode_result(Result(1, Vector.of([LONG, LONG]))), "a cell that was not asked for"),
    ],
)
def test_an_answer_of_another_form_or_with_other_cells_is_refused(
    payload: bytes, text: str
) -> None:
    with pytest.raises(ProtocolViolation, match=text):
        parts_of(payload, LONG, OTHER)


def test_a_reference_whose_cell_did_not_come_along_is_none() -> None:
    bare = b"\xdd\x05" + encode(1) + encode(Vector.of([LONG, OTHER])) + bytes(3)
    assert parts_of(bare, LONG, OTHER) == [None, None]


def test_who_sends_other_cells_is_blamed_and_others_are_asked() -> None:
    replica = LatticeReplica(MemoryStore(), SetLattice())
    node = Replicator(replica, LatticeCodec(replica, StoppedClock(1_800_000_000_000)))
    for peer in "pq":
        node.open(peer, 0, outbound=True)
    node.take_effects()
    # A root that is not there: both peers may have it, and p named it.
    node.receive("p", encode_announcement((), Text.of("root " * 100), ()), 0)
    ((peer, payload),) = node.take_effects().sends
    message, _ = decode_payload(payload)
    assert isinstance(message, Request)
    assert peer == "p"
    node.receive("p", encode_result(Result(message.id, Vector.of([OTHER]))), 1)
    effects = node.take_effects()
    assert [note.kind for note in effects.notes] == ["refused", "undelivered"]
    assert "(peer p)" in effects.notes[0].text
    assert [peer for peer, _ in effects.sends] == ["q"]


def patched(hash: bytes) -> Incoming:
    """Return what a patch from a short value to a long one says, when it claims this hash."""
    base, value = Vector.of([1]), Vector.of([1, "x" * 50])
    patch = write_patch(encode(value), {}, encode(base), lambda _: None)
    return said(codec(), encode_patched(base, hash, patch))


def said(codec: LatticeCodec, payload: bytes) -> Incoming:
    """Return the value that a message carries."""
    heard = codec.decode(payload, "p")
    assert isinstance(heard, Offered)
    assert heard.offer.probe is not None
    incoming = heard.offer.probe.data
    assert isinstance(incoming, Incoming)
    return incoming


def test_a_patch_that_makes_something_else_counts_as_its_hash_alone() -> None:
    made = Vector.of([1, "x" * 50])
    assert patched(value_hash(made)).value == made
    claimed = value_hash(OTHER)
    incoming = patched(claimed)
    assert (incoming.value, incoming.absent) == (None, claimed)


def test_a_patch_brings_the_bytes_of_its_message_and_none_that_it_stands_for() -> None:
    base = Vector.of(["x" * 3_000, 1])
    replica = LatticeReplica(MemoryStore(), SetLattice())
    replica.store.commit(base)
    text, changed = "x" * 2_999 + "y", "z" * 150
    value = Vector.of([text, changed])
    cells = {value_hash(one): encode(one) for one in (text, changed)}
    load = replica.store.get_encoding
    payload = encode_patched(
        base, value_hash(value), write_patch(encode(value), cells, encode(base), load)
    )
    incoming = said(LatticeCodec(replica, StoppedClock(1)), payload)
    assert incoming.value == value
    assert incoming.size_bytes == len(payload) < 600
    replica.store.commit(value)  # what is here already is not made once more
    known = said(LatticeCodec(replica, StoppedClock(1)), payload)
    assert (known.value, known.absent) == (None, value_hash(value))
    assert known.size_bytes == len(payload)


def test_a_patch_of_more_bytes_than_its_message_counts_as_its_hash_alone() -> None:
    base, claimed = Vector.of([1]), value_hash(OTHER)
    payload = encode_patched(base, claimed, b"\x02" * 4_096 * 300)
    assert len(payload) < 10_000
    incoming = said(codec(), payload)
    assert (incoming.value, incoming.absent) == (None, claimed)
    whole = encode_patched(base, claimed, b"\x02" * 100)
    with pytest.raises(BadFormat):  # as long as the message has room for it, it is read
        said(codec(), whole)
