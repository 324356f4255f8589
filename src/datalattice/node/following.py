"""Following: the changes of a watch, as an async iterator.

The thread that writes only sets an event of the loop; what changed is looked up on the loop. So a
slow consumer never holds up a writer, and sees several changes of one key as one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Watched(Protocol[T]):
    """A source of changes: it signals that there are some, and returns them when polled."""

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""

    def poll(self) -> list[T]:
        """Return what is new since the last call, at once."""

    def on_wake(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread, when `poll` may have something new, and on `close`."""

    def close(self) -> None:
        """Stop watching."""


async def follow(watch: Watched[T]) -> AsyncIterator[T]:
    """Yield the changes of a watch until it is closed; leaving the loop closes it.

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
            for change in watch.poll():
                yield change
            if watch.closed:
                return
            await ready.wait()
    finally:
        watch.close()
