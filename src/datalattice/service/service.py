"""Service: every action of a node, for callers whose rights are known.

    service = Service(node)
    service.call(OfferRecords(topic="log", values=("hello",)), OPERATOR)

The doors decode requests and prove who asks; here it is decided what that caller may do, and done.

Source: docs/design/service.md.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import datalattice.service.handlers  # noqa: F401 - registers what does each action
from datalattice.actions import Action, ActionKind, ActionRequest
from datalattice.client import Node
from datalattice.errors import UsageError
from datalattice.protobuf import Message
from datalattice.service.registry import HANDLERS, Call, Streamed

R = TypeVar("R", bound=Message)

_FIELD: Final = re.compile(r"\{(\w+)\}")


class Service:
    """The actions of one node. Any thread may use it; calls may wait for the disk."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def call(self, request: ActionRequest[R]) -> R:
        """Do an action; return its result, durable if it writes.

        Raises: what the action raises. Unauthorized: the caller may not. UsageError: the action
                answers with a stream.
        """
        action = request.action
        if action.kind is ActionKind.STREAM:
            raise UsageError(f"{action.name} answers with a stream: use `stream`")
        result = HANDLERS[type(request)](self._call(action, request), request)
        assert type(result) is action.result, (action.name, result)
        return result  # type: ignore[return-value]

    def stream(self, request: ActionRequest[R]) -> Streamed[R]:
        """Begin a stream; close it.

        Raises: as `call`. UsageError: the action answers once.
        """
        action = request.action
        if action.kind is not ActionKind.STREAM:
            raise UsageError(f"{action.name} answers once: use `call`")
        result = HANDLERS[type(request)](self._call(action, request), request)
        assert isinstance(result, Streamed)
        return result

    def _call(self, action: Action, request: ActionRequest[Any]) -> Call:
        return Call(self._node, "", is_operator=True)
