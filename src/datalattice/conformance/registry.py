"""Registry: which file formats and which kinds of vectors this installation can run.

A `VectorFormat` recognises a file by its header and lists its cases; a runner checks one case.
Modules register their own at import:

    register_format(VectorFormat("cells", recognises, cases))
    register_kind("merge", run_merge)

An unknown kind is a failure, not a skip: a vector that is not run proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from datalattice.conformance.checks import Fields, Mismatch
from datalattice.errors import UsageError

Runner = Callable[[Fields], None]
"""Checks one vector; raises `Mismatch` (or anything else) when it does not hold."""


class Skipped(Exception):
    """A vector cannot be run on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One vector of a file: its name in reports, its kind and its fields.

    inspect: checks the vector within its file before it is run.
    """

    id: str
    kind: str
    fields: Fields
    inspect: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class VectorFormat:
    """A family of files: how to recognise one and how to list its cases.

    together: runs all cases of a file at the same time and returns what each raised; for cases that
              mostly wait.
    """

    name: str
    recognises: Callable[[Fields], bool]
    cases: Callable[[Fields], Iterable[Case]]
    together: Callable[[list[Case]], list[BaseException | None]] | None = None


_formats: list[VectorFormat] = []
_kinds: dict[str, Runner] = {}


def register_format(new: VectorFormat) -> None:
    """Add a family of files."""
    # Two formats of one name: one of them would never be asked.
    if any(known.name == new.name for known in _formats):
        raise UsageError(f"the format {new.name!r} is registered already")
    _formats.append(new)


def register_kind(kind: str, runner: Runner) -> None:
    """Add the runner of a kind of vector."""
    # A second runner would silently replace the first, and its vectors would prove less.
    if kind in _kinds:
        raise UsageError(f"the kind {kind!r} is registered already")
    _kinds[kind] = runner


_TITLED_FIELDS: Final = ("title", "rules", "set", "cases")


def register_titled(title: str, kind: str, run: Runner, *, comments: Iterable[str] = ()) -> None:
    """Add a format whose files have this title, and the runner of each of its cases.

    comments: further members of a file that only describe it.
    """
    known = {*_TITLED_FIELDS, *comments}

    def cases(document: Fields) -> Iterable[Case]:
        # A member that is not known may be a case under a wrong name, which would not be run.
        if not document.keys() <= known or not isinstance(document.get("cases"), list):
            raise Mismatch(f"a file {title!r} has {', '.join(sorted(known))}; cases is an array")
        for position, fields in enumerate(document["cases"]):
            yield Case(str(fields.get("name", f"#{position}")), kind, fields)

    register_kind(kind, run)
    register_format(VectorFormat(kind, lambda document: document.get("title") == title, cases))


def find_format(document: Fields) -> VectorFormat:
    """Return the format of a parsed file, or raise `Mismatch` naming what is known."""
    # By its header: names of files mean nothing.
    for known in _formats:
        if known.recognises(document):
            return known
    names = ", ".join(known.name for known in _formats)
    raise Mismatch(f"unknown file format; known: {names}")


def find_runner(kind: str) -> Runner:
    """Return the runner of `kind`, or raise `Mismatch` naming what is known."""
    runner = _kinds.get(kind)
    # "what is not run proves nothing" (docs/conformance.md "Rules of the runner"): an unknown kind
    # fails.
    if runner is None:
        raise Mismatch(f"unknown kind {kind!r}; known: {', '.join(sorted(_kinds))}")
    return runner


def known_kinds() -> tuple[str, ...]:
    """Return every registered kind, sorted."""
    return tuple(sorted(_kinds))
