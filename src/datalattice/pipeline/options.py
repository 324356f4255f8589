"""Options of Spark formats: how a format declares them, and the parsers that formats share.

Spark passes options as strings with case-insensitive names. Every error names the option, its value
and the accepted values.

Source: docs/spark.md "Where to read", "Options".
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from inspect import cleandoc
from typing import Any, Final, Self, TypeVar, cast

from datalattice.errors import UsageError
from datalattice.limits import COUNT_MAX, HASH_BYTES

_T = TypeVar("_T")
_K = TypeVar("_K")


def bad_option(name: str, value: object, accepted: str) -> UsageError:
    """Return the error for an option whose value is not accepted."""
    return UsageError(f"option {name}={value!r} is not accepted: {accepted}")


class Refused(Exception):
    """A parser does not accept a value; the text says what it accepts."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option as its format declares it, in the record that holds its value."""

    name: str
    parse: Callable[[str], object]
    default: object
    exact: bool
    """Whether blanks around the value belong to it."""


def option(name: str, parse: Callable[[str], _T], default: _T, *, exact: bool = False) -> _T:
    """Declare the option of a record's field.

    The record's docstring describes the option in a row of a table: option, meaning, default. From
    the record `Given.of` takes the accepted names, `parse_option_record` the parsers, and
    `documents` and `option_rows` the documentation.
    """
    # `dataclass` makes a field of it. For the type checker it has the type of the default.
    made: Any = field(default=default, metadata={_DECLARED: Option(name, parse, default, exact)})
    return cast("_T", made)


_DECLARED: Final = "option"


def declared(*records: type) -> dict[str, Option]:
    """Return the options that records declare, by the names of their fields."""
    found = [field for record in records for field in fields(record)]
    return {one.name: one.metadata[_DECLARED] for one in found if _DECLARED in one.metadata}


def option_rows(*records: type) -> list[str]:
    """Return the options of records as rows of one table in Markdown, header included."""
    rows: list[str] = []
    for record in records:
        table = cleandoc(record.__doc__ or "").partition("| option |")[1:]
        lines = "".join(table).partition("\n\n")[0].replace("\n  ", " ").split("\n")
        rows += lines if not rows else lines[2:]
    return rows


def documents(*records: type) -> Callable[[type[_K]], type[_K]]:
    """Return the decorator that adds the options of records to a class's docstring."""

    def add(kind: type[_K]) -> type[_K]:
        kind.__doc__ = "\n".join([cleandoc(kind.__doc__ or ""), "", *option_rows(*records), ""])
        return kind

    return add


class Given:
    """The given options, by lower-case name.

    Raises: UsageError: an option is not among `accepted`.
    """

    def __init__(self, given: Mapping[str, str], accepted: Sequence[str]) -> None:
        names = {name.lower(): name for name in accepted}
        for name in given:
            if name.lower() not in names:
                # "An unknown option or a malformed value is an error that names what is accepted"
                # (docs/spark.md): Spark itself ignores what it does not know.
                near = difflib.get_close_matches(name.lower(), names, n=1)
                hint = f" (did you mean {names[near[0]]}?)" if near else ""
                raise UsageError(
                    f"unknown option {name}={given[name]!r}{hint}; "
                    f"accepted are: {', '.join(accepted)}"
                )
        self._values = {name.lower(): str(value) for name, value in given.items()}

    @classmethod
    def of(cls, given: Mapping[str, str], *records: type, also: Sequence[str] = ()) -> Self:
        """Return the given options of records.

        Spark passes the argument of `load` and `save` as the option `path`.
        also: options that Spark itself adds.
        """
        names = [one.name for one in declared(*records).values()]
        return cls(given, [*names, "path", *also])

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def get(self, name: str, parse: Callable[[str], _T], default: _T, *, exact: bool = False) -> _T:
        """Return the parsed value of an option, or `default` if it is absent.

        exact: keep blanks around the value.
        Raises: UsageError: `parse` does not accept the value.
        """
        text = self._values.get(name.lower())
        # An empty text is not an absent option; most parsers refuse it.
        if text is None:
            return default
        try:
            # Blanks around a value usually come from configuration files. Only a prefix keeps them.
            return parse(text if exact else text.strip())
        except Refused as refused:
            raise bad_option(name, text, str(refused)) from None


def parse_option_record(kind: type[_K], options: Given, **more: object) -> _K:
    """Return a record with its options parsed; `more` are its other fields.

    Raises: UsageError: a value is not accepted.
    """
    values = {
        name: options.get(one.name, one.parse, one.default, exact=one.exact)
        for name, one in declared(kind).items()
    }
    return kind(**values, **more)


def folder_option(options: Given) -> str:
    """Return the folder of the option `store`, or of Spark's `path`; empty if neither is given.

    Raises: UsageError: both are given and differ.
    """
    store = options.get("store", text_option, "")
    path = options.get("path", text_option, "")
    # Spark passes the argument of load() or save() as `path`; the user may give `store` as well.
    if store and path and store != path:
        accepted = f"load() or save() names another folder than store={store!r}; give one"
        raise bad_option("path", path, accepted)
    return store or path


def check_agreed(option: str, flag: bool | None, column: str, columns: Sequence[str]) -> None:
    """Check that an option which adds a column agrees with the columns that are named.

    Raises: UsageError: they disagree.
    """
    # Each may be given alone. If both are given, they must agree.
    if flag is not None and flag != (column in columns):
        accepted = f"columns={','.join(columns)!r} contradicts it; give one of them"
        raise bad_option(option, str(flag).lower(), accepted)


NAMED_MAX: Final = 20
"""Most names that an error text lists."""


def check_there(option: str, named: Sequence[str], there: Collection[str]) -> None:
    """Check that the names given with an option exist in the store.

    Raises: UsageError: a name does not exist; the text lists the existing ones.
    """
    # An empty result would hide a misspelt name.
    for name in named:
        if name not in there:
            known = sorted(there)
            listed = ", ".join(known[:NAMED_MAX]) or "none"
            more = f" and {len(known) - NAMED_MAX} more" if len(known) > NAMED_MAX else ""
            accepted = f"the store has no such {option}; it has: {listed}{more}"
            raise bad_option(option, name, accepted)


def text_option(text: str) -> str:
    """Parse a non-empty text."""
    if not text:
        raise Refused("a text of at least one character")
    return text


def names_option(text: str) -> tuple[str, ...]:
    """Parse names separated by commas; names that contain commas come as a JSON array."""
    accepted = "names separated by commas, or a JSON array of names"
    # Names may contain commas; those come as a JSON array.
    if text.startswith("["):
        names = json_option(text, accepted)
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            raise Refused(accepted)
        found = tuple(names)
    else:
        found = tuple(name.strip() for name in text.split(","))
    if not found or not all(found):
        raise Refused(accepted)
    return found


def columns_option(columns: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return the parser of a list of distinct column names from `columns`."""

    def parse(text: str) -> tuple[str, ...]:
        # Spark's column names are case-insensitive.
        names = tuple(name.lower() for name in names_option(text))
        if not names or len(set(names)) != len(names) or not set(names) <= set(columns):
            raise Refused(f"one or more of {', '.join(columns)}, each once, separated by commas")
        return names

    return parse


def owner_name(text: str) -> str:
    """Return an owner as rows show it: a public key as 0x and lower-case hex, other names as is."""
    # Rows show owners as `0x` and lower-case hex, so that they can be compared as text.
    found = re.fullmatch(r"(?:0x)?([0-9a-f]{64})", text, re.IGNORECASE)
    return "0x" + found[1].lower() if found else text


def owners_option(text: str) -> tuple[str, ...]:
    """Parse the names of owners."""
    return tuple(map(owner_name, names_option(text)))


def hash_of(text: str) -> bytes | None:
    """Return the hash written in `text` as hex, with or without 0x; None if it is not a hash."""
    digits = text[2:] if text[:2].lower() == "0x" else text
    found = re.fullmatch(rf"[0-9a-fA-F]{{{2 * HASH_BYTES}}}", digits)
    return bytes.fromhex(digits) if found else None


def checked_option(check: Callable[[str], _T], accepted: str = "") -> Callable[[str], _T]:
    """Return the parser that accepts what `check` accepts, and refuses with its error's text."""

    def parse(text: str) -> _T:
        try:
            return check(text)
        except UsageError as error:
            raise Refused(f"{accepted}: {error}" if accepted else str(error)) from None

    return parse


def flag_option(text: str) -> bool:
    """Parse true or false."""
    if text.lower() not in {"true", "false"}:
        raise Refused("true or false")
    return text.lower() == "true"


def count_option(accepted: str, least: int = 0, most: int = COUNT_MAX) -> Callable[[str], int]:
    """Return the parser of an integer from `least` to `most`; `accepted` describes it in errors."""

    def parse(text: str) -> int:
        # Only ASCII digits: int() also takes the digits of other scripts, signs and underscores.
        if not re.fullmatch(r"[0-9]{1,19}", text) or not least <= int(text) <= most:
            raise Refused(accepted)
        return int(text)

    return parse


def positive_option(most: int = COUNT_MAX) -> Callable[[str], int]:
    """Return the parser of an integer from 1 to `most`, by default Java's greatest long."""
    return count_option(f"a whole number from 1 to {most}", 1, most)


MIN_PARTITIONS_MAX: Final = 262_144
"""Largest `minPartitions`. The driver holds an object for each task and starts each of them, so
more tasks would only make a job slower."""

min_partitions_option: Final = positive_option(MIN_PARTITIONS_MAX)
"""Parses `minPartitions`."""


_Choice = TypeVar("_Choice", bound=Enum)


def choice_option(kind: type[_Choice]) -> Callable[[str], _Choice]:
    """Return the parser of an enumeration's values, case-insensitive."""

    def parse(text: str) -> _Choice:
        for member in kind:
            if member.value == text.lower():
                return member
        raise Refused("one of " + ", ".join(str(member.value) for member in kind))

    return parse


def json_option(text: str, accepted: str) -> object:
    """Parse JSON; `accepted` describes the expected document in errors."""
    try:
        found: object = json.loads(text)
    # Python's parser recurses, so deeply nested JSON raises RecursionError; it is refused as well.
    except (ValueError, RecursionError):
        raise Refused(accepted) from None
    return found


_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def bytes_option(most: int) -> Callable[[str], int]:
    """Return the parser of a byte count from 1 to `most`, with Spark's suffixes k, m and g."""

    def parse(text: str) -> int:
        # As in Spark's own settings: 65536, 64k, 16m, 16mb.
        number = text.lower().removesuffix("b").rstrip("kmg")
        unit = text.lower().removesuffix("b")[len(number) :]
        if not (number.isascii() and number.isdigit()) or len(number) > _DIGITS_MAX:
            raise Refused(accepted)
        if unit not in _UNITS or not 1 <= int(number) * _UNITS[unit] <= most:
            raise Refused(accepted)
        return int(number) * _UNITS[unit]

    accepted = f"a number of bytes from 1 to {most}, such as 65536, 64k or 16m"
    return parse


_DIGITS_MAX: Final = 19
