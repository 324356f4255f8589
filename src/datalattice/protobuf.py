"""Protobuf: messages declared once as classes, with canonical encoding and strict decoding.

    class Put(Message, name="lattice.kv.PutRequest"):
        key: Annotated[bytes, Field(1)] = b""
        value: Annotated[bytes, Field(2)] = b""

    Put(key=b"k").encode()          Put.decode(data).key

A subclass of `Message` is a frozen dataclass; the first instance makes it one. The type of a field
determines its kind: `bytes`, `str`, `bool`, `float` (double), an `IntEnum`, another message, or
`int` with `Field(n, "uint32")`. A tuple is a repeated field, `X | None` a field with presence: a
member of a oneof, `Field(n, oneof="op")`, a message, or an optional scalar. `Field(n, codec=...)`
stores a value of another type as bytes; None is absent.

Signed bytes need one encoding (proto3): fields by ascending number, scalar defaults left out, a
chosen member of a oneof written even when it is empty. Decoding accepts every proto3 encoding of
the message: fields in any order, unknown fields skipped, the last one of a scalar that comes twice,
embedded messages that come twice merged.

Length: encoding, decoding and descriptors share the declarations.

Source: protobuf encoding guide; docs/design/weaver.md "Modules".
"""

from __future__ import annotations

import dataclasses
import struct
import types
import typing
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self, TypeVar, dataclass_transform

from datalattice.errors import BadFormat, UsageError

MESSAGE_DEPTH_MAX: Final = 100
"""Deepest nesting of embedded messages that is decoded: protobuf's own limit."""

VARINT_BYTES_MAX: Final = 10  # 64 bits in digits of 7
FIELD_NUMBER_MAX: Final = 2**29 - 1

# Wire types: the low three bits of a tag.
VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5

INT_RANGES: Final = {
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
"""The least and greatest value of each kind of int."""

# Numbers of FieldDescriptorProto.Type.
_TYPE_NUMBERS: Final = {
    "double": 1,
    "int64": 3,
    "uint64": 4,
    "int32": 5,
    "bool": 8,
    "string": 9,
    "message": 11,
    "bytes": 12,
    "uint32": 13,
    "enum": 14,
}
_DEFAULTS: Final[dict[str, object]] = {"bytes": b"", "string": "", "bool": False, "double": 0.0}


class FieldCodec(Protocol):
    """Converts values of a type that protobuf lacks to and from the bytes of a field."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value. Raises: TypeError, ValueError: it has another type."""

    def decode(self, data: bytes) -> Any:
        """Return the value. Raises: BadFormat."""


class Field(NamedTuple):
    """The declaration of a field: its number, the kind of an int, its oneof, its codec.

    json: its name in JSON, "" for the name of the field.
    """

    number: int
    kind: str = ""
    oneof: str = ""
    codec: FieldCodec | None = None
    json: str = ""


class FieldInfo(NamedTuple):
    """One field of a message, as declared.

    kind: a key of the protobuf types: "bytes", "string", "bool", "double", "uint32", "uint64",
          "int32", "int64", "enum" or "message". type: the class of an enum or message, else None.
    codec: of a field of kind "bytes" that holds values of another type, else None.
    """

    name: str
    number: int
    kind: str
    type: type[Any] | None
    repeated: bool
    presence: bool
    oneof: str
    codec: FieldCodec | None = None
    json: str = ""


@dataclass_transform(frozen_default=True)
class Message:
    """Base of all messages: `class Put(Message, name="package.Put")` with annotated fields.

    Declare messages at module level: their annotations are resolved in the module.
    """

    full_name: ClassVar[str]
    _layout: ClassVar[_MessageLayout | None] = None

    def __init_subclass__(cls, *, name: str, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.full_name = name
        cls._layout = None  # resolved at the first use: annotations may name later classes
        named = [one for one in cls.__mro__[:-1] if getattr(one, "full_name", "")]
        if len(named) > 1:  # it would inherit `__init__` of the message that it derives from
            for one in reversed(named):
                if "__init__" not in vars(one):
                    dataclasses.dataclass(frozen=True)(one)

    def __init__(self, *args: object, **fields: object) -> None:
        """Initialise the first message of a class and give the class its own `__init__`."""
        _complete(type(self))
        type(self).__init__(self, *args, **fields)

    # Defined here, since those of a frozen dataclass compare with the class they were made for:
    # the twin in `_complete`.
    def __setattr__(self, name: str, value: typing.Never) -> typing.Never:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> typing.Never:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __getstate__(self) -> dict[str, object]:
        """Return the fields; never None, so that every copy goes through `__setstate__`."""
        return self.__dict__

    def __setstate__(self, state: dict[str, object]) -> None:
        """Set the fields of a copied or unpickled message; it may be the first of its class."""
        if "__init__" not in vars(type(self)):
            _complete(type(self))
        self.__dict__.update(state)

    @classmethod
    def declared(cls) -> tuple[FieldInfo, ...]:
        """Return the fields by ascending number.

        Raises: UsageError: the declaration is wrong; the text names the field.
        """
        return _layout_of(cls).fields

    def encode(self) -> bytes:
        """Return the canonical encoding.

        Raises: UsageError: a value does not fit its field, or two members of a oneof are set.
        """
        out = bytearray()
        _encode_into(out, self)
        return bytes(out)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the message that `data` encodes.

        Raises: BadFormat: `data` is not an encoding of this message; the text names the field.
        """
        return _decode(cls, data, 0)


def _complete(cls: type[Message]) -> None:
    """Make a message class a frozen dataclass."""
    # At the first instance: a command imports hundreds of messages and makes a few, and making a
    # class a dataclass takes longer than importing it. Threads may come here at once, and the
    # process may fork meanwhile, so a twin becomes the dataclass and its methods are copied to the
    # class, `__init__` last. The twin starts with the methods that a dataclass keeps, such as a
    # `__repr__` that hides a secret; from a copy of `vars`, as another thread may add to it.
    own = {
        name: value
        for name, value in vars(cls).copy().items()
        if name in cls.__annotations__ or (name.startswith("__") and name not in _OF_INSTANCES)
    }
    twin = type(cls.__name__, (), own)
    before = {*vars(twin), "__setattr__", "__delattr__"}
    dataclasses.dataclass(frozen=True)(twin)
    for name in sorted(vars(twin).keys() - before, key="__init__".__eq__):
        setattr(cls, name, vars(twin)[name])


_OF_INSTANCES: Final = ("__dict__", "__weakref__")
_M = TypeVar("_M", bound=Message)


class RpcMethod(NamedTuple):
    """A method of a gRPC service.

    is_stream: the answer is any number of messages. is_upload: the request is.
    """

    name: str
    request: type[Message]
    answer: type[Message]
    is_stream: bool = False
    is_upload: bool = False


class _MessageLayout:
    """The fields of a message class, by number and in order."""

    __slots__ = ("by_number", "fields", "members")

    def __init__(self, fields: tuple[FieldInfo, ...]) -> None:
        self.fields = fields
        self.by_number = {field.number: field for field in fields}
        self.members: dict[str, tuple[str, ...]] = {}
        for field in fields:
            if field.oneof:
                self.members[field.oneof] = (*self.members.get(field.oneof, ()), field.name)


def _layout_of(cls: type[Message]) -> _MessageLayout:
    found = cls._layout
    if found is None:
        hints = typing.get_type_hints(cls, include_extras=True)
        fields = [
            _declared(cls, name, hint)
            for name, hint in hints.items()
            if typing.get_origin(hint) is typing.Annotated
        ]
        fields.sort(key=lambda field: field.number)
        # Decoding finds fields by number, so the second would hide the first.
        if len({field.number for field in fields}) != len(fields):
            raise UsageError(f"{cls.full_name}: two fields have the same number")
        found = cls._layout = _MessageLayout(tuple(fields))
    return found


def _declared(cls: type[Message], name: str, hint: Any) -> FieldInfo:
    given, mark = typing.get_args(hint)[:2]
    where = f"{cls.full_name}.{name}"
    if hasattr(Message, name):
        raise UsageError(f"{where}: every message has a method `{name}`; use another name")
    if not isinstance(mark, Field) or not 1 <= mark.number <= FIELD_NUMBER_MAX:
        raise UsageError(f"{where}: annotate it with Field(number), number from 1 to 2**29 - 1")
    repeated, presence = typing.get_origin(given) is tuple, mark.codec is not None
    if repeated:
        presence, given = False, typing.get_args(given)[0]
    elif mark.codec is None and typing.get_origin(given) in {typing.Union, types.UnionType}:
        options = [option for option in typing.get_args(given) if option is not type(None)]
        if len(options) != 1:
            raise UsageError(f"{where}: the only union accepted is `X | None`, got {given}")
        presence, given = True, options[0]
    # To protobuf, the value of a codec is bytes.
    kind, of = ("bytes", None) if mark.codec else _kind(given, mark.kind, where)
    # No message needs repeated scalars, whose packed form would be a second encoding.
    if repeated and kind not in {"bytes", "string", "message"}:
        raise UsageError(f"{where}: only bytes, str and messages can be repeated, got {kind}")
    if (mark.oneof or kind == "message") and not (presence or repeated):
        raise UsageError(f"{where}: declare a message or a member of a oneof as `X | None`")
    return FieldInfo(
        name, mark.number, kind, of, repeated, presence, mark.oneof, mark.codec, mark.json or name
    )


def _kind(given: Any, int_kind: str, where: str) -> tuple[str, type[Any] | None]:
    plain = {bytes: "bytes", str: "string", bool: "bool", float: "double"}.get(given)
    if plain is not None:
        return plain, None
    if given is int and int_kind in INT_RANGES:
        return int_kind, None
    if isinstance(given, type) and issubclass(given, IntEnum):
        return "enum", given
    if isinstance(given, type) and issubclass(given, Message):
        return "message", given
    raise UsageError(
        f"{where}: the type {given!r} is not bytes, str, bool, float, an IntEnum, a Message or an "
        f"int with one of the kinds {', '.join(INT_RANGES)}"
    )


# --- encoding ---------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """Return `value`, 0 to 2**64 - 1, as a base 128 varint: low digits first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _encode_into(out: bytearray, message: Message) -> None:
    layout = _layout_of(type(message))
    for oneof, names in layout.members.items():
        chosen = [name for name in names if getattr(message, name) is not None]
        if len(chosen) > 1:  # a oneof has at most one member
            raise UsageError(
                f"{message.full_name}: set one member of the oneof {oneof}, got "
                f"{' and '.join(chosen)}"
            )
    for field in layout.fields:
        value = getattr(message, field.name)
        if field.repeated:
            for item in value:
                _put(out, message, field, item)
        elif field.presence:
            if value is not None:  # presence: written even when it is the default
                _put(out, message, field, value)
        elif not _is_default(value):
            _put(out, message, field, value)


def _is_default(value: Any) -> bool:
    """Return whether a scalar is its type's default: b"", "", False, 0 or 0.0, but not -0.0."""
    if value or value is None:  # None goes on to `_put`, which refuses it by name
        return False
    return not isinstance(value, float) or not str(value).startswith("-")


def _put(out: bytearray, message: Message, field: FieldInfo, value: Any) -> None:
    kind = field.kind
    try:
        if field.codec is not None:
            body = field.codec.encode(value)
        elif kind == "bytes":
            # Through a memoryview, which refuses an int: `bytes(5)` is five zeros.
            body = bytes(memoryview(value))
        elif kind == "string":
            body = value.encode()
        elif kind == "message":
            body = _embedded(field, value)
        elif kind == "double":
            out += varint(field.number << 3 | FIXED64)
            out += struct.pack("<d", value)
            return
        else:
            out += varint(field.number << 3 | VARINT)
            out += varint(_number(field, value))
            return
    except (TypeError, AttributeError, ValueError, struct.error) as error:
        raise UsageError(
            f"{message.full_name}.{field.name}: {type(value).__name__} {value!r:.60} "
            f"is not a value of kind {kind}"
        ) from error
    out += varint(field.number << 3 | LENGTH)
    out += varint(len(body))
    out += body


def _embedded(field: FieldInfo, value: Any) -> bytes:
    if type(value) is not field.type:  # a subclass may have other fields
        raise TypeError
    encoded: bytes = value.encode()
    return encoded


def _number(field: FieldInfo, value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError
    low, high = INT_RANGES.get(field.kind, INT_RANGES["int32"])
    if not low <= value <= high:
        raise ValueError
    # Negative numbers of 32 bits, too, are written as 64-bit two's complement (proto3).
    return int(value) & (2**64 - 1)


# --- decoding ---------------------------------------------------------------------------------


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint at `at`, reduced to 64 bits, and the position behind it.

    Raises: BadFormat: it ends neither within the data nor within ten bytes.
    """
    value = shift = 0
    # Ten bytes hold 64 bits: a longer one is damaged or hostile.
    for position in range(at, min(at + VARINT_BYTES_MAX, len(data))):
        digit = data[position]
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value & (2**64 - 1), position + 1  # bits above 64 are dropped, as protobuf does
        shift += 7
    raise BadFormat(f"protobuf: the varint at byte {at} has no end")


def read_fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield (field number, wire type, value) for every field of an encoded message.

    Shapes: value: an int for VARINT, else the bytes: 8 of FIXED64, 4 of FIXED32, the contents of
            LENGTH.
    Raises: BadFormat: `data` is not a sequence of fields.
    """
    at, size = 0, len(data)
    while at < size:
        start = at
        tag, at = read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if not 1 <= number <= FIELD_NUMBER_MAX:
            raise BadFormat(
                f"protobuf: field number {number} at byte {start} is not from 1 to 2**29 - 1"
            )
        if wire == VARINT:
            value, at = read_varint(data, at)
            yield number, wire, value
            continue
        if wire == LENGTH:
            length, at = read_varint(data, at)
        elif wire in {FIXED64, FIXED32}:
            length = 8 if wire == FIXED64 else 4
        else:
            # Groups (3, 4) are not part of proto3.
            raise BadFormat(f"protobuf: wire type {wire} at byte {start} is not allowed")
        if length > size - at:  # before the slice, which Python would silently shorten
            raise BadFormat(f"protobuf: field {number} at byte {start} is longer than the message")
        yield number, wire, data[at : at + length]
        at += length


def _decode(cls: type[_M], data: bytes, depth: int) -> _M:
    if depth > MESSAGE_DEPTH_MAX:  # each level is a frame of Python's stack
        raise BadFormat(f"{cls.full_name}: messages are nested deeper than {MESSAGE_DEPTH_MAX}")
    layout = _layout_of(cls)
    values: dict[str, Any] = {}
    for number, wire, value in read_fields(data):
        field = layout.by_number.get(number)
        if field is None:
            continue  # unknown fields are skipped: a later version may have written them
        if wire != _wire_type(field.kind):
            raise BadFormat(
                f"{cls.full_name}.{field.name}: wire type {wire} is not that of a {field.kind}"
            )
        if field.oneof:
            # Of the members of a oneof, the last one in the data counts (proto3).
            for other in layout.members[field.oneof]:
                if other != field.name:
                    values.pop(other, None)
        if field.kind == "message" and not field.repeated:
            # Two encodings one after the other are the encoding of the merged message.
            values[field.name] = values.get(field.name, b"") + value
        elif field.repeated:
            values.setdefault(field.name, []).append(_value(cls, field, value, depth))
        else:
            values[field.name] = _value(cls, field, value, depth)
    for field in layout.fields:
        if field.name not in values:
            continue
        if field.repeated:
            values[field.name] = tuple(values[field.name])
        elif field.kind == "message":  # decoded at the end, when all its parts are joined
            values[field.name] = _value(cls, field, values[field.name], depth)
    return cls(**values)


def _wire_type(kind: str) -> int:
    if kind in {"bytes", "string", "message"}:
        return LENGTH
    return FIXED64 if kind == "double" else VARINT


def _value(cls: type[Message], field: FieldInfo, value: Any, depth: int) -> Any:
    kind = field.kind
    if field.codec is not None:
        return field.codec.decode(value)
    if kind == "bytes":
        return value
    if kind == "message":
        return _decode(typing.cast("type[Message]", field.type), value, depth + 1)
    if kind == "string":
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise BadFormat(f"{cls.full_name}.{field.name}: the string is not UTF-8") from error
    if kind == "bool":
        return value != 0
    if kind == "double":
        return struct.unpack("<d", value)[0]
    return _reduced(field, value)


def _reduced(field: FieldInfo, value: int) -> int:
    """Return a varint as a value of an int or enum field: its low bits, as in protobuf."""
    if field.kind == "uint64":
        return value
    if field.kind == "uint32":
        return value & (2**32 - 1)
    bits = 64 if field.kind == "int64" else 32
    value &= 2**bits - 1
    if value >= 2 ** (bits - 1):
        value -= 2**bits
    if field.type is None:
        return value
    try:
        known: int = field.type(value)
    except ValueError:
        return value  # enums of proto3 are open: a later version may have named this number
    return known


# --- descriptors ------------------------------------------------------------------------------


def descriptor_set(*classes: type[Message]) -> bytes:
    """Return a FileDescriptorSet: a file for each package of `classes` and the messages they use.

    Each file follows the files that it depends on.
    Raises: UsageError: packages depend on each other.
    """
    found: dict[str, type[Any]] = {}
    pending = list(classes)
    while pending:
        cls = pending.pop()
        if cls.full_name in found:
            continue
        found[cls.full_name] = cls
        pending += [
            field.type
            for field in cls.declared()
            if field.type is not None and issubclass(field.type, Message)
        ]
    packages: dict[str, list[type[Message]]] = {}
    for name in sorted(found):  # sorted: the same classes give the same bytes
        packages.setdefault(name.rpartition(".")[0], []).append(found[name])
    uses = {package: _used_by(package, inside) for package, inside in packages.items()}
    out = b""
    while uses:
        free = sorted(package for package, used in uses.items() if not used & uses.keys())
        if not free:
            raise UsageError(f"protobuf: packages depend on each other: {', '.join(sorted(uses))}")
        for package in free:
            out += _entry(1, _file(package, packages[package]))
            del uses[package]
    return out


def service_descriptor(service: str, methods: Iterable[RpcMethod]) -> bytes:
    """Return a FileDescriptorSet with one file, which declares a service by its full name.

    The file depends on those that `descriptor_set` returns for the messages; the two byte strings
    joined are one set.
    """
    package, _, name = service.rpartition(".")
    known = list(methods)
    used = {
        message.full_name.rpartition(".")[0]
        for method in known
        for message in (method.request, method.answer)
    }
    declared = _entry(1, name.encode())
    for method in known:
        # A leading dot marks a full name; others are relative to the package.
        body = _entry(1, method.name.encode())
        body += _entry(2, f".{method.request.full_name}".encode())
        body += _entry(3, f".{method.answer.full_name}".encode())
        body += _int_entry(5, 1) if method.is_upload else b""
        declared += _entry(2, body + (_int_entry(6, 1) if method.is_stream else b""))
    file = _entry(1, f"{service.replace('.', '/')}.service.proto".encode())
    file += _entry(2, package.encode())
    file += b"".join(_entry(3, _file_name(one)) for one in sorted(used))
    return _entry(1, file + _entry(6, declared) + _entry(12, b"proto3"))


def _used_by(package: str, classes: list[type[Message]]) -> set[str]:
    """Return the other packages whose messages are fields of these."""
    fields = [field for cls in classes for field in cls.declared() if field.kind == "message"]
    return {field.type.full_name.rpartition(".")[0] for field in fields} - {package}  # type: ignore[union-attr]


def enum_name(cls: type[Message], enum: type[IntEnum]) -> str:
    """Return the full name of an enum: the package of the message that uses it, and its name."""
    return f"{cls.full_name.rpartition('.')[0]}.{enum.__name__}"


def _entry(number: int, body: bytes) -> bytes:
    return varint(number << 3 | LENGTH) + varint(len(body)) + body


def _int_entry(number: int, value: int) -> bytes:
    return varint(number << 3 | VARINT) + varint(value)


def _file(package: str, classes: list[type[Message]]) -> bytes:
    """Return a FileDescriptorProto: 1 name, 2 package, 3 dependencies, 4 messages, 5 enums."""
    enums: dict[str, type[IntEnum]] = {}
    for cls in classes:
        for field in cls.declared():
            if field.kind == "enum":
                enums[field.type.__name__] = typing.cast("type[IntEnum]", field.type)  # type: ignore[union-attr]
    used = _used_by(package, classes)
    out = _entry(1, _file_name(package)) + _entry(2, package.encode())
    out += b"".join(_entry(3, _file_name(other)) for other in sorted(used))
    out += b"".join(_entry(4, _message_descriptor(cls)) for cls in classes)
    out += b"".join(_entry(5, _enum_descriptor(enums[name])) for name in sorted(enums))
    return out + _entry(12, b"proto3")


def _file_name(package: str) -> bytes:
    return f"{package.replace('.', '/')}.proto".encode()


def _message_descriptor(cls: type[Message]) -> bytes:
    """Return a DescriptorProto: 1 name, 2 fields, 8 oneofs."""
    fields = cls.declared()
    oneofs = list(dict.fromkeys(field.oneof for field in fields if field.oneof))
    # "Synthetic oneofs" (proto3): each optional scalar is the one member of its own, behind the
    # declared oneofs.
    single = [f.name for f in fields if f.presence and not f.oneof and f.kind != "message"]
    out = _entry(1, cls.full_name.rpartition(".")[2].encode())
    for field in fields:
        body = _entry(1, field.name.encode()) + _int_entry(3, field.number)
        # Labels: 1 optional, 3 repeated.
        body += _int_entry(4, 3 if field.repeated else 1) + _int_entry(5, _TYPE_NUMBERS[field.kind])
        if field.kind == "message":
            body += _entry(6, f".{field.type.full_name}".encode())  # type: ignore[union-attr]
        elif field.kind == "enum":
            body += _entry(6, f".{enum_name(cls, field.type)}".encode())  # type: ignore[arg-type]
        if field.oneof:
            body += _int_entry(9, oneofs.index(field.oneof))
        elif field.name in single:
            # 17: proto3_optional.
            body += _int_entry(9, len(oneofs) + single.index(field.name)) + _int_entry(17, 1)
        out += _entry(2, body)
    names = oneofs + [f"_{name}" for name in single]
    return out + b"".join(_entry(8, _entry(1, name.encode())) for name in names)


def _enum_descriptor(enum: type[IntEnum]) -> bytes:
    out = _entry(1, enum.__name__.encode())
    for member in enum:
        out += _entry(2, _entry(1, member.name.encode()) + _int_entry(2, member.value))
    return out
