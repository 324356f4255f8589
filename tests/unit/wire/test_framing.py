"""Frames: any split of the stream gives the same payloads; illegal lengths end it at once."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from datalattice.errors import LimitExceeded, ProtocolViolation
from datalattice.wire import FrameBuffer, encode_frame, encode_length


def drain(buffer: FrameBuffer) -> list[bytes]:
    out: list[bytes] = []
    while (payload := buffer.next_payload()) is not None:
        out.append(payload)
    return out


@pytest.mark.parametrize(
    ("count", "octets"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8100"),
        (16_383, "ff7f"),
        (16_384, "818000"),
        (50_000_000, "97ebe100"),
    ],
)
def test_lengths_are_big_endian_base_128(count: int, octets: str) -> None:
    assert encode_length(count).hex() == octets


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 50), min_size=1))
def test_any_split_gives_the_same_payloads(payloads: list[bytes], steps: list[int]) -> None:
    stream = b"".join(map(encode_frame, payloads))
    buffer = FrameBuffer()
    got: list[bytes] = []
    at = turn = 0
    while at < len(stream):
        step = steps[turn % len(steps)]
        buffer.feed(stream[at : at + step])
        got += drain(buffer)
        at += step
        turn += 1
    assert got == payloads
    assert not buffer.is_partial
    assert buffer.buffered_bytes == 0


def test_a_partial_frame_is_seen_from_its_first_length_octet() -> None:
    buffer = FrameBuffer()
    assert not buffer.is_partial
    for octet in bytes.fromhex("8100") + b"x" * 127:
        buffer.feed(bytes((octet,)))
        assert buffer.next_payload() is None
        assert buffer.is_partial
    buffer.feed(b"x")
    assert buffer.next_payload() == b"x" * 128
    assert not buffer.is_partial


def test_the_limit_counts_payload_bytes() -> None:
    for size in (99, 100):
        buffer = FrameBuffer(100)
        buffer.feed(encode_frame(b"y" * size))
        assert buffer.next_payload() == b"y" * size
    buffer = FrameBuffer(100)
    buffer.feed(encode_length(101))
    with pytest.raises(LimitExceeded, match="at most 100"):
        buffer.next_payload()


@pytest.mark.parametrize("octets", ["80", "8001", "8081"])
def test_a_padded_length_is_refused_at_its_first_octet(octets: str) -> None:
    buffer = FrameBuffer()
    buffer.feed(bytes.fromhex(octets))
    with pytest.raises(ProtocolViolation, match="superfluous"):
        buffer.next_payload()


def test_a_length_that_would_wrap_32_bits_is_refused() -> None:
    buffer = FrameBuffer()
    buffer.feed(bytes.fromhex("908080800c"))
    with pytest.raises(LimitExceeded):
        buffer.next_payload()


def test_an_endless_length_is_refused_after_five_octets_whatever_the_limit() -> None:
    buffer = FrameBuffer(2**60)
    buffer.feed(bytes.fromhex("81808080"))
    assert buffer.next_payload() is None
    buffer.feed(b"\x80")
    with pytest.raises(ProtocolViolation, match="longer than 5"):
        buffer.next_payload()


def test_many_small_frames_in_one_piece() -> None:
    buffer = FrameBuffer()
    buffer.feed(encode_frame(b"z" * 20) * 20_000)
    assert len(drain(buffer)) == 20_000
    assert buffer.buffered_bytes == 0
