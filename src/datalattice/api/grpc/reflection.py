"""Reflection: describes the services of a door, and of its stores' machines, to clients.

The packaged servicer has a fixed list of services. Here the machines of new stores appear at once,
each kind in its own descriptor pool, because two kinds may declare messages of the same name. A
caller sees the stores that it may read.

Source: docs/grpc.md "Reflection".
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection_pb2 as wire

from datalattice.actions import ACTIONS, ActionKind, GetDescriptor, ListStores, StoreRef
from datalattice.errors import BadFormat, NoSuchPath, Unauthenticated, Unauthorized
from datalattice.protobuf import RpcMethod, descriptor_set, service_descriptor
from datalattice.service import Service
from datalattice.service.access import Principal

REFLECTION_METHODS: Final = (
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
"""Both versions of the protocol, whose messages differ only in the name of the package."""

_STORES_MAX: Final = 1_000
"""Most stores whose kinds are described."""

KINDS_MAX: Final = 64
"""Most descriptions of machines that are cached."""

_NOT_FOUND: Final = 5
_INVALID: Final = 3


class _Described:
    """Some services, with all descriptor files that they need."""

    def __init__(self, files: bytes, services: tuple[str, ...]) -> None:
        self.services: Final = services
        self._pool: Final = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(files).file:
            self._pool.AddSerializedFile(file.SerializeToString())

    def files(self, name: str, *, is_symbol: bool) -> list[bytes] | None:
        """Return the file with this name or symbol, then the files it needs; None: no such file."""
        pool = self._pool
        try:
            found = pool.FindFileContainingSymbol(name) if is_symbol else pool.FindFileByName(name)
        except KeyError:
            return None
        files: dict[str, bytes] = {}
        pending: list[Any] = [found]
        while pending:
            file = pending.pop()
            # Each file once: a client that adds a file twice may fail.
            if file.name not in files:
                files[file.name] = file.serialized_pb
                pending += file.dependencies
        return list(files.values())


def _actions() -> _Described:
    methods: dict[str, list[RpcMethod]] = {}
    for action in ACTIONS.values():
        service, _, name = action.method.partition("/")
        is_stream = action.kind is ActionKind.STREAM
        is_upload = action.kind is ActionKind.UPLOAD
        methods.setdefault(service, []).append(
            RpcMethod(name, action.request, action.result, is_stream, is_upload)
        )
    messages = [cls for calls in methods.values() for one in calls for cls in one[1:3]]
    files = descriptor_set(*messages)
    for service, calls in methods.items():
        files += service_descriptor(service, calls)
    return _Described(files, tuple(sorted(methods)))


class Reflection:
    """Answers reflection requests. Any thread may use it."""

    def __init__(self, service: Service) -> None:
        self._service: Final = service
        self._own: Final = _actions()
        self._kinds: Final[OrderedDict[bytes, _Described]] = OrderedDict()
        self._lock: Final = threading.Lock()

    def answer(self, data: bytes, caller: Principal) -> bytes:
        """Return the encoded answer to an encoded request.

        Raises: BadFormat: the bytes are not a request. As the actions on stores.
        """
        try:
            request = wire.ServerReflectionRequest.FromString(data)
        except DecodeError as error:
            raise BadFormat(f"the bytes are not a ServerReflectionRequest: {error}") from error
        found = wire.ServerReflectionResponse(
            valid_host=request.host, original_request=request, **self._found(request, caller)
        )
        encoded: bytes = found.SerializeToString()
        return encoded

    def _found(self, request: Any, caller: Principal) -> dict[str, Any]:
        asked = request.WhichOneof("message_request")
        # `_all` yields only what the caller may list, so no answer reveals other stores.
        if asked == "list_services":
            names = {name for one in self._all(caller) for name in one.services}
            services = [wire.ServiceResponse(name=name) for name in sorted(names)]
            return {"list_services_response": wire.ListServiceResponse(service=services)}
        if asked in ("file_containing_symbol", "file_by_filename"):
            name = getattr(request, asked)
            for one in self._all(caller):
                files = one.files(name, is_symbol=asked == "file_containing_symbol")
                if files is not None:
                    return {
                        "file_descriptor_response": wire.FileDescriptorResponse(
                            file_descriptor_proto=files
                        )
                    }
            return _refused(_NOT_FOUND, f"there is no file or symbol {name[:80]!r}")
        if asked is None:
            return _refused(_INVALID, "the request has none of the questions of this protocol")
        return _refused(_NOT_FOUND, "proto3 has no extensions")

    def _all(self, caller: Principal) -> Iterator[_Described]:
        """Yield our own services, then those of the stores' machines, one for each kind."""
        yield self._own
        kinds: set[str] = set()
        for store in self._stores(caller):
            if store.store_type in kinds:
                continue
            kinds.add(store.store_type)
            try:
                found = self._service.call(GetDescriptor(id=store.id), caller)
            except (NoSuchPath, Unauthorized, Unauthenticated):
                continue  # this program lacks the machine, or the caller may not read the store
            yield self._described(found.file_descriptor_set, found.service_name)

    def _stores(self, caller: Principal) -> Iterator[StoreRef]:
        """Yield the stores that a caller may list, those without a parent first."""
        parents: list[bytes | None] = [None]
        seen: set[bytes] = set()
        # Peers declare the tree of stores, which may be huge or have a cycle.
        while parents and len(seen) < _STORES_MAX:
            try:
                found = self._service.call(ListStores(parent_id=parents.pop(0)), caller).items
            except (Unauthorized, Unauthenticated):
                return  # this caller may list no stores
            for store in found:
                if store.id not in seen:
                    seen.add(store.id)
                    parents.append(store.id)
                    yield store

    def _described(self, files: bytes, service: str) -> _Described:
        with self._lock:
            found = self._kinds.get(files)
            if found is None:
                found = self._kinds[files] = _Described(files, (service,))
                if len(self._kinds) > KINDS_MAX:
                    self._kinds.popitem(last=False)
            return found


def _refused(code: int, text: str) -> dict[str, Any]:
    return {"error_response": wire.ErrorResponse(error_code=code, error_message=text)}
