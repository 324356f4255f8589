"""Planting: a store with known faults of every kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from datalattice.cells import Map, Signed, Vector, encode
from datalattice.crypto import KeyPair, SeededEntropy, sha3_256
from datalattice.store import CellStore
from datalattice.store.log import locate

_KEYS: Final = KeyPair(bytes([7]) * 32)

ExpectedFault = tuple[str, bytes | None]
"""(kind of fault, hash of the cell)."""


def text(number: int, length: int = 180) -> str:
    """Return a text of `length` characters, by default so long that it is a cell of its own."""
    return f"text {number} ".ljust(length, "x")


def put_raw(store: CellStore, encoding: bytes) -> bytes:
    """Store bytes as a cell with their hash, whatever they are."""
    hash = sha3_256(encoding)
    store.put_encodings([(hash, encoding)])  # the store believes the hash: it is the caller's
    return hash


def dangling(number: int) -> bytes:
    """Return a vector that refers to a cell that does not exist."""
    nowhere = sha3_256(f"nowhere {number}".encode())
    return b"\x80\x05\x20" + nowhere + b"".join(encode(text(n, 60)) for n in range(4))


def forged(number: int) -> bytes:
    """Return a signed value with one bit of the signature, of the key or of the value changed."""
    good = bytearray(encode(Signed.sign(_KEYS, Vector.of([number, text(number, 80)]))))
    good[(5, 40, 120)[number % 3]] ^= 1  # a bit of the value, of the key or of the signature
    return bytes(good)


def forged_inside(number: int) -> bytes:
    """Return a vector with a forged signed value embedded in it."""
    signed = bytearray(encode(Signed.sign(_KEYS, number)))
    signed[50] ^= 4
    # Embedded, so no reference leads to it.
    return b"\x80\x03" + bytes(signed) + b"".join(encode(text(n, 60)) for n in (number, 0))


def padded_integer(number: int) -> bytes:
    """Return a vector with an integer that has a superfluous byte."""
    tail = b"".join(encode(text(n, 70)) for n in (number, number + 1))
    return b"\x80\x03" + b"\x12\x00\x05" + tail


def swapped_keys(number: int) -> bytes:
    """Return a map with two keys in the wrong order."""
    whole = encode(Map.of([(f"k{number}", text(1, 90)), (f"l{number}", text(2, 90))]))
    entry = (len(whole) - 2) // 2
    # The two entries in the other order.
    return whole[:2] + whole[2 + entry :] + whole[2 : 2 + entry]


def long_inline(number: int) -> bytes:
    """Return a vector with an embedded child that is too long for that."""
    # 151 bytes and more are cells of their own.
    return b"\x80\x02" + encode(text(number, 150)) + encode(number)


def trailing(number: int) -> bytes:
    """Return a string with a byte behind it."""
    return encode(text(number)) + b"\x00"


_MALFORMED: Final[tuple[Callable[[int], bytes], ...]] = (
    padded_integer,
    swapped_keys,
    long_inline,
    trailing,
)


@dataclass
class Planted:
    """A store with faults, and the faults that an audit must find."""

    folder: Path
    expected: set[ExpectedFault] = field(default_factory=set)
    """Faults of cells."""


def plant(folder: Path, each: int, *, segment_bytes: int = 65_536) -> Planted:
    """Make a store with good cells and `each` faults of each of four kinds among them.

    The kinds are flipped bits, dangling references, forged signatures and encodings that are not
    canonical. The last three were in the packs when these were written, so their checksums are
    right, except in packs with flipped bits.
    """
    made = Planted(folder)
    flipped: list[bytes] = []
    root = Map.of([])
    with CellStore.open(folder, segment_bytes=segment_bytes, entropy=SeededEntropy(1)) as store:
        for number in range(each):
            root = root.put(f"key {number}", text(number))
            signed = Signed.sign(_KEYS, Vector.of([number, text(number, 200)]))
            root = root.put(f"signed {number}", signed)
            flipped.append(sha3_256(encode(text(number))))
            if number % 20 == 0:  # several packs, of which some are whole
                store.commit(root)
            if number % 5 == 0:
                store.sync()
            made.expected.add(("reference", put_raw(store, dangling(number))))
            forge = forged_inside if number % 4 == 0 else forged
            made.expected.add(("signature", put_raw(store, forge(number))))
            malformed = _MALFORMED[number % len(_MALFORMED)](number)
            made.expected.add(("encoding", put_raw(store, malformed)))
        store.commit(root)
    with CellStore.open(folder, read_only=True) as reader:
        places = reader._index.find_many(flipped)  # the index leads to the bytes of a cell
    for number, (hash, place) in enumerate(zip(flipped, places, strict=True)):
        segment, offset, length = locate(place)
        # A bit inside the cell's own bytes.
        flip(segment_file(folder, segment), offset + number % length, number % 8)
        made.expected.add(("hash", hash))
    return made


def segment_file(folder: Path, segment: int) -> Path:
    """Return the file of a segment."""
    return folder / "segments" / f"{segment:08d}.seg"


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Flip one bit of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))
