"""Commands on former roots: log, show, diff, checkout, audit, get --as-of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datalattice.cells import Index, Keyword, Map, Signed
from datalattice.crypto import KeyPair
from datalattice.store import CellStore


@pytest.fixture
def filled(lattice: Any, owner: str) -> str:
    for number in range(3):
        assert lattice("queue", "offer", "t", f"a{number}").code == 0
    return owner


def test_log_tells_when_what_changed_and_who_signed(lattice: Any, filled: str) -> None:
    rows = lattice("history", "--json").document
    assert len(rows) == 3
    assert rows[0]["names"] == ["HEAD"]
    assert [one["signer"] for row in rows for one in row["changed"]] == [filled] * 3
    assert all(one["valid"] for row in rows for one in row["changed"])
    assert rows[0]["changed"][0]["path"] == ["queue", f"0x{filled}"]
    times = [row["time_ms"] for row in rows]
    assert times == sorted(times, reverse=True)
    ran = lattice("history", "-n", 1)
    assert ran.out.count("\n") == 1
    assert f"(HEAD)  :queue 0x{filled[:16]}" in ran.out
    assert "2 older roots" in ran.err
    assert len(lattice("history", "-n", 0, "--since", rows[1]["time"], "--json").document) == 2
    assert lattice("history", "--since", "2100-01-01", "--json").document == []
    assert lattice("history", "--since", "soon").code == 2


@pytest.mark.usefixtures("filled")
def test_show_and_as_of_read_former_roots(lattice: Any) -> None:
    rows = lattice("history", "--json").document
    shown = lattice("show", "HEAD~1", "--json").document
    assert shown["root"] == rows[1]["hash"]
    assert shown["since"] == rows[1]["time"]
    assert (shown["kind"], shown["count"]) == ("index", 1)
    for name in ("HEAD~2", rows[2]["hash"], rows[2]["hash"][:10], rows[2]["time"], "@0s"):
        ran = lattice("get", "--as-of", name, "--json")
        wanted = rows[0] if name == "@0s" else rows[2]
        assert ran.document["hash"] == wanted["hash"], name
    assert lattice("show", "HEAD~9").code == 2
    assert "goes back to HEAD~2" in lattice("show", "HEAD~9").line()
    assert lattice("get", "--as-of", "2001-01-01").code == 2
    assert lattice("show", "HEAD", "nowhere").code == 1


def test_diff_names_paths_and_is_bounded(lattice: Any, filled: str) -> None:
    ran = lattice("diff", "HEAD~1")
    at = f":queue 0x{filled[:16]} :value t :partitions 0"
    assert ran.out.splitlines()[0].startswith(f'+ {at} 0 2  [nil "a2" ')
    assert ran.out.splitlines()[1].startswith(f"~ {at} 2  ")
    document = lattice("diff", "HEAD~2", "HEAD", "queue", filled, "value", "t", "--json").document
    assert document["complete"]
    assert [one["change"] for one in document["changes"]] == ["added", "added", "changed"]
    assert document["changes"][0]["path"][-4:] == ["partitions", 0, 0, 1]
    back = lattice("diff", "HEAD", "HEAD~2", "--json").document
    assert sorted(one["change"] for one in back["changes"]) == ["changed", "removed", "removed"]
    assert lattice("diff", "HEAD", "HEAD", "--json").document["changes"] == []
    few = lattice("diff", "HEAD~2", "-n", 2)
    assert few.out.count("\n") == 2
    assert "more than these 2" in few.err
    assert not lattice("diff", "HEAD~2", "-n", 2, "--json").document["complete"]
    assert lattice("diff", "HEAD~2", "-n", 3).err == ""
    assert "nothing at nowhere in either" in lattice("diff", "HEAD~1", "HEAD", "nowhere").line()


def test_checkout_makes_a_fork_that_merges_back(lattice: Any, filled: str, tmp_path: Path) -> None:
    fork = tmp_path / "fork"
    made = lattice("checkout", "HEAD~1", "--into", fork, "--json").document
    assert made["root"] == lattice("history", "--json").document[1]["hash"]
    assert lattice("queue", "range", "t", "--owner", filled, "-d", fork).out == "a0\na1\n"
    assert lattice("disk", "check", "-d", fork).code == 0
    assert lattice("key", "new", "-d", fork).code == 0
    assert lattice("queue", "offer", "forked", "x", "-d", fork).code == 0
    done = lattice("disk", "import", fork, "--merge", "--json").document
    assert done["dropped"] == 0
    assert lattice("queue", "range", "t").out == "a0\na1\na2\n"
    assert lattice("queue", "range", "forked").out == "x\n"
    assert "has a store already" in lattice("checkout", "HEAD", "--into", fork).line()


@pytest.mark.usefixtures("filled")
def test_checkout_with_the_key_writes_as_the_same_owner(lattice: Any, tmp_path: Path) -> None:
    fork = tmp_path / "fork"
    (fork / "store.part").mkdir(parents=True)  # of a checkout that was broken off
    (fork / "store.part" / "leftover").write_text("x")
    assert lattice("checkout", "HEAD", "--into", fork, "--with-key").code == 0
    assert (fork / "keys" / "owner.key").read_text() == (
        tmp_path / "home" / "identity.key"
    ).read_text()
    assert (fork / "identity.key").read_text() != (fork / "keys" / "owner.key").read_text()
    assert lattice("queue", "offer", "t", "more", "-d", fork).code == 0
    assert lattice("disk", "import", fork, "--merge").code == 0
    assert lattice("queue", "peek", "t", "--last").out == "more\n"
    other = tmp_path / "other"
    lattice("key", "new", "-d", other)
    assert "has a key already" in lattice("checkout", "HEAD", "--into", other, "--with-key").line()
    assert not (other / "store").exists()


def test_audit_tells_who_signed_what_when(lattice: Any, filled: str) -> None:
    rows = lattice("history", "--json").document
    document = lattice("audit", "--json").document
    (slot,) = document["slots"]
    assert (slot["signer"], slot["valid"], slot["changes"]) == (filled, True, 3)
    assert slot["last"] == rows[0]["time"]
    assert [one["root"] for one in document["changes"]] == [row["hash"] for row in rows]
    below = lattice("audit", "queue", filled, "value", "t", "partitions", 0, 0, 1, "--json")
    assert [one["root"] for one in below.document["changes"]] == [rows[1]["hash"]]
    assert lattice("audit", "p2p", "--json").document == {"slots": [], "changes": []}
    ran = lattice("audit", "-n", 1)
    assert filled[:16] in ran.out
    assert "2 older changes" in ran.err


def test_audit_fails_on_a_signature_that_is_not_valid(lattice: Any, tmp_path: Path) -> None:
    keys = KeyPair(bytes([7]) * 32)
    forged = Signed(keys.public_key, bytes(64), Map.of({}))
    with CellStore.open(tmp_path / "home" / "store") as store:
        store.commit(Index.of([(Keyword("queue"), Map.of([(keys.public_key, forged)]))]))
    ran = lattice("audit")
    assert ran.code == 1
    assert "SIGNATURE NOT VALID" in ran.out
    assert "SIGNATURE NOT VALID" in lattice("history").out


@pytest.mark.usefixtures("filled")
def test_a_root_whose_cells_are_gone_is_told_as_that(lattice: Any, tmp_path: Path) -> None:
    rows = lattice("history", "--json").document
    with CellStore.open(tmp_path / "home" / "store") as store:
        store.discard([bytes.fromhex(rows[1]["changed"][0]["hash"])])
    ran = lattice("show", "HEAD~1", "--full")
    assert ran.code == 1
    assert "HEAD~1 is incomplete" in ran.line()
