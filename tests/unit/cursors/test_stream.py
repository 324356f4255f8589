"""Streams: both iterations, polling, the timeout, closing, and what an abandoned one leaves."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator

import pytest

from datalattice.cursors import Root, Stream
from datalattice.errors import UsageError
from datalattice.testing.polling import LIMIT_S


class Counted(Stream[int]):
    """The numbers up to the value of a cursor."""

    def __init__(self, cursor: Root, **options: object) -> None:
        self.cursor = cursor
        self.told = 0
        self.fetch_count = 0
        super().__init__(cursor, **options)  # type: ignore[arg-type]

    def _fetch(self) -> Iterator[int]:
        self.fetch_count += 1
        value = self.cursor.get()
        assert isinstance(value, int)
        while self.told < value:
            self.told += 1
            yield self.told


def listeners_of(cursor: Root) -> int:
    return len(cursor._reference._listeners)


def test_a_poll_gives_what_is_there_and_never_waits() -> None:
    cursor = Root(2)
    with Counted(cursor) as stream:
        assert stream.poll() == [1, 2]
        assert stream.poll() == []
        cursor.set(3)
        assert stream.poll() == [3]


def test_a_loop_without_waiting_ends_at_the_end_and_goes_on_later() -> None:
    cursor = Root(3)
    with Counted(cursor, wait=False) as stream:
        assert list(stream) == [1, 2, 3]
        cursor.set(5)
        assert list(stream) == [4, 5]


def test_a_loop_waits_for_a_change_in_another_thread() -> None:
    cursor = Root(0)
    with Counted(cursor) as stream:
        writer = threading.Thread(target=cursor.set, args=(2,))
        writer.start()
        assert [next(stream), next(stream)] == [1, 2]
        writer.join()


def test_a_timeout_ends_the_loop_quietly() -> None:
    stream = Counted(Root(1), timeout=0.02)
    begun_s = time.monotonic()
    assert list(stream) == [1]
    assert time.monotonic() - begun_s >= 0.02
    with pytest.raises(UsageError, match="`timeout` is 0 or more seconds"):
        Counted(Root(1), timeout=-1.0)


def test_closing_from_another_thread_ends_a_waiting_loop() -> None:
    cursor = Root(0)
    stream = Counted(cursor)
    closer = threading.Thread(target=stream.close)
    waiting = threading.Thread(target=lambda: list(stream))
    waiting.start()
    closer.start()
    waiting.join(LIMIT_S)
    closer.join(LIMIT_S)
    assert not waiting.is_alive()
    stream.close()
    assert stream.closed
    assert listeners_of(cursor) == 0
    assert list(stream) == []


def test_others_are_woken_by_a_change_and_by_the_end() -> None:
    cursor = Root(0)
    woken: list[int] = []
    stream = Counted(cursor)
    stream.on_wake(lambda: woken.append(len(woken)))
    cursor.set(1)
    stream.close()
    assert woken == [0, 1]


def test_an_event_loop_takes_items_as_they_come() -> None:
    cursor = Root(1)

    async def take() -> list[int]:
        got: list[int] = []
        async with Counted(cursor) as stream:
            async for item in stream:
                got.append(item)
                if item == 3:
                    break
                asyncio.get_running_loop().call_later(0.001, cursor.set, item + 1)
        assert stream.closed
        return got

    assert asyncio.run(take()) == [1, 2, 3]
    assert listeners_of(cursor) == 0


def test_a_timeout_ends_an_asynchronous_loop() -> None:
    async def take() -> list[int]:
        return [item async for item in Counted(Root(2), timeout=0.01)]

    async def take_at_once() -> list[int]:
        return [item async for item in Counted(Root(2), wait=False)]

    assert asyncio.run(take()) == asyncio.run(take_at_once()) == [1, 2]


def test_a_cancelled_loop_leaves_nothing_and_can_be_taken_up_again() -> None:
    cursor = Root(0)

    async def run() -> None:
        stream = Counted(cursor)
        for expected in (1, 2):
            waiting = asyncio.create_task(stream.__anext__())
            await asyncio.sleep(0)
            assert stream._bell.listeners
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not stream._bell.listeners
            cursor.set(expected)
            assert await stream.__anext__() == expected
        stream.close()

    threads = threading.active_count()
    asyncio.run(run())
    assert threading.active_count() <= threads
    assert listeners_of(cursor) == 0


def test_closing_ends_a_waiting_task() -> None:
    async def run() -> list[int]:
        stream = Counted(Root(0))
        asyncio.get_running_loop().call_soon(stream.close)
        return [item async for item in stream]

    assert asyncio.run(run()) == []


def test_an_abandoned_stream_ends_its_subscription() -> None:
    cursor = Root(1)
    for _ in range(3):
        assert next(Counted(cursor)) == 1
    gc.collect()
    assert listeners_of(cursor) == 0


class Flushing(Counted):
    """Owes a flush for every item that was taken."""

    def __init__(self, cursor: Root, **options: object) -> None:
        self.flushed: list[tuple[int, bool]] = []
        super().__init__(cursor, **options)

    def _is_flush_due(self, *, idle: bool) -> bool:
        return idle and (not self.flushed or self.flushed[-1][0] != self.told)

    def _flush(self) -> None:
        here = threading.current_thread() is threading.main_thread()
        self.flushed.append((self.told, here))


def test_what_is_owed_is_flushed_before_waiting_and_not_in_the_event_loop() -> None:
    with Flushing(Root(2), wait=False) as stream:
        assert list(stream) == [1, 2]
        assert stream.flushed == [(2, True)]

    async def take() -> Flushing:
        async with Flushing(Root(2), wait=False) as stream:
            assert [item async for item in stream] == [1, 2]
        return stream

    assert asyncio.run(take()).flushed == [(2, False)]
