"""Service: every action of a node, for callers that a door has authenticated.

    service = Service(node)
    service.call(OfferRecords(topic="log", values=("hello",)), OPERATOR)

The doors decode requests and authenticate callers; the service decides what a caller may do and
does it.

Source: docs/design/service.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

import datalattice.service.handlers  # noqa: F401 - registers the handler of each action
from datalattice.actions import CALLER, Action, ActionKind, ActionRequest, DoorStatement, NodeEvent
from datalattice.apps.grid import Storage
from datalattice.cells import Keyword, Value, to_text
from datalattice.client import Node, canonical_path, parse_path_key
from datalattice.clock import Clock, SystemClock
from datalattice.cursors import EventRing
from datalattice.errors import UsageError
from datalattice.lattice import did_of, is_public_key
from datalattice.protobuf import Message
from datalattice.service.access import (
    ANYBODY,
    AccessControl,
    Credentials,
    Policy,
    Principal,
    check_body,
    could_allow,
    decide,
    join_scope,
    split_scope,
)
from datalattice.service.filelocks import FileLocks
from datalattice.service.registry import HANDLERS, ServiceCall, Streamed, Upload
from datalattice.service.requests import (
    REQUEST_LIMITS,
    KeptResults,
    RequestLimits,
    RequestMark,
    RequestRepeated,
    mark_of,
)
from datalattice.service.venue import VenueHost
from datalattice.weaver import store_id_text

R = TypeVar("R", bound=Message)

OPERATOR: Final = Principal(None, "process")
"""The program itself, which may do everything."""

# Base 58 takes divisions of large numbers, and calls name the same few owners.
_did_of: Final = lru_cache(1_024)(did_of)

NO_POLICY: Final = Policy()


class Service:
    """The actions of one node. Any thread may use it; calls may wait for the disk."""

    def __init__(
        self,
        node: Node,
        *,
        access: AccessControl | None = None,
        locks: FileLocks | None = None,
        doors: Callable[[], tuple[DoorStatement, ...]] = tuple,
        events: EventRing[NodeEvent] | None = None,
        clock: Clock | None = None,
        limits: RequestLimits = REQUEST_LIMITS,
        venue: VenueHost | None = None,
        contents: Storage | None = None,
        urls: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        """Make the service of a node.

        access: rules, rates and the audit; None: only the owner calls. locks: on files of drives;
        None: new ones. doors: returns the node's statements on the certificates of its doors.
        events: of the running node. limits: of the results kept for requests with an id. venue:
        runs the jobs; None: there is no venue. contents: stores the contents of assets; None: the
        lattice does. urls: returns those of the doors.
        """
        self._urls: Final = urls
        self._venue: Final = venue
        self._contents: Final = contents
        self._node: Final = node
        self._access: Final = access
        self._locks: Final = locks or FileLocks()
        self.doors: Final = doors
        self._events: Final = events
        self._requests: Final = KeptResults(node, clock or SystemClock(), limits)

    def call(
        self, request: ActionRequest[R], caller: Principal, *, request_id: str | None = None
    ) -> R:
        """Do an action; return its result, durable if it writes.

        request_id: for the kind ONCE: if the caller has sent this request with this id before, the
                    earlier result is returned and nothing is done. Other kinds ignore it.
        Raises: what the action raises. Unauthenticated, Unauthorized: the caller may not.
                UsageError: the action answers with a stream, or the id is invalid.
                RequestReused: the caller sent another request with this id.
        """
        action = request.action
        if action.kind is ActionKind.STREAM:
            raise UsageError(f"{action.name} answers with a stream: begin it with `stream`")
        # Rights first: a caller that has lost the right gets no earlier result.
        call = self._admitted(action, request, caller)
        mark = None if request_id is None else mark_of(request, caller, request_id)
        if mark is None or action.kind is not ActionKind.ONCE:
            result = HANDLERS[type(request)](call, request)
        else:
            result = self._call_once(call, request, mark)
        # A short body comes in the request itself instead of through `upload`.
        if isinstance(result, Upload):
            with result:
                result.write(request.data)  # type: ignore[attr-defined]
                result = result.finish()
        assert type(result) is action.result, (action.name, result)
        return result  # type: ignore[return-value]

    def _call_once(
        self, call: ServiceCall, request: ActionRequest[Any], mark: RequestMark
    ) -> Message:
        """Do an action of the kind ONCE, or return its earlier result."""
        action, handler, requests = request.action, HANDLERS[type(request)], self._requests
        try:
            # "A row is written in the commit of the effect" (`requests`); the scope of the action
            # says which store commits.
            if action.scope.startswith("lattice/"):
                return requests.in_lattice(mark, lambda: _answered(handler(call, request)))
            # The venue commits jobs itself, and stores the id of the request with the job.
            if action.scope.startswith("venue/"):
                return _answered(handler(replace(call, request_id=mark.id.hex()), request))
            once = partial(requests.in_stores, mark)
            return _answered(handler(replace(call, once=once), request))
        except RequestRepeated as found:
            return action.result.decode(found.result)

    def upload(self, request: ActionRequest[R], caller: Principal) -> Upload[R]:
        """Begin an upload and return it; write the body to it and close it.

        Raises: as `call`. UsageError: the action is not of the kind UPLOAD.
        """
        action = request.action
        if action.kind is not ActionKind.UPLOAD:
            raise UsageError(f"{action.name} accepts no body in pieces: use `call`")
        result = HANDLERS[type(request)](self._admitted(action, request, caller), request)
        assert isinstance(result, Upload)
        return result

    def stream(self, request: ActionRequest[R], caller: Principal) -> Streamed[R]:
        """Begin a stream; close it. Raises: as `call`. UsageError: the action answers once."""
        action = request.action
        if action.kind is not ActionKind.STREAM:
            raise UsageError(f"{action.name} answers once: use `call`")
        result = HANDLERS[type(request)](self._admitted(action, request, caller), request)
        assert isinstance(result, Streamed)
        return result

    def check_right(self, request: ActionRequest[Any], caller: Principal) -> None:
        """Raise if the caller may not do this action; do nothing else.

        Raises: Unauthenticated, Unauthorized: the caller may not. UsageError: a field that the
                scope needs is invalid.
        """
        scope, _ = self._scope(request.action, request, caller)
        self.check_scope(request.action.right, scope, caller)

    def check_scope(self, right: str, scope: str, caller: Principal) -> None:
        """Raise unless the caller has a right on a scope. Raises: Unauthenticated, Unauthorized."""
        decide(self._policy(), caller, right, scope).require()

    def _policy(self) -> Policy:
        return NO_POLICY if self._access is None else self._access.policy()

    def check_head(
        self,
        request: ActionRequest[Any],
        caller: Principal,
        unread: Collection[str] = (),
    ) -> None:
        """Raise before the body is read if no body can make the call allowed.

        unread: the fields of the request that come with the body.
        Raises: RateLimited. Unauthenticated, Unauthorized: the caller may not do this with any
                body. UsageError: a field that the scope needs is invalid.
        """
        action, access, policy = request.action, self._access, self._policy()
        if access is not None:
            access.check_rate(action, caller)
        scope, is_whole = self._scope(action, request, caller, unread)
        # Open to all, or the first segment is in the body: the complete call decides.
        if not scope:
            return
        decision = decide(policy, caller, action.right, scope)
        if decision.is_allowed or (
            not is_whole and could_allow(policy, caller, action.right, scope)
        ):
            return  # the call itself, with its body, is counted and audited
        if access is not None:
            access.witness(action, caller, decision)
        decision.require()

    def check_body(self, credentials: Credentials, body_sha256: bytes) -> None:
        """Check a body against the signature of its head. Raises: Unauthenticated."""
        if self._access is not None:
            self._access.check_body(credentials, body_sha256)
        else:
            check_body(credentials, body_sha256)

    def _admitted(
        self, action: Action, request: ActionRequest[Any], caller: Principal
    ) -> ServiceCall:
        """Return the call for the handler, counted and audited. Raises: as `call`: no right."""
        access, policy, decision = self._access, self._policy(), None
        # An action without a scope is open to all: it is counted, and no right is checked.
        if action.scope:
            scope, _ = self._scope(action, request, caller)
            decision = decide(policy, caller, action.right, scope)
        if access is not None:
            # Before the refusal is raised: it is recorded, too.
            access.witness(action, caller, decision)
        if decision is not None:
            decision.require()
        return ServiceCall(
            self._node,
            caller,
            policy,
            self._locks,
            self.doors,
            access,
            self._events,
            venue=self._venue,
            contents=self._contents,
            urls=self._urls,
        )

    def _scope(
        self,
        action: Action,
        request: ActionRequest[Any],
        caller: Principal,
        unread: Collection[str] = (),
    ) -> tuple[str, bool]:
        """Return the action's scope with the values of the request, and whether it is complete.

        It ends before the first field of `unread`, and is incomplete then.
        """
        segments: list[str] = []
        for part in filter(None, action.scope.split("/")):
            name = part[1:-1] if part.startswith("{") else None
            if name in unread:
                return join_scope(*segments) if segments else "", False
            if name is None:
                segments.append(part)
            elif name == CALLER:
                segments.append(caller.did or ANYBODY)
            elif name == "scope":
                segments += split_scope(request.scope)  # type: ignore[attr-defined]
            elif name == "path":
                segments += self._path(request.path)  # type: ignore[attr-defined]
            elif name == "owner":
                # "The scope names an owner by DID whatever spelling the request used"
                # (docs/design/service.md).
                segments.append(_named(self._node.owner_key(request.owner)))  # type: ignore[attr-defined]
            else:
                value = getattr(request, name)
                # Without the segment, the right would be checked on the scope above: on all stores
                # instead of one.
                if not value:
                    raise UsageError(f"{name} is empty; {action.name} needs it")
                segments.append(store_id_text(value) if isinstance(value, bytes) else value)
        return join_scope(*segments) if segments else "", True

    def _path(self, path: str) -> list[str]:
        """Return the segments of a scope for a path of the lattice."""
        # In one spelling, whatever the caller wrote: rules name that one.
        keys = canonical_path([parse_path_key(part) for part in path.split("/") if part])
        return [_named(key) for key in keys]


def _answered(result: Message | Streamed[Any] | Upload[Any]) -> Message:
    assert isinstance(result, Message), "an action of the kind ONCE answers once"
    return result


def _named(key: Value) -> str:
    """Return the segment for a key of a path: an owner's DID, a section without its colon."""
    if isinstance(key, bytes) and is_public_key(key):
        return _did_of(key)
    if isinstance(key, Keyword):
        return str(key.name)
    return key if isinstance(key, str) else to_text(key)
