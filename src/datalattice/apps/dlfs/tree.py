"""Tree: reading and writing the nodes of a tree by path. Pure functions from root to root.

Every write has one stamp: at least the present, later than the node that it replaces and than the
base of every directory above. Every directory above gets the stamp as its utime, unless its own
is later.

Source: CAD028 "Drives", "Paths"; docs/dlfs.md "Drives", "Operations", "Names and paths", "Writes";
    docs/design/decisions.md "Base", "D-FS1".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from datalattice.apps.dlfs.merging import (
    NAMES,
    Merging,
    entries_of,
    is_well_formed,
    node_time,
)
from datalattice.apps.dlfs.node import (
    ABOVE,
    DRIVE_DEPTH_MAX,
    HERE,
    ZERO_NODE,
    DriveNode,
    is_name,
    is_time,
    join_path,
    make_directory,
    make_file,
    make_tombstone,
    read_node,
)
from datalattice.cells import (
    EMPTY_INDEX,
    Index,
    Value,
    brief,
    index_between,
    key_bytes,
    same,
    value_hash,
)
from datalattice.clock import next_stamp
from datalattice.errors import (
    AlreadyExists,
    DirectoryNotEmpty,
    IsADirectory,
    NoSuchPath,
    NotADirectory,
    TypeMismatch,
    UsageError,
)
from datalattice.lattice import EXACT_NAME_BYTES_MAX, NO_TIME, ExactKeys, name_of, named

PathNames = tuple[str, ...]
Stamp = Callable[[], int]
NodeEdit = Callable[[Value, Stamp], Value]
"""Returns the next node of a name from its present node, or None, and the stamp of the write.
Returning the present node itself changes nothing. The stamp is a call, because computing it may
walk a directory."""

_HIDDEN: Final = (HERE, ABOVE)
"""Names that another implementation may store and no path can reach."""


def _later(own: Value, other: Value) -> Value:
    # Of two deletion times the later one.
    is_own = isinstance(own, int) and (not isinstance(other, int) or own >= other)
    return own if is_own else other


DELETIONS: Final = ExactKeys(_later, texts=False)


def root_node(value: Value) -> DriveNode:
    """Return the parts of the root of a drive; None reads as an empty drive.

    Raises: TypeMismatch: the value is not a directory.
    """
    node = _directory(value)
    if node is None:
        raise TypeMismatch(f"the root of a drive is not a directory: {type(value).__name__}")
    return node


def is_root(value: Value) -> bool:
    """Return whether a value may be the root of a drive: a directory, or None."""
    return _directory(value) is not None


def _directory(value: Value) -> DriveNode | None:
    """Return the parts of a directory, None for another value; None reads as an empty one."""
    node = read_node(ZERO_NODE if value is None else value)
    return None if node is None or node.entries is None else node


def find(root: Value, names: PathNames) -> Value:
    """Return the live node at `names`. Raises: NoSuchPath: nothing is there."""
    # A drive that was never written reads as empty.
    value: Value = ZERO_NODE if root is None else root
    node = root_node(value)
    for position, name in enumerate(names):
        if node.entries is None:  # "a missing step, file or tombstone in the way: not found"
            raise NotADirectory(f"{join_path(names[:position])} is a file")
        value = stored(node, name)
        found = read_node(value)
        if found is None or not found.is_live:
            raise NoSuchPath(f"there is nothing at {join_path(names[: position + 1])}")
        node = found
    return value


def is_live(root: Value, names: PathNames) -> bool:
    """Return whether a file or a directory is at `names`."""
    try:
        find(root, names)
    except NoSuchPath:
        return False
    return True


def stored(node: DriveNode, name: str) -> Value:
    """Return the node under a name of a directory, or its tombstone; None if there is neither."""
    assert node.entries is not None
    value = NAMES.get(node.entries, name)
    if value is not None and not is_well_formed(value):
        value = None  # a malformed entry reads as absent, and a write replaces it
    if node.deletions is not None:
        deleted = DELETIONS.get(node.deletions, name)
        if isinstance(deleted, int) and is_time(deleted):
            tombstone = make_tombstone(deleted)
            return tombstone if value is None else Merging(None).join(value, tombstone, (), 0)
    return value


def live_entries(value: Value, of: Index | None = None) -> Iterator[tuple[str, Value, DriveNode]]:
    """Yield (name, node, its parts) of the live entries of a directory.

    Names of up to 32 bytes come in the order of their bytes, longer ones after those that share
    their first eight.

    of: all entries of the directory, if `value` is a directory with a part of them.
    """
    node = read_node(value)
    if node is None or node.entries is None:
        return
    entries = entries_of(node)
    for _, name, child, found in _live(entries, entries if of is None else of):
        yield name, child, found


def live_page(value: Value, start: bytes, count: int) -> tuple[list[tuple[str, Value]], bytes]:
    """Return up to `count` live entries from the key `start` on, as (name, node), in key order.

    The second result is the key at which the next page starts; b"" after the last entry.
    """
    node = read_node(value)
    if node is None or node.entries is None:
        return [], b""
    entries = entries_of(node)
    found: list[tuple[str, Value]] = []
    for key, name, child, _ in _live(index_between(entries, start, None), entries):
        if len(found) == count:
            return found, key_bytes(key)
        found.append((name, child))
    return found, b""


def _live(entries: Index, of: Index) -> Iterator[tuple[Value, str, Value, DriveNode]]:
    for key, stored_value in entries.entries():
        shown = NAMES.entry(of, key, stored_value)
        if shown is None or not is_name(key):
            continue
        name, child = shown
        found = read_node(child)
        # "live entry": readers do not see tombstones.
        if found is None or not found.is_live or not is_well_formed(child):
            continue
        # A path resolves `.` and `..`, so it cannot name these entries.
        if name not in _HIDDEN:
            yield key, name, child, found


def unreachable(value: Value) -> list[str]:
    """Return the names of live entries that no path can name: `.`, `..`, empty, or with `/`.

    Another implementation may have stored them.
    """
    node = read_node(value)
    found: list[str] = []
    for key, child in () if node is None or node.entries is None else node.entries.entries():
        below = read_node(child)
        if below is None or not below.is_live:
            continue
        name = name_of(key)
        if name is None or not is_name(key):
            found.append(brief(key) if name is None else name)
        elif name in _HIDDEN:
            found.append(name)
    return found


def sorted_entries(value: Value) -> list[tuple[str, Value, DriveNode]]:
    """Return what `live_entries` yields, in the order of the names' bytes."""
    # "in Index (UTF-8 byte) order", also for names beyond the compared bytes.
    return sorted(live_entries(value), key=_name_bytes)


def _name_bytes(entry: tuple[str, Value, DriveNode]) -> bytes:
    return entry[0].encode("utf-8", "surrogateescape")


def edit_node(root: Value, names: PathNames, now_ms: int, change: NodeEdit) -> Value:
    """Return the root with the node at `names` replaced by the result of `change`.

    Returns the root itself if nothing changes.
    Raises: NoSuchPath: a directory on the way is missing. NotADirectory: a file is on the way.
            UsageError: the name is too long.
    Units:  now_ms: Unix milliseconds.
    """
    if not names:
        raise UsageError("the root of a drive cannot be written over, deleted or moved")
    chain = _directories(root, names[:-1])
    name = names[-1]
    node = chain[-1]
    _need_name(name)  # every reader would refuse a longer name
    present = stored(node, name)

    found: list[int] = []

    def stamp() -> int:
        # "Later than what it replaces (a tombstone too) and than the base of every directory above
        # it" (docs/dlfs.md "Writes"). Computed once per write, as it may walk a directory.
        if not found:
            latest = max([above.base for above in chain])
            found.append(next_stamp(now_ms, max(latest, node_time(present))))
        return found[0]

    child = change(present, stamp)
    # "A write that changes no byte writes nothing" (docs/dlfs.md "Writes").
    if child is present:
        return root
    for above, step in zip(reversed(chain), reversed(names), strict=True):
        child = make_directory(
            NAMES.put(entries_of(above), step, child),
            # "Every directory above gets the stamp as its utime unless its own is later"
            # (docs/dlfs.md "Writes").
            max(above.utime, stamp()),
            base=above.base,
            metadata=above.metadata,
            further=above.further,
        )
    return child


def check_file(root: Value, names: PathNames) -> None:
    """Check that a file can be written at `names`.

    Raises: as `edit_node`. IsADirectory: a directory is there.
    """
    if not names:
        raise IsADirectory("/ is a directory")
    above = _directories(root, names[:-1])[-1]
    _need_name(names[-1])
    node = read_node(stored(above, names[-1]))
    if node is not None and node.is_directory:
        raise IsADirectory(f"{join_path(names)} is a directory")


def _directories(root: Value, names: PathNames) -> list[DriveNode]:
    """Return the directories from the root to `names`, both included."""
    chain = [root_node(root)]
    for position, name in enumerate(names):
        node = read_node(stored(chain[-1], name))
        path = join_path(names[: position + 1])
        if node is None or not node.is_live:
            raise NoSuchPath(f"there is no directory {path}")
        if not node.is_directory:
            raise NotADirectory(f"{path} is a file")
        chain.append(node)
    return chain


def _need_name(name: str) -> None:
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > EXACT_NAME_BYTES_MAX:
        raise UsageError(f"a name has at most {EXACT_NAME_BYTES_MAX} bytes of UTF-8, got {size}")


# --- changes ----------------------------------------------------------------------------------


def new_directory(names: PathNames, *, exist_ok: bool = False) -> NodeEdit:
    """Return the change that makes a directory; with `exist_ok`, a present one stays as it is."""

    def change(present: Value, stamp: Stamp) -> Value:
        node = read_node(present)
        if node is None:
            return make_directory(EMPTY_INDEX, stamp())
        if node.is_directory and exist_ok:
            return present
        if node.is_live:
            raise AlreadyExists(f"{join_path(names)} exists already")
        # "A directory made over a tombstone has the tombstone's time as its base" (docs/dlfs.md
        # "Writes").
        return make_directory(EMPTY_INDEX, stamp(), base=node.utime)

    return change


def new_content(
    names: PathNames, content: Callable[[DriveNode | None], Value], *, exclusive: bool
) -> NodeEdit:
    """Return the change that writes a file; `content` gets the present file, or None.

    With `exclusive`, a present file raises AlreadyExists.
    """

    def change(present: Value, stamp: Stamp) -> Value:
        node = read_node(present)
        held = node if node is not None and node.is_live else None
        if held is not None and exclusive:
            raise AlreadyExists(f"{join_path(names)} exists already")
        if held is not None and held.is_directory:
            raise IsADirectory(f"{join_path(names)} is a directory")
        data = content(held)
        # The same bytes: "an unchanged result writes nothing"
        if held is not None and same(data, held.data):
            return present
        return make_file(data, stamp(), None if held is None else held.metadata)  # type: ignore[arg-type]

    return change


def edit_metadata(
    root: Value, names: PathNames, now_ms: int, metadata: Callable[[Value], Value]
) -> Value:
    """Return the root with other metadata of the node at `names`, the root's too.

    Raises: NoSuchPath: nothing is there.
    """
    if names:
        return edit_node(root, names, now_ms, _new_metadata(names, metadata))
    node = root_node(root)
    stamp = next_stamp(now_ms, max(node.base, node.utime))
    return _with_metadata(ZERO_NODE if root is None else root, node, metadata, lambda: stamp)


def _new_metadata(names: PathNames, metadata: Callable[[Value], Value]) -> NodeEdit:
    def change(present: Value, stamp: Stamp) -> Value:
        node = read_node(present)
        if node is None or not node.is_live:
            raise NoSuchPath(f"there is nothing at {join_path(names)}")
        return _with_metadata(present, node, metadata, stamp)

    return change


def _with_metadata(
    present: Value, node: DriveNode, metadata: Callable[[Value], Value], stamp: Stamp
) -> Value:
    made = metadata(node.metadata)
    if same(made, node.metadata):
        return present
    if node.data is not None:
        return make_file(node.data, stamp(), made)
    return make_directory(
        entries_of(node), stamp(), base=node.base, metadata=made, further=node.further
    )


def deletion(names: PathNames, *, tree: bool) -> NodeEdit:
    """Return the change that deletes a file or an empty directory; with `tree`, any directory."""

    def change(present: Value, stamp: Stamp) -> Value:
        node = read_node(present)
        if node is None or not node.is_live:
            raise NoSuchPath(f"there is nothing at {join_path(names)}")
        # Tombstones do not count: "only when it has no live entries"
        if not tree and next(live_entries(present), None) is not None:
            raise DirectoryNotEmpty(f"the directory {join_path(names)} is not empty")
        return make_tombstone(stamp())

    return change


def placement(names: PathNames, source: Value, *, overwrite: bool) -> NodeEdit:
    """Return the change that places a copy of the live node `source`, with a new stamp throughout.

    With `overwrite`, a file may replace a file; nothing else is replaced.
    """
    node = read_node(source)
    assert node is not None

    def change(present: Value, stamp: Stamp) -> Value:
        held = read_node(present)
        base = NO_TIME
        if held is not None and held.is_live:
            if held.is_directory and not node.is_directory:
                raise IsADirectory(f"{join_path(names)} is a directory")
            # "Only a file may replace a file" (docs/dlfs.md "Operations").
            if node.is_directory or not overwrite:
                raise AlreadyExists(f"{join_path(names)} exists already")
        elif held is not None:
            base = held.utime  # a copied directory over a tombstone must not show what was deleted
        return _placed(source, stamp(), base, len(names), {})

    return change


def _placed(source: Value, stamp: int, base: int, depth: int, done: dict[bytes, Value]) -> Value:
    node = read_node(source)
    assert node is not None
    if node.data is not None:
        # "A copied or moved tree gets the stamp at every node: with older ones a later merge could
        # take it for what was deleted" (docs/dlfs.md "Writes").
        return make_file(node.data, stamp, node.metadata)
    if depth > DRIVE_DEPTH_MAX:
        raise UsageError(f"the tree would be deeper than {DRIVE_DEPTH_MAX} names there")
    key = value_hash(source)
    found = done.get(key)  # a tree may contain one directory many times
    if found is None:
        children = [
            (name, _placed(child, stamp, NO_TIME, depth + 1, done))
            for name, child, _ in live_entries(source)
        ]
        found = done[key] = make_directory(
            named(children), stamp, base=base, metadata=node.metadata, further=node.further
        )
    return found
