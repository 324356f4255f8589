"""Upgrading: the versions of what is in a folder, checked and raised before anything is written.

    DIR/format.json         {"package": "0.1.0", "parts": {"folder": 1, "settings": 2, "store": 5}}
    DIR/before-store-5/     the files as they were before a migration; remove it when all is well

A folder with a part of a newer version is refused and stays as it is. One with an older part is
migrated, each step in this order: the files that it changes are copied, the step makes them anew
from the copies, the new version is noted. Each is durable before the next begins, and a step that
was interrupted at any point is made again from the same copies, so a crash loses nothing.

Source: docs/node.md "Upgrades".
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from datalattice.errors import Corruption, StoreVersion
from datalattice.store import FOLDER_VERSION, RealDisk, replace_file, wait_for_lock
from datalattice.version import VERSION

FORMAT_FILE: Final = "format.json"
FORMAT_BYTES_MAX: Final = 64_000

PARTS: Final[Mapping[str, int]] = {"folder": 1, "settings": 2, "store": FOLDER_VERSION}
"""The versions that this package writes."""

UNNOTED: Final[Mapping[str, int]] = {"folder": 1, "settings": 2, "store": 5}
"""The versions in a folder that was made before they were noted."""

_WRITER_WAIT_S: Final = 10.0
"""How long a migration waits for a command that is just writing."""


class Migration(NamedTuple):
    """One step to a version of a part.

    files: what it changes, below the folder. make: makes them from their copies in the first
           folder, in the second one; it may be called again after a crash at any point.
    """

    part: str
    version: int
    files: tuple[str, ...]
    make: Callable[[Path, Path], None]


MIGRATIONS: Final[tuple[Migration, ...]] = ()
"""All steps there are, by version. A store of version 5 gets version 6 from its next writer."""


def check_format(folder: Path, parts: Mapping[str, int] = PARTS) -> dict[str, int]:
    """Return the versions of a folder's parts.

    Raises: StoreVersion: one is newer than this package. Corruption: the note cannot be read.
    """
    path = folder / FORMAT_FILE
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(FORMAT_BYTES_MAX))
        package = str(document["package"])
        found = {str(part): int(version) for part, version in document["parts"].items()}
    except FileNotFoundError:
        # A new folder has our versions; one without a note was written before there were notes.
        is_new = not (folder / "store").exists()
        return dict(parts) if is_new else {part: UNNOTED.get(part, 0) for part in parts}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corruption(f"{path} is not a note of versions: {error}") from error
    for part, version in found.items():
        # "A package that finds a newer part refuses the folder, names both versions, and changes
        # nothing in it" (docs/node.md).
        if version > parts.get(part, 0):
            known = f"reads up to {parts[part]}" if part in parts else "knows no such part"
            raise StoreVersion(
                f"{folder} was written by datalattice {package}: its {part} has version {version}, "
                f"and datalattice {VERSION} {known}; use {package} or a newer one"
            )
    return found


def guard_folder(
    folder: Path,
    parts: Mapping[str, int] = PARTS,
    migrations: Sequence[Migration] = MIGRATIONS,
) -> list[Migration]:
    """Have the parts of a folder at our versions, and note them; return the steps that it took.

    Raises: as `check_format`. StoreLocked: a command goes on writing. StoreFull, StoreFailed.
    """
    found = check_format(folder, parts)
    steps = [one for one in migrations if found.get(one.part, 0) < one.version]
    if steps:
        # A command that has begun to write finishes first: it knows the old form alone.
        lock = folder / "store" / "lock"
        disk = RealDisk()
        turn = None
        if lock.exists():
            turn = wait_for_lock(
                disk, str(lock.parent), lambda: disk.lock(str(lock)), _WRITER_WAIT_S
            )
        try:
            for step in steps:
                _make(folder, step)
                # Noted after each step: "a crash in between loses nothing, and the next start goes
                # on" (docs/node.md).
                found[step.part] = step.version
                _note(folder, found)
        finally:
            if turn is not None:
                turn.release()
    if found != parts or not (folder / FORMAT_FILE).exists():
        _note(folder, parts)
    return steps


def _make(folder: Path, step: Migration) -> None:
    """Copy what a step changes, unless that was done, and make the step."""
    copies = folder / f"before-{step.part}-{step.version}"
    # A folder with this name is complete: what lies beside it may be half made.
    if not copies.exists():
        disk, fresh = RealDisk(), copies.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        disk.create_folder(str(fresh))
        for name in step.files:
            if (folder / name).exists():
                (fresh / name).parent.mkdir(parents=True, exist_ok=True)
                replace_file(disk, str(fresh / name), [(folder / name).read_bytes()])
        # The name appears once everything in the folder is durable.
        fresh.rename(copies)
        disk.sync_folder(str(folder))
    step.make(copies, folder)


def _note(folder: Path, parts: Mapping[str, int]) -> None:
    text = json.dumps({"package": VERSION, "parts": dict(parts)}) + "\n"
    replace_file(RealDisk(), str(folder / FORMAT_FILE), [text.encode()])
