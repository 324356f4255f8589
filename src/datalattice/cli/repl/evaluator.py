"""Evaluator: runs commands one after another through a client of a node.

A command is an action by its name (`queue.offer`, `queue offer`, or a unique prefix), a method of
the store in use, or one of `REPL_COMMANDS`. A stream runs in the background, and its items are
printed as they arrive.

Source: docs/repl.md.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, ClassVar, Final, NamedTuple

from datalattice.actions import (
    ACTIONS,
    OWN_NAME,
    PAGE_MAX,
    STORE_ID_FORMAT,
    Action,
    ActionKind,
    GetStoreDetails,
    ListStores,
    ReadHistory,
    StoreRef,
    to_document,
)
from datalattice.cli.render import CommandResult, Listing, Records, print_notice, show
from datalattice.cli.repl.commands import (
    GRAPH_MAX,
    REPL_COMMANDS,
    SECRETS,
    DrawGraph,
    ListJobs,
    QuitPrompt,
    ShowHelp,
    StopJobs,
    TakeItems,
    UseOwner,
    UseStore,
)
from datalattice.cli.repl.help import help_of, overview
from datalattice.cli.repl.language import (
    BareWord,
    CommandPart,
    MessageShape,
    parse_command,
    read_message,
    read_words,
)
from datalattice.cli.repl.results import (
    answer_of,
    document_of,
    graph_node,
    records_of,
    result_of,
)
from datalattice.client import Client, ResultStream, StoreMethod, StoreMethods
from datalattice.errors import NoSuchPath, UsageError
from datalattice.protobuf import FieldInfo, Message
from datalattice.weaver import UnknownMethod, draw_graph, store_id_text

_STORES_MAX: Final = 1_000
"""Most stores among which a name is searched."""


class Quit(Exception):
    """`quit` was given."""


OnFailed = Callable[[Exception, str], int]
"""A function that prints an error after a text with its position, and returns its exit code."""


class Found(NamedTuple):
    """The command that a name means. shape: declares its arguments."""

    target: Action | StoreMethod | type[Message]
    shape: MessageShape | type[Message]


class BackgroundStream(threading.Thread):
    """A stream in the background. print: prints one item; failed: prints the error that ends it."""

    def __init__(
        self,
        number: int,
        text: str,
        stream: ResultStream[Any],
        print: Callable[[Any], None],
        failed: OnFailed,
    ) -> None:
        # A daemon thread, because a stream may be silent for ever, and the program must end.
        super().__init__(name=f"job {number}", daemon=True)
        self.number: Final = number
        self.text: Final = text.strip()
        self.stream: Final = stream
        self._print: Final = print
        self._failed: Final = failed
        self.exit_code = 0

    def run(self) -> None:
        """Print the items until the stream ends."""
        try:
            with self.stream as items:
                for item in items:
                    self._print(item)
        except Exception as error:  # noqa: BLE001 - printed: nothing else handles it in this thread
            self.exit_code = self._failed(error, f"[{self.number}] ")


class Evaluator:
    """Runs commands, with their shared state: the store in use, the owner to read, the streams.

    failed: prints the error that ends a stream in the background.
    """

    def __init__(self, client: Client, failed: OnFailed) -> None:
        self.client: Final = client
        self.failed: Final = failed
        self.store: StoreMethods | None = None
        self.store_id = b""
        self.owner = ""
        self.printing: Final = threading.RLock()
        """Held while something is printed."""
        self._jobs: Final[dict[int, BackgroundStream]] = {}
        self._count = 0

    @property
    def prompt(self) -> str:
        """The prompt, with the store in use and the owner to read."""
        whose = f" as {self.owner}" if self.owner else ""
        store = f":{self.store_id.hex()[:8]}" if self.store is not None else ""
        return f"lattice{store}{whose}> "

    def run(self, text: str) -> None:
        """Run one command and print its result.

        Raises: UsageError: the command is unknown or malformed. Quit: it was `quit`. As the action.
        """
        parts = parse_command(text)
        if not parts:
            return
        if _word(parts[0]) == "take":
            if len(parts) < 3:
                raise UsageError(
                    "take is followed by a number and a stream: take 3 queue.follow log"
                )
            taken = read_message(TakeItems, parts[1:2])
            if not taken.count:
                raise UsageError("take is followed by the number of items, 1 or more; got 0")
            self._do(parts[2:], text, taken.count)
        else:
            self._do(parts, text, None)

    def _do(self, parts: tuple[CommandPart, ...], text: str, count: int | None) -> None:
        """Run a command. count: of the items to wait for; None: a stream runs in the background."""
        found, rest = self.find(parts)
        target, shape = found
        kind = target.kind if isinstance(target, (Action, StoreMethod)) else "command"
        is_stream = kind in (ActionKind.STREAM, "stream")
        if count is not None and not is_stream:  # before the command is performed
            raise UsageError("take is for streams; this command answers once")
        if isinstance(target, Action):
            request = read_message(
                target.request, rest, self.given(target.request), self._read_store
            )
            if is_stream:
                stream = self.client.stream(request)
                self._begin(text, stream, target.result, to_document, count)
                return
            result = result_of(self.client.call(request))
        elif isinstance(target, StoreMethod):
            assert self.store is not None
            values = read_words(shape, rest)
            if is_stream:
                events = self.store.stream(target.name, **values)
                self._begin(text, events, target.answer, document_of, count)
                return
            result = answer_of(target.answer, self.store.call(target.name, **values))
        else:
            made = read_message(target, rest)
            result = self._own[target](self, made)
        self._show(result)

    # --- names ------------------------------------------------------------------------------------

    def find(self, parts: Sequence[CommandPart]) -> tuple[Found, tuple[CommandPart, ...]]:
        """Return the command that the first one or two parts name, and the arguments.

        Raises: UsageError: they name no command, or are a prefix of several.
        """
        first = _word(parts[0]) if parts else ""
        second = _word(parts[1]) if len(parts) > 1 else ""
        both = f"{first}.{second}" if second else first
        if not first:
            raise UsageError("a command begins with its name; `help` lists them")
        # An exact name wins, even if longer names begin with it.
        for name, count in ((first, 1), (both, 2)):
            exact = self._named(name)
            if exact is not None:
                return exact, tuple(parts[count:])
        # "Commands may be abbreviated to a unique prefix."
        names = self.names()
        for text, count in ((first, 1), (both, 2)):
            begun = [name for name in names if _begins(name, text)]
            if len(begun) > 1:
                raise UsageError(f"{text!r} may be {', '.join(begun)}")
            for name in begun:
                beginning = self._named(name)
                assert beginning is not None
                return beginning, tuple(parts[count:])
        hint = "" if self.store is not None else "; `use STORE` adds those of a store"
        raise UsageError(f"there is no command {first!r}; `help` lists them{hint}")

    def _named(self, name: str) -> Found | None:
        if name in REPL_COMMANDS:
            return Found(REPL_COMMANDS[name], REPL_COMMANDS[name])
        if name in ACTIONS:
            return Found(ACTIONS[name], ACTIONS[name].request)
        if self.store is not None:
            with suppress(UnknownMethod):
                method = self.store.find(name)
                return Found(method, method.request)
        return None

    def names(self) -> list[str]:
        """Return the names of all commands, with those of the store in use."""
        methods = [] if self.store is None else [one.lower() for one in self.store.names()]
        return [*REPL_COMMANDS, *methods, *ACTIONS]

    def given(self, shape: MessageShape | type[Message]) -> dict[str, Any]:
        """Return the fields that are filled in: the store in use, and the owner to read."""
        found: dict[str, Any] = {}
        for one in shape.declared():
            if (
                self.store is not None
                and one.codec is STORE_ID_FORMAT
                and one.name in ("id", "store_id")
            ):
                found[one.name] = self.store_id
            if self.owner and one.name == "owner" and one.kind == "string":
                found[one.name] = self.owner
        return found

    def keeps(self, text: str) -> bool:
        """Return whether a line may be stored in the history: a command without a secret."""
        try:
            parts = parse_command(text)
            if parts and _word(parts[0]) == "take":
                parts = parts[2:]
            if not parts:
                return False
            (_, shape), rest = self.find(parts)
            values = read_words(shape, rest, set(self.given(shape)), _no_store)
        except UsageError:
            return False
        # "except commands with a token in them and lines that were not commands" (docs/repl.md
        # "Commands")
        return SECRETS.isdisjoint(values)

    # --- stores -----------------------------------------------------------------------------------

    def _read_store(self, one: FieldInfo, text: str) -> bytes | None:
        """Return the id of a store by its name or first digits, or None for another type."""
        return self.find_store(text).id if one.codec is STORE_ID_FORMAT else None

    def find_store(self, text: str) -> StoreRef:
        """Return a store by its name, PARENT/NAME, its id, or the first digits of the id.

        Raises: NoSuchPath: there is no such store. UsageError: there are several.
        """
        digits = text.replace("-", "").lower()
        found: list[tuple[str, StoreRef]] = []
        for path, one in self._stores():
            # A full id or path wins over prefixes.
            if one.id.hex() == digits or path == text:
                return one
            if one.name == text or (digits and one.id.hex().startswith(digits)):
                found.append((path, one))
        if not found:
            raise NoSuchPath(f"there is no store {text!r}; `stores.list` lists them")
        if len(found) > 1:
            listed = ", ".join(f"{one.id.hex()[:8]} {path}" for path, one in found[:10])
            raise UsageError(
                f"{len(found)} stores have the name {text!r} or an id that begins with it: {listed}"
            )
        return found[0][1]

    def _stores(self) -> Iterator[tuple[str, StoreRef]]:
        """Yield the stores with their paths, parents first."""
        waiting: list[tuple[str, bytes | None]] = [("", None)]
        count = 0
        # The number ends the search, as a peer may declare a loop of stores.
        while waiting and count < _STORES_MAX:
            above, parent = waiting.pop(0)
            for one in self.client.call(ListStores(parent_id=parent)).items:
                count += 1
                path = f"{above}{one.name}"
                yield path, one
                waiting.append((f"{path}/", one.id))

    def _use(self, request: UseStore) -> CommandResult:
        if not request.store:
            self.store, self.store_id = None, b""
            return CommandResult({"store": None}, ["no store is in use"])
        one = self.find_store(request.store)
        self.store, self.store_id = self.client.store(one.id), one.id
        text = f"{store_id_text(one.id)} [{one.store_type}] {one.name}".rstrip()
        return CommandResult(to_document(one), [text])

    def _as(self, request: UseOwner) -> CommandResult:
        self.owner = request.owner
        return CommandResult(
            {"owner": self.owner or OWN_NAME}, [f"data of {self.owner or OWN_NAME}"]
        )

    def _graph(self, request: DrawGraph) -> CommandResult:
        if not request.store and self.store is None:
            raise UsageError("graph needs a store: give store=NAME, or `use STORE` first")
        if not 1 <= request.count <= GRAPH_MAX:
            raise UsageError(f"count is 1 to {GRAPH_MAX}, got {request.count}")
        id = self.find_store(request.store).id if request.store else self.store_id
        head = self.client.call(GetStoreDetails(id=id)).witness_head_seq
        start, rows, nodes = max(1, head - request.count + 1), [], {}
        while start:
            page = self.client.call(ReadHistory(id=id, start_seq=start, limit=PAGE_MAX))
            for one in page.items:
                nodes[one.hash] = graph_node(one, chains=request.chains)
                rows.append(to_document(one))
            start = page.next_seq
        # Lines are cut only on a terminal.
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        return CommandResult(rows, list(draw_graph(nodes, width=width)))

    # --- streams ----------------------------------------------------------------------------------

    def _begin(
        self,
        text: str,
        stream: ResultStream[Any],
        shape: MessageShape | type[Message],
        document: Callable[[Any], Any],
        count: int | None,
    ) -> None:
        def print_item(item: Any) -> None:
            self._show(records_of(shape, [item], document))

        if count is not None:
            with stream as items:
                for item in islice(items, count):
                    print_item(item)
            return
        self._count += 1
        job = BackgroundStream(self._count, text, stream, print_item, self._tell)
        self._jobs[job.number] = job
        print_notice(f"[{job.number}] {job.text}; `stop {job.number}` ends it")
        job.start()

    def _tell(self, error: Exception, where: str) -> int:
        with self.printing:
            return self.failed(error, where)

    def wait(self) -> int:
        """Wait until all streams have ended; return the exit code of one that failed, or 0."""
        jobs = list(self._jobs.values())
        for one in jobs:
            one.join()
        return next((one.exit_code for one in jobs if one.exit_code), 0)

    def close(self) -> None:
        """End all streams."""
        self._end(list(self._jobs.values()))

    def _end(self, jobs: list[BackgroundStream]) -> None:
        # All are closed before the first is waited for, so that they end side by side.
        for one in jobs:
            one.stream.close()
        for one in jobs:
            one.join()
            del self._jobs[one.number]

    def _list_jobs(self, _request: ListJobs) -> CommandResult:
        rows = [
            {"job": one.number, "command": one.text, "state": "on" if one.is_alive() else "ended"}
            for one in list(self._jobs.values())
        ]
        return CommandResult(
            rows, [Listing(("job", "command", "state"), [list(one.values()) for one in rows])]
        )

    def _stop(self, request: StopJobs) -> CommandResult:
        known = {str(number): job for number, job in self._jobs.items()}
        if request.job != "all" and request.job not in known:
            listed = ", ".join(known) or "none"
            raise UsageError(
                f"stop is followed by the number of a stream, or all; running: {listed}"
            )
        ended = list(known.values()) if request.job == "all" else [known[request.job]]
        self._end(ended)
        return CommandResult(
            {"stopped": [one.number for one in ended]},
            [f"[{one.number}] {one.text} has ended" for one in ended],
        )

    # --- help -------------------------------------------------------------------------------------

    def _help(self, request: ShowHelp) -> CommandResult:
        topic = request.topic
        methods = [] if self.store is None else self.store.methods()
        if not topic:
            return overview(REPL_COMMANDS, methods, ACTIONS.values())
        group = [one for one in ACTIONS.values() if one.name.partition(".")[0] == topic]
        if group and topic not in REPL_COMMANDS:
            return overview({}, [], group)
        (target, shape), _ = self.find([BareWord(topic)])
        for one in methods:
            if isinstance(target, StoreMethod) and one.name == target.name:
                target = one  # with the service's description
        return help_of(target, shape, set(self.given(shape)))

    def _quit(self, _request: QuitPrompt) -> CommandResult:
        raise Quit

    _own: ClassVar[dict[type[Message], Callable[[Evaluator, Any], CommandResult]]] = {
        DrawGraph: _graph,
        ListJobs: _list_jobs,
        QuitPrompt: _quit,
        ShowHelp: _help,
        StopJobs: _stop,
        UseOwner: _as,
        UseStore: _use,
    }

    def _show(self, result: CommandResult | Records) -> None:
        with self.printing:
            show(result)
            sys.stdout.flush()


def _word(part: CommandPart) -> str:
    """Return a bare word, "" for any other part."""
    return part.text if isinstance(part, BareWord) else ""


def _begins(name: str, text: str) -> bool:
    """Return whether each part of a text begins that of a name: `qu.of` for `queue.offer`."""
    parts, begun = name.split("."), text.split(".")
    return len(parts) == len(begun) and all(
        one.startswith(two) for one, two in zip(parts, begun, strict=True)
    )


def _no_store(one: FieldInfo, _text: str) -> bytes | None:
    return bytes(16) if one.codec is STORE_ID_FORMAT else None
