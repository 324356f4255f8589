"""Write buffer: a separate thread stores the parts of a large value.

One thread makes and hashes a part while the other writes the previous part and waits for the disk
or for a node. So storing a file takes as long as the slower of the two, not as both together.
"""

from __future__ import annotations

import queue
import threading
from types import TracebackType
from typing import Final, Self

from datalattice.cells import StageValue, Value, value_hash

_WAITING_MAX: Final = 16
"""Most parts that wait to be staged; with more the caller waits."""


class WriteBuffer:
    """Calls `stage` for each part, in order, in another thread.

        with WriteBuffer(store.put) as staging:
            value = blob_from(pieces, staging)

    When the context ends, every part was staged, or an error is raised.
    """

    def __init__(self, stage: StageValue) -> None:
        self._stage: Final = stage
        self._waiting: Final[queue.Queue[tuple[Value] | None]] = queue.Queue(_WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def __call__(self, value: Value) -> None:
        """Queue a part.

        Raises: what `stage` raised for an earlier part.
        """
        if self._failure is not None:
            raise self._failure
        value_hash(value)  # the value keeps its hash: it is computed here, not in the other thread
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="staging", daemon=True)
            self._thread.start()
        # Blocks when the queue is full, which bounds the memory.
        self._waiting.put((value,))

    def _run(self) -> None:
        while (part := self._waiting.get()) is not None:
            # After a failure the queue is drained, so that the caller never blocks.
            if self._failure is None:
                try:
                    self._stage(*part)
                except BaseException as error:  # noqa: BLE001 - raised again by the next call, or at the end
                    self._failure = error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread is not None:
            # Ends the thread once everything queued before was staged.
            self._waiting.put(None)
            self._thread.join()
        # If the caller raised an error too, that one is reported.
        if error is None and self._failure is not None:
            raise self._failure
