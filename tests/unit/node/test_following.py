"""Following a watch in the event loop: what threads write arrives, and the end is an end."""

from __future__ import annotations

import asyncio
import threading

from datalattice.apps.kv import Database
from datalattice.node import follow


def test_changes_of_a_thread_arrive_in_the_loop() -> None:
    db = Database.create()
    watch = db.watch("k")

    def write() -> None:
        for number in range(5):
            db[f"k{number}"] = number
            db[f"other{number}"] = number

    async def run() -> list[str]:
        seen: list[str] = []
        thread = threading.Thread(target=write)
        thread.start()
        async for change in follow(watch):
            seen.append(change.key)
            if len(seen) == 5:
                watch.close()
        await asyncio.to_thread(thread.join)
        return seen

    assert sorted(asyncio.run(asyncio.wait_for(run(), 20))) == [f"k{n}" for n in range(5)]
    assert watch.closed


def test_leaving_the_loop_closes_the_watch() -> None:
    db = Database.create()
    watch = db.watch()

    async def run() -> None:
        db["a"] = 1
        told = follow(watch)
        assert (await anext(told)).key == "a"
        waiting = asyncio.ensure_future(anext(told))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(asyncio.wait_for(run(), 20))
    assert watch.closed
    db["b"] = 1  # nobody is woken in a loop that is gone
