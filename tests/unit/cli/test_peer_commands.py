"""Commands `lattice peer`: invites, peers of a store, and joining through the running node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import datalattice
from datalattice.weaver import InviteToken


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def notes(lattice: Any) -> str:
    assert lattice("kv", "put", "notes", "title", "Shopping").code == 0
    return "notes"


@pytest.mark.usefixtures("notes")
def test_an_invite_names_the_store_and_where_to_reach_it(lattice: Any) -> None:
    made = lattice("peer", "invite", "notes", "--address", "host:18888", "--json").document
    token = InviteToken.from_text(made["token"])
    assert token.addresses == ("tls://host:18888",)
    assert token.store_id.hex() == lattice("store", "open", "notes", "--json").document[
        "id"
    ].replace("-", "")


@pytest.mark.usefixtures("notes")
def test_an_invite_without_an_address_says_so(lattice: Any) -> None:
    ran = lattice("peer", "invite", "notes")
    assert ran.code == 0
    assert "no node serves this folder" in ran.err


@pytest.mark.usefixtures("notes")
def test_peers_are_listed_and_revoked_by_the_first_digits(lattice: Any) -> None:
    (own,) = lattice("peer", "list", "notes", "--json").document
    assert own["status"] == "active"
    assert lattice("peer", "revoke", "notes", "zz").code == 2
    revoked = lattice("peer", "revoke", "notes", own["key"][:6], "--json").document
    assert revoked == {"key": own["key"], "status": "revoked"}
    assert lattice("peer", "list", "notes", "--json").document[0]["status"] == "revoked"


@pytest.mark.usefixtures("notes")
def test_joining_needs_a_running_node_and_a_token(lattice: Any, home: Path, tmp_path: Path) -> None:
    token = lattice("peer", "invite", "notes").out.strip()
    assert lattice("peer", "join", token).code == 75
    with datalattice.serve(home), datalattice.serve(tmp_path / "away") as away:
        served = lattice("peer", "invite", "notes").out.strip()
        joined = away.join(served)
        assert joined.id == lattice("store", "open", "notes", "--json").document["id"]
        assert lattice("peer", "join", "0OIl").code == 2
    assert len(lattice("peer", "list", "notes", "--json").document) == 2


def test_an_unknown_store_is_an_error(lattice: Any) -> None:
    lattice("kv", "put", "other", "k", "v")
    for words in (("invite", "notes"), ("list", "notes"), ("revoke", "notes", "aa")):
        ran = lattice("peer", *words)
        assert ran.code == 1
        assert "there is no store 'notes'" in ran.line()
