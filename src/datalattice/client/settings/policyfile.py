"""Policy file: reads the table `[hosting]` of a node's settings, with its sizes and owners."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from datalattice.errors import UsageError
from datalattice.sync import HostingPolicy, UnsignedPolicy

SIZE_BYTES_MAX: Final = 1 << 60  # an exbibyte: sums of a few still fit in 64 bits

_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(B|kB|KB|MB|GB|TB)?")
_UNITS: Final = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_KEY: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{64})")
_DID: Final = re.compile(r"did:[a-z0-9]+:\S+")
_FROM: Final = "from"  # `from` is a keyword of Python


def parse_size(text: object, what: str = "a size") -> int:
    """Return the number of bytes of a size such as 512, "64 MB" or "1.5 GB".

    what: names the size in the text of the error.
    Raises: UsageError: `text` has another form, or is more than `SIZE_BYTES_MAX`.
    """
    if type(text) is int and 0 <= text <= SIZE_BYTES_MAX:
        return text
    found = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is not None:
        size = int(float(found[1]) * _UNITS[found[2] or "B"])
        if size <= SIZE_BYTES_MAX:  # "9999999 TB" is a mistake
            return size
    raise UsageError(f'{what} is a number of bytes, or a text such as "64 MB", got {text!r}')


def parse_owner(text: str) -> str:
    """Return an owner in the form for comparisons: a key in lower-case hex, a DID unchanged.

    Raises: UsageError: `text` is neither, such as the beginning of a key.
    """
    found = _KEY.fullmatch(text)
    if found is not None:
        return found[1].lower()  # keys are compared as text, so each needs one spelling
    if _DID.fullmatch(text) is None:
        raise UsageError(f"an owner is a public key of 64 hex digits or a DID, got {text!r}")
    return text


def read_policy(table: object, source: str) -> HostingPolicy:
    """Return the policy in the table `[hosting]` of a file of settings.

    Raises: UsageError: a setting is unknown, of the wrong type, or out of range.
    """
    if not isinstance(table, dict):
        raise UsageError(f'{source}: hosting is a table: `[hosting]`, then `owners = "known"`')
    try:
        chosen = {name: _setting(name, value) for name, value in table.items()}
        return HostingPolicy(**chosen)
    except UsageError as error:
        text = str(error).removeprefix("hosting: ")
        raise UsageError(f"{source}: [hosting]: {text}") from error


def _setting(name: str, value: object) -> Any:
    if name == "unsigned":
        if not isinstance(value, dict):
            raise UsageError('unsigned is a table: `unsigned.data = { from = "known" }`')
        return {section: _unsigned(section, one) for section, one in value.items()}
    if name in ("sections", "allow", "refuse"):
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise UsageError(f"{name} is a list of texts, got {value!r}")
        if name == "sections":
            # Sections may be written with or without the colon.
            return tuple(one.removeprefix(":") for one in value)
        return tuple(parse_owner(one) for one in value)
    if name == "owners":
        return str(value)
    if name == "owner_cells":
        if type(value) is not int:  # `isinstance` accepts True as a number
            raise UsageError(f"owner_cells is a number, got {value!r}")
        return value
    if name in ("owner_bytes", "strangers_bytes", "reserve_bytes"):
        return parse_size(value, name)
    raise _unknown(name, [one.name for one in dataclasses.fields(HostingPolicy)])


def _unsigned(section: str, table: object) -> UnsignedPolicy:
    if not isinstance(table, dict):
        raise UsageError(f'unsigned.{section} is a table such as {{ from = "known" }}')
    known = {_FROM, "strangers_bytes"}
    for name in table:
        if name not in known:
            raise _unknown(f"unsigned.{section}.{name}", sorted(known))
    default = UnsignedPolicy()
    size = table.get("strangers_bytes", default.strangers_bytes)
    return UnsignedPolicy(
        str(table.get(_FROM, default.sender)), parse_size(size, "strangers_bytes")
    )


def unknown_setting(what: str, name: str, known: Iterable[str]) -> UsageError:
    """Return the error for an unknown setting, with a similar name or all known ones."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 1, 0.5)  # 0.5: similar enough for a misspelling
    rest = f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
    return UsageError(f"{what}; {rest}")


def _unknown(name: str, known: list[str]) -> UsageError:
    return unknown_setting(f"there is no setting {name!r}", name.rpartition(".")[2], known)


def policy_document(policy: HostingPolicy) -> dict[str, object]:
    """Return a policy as JSON values, in the form of the settings file."""
    unsigned: Mapping[str, UnsignedPolicy] = policy.unsigned
    return {
        "sections": None if policy.sections is None else list(policy.sections),
        "owners": policy.owners,
        "allow": list(policy.allow),
        "refuse": list(policy.refuse),
        "owner_bytes": policy.owner_bytes,
        "owner_cells": policy.owner_cells,
        "strangers_bytes": policy.strangers_bytes,
        "reserve_bytes": policy.reserve_bytes,
        "unsigned": {
            name: {_FROM: one.sender, "strangers_bytes": one.strangers_bytes}
            for name, one in unsigned.items()
        },
    }
