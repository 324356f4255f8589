"""Properties: named texts that users give to files and directories, in the node's metadata.

The metadata is a Map; its entry `:properties` is a Map of names to texts. Other entries belong to
other programs and stay as they are.

Source: docs/dlfs.md "Properties".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from datalattice.cells import Keyword, Map, Text, Value
from datalattice.errors import LimitExceeded, UsageError

PROPERTIES_KEY: Final = Keyword("properties")

PROPERTIES_MAX: Final = 128
"""Most properties of one file or directory."""

PROPERTIES_BYTES_MAX: Final = 65_536
"""Most bytes of UTF-8 in all names and texts of one file or directory."""


def properties_of(metadata: Value) -> dict[str, str]:
    """Return the properties in a node's metadata, in the order of the Map.

    Another program may have stored any value: entries that are not texts, and those beyond the
    limits, are left out.
    """
    held = metadata.get(PROPERTIES_KEY) if isinstance(metadata, Map) else None
    found: dict[str, str] = {}
    size = 0
    for name, value in held.entries() if isinstance(held, Map) else ():
        if not isinstance(name, str | Text) or not isinstance(value, str | Text):
            continue
        # Measured before they are read: a few cells can encode a text of any size.
        size += sum(
            one.byte_length() if isinstance(one, Text) else len(one) for one in (name, value)
        )
        if size > PROPERTIES_BYTES_MAX or len(found) == PROPERTIES_MAX:
            break
        found[str(name)] = str(value)
    return found


def with_properties(metadata: Value, changes: Mapping[str, str | None]) -> Value:
    """Return the metadata with properties set, or removed where the text is None.

    Raises: UsageError: a name is empty, or the metadata is not a Map. LimitExceeded: more than
            `PROPERTIES_MAX` properties, or more than `PROPERTIES_BYTES_MAX` bytes of them.
    """
    held = Map.of({}) if metadata is None else metadata
    if not isinstance(held, Map):
        raise UsageError(f"the metadata is of type {type(held).__name__}; properties need a Map")
    found = properties_of(held)
    for name, value in changes.items():
        if not name:
            raise UsageError("the name of a property is empty")
        if value is None:
            found.pop(name, None)
        else:
            found[name] = value
    # Bytes of a stored text that are not UTF-8 read as surrogates.
    size = sum(len(one.encode("utf-8", "surrogatepass")) for pair in found.items() for one in pair)
    if len(found) > PROPERTIES_MAX or size > PROPERTIES_BYTES_MAX:
        raise LimitExceeded(
            f"a file has at most {PROPERTIES_MAX} properties of {PROPERTIES_BYTES_MAX} bytes in "
            f"all, got {len(found)} of {size}"
        )
    if found:
        return held.put(PROPERTIES_KEY, Map.of(found))
    left = held.remove(PROPERTIES_KEY)
    return left or None
