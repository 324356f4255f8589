"""Runner: runs vector files and folders, with one report a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datalattice.conformance.checks import Fields, Mismatch
from datalattice.conformance.registry import Case, Skipped, find_format, find_runner


@dataclass(frozen=True, slots=True)
class Failure:
    """A vector that does not hold here, or a file that could not be run (then `id` is empty)."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class FileReport:
    """Results of one file."""

    path: Path
    passed: int
    skipped: int
    failures: tuple[Failure, ...]

    @property
    def failed(self) -> int:
        """Return the number of failures."""
        return len(self.failures)


def run_paths(paths: Iterable[str | Path]) -> Iterator[FileReport]:
    """Run the vectors of the files at `paths`, and of the `*.json` files in and below folders.

    A file that cannot be read, or holds no vector, is a failure in its report.
    """
    for file in list_files(paths):
        yield run_file(file)


def list_files(paths: Iterable[str | Path]) -> list[Path]:
    """Return the files of `paths`, and of their folders; an empty folder is returned itself."""
    files: list[Path] = []
    for given in paths:
        path = Path(given)
        # Sorted, so that reports of two runs can be compared.
        files += (sorted(path.rglob("*.json")) if path.is_dir() else []) or [path]
    return files


def run_file(path: Path) -> FileReport:
    """Run every vector of one file."""
    if path.is_dir():
        return _broken(path, "no .json file in this folder")
    try:
        document = _read(path)
        format = find_format(document)
        cases = list(format.cases(document))
    except Mismatch as mismatch:
        return _broken(path, str(mismatch))
    # An empty file would otherwise pass.
    if not cases:
        return _broken(path, "the file holds no vectors")
    passed = skipped = 0
    failures: list[Failure] = []
    raised = map(_run, cases) if format.together is None else format.together(cases)
    for case, error in zip(cases, raised, strict=True):
        if error is None:
            passed += 1
        # Skipped: this machine lacks what the vector needs; every other exception is a failure.
        elif isinstance(error, Skipped):
            skipped += 1
        elif isinstance(error, Mismatch):
            failures.append(Failure(case.id, str(error)))
        else:
            failures.append(Failure(case.id, f"{type(error).__name__}: {error}"))
    if not passed and not failures:  # "what is not run proves nothing"
        failures.append(Failure("", "every vector was skipped"))
    return FileReport(path, passed, skipped, tuple(failures))


def _run(case: Case) -> Exception | None:
    """Run one case; return what it raised."""
    try:
        runner = find_runner(case.kind)
        # Checked against its file first, so that a changed vector is reported as changed.
        if case.inspect is not None:
            case.inspect()
        runner(case.fields)
    except Exception as error:  # noqa: BLE001 - whatever a vector provokes is that vector's failure
        return error
    return None


def listed_vectors(document: Fields) -> Iterator[tuple[str, Fields]]:
    """Yield (name, fields) of each member of a document's `vectors` array.

    Raises: Mismatch: there is no such array, or a member is not an object.
    """
    vectors = document.get("vectors")
    if not isinstance(vectors, list):
        raise Mismatch("the file holds no array 'vectors'")
    for position, fields in enumerate(vectors):
        if not isinstance(fields, Fields):
            raise Mismatch(f"vector {position} is not an object")
        name = fields.get("id")
        yield (name if isinstance(name, str) else f"#{position}"), fields


def _broken(path: Path, reason: str) -> FileReport:
    return FileReport(path, 0, 0, (Failure("", reason),))


def _read(path: Path) -> Fields:
    try:
        # Bytes: JSON files are UTF-8 whatever the locale of the machine.
        document = json.loads(path.read_bytes(), object_pairs_hook=_members)
    except OSError as error:
        raise Mismatch(f"cannot read the file: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise Mismatch(f"not valid JSON: {error}") from None
    if not isinstance(document, Fields):
        raise Mismatch("the file does not hold a JSON object")
    return document


def _members(pairs: list[tuple[str, Any]]) -> Fields:
    members = Fields(pairs)  # which silently keeps the last of two equal names
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Mismatch(f"an object holds the member {twice!r} twice")
    return members
