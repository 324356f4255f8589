"""JSON streams: values as JSON text of any length, written and read piece by piece.

Marked text keeps every value exactly (see `jsonmarks`); plain text is the lossy mapping of
`to_json` and `from_json`. The text is never in memory as a whole. With `stage`, such as the `put`
of a store, finished parts of a value that is read are stored at once and load on demand.

Source: CAD044; docs/json.md "Marks", "Streams".
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from typing import Final, Protocol

from datalattice.cells.blobedit import StageValue
from datalattice.cells.cell import Value
from datalattice.cells.jsonmarks import (
    flat_pieces,
    is_mark,
    key_of_member,
    marked_pieces,
    marked_value,
)
from datalattice.cells.jsontree import Trees
from datalattice.cells.maps import EMPTY_MAP, Map
from datalattice.cells.text import (
    encodable,
    json_pieces,
    parse_integer,
    refuse_json,
    whole_json,
)
from datalattice.cells.triejoin import ABSENT
from datalattice.cells.vectors import EMPTY_VECTOR, Vector
from datalattice.errors import BadFormat, DataLatticeError, LimitExceeded
from datalattice.limits import TEXT_DEPTH_MAX, TEXT_MAX

READ_CHARS: Final = 65_536
"""Characters read at a time."""

STAGE_CHARS: Final = 8_000_000
"""Characters read between two stagings of finished parts."""

WHOLE_CHARS: Final = 262_144
"""Characters that are buffered when an array or object begins. One that ends within them is decoded
at once, which is far faster than step by step."""

_PENDING_MAX: Final = 4_096
"""Most elements that wait to be added to their container: adding many at a time is cheaper."""

MARKED_DEPTH_MAX: Final = 3 * TEXT_DEPTH_MAX + 2
"""Deepest nesting of marked text: a level of values takes up to three levels of text."""

TOKEN_CHARS_MAX: Final = TEXT_MAX
"""Longest string that is read, in characters."""

_CUT_CHARS: Final = 16  # longer than any escape or word that the end of the buffer can cut


class TextSink(Protocol):
    """A destination of text, such as a file."""

    def write(self, text: str, /) -> object:
        """Write a piece."""
        ...


class TextSource(Protocol):
    """A source of text, such as a file: str, or bytes of UTF-8."""

    def read(self, count: int, /) -> str | bytes:
        """Return up to `count` characters or bytes; empty at the end."""
        ...


OnCharacters = Callable[[int], object]
"""Called with the number of characters done."""


def write_json(
    value: Value, file: TextSink, *, marked: bool = True, progress: OnCharacters | None = None
) -> int:
    """Write a value as one JSON text without blanks; return its length in characters.

    Raises: UsageError: nested more than 500 levels. MissingData: a cell is missing. Text written
            before stays written.
    Cost:   memory by the depth of the value, not its size.
    """
    pieces = marked_pieces if marked else json_pieces
    waiting: list[str] = []
    count = room = 0
    for piece in flat_pieces(value, pieces, TEXT_DEPTH_MAX):
        waiting.append(piece)
        # A short piece costs memory beside its characters.
        room += len(piece) + 8
        if room >= READ_CHARS:
            count += _flush(waiting, file)
            room = 0
            if progress is not None:
                progress(count)
    count += _flush(waiting, file)
    if progress is not None:
        progress(count)
    return count


def _flush(waiting: list[str], file: TextSink) -> int:
    text = encodable("".join(waiting))
    waiting.clear()
    file.write(text)
    return len(text)


def read_json(
    file: TextSource,
    *,
    marked: bool = True,
    lines: bool = False,
    stage: StageValue | None = None,
    progress: OnCharacters | None = None,
) -> Value:
    """Return the value of a JSON text, read piece by piece.

    lines: read any number of texts, for example one per line, into one Vector.
    stage: receives finished parts of a large value, which then load through what it stored.
    Raises: BadFormat: not JSON by RFC 8259, or a bad mark; the text names the character.
            LimitExceeded: a string of more than 100,000,000 characters.
    Cost:   without `stage`, memory by the size of the value.
    """
    return _JSONReader(_BufferedText(file, progress), marked, stage).read(lines)


class _BufferedText:
    """The text of a source, buffered."""

    def __init__(self, file: TextSource, progress: OnCharacters | None) -> None:
        self._file = file
        self._progress = progress
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._buffer = ""
        self._at = 0
        self._before = 0
        self._in_vain = 0  # characters scanned for complete values without finding one
        self._ended = False

    @property
    def place(self) -> int:
        """Number of characters done."""
        return self._before + self._at

    def broken(self, reason: str) -> BadFormat:
        return BadFormat(f"not JSON at character {self.place + 1}: {reason}")

    def _more(self, count: int) -> None:
        """Drop the text that is done, and read `count` more characters, or up to the end."""
        parts = [self._buffer[self._at :]]
        while count > 0 and not self._ended:
            parts.append(self._read(count))
            count -= len(parts[-1])
        self._before += self._at
        self._buffer = "".join(parts)
        self._at = 0
        if self._progress is not None:
            self._progress(self._before)

    def _read(self, count: int) -> str:
        got = self._file.read(count)
        # Empty means the end, as with any file of Python.
        if not got:
            self._ended = True
        if not isinstance(got, bytes):
            return got
        try:
            # Incremental: a read may end inside a character of several bytes.
            return self._decoder.decode(got, self._ended)
        except UnicodeDecodeError as error:
            raise BadFormat(f"JSON text is UTF-8: {error.reason}") from error

    def whole(self, trees: Trees, depth_max: int) -> Value:
        """Take the array or object that begins here; ABSENT if it does not end in the buffer.

        Also ABSENT if it is malformed: nothing is taken, and reading step by step finds the error.
        """
        rest = len(self._buffer) - self._at
        if rest < WHOLE_CHARS // 2 and not self._ended:
            self._more(WHOLE_CHARS - rest)
            rest = len(self._buffer)
        # Attempts that find no complete value may cost a bounded multiple of the text, then reading
        # goes step by step.
        if self._in_vain > self.place + 8 * WHOLE_CHARS:
            return ABSENT
        try:
            value, self._at = trees.value_at(self._buffer, self._at, depth_max)
        except (ValueError, DataLatticeError, RecursionError):
            self._in_vain += rest
            return ABSENT
        return value

    def next(self) -> str:
        """Return the next character that is not blank, without taking it; "" at the end."""
        while True:
            buffer, at = self._buffer, self._at
            # The blanks of RFC 8259; Python knows more.
            while at < len(buffer) and buffer[at] in " \t\n\r":
                at += 1
            self._at = at
            if at < len(buffer):
                return buffer[at]
            if self._ended:
                return ""
            self._more(READ_CHARS)

    def take(self) -> str:
        """Take the next character that is not blank; "" at the end."""
        char = self.next()
        self._at += len(char)
        return char

    def scalar(self) -> Value:
        """Take a string, number or word."""
        char = self.next()
        if not char or char not in '"-0123456789tfn':
            raise self.broken("a value should be here")
        count = READ_CHARS
        while True:
            problem = ""
            value: Value = None
            end = self._at
            try:
                value, end = _decoder.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                problem = error.msg
                # The error may only be that the buffer ends inside an escape, a word or a string.
                cut = "Unterminated" in problem or error.pos + _CUT_CHARS > len(self._buffer)
            else:
                cut = end + 3 > len(self._buffer)  # a number may continue, as in 1e+5
            # Complete, or nothing more can come that would complete it.
            if not cut or self._ended:
                if problem:
                    raise self.broken(problem)
                self._at = end
                return whole_json(value) if isinstance(value, str) else value
            # A foreign text could otherwise make us hold a string of any length.
            if len(self._buffer) - self._at > TOKEN_CHARS_MAX:
                raise LimitExceeded(f"a JSON string has at most {TOKEN_CHARS_MAX} characters here")
            self._more(count)
            # Doubling: a long string is scanned again each time, so the total stays proportional to
            # it.
            count *= 2


class _OpenContainer:
    """An unfinished array or object."""

    __slots__ = ("count", "entries", "items", "key", "made", "mark")

    def __init__(self, is_object: bool) -> None:
        self.items: list[Value] = []
        self.entries: list[tuple[object, object]] = []
        self.made: Vector | Map = EMPTY_MAP if is_object else EMPTY_VECTOR
        self.key: Value = None
        self.mark = ""
        self.count = 0

    def add(self, value: Value) -> None:
        self.count += 1
        if isinstance(self.made, Map):
            self.entries.append((self.key, value))
            # Many at a time: each node on the way to new entries is then made once.
            if len(self.entries) >= _PENDING_MAX:
                self.join()
        else:
            self.items.append(value)
            if len(self.items) >= _PENDING_MAX:
                self.join()

    def join(self) -> None:
        """Add the waiting elements to the container."""
        made = self.made
        if isinstance(made, Map):
            if self.entries:
                # "The last of equal keys stays" (docs/cells.md "JSON mapping"), as in both calls.
                self.made = made.put_many(self.entries) if len(made) else Map.of(self.entries)
                self.entries = []
        elif self.items:
            self.made = made.extend(self.items)
            self.items = []

    def value(self) -> Value:
        self.join()
        if not self.mark:
            return self.made
        assert isinstance(self.made, Map)
        return marked_value(self.mark, self.made.get(self.mark))


class _JSONReader:
    def __init__(self, text: _BufferedText, marked: bool, stage: StageValue | None) -> None:
        self._text = text
        self._marked = marked
        self._stage = stage
        self._staged_at = 0
        self._levels: list[_OpenContainer] = []
        self._depth_max = MARKED_DEPTH_MAX if marked else TEXT_DEPTH_MAX
        self._trees = Trees(_parse_key if marked else None)

    def read(self, lines: bool) -> Value:
        if not lines:
            value = self._value()
            # One text is one value: a second one would be lost unseen.
            if self._text.next():
                raise self._text.broken("something follows the value")
            return value
        whole = _OpenContainer(False)
        self._levels.append(whole)
        while self._text.next():
            whole.add(self._value())
        return whole.value()

    def _value(self) -> Value:
        """Take one value."""
        text, levels = self._text, self._levels
        bottom = len(levels)
        while True:
            char = text.next()
            if char in ("[", "{"):
                value = text.whole(self._trees, self._depth_max - len(levels))
                if value is ABSENT:
                    text.take()
                    self._open(char == "{")
                    if text.next() != ("}" if char == "{" else "]"):
                        if char == "{":
                            self._name()
                        continue
                    text.take()
                    value = levels.pop().value()
            else:
                value = text.scalar()
            while len(levels) > bottom:
                level = levels[-1]
                level.add(value)
                if not self._goes_on(level):
                    value = self._closed(levels.pop())
                    continue
                break
            else:
                return value

    def _goes_on(self, level: _OpenContainer) -> bool:
        """Take a comma, in an object the next name too; return False at the container's end."""
        is_object = isinstance(level.made, Map)
        char = self._text.take()
        # A mark has one member, so no comma can follow it.
        if char == ",":
            if level.mark:
                raise self._text.broken(f"the mark {level.mark} stands alone in its object")
            if is_object:
                self._name()
            self._stage_parts()
            return True
        if char != ("}" if is_object else "]"):
            closing = "}" if is_object else "]"
            raise self._text.broken(f"a comma or {closing} should be here, got {char or 'the end'}")
        return False

    def _closed(self, level: _OpenContainer) -> Value:
        try:
            return level.value()
        except BadFormat as error:
            raise self._text.broken(str(error)) from error

    def _open(self, is_object: bool) -> None:
        # "Nesting of JSON and Python data read, and of text written: 500 levels" (docs/cells.md
        # "Limits").
        if len(self._levels) >= self._depth_max:
            raise BadFormat(f"JSON is read down to {self._depth_max} levels")
        self._levels.append(_OpenContainer(is_object))

    def _name(self) -> None:
        """Take the name of a member and its colon."""
        text, level = self._text, self._levels[-1]
        # A name is a string: JSON5 names without quotes are not read.
        if text.next() != '"':
            raise text.broken("the name of a member should be here, a string")
        name = text.scalar()
        assert isinstance(name, str)
        if text.take() != ":":
            raise text.broken("a colon should follow the name of a member")
        level.key = name
        # Plain JSON knows no marks: a name with `$` is a name.
        if not self._marked or not name.startswith("$"):
            return
        if is_mark(name):
            if level.count:
                # A mark is "an object with one member whose name begins with `$`" (docs/json.md
                # "Marks").
                raise text.broken(f"the mark {name} stands alone in its object")
            level.mark = name
            return
        try:
            level.key = key_of_member(name, _parse_key)
        except BadFormat as error:
            raise text.broken(str(error)) from error

    def _stage_parts(self) -> None:
        """Stage the finished parts of the open containers, every `STAGE_CHARS` characters."""
        stage = self._stage
        if stage is None or self._text.place - self._staged_at < STAGE_CHARS:
            return
        self._staged_at = self._text.place
        for level in self._levels:
            level.join()
            # Staged parts load on demand, so the memory stays bounded.
            stage(level.made)


class _Whole:
    """A text in memory as a source."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read(self, count: int) -> str:
        text, self._text = self._text[:count], self._text[count:]
        return text


def _parse_key(text: str) -> Value:
    return read_json(_Whole(text))


_decoder: Final = json.JSONDecoder(parse_int=parse_integer, parse_constant=refuse_json, strict=True)
