"""Record, coded value, syntax and signed value: small cells that wrap other values.

Source: CAD003 "Signed", "Syntax", "Coded values", "Records"; docs/cells.md "Signed", "Where the
    documents differ", "Record, Coded, Syntax"; CAD002 "Signed".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from datalattice.cells.cell import NO_KIDS, Cell, Loader, Value, deref, put_kid, to_value
from datalattice.cells.maps import Map
from datalattice.cells.parse import kids_in, wrappers
from datalattice.cells.scalars import require_type
from datalattice.cells.scan import skip_kid
from datalattice.cells.vectors import Vector, closed_vector
from datalattice.crypto import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, KeyPair, verify
from datalattice.errors import TypeMismatch, UsageError

TAG_SYNTAX: Final = 0x88
TAG_SIGNED: Final = 0x90
TAG_SIGNED_BARE: Final = 0x91
TAG_CODED: Final = 0xC0
TAG_RECORD: Final = 0xD0
_UNSIGNED: Final = bytes(SIGNATURE_BYTES)


class Record(Cell):
    """A dense record: a vector of fields whose meaning its tag defines (digit 0 .. 15)."""

    __slots__ = ("_body", "_digit")

    _body: Vector
    _digit: int

    def __init__(self, digit: int, fields: Iterable[object]) -> None:
        super().__init__()
        require_type(digit, int, "a record digit is an int")
        if not 0 <= digit <= 15:
            raise UsageError(f"a record digit is 0 to 15, got {digit}")
        self._digit = digit
        self._body = fields if isinstance(fields, Vector) else Vector.of(fields)
        self._kids = NO_KIDS

    @property
    def digit(self) -> int:
        """The low digit of the tag, 0 to 15."""
        return self._digit

    @property
    def fields(self) -> Vector:
        """The fields."""
        return self._body

    def _build(self, depth: int) -> bytes:
        # "As the Vector of its fields" (docs/cells.md "Encoding table"), with its own tag instead
        # of 80.
        return bytes((TAG_RECORD + self._digit,)) + self._body._encode(depth)[1:]

    def _parse(self) -> list[object]:
        return []

    def _children(self) -> list[object]:
        return self._body._children()

    def _close(self, loader: Loader) -> None:
        self._loader = loader
        self._body._encode(0)
        self._body._close(loader)

    def __len__(self) -> int:
        return len(self._body)

    def __getitem__(self, index: int) -> Value:
        return self._body[index]

    def get(self, index: int, default: Value = None) -> Value:
        """Return field `index`, or `default` when it is out of range."""
        return self._body.get(index, default)

    def __iter__(self) -> Iterator[Value]:
        return iter(self._body)


def closed_record(data: bytes, loader: Loader | None) -> Record:
    """Return the record with this encoding (tag d0 .. df)."""
    # Written "as the Vector of its fields", with another tag.
    made = Record(data[0] & 15, closed_vector(b"\x80" + data[1:], loader))
    made._encoding = data
    made._loader = loader
    return made


class Coded(Cell):
    """Any value, marked with a code (any value) that defines how to read it (digit 0 .. 15)."""

    __slots__ = ("_digit",)

    _digit: int

    def __init__(self, digit: int, code: object, value: object) -> None:
        super().__init__()
        require_type(digit, int, "a coded digit is an int")
        if not 0 <= digit <= 15:
            raise UsageError(f"a coded digit is 0 to 15, got {digit}")
        self._digit = digit
        self._kids = [to_value(code), to_value(value)]

    @property
    def digit(self) -> int:
        """The low digit of the tag, 0 to 15."""
        return self._digit

    @property
    def code(self) -> Value:
        """The code."""
        return deref(self._open()[0])

    @property
    def value(self) -> Value:
        """The value."""
        return deref(self._open()[1])

    def _build(self, depth: int) -> bytes:
        out = BytesWriter()
        # [c0 + digit][ref of the code][ref of the value].
        out.append(u8(TAG_CODED + self._digit))
        kids = self._open()
        put_kid(out, kids, 0, depth)
        put_kid(out, kids, 1, depth)
        return out.getvalue()

    def _parse(self) -> list[object]:
        assert self._encoding is not None
        return kids_in(self._encoding, 1, 2, self._loader)[0]


def closed_coded(data: bytes, loader: Loader | None) -> Coded:
    """Return the coded value with this encoding (tag c0 .. cf)."""
    made = Coded(data[0] & 15, None, None)
    made._kids = None
    made._encoding = data
    made._loader = loader
    return made


class Syntax(Cell):
    """A value with a Map of metadata; an empty Map counts as None."""

    __slots__ = ("_meta",)

    _meta: Map | None

    def __init__(self, value: object, meta: object = None) -> None:
        super().__init__()
        if meta is not None and not isinstance(meta, Map):
            raise TypeMismatch(f"syntax metadata is a Map or None, got {type(meta).__name__}")
        # One encoding for each value: an empty Map is written as `00`, like no metadata.
        self._meta = meta if meta is not None and len(meta) else None
        self._kids = [to_value(value)]

    @property
    def value(self) -> Value:
        """The value."""
        return deref(self._open()[0])

    @property
    def meta(self) -> Map | None:
        """The metadata, or None."""
        return self._meta

    def _build(self, depth: int) -> bytes:
        out = BytesWriter()
        out.append(u8(TAG_SYNTAX))
        put_kid(out, self._open(), 0, depth)
        # The metadata is always embedded, whatever its length.
        out.write(b"\x00" if self._meta is None else self._meta._encode(depth + 1))
        return out.getvalue()

    def _parse(self) -> list[object]:
        assert self._encoding is not None
        return kids_in(self._encoding, 1, 1, self._loader)[0]

    def _children(self) -> list[object]:
        return self._open() if self._meta is None else [*self._open(), *self._meta._children()]

    def _close(self, loader: Loader) -> None:
        self._loader = loader
        self._kids = None
        if self._meta is not None:
            self._meta._encode(0)
            self._meta._close(loader)


def closed_syntax(data: bytes, loader: Loader | None) -> Syntax:
    """Return the syntax value with this encoding (tag 88)."""
    made = Syntax(None)
    at: i64 = skip_kid(data, 1)
    # [88][ref of the value][00, or the metadata Map in full].
    if data[at] != 0:
        wrapper = wrappers[0x82]
        assert wrapper is not None
        meta = wrapper(data[at:], loader)
        assert isinstance(meta, Map)
        made._meta = meta
    made._kids = None
    made._encoding = data
    made._loader = loader
    return made


MADE_HERE_MAX: Final = 1_024
"""Most signatures made by this process that are remembered, so that they need no verification."""

_made_here: Final[dict[bytes, bytes]] = {}
"""Signature -> the public key and the message that this process made it with."""


class Signed(Cell):
    """A value with an Ed25519 signature over the bytes by which this cell holds it.

    The result of verification is cached. `public_key` is 32 bytes, or empty in the key-less form,
    which never verifies; `signature` is 64 bytes.
    """

    __slots__ = ("_key", "_signature", "_signer", "_verdict")

    _key: bytes
    _signature: bytes
    _signer: KeyPair | None  # signs once the encoding is needed; None: the signature is made
    _verdict: int  # 0 unchecked, 1 valid, -1 invalid

    def __init__(self, public_key: bytes, signature: bytes, value: object) -> None:
        super().__init__()
        require_type(public_key, bytes, "a public key is bytes")
        require_type(signature, bytes, "a signature is bytes")
        if len(public_key) not in {0, PUBLIC_KEY_BYTES}:
            raise UsageError(f"a public key is {PUBLIC_KEY_BYTES} bytes, got {len(public_key)}")
        if len(signature) != SIGNATURE_BYTES:
            raise UsageError(f"a signature is {SIGNATURE_BYTES} bytes, got {len(signature)}")
        self._key = public_key
        self._signature = signature
        self._signer = None
        self._verdict = 0
        self._kids = [to_value(value)]

    @classmethod
    def sign(cls, key_pair: KeyPair, value: object) -> Signed:
        """Return `value` signed by `key_pair`; the result counts as verified.

        Cost: the signature is made with the encoding, so a value that another write replaces before
        it is stored costs none.
        """
        require_type(key_pair, KeyPair, "a value is signed by a KeyPair")
        made = Signed(key_pair.public_key, _UNSIGNED, value)
        made._signer = key_pair
        made._verdict = 1
        return made

    @property
    def public_key(self) -> bytes:
        """The signer's public key, empty in the key-less form."""
        return self._key

    @property
    def signature(self) -> bytes:
        """The signature."""
        if self._signer is not None:
            self._encode(0)
        return self._signature

    @property
    def value(self) -> Value:
        """The signed value."""
        return deref(self._open()[0])

    def message(self) -> bytes:
        """Return the signed bytes: the value as this cell holds it, in full or by hash."""
        # "Over the value as the Signed cell contains it: its encoding if that is embedded,
        # otherwise the 33 bytes of the reference" (docs/cells.md "Signed").
        return self.encoding[1 + len(self._key) + SIGNATURE_BYTES :]

    def verify(self) -> bool:
        """Return whether the signature is valid for this value and public key."""
        # "Decoding does not check it. `verify()` does, once for each cell": Ed25519 is far slower
        # than SHA3.
        if not self._verdict:
            message = self.message()
            # A store closes the cells that it has committed; the next write reads them again.
            is_ours = _made_here.get(self._signature) == self._key + message
            self._verdict = 1 if is_ours or verify(self._key, self._signature, message) else -1
        return self._verdict > 0

    def _build(self, depth: int) -> bytes:
        held = BytesWriter()
        put_kid(held, self._open(), 0, depth)
        message = held.getvalue()
        signer = self._signer
        # Two threads at once make the same signature, since Ed25519 is deterministic.
        if signer is not None:
            self._signature = signer.sign(message)
            self._signer = None
            # Cleared at once: an own signature that was forgotten is only verified again.
            if len(_made_here) >= MADE_HERE_MAX:
                _made_here.clear()
            _made_here[self._signature] = self._key + message
        out = BytesWriter()
        # [90][key 32][signature 64][ref], or [91][signature 64][ref] without a key.
        out.append(u8(TAG_SIGNED if self._key else TAG_SIGNED_BARE))
        out.write(self._key)
        out.write(self._signature)
        out.write(message)
        return out.getvalue()

    def _parse(self) -> list[object]:
        assert self._encoding is not None
        return kids_in(self._encoding, 1 + len(self._key) + SIGNATURE_BYTES, 1, self._loader)[0]


def closed_signed(data: bytes, loader: Loader | None) -> Signed:
    """Return the closed signed value with this encoding (tag 90 or 91)."""
    start = 1 + PUBLIC_KEY_BYTES if data[0] == TAG_SIGNED else 1
    made = Signed(data[1:start], data[start : start + SIGNATURE_BYTES], None)
    made._kids = None
    made._encoding = data
    made._loader = loader
    return made


wrappers[TAG_SYNTAX] = closed_syntax
wrappers[TAG_SIGNED] = closed_signed
wrappers[TAG_SIGNED_BARE] = closed_signed
for _digit in range(16):
    wrappers[TAG_CODED + _digit] = closed_coded
    wrappers[TAG_RECORD + _digit] = closed_record
Sequence.register(Record)
