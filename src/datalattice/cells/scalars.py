"""Scalars that Python lacks: keyword, symbol, character, address, extension, flag, other NaNs.

Each is a small immutable object that holds its encoding. Scalars are equal if their encodings are.
They are always embedded: no encoding is longer than 130 bytes.

Source: CAD003 "Double", "Byte flags", "Extension values", "VLQ counts"; docs/cells.md "Encoding
    table", "Values", "Counts"; CAD002 "Address", "Character", "Symbol", "Keyword".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import mypyc_attr

from datalattice.errors import TypeMismatch, UsageError
from datalattice.limits import COUNT_MAX, NAME_BYTES_MAX

TAG_SYMBOL: Final = 0x32
TAG_KEYWORD: Final = 0x33
TAG_CHAR: Final = 0x3C
TAG_FLAG: Final = 0xB0
TAG_EXTENSION: Final = 0xE0
CODE_POINT_MAX: Final = 0x10FFFF
ADDRESS_DIGIT: Final = 0xA
NAN_BITS: Final = 0x7FF8000000000000
NAMED_CHARS: Final = {10: "newline", 13: "return", 32: "space", 9: "tab"}


def encode_vlq(count: int) -> bytes:
    """Return the VLQ of `count`, 0 .. 2**63 - 1: big-endian base 128, shortest form."""
    if count < 0x80:
        return bytes((count,))
    out = [count & 0x7F]
    count >>= 7
    while count:
        out.append((count & 0x7F) | 0x80)
        count >>= 7
    # "The most significant digit first, with the high bit set on every byte but the last"
    # (docs/cells.md "Counts").
    out.reverse()
    return bytes(out)


def require_type(value: object, kind: type | tuple[type, ...], what: str) -> None:
    """Raise TypeMismatch unless `value` has a type; `what` states it, as in "a digit is an int"."""
    if not isinstance(value, kind):
        raise TypeMismatch(f"{what}, got {type(value).__name__}")


# acyclic: a scalar refers to no object that could lead back, so the cycle collector may skip it.
@mypyc_attr(allow_interpreted_subclasses=False, acyclic=True)
class Scalar:
    """Base of the scalar classes; holds the encoding."""

    __slots__ = ("_encoding",)

    def __init__(self, encoding: bytes) -> None:
        self._encoding = encoding

    @property
    def encoding(self) -> bytes:
        """The canonical encoding."""
        return self._encoding

    def key_bytes(self) -> bytes | None:
        """Return the bytes of this value as an index key, None if it cannot be one."""
        return None

    def text(self) -> str:
        """Return the printed form."""
        return "#[" + self._encoding.hex() + "]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scalar) and other._encoding == self._encoding

    def __ne__(self, other: object) -> bool:
        return not (isinstance(other, Scalar) and other._encoding == self._encoding)

    def __hash__(self) -> int:
        return hash(self._encoding)

    def __repr__(self) -> str:
        return repr_hook[0](self)

    def _repr_html_(self) -> str:
        return html_hook[0](self)


def _unset(_value: object) -> str:
    raise UsageError("the text of values is not loaded")


html_hook: Final[list[Callable[[object], str]]] = [_unset]
"""Renders a value in notebooks; set by a module that knows every type of cell."""

repr_hook: Final[list[Callable[[object], str]]] = [_unset]
"""Renders a value as a bounded text, likewise."""


def _name_encoding(tag: int, kind: str, name: object) -> bytes:
    if not isinstance(name, (str, bytes)):
        msg = f"a {kind} name is a string, got {type(name).__name__}"
        raise TypeMismatch(msg)
    try:
        # "Other bytes are read as surrogate escapes, and are written again unchanged"
        # (docs/cells.md "Python values").
        raw = name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        msg = f"a {kind} name is UTF-8 text: {error}"
        raise UsageError(msg) from error
    if not 1 <= len(raw) <= NAME_BYTES_MAX:
        msg = f"a {kind} name has 1 to {NAME_BYTES_MAX} bytes, got {len(raw)}"
        raise UsageError(msg)
    # [32 or 33][length, one plain byte][name]: "one plain byte of length (1 to 128)", not a VLQ.
    return bytes((tag, len(raw))) + raw


class Keyword(Scalar):
    """A name used as a key, printed `:name`. Shapes: name of 1 to 128 UTF-8 bytes."""

    __slots__ = ()

    def __init__(self, name: str | bytes) -> None:
        super().__init__(_name_encoding(TAG_KEYWORD, "keyword", name))

    @property
    def name(self) -> str:
        """The name without the colon."""
        return self._encoding[2:].decode("utf-8", "surrogateescape")

    def key_bytes(self) -> bytes | None:
        """Return the bytes of the name."""
        return self._encoding[2:]

    def text(self) -> str:
        """Return `:name`."""
        return ":" + self.name

    def __reduce__(self) -> tuple[type[Keyword], tuple[bytes]]:
        return Keyword, (self._encoding[2:],)


class Symbol(Scalar):
    """A name that stands for something else, printed bare. Shapes: name of 1 to 128 UTF-8 bytes."""

    __slots__ = ()

    def __init__(self, name: str | bytes) -> None:
        super().__init__(_name_encoding(TAG_SYMBOL, "symbol", name))

    @property
    def name(self) -> str:
        """The name."""
        return self._encoding[2:].decode("utf-8", "surrogateescape")

    def key_bytes(self) -> bytes | None:
        """Return the bytes of the name."""
        return self._encoding[2:]

    def text(self) -> str:
        """Return the name."""
        return self.name

    def __reduce__(self) -> tuple[type[Symbol], tuple[bytes]]:
        return Symbol, (self._encoding[2:],)


class Char(Scalar):
    """A Unicode code point, surrogates included: 0 .. 0x10ffff, or a string of one character."""

    __slots__ = ()

    def __init__(self, code: int | str) -> None:
        if isinstance(code, str):
            if len(code) != 1:
                msg = f"a character is a string of length 1, got length {len(code)}"
                raise UsageError(msg)
            code = ord(code)
        require_type(code, int, "a character is an int or a string of length 1")
        if not 0 <= code <= CODE_POINT_MAX:
            msg = f"a character has a code point 0 to {CODE_POINT_MAX}, got {code}"
            raise UsageError(msg)
        # "1 to 4 bytes of code point, as few as possible": the tag 3c to 3f says how many.
        raw = code.to_bytes(max(1, (code.bit_length() + 7) // 8), "big")
        super().__init__(bytes((TAG_CHAR + len(raw) - 1,)) + raw)

    @property
    def code(self) -> int:
        """The code point."""
        return int.from_bytes(self._encoding[1:], "big")

    def text(self) -> str:
        r"""Return `\A`, or a name such as `\newline`."""
        return "\\" + NAMED_CHARS.get(self.code, chr(self.code))

    def __reduce__(self) -> tuple[type[Char], tuple[int]]:
        return Char, (self.code,)


class Extension(Scalar):
    """A number (0 .. 2**63 - 1) with one of sixteen meanings (digit) defined by applications."""

    __slots__ = ()

    def __init__(self, digit: int, number: int) -> None:
        require_type(digit, int, "an extension digit is an int")
        require_type(number, int, "an extension number is an int")
        if not 0 <= digit <= 15:
            msg = f"an extension digit is 0 to 15, got {digit}"
            raise UsageError(msg)
        # A Python bool is an int, but True is not a number of an extension value.
        if isinstance(number, bool) or not 0 <= number <= COUNT_MAX:
            msg = f"an extension number is 0 to {COUNT_MAX}, got {number}"
            raise UsageError(msg)
        # [e0 + digit][VLQ of the number].
        super().__init__(bytes((TAG_EXTENSION + digit,)) + encode_vlq(number))

    @property
    def digit(self) -> int:
        """The low digit of the tag, 0 to 15."""
        return self._encoding[0] & 15

    @property
    def number(self) -> int:
        """The number."""
        value = 0
        for byte in self._encoding[1:]:
            value = (value << 7) | (byte & 0x7F)
        return value

    def key_bytes(self) -> bytes | None:
        """Return the number as 8 big-endian bytes."""
        # "As 8 bytes big-endian" (docs/cells.md "Index"): the order of the bytes is that of the
        # numbers.
        return self.number.to_bytes(8, "big")

    def __reduce__(self) -> tuple[type[Extension], tuple[int, int]]:
        return Extension, (self.digit, self.number)


class Address(Extension):
    """An account number, 0 .. 2**63 - 1, printed `#12`: the extension value with digit 10."""

    __slots__ = ()

    def __init__(self, number: int) -> None:
        super().__init__(ADDRESS_DIGIT, number)

    def text(self) -> str:
        """Return `#` and the number."""
        return "#" + str(self.number)

    def __reduce__(self) -> tuple[type[Extension], tuple[int, int]]:
        return make_extension, (ADDRESS_DIGIT, self.number)  # type: ignore[return-value]


def make_extension(digit: int, number: int) -> Extension:
    """Return the extension value with this digit: an `Address` for digit 10."""
    return Address(number) if digit == ADDRESS_DIGIT else Extension(digit, number)


class Flag(Scalar):
    """One of the fourteen one-byte values (2 .. 15) beside true and false."""

    __slots__ = ()

    def __init__(self, number: int) -> None:
        require_type(number, int, "a flag is an int")
        # b0 and b1 are False and True.
        if not 2 <= number <= 15:
            msg = f"a flag is 2 to 15 (0 and 1 are False and True), got {number}"
            raise UsageError(msg)
        super().__init__(bytes((TAG_FLAG + number,)))

    @property
    def number(self) -> int:
        """The low digit of the tag."""
        return self._encoding[0] & 15

    def __reduce__(self) -> tuple[type[Flag], tuple[int]]:
        return Flag, (self.number,)


class NanBits(Scalar):
    """A NaN with other bits than Python's `float("nan")` (7ff8000000000000).

    It exists so that foreign data survives unchanged. `bits` is 64 bits.
    """

    __slots__ = ()

    def __init__(self, bits: int) -> None:
        require_type(bits, int, "the bits of a NaN are an int")
        # IEEE 754: a NaN has all 11 bits of the exponent set, and a fraction other than 0.
        exponent = (bits >> 52) & 0x7FF
        if bits >> 64 or exponent != 0x7FF or not bits & ((1 << 52) - 1) or bits == NAN_BITS:
            msg = (
                "the bits of a NaN are 64, with all of the exponent set and a fraction other than "
                f"0, and not {NAN_BITS:#x}, which is float('nan'); got {bits:#x}"
            )
            raise UsageError(msg)
        super().__init__(b"\x1d" + bits.to_bytes(8, "big"))

    @property
    def bits(self) -> int:
        """The 64 bits."""
        return int.from_bytes(self._encoding[1:], "big")

    def __reduce__(self) -> tuple[type[NanBits], tuple[int]]:
        return NanBits, (self.bits,)
