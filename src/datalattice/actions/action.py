"""Action: something that a user can have a node do, declared once with its request and its result.

    @action("queue.offer", ActionKind.ONCE, "w", "lattice/queue/{owner}/{topic}",
            POST("/queues/{topic}/records"))
    class OfferRecords(ActionRequest[OfferedRecords], name="datalattice.v1.OfferRequest"):
        '''Append records; they are on disk when it returns.'''
        topic: Annotated[str, Field(1)] = ""
        ...

The class is all there is: its fields are the arguments on every door, its docstring is the help
text, its numbers are those of the protobuf message. A door finds an action by name, route or method
in `ACTIONS`; a client calls it with an instance, and gets the type that `ActionRequest[...]` names.

Source: docs/design/service.md "Actions".
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final, Generic, TypeVar

from datalattice.errors import UnsupportedOperation, UsageError
from datalattice.protobuf import Message

R = TypeVar("R")
_Q = TypeVar("_Q", bound="type[ActionRequest[Any]]")

PACKAGE: Final = "datalattice.v1"
"""Package of the messages and services that are our own."""

CALLER: Final = "caller"
"""In a scope, `{caller}` is the DID of who asks."""

JSON_TYPE: Final = "application/json"

_RIGHTS: Final = frozenset("rwpxa")
"""What a caller may be allowed: to read, write, pin, run, administer."""


class ActionKind(Enum):
    """What may be done with an action whose answer was lost, and how it answers."""

    QUERY = "query"
    """It changes nothing."""

    EFFECT = "effect"
    """It changes something; made twice, it has the same effect as made once."""

    ONCE = "once"
    """It changes something each time: a request with an id may be repeated, and is done once."""

    STREAM = "stream"
    """It answers with any number of results, over time."""

    UPLOAD = "upload"
    """As EFFECT; the field `data` of its request may come in pieces, and be of any length."""


class ActionRequest(Message, Generic[R], name=""):
    """Base of the requests. R: the message that answers, or each of those of a stream."""

    action: ClassVar[Action]


@dataclass(frozen=True, slots=True)
class Route:
    """Where REST has an action.

    path:    from the base on; `{field}` is a field of the request, `{field...}` may have slashes.
    success: the status of the answer. body: the field that is the body; "" for all other fields.
    answer:  the field of the result that is the answer, in the media type `media`; "" for all
             fields. A text, as `body` or `answer`, stands as it is.
    query:   fields that may also stand in the query string, where the body has them.
    event:   the name of the events of a stream. at_root: the path does not begin at the base.
    """

    verb: str
    path: str
    success: int = 200
    body: str = ""
    answer: str = ""
    media: str = JSON_TYPE
    event: str = ""
    at_root: bool = False
    query: tuple[str, ...] = ()

    def target(self, base: str) -> str:
        """Return the path from the root on. base: where the other routes begin."""
        return self.path if self.at_root else f"{base}{self.path}"

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that stand in the path."""
        return tuple(re.findall(r"\{(\w+)(?:\.\.\.)?\}", self.path))


def GET(path: str, answer: str = "") -> Route:  # noqa: N802 - verbs of HTTP are written so
    """Return a route that reads; fields outside of its path are in the query string."""
    return Route("GET", path, answer=answer)


def POST(  # noqa: N802
    path: str, success: int = 200, body: str = "", answer: str = ""
) -> Route:
    """Return a route with a body."""
    return Route("POST", path, success, body, answer)


def PUT(path: str, success: int = 200, body: str = "", answer: str = "") -> Route:  # noqa: N802
    """Return a route with a body, which may be repeated."""
    return Route("PUT", path, success, body, answer)


def DELETE(path: str) -> Route:  # noqa: N802
    """Return a route that removes; fields outside of its path are in the query string."""
    return Route("DELETE", path, 204)


@dataclass(frozen=True, slots=True)
class Action:
    """One declared action.

    right: one of `_RIGHTS`. scope: what the right is asked for, with `{field}` for fields of the
    request and `{caller}`; "" is open to all. method: full name in gRPC, `package.Service/Method`.
    aliases: routes beside `route`, which clients of ours do not take.
    is_tool: shown to language models. is_local: for the owner's own processes alone.
    """

    name: str
    kind: ActionKind
    right: str
    scope: str
    route: Route | None
    request: type[ActionRequest[Any]]
    result: type[Message]
    method: str
    is_tool: bool
    is_local: bool
    aliases: tuple[Route, ...] = ()

    @property
    def routes(self) -> tuple[Route, ...]:
        """Where REST has it."""
        return () if self.route is None else (self.route, *self.aliases)

    @property
    def doc(self) -> str:
        """What it does, in the words of its declaration."""
        return typing.cast("str", self.request.__doc__)

    @property
    def summary(self) -> str:
        """The first line of `doc`."""
        return self.doc.partition("\n")[0]


_actions: Final[dict[str, Action]] = {}
_local: Final[dict[str, Action]] = {}

ACTIONS: Final[Mapping[str, Action]] = _actions
"""The actions that doors offer, by name."""

LOCAL_ACTIONS: Final[Mapping[str, Action]] = _local
"""Those that only the control socket takes: steps of what the client does as one."""


def action(
    name: str,
    kind: ActionKind,
    right: str,
    scope: str,
    route: Route | None = None,
    *,
    method: str = "",
    is_tool: bool = False,
    is_local: bool = False,
    aliases: tuple[Route, ...] = (),
) -> Callable[[_Q], _Q]:
    """Declare the request that it decorates as an action.

    method: of gRPC; by default the class's name, in the service of the name's first part.
    is_local: only the owner's own processes may use it, through the control socket.
    Raises: UsageError: the declaration is wrong; the text says what is.
    """

    def declare(request: _Q) -> _Q:
        result = typing.get_args(request.__orig_bases__[0])[0]  # type: ignore[attr-defined]
        group = name.partition(".")[0]
        made = Action(
            name,
            kind,
            right,
            scope,
            route,
            request,
            result,
            method or f"{PACKAGE}.{group.capitalize()}Service/{request.__name__}",
            is_tool,
            is_local,
            aliases,
        )
        _check(made)
        request.action = made
        (_local if is_local else _actions)[name] = made
        return request

    return declare


def _check(made: Action) -> None:
    # By name alone: to resolve the annotations of all messages takes longer than to import them.
    fields, answers = set(made.request.__annotations__), set(made.result.__annotations__)
    named = set(re.findall(r"\{(\w+)\}", made.scope)) - {CALLER}
    for route in made.routes:
        named |= {*route.fields, *route.query, *([route.body] if route.body else [])}
        if route.answer and route.answer not in answers:
            raise UsageError(f"action {made.name}: its result has no field {route.answer}")
    # At import: a scope with a name that no field has would ask for a right on nothing.
    if not named <= fields:
        raise UsageError(f"action {made.name}: no field {', '.join(sorted(named - fields))}")
    # The docstring is the help text on every door, so an action without one is not finished.
    if made.name in {*_actions, *_local} or made.right not in _RIGHTS or not made.request.__doc__:
        raise UsageError(
            f"action {made.name}: it needs a name, one right of {sorted(_RIGHTS)}, and a docstring"
        )


def action_named(name: str) -> Action:
    """Return the action of a name. Raises: UnsupportedOperation: the name is unknown."""
    found = _actions.get(name) or _local.get(name)
    if found is None:
        raise UnsupportedOperation(f"there is no action {name!r}; the group has: {_near(name)}")
    return found


def _near(name: str) -> str:
    group = name.partition(".")[0]
    inside = sorted(known for known in _actions if known.partition(".")[0] == group)
    return ", ".join(inside or sorted({known.partition(".")[0] for known in _actions}))
