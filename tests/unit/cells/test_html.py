"""Notebooks show any value: bounded, escaped, and whatever is missing in its place."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import example, given

from datalattice.cells import (
    Index,
    Keyword,
    Map,
    Set,
    Signed,
    Vector,
    decode,
    encode,
    html_table,
    html_words,
    make_blob,
    make_text,
    to_cell,
    to_html,
)
from datalattice.cells.html import (
    HTML_CELLS_MAX,
    HTML_DEPTH_MAX,
    HTML_ENTRIES_MAX,
    HTML_INTEGER_BITS_MAX,
    HTML_TEXT_MAX,
)
from datalattice.crypto import KeyPair
from datalattice.testing import strategies

ALICE = KeyPair(bytes([1]) * 32)


class Tags(HTMLParser):
    """Checks that tags are closed in order; keeps the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.seen: set[str] = set()
        self.said: list[str] = []
        self.feed(text)
        self.close()
        assert not self.opened

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.opened.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)


KNOWN_TAGS = {
    *("table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("details", "summary", "code", "i"),
}


@given(strategies.values())
@example({"<script>": '"&'})
def test_any_value_is_html_of_these_tags_alone(value: Any) -> None:
    tags = Tags(to_html(to_cell(value)))
    assert tags.seen <= KNOWN_TAGS


def test_containers_and_scalars_show_themselves() -> None:
    for value in (Map.of({1: 2}), Index.of({"a": 1}), Vector.of([1]), Set.of([1]), Keyword("k")):
        shown: Any = value
        assert shown._repr_html_() == to_html(value)
    assert "Map, 1 entry" in to_html(Map.of({1: 2}))
    assert to_html(Keyword("k")) == "<code>:k</code>"


def test_text_is_escaped() -> None:
    text = to_html(Map.of({"<b>": "a&b<script>"}))
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "&lt;b&gt;" in text


@pytest.mark.parametrize("count", [HTML_ENTRIES_MAX - 1, HTML_ENTRIES_MAX, HTML_ENTRIES_MAX + 1])
def test_entries_are_bounded(count: int) -> None:
    text = to_html(Vector.of(range(count)))
    assert text.count("<tr>") == 1 + min(count, HTML_ENTRIES_MAX) + (count > HTML_ENTRIES_MAX)
    assert ("and 1 more" in text) == (count > HTML_ENTRIES_MAX)


def test_depth_is_bounded() -> None:
    value: Any = 7
    for depth in range(1, HTML_DEPTH_MAX + 3):
        value = [value]
        text = to_html(to_cell(value))
        assert text.count("<table>") == min(depth, HTML_DEPTH_MAX)
        assert ("<code>7</code>" in text) == (depth <= HTML_DEPTH_MAX)


def test_the_whole_is_bounded() -> None:
    wide: Any = [[[list(range(20))] * 20] * 20] * 20
    text = to_html(to_cell(wide))
    assert text.count("<tr><td><code>") <= HTML_CELLS_MAX
    assert len(text) < 100_000


@pytest.mark.parametrize("size", [HTML_TEXT_MAX, HTML_TEXT_MAX + 1, 10_000])
def test_long_texts_and_blobs_are_cut(size: int) -> None:
    text = to_html(make_text("x" * size))
    assert ("... of" in text) == (size > HTML_TEXT_MAX)
    assert len(text) < 2 * HTML_TEXT_MAX
    blob = to_html(make_blob(b"x" * (size // 2)))
    assert (f"... of {size // 2:,} bytes" in blob) == (size // 2 > HTML_TEXT_MAX // 2)
    assert len(blob) < 2 * HTML_TEXT_MAX


def test_long_integers_are_not_written_out() -> None:
    assert "..." not in to_html(2**HTML_INTEGER_BITS_MAX - 1)
    assert to_html(2**HTML_INTEGER_BITS_MAX) == "<code>Integer of 2,049 bits</code>"


def test_signatures() -> None:
    signed = Signed.sign(ALICE, {"a": 1})
    assert ">valid<" in to_html(signed)
    assert ">not valid<" in to_html(Signed(ALICE.public_key, signed.signature, {"a": 2}))


def test_what_is_missing_is_told_in_its_place() -> None:
    value = Vector.of([1, make_blob(b"q" * 3_000), 3])
    partial = decode(encode(value))  # without its branch
    text = to_html(partial)
    assert "missing cells: 0x" in text
    assert "<code>1</code>" in text
    Tags(text)


def test_tables_of_ones_own() -> None:
    text = html_table("T<", ("a", "b"), [(html_words("<w>"), "s")] * 30)
    assert text.startswith("<table><caption>T&lt;</caption>")
    assert "<code>&lt;w&gt;</code>" in text
    assert "<code>&quot;s&quot;</code>" in text
    assert "and more" in text
