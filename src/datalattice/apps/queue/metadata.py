"""Metadata: a Map in which every key is a last-write-wins register.

The stamps of the registers are a Map under the reserved key `:meta-stamps` of the metadata. A
reference node rebuilds a state from the elements it knows, so this way it preserves the stamps. A
key whose value was never replaced has no stamp, which equals stamp 0.

Registers have a total order: an absent one is least, then one with a stamp but no value, then one
with a value; equal ones are ordered by stamp, value hash, and whether the stamp is present. A merge
takes the greater register of each key with its stamp, so it is commutative, associative and
idempotent for any stamps that a peer sends. A stamp without a value is dropped with its register:
combined with the winning value, it would make the result depend on the order of merges.

Source: docs/queue.md "What foreigners may send", "Metadata"; docs/design/decisions.md "D2";
    docs/design/forks.md "The order".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from datalattice.cells import EMPTY_MAP, Keyword, Map, Value, Work, same, value_hash
from datalattice.clock import next_stamp
from datalattice.errors import UsageError
from datalattice.lattice import (
    NO_LATEST,
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
"""Metadata key reserved for the stamps of the other keys."""

_Rank = tuple[int, int, bytes, bool]


class Metadata(NamedTuple):
    """Values by key, without the reserved key, and stamps of the keys with replaced values."""

    values: Map
    stamps: Map


EMPTY_METADATA: Final = Metadata(EMPTY_MAP, EMPTY_MAP)


def is_metadata(value: Value) -> bool:
    """Return whether `value` is a Map in which `:meta-stamps`, if present, maps to Integers."""
    if not isinstance(value, Map):
        return False
    return not len(value) or META_STAMPS not in value or _is_stamps(value.get(META_STAMPS))


def _is_stamps(value: Value) -> bool:
    return isinstance(value, Map) and all(type(stamp) is int for _, stamp in value.entries())


def metadata_from(value: Value) -> Metadata:
    """Return values and stamps of a metadata Map; parts of another type read as empty."""
    if not isinstance(value, Map) or not len(value):
        return EMPTY_METADATA
    if META_STAMPS not in value:
        return Metadata(value, EMPTY_MAP)
    stamps = value.get(META_STAMPS)
    held = stamps if isinstance(stamps, Map) and _is_stamps(stamps) else EMPTY_MAP
    return Metadata(value.remove(META_STAMPS), held)


def write_metadata(metadata: Metadata) -> Map:
    """Return the Map of `metadata`, with the entry `:meta-stamps` if there are stamps."""
    # The Map "has that entry only when it is not empty" (docs/queue.md "Metadata").
    if not metadata.stamps:
        return metadata.values
    return metadata.values.put(META_STAMPS, metadata.stamps)


def same_metadata(left: Metadata, right: Metadata) -> bool:
    """Return whether values and stamps are equal."""
    return same(left.values, right.values) and same(left.stamps, right.stamps)


def checked_meta_key(key: Value) -> Value:
    """Return `key` if it is not reserved. Raises: UsageError: it is `:meta-stamps`."""
    if isinstance(key, Keyword) and key.name == META_STAMPS.name:
        raise UsageError(
            "metadata key :meta-stamps is reserved for the times of the other keys; use another key"
        )
    return key


def put_metadata(metadata: Metadata, key: Value, value: Value, now_ms: int) -> Metadata:
    """Return `metadata` with `key` set; replacing another value gives the key a stamp.

    Units:  now_ms: Unix milliseconds.
    """
    values, stamps = metadata
    # "A first value has no stamp (the same as 0), replacing another value gives the key the stamp
    # `max(now, previous + 1)`" (docs/queue.md "Metadata").
    if key not in values:
        return Metadata(values.put(key, value), stamps)
    # "Setting the value that is there already writes nothing" (docs/queue.md "Metadata").
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
    """Return the greater register of every key; the objects of `own` if nothing changes.

    With `unstamped`, if values differ and neither has a stamp, own's value stays and the key is
    added to that list: without stamps, the newer value is unknown.

    Cost:   proportional to the keys that differ; charged to `work`, if given.
    """
    if same_metadata(own, other):
        return own

    values, stamps = own
    for key in _differing(own, other, work):
        mine, theirs = _rank(own, key), _rank(other, key)
        if (
            unstamped is not None
            and mine[:2] == theirs[:2] == (2, 0)  # both have a value, and neither was ever replaced
            and not (mine[3] or theirs[3])
        ):
            unstamped.append(key)
        elif theirs > mine:  # value and stamp together: "the greater stamp is kept"
            values = _copy_entry(values, other.values, key)
            stamps = _copy_entry(stamps, other.stamps, key)
    return Metadata(
        other.values if same(values, other.values) else values,
        other.stamps if same(stamps, other.stamps) else stamps,
    )


def latest_of_metadata(own: Metadata, other: Metadata, walk: Walk) -> Latest:
    """Return the greatest register of each side that the other lacks.

    A stamp without a value counts as untimed: as in a merge, it ranks below any value.

    Cost:   proportional to the keys that differ.
    """
    found = NO_LATEST
    if own is other:
        return found
    for key in _differing(own, other, walk.work):
        made = contrast(_element(_rank(own, key)), _element(_rank(other, key)))
        found = wider(found, below(step_of(key), made))
    return found


def _differing(own: Metadata, other: Metadata, work: Work | None) -> Iterator[Value]:
    """Yield the keys of registers that differ; twice if both value and stamp differ."""
    for mine, theirs in ((own.values, other.values), (own.stamps, other.stamps)):
        for key, *_ in list(mine.differences(theirs, work)):
            if work is not None:
                work.spend(work.limits.joined + work.limits.hashed)
            yield key


def _element(rank: _Rank) -> Element | None:
    kind, stamp, digest, stamped = rank
    if kind == 0:
        return None
    # A foreign stamp may be negative, but an element's time may not; the tail orders those.
    time = max(stamp, 0) if kind > 1 else UNTIMED
    return element(time, number_tail(stamp) + digest + bytes([stamped]))


def _copy_entry(target: Map, source: Map, key: Value) -> Map:
    # Removed where the winner has none: the loser's stamp under the winner's value would make the
    # result depend on the order of merges.
    return target.put(key, source[key]) if key in source else target.remove(key)


def _rank(metadata: Metadata, key: Value) -> _Rank:
    stamp = metadata.stamps.get(key)
    order = stamp if isinstance(stamp, int) else 0
    if key in metadata.values:
        return (2, order, value_hash(metadata.values.get(key)), stamp is not None)
    return (0, 0, b"", False) if stamp is None else (1, order, b"", True)
