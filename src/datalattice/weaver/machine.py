"""Machine: what a user writes to define a replicated state machine of their own.

    class Tally(Machine):
        kind = "example:tally"

        def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterable[Message]:
            state.put(op.author, op.payload)
            return [Counted(author=op.author)]

        @command
        def count(self, request: Count, state: StateReader, dag: Dag) -> Proposal[Written]:
            return Proposal(request.encode())

        @query
        def total(self, request: Ask, state: StateReader, dag: Dag) -> Total: ...

        @stream
        def changes(self, params: Ask) -> Callable[[Message], Counted | None]: ...

`apply` is the only code that changes the state. It must be deterministic: the state may depend on
the set of applied operations, never on the order of concurrent ones, on time or on chance. It fails
only for a payload that this node cannot read; projection then stops at that operation until the
machine can read it. What a request must satisfy is checked by its command, before anything is
signed.

Names, requests and responses are read from the annotations, so messages are declared at the level
of a module.

Source: docs/design/weaver.md "Machines".
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from datalattice.errors import UnsupportedOperation, UsageError
from datalattice.protobuf import Field, Message, RpcMethod, descriptor_set, service_descriptor
from datalattice.weaver.op import Op
from datalattice.weaver.sexpr import SExpr, message_to_sexpr

_KIND: Final = re.compile(r"[a-z0-9_.-]+:[a-z0-9_.-]+")  # as in the reference: `core:kvstore`


class StateReader(Protocol):
    """The state of one machine: an ordered table of bytes."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""

    def scan(
        self, start: bytes = b"", end: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield `(key, value)` for start <= key < end in key order, or in reverse."""


class StateWriter(StateReader, Protocol):
    """The state while an operation is applied; reads see its own writes."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of `key`."""

    def delete(self, key: bytes) -> None:
        """Remove `key`, if it is there."""


class Dag(Protocol):
    """The operations of the store, linked by their dependencies.

    A machine sees its own payloads; operations of other kinds have an empty one.
    """

    def intention(self, hash: bytes) -> Op:
        """Return a witnessed operation.

        Raises: UsageError: the hash is unknown.
        """

    def is_ancestor(self, ancestor: bytes, descendant: bytes) -> bool:
        """Return whether dependencies lead from `descendant` to `ancestor`; true for one hash."""

    def find_lca(self, first: bytes, second: bytes) -> bytes:
        """Return the lowest common ancestor; of several the one with the greatest stamp."""

    def path(self, start: bytes, to: bytes) -> list[bytes]:
        """Return the operations between two, dependencies first, without `start`, with `to`."""


class StateTables(NamedTuple):
    """The tables that an operation of a store may change: the machine's, and two of the store."""

    data: StateWriter
    system: StateWriter
    meta: StateWriter


class Layer(Protocol):
    """What projection applies operations to: a machine, or the routing in front of one."""

    @property
    def kind(self) -> str:
        """The kind of the machine."""

    @property
    def schema(self) -> int:
        """The schema of the machine."""

    def apply(self, op: Op, tables: StateTables, dag: Dag) -> Iterable[Message]:
        """Change the tables and return what happened, in order; as `Machine.apply`."""


class Written(Message, name="lattice.machine.Written"):
    """Answer of a command that returns only the hash of its operation."""

    hash: Annotated[bytes, Field(1)] = b""


_Answer = TypeVar("_Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class Proposal(Generic[_Answer]):
    """What a command wants written: one operation.

    deps: hashes of the operations it replaces or depends on. response: makes the answer of the
    command from the hash of the signed operation; without it the answer is `Written`.
    """

    payload: bytes
    deps: Iterable[bytes] = ()
    response: Callable[[bytes], _Answer] | None = None

    def answer(self, hash: bytes) -> Message:
        """Return the answer of the command, once its operation has this hash."""
        return Written(hash=hash) if self.response is None else self.response(hash)


EventFilter = Callable[[Message], Message | None]
"""What a stream delivers for an event of `apply`; None for nothing."""


class MethodKind(IntEnum):
    """How a method is called."""

    COMMAND = 0
    QUERY = 1


@dataclass(frozen=True, slots=True)
class Method:
    """A command or query of a machine. `attribute` is the name of its Python method."""

    name: str
    kind: MethodKind
    description: str
    request: type[Message]
    response: type[Message]
    attribute: str


@dataclass(frozen=True, slots=True)
class StreamMethod:
    """A stream of events of a machine. `attribute` is the name of its Python method."""

    name: str
    description: str
    params: type[Message]
    event: type[Message]
    attribute: str


_F = TypeVar("_F", bound=Callable[..., Any])

_MARK: Final = "__weaver__"


def command(function: _F) -> _F:
    """Mark a method `(request, state, dag) -> Proposal[Answer]` as a command.

    It reads the present state and returns what to sign; its name for callers is in camel case.
    """
    return _marked(function, "command")


def query(function: _F) -> _F:
    """Mark a method `(request, state, dag) -> Answer` as a query; its name is in camel case."""
    return _marked(function, "query")


def stream(function: _F) -> _F:
    """Mark a method `(params) -> Callable[[Message], Event | None]` as a stream.

    The returned filter is called with every event of `apply`, after its commit. The name for
    callers is that of the method, with hyphens.
    """
    return _marked(function, "stream")


def _marked(function: _F, mark: str) -> _F:
    setattr(function, _MARK, mark)
    return function


class UnknownMethod(UsageError):
    """A machine has no method or stream of this name."""

    code = "unknown-method"


class InvalidParams(UsageError):
    """The parameters of a stream cannot be used."""

    code = "invalid-params"


class Machine:
    """Base of all state machines.

    kind: "namespace:name", which all nodes of a store must share. aliases: other names under which
    a store of this kind may be created. schema: raise it when `apply` gives another state for the
    same operations; an older state is then rebuilt from the log. service: full name of the service
    in the descriptors; by default made from the kind. payload: message of a payload, for display.
    """

    kind: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    schema: ClassVar[int] = 1
    service: ClassVar[str] = ""
    payload: ClassVar[type[Message] | None] = None
    _declared: ClassVar[tuple[tuple[Method, ...], tuple[StreamMethod, ...]] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._declared = None  # a subclass has an interface of its own
        kind = cls.__dict__.get("kind")
        # A kind is part of signed data: one spelling for all nodes.
        if kind is not None and not _KIND.fullmatch(kind):
            raise UsageError(
                f"{cls.__name__}.kind is written namespace:name in lower case, got {kind!r}"
            )
        for name, member in cls.__dict__.items():
            # `apply` or `query` as a command would hide the machine's own.
            if hasattr(member, _MARK) and hasattr(Machine, name):
                raise UsageError(
                    f"{cls.__name__}.{name}: every machine has `{name}`; take another name"
                )

    def apply(self, op: Op, state: StateWriter, dag: Dag) -> Iterable[Message]:
        """Change the state by an operation; return its events in order.

        To apply it again changes nothing.
        """
        raise UnsupportedOperation(f"{type(self).__name__} has no apply")

    def references(self, payload: bytes) -> Iterable[bytes]:
        """Return the hashes of lattice cells that a payload names; none unless a machine says so.

        A node that serves the store fetches them, with all below them, from its peers, and keeps
        them.
        Raises: BadFormat: it is not a payload of this machine.
        """
        return ()

    # --- introspection --------------------------------------------------------------------------

    @classmethod
    def methods(cls) -> tuple[Method, ...]:
        """Return commands and queries, in the order of their declaration.

        Raises: UsageError: an annotation is missing or does not name a message.
        """
        return cls._interface()[0]

    @classmethod
    def streams(cls) -> tuple[StreamMethod, ...]:
        """Return the streams, in the order of their declaration."""
        return cls._interface()[1]

    @classmethod
    def find_method(cls, name: str) -> Method:
        """Return the method of this name, in upper or lower case.

        Raises: UnknownMethod: the name is unknown; the text lists the known ones.
        """
        return _find(cls.kind, "method", name, cls.methods())

    @classmethod
    def find_stream(cls, name: str) -> StreamMethod:
        """Return the stream of this name, as `find_method`."""
        return _find(cls.kind, "stream", name, cls.streams())

    @classmethod
    def service_name(cls) -> str:
        """Return the full name of the service in `descriptor_set`."""
        if cls.service:
            return cls.service
        namespace, _, name = cls.kind.partition(":")
        return f"{namespace.replace('-', '_')}.{_camel(name)}"  # protobuf names have no hyphens

    @classmethod
    def descriptor_set(cls) -> bytes:
        """Return a FileDescriptorSet of all messages, and of a service with all methods."""
        return _describe(cls)

    @classmethod
    def decode_payload(cls, payload: bytes) -> Message | None:
        """Return a payload as its message; None for a machine whose payloads are plain bytes.

        Raises: BadFormat: it is not one.
        """
        return None if cls.payload is None else cls.payload.decode(payload)

    def summarize(self, payload: bytes) -> tuple[SExpr, ...]:
        """Return a payload for display, one expression an operation.

        Raises: BadFormat: it is not a payload of this machine.
        """
        message = self.decode_payload(payload)
        return (payload if message is None else message_to_sexpr(message),)

    @classmethod
    def _interface(cls) -> tuple[tuple[Method, ...], tuple[StreamMethod, ...]]:
        if cls._declared is None:
            # A subclass that overrides a method keeps the place of the first declaration.
            names = dict.fromkeys(
                name
                for base in reversed(cls.__mro__)
                for name, member in base.__dict__.items()
                if hasattr(member, _MARK)
            )
            methods: list[Method] = []
            streams: list[StreamMethod] = []
            for name in names:
                declared = _declaration(cls, name)
                if isinstance(declared, Method):
                    methods.append(declared)
                else:
                    streams.append(declared)
            cls._declared = (tuple(methods), tuple(streams))
        return cls._declared

    # --- calls ----------------------------------------------------------------------------------

    def execute(
        self, name: str, request: Message, state: StateReader, dag: Dag
    ) -> Proposal[Message]:
        """Run a command; nothing is written yet.

        Raises: UnknownMethod, UsageError, and what the command raises.
        """
        method = self.find_method(name)
        # A query answers with a message, so there is nothing to sign.
        if method.kind is not MethodKind.COMMAND:
            raise UnknownMethod(f"{self.kind}: {method.name} is a query, not a command")
        _check_request(method.name, method.request, request)
        proposal: Proposal[Message] = getattr(self, method.attribute)(request, state, dag)
        return proposal

    def query(self, name: str, request: Message, state: StateReader, dag: Dag) -> Message:
        """Answer a query.

        Raises: as `execute`.
        """
        method = self.find_method(name)
        if method.kind is not MethodKind.QUERY:
            raise UnknownMethod(f"{self.kind}: {method.name} is a command, not a query")
        _check_request(method.name, method.request, request)
        answer: Message = getattr(self, method.attribute)(request, state, dag)
        return answer

    def event_filter(self, name: str, params: Message) -> EventFilter:
        """Return the filter that makes of an event what a subscriber of the stream gets.

        Raises: UnknownMethod, UsageError, InvalidParams.
        """
        found = self.find_stream(name)
        _check_request(found.name, found.params, params)
        made: EventFilter = getattr(self, found.attribute)(params)
        return made


_D = TypeVar("_D", Method, StreamMethod)


def _find(kind: str, what: str, name: str, known: Sequence[_D]) -> _D:
    for one in known:
        if one.name == name:  # the exact name first: two methods may differ in case alone
            return one
    for one in known:
        if one.name.casefold() == name.casefold():
            return one
    names = ", ".join(one.name for one in known) or "none"
    raise UnknownMethod(f"{kind} has no {what} {name!r}; it has {names}")


def _check_request(name: str, expected: type[Message], given: Message) -> None:
    if not isinstance(given, expected):
        raise UsageError(f"{name} takes a {expected.__name__}, got {type(given).__name__}")


def _declaration(cls: type[Machine], attribute: str) -> Method | StreamMethod:
    """Return what the annotations of a marked method say."""
    function = getattr(cls, attribute)
    mark = getattr(function, _MARK, None)
    where = f"{cls.__name__}.{attribute}"
    if mark is None:
        # A silent override would drop the method from the interface.
        raise UsageError(f"{where} replaces a method without saying @command, @query or @stream")
    hints = typing.get_type_hints(function)
    result = hints.pop("return", None)
    request = next(iter(hints.values()), None)
    if not (isinstance(request, type) and issubclass(request, Message)):
        raise UsageError(f"{where}: annotate its first parameter with a message")
    # The first line: shown in lists of methods.
    description = (function.__doc__ or "").strip().partition("\n")[0]
    answer = _answer_of(mark, result)
    if answer is None:
        raise UsageError(
            f"{where}: a command returns Proposal[Answer], a query Answer, a stream "
            f"Callable[[Message], Event | None], each with a message; got {result!r}"
        )
    if mark == "stream":
        return StreamMethod(attribute.replace("_", "-"), description, request, answer, attribute)
    kind = MethodKind.COMMAND if mark == "command" else MethodKind.QUERY
    return Method(_camel(attribute), kind, description, request, answer, attribute)


def _answer_of(mark: str, result: Any) -> type[Message] | None:
    """Return the message that the annotation of a result names."""
    found: Any = result
    arguments = typing.get_args(result)
    if mark == "command":
        if (typing.get_origin(result) or result) is not Proposal:
            return None
        found = arguments[0] if arguments else Written
    elif mark == "stream":
        if len(arguments) != 2:
            return None
        found = arguments[1]
        # `Event | None`: one message type is left.
        if typing.get_origin(found) in {typing.Union, types.UnionType}:
            found, *more = [one for one in typing.get_args(found) if one is not type(None)]
            found = None if more else found
    return found if isinstance(found, type) and issubclass(found, Message) else None


def _camel(name: str) -> str:
    return "".join([word[:1].upper() + word[1:] for word in re.split(r"[_.-]", name)])


# --- descriptors --------------------------------------------------------------------------------


def _describe(cls: type[Machine]) -> bytes:
    """Return the messages of a machine, and its service in a file of its own."""
    calls = [RpcMethod(one.name, one.request, one.response) for one in cls.methods()]
    calls += [
        RpcMethod(_camel(one.attribute), one.params, one.event, is_stream=True)
        for one in cls.streams()
    ]
    messages = [message for call in calls for message in (call.request, call.answer)]
    messages += [] if cls.payload is None else [cls.payload]
    return descriptor_set(*messages) + service_descriptor(cls.service_name(), calls)
