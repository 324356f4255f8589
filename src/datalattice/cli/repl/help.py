"""Help: the commands and their arguments, from their declarations and descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from datalattice.actions import CELL_FORMAT, HASH_FORMAT, KEY_FORMAT, STORE_ID_FORMAT, Action
from datalattice.cli.render import CommandResult, Listing
from datalattice.cli.repl.language import MessageShape
from datalattice.client import StoreMethod
from datalattice.protobuf import FieldInfo, Message

_KINDS: Final = {
    "string": "text",
    "bool": "true or false",
    "double": "number",
    "uint32": "whole number",
    "uint64": "whole number",
    "int32": "whole number",
    "int64": "whole number",
}

_CODECS: Final[Mapping[Any, str]] = {
    CELL_FORMAT: "value",
    HASH_FORMAT: "hash",
    KEY_FORMAT: "public key",
    STORE_ID_FORMAT: "store",
}


def overview(
    commands: Mapping[str, type[Message]],
    methods: Sequence[StoreMethod],
    actions: Iterable[Action],
) -> CommandResult:
    """Return one line for each command."""
    rows = [(name, _arguments(one), _summary(one.__doc__)) for name, one in commands.items()]
    rows += [(one.name.lower(), _arguments(one.request), one.description) for one in methods]
    rows += [(one.name, _arguments(one.request), one.summary) for one in actions]
    columns = ("command", "arguments", "does")
    document = [dict(zip(columns, row, strict=True)) for row in rows]
    return CommandResult(document, [Listing(columns, rows)])


def help_of(
    target: Action | StoreMethod | type[Message],
    shape: MessageShape | type[Message],
    given: set[str],
) -> CommandResult:
    """Return the help of a command: what it does, its arguments and the fields of its answer.

    given: fields that are filled in.
    """
    answer: MessageShape | type[Message] | None = None
    if isinstance(target, StoreMethod):
        name, kind, doc, answer = (
            target.name.lower(),
            target.kind,
            target.description,
            target.answer,
        )
    elif isinstance(target, Action):
        name, kind, doc, answer = target.name, target.kind.value, target.doc, target.result
    else:
        name, kind, doc = target.full_name.removeprefix("repl."), "command", target.__doc__ or ""
    arguments = _rows(shape, given)
    answered = [] if answer is None else _rows(answer, set())
    document = {
        "command": name,
        "kind": kind,
        "doc": doc,
        "arguments": [
            {"name": one, "type": of, "default": default} for one, of, default in arguments
        ],
        "answer": [{"name": one, "type": of} for one, of, _ in answered],
    }
    lines: list[str | Listing] = [f"{name} ({kind})", "", *doc.rstrip().split("\n")]
    if arguments:
        lines += ["", Listing(("argument", "type", "default"), arguments)]
    if answered:
        lines += ["", Listing(("answer", "type"), [row[:2] for row in answered])]
    return CommandResult(document, lines)


def _summary(doc: str | None) -> str:
    return (doc or "").partition("\n")[0]


def _arguments(shape: MessageShape | type[Message]) -> str:
    return " ".join([one.name for one in shape.declared()])


def _rows(shape: MessageShape | type[Message], given: set[str]) -> list[tuple[str, str, str]]:
    unset = shape() if isinstance(shape, type) else None
    rows = []
    for one in shape.declared():
        default = "" if unset is None else getattr(unset, one.name)
        # Defaults that say no more than that nothing is given.
        shown = "" if default in ("", b"", (), None) else str(default).lower()
        rows.append((one.name, kind_text(one), "as in use" if one.name in given else shown))
    return rows


def kind_text(field: FieldInfo) -> str:
    """Return the type of a field for people."""
    if field.codec is not None:
        kind = _CODECS.get(field.codec, "hex")
    elif field.kind == "enum":
        members: Any = field.type
        kind = ", ".join([name.lower() for name in members.__members__])
    elif field.kind == "message":
        of: Any = field.type
        kind = f"({_arguments(of)})"
    else:
        kind = _KINDS.get(field.kind, "bytes")
    return f"list of {kind}" if field.repeated else kind
