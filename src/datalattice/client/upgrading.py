"""Upgrading: checks the versions of a folder's parts, and raises them before anything is written.

    DIR/format.json         {"package": "0.1.0", "parts": {"folder": 1, "settings": 2, "store": 5}}
    DIR/before-store-5/     the files before a migration; delete it once the folder works

A folder with a part of a newer version is refused and left unchanged. One with an older part is
migrated step by step: the files that a step changes are copied, the step makes them anew from the
copies, and the new version is recorded. Each of these is durable before the next begins, and an
interrupted step is repeated from the same copies, so a crash loses nothing.

Source: docs/node.md "Upgrades".
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from datalattice.client.folder import Folder, take_turn
from datalattice.errors import Corruption, StoreVersion
from datalattice.store import FOLDER_VERSION, RealDisk, replace_file, wait_for_lock
from datalattice.version import VERSION

FORMAT_FILE: Final = "format.json"
FORMAT_BYTES_MAX: Final = 64_000

PARTS: Final[Mapping[str, int]] = {"folder": 1, "settings": 2, "store": FOLDER_VERSION}
"""The versions that this package writes."""

UNNOTED: Final[Mapping[str, int]] = {"folder": 1, "settings": 2, "store": 5}
"""The versions in a folder without `format.json`, which older packages made."""

_WRITER_WAIT_S: Final = 10.0
"""Longest wait of a migration for a command that is writing."""


class Migration(NamedTuple):
    """One step to a version of a part.

    files: the files that it changes, relative to the folder. make: called with the folder of the
           copies and the folder itself, makes the new files; also again after a crash.
    """

    part: str
    version: int
    files: tuple[str, ...]
    make: Callable[[Path, Path], None]


MIGRATIONS: Final[tuple[Migration, ...]] = ()
"""All steps, by version. A store of version 5 needs none: its next writer raises it to 6."""


def check_format(folder: Path, parts: Mapping[str, int] = PARTS) -> dict[str, int]:
    """Return the versions of a folder's parts.

    Raises: StoreVersion: one is newer than this package. Corruption: `format.json` is malformed.
    """
    path = folder / FORMAT_FILE
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(FORMAT_BYTES_MAX))
        package = str(document["package"])
        found = {str(part): int(version) for part, version in document["parts"].items()}
    except FileNotFoundError:
        # A new folder has our versions; older packages made folders without this file.
        is_new = not (folder / "store").exists()
        return dict(parts) if is_new else {part: UNNOTED.get(part, 0) for part in parts}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corruption(f"{path} is not a record of versions: {error}") from error
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
    """Bring the parts of a folder to our versions, and record these; return the steps taken.

    Raises: as `check_format`. StoreLocked: a command wrote all the time. StoreFull, StoreFailed.
    """
    if check_format(folder, parts) == parts and (folder / FORMAT_FILE).exists():
        return []
    # Several processes may begin to use a folder at the same time: the first one records.
    path = Folder(folder).edit_lock_path
    turn = take_turn(str(path), _WRITER_WAIT_S, "process that records versions")
    try:
        return _raise_parts(folder, parts, migrations)
    finally:
        turn.release()


def _raise_parts(
    folder: Path, parts: Mapping[str, int], migrations: Sequence[Migration]
) -> list[Migration]:
    """Do the work of `guard_folder`; other processes wait."""
    found = check_format(folder, parts)
    steps = [one for one in migrations if found.get(one.part, 0) < one.version]
    if steps:
        # A command that is writing finishes first, because it writes the old form.
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
                # Recorded after each step: "a crash in between loses nothing, and the next start
                # goes on" (docs/node.md).
                found[step.part] = step.version
                _note(folder, found)
        finally:
            if turn is not None:
                turn.release()
    if found != parts or not (folder / FORMAT_FILE).exists():
        _note(folder, parts)
    return steps


def _make(folder: Path, step: Migration) -> None:
    """Copy the files that a step changes, unless there are copies, and take the step."""
    copies = folder / f"before-{step.part}-{step.version}"
    # Only complete copies get this name, by the rename below.
    if not copies.exists():
        disk, fresh = RealDisk(), copies.with_suffix(".new")
        shutil.rmtree(fresh, ignore_errors=True)
        disk.create_folder(str(fresh))
        for name in step.files:
            if (folder / name).exists():
                (fresh / name).parent.mkdir(parents=True, exist_ok=True)
                replace_file(disk, str(fresh / name), [(folder / name).read_bytes()])
        # After `replace_file`, which makes each copy durable.
        fresh.rename(copies)
        disk.sync_folder(str(folder))
    step.make(copies, folder)


def _note(folder: Path, parts: Mapping[str, int]) -> None:
    text = json.dumps({"package": VERSION, "parts": dict(parts)}) + "\n"
    replace_file(RealDisk(), str(folder / FORMAT_FILE), [text.encode()])
