"""Commands of a node that need none running: settings, refusals, and how a watch is shown."""

from __future__ import annotations

import gc
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from datalattice.cli.node import commands, watch
from datalattice.cli.node.peers import peer_state, peers_listing
from datalattice.cli.render import CommandResult, Records, show, table, use_form
from datalattice.cli.units import size_text


def test_settings_are_printed_with_where_they_come_from(
    lattice: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "node.toml").write_text("[node]\nrounds_max = 5\nport = 4\n")
    monkeypatch.setenv("LATTICE_NODE_PORT", "9")
    monkeypatch.setenv("LATTICE_NODE_STRICT_PATHS", "false")
    found = lattice("node", "config", "--json").document
    assert found["node.rounds_max"] == {"value": 5, "source": f"{home}/node.toml line 2"}
    assert found["node.port"] == {"value": 9, "source": "LATTICE_NODE_PORT"}
    assert found["node.strict_paths"] == {"value": False, "source": "LATTICE_NODE_STRICT_PATHS"}
    assert found["node.http_port"] == {"value": None, "source": "default"}
    lines = lattice("node", "config").out.splitlines()
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in lines}
    assert rows["node.port"] == ["9", "LATTICE_NODE_PORT"]
    assert rows["node.strict_paths"][0] == "false"
    assert rows["node.http_port"][0] == "none"


class ServingAtOnce:
    """A daemon that serves at once and ends."""

    def __init__(self, *_: Any, ready: Callable[[Any, Any], None], **__: Any) -> None:
        self.run = lambda: ready(None, None)


@pytest.mark.parametrize("command", [("node", "start"), ("daemon",)])
def test_a_node_that_serves_has_full_passes_of_the_collector_seldom(
    lattice: Any, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr("datalattice.node.Daemon", ServingAtOnce)
    monkeypatch.setattr(commands, "_ready", lambda *_: CommandResult({}))
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        assert lattice(*command).code == 0
        assert gc.get_threshold() == commands.COLLECTOR_STEPS
        assert gc.get_freeze_count() > frozen + 10_000, "modules, for example"
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def test_another_file_of_settings_can_be_named(lattice: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    absent = lattice("node", "config", "--config", other)
    assert (absent.code, absent.line()) == (2, f"there is no settings file {other}")
    other.write_text("node.bind = '::1'")
    found = lattice("node", "config", "--config", other, "--json").document
    assert found["node.bind"] == {"value": "::1", "source": f"{other} line 1"}
    other.write_text("node.bnd = '::1'")
    wrong = lattice("node", "config", "--config", other, "--json").error
    assert wrong["message"].endswith("there is no setting 'bnd' in [node]; did you mean bind?")


def test_a_file_of_settings_is_made_once_and_means_what_it_says(
    lattice: Any, tmp_path: Path
) -> None:
    made = lattice("node", "init", "--port", "7", "--peer", "h:1", "--peer", "[::1]:2", "--json")
    path = tmp_path / "home" / "node.toml"
    assert made.document["settings"] == str(path)
    assert made.document["public_key"] == lattice("key", "show").out.strip()
    found = lattice("node", "config", "--json").document
    given = {name for name, one in found.items() if one["source"] != "default"}
    assert given == {"node.port", "node.peers"}
    assert (found["node.port"]["value"], found["node.peers"]["value"]) == (7, ["h:1", "[::1]:2"])
    # Every default stands there, and means the same without its #.
    path.write_text(re.sub(r"^# (\w+ = )", r"\1", path.read_text(), flags=re.MULTILINE))
    assert {name: one["value"] for name, one in found.items()} == {
        name: one["value"] for name, one in lattice("node", "config", "--json").document.items()
    }
    again = lattice("node", "init")
    assert (again.code, again.line()) == (2, f"{path} exists; edit it, or delete it first")


def test_a_wrong_setting_makes_no_file(lattice: Any, tmp_path: Path) -> None:
    assert lattice("node", "init", "--port", "70000").code == 2
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["stop"], "there is nothing to stop"),
        (["peers"], "start one with `lattice node start`"),
        (["peers", "add", "h:1"], "put it into `peers` of node.toml"),
        (["peers", "remove", "h:1"], "start one with `lattice node start`"),
        (["watch"], "start one with `lattice node start`"),
    ],
)
def test_without_a_running_node_the_remedy_is_said(
    lattice: Any, tmp_path: Path, arguments: list[str], remedy: str
) -> None:
    ran = lattice("node", *arguments)
    assert ran.code == 75, "not now: it may succeed later"
    assert ran.line().startswith(f"no node runs in {tmp_path}/home; {remedy}")
    assert lattice("node", *arguments, "--json").error["error"] == "peer-unavailable"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1 kB"),
        (62_345, "62.3 kB"),
        (999_600, "1 MB"),
        (1_700_000, "1.7 MB"),
        (5e12, "5,000 GB"),
    ],
)
def test_sizes_have_three_digits_and_a_unit(count: float, text: str) -> None:
    assert size_text(count) == text


def test_a_pinned_key_stands_in_its_own_column() -> None:
    key = "ab" * 32
    shown = Console(file=io.StringIO(), width=100)
    listing = peers_listing([{"address": f"tcp://{key}@h:1", "public_key": key}])
    shown.print(table(listing.columns, listing.rows))
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert " tcp://h:1 " in text
    assert f" {key[:16]} " in text


def test_the_state_of_a_peer_in_words() -> None:
    assert peer_state({"connected": False, "reason": "Connection refused"}) == "Connection refused"
    assert peer_state({"connected": False}) == "not connected"
    assert peer_state({"connected": True, "equal": True}) == "equal"
    assert peer_state({"connected": True, "joined": True, "equal": False}) == "differs"
    assert peer_state({"connected": True, "joined": False, "equal": False}) == "client"
    assert peer_state({"connected": True, "equal": None}) == "connected"


# --- watch --------------------------------------------------------------------------------------


def status(root: str, sections: dict[str, str], bytes_in: int = 0, **counters: int) -> Any:
    peer = {
        "address": "h:1",
        "connected": True,
        "equal": True,
        "failures": 0,
        "bytes_in": bytes_in,
        "bytes_out": 0,
    }
    return {
        "root_hash": root * 64,
        "health": "ok",
        "address": "127.0.0.1:5",
        "connections": 1,
        "missing_cells": 0,
        "store_bytes": 1_000,
        "memory_bytes": 2_000,
        "sections": sections,
        "bytes_in": bytes_in,
        "bytes_out": 0,
        "peers": [peer],
        "counters": counters,
    }


STATUSES = (
    status("a", {":queue": "1", ":kv": "1"}, 100, changes=1),
    status("b", {":queue": "2", ":kv": "1", ":data": "1"}, 300, changes=2, refused=4),
    status("b", {":queue": "2", ":kv": "1", ":data": "1"}, 300, changes=2, refused=4),
)


def sights() -> Iterator[watch.Sight]:
    yield watch.Sight(STATUSES[0], 10.0, 0.0, (), {}, 0, 0)
    for number in (1, 2):
        at_s = 10.0 + number
        yield watch._compared(STATUSES[number - 1], STATUSES[number], at_s - 1, at_s)


def test_a_sight_tells_what_is_other_than_before() -> None:
    first, second, third = sights()
    assert first.document()["changed"] == []
    assert second.document()["changed"] == [":data", ":queue"]
    assert second.document()["counters"] == {"changes": 1, "refused": 4}
    assert second.document()["bytes_in"] == 200
    assert third.document()["counters"] == {}
    assert third.changed == ()
    whole = watch._compared(status("a", {}), status("b", {}), 1.0, 1.5)
    assert (whole.changed, whole.seconds) == (("the value",), 0.5)


def test_sights_are_lines_for_a_pipe_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    use_form(None)
    show(Records(sights(), watch.Sight.document, watch._line, is_live=True))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("b" * 16 + "  ok  peers 1/1  in 200 B/s  out 0 B/s  changes 1.0/s")
    assert lines[1].endswith("changed :data, :queue")
    use_form("json")
    show(Records(sights(), watch.Sight.document, watch._line, is_live=True))
    use_form(None)
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["root_hash"][0] for one in documents] == ["a", "b", "b"]


def test_a_terminal_has_one_view_that_is_renewed() -> None:
    screen = watch._Screen()
    for sight in sights():
        drawn = screen.drawn(sight)
    shown = Console(file=io.StringIO(), width=100)
    shown.print(drawn)
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert "root " + "b" * 64 in text
    assert "h:1" in text
    assert "refused" in text
    assert "    1.0 s  " + "b" * 16 + "  :data, :queue" in text


def test_control_characters_of_others_do_not_reach_the_terminal() -> None:
    hostile = status("a", {"\x1b[2J": "1"})
    hostile["peers"][0] |= {"connected": False, "reason": "bad \x1b[31m\x07"}
    sight = watch._compared(status("b", {}), hostile, 0.0, 1.0)
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=60)
    with Live(console=console, auto_refresh=False) as live:
        live.update(watch._Screen().drawn(sight), refresh=True)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[2J" not in text
    assert "\x1b[31mbad" not in text
    assert "\x07" not in text


def test_the_state_of_a_peer_names_why_its_value_was_not_taken() -> None:
    connected = {"connected": True, "joined": True}
    assert peer_state({**connected, "equal": True}) == "equal"
    refused = {**connected, "equal": False, "refusal": "it has holes"}
    assert peer_state(refused) == "differs; not taken: it has holes"
