"""Methods: the state machine of a Weaver store, called by name without classes of its messages.

The service describes the messages; the protobuf runtime makes classes from that. So a program can
call a machine whose code it does not have.

Source: docs/grpc.md "Weaver stores".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from datalattice.actions import (
    ActionRequest,
    ExecMethod,
    GetDescriptor,
    ListStreams,
    SubscribeStream,
)
from datalattice.errors import BadFormat, DataLatticeError, LimitExceeded, NoSuchPath, UsageError
from datalattice.protobuf import Message
from datalattice.weaver import UnknownMethod, parse_store_id

R = TypeVar("R", bound=Message)

DESCRIPTOR_BYTES_MAX: Final = 1 << 20
"""Longest description of a state machine that is read."""

_FAILURES: Final[dict[int, type[DataLatticeError]]] = {
    1: NoSuchPath,
    2: UnknownMethod,
    3: UsageError,
}
"""Error codes of `ExecResult`; any other one is a method that failed."""


class _Caller(Protocol):
    """Who calls actions for a store."""

    def call(self, request: ActionRequest[R], /) -> R: ...

    def stream(self, request: ActionRequest[R], /) -> Any: ...


class RemoteStore:
    """A Weaver store behind a service: `store.put(key=b"a", value=b"b")` calls its method `Put`.

    Methods take the fields of their request and return a protobuf message. Names may be written as
    in Python: `history_of` is `HistoryOf`.
    """

    def __init__(self, caller: _Caller, id: bytes | str) -> None:
        self._caller: Final = caller
        self._id: Final = parse_store_id(id) if isinstance(id, str) else bytes(id)
        found = caller.call(GetDescriptor(id=self._id))
        self._methods: Final = _methods(found.file_descriptor_set, found.service_name)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):  # of Python itself: copying and pickling ask for some
            raise AttributeError(name)
        try:
            method = self._find(name)
        except UnknownMethod as error:
            raise AttributeError(str(error)) from None
        return lambda **fields: self._call(method, fields)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._methods]

    def _find(self, name: str) -> Any:
        for known, method in self._methods.items():
            if known.casefold() == name.replace("_", "").casefold():
                return method
        raise UnknownMethod(f"the store has no method {name!r}; it has {', '.join(self._methods)}")

    def _call(self, method: Any, fields: dict[str, Any]) -> Any:
        payload = _request(method, fields)
        if method.server_streaming:
            return self._events(method, payload)
        found = self._caller.call(
            ExecMethod(store_id=self._id, method=method.name, payload=payload)
        )
        if found.error or found.error_code:
            raise _FAILURES.get(found.error_code, DataLatticeError)(found.error)
        return _answer(method, found.result)

    def _events(self, method: Any, payload: bytes) -> Iterator[Any]:
        """Return the events of a stream; leaving the iteration ends it."""
        names = [one.name for one in self._caller.call(ListStreams(id=self._id)).items]
        name = next(
            one for one in names if one.replace("-", "").casefold() == method.name.casefold()
        )
        request = SubscribeStream(store_id=self._id, stream_name=name, params=payload)

        def events() -> Iterator[Any]:
            with self._caller.stream(request) as stream:
                for event in stream:
                    yield _answer(method, event.payload)

        return events()


def _methods(descriptor_set: bytes, service: str) -> dict[str, Any]:
    """Return the methods of a described service, by name.

    Raises: BadFormat: it is no description of that service. LimitExceeded: it is too long.
    """
    if len(descriptor_set) > DESCRIPTOR_BYTES_MAX:
        raise LimitExceeded(f"the description of a store has at most {DESCRIPTOR_BYTES_MAX} bytes")
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file:
            pool.AddSerializedFile(file.SerializeToString())
        return {one.name: one for one in pool.FindServiceByName(service).methods}
    except (DecodeError, TypeError, KeyError, ValueError) as error:
        raise BadFormat(
            f"the store's description of {service:.80} cannot be used: {error}"
        ) from error


def _request(method: Any, fields: dict[str, Any]) -> bytes:
    cls = message_factory.GetMessageClass(method.input_type)
    try:
        data: bytes = cls(**fields).SerializeToString()
    except (TypeError, ValueError) as error:
        known = ", ".join(field.name for field in method.input_type.fields) or "none"
        raise UsageError(f"{method.name}: {error}; its fields are: {known}") from error
    return data


def _answer(method: Any, data: bytes) -> Any:
    try:
        return message_factory.GetMessageClass(method.output_type).FromString(data)
    except DecodeError as error:
        raise BadFormat(f"the answer of {method.name} is no {method.output_type.name}") from error
