"""Rendering: what a terminal gets, and what a pipe gets."""

from __future__ import annotations

import io
import json
import sys

import pytest

from datalattice.cli.render import cell_text, pair_lines, print_json_list, print_lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_control_characters_are_shown_on_a_terminal_and_kept_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hostile = "\x1b]0;title\x07\x9b31mred\ttab\nline \u2603"
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        monkeypatch.setattr(sys, "stdout", stream)
        print_lines([hostile])
    assert terminal.getvalue() == "\\x1b]0;title\\x07\\x9b31mred\ttab\nline \u2603\n"
    assert pipe.getvalue() == hostile + "\n"


@pytest.mark.parametrize("members", [[], [1], [{"a": [1, {"b": "x\ny"}]}, [], None]])
def test_a_list_printed_member_by_member_is_one_document(
    members: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    print_json_list(iter(members))
    assert json.loads(capsys.readouterr().out) == members


def test_a_table_shows_nested_values_as_json() -> None:
    assert cell_text({"a": [True, None]}) == '{"a": [true, null]}'


def test_pairs_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(pair_lines({"a": 1, "long": "x", "none": None}))
    assert capsys.readouterr().out == "a     1\nlong  x\nnone  \n"
