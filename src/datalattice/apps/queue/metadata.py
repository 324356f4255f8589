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

from collections.abc import Iterator
from typing import Final, NamedTuple

from datalattice.cells import EMPTY_MAP, Keyword, Map, Value, Work, same, value_hash
from datalattice.clock import next_stamp
from datalattice.errors import UsageError
from datalattice.lattice import (
    NOTHING,
    UNTIMED,
    Element,
    Latest,
    Walk,
    below,
    contrast,
    element,
    number_tail,
    step_of,
    wider,
)

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
    return not len(value) or META_STAMPS not in value or _is_stamps(value.get(META_STAMPS))


def _is_stamps(value: Value) -> bool:
    return isinstance(value, Map) and all(type(stamp) is int for _, stamp in value.entries())


def read_metadata(value: Value) -> Metadata:
    """Return the parts of a metadata Map; what is not of the right kind reads as empty.

    Source: docs/queue.md "Metadata"; docs/design/decisions.md "D2".
    """
    if not isinstance(value, Map) or not len(value):
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


def merge_metadata(
    own: Metadata,
    other: Metadata,
    unstamped: list[Value] | None = None,
    work: Work | None = None,
) -> Metadata:
    """Return the greater register of every key; parts of `own` itself where nothing changes.

    With `unstamped`, own's value stays where neither side carries a stamp, and the key is added to
    that list: writers that replace values without stamps leave nothing to tell old from new.

    Cost:   the keys that differ; paid from `work`, when given.
    Source: docs/queue.md "Metadata"; docs/design/decisions.md "D2".
    """
    if same_metadata(own, other):
        return own

    values, stamps = own
    for key in _differing(own, other, work):
        mine, theirs = _rank(own, key), _rank(other, key)
        if (
            unstamped is not None
            and mine[:2] == theirs[:2] == (2, 0)
            and not (mine[3] or theirs[3])
        ):
            unstamped.append(key)
        elif theirs > mine:
            values = _copy_entry(values, other.values, key)
            stamps = _copy_entry(stamps, other.stamps, key)
    return Metadata(
        other.values if same(values, other.values) else values,
        other.stamps if same(stamps, other.stamps) else stamps,
    )


def latest_of_metadata(own: Metadata, other: Metadata, walk: Walk) -> Latest:
    """Return the greatest register of each side that the other lacks.

    A value ranks above a lone stamp, as in a merge, so a lone stamp counts as untimed.

    Cost:   the keys that differ.
    Source: docs/design/forks.md "The order".
    """
    found = NOTHING
    if own is other:
        return found
    for key in _differing(own, other, walk.work):
        made = contrast(_element(_rank(own, key)), _element(_rank(other, key)))
        found = wider(found, below(step_of(key), made))
    return found


def _differing(own: Metadata, other: Metadata, work: Work | None) -> Iterator[Value]:
    """Yield the keys of registers that differ; a key whose stamp differs, too, comes twice."""
    for mine, theirs in ((own.values, other.values), (own.stamps, other.stamps)):
        for key, *_ in list(mine.differences(theirs, work)):
            if work is not None:
                work.spend(work.limits.joined + work.limits.hashed)
            yield key


def _element(rank: _Rank) -> Element | None:
    kind, stamp, digest, stamped = rank
    if kind == 0:
        return None
    # Foreign stamps may be negative; the tail orders those.
    time = max(stamp, 0) if kind > 1 else UNTIMED
    return element(time, number_tail(stamp) + digest + bytes([stamped]))


def _copy_entry(target: Map, source: Map, key: Value) -> Map:
    return target.put(key, source[key]) if key in source else target.remove(key)


def _rank(metadata: Metadata, key: Value) -> _Rank:
    stamp = metadata.stamps.get(key)
    order = stamp if isinstance(stamp, int) else 0
    if key in metadata.values:
        return (2, order, value_hash(metadata.values.get(key)), stamp is not None)
    return (0, 0, b"", False) if stamp is None else (1, order, b"", True)
