"""Remote: what the clients of all doors share: timeouts, request ids and repeated calls.

Source: docs/clients.md.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, Final, TypeVar

from datalattice.actions import ActionKind, ActionRequest
from datalattice.client.calling import Client, check_answer_kind
from datalattice.client.control import CALL_TIMEOUT_S
from datalattice.client.resumption import RESUME_S
from datalattice.client.retrying import RETRY_POLICY, Attempts, RetryPolicy
from datalattice.crypto import Entropy, SystemEntropy
from datalattice.errors import DataLatticeError
from datalattice.protobuf import Message

R = TypeVar("R", bound=Message)


class CallPolicy:
    """How a client of a door waits and repeats.

    timeout_s: longest wait for the answer to a call.
    entropy:   makes the ids of requests. retry: how often a request with an id is sent again.
    resume_s:  how long a stream tries to resume after a lost connection; 0: not at all.
    """

    def __init__(
        self,
        timeout_s: float = CALL_TIMEOUT_S,
        entropy: Entropy | None = None,
        retry: RetryPolicy = RETRY_POLICY,
        resume_s: float = RESUME_S,
    ) -> None:
        self._timeout_s: Final = timeout_s
        self._entropy: Final = entropy or SystemEntropy()
        self._retry: Final = retry
        self._resume_s: Final = resume_s

    def _attempts(self, request: ActionRequest[Any], request_id: str | None) -> Attempts | None:
        """Return the attempts of a call with an id; None: the action is not of kind ONCE."""
        check_answer_kind(request, stream=False)
        # Actions of other kinds have the same effect when repeated, so the caller may do that.
        if request.action.kind is not ActionKind.ONCE:
            return None
        return Attempts(self._retry, self._entropy, request.action.name, request_id)


class RemoteClient(CallPolicy, Client, ABC):
    """A client of a door, for programs without an event loop."""

    @abstractmethod
    def _call(self, request: ActionRequest[R], request_id: str | None = None) -> R:
        """Send one request; return its result."""

    def call(self, request: ActionRequest[R], *, request_id: str | None = None) -> R:
        """Perform an action; as `Client.call`."""
        attempts = self._attempts(request, request_id)
        if attempts is None:
            return self._call(request)
        while True:
            try:
                return self._call(request, attempts.id)
            except DataLatticeError as error:
                pause_s = attempts.pause_after(error)
            time.sleep(pause_s)
