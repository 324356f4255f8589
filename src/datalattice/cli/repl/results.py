"""Results: the result of an action or of a store's method, as the command line prints it.

A list is a table on a terminal and tab-separated in a pipe; anything else is printed as names and
values. With `--json` it is the document that REST sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from datalattice.actions import CELL_FORMAT, RESUME_NUMBER, IntentionInfo, SExprMessage, to_document
from datalattice.cells import marked_text
from datalattice.cli.render import CommandResult, Listing, Records, json_text, pair_lines
from datalattice.cli.repl.language import MessageShape
from datalattice.cli.store.access import bytes_text
from datalattice.cli.units import moment_text
from datalattice.clock import Hlc
from datalattice.protobuf import FieldInfo, Message
from datalattice.weaver import GraphNode, SExpr, Summary, SymbolWord

_TIMES: Final = frozenset({"time_ms", "modified_ms"})
"""Fields that hold a time as Unix milliseconds."""

_UNSET: Final = (None, "", b"", ())

_RESUME: Final = ("resume", RESUME_NUMBER)

_OK: Final = "ok"
"""Printed for a result without fields."""


def result_of(message: Message) -> CommandResult:
    """Return the result of an action."""
    return _result(type(message), _values(message), to_document(message))


def answer_of(shape: MessageShape, values: Mapping[str, Any]) -> CommandResult:
    """Return the result of a store's method. values: its fields, as plain values."""
    return _result(shape, values, document_of(values))


def records_of(
    shape: MessageShape | type[Message], items: Any, document: Callable[[Any], Any]
) -> Records:
    """Return the items of a stream; each is printed when it arrives."""

    def text(item: Any) -> str:
        values = _values(item) if isinstance(item, Message) else item
        shown = [
            one
            for one in shape.declared()
            # Only a program uses the point to resume from, so it is not printed.
            if values[one.name] not in _UNSET and (one.name, one.number) != _RESUME
        ]
        return "\t".join([_shown(one, values[one.name]) for one in shown])

    return Records(items, document, text, is_live=True)


def document_of(value: Any) -> Any:
    """Return plain values as JSON: bytes are a text if they are UTF-8, else `{"$blob": hex}`."""
    if isinstance(value, Mapping):
        return {str(name): document_of(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [document_of(one) for one in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"$blob": value.hex()}


def _values(message: Message) -> dict[str, Any]:
    return {field.name: getattr(message, field.name) for field in message.declared()}


def _result(
    shape: MessageShape | type[Message], values: Mapping[str, Any], document: Any
) -> CommandResult:
    fields = shape.declared()
    if not fields:
        return CommandResult(document, [_OK])
    lists = [one for one in fields if one.repeated and one.kind == "message"]
    if len(fields) == 1 and not lists:
        return CommandResult(document, _lines(fields[0], values[fields[0].name]))
    parts: list[str | Listing] = []
    pairs = {
        one.name: _shown(one, values[one.name])
        for one in fields
        # Before a list, fields that are 0 or false are omitted as well.
        if one not in lists and (values[one.name] if lists else values[one.name] not in _UNSET)
    }
    for one in lists:
        parts.append(_listing(one, values[one.name], "" if len(lists) == 1 else one.name))
    return CommandResult(document, [*parts, *pair_lines(pairs)])


def _lines(field: FieldInfo, value: Any) -> list[str]:
    if field.repeated:
        return [_shown_one(field, one) for one in value]
    return [] if value is None and field.codec is not CELL_FORMAT else [_shown_one(field, value)]


def _listing(field: FieldInfo, items: Sequence[Any], title: str) -> Listing:
    of: Any = field.type
    rows = [_values(one) if isinstance(one, Message) else one for one in items]
    # A column without a value in any row is omitted.
    columns = [
        one for one in of.declared() if not rows or any(row[one.name] not in _UNSET for row in rows)
    ]
    shown = [[_cell(one, row[one.name]) for one in columns] for row in rows]
    return Listing([one.name for one in columns], shown, title)


def _cell(field: FieldInfo, value: Any) -> object:
    """Return a value of a table; numbers stay numbers, which are aligned right."""
    is_number = type(value) in (int, float, bool) and field.name not in _TIMES
    return value if is_number else _shown(field, value)


def _shown(field: FieldInfo, value: Any) -> str:
    if field.repeated:
        return " ".join([_shown_one(field, one) for one in value])
    if value is None and field.codec is not CELL_FORMAT:
        return ""
    return _shown_one(field, value)


def _shown_one(field: FieldInfo, value: Any) -> str:
    if field.codec is CELL_FORMAT:  # first: a value of the lattice may be a mapping as well
        return value if isinstance(value, str) else marked_text(value)
    if isinstance(value, SExprMessage):
        return Summary(expression_of(value)).short
    if isinstance(value, Message):
        return json_text(to_document(value))
    if isinstance(value, Mapping):
        return json_text(document_of(value))
    if field.codec is not None:
        return str(value.hex())
    if isinstance(value, bytes):
        return bytes_text(value)
    if field.name in _TIMES:
        return moment_text(value)
    if isinstance(value, bool):
        return str(value).lower()
    return getattr(value, "name", str(value)).lower() if field.kind == "enum" else str(value)


def expression_of(message: SExprMessage) -> SExpr:
    """Return the expression that a message stands for."""
    if message.symbol is not None:
        return SymbolWord(message.symbol)
    for one in (message.str, message.raw, message.num):
        if one is not None:
            return one
    items = () if message.list is None else message.list.items
    return tuple([expression_of(one) for one in items])


def graph_node(intention: IntentionInfo, *, chains: bool) -> GraphNode:
    """Return an intention as a node of the graph. chains: also link to its author's one before."""
    clock, condition = intention.clock, intention.condition
    # A condition of a later version is drawn as none.
    deps = () if condition is None or condition.v1 is None else condition.v1.hashes
    summary = Summary(expression_of(intention.operations[0]) if intention.operations else ())
    front = f"{intention.hash.hex()[:8]} {intention.author.hex()[:8]} "
    return GraphNode(
        front + summary.short,
        intention.author,
        Hlc(0, 0) if clock is None else Hlc(clock.wall_time, clock.counter),
        (*deps, *((intention.store_prev,) if chains else ())),
        (front + summary.lines[0], *summary.lines[1:]),
    )
