"""Text reader: values from their printed form.

Source: CAD032; docs/json.md "Printed form".
"""

from __future__ import annotations

import re
from typing import Final

from datalattice.cells.blobs import make_blob, make_text
from datalattice.cells.cell import Value
from datalattice.cells.index import Index
from datalattice.cells.maps import Map, Set
from datalattice.cells.message import decode
from datalattice.cells.scalars import NAMED_CHARS, Address, Char, Keyword, Symbol, require_type
from datalattice.cells.scan import branch_hashes
from datalattice.cells.tagged import Signed, Syntax
from datalattice.cells.text import parse_integer
from datalattice.cells.vectors import List, Vector
from datalattice.errors import BadFormat, DataLatticeError
from datalattice.limits import TEXT_DEPTH_MAX

_BLANK: Final = re.compile(r"(?:[\s,]|;[^\n]*)*")
_OPENING: Final = re.compile(r"#Index\s*\{|#Signed\s*\{|#\{|[\[({^]")
_STRING: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_RAW: Final = re.compile(r"#\[((?:[0-9a-fA-F]{2})*)\]")
_CHAR: Final = re.compile(r'\\(.[^\s,()\[\]{}"]*)', re.DOTALL)
_WORD: Final = re.compile(r'[^\s,()\[\]{}"]+')
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_DOUBLE: Final = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_BLOB: Final = re.compile(r"0x((?:[0-9a-fA-F]{2})*)")
_ADDRESS: Final = re.compile(r"#[0-9]{1,19}")

_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "b": "\b", "f": "\f"}
_WORDS: Final[dict[str, object]] = {
    "nil": None,
    "true": True,
    "false": False,
    "##NaN": float("nan"),
    "##Inf": float("inf"),
    "##-Inf": float("-inf"),
}
_CODES: Final = {name: code for code, name in NAMED_CHARS.items()}
_CLOSING: Final = {"[": "]", "(": ")", "{": "}", "#{": "}", "#Index{": "}", "#Signed{": "}"}


def from_text(text: str) -> Value:
    """Return the value of a printed form.

    Blanks and commas separate; `;` starts a comment to the end of the line.
    Raises: BadFormat: not a printed form; the text names the character.
    """
    require_type(text, str, "a printed form is a str")
    return _TextReader(text).read()


class _OpenForm:
    """A container that is not closed yet."""

    __slots__ = ("items", "opening")

    def __init__(self, opening: str) -> None:
        self.opening = opening
        self.items: list[Value] = []


class _TextReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._forms: list[_OpenForm] = []

    def _broken(self, reason: str) -> BadFormat:
        return BadFormat(f"not a printed value at character {self._at + 1}: {reason}")

    def _skip(self) -> None:
        found = _BLANK.match(self._text, self._at)
        if found is not None:
            self._at = found.end()

    def read(self) -> Value:
        while True:
            self._skip()
            # Containers first: `#{` and `#Index {` begin like an address or a tag.
            opening = _OPENING.match(self._text, self._at)
            if opening is not None:
                self._at = opening.end()
                # The bound of `to_text`, so that printed values read back.
                if len(self._forms) >= TEXT_DEPTH_MAX:
                    raise self._broken(f"text is read down to {TEXT_DEPTH_MAX} levels")
                self._forms.append(_OpenForm("".join(opening.group().split())))
                continue
            if self._forms and self._closes(self._forms[-1]):
                value = self._finished(self._forms.pop())
            else:
                value = self._leaf()
            while self._forms:
                form = self._forms[-1]
                form.items.append(value)
                # `^meta value` has no closing sign: it ends with its second part.
                if form.opening != "^" or len(form.items) < 2:
                    break
                value = self._finished(self._forms.pop())
            else:
                self._skip()
                if self._at < len(self._text):
                    raise self._broken("something follows the value")
                return value

    def _closes(self, form: _OpenForm) -> bool:
        closing = _CLOSING.get(form.opening)
        if closing is None or not self._text.startswith(closing, self._at):
            return False
        self._at += 1
        return True

    def _finished(self, form: _OpenForm) -> Value:
        try:
            return _made(form.opening, form.items)
        except (DataLatticeError, ValueError) as error:
            raise self._broken(str(error)) from error

    # --- values without children ---

    def _leaf(self) -> Value:
        text, at = self._text, self._at
        if at >= len(text):
            raise self._broken("the text ends where a value should be")
        if text[at] == '"':
            return make_text(self._string())
        raw = _RAW.match(text, at)
        if raw is not None:
            self._at = raw.end()
            return self._raw(raw.group(1))
        if text[at] == "\\":
            return self._char()
        word = _WORD.match(text, at)
        if word is None:
            raise self._broken(f"{text[at]!r} closes what was not opened")
        try:
            value = _value_of(word.group())
        except (DataLatticeError, ValueError) as error:
            raise self._broken(str(error)) from error
        self._at = word.end()
        return value

    def _string(self) -> str:
        found = _STRING.match(self._text, self._at)
        if found is None:
            raise self._broken("a string does not end")
        self._at = found.end()
        return _ESCAPE.sub(self._unescaped, found.group(1))

    def _unescaped(self, found: re.Match[str]) -> str:
        name = found.group(1)
        # `\u` and four hex digits: the only escape of several characters.
        if len(name) > 1:
            return chr(int(name[1:], 16))
        char = _ESCAPED.get(name)
        if char is None:
            raise self._broken(f"a string has no escape \\{name}")
        return char

    def _raw(self, digits: str) -> Value:
        data = bytes.fromhex(digits)
        try:
            value = decode(data)
        except BadFormat as error:
            raise self._broken(str(error)) from error
        # The text has this one cell only, so a reference could never be loaded.
        if branch_hashes(data):
            raise self._broken("a cell in hex must not have references")
        return value

    def _char(self) -> Value:
        found = _CHAR.match(self._text, self._at)
        name = "" if found is None else found.group(1)
        code = ord(name) if len(name) == 1 else _CODES.get(name)
        # A name of several letters must be one of `newline`, `return`, `space` and `tab`.
        if found is None or code is None:
            raise self._broken(f"there is no character \\{name}")
        self._at = found.end()
        return Char(code)


def _value_of(word: str) -> Value:
    # Words with a meaning of their own; anything else without a sign is a symbol.
    if word in _WORDS:
        return _WORDS[word]
    if _INTEGER.fullmatch(word):
        return parse_integer(word)
    if _DOUBLE.fullmatch(word):
        return float(word)
    blob = _BLOB.fullmatch(word)
    if blob is not None:
        return make_blob(bytes.fromhex(blob.group(1)))
    if word.startswith(":"):
        return Keyword(word[1:])
    if _ADDRESS.fullmatch(word):
        return Address(int(word[1:]))
    # A symbol begins with neither: it would read as a tag or a number.
    if word[0] == "#" or word[0].isdigit():
        raise BadFormat(f"{word[:40]!r} is not a value")
    return Symbol(word)


def _made(opening: str, items: list[Value]) -> Value:
    if opening == "[":
        return Vector.of(items)
    if opening == "(":
        return List.of(items)
    if opening == "#{":
        return Set.of(items)
    if opening == "^":
        meta, value = items
        if not isinstance(meta, Map):
            raise BadFormat("metadata is a map")
        return Syntax(value, meta)
    # Keys and values alternate.
    if len(items) % 2:
        raise BadFormat("a map needs a value for each key")
    entries = list(zip(items[::2], items[1::2], strict=True))
    if opening == "#Index{":
        return Index.of(entries)
    whole = Map.of(entries)
    return _signed(whole) if opening == "#Signed{" else whole


def _signed(fields: Map) -> Value:
    names = (Keyword("public-key"), Keyword("signature"), Keyword("value"))
    # Exactly these members, so that every signed value has one text.
    if len(fields) != len(names) or any(name not in fields for name in names):
        raise BadFormat("a signed value has :public-key, :signature and :value")
    key, signature, value = [fields[name] for name in names]
    if not isinstance(key, bytes) or not isinstance(signature, bytes):
        raise BadFormat("the key and the signature of a signed value are blobs")
    return Signed(key, signature, value)
