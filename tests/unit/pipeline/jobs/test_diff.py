"""Diff: a row for each key that differs, the same however the work is shared out."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.dlfs import Drive
from datalattice.cells import (
    EMPTY_INDEX,
    Index,
    Keyword,
    Map,
    Signed,
    Value,
    decode_message,
    to_text,
)
from datalattice.cursors import RootLattice
from datalattice.errors import UsageError
from datalattice.lattice import root_lattice, set_local
from datalattice.pipeline.jobs import comparing
from datalattice.pipeline.jobs.inputs import open_stores, resolve_input
from datalattice.store import CellStore
from datalattice.testing.clocks import TickingClock
from datalattice.testing.replicas import ALICE, BOB, SampleRoot

pytest.importorskip("pyspark")

diff = importlib.import_module("datalattice.pipeline.jobs.diff")  # the package shows its job

NAMES = {keys: "0x" + keys.public_key.hex() for keys in (ALICE, BOB)}


def rows(before: SampleRoot, after: SampleRoot, folder: Path) -> list[dict[str, Any]]:
    inputs = (
        resolve_input(before.save(folder / "before")),
        resolve_input(after.save(folder / "after")),
    )
    tasks = diff.plan(*inputs)
    found: list[dict[str, Any]] = []
    try:
        for task in range(len(tasks)):
            for batch in diff._batches(inputs, tasks, task):
                found += batch.to_pylist()
    finally:
        open_stores.close()
    return sorted(found, key=lambda row: (row["section"], row["owner"] or "", row["path"]))


def briefly(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["section"], row["owner"], *row["path"], row["change"]) for row in found]


def test_keys_partitions_and_files_are_rows(tmp_path: Path) -> None:
    def write(name: str) -> Any:
        def change(cursor: RootLattice, clock: TickingClock) -> None:
            drive = Drive.at(cursor, BOB.public_key, "home", clock)
            drive.makedirs("/a/b")
            drive.write(f"/a/b/{name}", b"x" * 500)

        return change

    before = SampleRoot().set(ALICE, {"same": 1, "k": 1}).offer(BOB, [1]).write(BOB, write("one"))
    after = before.fork(50_000).set(ALICE, {"k": 2, "new": 1}).set(ALICE, {"z": 1}, "second")
    after.offer(BOB, [2]).offer(BOB, [1], "fresh").write(BOB, write("two"))
    assert briefly(rows(before, after, tmp_path)) == [
        (":fs", NAMES[BOB], "home", "a", "b", "two", "added"),
        (":kv", NAMES[ALICE], "main", "k", "changed"),
        (":kv", NAMES[ALICE], "main", "new", "added"),
        (":kv", NAMES[ALICE], "second", "z", "added"),
        (":queue", NAMES[BOB], "fresh", ":partitions", "0", "added"),
        (":queue", NAMES[BOB], "t", ":partitions", "0", "changed"),
    ]


def test_who_signed_and_whether_rightly(tmp_path: Path) -> None:
    before = SampleRoot().set(ALICE, {"k": 1})
    after = before.fork(50_000).set(ALICE, {"k": 2})
    (row,) = rows(before, after, tmp_path)
    assert row["signer_before"] == row["signer_after"] == NAMES[ALICE]
    assert row["valid"] is True
    assert "1" in row["before"]
    assert "2" in row["after"]


def signed_by(root: Value, signature: bytes | None) -> SampleRoot:
    """Return a root in which the value of Alice is signed so."""
    assert isinstance(root, Index)
    section: Any = root.get(Keyword("kv"))
    cell = section.get(ALICE.public_key)
    made = Signed(ALICE.public_key, signature or cell.signature, cell.value)
    section = section.remove(ALICE.public_key).put(ALICE.public_key, made)
    return SampleRoot(root.put(Keyword("kv"), section))


def test_another_signature_of_the_same_value_is_a_row(tmp_path: Path) -> None:
    before = SampleRoot().set(ALICE, {"k": 1})
    (row,) = rows(before, signed_by(before.root, bytes(64)), tmp_path)
    assert (row["change"], row["path"], row["valid"]) == ("signed again", [], False)


def test_all_of_an_owner_that_comes_or_goes_are_rows_of_its_keys(tmp_path: Path) -> None:
    one = SampleRoot().set(ALICE, {"a": 1, "b": 1})
    two = SampleRoot().set(BOB, {"c": 1})
    found = rows(one, two, tmp_path)
    assert [(*row["path"], row["change"]) for row in found if row["owner"] == NAMES[ALICE]] == [
        ("main", "a", "removed"),
        ("main", "b", "removed"),
    ]
    assert [(*row["path"], row["change"]) for row in found if row["owner"] == NAMES[BOB]] == [
        ("main", "c", "added")
    ]
    assert {row["signer_after"] for row in found} == {None, NAMES[BOB]}


def test_what_is_private_is_not_a_difference(tmp_path: Path) -> None:
    one = SampleRoot().set(ALICE, {"a": 1})
    two = SampleRoot(set_local(one.root, ALICE, "secret"))
    assert rows(one, two, tmp_path) == []


def test_equal_roots_need_no_task(tmp_path: Path) -> None:
    one = SampleRoot().set(ALICE, {"a": 1})
    found = resolve_input(one.save(tmp_path / "a"))
    assert diff.plan(found, found) == []


@pytest.mark.parametrize("limit", [10, 100, 100_000])
def test_however_the_work_is_shared_out_the_rows_are_the_same(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "PART_KEYS", limit)
    monkeypatch.setattr(diff, "PART_KEYS", limit)
    before = SampleRoot().set(ALICE, {f"k{i:04}": "v" * 100 for i in range(400)})
    before.offer(ALICE, [1])
    after = before.fork(50_000).set(ALICE, {f"k{i:04}": i for i in range(0, 450, 7)})
    found = [tuple(row["path"]) for row in rows(before, after, tmp_path)]
    assert found == [("main", f"k{i:04}") for i in range(0, 450, 7)]
    inputs = (resolve_input(str(tmp_path / "before")), resolve_input(str(tmp_path / "after")))
    assert (len(diff.plan(*inputs)) > 1) == (limit < 800)


@pytest.mark.parametrize("limit", [10, 100_000])
def test_a_key_in_the_place_of_another_is_one_that_went_and_one_that_came(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index tells keys apart by their first 32 bytes, and holds one of those."""
    monkeypatch.setattr(comparing, "PART_KEYS", limit)
    alike, others = "k" * 32, {f"other {i:03}": 1 for i in range(100)}

    def write(name: str) -> Any:
        def change(cursor: RootLattice, clock: TickingClock) -> None:
            Drive.at(cursor, BOB.public_key, "home", clock).write(f"/{alike}{name}", b"x" * 500)

        return change

    before = SampleRoot().set(ALICE, {**others, alike + "old": 1}).write(BOB, write("old"))
    after = (
        SampleRoot(None, 50_000).set(ALICE, {**others, alike + "new": 1}).write(BOB, write("new"))
    )
    found = {
        (row["section"], row["path"][-1]): row["change"] for row in rows(before, after, tmp_path)
    }
    assert {name: change for name, change in found.items() if alike in name[1]} == {
        (section, alike + name): change
        for section in (":kv", ":fs")
        for name, change in (("old", "removed"), ("new", "added"))
    }


def test_values_of_the_content_store_are_rows(tmp_path: Path) -> None:
    def put(*values: Value) -> SampleRoot:
        made: Value = EMPTY_INDEX
        lattice = root_lattice()
        from datalattice.cells import value_hash

        for value in values:
            entry = Index({Keyword("data"): Index({value_hash(value): value})})
            made = lattice.merge(made, entry)
        return SampleRoot(made)

    found = rows(put("one" * 100), put("one" * 100, "two" * 100), tmp_path)
    assert [(row["section"], row["change"], row["owner"]) for row in found] == [
        (":data", "added", None)
    ]


def test_a_key_that_is_not_text_is_printed(tmp_path: Path) -> None:
    odd = decode_message(b"\x30\x02\xff\xfe")
    store = Signed.sign(ALICE, Map.of([(odd, Index.of([(odd, 1)]))]))
    after = SampleRoot(Index.of([(Keyword("kv"), Map.of([(ALICE.public_key, store)]))]))
    (row,) = rows(SampleRoot(Index()), after, tmp_path)
    assert row["path"] == [to_text(odd), to_text(odd)]


def test_wrong_inputs(tmp_path: Path) -> None:
    one = SampleRoot().set(ALICE, {"a": 1})
    archive = one.export(tmp_path / "file", tmp_path / "scratch")
    with pytest.raises(UsageError, match="an archive cannot be compared"):
        diff._leased(archive)
    with pytest.raises(UsageError, match="no store"):
        diff._leased(str(tmp_path / "nowhere"))


def test_both_roots_are_leased(tmp_path: Path) -> None:
    path = SampleRoot().set(ALICE, {"a": 1}).save(tmp_path / "a")
    found = diff._leased(path)
    with CellStore.open(path, read_only=True) as store:
        assert [lease.root_hash for lease in store.pins.leases()] == [found.root]
