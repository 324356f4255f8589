"""Commands `lattice disk ...`: what is damaged is named, and comes back from a store or a node."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from datalattice.cells import Index, Keyword, Map, Signed, Value, encode, references, value_hash
from datalattice.crypto import KeyPair
from datalattice.lattice import get_in
from datalattice.store import CellStore
from datalattice.testing.folders import running_node
from datalattice.testing.malformed import cells_of, value_from_cells, with_cell


def filled(lattice: Any, tmp_path: Path) -> Path:
    """Make a node's folder with a queue of records, and a whole copy of it; return the folder."""
    home = tmp_path / "home"
    lattice("key", "new")
    records = [f"record {n} ".ljust(300, "x") for n in range(200)]
    lattice("queue", "offer", "log", stdin="\n".join(records) + "\n")
    lattice("queue", "offer", "log", "the last")
    shutil.copytree(home, tmp_path / "whole")
    return home


def root_of(home: Path) -> bytes | None:
    with CellStore.open(home / "store") as store:
        return store.root_hash()


def flip(home: Path, offset: int = 20_000) -> Path:
    file = home / "store" / "segments" / "00000001.seg"
    data = bytearray(file.read_bytes())
    data[offset] ^= 16
    with file.open("r+b") as handle:
        handle.write(data)
    return file


def test_a_whole_store_is_clean(lattice: Any, tmp_path: Path) -> None:
    filled(lattice, tmp_path)
    ran = lattice("disk", "check")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[-1] == "clean"
    document = lattice("disk", "check", "--json").document
    assert document["clean"]
    assert document["packs"] == 2
    assert document["cells"] > 50
    assert document["damaged"] == document["missing"] == document["scars"] == []
    assert lattice("disk", "heal").code == 0


def test_a_store_without_the_record_of_its_end_may_have_lost_commits(
    lattice: Any, tmp_path: Path
) -> None:
    (filled(lattice, tmp_path) / "store" / "end").unlink()
    for _ in range(2):  # whatever was opened meanwhile
        ran = lattice("disk", "check")
        assert ran.code == 1
        assert ran.out.splitlines()[-1] == "lost"
        assert "the record of the log's end is gone" in ran.err
        assert "that cannot be excluded" in ran.err
        assert "lattice disk heal --accept-loss" in lattice("queue", "offer", "log", "more").err
    assert lattice("disk", "heal", "--accept-loss", "--offline").code == 0
    assert lattice("disk", "check").code == 0


def test_damage_is_named_and_healed_from_another_store(lattice: Any, tmp_path: Path) -> None:
    home = filled(lattice, tmp_path)
    whole = root_of(home)
    file = flip(home)
    ran = lattice("disk", "check")
    assert ran.code == 1
    assert f"damaged: {file} at byte " in ran.out
    assert "does not fit its hash (cell 0x" in ran.out
    assert ran.out.splitlines()[-1] == "damaged"
    assert ran.line().startswith("the store is damaged; `lattice disk heal`")
    damaged = lattice("disk", "check", "--json")
    assert damaged.code == 1
    assert [one for one in damaged.document["damaged"] if one["hash"]]
    alone = lattice("disk", "heal", "--json")
    assert alone.code == 1
    assert alone.document["rescued"] > 0, "what is whole in the damaged pack"
    healed = lattice("disk", "heal", "--from-store", tmp_path / "whole", "--json")
    assert healed.code == 0
    assert healed.document["fetched"] >= 1
    assert lattice("disk", "check").code == 0
    assert root_of(home) == whole
    assert len(lattice("queue", "range", "log").out.splitlines()) == 201


def test_a_lost_file_is_healed_from_a_node(lattice: Any, tmp_path: Path) -> None:
    home = filled(lattice, tmp_path)
    whole = root_of(home)
    (home / "store" / "segments" / "00000001.seg").unlink()
    assert lattice("disk", "check").code == 1
    with running_node(tmp_path / "whole", has_key=False) as node:
        ran = lattice("disk", "heal", "--from", "127.0.0.1:1", "--from", node.address)
        assert ran.code == 0, ran.err
        assert "not asked: 127.0.0.1:1: " in ran.out
        assert root_of(home) == whole
        assert lattice("disk", "check").code == 0


def test_lost_commits_are_told_and_nothing_is_written_until_that_is_accepted(
    lattice: Any, tmp_path: Path
) -> None:
    home = filled(lattice, tmp_path)
    file = home / "store" / "segments" / "00000001.seg"
    size = file.stat().st_size
    with file.open("r+b") as handle:
        handle.truncate(size - 10)
    lost = f"{file} at byte "

    assert lattice("disk", "check").code == 1
    offered = lattice("queue", "offer", "log", "instead")
    assert offered.code != 0
    assert offered.line().startswith(lost)
    assert "pack 2 was acknowledged and cannot be read any more" in offered.line()

    alone = lattice("disk", "heal")
    assert alone.code == 1
    assert "--accept-loss" in alone.err
    assert lattice("queue", "offer", "log", "instead").code != 0

    healed = lattice("disk", "heal", "--from-store", tmp_path / "whole")
    assert healed.code == 0, healed.err
    assert len(lattice("queue", "range", "log").out.splitlines()) == 201

    with file.open("r+b") as handle:
        handle.truncate(size - 10)
    segments = sorted(file.parent.iterdir())
    for segment in segments[1:]:
        segment.unlink()
    accepted = lattice("disk", "heal", "--accept-loss", "--json")
    assert accepted.code == 0, accepted.err
    assert "acknowledged" in accepted.document["lost"]
    assert lattice("disk", "check").code == 0
    assert len(lattice("queue", "range", "log").out.splitlines()) == 200
    assert lattice("queue", "offer", "log", "instead").code == 0


def test_commits_that_were_given_up_are_accepted_before_anything_is_written(
    lattice: Any, tmp_path: Path
) -> None:
    home = filled(lattice, tmp_path)
    file = home / "store" / "segments" / "00000001.seg"
    with file.open("r+b") as handle:
        handle.truncate(file.stat().st_size - 10)
    shutil.copytree(home, tmp_path / "copy")  # its index has to be made again first
    checked = lattice("disk", "check", "--dir", tmp_path / "copy")
    assert "was acknowledged and cannot be read any more" in checked.err
    assert "`lattice disk heal --from-store DIR`" in checked.err
    CellStore.open(home / "store", repair=True).close()
    offered = lattice("queue", "offer", "log", "instead")
    assert offered.code != 0
    assert offered.line().endswith("lattice disk heal --accept-loss")
    assert lattice("disk", "heal", "--accept-loss").code == 0
    assert lattice("queue", "offer", "log", "instead").code == 0


def test_a_node_that_lets_only_some_keys_in_serves_tools_that_have_one(
    lattice: Any, tmp_path: Path
) -> None:
    home = filled(lattice, tmp_path)
    whole = root_of(home)
    (home / "store" / "segments" / "00000001.seg").unlink()
    key = lattice("key", "show", "--json").document["public_key"]
    with running_node(tmp_path / "whole", has_key=False, allow=(key,)) as node:
        asked = lattice("node", "status", node.address)
        assert asked.code == 75
        assert asked.line().endswith("; does it let only some keys in (`allow`)?")
        ran = lattice("disk", "heal", "--from", node.address)
        assert ran.code == 0, ran.err
        pulled = lattice("node", "pull", node.address, "--json").document
        assert bytes.fromhex(pulled["root_hash"]) == whole
    assert root_of(home) == whole


def test_a_running_node_is_checked_and_heals_itself(lattice: Any, tmp_path: Path) -> None:
    home = filled(lattice, tmp_path)
    flip(home)
    with running_node(home, has_key=False):
        assert lattice("disk", "check").code == 1
        alone = lattice("disk", "heal", "--json")
        assert alone.code == 1
        assert alone.document["damaged"]
        assert lattice("node", "status", "--json").document["health"].startswith("degraded")
        ran = lattice("disk", "heal", "--from-store", tmp_path / "whole")
        assert ran.code == 0, ran.err
        assert lattice("node", "status", "--json").document["health"] == "ok"
        shown = dict(line.split(maxsplit=1) for line in lattice("node", "status").out.splitlines())
        assert re.fullmatch(r"[0-9.]+m?s", shown["unchanged"]), "a duration, as options take it"
        assert lattice("disk", "check").code == 0
    assert lattice("disk", "check").code == 0
    flip(home, 30_000)
    with (
        running_node(tmp_path / "whole", has_key=False) as other,
        running_node(home, has_key=False),
    ):
        assert lattice("disk", "heal", "--from", other.address).code == 0
        assert lattice("disk", "check").code == 0


def test_wrong_calls(lattice: Any, tmp_path: Path) -> None:
    assert lattice("disk", "check").code == 2
    filled(lattice, tmp_path)
    ran = lattice("disk", "heal", "--from-store", tmp_path)
    assert (ran.code, ran.line()) == (
        2,
        f"{tmp_path} has no store; name a node's folder or a store's",
    )
    assert lattice("disk", "heal", "--from", "nowhere").code == 2
    (tmp_path / "home" / "store" / "STORE").write_text("datalattice")
    assert lattice("disk", "check").code == 1


def malformed_map() -> Value:
    """Return a Map with a Blob in the place of a node."""
    top, below = cells_of(Map.of([(f"{n}".ljust(150), n) for n in range(60)]))
    blob = b"b" * 200
    below[value_hash(blob)] = encode(blob)
    return value_from_cells(*with_cell(top, below, references(top)[0], encode(blob)))


def poisoned(lattice: Any, tmp_path: Path) -> tuple[Path, bytes, Value]:
    """Make a store that an earlier version took a malformed database into.

    Return its folder, the owner of the database, and the malformed value.
    """
    home = filled(lattice, tmp_path)
    owner = KeyPair(b"o" * 32)
    bad = malformed_map()
    slot = Signed.sign(owner, Map.of([("db", bad)]))
    with CellStore.open(home / "store") as store:
        root = store.root()
        assert isinstance(root, Index)
        store.commit(root.put(Keyword("kv"), Map.of([(owner.public_key, slot)])))
    return home, owner.public_key, bad


def test_check_names_malformed_data_by_its_owner(lattice: Any, tmp_path: Path) -> None:
    _, owner, bad = poisoned(lattice, tmp_path)
    found = lattice("disk", "check")
    assert found.code == 1
    assert f"malformed: :kv 0x{owner.hex()}" in found.out
    assert value_hash(bad).hex() in found.out
    assert "`lattice disk repair` leaves these parts out" in found.err


def test_a_repair_leaves_malformed_parts_out_and_pins_the_root_as_it_was(
    lattice: Any, tmp_path: Path
) -> None:
    home, owner, _ = poisoned(lattice, tmp_path)
    before = root_of(home)
    shown = lattice("disk", "repair")
    assert (shown.code, root_of(home)) == (1, before)
    assert f"left out: :kv 0x{owner.hex()}: " in shown.out
    done = lattice("disk", "repair", "--apply", "--json").document
    assert [one["part"] for one in done["left_out"]] == [f":kv 0x{owner.hex()}"]
    with CellStore.open(home / "store") as store:
        root = store.root()
        assert isinstance(root, Index)
        assert get_in(root, [Keyword("kv"), owner]) is None
        pin = store.pins.get(done["pin"])
        assert pin is not None
        assert pin.root_hash == before
    assert "record 0 " in lattice("queue", "range", "log").out
    assert "only former or pinned roots contain it" in lattice("disk", "check").err
    again = lattice("disk", "repair", "--apply")
    assert (again.code, again.out.strip()) == (0, "nothing malformed below the root")


def test_a_repair_keeps_the_sound_entries_of_a_content_store(lattice: Any, tmp_path: Path) -> None:
    home, _, _ = poisoned(lattice, tmp_path)
    bad = malformed_map()
    good = "sound content".ljust(200)
    data = Index.of([(value_hash(bad), bad), (value_hash(good), good)])
    with CellStore.open(home / "store") as store:
        root = store.root()
        assert isinstance(root, Index)
        store.commit(root.put(Keyword("data"), data))
    done = lattice("disk", "repair", "--apply", "--json").document
    assert f":data 0x{value_hash(bad).hex()}" in [one["part"] for one in done["left_out"]]
    with CellStore.open(home / "store") as store:
        kept = get_in(store.root(), [Keyword("data")])
        assert isinstance(kept, Index)
        assert dict(kept.entries()) == {value_hash(good): good}


def test_a_repair_waits_for_the_node_to_stop_and_for_a_damaged_store_to_be_healed(
    lattice: Any, tmp_path: Path
) -> None:
    home = filled(lattice, tmp_path)
    with running_node(home, has_key=False):
        ran = lattice("disk", "repair", "--apply")
        assert ran.code == 2
        assert "stop it before the root is repaired" in ran.line()
    flip(home)
    ran = lattice("disk", "repair")
    assert ran.code == 1
    assert "`lattice disk heal` comes before a repair" in ran.line()
