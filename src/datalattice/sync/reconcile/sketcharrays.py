"""Sketch arrays: the arithmetic of a sketch for many items at once, with NumPy.

Each function returns the same bits as its counterpart for one item.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from datalattice.limits import HASH_BYTES
from datalattice.sync.reconcile.sketchcells import PLACE_MAX

_BATCH = 16_384
"""Items at a time: the arrays of one step fit into a cache."""

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MULTIPLIER = np.uint64(0xDA942042E4DD58B5)
_LENGTH = np.uint64(HASH_BYTES << 56)  # SipHash ends with the length in the highest byte
# SipHash's constants: the text "somepseudorandomlygeneratedbytes".
_SIP = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def _unsigned(numbers: array[int]) -> Any:
    return np.frombuffer(numbers, dtype=np.uint64)


def _mix(z: Any) -> Any:
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def siphash_many(key: bytes, hashes: bytes | bytearray) -> array[int]:
    """Return SipHash-2-4 of each 32-byte hash, as signed integers."""
    words = np.frombuffer(hashes, dtype="<u8").reshape(-1, HASH_BYTES // 8)
    found = np.empty(len(words), dtype=np.uint64)
    for start in range(0, len(words), _BATCH):
        found[start : start + _BATCH] = _siphash(key, words[start : start + _BATCH])
    return array("q", found.tobytes())


def _siphash(key: bytes, words: Any) -> Any:
    halves = [int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")]
    v = [np.full(len(words), _SIP[i] ^ halves[i & 1], dtype=np.uint64) for i in range(4)]
    for column in range(words.shape[1] + 1):
        word = words[:, column] if column < words.shape[1] else _LENGTH
        v[3] ^= word
        _sip_rounds(v, 2)
        v[0] ^= word
    v[2] ^= np.uint64(0xFF)  # marks the end of the message
    _sip_rounds(v, 4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _sip_rounds(v: list[Any], count: int) -> None:
    for _ in range(count):
        for a, b, turn in ((0, 1, 13), (2, 3, 16)):
            v[a] += v[b]
            v[b] = _rotate(v[b], turn) ^ v[a]
        v[0] = _rotate(v[0], 32)
        for a, b, turn in ((2, 1, 17), (0, 3, 21)):
            v[a] += v[b]
            v[b] = _rotate(v[b], turn) ^ v[a]
        v[2] = _rotate(v[2], 32)


def _rotate(numbers: Any, count: int) -> Any:
    return (numbers << np.uint64(count)) | (numbers >> np.uint64(64 - count))


def mix_many(ids: array[int], salt: int, set_bits: int) -> array[int]:
    """Return `mix(id ^ salt) | set_bits` of each id."""
    mixed = _mix(_unsigned(ids) ^ np.uint64(salt & (2**64 - 1))) | np.uint64(set_bits)
    return array("q", mixed.tobytes())


def spread_many(
    ids: array[int],
    states: array[int],
    places: array[int],
    salts: tuple[int, int],
    cells: array[int],
    checks: array[int],
) -> None:
    """Add ids to the cells from their places on, and move them behind the last cell."""
    all_ids, all_states = _unsigned(ids), _unsigned(states)
    all_places = np.frombuffer(places, dtype=np.int64)
    cell_view, check_view = _unsigned(cells), _unsigned(checks)
    salt = np.uint64(salts[0] & (2**64 - 1))
    for start in range(0, len(all_ids), _BATCH):
        batch = slice(start, start + _BATCH)
        # Items whose place lies behind the last cell have no more cells here.
        which = np.nonzero(all_places[batch] < len(cell_view))[0] + start
        id, state, place = all_ids[which], all_states[which], all_places[which]
        check = _mix(id ^ salt) & np.uint64(0xFFFFFFFF)
        while len(which):
            np.bitwise_xor.at(cell_view, place, id)  # `at`, since one cell may occur several times
            np.bitwise_xor.at(check_view, place, check)
            state = state * _MULTIPLIER
            root = np.sqrt(state.astype(np.float64) + 1.0)
            step = np.ceil((place + 1.5) * (4294967296.0 / root - 1.0))
            place = (
                # Clamped before the cast, as item by item.
                np.minimum(step, (PLACE_MAX - place).astype(np.float64)).astype(np.int64) + place
            )
            all_states[which], all_places[which] = state, place
            left = place < len(cell_view)
            # Items without further cells drop out.
            which, id, check = which[left], id[left], check[left]
            state, place = state[left], place[left]
