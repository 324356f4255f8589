"""Methods: the state machine of a Weaver store, called by name without classes of its messages.

    store = client.store(store_id)
    store.call("Put", key=b"a", value=b"b")        # or store.put(key=b"a", value=b"b")
    store.call("Get", key=b"a")["value"]           # b"b"

The service describes the messages; the protobuf runtime makes classes from that. So a program can
call a machine whose code it does not have.

Arguments and answers are plain values: a message is a dict by field names, a repeated field a list,
an enum the name of its member (its number where the description has no name), a field that is not
set None.

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
"""Longest description of a state machine that is read."""

_ID_DIGITS: Final = 32

_FAILURES: Final[dict[int, type[DataLatticeError]]] = {
    1: NoSuchPath,
    2: UnknownMethod,
    3: UsageError,
}
"""Error codes of `ExecResult`; any other one is a method that failed."""

_KINDS: Final = {
    1: "double",
    2: "double",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "uint64",
    7: "uint32",
    8: "bool",
    9: "string",
    11: "message",
    12: "bytes",
    13: "uint32",
    14: "enum",
    15: "int32",
    16: "int64",
    17: "int32",
    18: "int64",
}
"""Our word for each number of FieldDescriptorProto.Type."""


class _Caller(Protocol):
    """A client, as far as a store needs one."""

    def call(self, request: ActionRequest[R], /) -> R: ...

    def stream(self, request: ActionRequest[R], /) -> ResultStream[R]: ...


class _AsyncCaller(Protocol):
    """As `_Caller`, with an event loop."""

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
    """A message that a service described; its fields are declared as those of a `Message`."""

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
        """Return the message with these values of its fields, as plain values."""
        return values

    def encode(self, values: dict[str, Any]) -> bytes:
        """Return the encoding of plain values. Raises: UsageError: one does not fit its field."""
        from google.protobuf import message_factory

        cls = message_factory.GetMessageClass(self._descriptor)
        # A map is declared as its entries; the runtime of protobuf takes a dict.
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
        """Return an encoding as plain values. Raises: BadFormat."""
        from google.protobuf import message_factory
        from google.protobuf.message import DecodeError

        try:
            found = message_factory.GetMessageClass(self._descriptor).FromString(data)
        except DecodeError as error:
            raise BadFormat(f"the bytes are no {self._descriptor.name}") from error
        return _plain(found)


class _DescribedEnum:
    """The members of an enum, as a class of Python has them."""

    def __init__(self, descriptor: Any) -> None:
        self.__members__ = {one.name: one.number for one in descriptor.values}


def _declared(field: Any) -> FieldInfo:
    kind = _KINDS.get(field.type)
    if kind is None:
        raise UnsupportedOperation(f"{field.full_name}: groups of protobuf cannot be used")
    of: Any = None
    if kind == "message":
        of = DescribedMessage(field.message_type)
    elif kind == "enum":
        of = _DescribedEnum(field.enum_type)
    oneof = field.containing_oneof
    # "optional" is kept by protobuf as a oneof of the field alone.
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
    """Return a protobuf message as plain values, all its fields."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            of = field.message_type.fields_by_name["value"]
            found[field.name] = {key: _plain_one(of, value[key]) for key in value}
        elif _is_repeated(field):
            found[field.name] = [_plain_one(field, one) for one in value]
        # Absent differs from the default where protobuf keeps the difference.
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
        # An open enum: a store of a later version may use numbers without a name here.
        return value if member is None else member.name
    return value


class _StoreInterface:
    """What the description of a store says: requests from calls, plain values from answers."""

    def __init__(self, id: bytes, found: MachineDescriptor) -> None:
        self._id: Final = id
        self._methods: Final = _methods(found.file_descriptor_set, found.service_name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._methods]

    def names(self) -> list[str]:
        """Return the names of all methods, streams too."""
        return list(self._methods)

    def find(self, name: str) -> StoreMethod:
        """Return a method by its name; it may be written as in Python: `history_of`.

        Raises: UnknownMethod: it is not there; the text lists those that are.
        """
        # Names of methods are `HistoryOf` in the description and `history_of` in Python.
        wanted = _folded(name)
        for known, method in self._methods.items():
            if _folded(known) == wanted:
                return method
        raise UnknownMethod(f"the store has no method {name!r}; it has {', '.join(self._methods)}")

    def _attribute(self, name: str) -> StoreMethod:
        if name.startswith("_"):  # of Python itself: copying and pickling ask for some
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
        # The two lists may write a name in different ways: only the service's own is sent.
        names = [one.name for one in streams.items if _folded(one.name) == _folded(method.name)]
        if not names:
            raise UnknownMethod(f"the store does not list the stream {method.name}")
        return method, SubscribeStream(store_id=self._id, stream_name=names[0], params=payload)

    def _told(self, methods: MethodList, streams: StreamList) -> list[StoreMethod]:
        """Return the methods with what the service says of them."""
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


def _key(id: bytes | str) -> bytes:
    """Return the id of a store. id: its bytes, their 32 hex digits, or a UUID."""
    if not isinstance(id, str):
        return bytes(id)
    if len(id) == _ID_DIGITS and all(one in string.hexdigits for one in id):
        return bytes.fromhex(id)
    return parse_store_id(id)


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


def _answer(method: StoreMethod, found: ExecResult) -> dict[str, Any]:
    if found.error or found.error_code:
        # A store has three codes of its own; by them its errors are of the same class as other
        # errors of that kind.
        raise _FAILURES.get(found.error_code, DataLatticeError)(found.error)
    return method.answer.decode(found.result)


class StoreMethods(_StoreInterface):
    """A Weaver store behind a client: `store.put(key=b"a", value=b"b")` calls its method `Put`.

    Methods take the fields of their request as plain values and return a dict of their answer's; a
    stream is iterated: `with store.stream("Watch", prefix=b"a") as events`.
    """

    def __init__(self, caller: _Caller, id: bytes | str) -> None:
        """Ask for the description.

        Raises: as `Client.call`. UsageError: the id is malformed. BadFormat: the description is.
        """
        self._caller: Final = caller
        key = _key(id)
        super().__init__(key, caller.call(GetDescriptor(id=key)))

    def call(self, method: str, /, **fields: Any) -> dict[str, Any]:
        """Call a command or query. Raises: as `Client.call`, and what the method raises."""
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
        return self._told(call(ListMethods(id=self._id)), call(ListStreams(id=self._id)))

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
        """End it."""
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
        key = _key(id)
        return cls(caller, key, await caller.call(GetDescriptor(id=key)))

    async def call(self, method: str, /, **fields: Any) -> dict[str, Any]:
        """Call a command or query. Raises: as `StoreMethods.call`."""
        found, request = self._exec(method, fields)
        return _answer(found, await self._caller.call(request))

    def stream(
        self, method: str, /, **fields: Any
    ) -> AbstractAsyncContextManager[AsyncGenerator[dict[str, Any], None]]:
        """Begin a stream of the store; errors are raised by the iteration."""
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
        return self._told(methods, await call(ListStreams(id=self._id)))

    def __getattr__(self, name: str) -> Callable[..., Awaitable[dict[str, Any]] | Any]:
        method = self._attribute(name)
        call: Callable[..., Any] = self.stream if method.kind == "stream" else self.call
        return lambda **fields: call(method.name, **fields)


def _methods(descriptor_set: bytes, service: str) -> dict[str, StoreMethod]:
    """Return the methods of a described service, by name.

    Raises: BadFormat: it describes another service, or none. LimitExceeded: it is too long.
            UnsupportedOperation: the protobuf runtime is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise UnsupportedOperation(
            "methods of stores need the package protobuf: pip install 'datalattice[doors]'"
        ) from error
    # The description comes from the service, and makes classes in this process.
    if len(descriptor_set) > DESCRIPTOR_BYTES_MAX:
        raise LimitExceeded(f"the description of a store has at most {DESCRIPTOR_BYTES_MAX} bytes")
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
