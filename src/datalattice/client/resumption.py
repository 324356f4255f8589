"""Resumption: how a client resumes a stream after a lost connection.

The service gives a token at the beginning and with each item. After a lost connection the client
sends its request again with the last token, until the service answers or the time is over.

Source: docs/rest.md "Events"; docs/grpc.md "Streams".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from datalattice.actions import ActionRequest, with_resume
from datalattice.errors import DataLatticeError, Draining, PeerUnavailable, Timeout, Unauthenticated

Q = TypeVar("Q", bound=ActionRequest[Any])

RESUME_S: Final = 20.0
"""Longest time for resuming a stream: enough for a restart of the service."""

PAUSE_S: Final = 0.05
"""Pause before the first attempt; it doubles up to `PAUSE_MAX_S`."""

PAUSE_MAX_S: Final = 1.0


class Resumption(Generic[Q]):
    """The request with which a stream resumes behind its last item.

    resume_s: how long to try; 0: not at all. renews: whether each request gets a new credential,
    so that a stream can resume after its credential has expired.
    """

    def __init__(
        self,
        request: Q,
        resume_s: float,
        *,
        renews: bool,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request = request
        self._resume_s: Final = resume_s
        self._renews: Final = renews
        self._now_s: Final = now_s
        self._give_up_s: float | None = None
        self._pause_s = PAUSE_S
        self._has_begun = bool(getattr(request, "resume", ""))

    def reached(self, token: str) -> None:
        """Note the token of an item or of the beginning; "": no token."""
        if token:
            self.go_on(with_resume(self.request, token))

    def go_on(self, request: Q) -> None:
        """Note the request for the rest of the stream."""
        self.request, self._has_begun = request, True
        self._give_up_s, self._pause_s = None, PAUSE_S

    def pause_s(self, error: DataLatticeError) -> float:
        """Return the pause before the next attempt, in seconds. Raises: `error`, if it is final."""
        if not self._has_begun or not self._resume_s:
            raise error
        # The credential expired during the stream. `_give_up_s` is set then, so that a new
        # credential that is refused at once ends the attempts.
        if isinstance(error, Unauthenticated) and self._renews and self._give_up_s is None:
            self._give_up_s = self._now_s()
            return 0.0
        if not isinstance(error, (Draining, PeerUnavailable, Timeout)):
            raise error
        if self._give_up_s is None:
            self._give_up_s = self._now_s() + self._resume_s
        elif self._now_s() >= self._give_up_s:
            raise error
        pause, self._pause_s = self._pause_s, min(2 * self._pause_s, PAUSE_MAX_S)
        return pause
