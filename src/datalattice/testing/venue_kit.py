"""Venue kit: an adapter without effects, and a job that stands alone for tests of adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

from datalattice.errors import UsageError
from datalattice.service.venue import (
    INPUT_REQUIRED,
    JobResult,
    Json,
    Metadata,
    OperationFailed,
    PlainAdapter,
    VenueOperation,
)


class EchoAdapter(PlainAdapter):
    """Returns its input, or fails with the text in it."""

    name = "echo"

    def operations(self) -> Sequence[VenueOperation]:
        """Return `echo/back`, and `echo/fail`, whose input has the `text` of the error."""
        return (
            VenueOperation(
                "echo/back",
                {"name": "Back", "operation": {"adapter": "echo:back"}},
                has_effects=False,
            ),
            VenueOperation(
                "echo/fail",
                {"name": "Fail", "operation": {"adapter": "echo:fail"}},
                has_effects=False,
            ),
        )

    def check(self, meta: Metadata, input: Json) -> None:
        """Refuse an error without a text."""
        if _sub(meta) == "fail" and not (isinstance(input, dict) and input.get("text")):
            raise UsageError("input: an object with `text`, the text of the error")

    async def run(self, job: object, meta: Metadata, input: Json) -> Json:
        """Return the input, or fail."""
        if _sub(meta) == "fail":
            assert isinstance(input, dict)
            raise OperationFailed(str(input["text"]))
        return input


def _sub(meta: Metadata) -> str:
    operation = meta["operation"]
    assert isinstance(operation, dict)
    return str(operation["adapter"]).partition(":")[2]


class LoneJob:
    """A `JobContext` without a venue: it keeps what an adapter does with it.

    answers: what `ask` returns, in order. invoked: does what `invoke` asks for.
    """

    def __init__(
        self,
        answers: Sequence[Json] = (),
        invoked: Callable[[str, Json], JobResult] | None = None,
        *,
        attempt: int = 1,
        saved: Json = None,
        deadline_ms: int | None = None,
    ) -> None:
        self.id = bytes(16)
        self.caller = "did:key:z6MkCaller"
        self.attempt = attempt
        self.deadline_ms = deadline_ms
        self.cancelled = False
        self.saved = saved
        self.shown: list[dict[str, Json]] = []
        self.asked: list[tuple[str, str]] = []
        self.begun: list[tuple[str, str, Json, str | None]] = []
        self._answers = list(answers)
        self._invoked = invoked

    def effect_key(self, name: str = "") -> bytes:
        """Return the hash of the name."""
        return sha256(name.encode()).digest()

    async def progress(self, members: Mapping[str, Json]) -> None:
        """Keep the members in `shown`."""
        self.shown.append(dict(members))

    async def checkpoint(self, value: Json) -> None:
        """Keep the value in `saved`."""
        self.saved = value

    async def ask(self, message: str, kind: str = INPUT_REQUIRED) -> Json:
        """Return the next answer."""
        self.asked.append((kind, message))
        return self._answers.pop(0)

    async def invoke(
        self,
        op: str,
        input: Json,
        *,
        key: str,
        venue: str | None = None,
        on_started: Callable[[bytes], None] = lambda _id: None,
    ) -> JobResult:
        """Do what the test gave for it."""
        assert self._invoked is not None, f"nothing does {op}"
        self.begun.append((key, op, input, venue))
        on_started(sha256(key.encode()).digest()[:16])
        return self._invoked(op, input)
