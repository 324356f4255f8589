"""Commands `lattice hosting`, `forget` and `host`: alone, and through the running node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.queue import Topics
from datalattice.cells import Value
from datalattice.client import read_key
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.lattice import MergeContext, root_lattice
from datalattice.sync import HostingPolicy
from datalattice.testing.folders import alone, fill, running_node

ANN, BEN = KeyPair(b"a" * 32), KeyPair(b"b" * 32)
SMALL = HostingPolicy(owner_bytes=150_000)
OWNER = ANN.public_key.hex()


def log_of(key: KeyPair, count: int) -> Value:
    root = RootLattice(root_lattice(), None, MergeContext(key_pair=key))
    queue = Topics.at(root, key.public_key).partition("log", 0)
    queue.offer_many([f"text {n} ".ljust(300, "x") for n in range(count)])
    return root.get()


def hosted(tmp_path: Path, lattice: Any) -> Path:
    """Make a node's folder that has data of its own and of another owner."""
    home = tmp_path / "home"
    lattice("key", "new")
    lattice("queue", "offer", "log", "mine")
    fill(home, [log_of(ANN, 400)], HostingPolicy())
    return home


@pytest.mark.parametrize("through", [alone, running_node])
def test_usage_is_shown_and_decisions_take_effect_at_once(
    tmp_path: Path, lattice: Any, through: Any
) -> None:
    home = hosted(tmp_path, lattice)
    with through(home):
        [row] = lattice("hosting", "--json").document["usage"]
        assert (row["section"], row["owner"], row["limited"]) == ("queue", OWNER, True)
        assert row["bytes"] > 120_000
        shown = lattice("hosting").out
        assert OWNER in shown
        assert "strangers_bytes" in shown
        assert lattice("hosting", "limit", OWNER, "2 MB").code == 0
        assert lattice("hosting", "allow", "0x" + OWNER.upper()).code == 0
        [one] = lattice("hosting", "--json").document["decisions"]
        assert (one["allowed"], one["limit"]) == (True, 2_000_000)
        assert not lattice("hosting", "--json").document["usage"][0]["limited"]
        lattice("hosting", "limit", OWNER, "default")
        [one] = lattice("hosting", "refuse", OWNER, "--reason", "spam", "--json").document[
            "decisions"
        ]
        assert (one["allowed"], one["refused"], one["reason"]) == (False, ["*"], "spam")
        assert "refused: everything" in lattice("hosting").out
        assert lattice("host", OWNER, "--json").document["decisions"] == []


@pytest.mark.parametrize("through", [alone, running_node])
def test_forgetting_names_who_still_keeps_the_data_and_gives_room_back(
    tmp_path: Path, lattice: Any, through: Any
) -> None:
    home = hosted(tmp_path, lattice)
    lattice("pin", "add", "before")
    with through(home):
        assert lattice("queue", "range", "log", "--owner", OWNER).out.count("text") == 400
        done = lattice("forget", OWNER, "--json").document
        assert done["sections"] == ["queue"]
        assert done["bytes"] > 120_000
        assert done["pins"] == ["before"]
        assert done["former_roots"] >= 1
        lattice("pin", "remove", "before")
        lattice("disk", "forget", "0s")
        again = lattice("forget", OWNER, "--now", "--json").document
        assert again["sections"] == []
        assert again["collected"]["bytes_after"] < again["collected"]["bytes_before"] / 2
        assert "mine" in lattice("queue", "range", "log").out
        assert "text" not in lattice("queue", "range", "log", "--owner", OWNER).out
        assert "clean" in lattice("disk", "check").out


@pytest.mark.parametrize("through", [alone, running_node])
def test_a_reason_stays_until_another_one_is_given(
    tmp_path: Path, lattice: Any, through: Any
) -> None:
    home = hosted(tmp_path, lattice)
    with through(home):
        for arguments, reason in (
            (("hosting", "refuse", OWNER, "--reason", "spam"), "spam"),
            (("forget", OWNER), "spam"),
            (("forget", OWNER, "--reason", "asked to"), "asked to"),
            (("hosting", "refuse", OWNER), "asked to"),
            (("host", OWNER), None),
        ):
            assert lattice(*arguments).code == 0
            decisions = lattice("hosting", "--json").document["decisions"]
            assert [one["reason"] for one in decisions] == ([] if reason is None else [reason])


@pytest.mark.processes
def test_an_owner_over_its_quota_is_shown_with_the_cause_wherever_one_looks(
    tmp_path: Path, lattice: Any
) -> None:
    home, there = hosted(tmp_path, lattice), tmp_path / "there"
    lattice("key", "new", "-d", there)
    fill(there, [log_of(BEN, 600)])
    with running_node(there) as other, running_node(home, peers=(other.address,), hosting=SMALL):
        until = time.monotonic() + 30
        while not (told := lattice("hosting", "--json").document["over_quota"]):
            assert time.monotonic() < until, "the value of the peer was not refused"
        assert len(told) == 1
        assert BEN.public_key.hex() in told[0]
        assert "exceed 150000 (owner_bytes)" in told[0]
        assert f"over quota: {told[0]}" in lattice("hosting").out
        assert f"over quota: {told[0]}" in lattice("node", "status").out
        assert lattice("node", "status", "--json").document["over_quota"] == told
        [peer] = lattice("node", "peers", "--json").document
        assert peer["refusal"] == told[0]
        assert f"not taken: {told[0]}" in lattice("node", "peers").out
        assert lattice("hosting", "allow", BEN.public_key.hex()).code == 0
        while BEN.public_key.hex() not in lattice("queue", "list", "--json").out:
            assert time.monotonic() < until, "what is allowed did not come"
        assert lattice("hosting", "--json").document["over_quota"] == []


def test_mistakes_are_one_line(tmp_path: Path, lattice: Any) -> None:
    home = hosted(tmp_path, lattice)
    own = read_key(home / "identity.key").public_key.hex()
    for arguments, says in (
        (("forget", own), "--own forgets its data all the same"),
        (("hosting", "refuse", own), "`lattice forget OWNER --own`"),
        (("hosting", "limit", OWNER[:3], "2 MB"), "at least 4 hex digits of an owner"),
        (("hosting", "allow", "somebody"), "an owner is a public key"),
        (("forget", OWNER, "--section", "nothing"), "no section 'nothing' has owners"),
        (("forget", " "), "an owner is a public key"),
        (("hosting", "limit", OWNER, "much"), "a size is a number of bytes"),
    ):
        ran = lattice(*arguments)
        assert ran.code == 2
        assert says in ran.line()
