"""Metadata: a Map whose every key is a last-write-wins register, with their stamps inside it.

The stamps are a Map under the reserved key `:meta-stamps` of the metadata itself, so that a
reference node, which rebuilds a state from the parts it knows, carries them along. A key that was
never replaced has no stamp (the same as stamp 0), so most metadata has no such entry.

Registers are ordered: nothing, then a lone stamp, then a value, each by (stamp, value hash, the
stamp is written out). A merge takes the greater register of each key, whole. That is a total order,
so the merge is commutative, associative and idempotent for any stamps a peer may send. A lone stamp
therefore goes with the value that beats it: carried over, it would decide between values that it
was never made for, and the outcome would depend on the order of merges.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from datalattice.cells import EMPTY_MAP, Keyword, Map, Value, same, value_hash
from datalattice.clock import next_stamp
from datalattice.errors import UsageError

META_STAMPS: Final = Keyword("meta-stamps")
"""Key of a metadata Map that is reserved for the stamps of the other keys."""

_Rank = tuple[int, int, bytes, bool]


class Metadata(NamedTuple):
    """Values by key without the reserved one, and the stamps of the keys that were replaced."""

    values: Map
    stamps: Map


EMPTY_METADATA: Final = Metadata(EMPTY_MAP, EMPTY_MAP)


def is_metadata(value: Value) -> bool:
    """Return whether `value` is a Map whose `:meta-stamps`, where there are any, map to Integers.

    Source: docs/queue.md "What foreigners may send"; docs/design/decisions.md "D2".
    """
    if not isinstance(value, Map):
        return False
    return META_STAMPS not in value or _is_stamps(value.get(META_STAMPS))


def _is_stamps(value: Value) -> bool:
    return isinstance(value, Map) and all(type(stamp) is int for _, stamp in value.entries())


def read_metadata(value: Value) -> Metadata:
    """Return the parts of a metadata Map; what is not of the right kind reads as empty.

    Source: docs/queue.md "Metadata"; docs/design/decisions.md "D2".
    """
    if not isinstance(value, Map):
        return EMPTY_METADATA
    if META_STAMPS not in value:
        return Metadata(value, EMPTY_MAP)
    stamps = value.get(META_STAMPS)
    held = stamps if isinstance(stamps, Map) and _is_stamps(stamps) else EMPTY_MAP
    return Metadata(value.remove(META_STAMPS), held)


def write_metadata(metadata: Metadata) -> Map:
    """Return the Map of `metadata`: the stamps are an entry of it when there are any.

    Source: docs/queue.md "Metadata"; docs/design/decisions.md "D2".
    """
    if not metadata.stamps:
        return metadata.values
    return metadata.values.put(META_STAMPS, metadata.stamps)


def same_metadata(left: Metadata, right: Metadata) -> bool:
    """Return whether values and stamps are equal.

    Source: docs/queue.md "Metadata".
    """
    return same(left.values, right.values) and same(left.stamps, right.stamps)


def checked_meta_key(key: Value) -> Value:
    """Return `key` when metadata may be written under it.

    Raises: UsageError: it is the reserved one.
    Source: docs/queue.md "Metadata"; docs/design/decisions.md "D2".
    """
    if isinstance(key, Keyword) and key.name == META_STAMPS.name:
        raise UsageError(
            "metadata key :meta-stamps holds the times of the other keys; take another key"
        )
    return key


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
    if same_metadata(own, other):
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
