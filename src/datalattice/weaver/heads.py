"""Heads: a table of keys on which several authors write, with the last writer's value in front.

A key's row holds its **heads**, the operations that no later one has replaced, and the value of the
winner, `heads[0]`. An operation replaces the heads that it names as dependencies; writers name all
they have seen, so two heads are a conflict: their writers did not know of each other.

    row = protobuf Value {oneof {1 value, 2 tombstone}, 3 repeated heads}      # lattice.kvtable

The winner is the greatest (wall, counter, author, height in the author's chain) over all heads. The
heads of a key are a function of the set of its operations, because dependencies are applied first
everywhere, and the rows list them in descending rank: so every order gives the same bytes. Stamps
and payloads are not copied into rows; they are looked up by hash.

Source: docs/design/weaver.md "Heads".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from datalattice.protobuf import varint
from datalattice.weaver.headvalue import HeadValue
from datalattice.weaver.machine import StateReader, StateWriter
from datalattice.weaver.op import Op

TOMBSTONE: Final = None
"""Value of a deleted key."""

_Rank: TypeAlias = tuple[int, int, bytes, int]

_HASH_BYTES: Final = 32
# Varints of one byte, nearly every length and tag: a list costs no call.
_SHORT: Final = [bytes([value]) for value in range(0x80)]
_VALUE_TAG: Final = b"\x0a"  # field 1, bytes
_TOMBSTONE_ROW: Final = b"\x10\x01"  # field 2, true
_HEAD_TAG: Final = b"\x1a\x20"  # field 3, 32 bytes
_HEAD_ROW_BYTES: Final = len(_HEAD_TAG) + _HASH_BYTES  # tag, length and hash


class Winner:
    """What a key holds after an operation: the winner's value, None if deleted, and all heads."""

    __slots__ = ("heads", "value")

    def __init__(self, value: bytes | None, heads: tuple[bytes, ...]) -> None:
        self.value = value
        self.heads = heads

    @property
    def conflicted(self) -> bool:
        """Whether concurrent writes are unresolved."""
        return len(self.heads) > 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Winner) and self.value == other.value and self.heads == other.heads

    def __hash__(self) -> int:
        return hash((self.value, self.heads))

    def __repr__(self) -> str:
        return f"Winner({self.value!r}, {[head.hex() for head in self.heads]})"


class Inspection(NamedTuple):
    """Everything a row says. A row without kind exists, has no value and is no tombstone."""

    exists: bool
    value: bytes | None
    tombstone: bool
    heads: tuple[bytes, ...]


def encode_row(value: bytes | None, heads: list[bytes]) -> bytes:
    """Return the row of a key; value None is a tombstone."""
    # Written by hand: one row is written for every operation. Empty bytes are a live value.
    parts = [_TOMBSTONE_ROW] if value is None else [_VALUE_TAG, _varint(len(value)), value]
    for head in heads:
        parts.append(_HEAD_TAG)
        parts.append(head)
    return b"".join(parts)


def decode_row(row: bytes) -> tuple[bytes | None, list[bytes]]:
    """Return the value of a row, None for a tombstone or an empty row, and its heads."""
    size = len(row)
    at = 0
    value: bytes | None = None
    if row[:1] == _VALUE_TAG:
        at = 1
        length = shift = 0
        while at < size:
            digit = row[at]
            at += 1
            length |= (digit & 0x7F) << shift
            if digit < 0x80:
                break
            shift += 7
        value = row[at : at + length]
        at += length
    elif row[:2] == _TOMBSTONE_ROW:
        at = 2
    heads = []
    while at < size:
        # Another encoding of the same message: only a restored foreign snapshot has one.
        if row[at : at + 2] != _HEAD_TAG or at + _HEAD_ROW_BYTES > size:
            message = HeadValue.decode(row)
            return message.value, list(message.heads)
        heads.append(row[at + 2 : at + _HEAD_ROW_BYTES])
        at += _HEAD_ROW_BYTES
    return value, heads


def _varint(value: int) -> bytes:
    return _SHORT[value] if value < 0x80 else varint(value)


class HeadReader:
    """Reads a table of heads."""

    def __init__(self, state: StateReader) -> None:
        self._rows = state

    def get(self, key: bytes) -> bytes | None:
        """Return the winner's value, None if the key is missing or deleted."""
        row = self._rows.get(key)
        return None if row is None else decode_row(row)[0]

    def get_with_conflict(self, key: bytes) -> tuple[bytes | None, bool]:
        """Return the winner's value and whether concurrent writes are unresolved."""
        row = self._rows.get(key)
        if row is None:
            return None, False
        value, heads = decode_row(row)
        return value, len(heads) > 1

    def heads(self, key: bytes) -> list[bytes]:
        """Return the operations that no later one has replaced, the winner first."""
        row = self._rows.get(key)
        return [] if row is None else decode_row(row)[1]

    def inspect(self, key: bytes) -> Inspection:
        """Return everything a row says."""
        row = self._rows.get(key)
        if row is None:
            return Inspection(exists=False, value=None, tombstone=False, heads=())
        message = HeadValue.decode(row)
        return Inspection(True, message.value, message.tombstone is True, message.heads)

    def scan(
        self, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes | None, bool]]:
        """Yield `(key, value or None, conflicted)`, deleted keys included, in key order."""
        for key, row in self._rows.scan(start, end, reverse=reverse):
            value, heads = decode_row(row)
            yield key, value, len(heads) > 1


class HeadTable(HeadReader):
    """Applies operations to a table of heads.

    look_up: returns an applied operation by its hash. values_of: returns what a payload wrote: the
    last value of every key, or TOMBSTONE. Only conflicts need them.
    """

    def __init__(
        self,
        state: StateWriter,
        look_up: Callable[[bytes], Op],
        values_of: Callable[[bytes], Mapping[bytes, bytes | None]],
    ) -> None:
        super().__init__(state)
        self._writer = state
        self._look_up = look_up
        self._values_of = values_of
        self._ranks: dict[bytes, _Rank] = {}

    def apply(self, key: bytes, op: Op, value: bytes | None) -> Winner | None:
        """Let an operation write one key; return what the key then holds.

        None: the operation is among the heads already, and nothing changed.
        """
        return self.apply_all(op, {key: value}).get(key)

    def apply_all(self, op: Op, changes: Mapping[bytes, bytes | None]) -> dict[bytes, Winner]:
        """Let an operation write keys; return what each key then holds, in the same order.

        Keys that have the operation among their heads already do not change and are left out.
        """
        winners: dict[bytes, Winner] = {}
        promoted: dict[bytes, list[tuple[bytes, list[bytes]]]] = {}
        own = op.hash
        # A set, because a foreign author may name hundreds of dependencies and meet as many heads.
        deps = op.deps if len(op.deps) <= 8 else frozenset(op.deps)
        for key, written in changes.items():
            row = self._rows.get(key)
            value, left = written, [own]
            if row is not None:
                current, heads = decode_row(row)
                if own in heads:  # step 1: "op hash already in heads: nothing, no event"
                    continue
                # An operation replaces what it names, whatever the stamps say.
                left = [head for head in heads if head not in deps]
                place = self._place(op, left) if left else 0
                # Heads stay in descending rank, so that "the stored bytes are equal on all nodes"
                left.insert(place, own)
                # "maximum … over all heads", not only of the new operation and the old winner:
                # when the winner is replaced, the next head's value is read back.
                if place:
                    value = current
                    if left[0] != heads[0]:
                        promoted.setdefault(left[0], []).append((key, left))
            self._writer.put(key, encode_row(value, left))
            winners[key] = Winner(value, tuple(left))
        # One read of each payload, however many of its keys are promoted.
        for head, rows in promoted.items():
            values = self._values_of(self._look_up(head).payload)
            for key, left in rows:
                self._writer.put(key, encode_row(values.get(key), left))
                winners[key] = Winner(values.get(key), tuple(left))
        return winners

    def _place(self, op: Op, heads: list[bytes]) -> int:
        """Return where an operation stands among heads of descending rank."""
        rank = _rank(op)
        low, high = 0, len(heads)  # binary: a hostile author may leave hundreds of heads on a key
        while low < high:
            middle = (low + high) // 2
            if self._rank_of(heads[middle]) > rank:
                low = middle + 1
            else:
                high = middle
        return low

    def _rank_of(self, head: bytes) -> _Rank:
        found = self._ranks.get(head)
        if found is None:
            # Ranks are kept for the operation's other keys.
            found = self._ranks[head] = _rank(self._look_up(head))
        return found


def _rank(op: Op) -> _Rank:
    # The height only ever compares two operations of one author with equal stamps.
    return op.stamp.wall, op.stamp.counter, op.author, op.height
