"""Metadata: a Map whose every key is a last-write-wins register, with stamps kept beside it.

A key that was never replaced has no stamp (the same as stamp 0), so an ordinary queue needs no
fifth position. Registers are ordered: nothing, then a lone stamp, then a value, each by (stamp,
value hash, the stamp is written out). A merge takes the greater register of each key, whole. That
is a total order, so the merge is commutative, associative and idempotent for any stamps a peer may
send. A lone stamp therefore goes with the value that beats it: carried over, it would decide
between values that it was never made for, and the outcome would depend on the order of merges.
"""

from __future__ import annotations

from typing import NamedTuple

from datalattice.cells import EMPTY_MAP, Map, Value, same, value_hash
from datalattice.clock import next_stamp

_Rank = tuple[int, int, bytes, bool]


class Metadata(NamedTuple):
    """Values by key, and the stamps of the keys that were replaced."""

    values: Map
    stamps: Map


EMPTY_METADATA = Metadata(EMPTY_MAP, EMPTY_MAP)


def is_stamps(value: Value) -> bool:
    """Return whether `value` is a Map of Integers.

    Source: docs/queue.md "What foreigners may send"; docs/design/decisions.md "D2".
    """
    return isinstance(value, Map) and all(type(stamp) is int for _, stamp in value.entries())


def put_metadata(metadata: Metadata, key: Value, value: Value, now_ms: int) -> Metadata:
    """Return `metadata` with `key` set; replacing another value gives the key a stamp.

    Units:  now_ms: Unix milliseconds.
    Source: docs/queue.md "Metadata"; docs/design/decisions.md "D2".
    """
    values, stamps = metadata
    if key not in values:
        return Metadata(values.put(key, value), stamps)
    if same(values.get(key), value):
        return metadata
    previous = stamps.get(key, 0)
    stamp = next_stamp(now_ms, previous if isinstance(previous, int) else 0)
    return Metadata(values.put(key, value), stamps.put(key, stamp))


def merge_metadata(own: Metadata, other: Metadata) -> Metadata:
    """Return the greater register of every key; parts of `own` itself where nothing changes.

    Cost:   the keys that differ.
    Source: docs/queue.md "Metadata"; docs/design/decisions.md "D2".
    """
    if same(own.stamps, other.stamps) and same(own.values, other.values):
        return own

    values, stamps = own
    differing = [d[0] for d in own.values.differences(other.values)]
    differing += [d[0] for d in own.stamps.differences(other.stamps)]
    for key in differing:
        if _rank(other, key) > _rank(own, key):
            values = _copy_entry(values, other.values, key)
            stamps = _copy_entry(stamps, other.stamps, key)
    return Metadata(
        other.values if same(values, other.values) else values,
        other.stamps if same(stamps, other.stamps) else stamps,
    )


def _copy_entry(target: Map, source: Map, key: Value) -> Map:
    return target.put(key, source[key]) if key in source else target.remove(key)


def _rank(metadata: Metadata, key: Value) -> _Rank:
    stamp = metadata.stamps.get(key)
    order = stamp if isinstance(stamp, int) else 0
    if key in metadata.values:
        return (2, order, value_hash(metadata.values.get(key)), stamp is not None)
    return (0, 0, b"", False) if stamp is None else (1, order, b"", True)
