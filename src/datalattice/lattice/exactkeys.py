"""ExactKeys: names of any length as keys of an Index, in which every byte counts.

An Index compares only the first 32 bytes of a key. A name of up to 32 bytes is its own key. A
longer name is stored under a *made key*:

    8 bytes     the first 8 bytes of the name, so that it sorts near similar names
    1 byte      ff, which UTF-8 never contains, so no short name has this position
    23 bytes    SHA3-256 of the name, truncated
    the rest    the name from its ninth byte on, so that the name can be read from the key

The position depends on the name alone, so replicas agree on it and a merge handles one entry at a
time. A key with the ff byte that is not the made key of the name in it is malformed.

Earlier versions and other implementations store a longer name as it is. Such an entry is read
together with the one under the made key, as the merge of both; writes use the made key.

Source: docs/cells.md "Exact keys"; docs/design/decisions.md "D9", "D1".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from datalattice.cells import (
    ABSENT,
    EMPTY_INDEX,
    Blob,
    Index,
    JoinEntries,
    Scalar,
    Text,
    Value,
    index_between,
    same,
    text_bytes,
    value_hash,
)
from datalattice.crypto import sha3_256
from datalattice.errors import UsageError
from datalattice.lattice.context import OWN, EntryDropped, MergeContext, WriteSuperseded
from datalattice.limits import CHUNK_BYTES, INDEX_KEY_BYTES

HEAD_BYTES: Final = 8
"""Leading bytes of a longer name at the start of its key."""

EXACT_NAME_BYTES_MAX: Final = CHUNK_BYTES
"""Longest name in UTF-8: the most that one cell holds."""

SHOWN_CHARS: Final = 100
"""Most characters of a name that an error shows."""

_MARK: Final = b"\xff"  # a byte that UTF-8 never contains
_HASH_BYTES: Final = INDEX_KEY_BYTES - HEAD_BYTES - len(_MARK)
_KEY_BYTES_MAX: Final = EXACT_NAME_BYTES_MAX + INDEX_KEY_BYTES - HEAD_BYTES  # of a made key
_SURELY_SHORT: Final = INDEX_KEY_BYTES // 4  # a character has at most four bytes


def _made_of(name: bytes) -> bytes:
    hash = sha3_256(name)[:_HASH_BYTES]
    # [8 bytes of the name][ff][23 bytes of SHA3-256][the name from its ninth byte] (docs/cells.md
    # "Exact keys").
    return name[:HEAD_BYTES] + _MARK + hash + name[HEAD_BYTES:]


def key_of(name: str) -> str:
    """Return the key of a name: the name itself up to 32 bytes of UTF-8.

    Bytes that are not UTF-8 are surrogate escapes. A name of 32 bytes with ff as its ninth byte has
    a made key, like a longer name.

    Raises: UsageError: a lone surrogate that does not stand for a byte.
    """
    # A character has at most four bytes, so these have at most 32 without being encoded.
    if len(name) < _SURELY_SHORT or (len(name) <= INDEX_KEY_BYTES and name.isascii()):
        return name
    raw = text_bytes(name)
    # "A name of 32 bytes with `ff` as its ninth byte is not a text; it gets a made key as well"
    # (docs/cells.md "Exact keys").
    if len(raw) <= INDEX_KEY_BYTES and not _is_marked(raw):
        return name
    return _made_of(raw).decode("utf-8", "surrogateescape")


def _raw(key: Value) -> bytes | None:
    """Return all bytes of a key; None for a text too long for a name, or if it is not a key."""
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return text_bytes(key)
    if isinstance(key, Text):
        return bytes(key) if key.byte_length() <= _KEY_BYTES_MAX else None
    return key.key_bytes() if isinstance(key, Scalar) else None


def _is_marked(raw: bytes) -> bool:
    return len(raw) >= INDEX_KEY_BYTES and raw[HEAD_BYTES : HEAD_BYTES + 1] == _MARK


def _unmade(raw: bytes) -> bytes | None:
    """Return the name in a marked key, None if the key is not the made key of that name."""
    # The name is before and after the mark and the hash, which are bytes 8 to 31.
    name = raw[:HEAD_BYTES] + raw[INDEX_KEY_BYTES:]
    # One key for each name: a made key of a name that needs none would be a second one.
    needs_one = len(name) > INDEX_KEY_BYTES or _is_marked(name)
    return name if needs_one and _made_of(name) == raw else None


def name_of(key: Value) -> str | None:
    """Return the name of a stored key, None for a malformed key or a name that is too long.

    A key of an earlier version or another implementation is its own name. Bytes that are not UTF-8
    become surrogate escapes.
    """
    if isinstance(key, str) and key.isascii():
        return key if len(key) <= EXACT_NAME_BYTES_MAX else None
    raw = _raw(key)
    if raw is not None and _is_marked(raw):
        raw = _unmade(raw) if isinstance(key, (str, Text)) else None
    if raw is None or len(raw) > EXACT_NAME_BYTES_MAX:
        return None
    return raw.decode("utf-8", "surrogateescape")


def is_sound_key(key: Value) -> bool:
    """Return whether a key is valid: unmarked, or the made key of the name in it."""
    if isinstance(key, str) and key.isascii():
        return True
    raw = key.read(0, INDEX_KEY_BYTES) if isinstance(key, (Blob, Text)) else _raw(key)
    return raw is None or not _is_marked(raw) or name_of(key) is not None


def shown_key(key: Value) -> Value:
    """Return a key as paths show it: the name of a made key, else the key itself."""
    if isinstance(key, str) and key.isascii():
        return key
    name = name_of(key) if isinstance(key, (str, Text)) else None
    return key if name is None else name


def look_up(index: Index, key: Value) -> Value:
    """Return the value under a key; for a made key without one, that under the name as it is."""
    found = index.get(key)
    name = None if found is not None else shown_key(key)
    if not isinstance(name, str) or same(name, key):
        return found
    held = index.key_cell(name)
    return index.get(name) if held is not None and name_of(held) == name else None


def is_one_key(key: Value, other: Value) -> bool:
    """Return whether two keys have the same bytes and differ at most in type."""
    raw = _raw(key)
    # All bytes: keys that share 32 bytes and differ later are two names.
    return raw is not None and raw == _raw(other)


def outranks(key: Value, other: Value) -> bool:
    """Return whether `key` wins over `other`, which has the same first 32 bytes.

    A valid key wins over a malformed one, then a key of 32 bytes over a longer one, which has a
    position of its own; then the greater hash.
    """
    return _rank(key) > _rank(other)


def _rank(key: Value) -> tuple[bool, bool, bytes]:
    raw = _raw(key)
    is_short = raw is not None and len(raw) <= INDEX_KEY_BYTES
    # "A merge keeps the name of 32 bytes, or else the key with the greater hash" (docs/cells.md
    # "Exact keys").
    return is_sound_key(key), is_short, value_hash(key)


Lost = Callable[[Value, bool], None]
"""Called with (a key that a merge leaves out, whether it is own's)."""


class ExactKeys:
    """Looks up, writes, lists and merges the names of one type of Index.

    Methods take the Index as an argument and return the new one.

    Args:   join: merges two values of one name. texts: names are Unicode texts, and any key with
            the bytes of a name stands for it; otherwise names are the bytes of String keys.
    """

    def __init__(self, join: Callable[[Value, Value], Value], *, texts: bool) -> None:
        self._join: Final = join
        self._texts: Final = texts

    def name(self, key: Value) -> str | None:
        """Return the name of a stored key, None if it has none."""
        name = name_of(key)
        if not self._texts:
            return name if isinstance(key, (str, Text)) else None
        return name if name is not None and _is_text(name) else None

    def _stands_for(self, index: Index, name: str) -> bool:
        """Return whether the key at the position of the unmodified `name` is this name."""
        held = index.key_cell(name)
        return held is not None and self.name(held) == name

    def get(self, index: Index, name: str) -> Value:
        """Return the value stored under exactly this name, or None."""
        key = key_of(name)
        found = index.get(key)
        if key is name:
            if found is None or (self._texts and not _fills(name)):
                return found
            return found if self._stands_for(index, name) else None
        # Another key has this position, for example a blob of the same bytes.
        if found is not None and not same(index.key_cell(key), key):
            found = None
        plain = index.get(name)
        # "Earlier versions used longer names themselves as keys" (docs/cells.md "Exact keys").
        if plain is None or not self._stands_for(index, name):
            return found
        return plain if found is None else self._join(found, plain)

    def get_many(self, index: Index, names: Sequence[str]) -> list[Value]:
        """Return the values stored under exactly these names, None for each that has none."""
        if len(names) == 1:
            return [self.get(index, names[0])]
        keys = [key_of(name) for name in names]
        found = index.get_many(keys)
        for place, name in enumerate(names):
            is_plain = keys[place] is name and self._texts and not _fills(name)
            if not is_plain and (found[place] is not None or keys[place] is not name):
                found[place] = self.get(index, name)
        return found

    def put(self, index: Index, name: str, value: Value) -> Index:
        """Return the index with a value under a name; raises as `put_many`."""
        return self.put_many(index, ((name, value),))

    def put_many(self, index: Index, entries: Iterable[tuple[str, Value]]) -> Index:
        """Return the index with values under names; the last of equal names wins.

        Raises: UsageError: a name of 32 bytes has the position of a stored key without a name.
        """
        made: list[tuple[str, Value]] = []
        for name, value in entries:
            key = key_of(name)
            if key is name and _fills(name):
                index = self._cleared(index, name)
            made.append((key, value))
        return index.put(*made[0]) if len(made) == 1 else index.put_many(made)

    def _cleared(self, index: Index, name: str) -> Index:
        """Return the index with a longer name at the position of `name` moved to its own key."""
        held = index.key_cell(name)
        if held is None or is_one_key(held, name):
            return index
        longer = self.name(held)
        if longer is None:
            raise UsageError(
                f"{_shown(name)} has the same first {INDEX_KEY_BYTES} bytes as the stored key "
                f"{_shown(held)}, which is not a name: choose another name"
            )
        # "If a name of exactly 32 bytes is written at the position of such a longer name, the
        # longer one moves to its made key" (docs/cells.md "Exact keys").
        value = self.get(index, longer)
        return index.remove(held).put(key_of(longer), value)

    def remove(self, index: Index, name: str) -> Index:
        """Return the index without a name, under both of its keys."""
        if self._stands_for(index, name):
            index = index.remove(name)
        key = key_of(name)
        return index if key is name else index.remove(key)

    def entries(
        self,
        index: Index,
        prefix: str = "",
        of: Index | None = None,
        *,
        start: str | None = None,
        stop: str | None = None,
    ) -> Iterator[tuple[str, Value]]:
        """Yield (name, value) of the names that begin with `prefix`, each once.

        Names of up to 32 bytes come in byte order, longer ones after those that share their first
        eight bytes. `start` and `stop` limit the texts to `start` <= name < `stop`; None is no
        limit. `of` is the full Index if `index` is a part of one.
        Cost:   names asked for, and longer names that share the first eight bytes of a limit.
        """
        full = index if of is None else of
        for part in parts(index, prefix, start, stop):
            for key, value in part.entries():
                found = self.entry(full, key, value)
                if (
                    found is not None
                    and found[0].startswith(prefix)
                    # Texts compare by code points, which is the order of their UTF-8.
                    and (start is None or start <= found[0])
                    and (stop is None or found[0] < stop)
                ):
                    yield found

    def entry(self, index: Index, key: Value, value: Value) -> tuple[str, Value] | None:
        """Return (name, value) of a stored entry, None if the entry is not to be listed.

        A longer name stored both as it is and under its made key is listed once, at the made key.
        """
        name = self.name(key)
        if name is None:
            return None
        made = key_of(name)
        if made is name:
            return name, value
        if same(key, made):
            plain = index.get(name)
            if plain is not None and self._stands_for(index, name):
                value = self._join(value, plain)
        # Stored under both: listed at the made key.
        elif made in index:
            return None
        return name, value


class ExactMerge:
    """The merge of names for `Index.merge_with`: `join`, and `rival` for different keys.

    Malformed foreign keys are left out. Of two keys that share 32 bytes and differ after them
    (writers of this package make no such keys), the one that outranks the other stays.
    """

    def __init__(self, join: JoinEntries, lost: Lost) -> None:
        self._join: Final = join
        self._lost: Final = lost

    def join(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        """Return the merged value of a key, or ABSENT."""
        # A malformed own key stays until it is written again; a foreign one is left out.
        if other_present and not own_present and not is_sound_key(key):
            self._lost(key, False)
            return ABSENT
        return self._join(key, own, other, own_present, other_present)

    def rival(self, held: Value, own: Value, key: Value, other: Value) -> tuple[Value, object]:
        """Return the winning entry of two keys with the same first 32 bytes."""
        if not is_sound_key(key):
            self._lost(key, False)
            return held, own
        if is_one_key(held, key):
            kept = held if value_hash(held) > value_hash(key) else key
            return kept, self._join(kept, own, other, True, True)
        # The loser is reported: its data is not in the merged value.
        if outranks(held, key):
            self._lost(key, False)
            return held, own
        value = self._join(key, None, other, False, True)
        if value is ABSENT:
            return held, own
        self._lost(held, True)
        return key, value


def exact_merge(join: JoinEntries, context: MergeContext) -> ExactMerge:
    """Return a merge of names that reports the keys it leaves out."""

    def lost(key: Value, is_own: bool) -> None:
        path = (*context.path, shown_key(key))
        context.report(WriteSuperseded(path, OWN) if is_own else EntryDropped(path))

    return ExactMerge(join, lost)


def parts(
    index: Index, prefix: str, start: str | None = None, stop: str | None = None
) -> list[Index]:
    """Return the parts of an index that hold the names asked for, in order.

    These are the names that begin with `prefix` and are not outside `start` <= name < `stop`, and
    longer names that share the first eight bytes of a limit.
    """
    found = [index]
    if prefix:
        found = _with_longer(index, index.under(prefix), text_bytes(prefix))
    if start is None and stop is None:
        return found
    low = None if start is None else text_bytes(start)[:INDEX_KEY_BYTES]
    if stop is None:
        return [index_between(part, low, None) for part in found]
    raw = text_bytes(stop)
    # A name of an earlier version has the position of its first 32 bytes, which `stop` may share.
    high = raw if len(raw) <= INDEX_KEY_BYTES else raw[:INDEX_KEY_BYTES] + b"\0"
    return [
        one for part in found for one in _with_longer(part, index_between(part, low, high), raw)
    ]


def _with_longer(index: Index, near: Index, limit: bytes) -> list[Index]:
    """Return `near`, and the longer names that share the first eight bytes of `limit`."""
    # Made keys begin with eight bytes of the name, so a short limit holds for them, too.
    if len(limit) <= HEAD_BYTES:
        return [near]
    # Made keys have the mark after these bytes, and come in the order of their hashes.
    return [near, index.under(limit[:HEAD_BYTES] + _MARK)]


def is_short(name: str) -> bool:
    """Return whether a name is its own key."""
    return key_of(name) is name


def _is_text(name: str) -> bool:
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False  # bytes that are not UTF-8
    return True


def _fills(name: str) -> bool:
    """Return whether a name has exactly 32 bytes, so that a longer key can have its position."""
    if name.isascii():
        return len(name) == INDEX_KEY_BYTES
    return len(text_bytes(name)) == INDEX_KEY_BYTES


def _shown(key: Value) -> str:
    text = repr(key)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def named(pairs: Iterable[tuple[str, Value]]) -> Index:
    """Return the index of values by name; the last of equal names wins."""
    made = [(key_of(name), value) for name, value in pairs]
    return Index.of(made) if made else EMPTY_INDEX
