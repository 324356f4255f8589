"""Venues: the operations, jobs and assets of a venue, through any client of its service.

    with VenueClient.connect("http://127.0.0.1:18080") as venue:
        merged = venue.run("v/ops/json/merge", {"values": [{"tea": 1}, {"milk": 2}]})

Inputs and outputs are plain JSON: dicts, lists, texts, numbers, booleans and None.

Source: docs/venue-client.md.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, Final, Self

from datalattice import actions
from datalattice.apps.grid import TERMINAL, parse_asset_id, parse_job_id
from datalattice.cells import Value, from_json, to_python
from datalattice.client.calling import Client
from datalattice.client.rest import RestClient
from datalattice.client.results import ResultStream
from datalattice.errors import OperationFailed, ProtocolViolation, UsageError

COMPLETE: Final = "COMPLETE"


def input_cell(value: object, name: str = "input") -> Value:
    """Return plain JSON as a value. name: of it in errors. Raises: UsageError: it is not JSON."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        _check_names(value, name)  # after `dumps`, which refuses circular values
        return from_json(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}") from error


def _check_names(value: object, name: str) -> None:
    """Raise UsageError for a member whose name is not text: `json` would turn it into text."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            wrong = next((key for key in one if not isinstance(key, str)), "")
            if wrong != "":
                raise UsageError(f"{name}: names of members are text, got {wrong!r:.80}")
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one


def has_ended(record: actions.JobRecord) -> bool:
    """Return whether a job has ended."""
    return record.status in TERMINAL


def output_of(record: actions.JobRecord) -> Any:
    """Return the output of a job as plain JSON. Raises: OperationFailed: it ended otherwise."""
    if record.status != COMPLETE:
        ended = f"is {record.status}" if has_ended(record) else f"goes on: {record.status}"
        why = f": {record.error}" if record.error else ""
        raise OperationFailed(f"job {record.id.hex()} {ended}{why}")
    return to_python(record.output)


def metadata_of(metadata: str | Mapping[str, Any]) -> str:
    """Return the text of metadata. Raises: UsageError: it is not JSON."""
    if isinstance(metadata, str):
        return metadata
    try:
        return json.dumps(metadata, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"metadata is not JSON: {error}") from error


def checked_metadata(id: bytes, text: str) -> str:
    """Return the metadata text of an asset. Raises: ProtocolViolation: it has another id."""
    # "Get metadata text, hash it, compare with the id asked for": a venue needs no trust.
    if hashlib.sha256(text.encode()).digest() != id:
        raise ProtocolViolation(f"the venue's text for the asset {id.hex()} has another hash")
    return text


def invocation(operation: str, input: object, timeout_ms: int | None) -> actions.InvokeOperation:
    """Return the request that begins a job."""
    return actions.InvokeOperation(
        operation=operation, input=input_cell(input), timeout_ms=timeout_ms
    )


def scheduling(
    operation: str, input: object, time_ms: int | None, after_ms: int | None
) -> actions.ScheduleOperation:
    """Return the request to begin a job at a time."""
    return actions.ScheduleOperation(
        operation=operation, input=input_cell(input), time_ms=time_ms, after_ms=after_ms
    )


def message_to(id: bytes | str, message: object) -> actions.MessageJob:
    """Return the request to send a job a message."""
    return actions.MessageJob(id=parse_job_id(id), message=input_cell(message, "message"))


class VenueClient:
    """The venue of a service. client: of the service; it is closed with this object.

    A job is named by its id: 16 bytes, or their hex. All methods raise the errors of `client`.
    """

    def __init__(self, client: Client) -> None:
        self.client: Final = client

    @classmethod
    def connect(cls, url: str, **options: Any) -> Self:
        """Return the venue behind a URL or socket. options: of `RestClient`."""
        return cls(RestClient(url, **options))

    def operations(self, after: str = "") -> tuple[actions.OfferedOperation, ...]:
        """Return operations that the venue offers, in order. after: the last path of a page."""
        return self.client.call(actions.ListOperations(after=after)).operations

    def invoke(
        self,
        operation: str,
        input: object = None,
        *,
        timeout_ms: int | None = None,
        request_id: str | None = None,
    ) -> actions.JobRecord:
        """Begin a job; return its record, which is durable.

        timeout_ms: time after which the job ends as TIMEOUT. request_id: as of `Client.call`.
        """
        request = invocation(operation, input, timeout_ms)
        return self.client.call(request, request_id=request_id)

    def run(
        self,
        operation: str,
        input: object = None,
        *,
        limit_s: float | None = None,
        timeout_ms: int | None = None,
    ) -> Any:
        """Run an operation; return its output.

        limit_s: longest wait; the job goes on afterwards. timeout_ms: as of `invoke`.
        Raises: OperationFailed: the job did not complete, or goes on; the text has its id and why.
        """
        begun = self.invoke(operation, input, timeout_ms=timeout_ms)
        return output_of(self.wait(begun.id, limit_s))

    def wait(self, id: bytes | str, limit_s: float | None = None) -> actions.JobRecord:
        """Wait until a job has ended, at most `limit_s` seconds; return its latest record."""
        found: actions.JobRecord | None = None
        with self.watch(id) as records:
            # At the limit the stream is closed, which ends the iteration over it.
            timer = None if limit_s is None else threading.Timer(limit_s, records.close)
            if timer is not None:
                timer.daemon = True  # it does not keep a program alive that is interrupted
                timer.start()
            try:
                for found in records:
                    if has_ended(found):
                        break
            finally:
                if timer is not None:
                    timer.cancel()
        # A short limit may end the stream before its first record.
        return found or self.job(id)

    def watch(self, id: bytes | str, after: int | None = None) -> ResultStream[actions.JobRecord]:
        """Return a stream of a job's records: the present one, then one for each change to the end.

        after: the `updated` of a record; only newer records are sent.
        """
        resume = "" if after is None else str(after)
        return self.client.stream(actions.WatchJob(id=parse_job_id(id), resume=resume))

    def job(self, id: bytes | str) -> actions.JobRecord:
        """Return the record of a job."""
        return self.client.call(actions.GetJob(id=parse_job_id(id)))

    def jobs(self, status: str = "", before: bytes | str | None = None) -> tuple[bytes, ...]:
        """Return ids of jobs, newest first. before: the last id of a page."""
        last = b"" if before is None else parse_job_id(before)
        return self.client.call(actions.ListJobIds(status=status, before=last)).jobs

    def message(self, id: bytes | str, message: object) -> int:
        """Send a job a message; return how many messages it has not read yet."""
        return self.client.call(message_to(id, message)).queue_depth

    def cancel(self, id: bytes | str) -> actions.JobRecord:
        """End a job; one that has ended stays as it is."""
        return self.client.call(actions.CancelJob(id=parse_job_id(id)))

    def pause(self, id: bytes | str) -> actions.JobRecord:
        """Stop a job until it is resumed."""
        return self.client.call(actions.PauseJob(id=parse_job_id(id)))

    def resume(self, id: bytes | str) -> actions.JobRecord:
        """Run a paused job again."""
        return self.client.call(actions.ResumeJob(id=parse_job_id(id)))

    def schedule(
        self,
        operation: str,
        input: object = None,
        *,
        time_ms: int | None = None,
        after_ms: int | None = None,
        request_id: str | None = None,
    ) -> actions.WaitingCall:
        """Schedule a job of an operation; return the waiting call, with the id of its job.

        time_ms: when it begins, in Unix milliseconds. after_ms: instead, milliseconds from now.
        """
        request = scheduling(operation, input, time_ms, after_ms)
        return self.client.call(request, request_id=request_id)

    def scheduled(self, after: bytes = b"") -> tuple[actions.WaitingCall, ...]:
        """Return waiting calls, the next one first. after: the last handle of a page."""
        return self.client.call(actions.ListScheduled(after=after)).calls

    def unschedule(self, handle: bytes) -> None:
        """Cancel a waiting call."""
        self.client.call(actions.UnscheduleCall(handle=handle))

    def delete(self, id: bytes | str) -> None:
        """Hide a job from then on; a live one is cancelled first."""
        self.client.call(actions.DeleteJob(id=parse_job_id(id)))

    def register(self, metadata: str | Mapping[str, Any]) -> bytes:
        """Register an asset; return its id. metadata: the exact text, or an object to write."""
        return self.client.call(actions.RegisterAsset(metadata=metadata_of(metadata))).id

    def assets(self) -> Iterator[bytes]:
        """Yield the ids of the venue's assets, in their order."""
        offset = 0
        while page := self.client.call(
            actions.ListAssets(offset=offset, limit=actions.PAGE_MAX)
        ).items:
            yield from page
            offset += len(page)

    def asset(self, id: bytes | str) -> str:
        """Return the exact metadata text of an asset, verified by its hash.

        Raises: NoSuchPath: the venue has no such asset. ProtocolViolation: it sent another text.
        """
        wanted = parse_asset_id(id)
        return checked_metadata(wanted, self.client.call(actions.GetAsset(id=wanted)).metadata)

    def upload(self, id: bytes | str, content: bytes | Iterable[bytes] | IO[bytes]) -> bytes:
        """Store the content of an asset; return its SHA-256. content: bytes, pieces or a file."""
        body = [content] if isinstance(content, bytes) else content
        return self.client.upload(actions.PutContent(id=parse_asset_id(id)), body).hash

    def download(self, id: bytes | str, start: int = 0, count: int = 0) -> Iterator[bytes]:
        """Yield the content of an asset in pieces: `count` bytes from `start`; 0: to its end."""
        request = actions.GetContent(id=parse_asset_id(id), start=start, count=count)
        with self.client.stream(request) as pieces:
            for piece in pieces:
                yield piece.data

    def close(self) -> None:
        """End all calls and streams."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
