"""Adapter `test`: operations that end, fail, wait or ask, to try out a venue and its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from datalattice.crypto import Entropy, SystemEntropy
from datalattice.errors import UsageError
from datalattice.service.venue import (
    JobContext,
    Json,
    OperationFailed,
    OperationMetadata,
    PlainAdapter,
    VenueOperation,
)
from datalattice.service.venue.adapters.inputs import members, sub_operation, text_member

DELAY_MS_MAX: Final = 24 * 3_600_000
RANDOM_BYTES_MAX: Final = 1_024

_DELAY: Final[dict[str, Json]] = {
    "delay": {"type": "integer", "minimum": 0, "maximum": DELAY_MS_MAX},
    "operation": {"type": "string"},
    "input": {"writeOnly": True},
}
_LENGTH: Final[dict[str, Json]] = {
    "length": {"type": "integer", "minimum": 1, "maximum": RANDOM_BYTES_MAX}
}
_MESSAGE: Final[dict[str, Json]] = {"message": {"type": "string"}}

_OPERATIONS: Final[Mapping[str, tuple[str, dict[str, Json] | None]]] = {
    "echo": ("Returns its input", None),
    "error": ("Fails with the text `message`", _MESSAGE),
    "delay": ("Waits `delay` milliseconds, then runs `operation` if there is one", _DELAY),
    "never": ("Runs until it is cancelled", {}),
    "random": ("Returns `length` random bytes as hex, the same after a restart", _LENGTH),
    "ask": ("Asks with the text `message`, and returns the answer", _MESSAGE),
}
"""The operations by name: a description, and the members of the input; None: any input."""


class TrialAdapter(PlainAdapter):
    """Runs `test:echo`, `error`, `delay`, `never`, `random` and `ask`; none has an effect."""

    name = "test"

    def __init__(self, entropy: Entropy | None = None) -> None:
        """entropy: the source of the bytes of `random`."""
        self._entropy: Final = entropy or SystemEntropy()

    def operations(self) -> Sequence[VenueOperation]:
        """Return the six operations."""
        return [
            VenueOperation(
                f"test/{name}",
                {
                    "name": f"test {name}",
                    "description": description,
                    "operation": {
                        "adapter": f"test:{name}",
                        "input": {}
                        if properties is None
                        else {"type": "object", "properties": dict(properties)},
                    },
                },
                has_effects=False,
            )
            for name, (description, properties) in _OPERATIONS.items()
        ]

    def check(self, meta: OperationMetadata, input: Json) -> None:
        """Refuse a malformed input."""
        name = sub_operation(meta, _OPERATIONS)
        known = _OPERATIONS[name][1]
        if known is None:
            return
        given = members(input, known)
        if name in ("error", "ask") and not text_member(given, "message"):
            raise UsageError("`message` is a text of one character or more")
        if name == "delay":
            _number(given, "delay", 0, DELAY_MS_MAX)
            text_member(given, "operation", "")
        if name == "random":
            _number(given, "length", 1, RANDOM_BYTES_MAX)

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        """Do the operation."""
        name = sub_operation(meta, _OPERATIONS)
        if name == "echo":
            return input
        self.check(meta, input)
        given = members(input, _OPERATIONS[name][1] or ())
        if name == "error":
            raise OperationFailed(text_member(given, "message"))
        if name == "ask":
            return await job.ask(text_member(given, "message"))
        if name == "never":
            await asyncio.Event().wait()
        if name == "delay":
            return await _delayed(job, given)
        if job.saved is None:
            # Durable first, so that a later attempt returns the same bytes.
            length = _number(given, "length", 1, RANDOM_BYTES_MAX)
            await job.checkpoint(self._entropy.bytes(length).hex())
        return job.saved


async def _delayed(job: JobContext, given: Mapping[str, Json]) -> Json:
    await asyncio.sleep(_number(given, "delay", 0, DELAY_MS_MAX) / 1_000)
    operation = text_member(given, "operation", "")
    if not operation:
        return None
    # One key: a later attempt gets the job that the earlier one invoked.
    result = await job.invoke(operation, given.get("input"), key="delayed")
    if result.status != "COMPLETE":
        raise OperationFailed(f"{operation} is {result.status}: {result.error}")
    return result.output


def _number(given: Mapping[str, Json], name: str, least: int, most: int) -> int:
    value = given.get(name)
    # True is an int to Python.
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(f"`{name}` is a whole number from {least} to {most}, got {value!r}"[:200])
    return value
