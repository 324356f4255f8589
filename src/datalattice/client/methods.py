"""Methods: the state machine of a Weaver store, called by name without classes of its messages.

    store = client.store(store_id)
    store.call("Put", key=b"a", value=b"b")        # or store.put(key=b"a", value=b"b")
    store.call("Get", key=b"a")["value"]           # b"b"

The service describes the messages, and the protobuf runtime makes classes from the description. So
a program can call a machine whose code it does not have.

Arguments and answers are plain values: a message is a dict by field names, a repeated field a list,
an enum the name of its member (a number without a name stays a number), and an unset field None.

Source: docs/clients.md "Weaver stores".
"""

from __future__ import annotations

import string
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

from datalattice.actions import (
    ActionRequest,
    ExecMethod,
    ExecResult,
    GetDescriptor,
    ListMethods,
    ListStreams,
    MachineDescriptor,
    MethodList,
    StreamList,
    SubscribeStream,
)
from datalattice.client.results import ResultStream
from datalattice.errors import (
    BadFormat,
    DataLatticeError,
    LimitExceeded,
    NoSuchPath,
    UnsupportedOperation,
    UsageError,
)
from datalattice.protobuf import FieldInfo, Message
from datalattice.weaver import UnknownMethod, parse_store_id

R = TypeVar("R", bound=Message)

DESCRIPTOR_BYTES_MAX: Final = 1 << 20
"""Longest accepted description of a state machine, in bytes."""

_ID_DIGITS: Final = 32

_FAILURES: Final[dict[int, type[DataLatticeError]]] = {
    1: NoSuchPath,
    2: UnknownMethod,
    3: UsageError,
}
"""Error classes by the code of `ExecResult`; any other code means that the method failed."""

_KINDS: Final = {
    1: "double",
    2: "double",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "uint64",
    7: "uint32",
    8: "bool",
    9: "string",  # 10, a group, is refused by `_declared`
    11: "message",
    12: "bytes",
    13: "uint32",
    14: "enum",
    15: "int32",
    16: "int64",
    17: "int32",
    18: "int64",
}
"""The kind of `FieldInfo` for each number of FieldDescriptorProto.Type."""


class _Caller(Protocol):
    """The methods of a client that a store needs."""

    def call(self, request: ActionRequest[R], /) -> R: ...

    def stream(self, request: ActionRequest[R], /) -> ResultStream[R]: ...


class _AsyncCaller(Protocol):
    """As `_Caller`, for an event loop."""

    async def call(self, request: ActionRequest[R], /) -> R: ...

    def stream(
        self, request: ActionRequest[R], /
    ) -> AbstractAsyncContextManager[AsyncIterator[R]]: ...


class StoreMethod(NamedTuple):
    """A method of a store. kind: command, query or stream. request, answer: its messages."""

    name: str
    kind: str
    description: str
    request: DescribedMessage
    answer: DescribedMessage


class DescribedMessage:
    """A message type that a service described, with its fields declared as those of `Message`."""

    def __init__(self, descriptor: Any) -> None:
        self._descriptor: Final = descriptor

    @property
    def full_name(self) -> str:
        """The name with its package."""
        return str(self._descriptor.full_name)

    def declared(self) -> tuple[FieldInfo, ...]:
        """Return the fields by ascending number. Raises: UnsupportedOperation: one is a group."""
        fields = sorted(self._descriptor.fields, key=lambda one: one.number)
        return tuple([_declared(one) for one in fields])

    def __call__(self, **values: Any) -> dict[str, Any]:
        """Return the message with these fields, as plain values."""
        return values

    def encode(self, values: dict[str, Any]) -> bytes:
        """Return the encoding of plain values. Raises: UsageError: one does not fit its field."""
        from google.protobuf import message_factory

        cls = message_factory.GetMessageClass(self._descriptor)
        # A map field is declared as a list of entries; the protobuf runtime takes a dict.
        entries = {
            one.name: values[one.name]
            for one in self._descriptor.fields
            if _is_map(one) and isinstance(values.get(one.name), (list, tuple))
        }
        given = values | {
            name: {one["key"]: one["value"] for one in found} for name, found in entries.items()
        }
        try:
            data: bytes = cls(**given).SerializeToString()
        except (TypeError, ValueError, KeyError) as error:
            known = ", ".join(one.name for one in self._descriptor.fields) or "none"
            raise UsageError(
                f"{self._descriptor.name}: {error}; its fields are: {known}"
            ) from error
        return data

    def decode(self, data: bytes) -> dict[str, Any]:
        """Return the plain values of an encoding. Raises: BadFormat: it is malformed."""
        from google.protobuf import message_factory
        from google.protobuf.message import DecodeError

        try:
            found = message_factory.GetMessageClass(self._descriptor).FromString(data)
        except DecodeError as error:
            raise BadFormat(f"the bytes do not encode a {self._descriptor.name}") from error
        return _plain(found)


class _DescribedEnum:
    """An enum type that a service described, with the `__members__` of a Python enum."""

    def __init__(self, descriptor: Any) -> None:
        self.__members__ = {one.name: one.number for one in descriptor.values}


def _declared(field: Any) -> FieldInfo:
    kind = _KINDS.get(field.type)
    if kind is None:
        raise UnsupportedOperation(f"{field.full_name} is a protobuf group; groups are unsupported")
    of: Any = None
    if kind == "message":
        of = DescribedMessage(field.message_type)
    elif kind == "enum":
        of = _DescribedEnum(field.enum_type)
    oneof = field.containing_oneof
    # protobuf represents an `optional` field as a oneof that has only this field.
    is_optional = oneof is not None and oneof.name == f"_{field.name}" and len(oneof.fields) == 1
    name = "" if oneof is None or is_optional else oneof.name
    repeated = _is_repeated(field)
    return FieldInfo(
        field.name,
        field.number,
        kind,
        of,
        repeated,
        not repeated and field.has_presence,
        name,
        json=field.name,
    )


def _is_repeated(field: Any) -> bool:
    found = getattr(field, "is_repeated", None)  # protobuf 6 has `label` alone
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


def _is_map(field: Any) -> bool:
    of = field.message_type
    return of is not None and of.GetOptions().map_entry


def _plain(message: Any) -> dict[str, Any]:
    """Return all fields of a protobuf message as plain values."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            of = field.message_type.fields_by_name["value"]
            found[field.name] = {key: _plain_one(of, value[key]) for key in value}
        elif _is_repeated(field):
            found[field.name] = [_plain_one(field, one) for one in value]
        # Fields with presence distinguish unset from their default.
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _plain_one(field, value)
    return found


def _plain_one(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return _plain(value)
    if field.enum_type is not None:
        member = field.enum_type.values_by_number.get(value)
        # Enums are open: a newer store may use numbers that the description does not name.
        return value if member is None else member.name
    return value


class _StoreInterface:
    """The methods of a described store: makes requests from names and plain values."""

    def __init__(self, id: bytes, found: MachineDescriptor) -> None:
        self._id: Final = id
        self._methods: Final = _methods(found.file_descriptor_set, found.service_name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._methods]

    def names(self) -> list[str]:
        """Return the names of all methods, streams too."""
        return list(self._methods)

    def find(self, name: str) -> StoreMethod:
        """Return the method with this name, as described (`HistoryOf`) or in Python's form.

        Raises: UnknownMethod: there is none; the text lists all methods.
        """
        # Compared without case and underscores, so that `history_of` finds `HistoryOf`.
        wanted = _folded(name)
        for known, method in self._methods.items():
            if _folded(known) == wanted:
                return method
        raise UnknownMethod(f"the store has no method {name!r}; it has {', '.join(self._methods)}")

    def _attribute(self, name: str) -> StoreMethod:
        if name.startswith("_"):  # Python's own look-ups, as by `copy` and `pickle`
            raise AttributeError(name)
        try:
            return self.find(name)
        except UnknownMethod as error:
            raise AttributeError(str(error)) from None

    def _exec(self, name: str, fields: dict[str, Any]) -> tuple[StoreMethod, ExecMethod]:
        method = self.find(name)
        if method.kind == "stream":
            raise UsageError(f"{method.name} answers with a stream: use `stream`")
        payload = method.request.encode(fields)
        return method, ExecMethod(store_id=self._id, method=method.name, payload=payload)

    def _subscribe(
        self, name: str, fields: dict[str, Any], streams: StreamList
    ) -> tuple[StoreMethod, SubscribeStream]:
        method = self.find(name)
        if method.kind != "stream":
            raise UsageError(f"{method.name} answers once: use `call`")
        payload = method.request.encode(fields)
        # The two lists may spell a name differently; the service expects that of its streams.
        names = [one.name for one in streams.items if _folded(one.name) == _folded(method.name)]
        if not names:
            raise UnknownMethod(f"the store does not list the stream {method.name}")
        return method, SubscribeStream(store_id=self._id, stream_name=names[0], params=payload)

    def _described(self, methods: MethodList, streams: StreamList) -> list[StoreMethod]:
        """Return the methods with the service's descriptions and kinds."""
        texts = {_folded(one.name): one.description for one in methods.items}
        texts |= {_folded(one.name): one.description for one in streams.items}
        queries = {_folded(one.name) for one in methods.items if one.kind == 1}
        return [
            one._replace(
                description=texts.get(_folded(one.name), ""),
                kind="query" if _folded(one.name) in queries else one.kind,
            )
            for one in self._methods.values()
        ]


def _id_bytes(id: bytes | str) -> bytes:
    """Return the id of a store as bytes. id: the bytes, their 32 hex digits, or a UUID."""
    if not isinstance(id, str):
        return bytes(id)
    if len(id) == _ID_DIGITS and all(one in string.hexdigits for one in id):
        return bytes.fromhex(id)
    return parse_store_id(id)


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


def _answer(method: StoreMethod, found: ExecResult) -> dict[str, Any]:
    if found.error or found.error_code:
        # A store's codes 1 to 3 map to the classes that other services raise for the same fault.
        raise _FAILURES.get(found.error_code, DataLatticeError)(found.error)
    return method.answer.decode(found.result)


class StoreMethods(_StoreInterface):
    """A Weaver store behind a client: `store.put(key=b"a", value=b"b")` calls its method `Put`.

    Methods take the fields of the request as plain values and return those of the answer as a dict;
    a stream is iterated: `with store.stream("Watch", prefix=b"a") as events`.
    """

    def __init__(self, caller: _Caller, id: bytes | str) -> None:
        """Ask for the description.

        Raises: as `Client.call`. UsageError: the id is malformed. BadFormat: the description is.
        """
        self._caller: Final = caller
        key = _id_bytes(id)
        super().__init__(key, caller.call(GetDescriptor(id=key)))

    def call(self, method: str, /, **fields: Any) -> dict[str, Any]:
        """Call a command or query. Raises: as `Client.call`; the method's own error."""
        found, request = self._exec(method, fields)
        return _answer(found, self._caller.call(request))

    def stream(self, method: str, /, **fields: Any) -> ResultStream[dict[str, Any]]:
        """Begin a stream of the store. Raises: as `call`."""
        found, request = self._subscribe(
            method, fields, self._caller.call(ListStreams(id=self._id))
        )
        return _Events(found, self._caller.stream(request))

    def methods(self) -> list[StoreMethod]:
        """Return the methods and streams, with descriptions. Raises: as `Client.call`."""
        call = self._caller.call
        return self._described(call(ListMethods(id=self._id)), call(ListStreams(id=self._id)))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = self._attribute(name)
        call = self.stream if method.kind == "stream" else self.call
        return lambda **fields: call(method.name, **fields)


class _Events(ResultStream[dict[str, Any]]):
    """The events of a store's stream, as plain values."""

    def __init__(self, method: StoreMethod, stream: Any) -> None:
        self._method: Final = method
        self._stream: Final = stream

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for event in self._stream:
            yield self._method.answer.decode(event.payload)

    def close(self) -> None:
        """End the stream."""
        self._stream.close()


class AsyncStoreMethods(_StoreInterface):
    """As `StoreMethods`, for one event loop: `await store.put(key=b"a", value=b"b")`.

    A stream: `async with store.stream("Watch", prefix=b"a") as events: async for event in events`.
    """

    def __init__(self, caller: _AsyncCaller, id: bytes, found: MachineDescriptor) -> None:
        self._caller: Final = caller
        super().__init__(id, found)

    @classmethod
    async def open(cls, caller: _AsyncCaller, id: bytes | str) -> Self:
        """Ask for the description of a store. Raises: as `StoreMethods`."""
        key = _id_bytes(id)
        return cls(caller, key, await caller.call(GetDescriptor(id=key)))

    async def call(self, method: str, /, **fields: Any) -> dict[str, Any]:
        """Call a command or query. Raises: as `StoreMethods.call`."""
        found, request = self._exec(method, fields)
        return _answer(found, await self._caller.call(request))

    def stream(
        self, method: str, /, **fields: Any
    ) -> AbstractAsyncContextManager[AsyncGenerator[dict[str, Any], None]]:
        """Begin a stream of the store; iterating it raises its errors."""
        return aclosing(self._events(method, fields))

    async def _events(
        self, name: str, fields: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        streams = await self._caller.call(ListStreams(id=self._id))
        method, request = self._subscribe(name, fields, streams)
        async with self._caller.stream(request) as events:
            async for event in events:
                yield method.answer.decode(event.payload)

    async def methods(self) -> list[StoreMethod]:
        """Return the methods and streams, with descriptions. Raises: as `AsyncClient.call`."""
        call = self._caller.call
        methods = await call(ListMethods(id=self._id))
        return self._described(methods, await call(ListStreams(id=self._id)))

    def __getattr__(self, name: str) -> Callable[..., Awaitable[dict[str, Any]] | Any]:
        method = self._attribute(name)
        call: Callable[..., Any] = self.stream if method.kind == "stream" else self.call
        return lambda **fields: call(method.name, **fields)


def _methods(descriptor_set: bytes, service: str) -> dict[str, StoreMethod]:
    """Return the methods of `service`, by name, from its description.

    Raises: BadFormat: the description is malformed, or has no such service. LimitExceeded: it is
            too long. UnsupportedOperation: the protobuf runtime is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise UnsupportedOperation(
            "methods of stores need the package protobuf: pip install 'datalattice[doors]'"
        ) from error
    # The service chooses the description, from which classes are made in this process.
    if len(descriptor_set) > DESCRIPTOR_BYTES_MAX:
        raise LimitExceeded(f"the description of a store has at most {DESCRIPTOR_BYTES_MAX} bytes")
    # A pool for each store: two may describe different messages under one name.
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file:
            pool.AddSerializedFile(file.SerializeToString())
        return {
            one.name: StoreMethod(
                one.name,
                "stream" if one.server_streaming else "command",
                "",
                DescribedMessage(one.input_type),
                DescribedMessage(one.output_type),
            )
            for one in pool.FindServiceByName(service).methods
        }
    except (DecodeError, TypeError, KeyError, ValueError) as error:
        raise BadFormat(
            f"the store's description of {service:.80} cannot be used: {error}"
        ) from error
