"""Columns without an object for each entry: ranges of one text."""

from __future__ import annotations

from array import array

import pytest

from datalattice.arrow.spans import TEXT_BYTES_MAX, Longs, Sheet, Spans
from datalattice.errors import BadFormat, LimitExceeded


def read(sheet: Sheet, spans: Spans) -> list[bytes | None]:
    text = sheet.text()
    bounds = array("i", spans.bounds.getvalue())
    assert list(bounds) == sorted(bounds)
    gaps = array("i", spans.gaps.getvalue())
    assert len(gaps) == spans.absent
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    parts = [None if i in gaps else text[slice(*next(pairs))] for i in range(spans.count)]
    assert next(pairs, None) is None
    return parts


def test_ranges_of_a_leaf_share_one_copy_of_it() -> None:
    sheet, keys, values = Sheet(), Spans(), Spans()
    for leaf in (b"k1v1k2v2", b"k3v3"):
        sheet.turn_to(leaf, 0, len(leaf))
        for at in range(0, len(leaf), 4):
            sheet.add_range(keys, leaf, at, at + 2)
            sheet.add_range(values, leaf, at + 2, at + 4)
    assert sheet.text() == b"k1v1k2v2k3v3"
    assert read(sheet, keys) == [b"k1", b"k2", b"k3"]
    assert read(sheet, values) == [b"v1", b"v2", b"v3"]


def test_a_leaf_is_laid_down_once_whatever_comes_between() -> None:
    sheet, values = Sheet(), Spans()
    leaf = b"one two three"
    sheet.turn_to(leaf, 0, len(leaf))
    sheet.add_range(values, leaf, 0, 3)
    sheet.add(values, b"far away")
    values.add_none()
    sheet.add_range(values, leaf, 4, 7)
    sheet.add_range(values, b"another cell", 0, 7)
    assert read(sheet, values) == [b"one", b"far away", None, b"two", b"another"]
    assert sheet.text().count(leaf) == 1
    assert values.absent == 1


def test_a_range_ends_where_its_cell_does() -> None:
    sheet, values = Sheet(), Spans()
    for leaf, other in ((b"leaf", b""), (b"", b"other")):
        sheet.turn_to(leaf, 0, len(leaf))
        cell = leaf or other
        sheet.add_range(values, cell, 1, len(cell))
        with pytest.raises(BadFormat, match="ends inside"):
            sheet.add_range(values, cell, 1, len(cell) + 1)
    assert read(sheet, values) == [b"eaf", b"ther"]


def test_leaves_among_other_cells_are_taken_alone_and_in_any_order() -> None:
    sheet, values = Sheet(), Spans()
    data = b"of others;third;second;first;of others"
    for leaf in (b"first", b"second", b"third"):
        begin = data.index(leaf)
        end = begin + len(leaf)
        sheet.turn_to(data, begin, end)
        sheet.add_range(values, data, begin, begin + 2)
        with pytest.raises(BadFormat, match="ends inside"):
            sheet.add_range(values, data, begin + 2, end + 1)
        sheet.add_range(values, data, begin + 2, end)
    assert sheet.text() == b"firstsecondthird"
    assert read(sheet, values) == [b"fi", b"rst", b"se", b"cond", b"th", b"ird"]


def test_a_leaf_of_which_nothing_is_taken_takes_no_room() -> None:
    sheet, values = Sheet(), Spans()
    sheet.turn_to(b"leaf", 0, 4)
    values.add_none()
    assert read(sheet, values) == [None]
    assert sheet.text() == b""


@pytest.mark.parametrize("size", [9, 10, 11])
def test_a_text_is_bounded(size: int) -> None:
    sheet, values = Sheet(10), Spans()
    sheet.add(values, bytes(4))
    if size <= 10:
        sheet.add(values, bytes(size - 4))
        assert len(sheet.text()) == size
        return
    with pytest.raises(LimitExceeded, match=r"11 bytes, more than the 10"):
        sheet.add(values, bytes(size - 4))
    assert TEXT_BYTES_MAX == 2**31 - 1


def test_an_absent_number_is_a_gap() -> None:
    longs = Longs()
    for number in (0, -1, 2**63 - 1, -(2**63)):
        longs.add(number)
    longs.add_none()
    longs.add(7)
    assert list(array("q", longs.numbers.getvalue())) == [0, -1, 2**63 - 1, -(2**63), 0, 7]
    assert list(array("i", longs.gaps.getvalue())) == [4]
    assert (longs.count, longs.absent) == (6, 1)
