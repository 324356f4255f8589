"""Inputs: names of operations, and checks of the members of an input."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from datalattice.errors import UsageError
from datalattice.service.venue import Json, OperationMetadata

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")


def check_offer_name(kind: str, name: str) -> None:
    """Check the name of a function or job, the end of its operation's path. Raises: UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"the name of a {kind} is a lower-case letter and up to 63 of a-z 0-9 _ -, got {name!r}"
        )


def sub_operation(meta: OperationMetadata, known: Collection[str]) -> str:
    """Return the part after ":" in `operation.adapter`, such as "merge" of "json:merge".

    Raises: UsageError: it is not one of `known`.
    """
    operation = meta.get("operation")
    text = operation.get("adapter") if isinstance(operation, Mapping) else None
    adapter, _, found = text.partition(":") if isinstance(text, str) else ("", "", "")
    if found not in known:
        raise UsageError(f"`operation.adapter` is {_choice(adapter, known)}, got {text!r}")
    return found


def _choice(adapter: str, known: Iterable[str]) -> str:
    return " or ".join(f"{adapter}:{name}" for name in known)


def members(given: Json, known: Collection[str]) -> dict[str, Json]:
    """Return an input as an object without unknown members.

    Raises: UsageError: it is not an object, or has a member that is not `known`.
    """
    if not isinstance(given, dict):
        raise UsageError(f"the input is an object with {', '.join(known) or 'no members'}")
    for name in given:
        # Refused: a misspelt member would have no effect, without an error.
        if name not in known:
            raise UsageError(
                f"the input has an unknown member {name!r:.80}; known: {', '.join(known) or 'none'}"
            )
    return given


def text_member(given: Mapping[str, Json], name: str, default: str | None = None) -> str:
    """Return a member that is a text; `default` if it is absent or null.

    Raises: UsageError: it is not a text, or absent without a default.
    """
    value = given.get(name)
    value = default if value is None else value
    if not isinstance(value, str):
        raise UsageError(f"`{name}` is a text, got {value!r}"[:200])
    return value
