"""Resumption: how a client of a stream goes on after its connection was lost.

The service gives a token with each item, and one at the beginning. A client that is cut off asks
again with the last one, until the service answers or its time is over.

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
"""How long a stream tries to go on: long enough for a service that is started anew."""

PAUSE_S: Final = 0.05
"""Pause before the first try; it doubles up to `PAUSE_MAX_S`."""

PAUSE_MAX_S: Final = 1.0


class Resumption(Generic[Q]):
    """The request of a stream, as it is made again after the last item.

    resume_s: how long to try; 0: not at all. renews: each request has a credential of its own, so
    one that has ended is followed by the next.
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
        """Take note of the token of an item, or of the beginning; "" is none."""
        if token:
            self.go_on(with_resume(self.request, token))

    def go_on(self, request: Q) -> None:
        """Take note of the request for the rest."""
        self.request, self._has_begun = request, True
        self._give_up_s, self._pause_s = None, PAUSE_S

    def pause_s(self, error: DataLatticeError) -> float:
        """Return after how many seconds to ask again. Raises: the error, if that is of no use."""
        if not self._has_begun or not self._resume_s:
            raise error
        # The credential had ended in the middle: a request that is refused at once has no use.
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
