"""Commands `lattice hosting`, `forget` and `host`: alone, and through the running node."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.queue import LatticeMQ
from datalattice.cells import decode_parts, encode_message, value_hash
from datalattice.crypto import KeyPair
from datalattice.home import read_key
from datalattice.lattice import MergeContext, root_lattice
from datalattice.node import Daemon, NodeConfig, connect
from datalattice.store import CellStore, MemoryStore
from datalattice.sync import HostingPolicy, LatticeReplica, Offer, Probe
from datalattice.sync.incoming import Incoming

ANN = KeyPair(b"a" * 32)
OWNER = ANN.public_key.hex()


def hosted(tmp_path: Path, lattice: Any) -> Path:
    """Make a node's folder that has data of its own and of another owner."""
    home = tmp_path / "home"
    lattice("key", "new")
    lattice("queue", "offer", "log", "mine")
    source = LatticeReplica(MemoryStore(), root_lattice(), MergeContext(key_pair=ANN))
    queue = LatticeMQ.at(source.cursor, ANN.public_key).partition("log", 0)
    queue.offer_many([f"text {n} ".ljust(300, "x") for n in range(400)])
    source.publish()
    found, parts = decode_parts(encode_message(source.announced))
    with CellStore.open(home / "store") as store:
        replica = LatticeReplica(store, root_lattice(), hosting=HostingPolicy())
        absorbed = replica.absorb(
            Offer(Probe(value_hash(found), Incoming((), found, parts))), "peer"
        )
        assert absorbed.changed
        assert replica.hosting is not None
        replica.hosting.usage.save()
    return home


@contextmanager
def running(home: Path) -> Iterator[None]:
    """Have a node of the folder run."""
    ready = threading.Event()
    daemon = Daemon(
        home,
        NodeConfig(port=0),
        key_pair=read_key(home / "identity.key"),
        ready=lambda *_: ready.set(),
    )
    thread = threading.Thread(target=daemon.run)
    thread.start()
    try:
        assert ready.wait(20)
        yield
    finally:
        client = connect(home)
        assert client is not None
        with client:
            client.call("node.stop")
        thread.join()


@contextmanager
def alone(_home: Path) -> Iterator[None]:
    """Have no node run."""
    yield


@pytest.mark.parametrize("through", [alone, running])
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


@pytest.mark.parametrize("through", [alone, running])
def test_forgetting_names_who_still_keeps_the_data_and_gives_room_back(
    tmp_path: Path, lattice: Any, through: Any
) -> None:
    home = hosted(tmp_path, lattice)
    lattice("store", "pin", "before")
    with through(home):
        assert lattice("queue", "range", "log", "--owner", OWNER).out.count("text") == 400
        done = lattice("forget", OWNER, "--json").document
        assert done["sections"] == ["queue"]
        assert done["bytes"] > 120_000
        assert done["pins"] == ["before"]
        assert done["former_roots"] >= 1
        lattice("store", "unpin", "before")
        lattice("store", "forget", "0s")
        again = lattice("forget", OWNER, "--now", "--json").document
        assert again["sections"] == []
        assert again["collected"]["bytes_after"] < again["collected"]["bytes_before"] / 2
        assert "mine" in lattice("queue", "range", "log").out
        assert "text" not in lattice("queue", "range", "log", "--owner", OWNER).out
        assert "clean" in lattice("store", "check").out


def test_mistakes_are_one_line(tmp_path: Path, lattice: Any) -> None:
    home = hosted(tmp_path, lattice)
    own = read_key(home / "identity.key").public_key.hex()
    for arguments, says in (
        (("forget", own), "--own forgets its data all the same"),
        (("hosting", "refuse", own), "`lattice forget OWNER --own`"),
        (("hosting", "limit", OWNER[:16], "2 MB"), "an owner is a public key of 64 hex digits"),
        (("hosting", "allow", "somebody"), "an owner is a public key of 64 hex digits"),
        (("forget", OWNER, "--section", "nothing"), "no section 'nothing' has owners"),
        (("forget", " "), "an owner is a public key"),
        (("hosting", "limit", OWNER, "much"), "a size is a number of bytes"),
    ):
        ran = lattice(*arguments)
        assert ran.code == 2
        assert says in ran.line()
