"""A folder's keys: the identity of the node, apart from the keys of the owners it writes for."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from datalattice.apps.kv import Database
from datalattice.cells import Keyword, Signed, Value, to_cell
from datalattice.client import (
    Folder,
    OwnKeys,
    begin_folder,
    edit,
    read_key_pairs,
    reading,
    renew_identity,
    write_key,
)
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import NoSigningKey, UsageError
from datalattice.lattice import (
    NODES_KEY,
    P2P_KEY,
    MergeContext,
    get_in,
    local_slot,
    local_value,
    node_info,
    root_lattice,
    set_local,
)
from datalattice.store import CellStore

OWNER = KeyPair(b"o" * 32)
SETTING = Keyword("setting")
KEPT = to_cell({SETTING: {Keyword("timestamp"): 1, Keyword("value"): "kept"}})


def count_one(cursor: RootLattice, keys: KeyPair) -> None:
    Database.at(cursor, keys.public_key, "shop").incr("sold")


def test_a_new_folder_has_one_key_for_both(tmp_path: Path) -> None:
    made = begin_folder(Folder(tmp_path))
    assert made.identity == made.owner
    assert made.context().signer(made.owner.public_key) == made.owner
    assert Folder(tmp_path).identity_path.name == "identity.key"
    assert Folder(tmp_path).identity_path.stat().st_mode & 0o777 == 0o600
    assert read_key_pairs(Folder(tmp_path)) == made


def test_a_folder_with_a_single_key_file_goes_on_working(tmp_path: Path) -> None:
    write_key(tmp_path / "key", OWNER)
    assert read_key_pairs(Folder(tmp_path)) == OwnKeys(
        OWNER, OWNER, read_key_pairs(Folder(tmp_path)).ring
    )
    edit(Folder(tmp_path), count_one)


def test_a_further_device_has_its_own_identity_and_writes_under_the_owner(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    made = begin_folder(folder, OWNER)
    assert made.owner == OWNER
    assert made.identity != OWNER
    assert folder.key_path.stat().st_mode & 0o777 == 0o600
    edit(folder, count_one)
    with reading(folder) as root:
        cell = get_in(root, [Keyword("kv"), OWNER.public_key])
        assert isinstance(cell, Signed)
        assert cell.public_key == OWNER.public_key


def test_a_folder_with_keys_is_not_begun_again(tmp_path: Path) -> None:
    begin_folder(Folder(tmp_path), OWNER)
    with pytest.raises(UsageError, match="already"):
        begin_folder(Folder(tmp_path))
    with pytest.raises(UsageError, match="already"):
        begin_folder(Folder(tmp_path), OWNER)


def test_all_keys_of_the_ring_sign_and_no_other(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    other = KeyPair(b"x" * 32)
    begin_folder(folder, OWNER)
    write_key(folder.named_key_path("shop"), other)

    def write_below(owner: KeyPair) -> None:
        edit(folder, lambda cursor, _: count_one(cursor, owner))

    write_below(other)
    write_below(OWNER)
    with pytest.raises(NoSigningKey, match="may sign for the owner"):
        write_below(KeyPair(b"n" * 32))


def test_counts_of_two_devices_of_one_owner_add_up(tmp_path: Path) -> None:
    """Both count under their identity; under the owner's key they would share one column."""
    roots: list[Value] = []
    with ExitStack() as opened:
        for name in ("phone", "laptop"):
            folder = Folder(tmp_path / name)
            begin_folder(folder, OWNER)
            for _ in range(10):
                edit(folder, count_one)
            roots.append(opened.enter_context(reading(folder)))
        lattice = root_lattice()
        context = MergeContext(key_pair=OWNER)
        merged = RootLattice(lattice, lattice.merge(roots[0], roots[1], context), context)
        assert Database.at(merged, OWNER.public_key, "shop").incr("sold", 0) == 20


def with_own_slots(folder: Folder, keys: OwnKeys) -> None:
    def change(cursor: RootLattice, _keys: KeyPair) -> None:
        cursor.update(lambda root: set_local(root, keys.identity, KEPT))
        entry = node_info(5, ["tcp://here:1"], "test", "1")
        place = cursor.path(P2P_KEY, NODES_KEY, keys.identity.public_key, Keyword("value"))
        place.set(entry)

    edit(folder, change)


@pytest.mark.parametrize("owner", [None, OWNER], ids=["one key for both", "two keys"])
def test_a_new_identity_takes_over_what_is_the_nodes_own(
    tmp_path: Path, owner: KeyPair | None
) -> None:
    folder = Folder(tmp_path)
    before = begin_folder(folder, owner)
    edit(folder, count_one)
    with_own_slots(folder, before)
    after = renew_identity(folder)
    assert after == read_key_pairs(folder)
    assert after.identity not in (before.identity, before.owner)
    assert after.owner == before.owner
    with reading(folder) as root:
        assert local_value(root, after.identity.public_key) == KEPT
        assert local_slot(root, before.identity.public_key) is None
        entry = get_in(root, [P2P_KEY, NODES_KEY, after.identity.public_key])
        assert isinstance(entry, Signed)
        assert entry.public_key == after.identity.public_key
        assert entry.verify()
        cursor = RootLattice(root_lattice(), root)
        assert "sold" in Database.at(cursor, after.owner.public_key, "shop")
    edit(folder, count_one)
    assert not (tmp_path / "identity.new").exists()


@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_renewal_that_is_broken_off_leaves_an_identity_with_all_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    folder = Folder(tmp_path)
    before = begin_folder(folder)
    with_own_slots(folder, before)
    commit, made = CellStore.commit, 0

    def failing(store: CellStore, value: Value) -> object:
        nonlocal made
        if made == commits:
            raise KeyboardInterrupt
        made += 1
        return commit(store, value)

    with monkeypatch.context() as patch:
        patch.setattr(CellStore, "commit", failing)
        if commits < 2:
            with pytest.raises(KeyboardInterrupt):
                renew_identity(folder)
    keys = read_key_pairs(folder)
    with reading(folder) as root:
        assert local_value(root, keys.identity.public_key) == KEPT
    after = renew_identity(folder)
    assert after.owner == before.owner
    with reading(folder) as root:
        assert local_value(root, after.identity.public_key) == KEPT
