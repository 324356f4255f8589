"""Action: something that a user can ask of a node, declared once with its request and its result.

    @action("queue.offer", ActionKind.ONCE, "w", "lattice/queue/{owner}/{topic}",
            POST("/queues/{topic}/records"))
    class OfferRecords(ActionRequest[OfferedRecords], name="datalattice.v1.OfferRequest"):
        '''Append records; they are on disk when it returns.'''
        topic: Annotated[str, Field(1)] = ""
        ...

The class is the only declaration: its fields are the arguments on every door, its docstring is the
help text, its numbers are those of the protobuf message. A door finds an action by name, route or
method in `ACTIONS`; a client calls it with an instance and gets the type that `ActionRequest[...]`
names.

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
"""Package of the messages and services that the reference does not have."""

CALLER: Final = "caller"
"""In a scope, `{caller}` stands for the DID of the caller."""

JSON_TYPE: Final = "application/json"

_RIGHTS: Final = frozenset("rwpxa")
"""The rights that a caller may have: to read, write, pin, run, administer."""


class ActionKind(Enum):
    """Whether a client may repeat an action whose answer was lost, and how the action answers."""

    QUERY = "query"
    """It changes nothing."""

    EFFECT = "effect"
    """It changes something; done twice, it has the same effect as done once."""

    ONCE = "once"
    """Each time changes something: a client repeats it with the same id, and it is done once."""

    STREAM = "stream"
    """It answers with any number of results over time."""

    UPLOAD = "upload"
    """As EFFECT; the field `data` of its request may come in pieces and have any length."""


class ActionRequest(Message, Generic[R], name=""):
    """Base of the requests. R: the message of the answer, or of each result of a stream."""

    action: ClassVar[Action]


@dataclass(frozen=True, slots=True)
class Route:
    """The verb and path of an action in REST, and which fields its body and its answer hold.

    path:    below the base; `{field}` is a field of the request, `{field...}` may contain slashes.
    success: the status of the answer. body: the field that is the body; "": an object of all
             fields that the path does not have.
    answer:  the field of the result that is the answer, of media type `media`; "": an object of
             all fields. A text as `body` or `answer` is sent without quotes.
    query:   fields of the body that the query string may have instead.
    event:   the name of the events of a stream. at_root: the path is not below the base.
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
        """Return the full path. base: the path that all other routes are below."""
        return self.path if self.at_root else f"{base}{self.path}"

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields in the path."""
        return tuple(re.findall(r"\{(\w+)(?:\.\.\.)?\}", self.path))


def GET(path: str, answer: str = "") -> Route:  # noqa: N802 - verbs of HTTP are written so
    """Return a route that reads; fields that are not in the path are in the query string."""
    return Route("GET", path, answer=answer)


def POST(  # noqa: N802
    path: str, success: int = 200, body: str = "", answer: str = ""
) -> Route:
    """Return a route with a body."""
    return Route("POST", path, success, body, answer)


def PUT(path: str, success: int = 200, body: str = "", answer: str = "") -> Route:  # noqa: N802
    """Return a route with a body; a request may be repeated."""
    return Route("PUT", path, success, body, answer)


def DELETE(path: str) -> Route:  # noqa: N802
    """Return a route that removes; fields that are not in the path are in the query string."""
    return Route("DELETE", path, 204)


@dataclass(frozen=True, slots=True)
class Action:
    """One declared action.

    right: one of `_RIGHTS`. scope: where the caller needs the right, with `{field}` for fields of
    the request and `{caller}`; "": open to all. method: full name in gRPC,
    `package.Service/Method`. aliases: further routes; the clients of this package use `route`.
    is_tool: offered to language models. is_local: for the owner's own processes alone.
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
        """Its routes in REST, the one that clients use first."""
        return () if self.route is None else (self.route, *self.aliases)

    @property
    def doc(self) -> str:
        """The docstring of the request."""
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
"""The actions that only the control socket accepts: steps of one operation of the client."""


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
    """Declare the decorated request as an action.

    Arguments: as the fields of `Action`. method: by default the name of the class, in the service
    named after the first part of `name`.
    Raises: UsageError: the declaration is wrong; the text names the part.
    """

    def declare(request: _Q) -> _Q:
        # `ActionRequest[Result]` names the result once, for type checkers and for doors.
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
    # Names only: resolving the annotations of all messages takes longer than importing them.
    fields, answers = set(made.request.__annotations__), set(made.result.__annotations__)
    named = set(re.findall(r"\{(\w+)\}", made.scope)) - {CALLER}
    for route in made.routes:
        named |= {*route.fields, *route.query, *([route.body] if route.body else [])}
        if route.answer and route.answer not in answers:
            raise UsageError(f"action {made.name}: its result has no field {route.answer}")
    # Refused at import: a scope with an unknown name would check a right that no rule can give.
    if not named <= fields:
        raise UsageError(f"action {made.name}: no field {', '.join(sorted(named - fields))}")
    # The docstring is the help text on every door.
    if made.name in {*_actions, *_local} or made.right not in _RIGHTS or not made.request.__doc__:
        raise UsageError(
            f"action {made.name}: it needs a name of its own, one right of {sorted(_RIGHTS)}, and "
            "a docstring"
        )


def action_named(name: str) -> Action:
    """Return the action of this name. Raises: UnsupportedOperation: the name is unknown."""
    found = _actions.get(name) or _local.get(name)
    if found is None:
        raise UnsupportedOperation(f"no action is named {name!r:.80}; there are: {_near(name)}")
    return found


def _near(name: str) -> str:
    """Return the actions of the name's group; of an unknown group, the groups."""
    group = name.partition(".")[0]
    inside = sorted(known for known in _actions if known.partition(".")[0] == group)
    return ", ".join(inside or sorted({known.partition(".")[0] for known in _actions}))
