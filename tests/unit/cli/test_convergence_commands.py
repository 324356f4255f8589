"""Commands `lattice store status/sync/watch`, without a node and with two over TLS."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.errors import PeerUnavailable
from datalattice.testing.polling import LIMIT_S

DEADLINE_S = LIMIT_S


@pytest.fixture
def notes(lattice: Any) -> str:
    assert lattice("kv", "put", "notes", "title", "Shopping").code == 0
    return "notes"


@pytest.mark.usefixtures("notes")
def test_without_a_node_the_log_is_shown_and_nobody_is_online(lattice: Any) -> None:
    ran = lattice("store", "status", "notes", "--json")
    assert ran.code == 0
    status = ran.document
    assert (status["kind"], status["authors"], status["running"]) == ("core:kvstore", 1, False)
    assert status["witness"]["seq"] == status["intentions"] == status["projection"]["applied"]
    assert status["peers"] == []
    assert "no node runs" in lattice("store", "status", "notes").err


@pytest.mark.usefixtures("notes")
def test_a_comparison_needs_a_running_node(lattice: Any, tmp_path: Path) -> None:
    ran = lattice("store", "sync", "notes")
    assert ran.code == 75
    assert "no node runs" in ran.err
    with datalattice.open(tmp_path / "home") as node, pytest.raises(PeerUnavailable):
        node.store("notes").presence()
    with datalattice.serve(tmp_path / "home"):
        alone = lattice("store", "sync", "notes")
        assert alone.code == 1
        assert "no peer of the store is connected" in alone.err


@pytest.fixture
def away(tmp_path: Path, notes: str) -> Iterator[datalattice.Node]:
    """Serve the folder, and another one that has joined the store."""
    with (
        datalattice.serve(tmp_path / "home") as here,
        datalattice.serve(tmp_path / "away") as there,
    ):
        there.join(here.store(notes).invite())
        yield there


def awaited(lattice: Any, want: dict[str, object]) -> dict[str, Any]:
    """Return the only other peer of the store, once it is so."""
    give_up_s = time.monotonic() + DEADLINE_S
    while True:
        peers: list[dict[str, Any]] = lattice("store", "status", "notes", "--json").document[
            "peers"
        ]
        if len(peers) == 1 and want.items() <= peers[0].items():
            return peers[0]
        assert time.monotonic() < give_up_s, peers


@pytest.mark.usefixtures("notes")
def test_two_nodes_show_each_other_online_equal_and_compared(
    lattice: Any, away: datalattice.Node
) -> None:
    peer = awaited(lattice, {"online": True, "equal": True, "dirty": False, "lag": 0})
    assert peer["status"] == "active"
    assert peer["compared_s"] >= 0
    assert peer["agreed_s"] >= 0
    ran = lattice("store", "sync", "notes", "--json")
    assert ran.code == 0, ran.err
    assert ran.document["peers"] == [{"key": peer["key"], "error": None}]
    away.store("notes")["from away"] = "x"
    awaited(lattice, {"online": True, "equal": True, "behind": 0})
    assert "equal" in lattice("store", "status", "notes").out


@pytest.mark.usefixtures("away")
def test_watching_shows_the_matrix_of_who_has_seen_what(lattice: Any) -> None:
    awaited(lattice, {"equal": True})
    ran = lattice("store", "watch", "notes", "--count", "1", "--json")
    (sight,) = [json.loads(line) for line in ran.out.splitlines()]
    (peer,) = sight["peers"]
    assert peer["online"]
    assert set(sight["seen"]) <= set(sight["contents"])
    own = next(iter(set(sight["contents"]) - {peer["key"]}))
    assert sight["contents"][own] >= 2
    assert sight["seen"][own][own] == sight["contents"][own]
    text = lattice("store", "watch", "notes", "--for", "0").out
    assert len(text.splitlines()) == 1
    assert peer["key"][:8] in text
