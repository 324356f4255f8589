"""Node: the value of a directory, a file or a tombstone, and the paths that lead to it.

A node is the Vector `[entries, data, metadata, utime]`: a directory has entries, a file has data, a
tombstone has neither. An optional fifth element maps names to times. The time of the empty name is
the directory's base: everything in the directory is newer. The times of other names are deletions
in the layout of CAD028 and read as tombstones.

Source: CAD028 "Node", "Names", "Tombstones", "Paths"; docs/dlfs.md "Nodes", "Names and paths",
    "Merge"; docs/design/decisions.md "D-FS1".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from datalattice.cells import EMPTY_INDEX, Blob, Index, Text, Value, Vector, same
from datalattice.errors import UsageError
from datalattice.lattice import NO_TIME, as_integer, is_long, name_of

ENTRIES_AT: Final = 0
DATA_AT: Final = 1
METADATA_AT: Final = 2
UTIME_AT: Final = 3
DELETIONS_AT: Final = 4
NODE_FIELDS: Final = 4

NODE_FIELDS_MAX: Final = 256
"""Most elements of a node. A dozen cells can encode a Vector of any length, and a merge keeps all
elements."""

DRIVE_DEPTH_MAX: Final = 100
"""Most names in a path; deeper nodes are refused when written and dropped when merged."""

BASE_KEY: Final = ""  # no file can have the empty name

FileContent = bytes | Blob
"""The data of a file."""

ZERO_NODE: Final = Vector.of((EMPTY_INDEX, None, None, 0))


class DriveNode(NamedTuple):
    """The elements of a node's Vector."""

    entries: Index | None
    data: FileContent | None
    metadata: Value
    utime: int
    deletions: Index | None
    further: tuple[Value, ...]

    @property
    def is_directory(self) -> bool:
        """Whether it has entries."""
        return self.entries is not None

    @property
    def is_file(self) -> bool:
        """Whether it has data."""
        return self.data is not None

    @property
    def is_live(self) -> bool:
        """Whether it is a directory or a file, not a tombstone."""
        return self.entries is not None or self.data is not None

    @property
    def base(self) -> int:
        """The time that everything in the directory is newer than; -1 without a base."""
        found = None if self.deletions is None else as_integer(self.deletions.get(BASE_KEY))
        return NO_TIME if found is None else found


def is_time(value: Value) -> bool:
    """Return whether a value is a time: an Integer of at most 64 bits, 0 or more."""
    number = as_integer(value)
    return number is not None and is_long(number) and number >= 0


def is_name(value: Value) -> bool:
    """Return whether a value can be the key of an entry: a String that is a name.

    A name has at least one character and no `/`.
    """
    name = name_of(value) if isinstance(value, (str, Text)) else None  # Text is a long String
    # "A name is a String of at least one character without `/`" (docs/dlfs.md "Names and paths").
    return name is not None and name != "" and "/" not in name


def read_node(value: Value) -> DriveNode | None:
    """Return the node in `value`, None if it is malformed.

    Cost:   reads only the top of the value.
    """
    # A peer may send any cell as a node.
    if not isinstance(value, Vector) or not NODE_FIELDS <= len(value) <= NODE_FIELDS_MAX:
        return None
    entries, data, metadata, utime, *rest = value
    deletions = rest[0] if rest else None
    if not (isinstance(utime, int) and is_time(utime)):  # "utime Long"
        return None
    # "Entries nil or an Index, data nil or a Blob, not both" (docs/dlfs.md "What foreigners may
    # send").
    if isinstance(data, (bytes, Blob)):
        if entries is not None:
            return None
        return DriveNode(None, data, metadata, utime, None, tuple(rest))
    if data is not None:
        return None
    if entries is None:
        return DriveNode(None, None, metadata, utime, None, tuple(rest))
    if not isinstance(entries, Index):
        return None
    if deletions is None and len(rest) != 1:
        return DriveNode(entries, None, metadata, utime, None, tuple(rest[1:]))
    # "A fifth position of a directory an Index that is not empty (nil before further fields)"
    # (docs/dlfs.md "What foreigners may send").
    if not isinstance(deletions, Index) or not deletions:
        return None
    if BASE_KEY in deletions and not (
        deletions.key_cell(BASE_KEY) == BASE_KEY and is_time(deletions.get(BASE_KEY))
    ):
        return None
    return DriveNode(entries, None, metadata, utime, deletions, tuple(rest[1:]))


def make_directory(
    entries: Index,
    utime: int,
    *,
    base: int = NO_TIME,
    metadata: Value = None,
    further: tuple[Value, ...] = (),
) -> Vector:
    """Return a directory: four elements, five with a base, more with further fields."""
    # Equal nodes must have equal bytes, so the fifth field is written only if it is needed.
    fields: list[Value] = [entries, None, metadata, utime]
    if base > NO_TIME:
        fields.append(Index.of([(BASE_KEY, base)]))
    elif further:  # nil before further fields keeps their positions
        fields.append(None)
    fields.extend(further)
    return Vector.of(fields)


def make_file(data: FileContent, utime: int, metadata: Value = None) -> Vector:
    """Return a file."""
    return Vector.of((None, data, metadata, utime))


def make_tombstone(utime: int) -> Vector:
    """Return the node of a deleted entry."""
    return Vector.of((None, None, None, utime))


def deletions_of(node: DriveNode) -> Iterator[tuple[Value, Value]]:
    """Yield (name, time) of the deletions in the fifth element, without the base.

    Names and times are unchecked.
    """
    if node.deletions is not None and (len(node.deletions) > 1 or node.base == NO_TIME):
        for name, time in node.deletions.entries():
            if not same(name, BASE_KEY):
                yield name, time


def is_zero(value: Value) -> bool:
    """Return whether a value is the empty directory of time 0."""
    return same(value, ZERO_NODE)


# --- paths ---

# "Leading slashes make a path absolute ..., slashes at the end stand for `/.`", and "`..` above the
# root is dropped" (docs/dlfs.md "Names and paths").

SEPARATOR: Final = "/"
HERE: Final = "."
ABOVE: Final = ".."

PathLike = str | os.PathLike[str]


def normal_path(path: PathLike) -> str:
    """Return the normal form of a path; that of an empty relative path is `.`.

    Raises: UsageError: the path is empty, or has an empty name in the middle.
    """
    text = _text(path)
    names = _names(text)
    if text.startswith(SEPARATOR):
        # "absolute: .. at root is dropped"
        return SEPARATOR + SEPARATOR.join(name for name in names if name != ABOVE)
    return SEPARATOR.join(names) or HERE


def split_path(path: PathLike) -> tuple[str, ...]:
    """Return the names from the root of a drive to `path`; a relative path starts at the root.

    Raises: UsageError: the path is empty, has an empty name in the middle, or is deeper than 100
            names.
    """
    text = _text(path)
    names = tuple([name for name in _names(text) if name != ABOVE])
    if len(names) > DRIVE_DEPTH_MAX:
        raise UsageError(f"the path has {len(names)} names, {DRIVE_DEPTH_MAX} at most")
    return names


def join_path(names: tuple[str, ...]) -> str:
    """Return the absolute path of `names`."""
    return SEPARATOR + SEPARATOR.join(names)


def _text(path: PathLike) -> str:
    text = os.fspath(path)
    if not isinstance(text, str):
        raise UsageError(f"the path is not a str: {type(text).__name__}")
    if not text:  # "an empty path is an error"
        raise UsageError("the path is empty; the root is /")
    return text


def _names(text: str) -> list[str]:
    """Return the names of a path; `..` remains only at its start."""
    inner = text.strip(SEPARATOR)
    found: list[str] = []
    for name in inner.split(SEPARATOR) if inner else []:
        if not name:  # "empty component in the middle: error"
            raise UsageError(f"a name in the middle of {text!r} is empty")
        if name == ABOVE and found and found[-1] != ABOVE:  # "relative: leading .. kept"
            found.pop()
        elif name == ABOVE and text.startswith(SEPARATOR):
            continue
        elif name != HERE:
            found.append(name)
    return found
