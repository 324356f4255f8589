"""The commands as a whole: each is on the page, has help, and names its options like the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datalattice.cli.main import DEFAULTS, built

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cli.md"

PRINTS_BYTES = {("fs", "cat"), ("venue", "download")}
"""They write the bytes of files, whatever form is asked for."""

ONE_MEANING = {
    "-d": {"--dir"},
    "-f": {"--from", "--follow"},
    "-h": {"--help"},
    "-l": {"--long"},
    "-o": {"--owner"},
}
"""Short options that mean the same wherever they are."""


LISTS_ON_ITS_OWN = {path: (*path, below) for path, below in DEFAULTS.items()}
"""Groups that are commands, too: they do what one of their commands does."""


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, one in below.items():
        yield from leaves(one, (*path, name))


COMMANDS = dict(leaves(built()))
GROUPS = {path[:length] for path in COMMANDS for length in range(1, len(path))}


def options_of(command: Any) -> dict[str, Any]:
    return {
        name: one
        for one in command.params
        if one.param_type_name == "option"
        for name in (*one.opts, *one.secondary_opts)
    }


def rows_of_page() -> Iterator[tuple[list[tuple[str, ...]], str]]:
    """Yield the commands of each row of the page's table, and the row.

    After the first of a row the group need not be named again.
    """
    table = PAGE.read_text(encoding="utf-8").partition("## Commands")[2].partition("\n\n`")[0]
    for row in re.findall(r"^\| `.*$", table, re.MULTILINE):
        named: list[tuple[str, ...]] = []
        for text in re.findall(r"`([^`]+)`", row.split("|")[1]):
            words = tuple(text.split())
            found = longest(words) or longest((*named[0][:-1], *words) if named else ())
            assert found, f"the page has no such command: {text}"
            named.append(found)
        yield named, row


def longest(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that the words begin with, or a group that is also one on the page."""
    for length in range(len(words), 0, -1):
        if words[:length] in COMMANDS or words[:length] in GROUPS:
            return words[:length]
    return ()


def test_the_page_has_every_command_and_no_other() -> None:
    on_page = {path for named, _ in rows_of_page() for path in named}
    assert set(COMMANDS) - on_page == set(LISTS_ON_ITS_OWN.values())
    assert on_page - set(COMMANDS) == set(LISTS_ON_ITS_OWN)


def test_options_that_the_page_names_are_there() -> None:
    for named, row in rows_of_page():
        known = {
            name
            for path in named
            for name in options_of(COMMANDS[LISTS_ON_ITS_OWN.get(path, path)])
        }
        assert set(re.findall(r"--[a-z][a-z-]*", row)) <= known, row


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_commands_explain_themselves_and_agree_on_their_options(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    assert (command.help or "").strip()
    silent = [one.name for one in command.params if not (one.help or "").strip()]
    assert not silent, f"no help for {silent}"
    options = options_of(command)
    assert {"--json", "--as", "--quiet", "--debug"} <= set(options)
    works_on_a_file = path[0] in {"etch", "conformance"}
    # These name what they work on, or take it from wherever they are told.
    names_its_places = path in {
        ("spark", "merge"),
        ("spark", "diff"),
        ("init",),
        ("forks", "verify"),
    }
    works_on_a_folder = not works_on_a_file or path[1:] in {("import",), ("export",)}
    assert ("--dir" in options) == (works_on_a_folder and not names_its_places)
    for short, names in ONE_MEANING.items():
        if short in options:
            assert names & set(options[short].opts), (short, options[short].opts)


def test_the_page_says_who_prints_bytes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for path in PRINTS_BYTES:
        assert f"`{' '.join(path)}`" in text.partition("## Output")[2]
