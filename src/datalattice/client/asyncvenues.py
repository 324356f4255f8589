"""Async venues: the operations and jobs of a venue, for programs with an event loop.

async with AsyncVenueClient.connect("http://127.0.0.1:18080") as venue:
    merged = await venue.run("v/ops/json/merge", {"values": [{"tea": 1}, {"milk": 2}]})

Source: docs/venue-client.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import IO, Any, Final, Self

from datalattice import actions
from datalattice.apps.grid import parse_asset_id, parse_job_id
from datalattice.client.calling import AsyncClient
from datalattice.client.venues import (
    checked_metadata,
    has_ended,
    invocation,
    message_to,
    metadata_of,
    output_of,
    scheduling,
)


class AsyncVenueClient:
    """As `VenueClient`, for one event loop."""

    def __init__(self, client: AsyncClient) -> None:
        self.client: Final = client

    @classmethod
    def connect(cls, url: str, **options: Any) -> Self:
        """Return the venue behind a URL or socket. options: of `AsyncRestClient`."""
        from datalattice.client.asyncrest import AsyncRestClient

        return cls(AsyncRestClient(url, **options))

    async def operations(self, after: str = "") -> tuple[actions.OfferedOperation, ...]:
        """Return operations that the venue offers; as `VenueClient.operations`."""
        return (await self.client.call(actions.ListOperations(after=after))).operations

    async def invoke(
        self,
        operation: str,
        input: object = None,
        *,
        timeout_ms: int | None = None,
        request_id: str | None = None,
    ) -> actions.JobRecord:
        """Begin a job; as `VenueClient.invoke`."""
        request = invocation(operation, input, timeout_ms)
        return await self.client.call(request, request_id=request_id)

    async def run(
        self,
        operation: str,
        input: object = None,
        *,
        limit_s: float | None = None,
        timeout_ms: int | None = None,
    ) -> Any:
        """Run an operation; return its output; as `VenueClient.run`."""
        begun = await self.invoke(operation, input, timeout_ms=timeout_ms)
        return output_of(await self.wait(begun.id, limit_s))

    async def wait(self, id: bytes | str, limit_s: float | None = None) -> actions.JobRecord:
        """Wait until a job has ended, at most `limit_s` seconds; return its latest record."""
        found: actions.JobRecord | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s), self.watch(id) as records:
                async for found in records:
                    if has_ended(found):
                        break
        # A short limit may end the stream before its first record.
        return found or await self.job(id)

    def watch(
        self, id: bytes | str, after: int | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[actions.JobRecord]]:
        """Yield a job's records: `async with venue.watch(id) as records: async for ...`."""
        resume = "" if after is None else str(after)
        return self.client.stream(actions.WatchJob(id=parse_job_id(id), resume=resume))

    async def job(self, id: bytes | str) -> actions.JobRecord:
        """Return the record of a job."""
        return await self.client.call(actions.GetJob(id=parse_job_id(id)))

    async def jobs(self, status: str = "", before: bytes | str | None = None) -> tuple[bytes, ...]:
        """Return ids of jobs, newest first. before: the last id of a page."""
        last = b"" if before is None else parse_job_id(before)
        return (await self.client.call(actions.ListJobIds(status=status, before=last))).jobs

    async def message(self, id: bytes | str, message: object) -> int:
        """Send a job a message; return how many messages it has not read yet."""
        return (await self.client.call(message_to(id, message))).queue_depth

    async def cancel(self, id: bytes | str) -> actions.JobRecord:
        """End a job; one that has ended stays as it is."""
        return await self.client.call(actions.CancelJob(id=parse_job_id(id)))

    async def pause(self, id: bytes | str) -> actions.JobRecord:
        """Stop a job until it is resumed."""
        return await self.client.call(actions.PauseJob(id=parse_job_id(id)))

    async def resume(self, id: bytes | str) -> actions.JobRecord:
        """Run a paused job again."""
        return await self.client.call(actions.ResumeJob(id=parse_job_id(id)))

    async def schedule(
        self,
        operation: str,
        input: object = None,
        *,
        time_ms: int | None = None,
        after_ms: int | None = None,
        request_id: str | None = None,
    ) -> actions.WaitingCall:
        """Schedule a job of an operation; as `VenueClient.schedule`."""
        request = scheduling(operation, input, time_ms, after_ms)
        return await self.client.call(request, request_id=request_id)

    async def scheduled(self, after: bytes = b"") -> tuple[actions.WaitingCall, ...]:
        """Return waiting calls, the next one first. after: the last handle of a page."""
        return (await self.client.call(actions.ListScheduled(after=after))).calls

    async def unschedule(self, handle: bytes) -> None:
        """Cancel a waiting call."""
        await self.client.call(actions.UnscheduleCall(handle=handle))

    async def delete(self, id: bytes | str) -> None:
        """Hide a job from then on; a live one is cancelled first."""
        await self.client.call(actions.DeleteJob(id=parse_job_id(id)))

    async def register(self, metadata: str | Mapping[str, Any]) -> bytes:
        """Register an asset; as `VenueClient.register`."""
        return (await self.client.call(actions.RegisterAsset(metadata=metadata_of(metadata)))).id

    async def assets(self) -> AsyncIterator[bytes]:
        """Yield the ids of the venue's assets, in their order."""
        offset = 0
        while page := (
            await self.client.call(actions.ListAssets(offset=offset, limit=actions.PAGE_MAX))
        ).items:
            for id in page:
                yield id
            offset += len(page)

    async def asset(self, id: bytes | str) -> str:
        """Return the exact metadata text of an asset; as `VenueClient.asset`."""
        wanted = parse_asset_id(id)
        return checked_metadata(
            wanted, (await self.client.call(actions.GetAsset(id=wanted))).metadata
        )

    async def upload(self, id: bytes | str, content: bytes | Iterable[bytes] | IO[bytes]) -> bytes:
        """Store the content of an asset; as `VenueClient.upload`."""
        body = [content] if isinstance(content, bytes) else content
        return (await self.client.upload(actions.PutContent(id=parse_asset_id(id)), body)).hash

    async def download(
        self, id: bytes | str, start: int = 0, count: int = 0
    ) -> AsyncIterator[bytes]:
        """Yield the content of an asset in pieces; as `VenueClient.download`."""
        request = actions.GetContent(id=parse_asset_id(id), start=start, count=count)
        async with self.client.stream(request) as pieces:
            async for piece in pieces:
                yield piece.data

    async def close(self) -> None:
        """End all calls and streams."""
        await self.client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
