"""Retrying: a request with an id is sent again when its answer was lost.

The service keeps the result of such a request under its id, so it is done once however often it is
sent. Here it is decided after each failure whether it is sent again, and after what pause.

Source: docs/design/service.md "Repeating an effect".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from datalattice.actions import check_request_id
from datalattice.crypto import Entropy
from datalattice.errors import (
    DataLatticeError,
    OutcomeUnknown,
    PeerUnavailable,
    ProtocolViolation,
    StoreLocked,
    Timeout,
    Unauthenticated,
    Unauthorized,
    Unavailable,
)

IDEMPOTENCY_KEY: Final = "idempotency-key"
"""The header of HTTP with the id of a request."""

REQUEST_ID_BYTES: Final = 16
"""Random bytes of an id: no two requests have the same."""

TIMEOUTS_MAX: Final = 2
"""Sends of one request that wait in vain for their answer: each takes all of the client's time."""

_SAYS_NOTHING: Final = (
    Unavailable,
    StoreLocked,
    Unauthenticated,
    Unauthorized,
    ProtocolViolation,
)
"""Answers of a service that did not look for the id: what an earlier send did is still open."""


class ConnectionLost(PeerUnavailable):
    """The service was not reached, or went away before it answered. was_sent: it may have begun."""

    was_sent = True


def unreached(text: str) -> ConnectionLost:
    """Return the error of a request that was not sent."""
    error = ConnectionLost(text)
    error.was_sent = False
    return error


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a request with an id is sent, at most, and the pauses in between.

    first_s: before the second send; it doubles up to `most_s`. By default 11 s in all, in which a
    service that was stopped is there again.
    """

    tries: int = 8
    first_s: float = 0.1
    most_s: float = 5.0


RETRY_POLICY: Final = RetryPolicy()


class Attempts:
    """The sends of one request with an id."""

    def __init__(
        self, policy: RetryPolicy, entropy: Entropy, action: str, request_id: str | None
    ) -> None:
        """request_id: None: a new one. Raises: UsageError: it is malformed."""
        made = entropy.bytes(REQUEST_ID_BYTES).hex() if request_id is None else request_id
        check_request_id(made)
        self.id: Final = made
        self._policy: Final = policy
        self._action: Final = action
        self._sent = 1
        self._pause_s = policy.first_s
        self._timeouts = 0
        self._is_open = False

    def pause_after(self, error: DataLatticeError) -> float:
        """Return the seconds to wait before the request is sent again.

        Raises: the error, if it answers all sends. OutcomeUnknown: it was sent often enough,
                and one of the sends may have been done.
        """
        if isinstance(error, ConnectionLost):
            self._is_open |= error.was_sent
        # An answer that is not the service's own is that of a gateway, which may have passed it on.
        elif isinstance(error, (OutcomeUnknown, ProtocolViolation)):
            self._is_open = True
        elif isinstance(error, Timeout):
            self._is_open = True
            self._timeouts += 1
        # Nothing is open: the error says what became of the request.
        if not self._is_open or not isinstance(error, _SAYS_NOTHING):
            raise error
        if self._sent >= self._policy.tries or self._timeouts >= TIMEOUTS_MAX:
            raise OutcomeUnknown(
                f"{self._action} was sent {self._sent} times, and whether it was done is unknown; "
                f"the same request with the id {self.id} would tell ({error})"
            ) from error
        self._sent += 1
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, self._policy.most_s)
        return pause_s
