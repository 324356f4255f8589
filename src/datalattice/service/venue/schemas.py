"""Schemas: checks the input of a strict operation against its JSON Schema before a job is made.

The schema comes with the asset, from any caller: it is measured before it is used, references to
other documents are refused, and patterns are matched in linear time.

Source: COG-7 "Operations"; docs/design/venue.md "Input schemas".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn, Protocol

from datalattice.errors import LimitExceeded, UnsupportedOperation, UsageError
from datalattice.service.venue.adapter import Json

_log = logging.getLogger(__name__)

SCHEMA_BYTES_MAX: Final = 64 * 1024
"""Longest schema, in characters of JSON text."""

SCHEMA_DEPTH_MAX: Final = 64
"""Deepest nesting of a schema, with its `$ref`s replaced by what they name."""

SCHEMA_SIZE_MAX: Final = 10_000
"""Most values in a schema, with its `$ref`s replaced by what they name."""

CHECK_WORK_MAX: Final = 5_000_000
"""Greatest product of the sizes of schema and input: about a second of work."""

CHARS_A_VALUE: Final = 16
"""Number of characters of a text that count as one value."""

TEXT_CHARS_MAX: Final = 300
"""Longest text of the library in an error, in characters."""

COMPILED_MAX: Final = 256
"""Most compiled schemas that are kept."""

_PATTERN_BYTES: Final = 1 << 20  # of the automaton of one pattern
_INSTALL = 'to check its input by a schema, run: pip install "datalattice[venue]"'
# The meaning of these depends on the path of the evaluation, so their work cannot be measured.
_REFUSED: Final = ("$dynamicRef", "$recursiveRef")


class _Validator(Protocol):
    def iter_errors(self, instance: Any) -> Iterable[Any]: ...


class InputSchemas:
    """The compiled schemas of a catalogue's operations. It belongs to one thread."""

    def __init__(self) -> None:
        self._ready: Final[dict[bytes, tuple[_Validator, int]]] = {}
        self._warned: Final[dict[bytes, None]] = {}

    def check(self, asset: bytes, operation: Mapping[str, Json], input: Json) -> None:
        """Check an input; if the operation is not strict, log a refusal instead of raising it.

        operation: the member `operation` of the asset's metadata.
        Raises: UsageError: the input, with the path and what is accepted there, or the schema.
                LimitExceeded: schema or input are too large. UnsupportedOperation: the library of
                schemas is not installed.
        """
        schema = operation.get("input")
        if schema is None:
            return
        if operation.get("strict") is True:
            self._check(asset, schema, input)
            return
        # "Always when a schema is given and `strict` is true; else only warn": once an operation.
        if asset not in self._warned:
            try:
                self._check(asset, schema, input)
            except UnsupportedOperation:
                return  # without the library, only strict operations are refused
            except (LimitExceeded, UsageError) as error:
                _log.warning("operation %s, which is not strict: %s", asset.hex(), error)
                _keep(self._warned, asset, None)

    def _check(self, asset: bytes, schema: Json, input: Json) -> None:
        if asset not in self._ready:
            _keep(self._ready, asset, _compiled(schema))
        validator, size = self._ready[asset]
        if _size(input, CHECK_WORK_MAX // size) * size > CHECK_WORK_MAX:
            raise LimitExceeded(
                f"input: too large to be checked: the {size} values of the schema times those of "
                f"the input may be at most {CHECK_WORK_MAX}"
            )
        try:
            error = next(iter(validator.iter_errors(input)), None)
        except ValueError as deep:  # "Recursion limit reached"
            raise UsageError(f"input: the schema cannot check it: {deep}") from deep
        if error is not None:
            raise UsageError(
                f"{_path_text(error.instance_path)}: {error.message:.{TEXT_CHARS_MAX}}"
            )


def _keep(kept: dict[bytes, Any], asset: bytes, value: object) -> None:
    # The oldest goes: a dict keeps the order of insertion.
    if len(kept) >= COMPILED_MAX:
        del kept[next(iter(kept))]
    kept[asset] = value


def _compiled(schema: Json) -> tuple[_Validator, int]:
    """Return the validator of a schema, and the schema's size."""
    try:
        import jsonschema_rs  # noqa: PLC0415 - of an extra
    except ImportError:
        raise UnsupportedOperation(_INSTALL) from None

    def refuse(uri: str) -> NoReturn:
        raise ValueError(f"{uri} is outside of the schema, and nothing is fetched")

    size = _expanded_size(schema)  # first: a schema is measured before it is used
    if not isinstance(schema, bool | dict):
        raise UsageError(_unusable("a schema is an object or a boolean"))
    patterns = jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES, dfa_size_limit=_PATTERN_BYTES)
    try:
        made: _Validator = jsonschema_rs.validator_for(
            schema,
            # Errors say what is accepted without the given value, which may be a secret.
            mask="the value",
            pattern_options=patterns,
            retriever=refuse,
            validate_formats=False,
        )
    except (jsonschema_rs.ValidationError, ValueError) as error:
        raise UsageError(_unusable(str(error).partition("\n")[0][:TEXT_CHARS_MAX])) from error
    return made, size


def _expanded_size(schema: Json) -> int:
    """Return the number of values of a schema, with its `$ref`s replaced by what they name.

    It is an upper bound for the steps of checking one value of an input.
    Raises: UsageError: a part is not accepted, or a `$ref` is to itself or outside. LimitExceeded.
    """
    text = json.dumps(schema)
    if len(text) > SCHEMA_BYTES_MAX:
        raise LimitExceeded(
            _unusable(f"it has at most {SCHEMA_BYTES_MAX} characters of JSON, got {len(text)}")
        )
    size = 0
    waiting: list[tuple[Json, int, frozenset[str]]] = [(schema, 1, frozenset())]
    while waiting:
        value, depth, inside = waiting.pop()
        size += 1
        if size > SCHEMA_SIZE_MAX:
            raise LimitExceeded(_unusable(f"it has more than {SCHEMA_SIZE_MAX} values"))
        if depth > SCHEMA_DEPTH_MAX:
            raise LimitExceeded(_unusable(f"it nests deeper than {SCHEMA_DEPTH_MAX}"))
        if isinstance(value, dict):
            for name, part in value.items():
                if name in _REFUSED or (name == "$id" and depth > 1):
                    raise UsageError(_unusable(f"{name!r} is not supported here"))
                if name == "$ref" and isinstance(part, str):
                    # "Not around in a circle; nothing is fetched" (docs/design/venue.md).
                    if part in inside:
                        raise UsageError(_unusable(f"{part!r:.80} refers to itself"))
                    waiting.append((_named(schema, part), depth + 1, inside | {part}))
                else:
                    waiting.append((part, depth + 1, inside))
        elif isinstance(value, list):
            waiting += [(part, depth + 1, inside) for part in value]
    return size


def _named(schema: Json, reference: str) -> Json:
    """Return the part of a schema that a reference names."""
    if reference != "#" and not reference.startswith("#/"):
        raise UsageError(
            _unusable(
                f"`$ref` names a part of the schema, such as '#/$defs/...', got {reference!r:.80}"
            )
        )
    found = schema
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif (
            isinstance(found, list) and name.isascii() and name.isdigit() and int(name) < len(found)
        ):
            found = found[int(name)]
        else:
            raise UsageError(_unusable(f"it has no part {reference!r:.80}"))
    return found


def _size(value: Json, most: int) -> int:
    """Return the size of an input, or any number above `most` if it is larger than that."""
    size = 0
    waiting = [value]
    while waiting and size <= most:
        part = waiting.pop()
        size += 1
        if isinstance(part, str):
            # "16 characters count as one value more" (docs/design/venue.md).
            size += len(part) // CHARS_A_VALUE
        elif isinstance(part, dict):
            size += sum(1 + len(name) // CHARS_A_VALUE for name in part)
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return size


def _path_text(steps: Iterable[str | int]) -> str:
    """Return a path as text: `input.rows[3].name`."""
    parts = (f"[{step}]" if isinstance(step, int) else f".{step:.80}" for step in steps)
    return "input" + "".join(parts)


def _unusable(why: str) -> str:
    return f"operation: its input schema cannot be used: {why}"
