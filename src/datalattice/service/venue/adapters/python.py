"""Adapter `python`: runs functions that the operator registered."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from datalattice.client.settings import VenuePythonConfig
from datalattice.errors import LimitExceeded, UsageError
from datalattice.service.venue import (
    BLOCKING_THREADS,
    JobContext,
    Json,
    OperationFailed,
    OperationMetadata,
    PlainAdapter,
    RecoveryRule,
    VenueOperation,
)
from datalattice.service.venue.adapters.inputs import check_offer_name, sub_operation
from datalattice.service.venue.adapters.processes import (
    PIPE_BYTES_MAX,
    call_in_process,
)

_REFERENCE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class RegisteredFunction:
    """A function from JSON to JSON that callers may run as `python/<name>`.

    function: `module:name` runs in a process of its own, with limits. A function object runs in a
    thread of this process, without limits, and cannot be interrupted; an async one runs on the
    event loop and can be cancelled. keyed: it gets the effect key in hex as second argument. input:
    the JSON Schema of its input. has_effects, recover: as in `VenueOperation`.
    Raises: UsageError: the name or the reference has another form.
    """

    name: str
    function: str | Callable[..., Any]
    description: str = ""
    input: Json = None
    keyed: bool = False
    has_effects: bool = True
    recover: RecoveryRule | None = None

    def __post_init__(self) -> None:
        check_offer_name("function", self.name)
        if isinstance(self.function, str) and not _REFERENCE.fullmatch(self.function):
            raise UsageError(f"a function of a module is `module:name`, got {self.function!r}")


class PythonAdapter(PlainAdapter):
    """Runs `python:<name>`.

    limits: of functions in processes of their own. path: folders of their modules, before those of
    this process.
    Raises: UsageError: two functions have one name.
    """

    name = "python"

    def __init__(
        self,
        functions: Iterable[RegisteredFunction],
        limits: VenuePythonConfig | None = None,
        path: Sequence[str] = (),
    ) -> None:
        self._functions: Final[dict[str, RegisteredFunction]] = {}
        for one in functions:
            if one.name in self._functions:
                raise UsageError(f"two functions have the name {one.name!r}")
            self._functions[one.name] = one
        self._limits: Final = limits or VenuePythonConfig()
        self._path: Final = tuple(path)
        self._processes: Final = asyncio.Semaphore(self._limits.at_once)
        self._threads: Final = ThreadPoolExecutor(BLOCKING_THREADS, "venue-python")

    def operations(self) -> Sequence[VenueOperation]:
        """Return an operation for each function."""
        return [_operation(one) for one in self._functions.values()]

    def check(self, meta: OperationMetadata, input: Json) -> None:
        """Refuse a function that is not registered."""
        sub_operation(meta, self._functions)

    async def run(self, job: JobContext, meta: OperationMetadata, input: Json) -> Json:
        """Call the function; return its result.

        Raises: OperationFailed: it raised, ended its process, took too long, or its result is not
                JSON. LimitExceeded: input or result are longer than `PIPE_BYTES_MAX`.
        """
        registered = self._functions[sub_operation(meta, self._functions)]
        arguments = [input, job.effect_key().hex()] if registered.keyed else [input]
        # A name runs in a process of its own, with limits; an object in a thread, without any.
        if isinstance(registered.function, str):
            async with self._processes:
                return await call_in_process(
                    registered.function, arguments, self._limits, self._path
                )
        # A coroutine can be cancelled with its job; a thread cannot.
        if inspect.iscoroutinefunction(registered.function):
            return checked_result(await registered.function(*arguments))
        loop = asyncio.get_running_loop()
        return checked_result(
            await loop.run_in_executor(self._threads, registered.function, *arguments)
        )

    def close(self) -> None:
        """End the idle threads; running functions end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _operation(registered: RegisteredFunction) -> VenueOperation:
    operation: dict[str, Json] = {"adapter": f"python:{registered.name}"}
    if registered.input is not None:
        operation["input"] = registered.input
    return VenueOperation(
        f"python/{registered.name}",
        {
            "name": registered.name,
            "description": registered.description,
            "operation": operation,
        },
        has_effects=registered.has_effects,
        recover=registered.recover,
    )


def checked_result(result: Any) -> Json:
    """Return the result of a function as JSON values.

    Raises: OperationFailed: it is not. LimitExceeded: it is longer than `PIPE_BYTES_MAX`.
    """
    try:
        text = json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise OperationFailed(f"its result is not JSON: {error}") from None
    if len(text) > PIPE_BYTES_MAX:
        raise LimitExceeded(f"the result of a function has at most {PIPE_BYTES_MAX} bytes of JSON")
    checked: Json = json.loads(text)  # tuples become lists, as from a process
    return checked
