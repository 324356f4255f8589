"""Paths: names separated by `/`, in normal form.

A leading slash makes a path absolute; a trailing slash means `/.`. `.` and `..` are resolved; `..`
above the root of an absolute path is dropped. An empty path and an empty name in the middle are
errors.

Source: CAD028 "Paths"; docs/dlfs.md "Names and paths".
"""

from __future__ import annotations

import os
from typing import Final

from datalattice.apps.dlfs.node import DEPTH_MAX
from datalattice.errors import UsageError

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
        return SEPARATOR + SEPARATOR.join(name for name in names if name != ABOVE)
    return SEPARATOR.join(names) or HERE


def split_path(path: PathLike) -> tuple[str, ...]:
    """Return the names from the root of a drive to `path`; a relative path starts at the root.

    Raises: UsageError: the path is empty, has an empty name in the middle, or is deeper than 100
            names.
    """
    text = _text(path)
    names = tuple([name for name in _names(text) if name != ABOVE])
    if len(names) > DEPTH_MAX:
        raise UsageError(f"the path has {len(names)} names, {DEPTH_MAX} at most")
    return names


def join_path(names: tuple[str, ...]) -> str:
    """Return the absolute path of `names`."""
    return SEPARATOR + SEPARATOR.join(names)


def _text(path: PathLike) -> str:
    text = os.fspath(path)
    if not isinstance(text, str):
        raise UsageError(f"the path is not a str: {type(text).__name__}")
    if not text:
        raise UsageError("the path is empty; the root is /")
    return text


def _names(text: str) -> list[str]:
    """Return the names of a path; `..` remains only at its start."""
    inner = text.strip(SEPARATOR)
    found: list[str] = []
    for name in inner.split(SEPARATOR) if inner else []:
        if not name:
            raise UsageError(f"a name in the middle of {text!r} is empty")
        if name == ABOVE and found and found[-1] != ABOVE:
            found.pop()
        elif name == ABOVE and text.startswith(SEPARATOR):
            continue
        elif name != HERE:
            found.append(name)
    return found
