"""Documents: values of any size written and read as one document, in one of several layouts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, Final, TextIO

import typer

from datalattice.cells import (
    Value,
    decode_message,
    encode_message,
    from_text,
    read_json,
    to_text,
    validate,
    write_json,
)
from datalattice.cli.render import progress_bars
from datalattice.errors import BadFormat, DataLatticeError, UsageError

_PIPE: Final = Path("-")


LAYOUTS: Final = ("json", "plain", "lines", "text", "cells")
"""Layouts of a value: `json` reads back as the same value; `plain` is JSON without marks, `lines`
such documents one after another, `text` the printed form, `cells` the bytes of its cells."""

LayoutOption = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="json|plain|text|cells",
        help="Write only the value. json reads back as the same value; plain is JSON without "
        "marks, text the printed form, cells the bytes of its cells.",
    ),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", help="Write the whole value to this file.")
]


def is_pipe(path: Path | None) -> bool:
    """Return whether a path of the command line stands for a standard stream."""
    return path is None or path == _PIPE


def print_document(document: dict[str, object], value: Value) -> None:
    """Print a JSON document with a value of any size as its last member, "value"."""
    # The value is streamed, so the document's last brace is written after it.
    head = json.dumps(document, indent=2).removesuffix("\n}")
    sys.stdout.write(head + ',\n  "value": ')
    _stream(value, sys.stdout, "write")
    sys.stdout.write("\n}\n")


def checked_layout(layout: str, allowed: Sequence[str], option: str) -> str:
    """Return a layout. Raises: UsageError: `layout` is not in `allowed`."""
    if layout not in allowed:
        raise UsageError(f"{option} is {', '.join(allowed)}; got {layout!r}")
    return layout


def write_document(value: Value, layout: str, output: Path | None) -> None:
    """Write only a value to a file, or without `output` to standard output."""
    checked_layout(layout, ("json", "plain", "text", "cells"), "--layout")
    if layout == "cells":
        # Without the limit for peers' messages: this is the user's own value.
        data = encode_message(value, limit=sys.maxsize)
        if output is not None and not is_pipe(output):
            output.write_bytes(data)
        else:
            sys.stdout.flush()  # text that waits there comes first
            sys.stdout.buffer.write(data)
        return
    with ExitStack() as stack:
        file: TextIO = sys.stdout
        if output is not None and not is_pipe(output):
            file = stack.enter_context(output.open("w", encoding="utf-8", newline="\n"))
        if layout == "text":
            file.write(to_text(value))
        else:
            _stream(value, file, f"write {output or 'the value'}", marked=layout == "json")
        file.write("\n")


class _Escaped:
    """A text file that escapes the characters that its encoding lacks, as JSON allows."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._encoding = getattr(file, "encoding", None) or "utf-8"

    def write(self, text: str) -> object:
        try:
            text.encode(self._encoding)
        except UnicodeEncodeError:
            # JSON's escape of the characters, without the quotes, and with others unchanged.
            text = json.dumps(text)[1:-1].replace('\\"', '"').replace("\\\\", "\\")
        return self._file.write(text)


def _stream(value: Value, file: TextIO, label: str, *, marked: bool = True) -> None:
    with progress_bars(transient=True) as bars:
        write_json(value, _Escaped(file), marked=marked, progress=bars.add(label).to)


def read_layout(source: Path | None, layout: str, stage: Callable[[Value], object]) -> Value:
    """Return the value in a file, or in standard input. stage: stores parts of a large value.

    Raises: UsageError: the input does not have this layout.
    """
    name = "standard input" if is_pipe(source) else str(source)
    with _opened(source) as file, progress_bars(transient=True) as bars:
        try:
            if layout == "text":
                return from_text(file.read().decode("utf-8", "surrogateescape"))
            if layout == "cells":
                value = decode_message(file.read(), limit=sys.maxsize)  # a local file of any size
                validate(value)  # the file may come from others, so it is checked like a peer's
                return value
            return read_json(
                file,
                marked=layout == "json",
                lines=layout == "lines",
                stage=stage,
                progress=bars.add(f"read {name}").to,
            )
        except BadFormat as error:
            raise UsageError(f"{name}: {error}{_hint(layout, error)}") from error


def _hint(layout: str, error: DataLatticeError) -> str:
    if layout == "json" and "mark" in str(error):
        return "; --in plain reads JSON without marks"
    return ""


@contextmanager
def _opened(source: Path | None) -> Iterator[BinaryIO]:
    if source is not None and not is_pipe(source):
        with source.open("rb") as file:
            yield file
        return
    yield _Input(sys.stdin)  # type: ignore[misc]


class _Input:
    """Standard input as a binary file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = getattr(stream, "buffer", stream)

    def read(self, count: int = -1) -> bytes:
        got = self._stream.read(count)
        # A stream without a `buffer` gives text.
        return got.encode("utf-8", "surrogateescape") if isinstance(got, str) else bytes(got)
