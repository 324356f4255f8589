"""Completing: suggests the next word from the commands, their fields and the node's data.

Each key press asks the node at most once; answers are reused for some seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from datalattice.actions import (
    STORE_ID_FORMAT,
    Action,
    ActionRequest,
    ListDatabases,
    ListDirectory,
    ListDrives,
    ListPins,
    ListStores,
    ListStoreTypes,
    ListTopics,
    ReadKeys,
)
from datalattice.cli.repl.commands import REPL_COMMANDS, UseOwner, UseStore
from datalattice.cli.repl.evaluator import Evaluator
from datalattice.cli.repl.language import (
    CommandPart,
    Incomplete,
    NamedPart,
    parse_command,
    read_words,
    write_word,
)
from datalattice.client import Client
from datalattice.clock import Clock, SystemClock
from datalattice.errors import DataLatticeError
from datalattice.protobuf import FieldInfo

FRESH_MS: Final = 3_000
"""How long an answer of the node is reused."""

_ANSWERS_MAX: Final = 100
"""Most answers that are cached."""

_KEYS_MAX: Final = 50
"""Most keys of a database that are suggested."""


class Candidate(NamedTuple):
    """A suggested completion. about: a description for people."""

    text: str
    about: str = ""


class Candidates:
    """Completions of a command line.

    client: a separate one, because a command may be running. owners: returns names of owners.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        client: Client,
        owners: Callable[[], Iterable[str]],
        clock: Clock | None = None,
    ) -> None:
        self._evaluator: Final = evaluator
        self._client: Final = client
        self._owners: Final = owners
        self._clock: Final = clock or SystemClock()
        self._answers: Final[dict[bytes, tuple[int, Any]]] = {}

    def of(self, text: str) -> tuple[str, list[Candidate]]:
        """Return the unfinished word at the end of `text`, and its completions.

        There are none for an unknown command, or if the node does not answer.
        """
        start = max(text.rfind(one) for one in " \t\n(") + 1
        word, before = text[start:], text[:start]
        try:
            parts = _closed(before)
            found = list(self._names(parts) if _is_first(parts) else self._after(parts, word))
        except DataLatticeError:
            return word, []
        return word, [one for one in found if one.text.startswith(word) and one.text != word]

    def _names(self, parts: tuple[CommandPart, ...]) -> Iterator[Candidate]:
        for name in self._evaluator.names():
            (target, _), _ = self._evaluator.find(parse_command(name))
            if isinstance(target, Action):
                yield Candidate(name, target.summary)
            # After `take 3` follows a stream, which no command of the prompt is.
            elif not parts and name in REPL_COMMANDS:
                yield Candidate(name, (REPL_COMMANDS[name].__doc__ or "").partition("\n")[0])
            elif name not in REPL_COMMANDS:
                yield Candidate(name)

    def _after(self, parts: tuple[CommandPart, ...], word: str) -> Iterator[Candidate]:
        if parts[0] == parse_command("take")[0]:
            # `take 3` stands in front of the command that is completed.
            parts = parts[2:]
        (target, shape), rest = self._evaluator.find(parts)
        if target is REPL_COMMANDS["help"]:
            yield from (Candidate(name) for name in self._evaluator.names())
            return
        fields = {one.name: one for one in shape.declared()}
        given = self._evaluator.given(shape)
        said = {**given, **_said(shape, rest, given)}
        name, is_named, _ = word.partition("=")
        # After `name=` only values of that field fit.
        if is_named:
            if name in fields:
                for one in self._values(target, fields[name], word[len(name) + 1 :], said):
                    yield one._replace(text=f"{name}={one.text}")
            return
        last = rest[-1] if rest else None
        # A field may be given only once.
        free = [one for one in fields.values() if one.name not in said]
        if word.startswith(":"):
            yield from (Candidate(f":{one.name}") for one in free)
            return
        if free and not (isinstance(last, NamedPart) and last.value == ""):
            yield from self._values(target, free[0], word, said)
        yield from (Candidate(f"{one.name}=") for one in free)

    def _values(
        self, target: object, field: FieldInfo, word: str, said: dict[str, Any]
    ) -> Iterator[Candidate]:
        """Yield values of a field, asking the node at most once."""
        if field.kind == "bool":
            yield from (Candidate("true"), Candidate("false"))
        elif field.kind == "enum":
            members: Any = field.type
            yield from (Candidate(name.lower()) for name in members.__members__)
        elif field.name == "owner" or (target is UseOwner):
            yield from (Candidate(name) for name in self._owners())
        elif field.codec is STORE_ID_FORMAT or (target is UseStore) or field.name == "store":
            for one in self._ask(ListStores()).items:
                yield Candidate(one.id.hex(), f"{one.name} {one.store_type}")
                if one.name:
                    yield Candidate(write_word(one.name), one.store_type)
        elif isinstance(target, Action):
            yield from (Candidate(write_word(one)) for one in self._things(field.name, word, said))

    def _things(self, name: str, word: str, said: dict[str, Any]) -> Iterable[str]:
        """Return names of the node's topics, databases and so on, for a field with this name."""
        owner = {"owner": said["owner"]} if "owner" in said else {}
        if name == "topic":
            return [one.topic for one in self._ask(ListTopics(**owner)).topics]
        if name == "database":
            return [one.database for one in self._ask(ListDatabases(**owner)).databases]
        if name == "drive":
            return list(self._ask(ListDrives(**owner)).drives)
        if name == "store_type":
            return list(self._ask(ListStoreTypes()).items)
        if name == "label":
            return [one.label for one in self._ask(ListPins()).pins]
        if name in ("key", "prefix") and "database" in said:
            keys = ReadKeys(database=said["database"], prefix=word, count=_KEYS_MAX, **owner)
            return [one.key for one in self._ask(keys).entries]
        if name in ("path", "target") and "drive" in said:
            folder = word.rpartition("/")[0]
            listed = self._ask(ListDirectory(drive=said["drive"], path=folder, **owner)).entries
            return [one.path + ("/" if one.is_directory else "") for one in listed]
        return []

    def _ask(self, request: ActionRequest[Any]) -> Any:
        """Return the node's answer, or a cached one up to `FRESH_MS` old."""
        key, now_ms = request.action.name.encode() + request.encode(), self._clock.now_ms()
        kept = self._answers.get(key)
        if kept is not None and now_ms - kept[0] < FRESH_MS:
            return kept[1]
        answer = self._client.call(request)
        # Cleared as a whole: most answers are too old to be used again.
        if len(self._answers) >= _ANSWERS_MAX:
            self._answers.clear()
        self._answers[key] = (now_ms, answer)
        return answer


def _is_first(parts: tuple[CommandPart, ...]) -> bool:
    """Return whether the name of a command comes next."""
    return not parts or (parts[0] == parse_command("take")[0] and len(parts) == 2)


def _closed(text: str) -> tuple[CommandPart, ...]:
    """Return the parts of a text whose lists may be open. Raises: UsageError: it is malformed."""
    for _ in range(2):
        try:
            return parse_command(text)
        except Incomplete:
            # A command may itself be a list: `(queue.offer :topic`.
            text = text.rstrip() + ")"
    return parse_command(text)


def _said(shape: Any, parts: tuple[CommandPart, ...], given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that have values already, without looking up names of stores."""
    return read_words(
        shape, parts, set(given), lambda one, _: b"" if one.codec is STORE_ID_FORMAT else None
    )
