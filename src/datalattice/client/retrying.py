"""Retrying: decides after a failure whether a request with an id is sent again, and when.

The service keeps the result of such a request under its id, so it performs it once, however often
it is sent.

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
"""The HTTP header with the id of a request."""

REQUEST_ID_BYTES: Final = 16
"""Random bytes of an id, enough to make it unique."""

TIMEOUTS_MAX: Final = 2
"""Most sends of one request that time out: each takes the client's whole `timeout_s`."""

_SAYS_NOTHING: Final = (
    Unavailable,
    StoreLocked,
    Unauthenticated,
    Unauthorized,
    ProtocolViolation,
)
"""Errors that a service gives before it looks up the id: an earlier send may have had an effect."""


class ConnectionLost(PeerUnavailable):
    """The service was not reached, or ended the connection before it answered."""

    was_sent = True
    """Whether the request may have arrived."""


def unreached_error(text: str) -> ConnectionLost:
    """Return the error of a request that was not sent."""
    error = ConnectionLost(text)
    error.was_sent = False
    return error


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The most sends of a request with an id, and the pauses between them.

    first_s: the pause before the second send; it doubles up to `most_s`. The default pauses are
    11 s in all, enough for a restart of the service.
    """

    # "repeat them after a lost connection, up to 8 times in 11 s" (docs/clients.md "Errors")
    tries: int = 8
    first_s: float = 0.1
    most_s: float = 5.0


RETRY_POLICY: Final = RetryPolicy()


class Attempts:
    """The sends of one request with an id."""

    def __init__(
        self, policy: RetryPolicy, entropy: Entropy, action: str, request_id: str | None
    ) -> None:
        """request_id: None: a new one is made. Raises: UsageError: it is malformed."""
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

        Raises: `error`, if it says what became of all sends. OutcomeUnknown: the policy allows no
                further send, and one of them may have had its effect.
        """
        if isinstance(error, ConnectionLost):
            self._is_open |= error.was_sent
        # A gateway gave an answer that no service gives, and may have forwarded the request.
        elif isinstance(error, (OutcomeUnknown, ProtocolViolation)):
            self._is_open = True
        elif isinstance(error, Timeout):
            self._is_open = True
            self._timeouts += 1
        # No send may still have an effect, or the error comes from the look-up of the id.
        if not self._is_open or not isinstance(error, _SAYS_NOTHING):
            raise error
        if self._sent >= self._policy.tries or self._timeouts >= TIMEOUTS_MAX:
            raise OutcomeUnknown(
                f"{self._action} was sent {self._sent} times, and it is not known whether it "
                f"happened; send the same request with the id {self.id} to learn that ({error})"
            ) from error
        self._sent += 1
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, self._policy.most_s)
        return pause_s
