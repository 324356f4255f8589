"""Plans which files of which drives to read, and in which tasks. No Spark.

The planner lists directories itself, up to `LOOKED_MAX` entries, so it knows how much each task
reads. After that, tasks get parts of directories with everything below them. So the planner never
holds all names of a large drive.

Source: docs/spark-formats.md "Files".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from datalattice.apps.dlfs import (
    FS_SECTION,
    NAMES,
    DriveNode,
    PathNames,
    entries_of,
    live_entries,
    make_directory,
    read_node as node_of,
)
from datalattice.arrow import name_text
from datalattice.cells import (
    Index,
    Loader,
    Map,
    Signed,
    Value,
    blob_length,
    decode,
    encode,
)
from datalattice.errors import UsageError
from datalattice.pipeline.files.globs import Glob, States
from datalattice.pipeline.files.options import FilesOptions
from datalattice.pipeline.index_partitions import EncodedSubtrees, cut
from datalattice.pipeline.options import NAMED_MAX, bad_option, check_there
from datalattice.pipeline.signatures import check_signed

FILES_PER_TASK_MAX: Final = 4_096
"""Approximate files that one task lists."""

BYTES_PER_TASK_MAX: Final = 64 * 1024 * 1024
"""Approximate content that one task reads; a longer file that is read in chunks becomes several
tasks."""

RANGES_MAX: Final = 65_536
"""Most tasks of one file, since a few cells can represent a file of any length."""

LOOKED_MAX: Final = 20_000
"""Directory entries that the planner itself lists."""


@dataclass(frozen=True, slots=True)
class DriveDirectory:
    """A part of a directory's entries."""

    names: PathNames
    piece: EncodedSubtrees
    entries: bytes
    """Encoding of all entries, since a name longer than 32 bytes may be stored in two parts."""
    is_deep: bool
    """Whether to read everything below. If not, only the directory's files, and of files that are
    read in chunks only the short ones."""


@dataclass(frozen=True, slots=True)
class ChunkRange:
    """Neighbouring chunks of one file."""

    names: PathNames
    node: bytes
    """Encoding of the file's node."""
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class FilesTask:
    """What one task reads; no root is needed to read it."""

    owner: str
    drive: str
    parts: tuple[DriveDirectory | ChunkRange, ...]


def plan(root: Value, options: FilesOptions) -> Iterator[FilesTask]:
    """Yield the tasks that read the selected files.

    root: None or the Index of a lattice's sections.
    Raises: UsageError: a named drive or path does not exist, or there are several drives and none
            is named. BadSignature: an owner's drives are not signed by their key. MissingData.
    """
    found = 0
    drives = _chosen(root, options)
    for owner, drive, value in drives:
        # The names before the first wildcard lead to one directory: nothing outside of it is read.
        start = _begin(value, options.glob)
        if start is None:
            continue
        found += 1
        packing = _Packing(owner, drive, by_bytes=options.with_content)
        yield from packing.tasks(_parts(*start, options))
    if drives and not found:
        where = " or ".join(f"drive {drive!r} of {owner}" for owner, drive, _ in drives)
        raise bad_option("glob", options.glob.text, f"nothing exists at this path in {where}")


# --- drives -------------------------------------------------------------------------------------


def _chosen(root: Value, options: FilesOptions) -> list[tuple[str, str, Value]]:
    """Return (owner, drive, root node) of the selected drives."""
    found: list[tuple[str, str, Value]] = []
    owners: set[str] = set()
    names: set[str] = set()
    section = root.get(FS_SECTION) if isinstance(root, Index) else None
    for owner, signed in section.entries() if isinstance(section, Map) else ():
        owner_text = name_text(owner)
        owners.add(owner_text)
        # Before the signature check: an owner that is not selected may be invalid.
        if not isinstance(signed, Signed) or (options.owners and owner_text not in options.owners):
            continue
        check_signed(owner, signed, "drives")
        drives = signed.value
        for name, value in drives.entries() if isinstance(drives, Map) else ():
            if isinstance(name, str):
                drive = name_text(name)
                names.add(drive)
                if not options.drives or drive in options.drives:
                    found.append((owner_text, drive, value))
    check_there("owner", options.owners, owners)
    check_there("drive", options.drives, names)
    # Rows do not show the drive by default, so files of several drives would be mixed up.
    if not options.drives and len(found) > 1:
        known = ", ".join(f"{drive!r} of {owner}" for owner, drive, _ in found[:NAMED_MAX])
        raise UsageError(
            f"option drive is missing, and there are {len(found)} drives ({known}): name one or "
            "several, separated by commas"
        )
    # Sorted, because Maps are ordered by hash: the same drive must give the same tasks.
    return sorted(found, key=lambda one: one[:2])


# --- where to begin -----------------------------------------------------------------------------


def _begin(root: Value, glob: Glob) -> tuple[PathNames, Value, States | None] | None:
    """Return (names, node, states) of the deepest node on the literal front of a glob, or None.

    States are None if everything below the node matches.
    """
    value: Value = make_directory(Index(), 0) if root is None else root
    states: States | None = glob.start
    names: PathNames = ()
    for index, name in enumerate(glob.names):
        if not glob.is_literal(index):
            return names, value, states
        node = node_of(value)
        # A path through a file, or to a missing name, leads nowhere.
        below = None if node is None or not node.is_directory else _entry(node, name)
        if below is None:
            return None if glob.is_plain else (names, make_directory(Index(), 0), states)
        assert states is not None
        names, value, states = (*names, name), below, glob.step(states, name)
    return names, value, None


def _entry(node: DriveNode, name: str) -> Value:
    value = NAMES.get(entries_of(node), name)
    found = node_of(value)
    return value if found is not None and found.is_live else None


# --- the parts to read --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A part, and its size."""

    part: DriveDirectory | ChunkRange
    files: int
    byte_count: int


def _parts(
    names: PathNames, value: Value, states: States | None, options: FilesOptions
) -> Iterator[_Weighed]:
    """Yield the parts to read at and below a node.

    The walk is breadth first, so that tasks get many small directories rather than a few large.
    """
    node = node_of(value)
    # The glob names a file.
    if node is not None and node.data is not None:
        if states is None or options.glob.is_end(states):
            yield from _chunk_ranges(names, value, blob_length(node.data), options)
        return
    looked = 0
    waiting = deque([(names, value, states)])
    while waiting:
        here, value, states = waiting.popleft()
        node = node_of(value)
        # Not a directory, or malformed: there is nothing below it.
        if node is None or node.entries is None:
            continue
        entries = entries_of(node)
        # Beyond the limit tasks list directories, so planning time does not grow with the drive.
        if looked + len(entries) > LOOKED_MAX:
            pieces = list(cut(None, entries, FILES_PER_TASK_MAX))
            for piece in pieces:
                part = DriveDirectory(here, piece, encode(entries), is_deep=True)
                yield _Weighed(part, -(-len(entries) // len(pieces)), 0)
            continue
        looked += len(entries)
        yield from _list_directory(here, value, entries, states, options, waiting)


def _list_directory(
    names: PathNames,
    value: Value,
    entries: Index,
    states: States | None,
    options: FilesOptions,
    below: deque[tuple[PathNames, Value, States | None]],
) -> Iterator[_Weighed]:
    """Yield the files of a directory; append the directories in it to `below`."""
    files = total = 0
    for name, child, node in live_entries(value):
        after = None if states is None else options.glob.step(states, name)
        if node.is_directory:
            if after is None or options.glob.may_go_on(after):
                below.append(((*names, name), child, after))
        elif after is None or options.glob.is_end(after):
            assert node.data is not None
            size = blob_length(node.data)
            # "Several tasks read a file of more than 64 MiB" (docs/spark-formats.md, Files).
            if is_divided(size, options):
                yield from _chunk_ranges((*names, name), child, size, options)
            else:
                files += 1
                total += size
    if not files:
        return
    share = 1
    if options.with_content:
        # "A task lists about 4,096 files and reads about 64 MiB of contents".
        share = -(-total // BYTES_PER_TASK_MAX)
    many = max(1, min(FILES_PER_TASK_MAX, len(entries) // max(1, share)))
    pieces = list(cut(None, entries, many))
    for piece in pieces:
        part = DriveDirectory(names, piece, encode(entries), is_deep=False)
        yield _Weighed(part, -(-files // len(pieces)), total // len(pieces))


def is_divided(size: int, options: FilesOptions) -> bool:
    """Return whether a file is divided among several tasks."""
    return options.chunk_bytes is not None and size > BYTES_PER_TASK_MAX


def chunk_count(size: int, chunk_bytes: int) -> int:
    """Return the number of chunks of a file; an empty one has one, so that it has a row."""
    return max(1, -(-size // chunk_bytes))


def _chunk_ranges(
    names: PathNames, value: Value, size: int, options: FilesOptions
) -> Iterator[_Weighed]:
    """Yield the chunk ranges of one file."""
    encoding = encode(value)
    chunk_bytes = options.chunk_bytes or max(1, size)
    count = chunk_count(size, chunk_bytes)
    # "One file becomes at most 65,536 tasks" (docs/spark-formats.md, Files).
    step = max(1, BYTES_PER_TASK_MAX // chunk_bytes, -(-count // RANGES_MAX))
    for first in range(0, count, step):
        stop = min(first + step, count)
        byte_count = min(size, stop * chunk_bytes) - first * chunk_bytes
        yield _Weighed(ChunkRange(names, encoding, first, stop), 1, byte_count)


class _Packing:
    """Packs parts into tasks of about equal size."""

    def __init__(self, owner: str, drive: str, *, by_bytes: bool) -> None:
        self._owner: Final = owner
        self._drive: Final = drive
        self._by_bytes: Final = by_bytes

    def tasks(self, parts: Iterator[_Weighed]) -> Iterator[FilesTask]:
        """Yield the tasks."""
        held: list[DriveDirectory | ChunkRange] = []
        files = byte_count = 0
        for weighed in parts:
            # Whichever limit comes first; contents count only if they are read.
            is_full = files + weighed.files > FILES_PER_TASK_MAX or (
                self._by_bytes and byte_count + weighed.byte_count > BYTES_PER_TASK_MAX
            )
            if held and is_full:
                yield FilesTask(self._owner, self._drive, tuple(held))
                held, files, byte_count = [], 0, 0
            held.append(weighed.part)
            files += weighed.files
            byte_count += weighed.byte_count
        if held:
            yield FilesTask(self._owner, self._drive, tuple(held))


def directory_of(encoding: bytes | None, loader: Loader) -> Value:
    """Return a directory with the entries of an encoded part."""
    return make_directory(Index() if encoding is None else index_of(encoding, loader), 0)


def index_of(encoding: bytes, loader: Loader) -> Index:
    """Return encoded entries; anything other than an Index reads as none."""
    entries = decode(encoding, loader)
    return entries if isinstance(entries, Index) else Index()
