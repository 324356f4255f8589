"""Formats: the types of fields that protobuf and JSON lack, and their form in both."""

from __future__ import annotations

import io
import json
import math
from typing import Any, Final

from datalattice.cells import Value, decode_message, encode_message, marked_text, read_json, to_cell
from datalattice.errors import BadFormat, DataLatticeError, UsageError

KEY_BYTES: Final = 32
_STORE_ID_BYTES: Final = 16

_EXACT_MAX: Final = 2**53 - 1  # "integers up to 2^53 - 1 are numbers" (docs/json.md)


class CellFormat:
    """Any value: its complete encoding in protobuf, marked JSON in a document."""

    schema: Final[dict[str, Any]] = {"description": "a value as marked JSON"}

    def encode(self, value: Any) -> bytes:
        """Return the value's encoding with all cells below it."""
        return encode_message(to_cell(value))

    def decode(self, data: bytes) -> Value:
        """Return the value of a complete encoding. Raises: BadFormat."""
        return decode_message(data)

    def document(self, value: Value) -> Any:
        """Return the value as marked JSON."""
        value = to_cell(value)
        # The common small values need no marks: they skip writing and parsing text.
        if value is None or type(value) is bool or (type(value) is str and value.isprintable()):
            return value
        if type(value) is int and abs(value) <= _EXACT_MAX:
            return value
        return json.loads(marked_text(value))

    def read(self, document: Any) -> Value:
        """Return the value of marked JSON. Raises: BadFormat, UsageError."""
        if document is None or type(document) in (bool, str):
            return document
        if type(document) is int and abs(document) <= _EXACT_MAX:
            return document
        # Python reads NaN and Infinity, which JSON lacks.
        if type(document) is float and not math.isfinite(document):
            raise UsageError(
                f'write {document} as marked JSON: "NaN", "Infinity" or "-Infinity" in '
                '{"$double": ...}'
            )
        return read_json(io.StringIO(json.dumps(document)))


class HexFormat:
    """Bytes, written as hex in documents: `size` of them, None for any number.

    what: the name of the bytes in errors and schemas.
    """

    def __init__(self, what: str, size: int | None = None) -> None:
        self._what: Final = what
        self._size: Final = size
        digits = "*" if size is None else f"{{{2 * size}}}"
        self.schema: Final[dict[str, Any]] = {
            "type": "string",
            "pattern": f"^[0-9a-fA-F]{digits}$",
            "description": what,
        }

    def _checked(self, data: bytes, error: type[DataLatticeError]) -> bytes:
        if self._size not in (None, len(data)):
            raise error(f"{self._what} has {self._size} bytes, got {len(data)}")
        return data

    def encode(self, value: Any) -> bytes:
        """Return the bytes. Raises: TypeError, UsageError: of another length."""
        # Through a memoryview, which refuses an int: `bytes(5)` is five zeros.
        return self._checked(bytes(memoryview(value)), UsageError)

    def decode(self, data: bytes) -> bytes:
        """Return the bytes. Raises: BadFormat: of another length."""
        return self._checked(data, BadFormat)

    def document(self, value: bytes) -> str:
        """Return the hex digits."""
        return value.hex()

    def read(self, document: Any) -> bytes:
        """Return the bytes of hex digits. Raises: UsageError."""
        try:
            data = bytes.fromhex(document)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{self._what} is written in hex, got {document!r:.80}") from error
        return self._checked(data, UsageError)


CELL_FORMAT: Final = CellFormat()
HASH_FORMAT: Final = HexFormat("a hash", KEY_BYTES)
KEY_FORMAT: Final = HexFormat("a public key", KEY_BYTES)
STORE_ID_FORMAT: Final = HexFormat("the id of a store", _STORE_ID_BYTES)
HEX_FORMAT: Final = HexFormat("bytes")
