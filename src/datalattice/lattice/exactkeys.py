"""ExactKeys: texts of any length as the keys of an Index, told apart by every byte.

An Index looks at the first 32 bytes of a key. A name of up to 32 bytes is its own key. A longer one
is kept in a key made of it:

    8 bytes     the first of the name, so that it stands near what begins alike
    1 byte      ff, which no text contains: no short name can take the position
    23 bytes    SHA3-256 of the name, cut
    the rest    the name from its ninth byte on, so that the name is read back from the key

The position follows from the name alone, so replicas agree on it, and a merge stays what it is: one
entry at a time. A key with the mark that is not made of the name in it is malformed.

Earlier versions and other implementations write a longer name as it is. Such an entry is read
beside the one under the made key, as the join of both; what is written goes under the made key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from datalattice.cells import (
    ABSENT,
    EMPTY_INDEX,
    Blob,
    Index,
    Join,
    Scalar,
    Text,
    Value,
    same,
    text_bytes,
    value_hash,
)
from datalattice.crypto import sha3_256
from datalattice.errors import UsageError
from datalattice.lattice.context import OWN, EntryDropped, MergeContext, WriteSuperseded
from datalattice.limits import CHUNK_BYTES, INDEX_KEY_BYTES

HEAD_BYTES: Final = 8
"""Bytes of a longer name that its key begins with."""

NAME_BYTES_MAX: Final = CHUNK_BYTES
"""Longest name in UTF-8: what one cell holds."""

SHOWN_CHARS: Final = 100
"""Most of a name that an error shows."""

_MARK: Final = b"\xff"
_HASH_BYTES: Final = INDEX_KEY_BYTES - HEAD_BYTES - len(_MARK)
_KEY_BYTES_MAX: Final = NAME_BYTES_MAX + INDEX_KEY_BYTES - HEAD_BYTES
_SURELY_SHORT: Final = INDEX_KEY_BYTES // 4


def _made_of(name: bytes) -> bytes:
    hash = sha3_256(name)[:_HASH_BYTES]
    return name[:HEAD_BYTES] + _MARK + hash + name[HEAD_BYTES:]


def key_of(name: str) -> str:
    """Return the key under which a name stands: itself up to 32 bytes of UTF-8.

    Bytes that are not UTF-8 travel as surrogate escapes. A name of 32 bytes in which the mark
    stands where keys have it gets a key of its own, like a longer one.

    Raises: UsageError: a lone surrogate that stands for no byte.
    Source: docs/cells.md "Exact keys".
    """
    if len(name) < _SURELY_SHORT or (len(name) <= INDEX_KEY_BYTES and name.isascii()):
        return name
    raw = text_bytes(name)
    if len(raw) <= INDEX_KEY_BYTES and not _is_marked(raw):
        return name
    return _made_of(raw).decode("utf-8", "surrogateescape")


def _raw(key: Value) -> bytes | None:
    """Return all bytes of a key, nil for one that is too long for a name, or what is no key."""
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
    """Return the name in a marked key, nil where the key is not made of it."""
    name = raw[:HEAD_BYTES] + raw[INDEX_KEY_BYTES:]
    needs_one = len(name) > INDEX_KEY_BYTES or _is_marked(name)
    return name if needs_one and _made_of(name) == raw else None


def name_of(key: Value) -> str | None:
    """Return the name that a stored key stands for, nil for a malformed key or a longer name.

    A key of an earlier version or another implementation stands for its own bytes. Bytes that are
    not UTF-8 are surrogate escapes.
    Source: docs/cells.md "Exact keys".
    """
    if isinstance(key, str) and key.isascii():
        return key if len(key) <= NAME_BYTES_MAX else None
    raw = _raw(key)
    if raw is not None and _is_marked(raw):
        raw = _unmade(raw) if isinstance(key, (str, Text)) else None
    if raw is None or len(raw) > NAME_BYTES_MAX:
        return None
    return raw.decode("utf-8", "surrogateescape")


def is_sound_key(key: Value) -> bool:
    """Return whether a key may stand: it is not marked, or made of the name that it holds.

    Source: docs/cells.md "Exact keys".
    """
    if isinstance(key, str) and key.isascii():
        return True
    raw = key.read(0, INDEX_KEY_BYTES) if isinstance(key, (Blob, Text)) else _raw(key)
    return raw is None or not _is_marked(raw) or name_of(key) is not None


def shown_key(key: Value) -> Value:
    """Return what a path shows for a key: the name that it was made of, else the key itself.

    Source: docs/cells.md "Exact keys".
    """
    if isinstance(key, str) and key.isascii():
        return key
    name = name_of(key) if isinstance(key, (str, Text)) else None
    return key if name is None else name


def look_up(index: Index, key: Value) -> Value:
    """Return what stands under a key; under a made one, else under the name as it is.

    Source: docs/cells.md "Exact keys".
    """
    found = index.get(key)
    name = None if found is not None else shown_key(key)
    if not isinstance(name, str) or same(name, key):
        return found
    held = index.key_cell(name)
    return index.get(name) if held is not None and name_of(held) == name else None


def is_one_key(key: Value, other: Value) -> bool:
    """Return whether two keys have the same bytes: they are spellings of one."""
    raw = _raw(key)
    return raw is not None and raw == _raw(other)


def outranks(key: Value, other: Value) -> bool:
    """Return whether `key` stays, of two whose first 32 bytes agree.

    A sound one before one that is not, one of 32 bytes before longer ones, which have a position
    of their own; else the one with the greater hash.
    Source: docs/cells.md "Exact keys"; docs/design/decisions.md "D1".
    """
    return _rank(key) > _rank(other)


def _rank(key: Value) -> tuple[bool, bool, bytes]:
    raw = _raw(key)
    is_short = raw is not None and len(raw) <= INDEX_KEY_BYTES
    return is_sound_key(key), is_short, value_hash(key)


Lost = Callable[[Value, bool], None]
"""Told of a key that is left out of a merge, and whether it is own's."""


class ExactKeys:
    """How the names of one kind of Index are found, written, listed and merged.

    Methods take the Index as an argument and return the new one.

    join: the join of two values of one name, as in a merge. texts: names are Unicode texts, and
    any key with the bytes of one stands for it. Without, they are the bytes of Strings.
    Source: docs/cells.md "Exact keys".
    """

    def __init__(self, join: Callable[[Value, Value], Value], *, texts: bool) -> None:
        self._join: Final = join
        self._texts: Final = texts

    def name(self, key: Value) -> str | None:
        """Return the name that a stored key stands for here, nil for none.

        Source: docs/cells.md "Exact keys".
        """
        name = name_of(key)
        if not self._texts:
            return name if isinstance(key, (str, Text)) else None
        return name if name is not None and _is_text(name) else None

    def _stands_for(self, index: Index, name: str) -> bool:
        """Return whether the key that stands where `name` would, as it is, is this name."""
        held = index.key_cell(name)
        return held is not None and self.name(held) == name

    def get(self, index: Index, name: str) -> Value:
        """Return what is stored under exactly this name, nil for nothing.

        Source: docs/cells.md "Exact keys".
        """
        key = key_of(name)
        found = index.get(key)
        if key is name:
            if found is None or (self._texts and not _fills(name)):
                return found
            return found if self._stands_for(index, name) else None
        if found is not None and not same(index.key_cell(key), key):
            found = None
        plain = index.get(name)
        if plain is None or not self._stands_for(index, name):
            return found
        return plain if found is None else self._join(found, plain)

    def put(self, index: Index, name: str, value: Value) -> Index:
        """Return the index with a value under a name.

        Raises: as `put_many`.
        Source: docs/cells.md "Exact keys".
        """
        return self.put_many(index, ((name, value),))

    def put_many(self, index: Index, entries: Iterable[tuple[str, Value]]) -> Index:
        """Return the index with values under names; of two with one name the later stays.

        Raises: UsageError: a name of 32 bytes would take the position of a stored key that has no
                name.
        Source: docs/cells.md "Exact keys".
        """
        made: list[tuple[str, Value]] = []
        for name, value in entries:
            key = key_of(name)
            if key is name and _fills(name):
                index = self._cleared(index, name)
            made.append((key, value))
        return index.put(*made[0]) if len(made) == 1 else index.put_many(made)

    def _cleared(self, index: Index, name: str) -> Index:
        """Return the index with a longer name that stands where `name` belongs moved to its key."""
        held = index.key_cell(name)
        if held is None or is_one_key(held, name):
            return index
        longer = self.name(held)
        if longer is None:
            raise UsageError(
                f"{_shown(name)} cannot be told from the stored key {_shown(held)}, which is no "
                f"name: their first {INDEX_KEY_BYTES} bytes are the same"
            )
        value = self.get(index, longer)
        return index.remove(held).put(key_of(longer), value)

    def remove(self, index: Index, name: str) -> Index:
        """Return the index without a name.

        Source: docs/cells.md "Exact keys".
        """
        if self._stands_for(index, name):
            index = index.remove(name)
        key = key_of(name)
        return index if key is name else index.remove(key)

    def entries(
        self, index: Index, prefix: str = "", of: Index | None = None
    ) -> Iterator[tuple[str, Value]]:
        """Yield (name, value) of the names that begin with `prefix`, each once.

        Names of up to 32 bytes come in the order of their bytes, longer ones after those that share
        their first eight.

        of: the Index of which `index` is a part, when it is one.
        Cost:   the names with that prefix, and the longer ones that share its first eight bytes.
        Source: docs/cells.md "Exact keys".
        """
        full = index if of is None else of
        for part in parts(index, prefix):
            for key, value in part.entries():
                found = self.entry(full, key, value)
                if found is not None and found[0].startswith(prefix):
                    yield found

    def entry(self, index: Index, key: Value, value: Value) -> tuple[str, Value] | None:
        """Return (name, value) of a stored entry, nil where none is to be listed for it.

        A longer name that stands as it is, beside its own key, is listed for that.
        Source: docs/cells.md "Exact keys".
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
        elif made in index:
            return None
        return name, value


class ExactMerge:
    """One merge of names, as `Index.merge_with` takes it: `join`, and `rival` for different keys.

    Malformed keys of the other side are left out. Of two keys that share 32 bytes and are not
    spellings of one (the writers here make no such longer ones) the one that outranks stays.

    Source: docs/cells.md "Exact keys".
    """

    def __init__(self, join: Join, lost: Lost) -> None:
        self._join: Final = join
        self._lost: Final = lost

    def join(
        self, key: Value, own: Value, other: Value, own_present: bool, other_present: bool
    ) -> Value:
        """Return what stands under a key, or ABSENT.

        Source: docs/cells.md "Exact keys".
        """
        if other_present and not own_present and not is_sound_key(key):
            self._lost(key, False)
            return ABSENT
        return self._join(key, own, other, own_present, other_present)

    def rival(self, held: Value, own: Value, key: Value, other: Value) -> tuple[Value, object]:
        """Return the key and value that stay, of two whose first 32 bytes agree.

        Source: docs/cells.md "Exact keys".
        """
        if not is_sound_key(key):
            self._lost(key, False)
            return held, own
        if is_one_key(held, key):
            kept = held if value_hash(held) > value_hash(key) else key
            return kept, self._join(kept, own, other, True, True)
        if outranks(held, key):
            self._lost(key, False)
            return held, own
        value = self._join(key, None, other, False, True)
        if value is ABSENT:
            return held, own
        self._lost(held, True)
        return key, value


def exact_merge(join: Join, context: MergeContext) -> ExactMerge:
    """Return a merge of names that reports the keys which it leaves out.

    Source: docs/cells.md "Exact keys"; docs/design/decisions.md "D9".
    """

    def lost(key: Value, is_own: bool) -> None:
        path = (*context.path, shown_key(key))
        context.report(WriteSuperseded(path, OWN) if is_own else EntryDropped(path))

    return ExactMerge(join, lost)


def parts(index: Index, prefix: str) -> list[Index]:
    """Return the parts of an index in which names that begin with `prefix` are, in their order.

    Source: docs/cells.md "Exact keys".
    """
    if not prefix:
        return [index]
    near = index.under(prefix)
    raw = text_bytes(prefix)
    if len(raw) <= HEAD_BYTES:
        return [near]
    return [near, index.under(raw[:HEAD_BYTES] + _MARK)]


def is_short(name: str) -> bool:
    """Return whether a name is its own key.

    Source: docs/cells.md "Exact keys".
    """
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
    """Return whether a name is as long as what an Index looks at: a longer one may stand there."""
    if name.isascii():
        return len(name) == INDEX_KEY_BYTES
    return len(text_bytes(name)) == INDEX_KEY_BYTES


def _shown(key: Value) -> str:
    text = repr(key)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def named(pairs: Iterable[tuple[str, Value]]) -> Index:
    """Return the index of values by name; of two with one name the later stays.

    Source: docs/cells.md "Exact keys".
    """
    made = [(key_of(name), value) for name, value in pairs]
    return Index.of(made) if made else EMPTY_INDEX
