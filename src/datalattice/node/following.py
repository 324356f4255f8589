"""Following: what a watch tells, for the event loop.

The thread that writes only sets an event of the loop; what changed is looked up in the loop, when
it has time. A watch that is slow to be asked therefore never holds up a writer, and sees what came
meanwhile as one change for each key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Watched(Protocol[T]):
    """What can be followed: it is asked for what is new, and says when to ask."""

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""
        ...

    def poll(self) -> list[T]:
        """Return what is new since the last call, at once."""
        ...

    def on_wake(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread, when `poll` may have something new, and on `close`."""
        ...

    def close(self) -> None:
        """Stop watching."""
        ...


async def follow(watch: Watched[T]) -> AsyncIterator[T]:
    """Yield what a watch tells as it comes, until it is closed; close it when the loop leaves.

        async for change in follow(db.watch("users/")):
            ...

    Source: docs/kv.md "Watching".
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()

    def wake() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(ready.set)

    watch.on_wake(wake)
    try:
        while True:
            ready.clear()
            for told in watch.poll():
                yield told
            if watch.closed:
                return
            await ready.wait()
    finally:
        watch.close()
