"""Commands `lattice pin add`, `unpin`, `pins`, `export` and `import`, with and without a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datalattice.cells import Keyword, Map, value_hash
from datalattice.client import Folder, read_key
from datalattice.lattice import LOCAL_KEY, get_in, replicable, set_local
from datalattice.store import CellStore, parse_time
from datalattice.testing.folders import running_node


@pytest.fixture
def filled(lattice: Any, owner: str) -> str:
    for number in range(3):
        assert lattice("queue", "offer", "t", f"a{number} ".ljust(300, "x")).code == 0
    return owner


@pytest.mark.usefixtures("filled")
def test_pins_come_and_go(lattice: Any) -> None:
    roots = [row["hash"] for row in lattice("history", "--json").document]
    made = lattice(
        "pin",
        "add",
        "v1",
        "HEAD~1",
        "--by",
        "me",
        "--label",
        "first",
        "--expires",
        "30d",
        "--json",
    ).document
    assert (made["name"], made["hash"], made["owner"], made["label"]) == (
        "v1",
        roots[1],
        "me",
        "first",
    )
    span_ms = parse_time(made["expires"], 0) - parse_time(made["created"], 0)
    assert abs(span_ms - 30 * 86_400_000) < 60_000
    assert lattice("pin", "add", "now", "--expires", "2100-01-01").code == 0
    assert [one["name"] for one in lattice("pin", "list", "--json").document] == ["now", "v1"]
    assert "first" in lattice("pin", "list").out
    assert lattice("show", "v1", "--json").document["root"] == roots[1]
    assert "(v1)" in lattice("history").out
    assert "remove it first, or move it" in lattice("pin", "add", "v1").line()
    assert lattice("pin", "add", "v1", "--move").code == 0
    assert lattice("pin", "remove", "v1").code == 0
    assert "there is no pin 'v1'; there are: now" in lattice("pin", "remove", "v1").line()
    assert lattice("pin", "remove").code == lattice("pin", "remove", "x", "--all").code == 2
    for wrong in (["a b"], ["HEAD"], ["x", "nope"], ["x", "--expires", "1999-01-01"]):
        assert lattice("pin", "add", *wrong).code == 2
    assert lattice("pin", "remove", "--all").code == 0
    assert lattice("pin", "list", "--json").document == []


@pytest.mark.usefixtures("filled")
def test_former_roots_are_forgotten_on_demand(lattice: Any) -> None:
    rows = lattice("history", "--json").document
    assert lattice("disk", "forget", "1d", "--json").document["forgotten"] == 0
    assert lattice("disk", "forget", rows[1]["time"], "--json").document["forgotten"] == 1
    assert lattice("history", "--json").document == rows[:2]
    assert lattice("disk", "forget", "soon").code == 2
    assert lattice("disk", "forget", "0s", "--json").document["forgotten"] == 1


@pytest.mark.usefixtures("filled")
def test_a_damaged_file_of_pins_is_named_and_can_be_given_up(lattice: Any, tmp_path: Path) -> None:
    lattice("pin", "add", "v1")
    file = tmp_path / "home" / "store" / "pins"
    file.write_bytes(file.read_bytes().replace(b"v1", b"v2"))
    assert str(file) in lattice("pin", "list").line()
    assert lattice("pin", "list").code == 1
    assert lattice("queue", "offer", "t", "goes on").code == 0
    assert lattice("pin", "remove", "--all").code == 0
    assert lattice("pin", "list").code == 0


def test_export_and_import(lattice: Any, filled: str, tmp_path: Path) -> None:
    file, other = tmp_path / "x.archive", tmp_path / "other"
    out = lattice("disk", "export", "HEAD~1", file, "--json").document
    assert (out["root"], out["bytes"]) == (
        lattice("history", "--json").document[1]["hash"],
        file.stat().st_size,
    )
    assert "--force replaces it" in lattice("disk", "export", "HEAD", file).line()
    assert lattice("disk", "export", "HEAD", file, "--force").code == 0
    assert "--pin NAME, --merge, or both" in lattice("disk", "import", file).line()
    assert lattice("disk", "import", file, "--pin", "").code == 2
    done = lattice("disk", "import", file, "--pin", "got", "-d", other, "--json").document
    assert (done["pin"], done["root"]) == ("got", None)
    assert done["cells"] > out["cells"]
    assert lattice("show", "got", "-d", other).code == 0
    done = lattice("disk", "import", file, "--merge", "-d", other, "--json").document
    assert done["root"] == done["imported"]
    assert len(lattice("queue", "range", "t", "--owner", filled, "-d", other).out.split()) == 6
    assert lattice("disk", "check", "-d", other).code == 0


def with_local(home: Path) -> bytes:
    """Give the root of a folder a slot of its own under :local; return what is in it."""
    secret = b"what the node keeps for itself".ljust(400, b".")
    keys = read_key(Folder(home).key_path)
    with CellStore.open(home / "store") as store:
        store.commit(set_local(store.root(), keys, Map.of([(Keyword("secret"), secret)])))
        assert get_in(store.root(), [LOCAL_KEY]) is not None
    return secret


@pytest.mark.parametrize("is_archive", [True, False])
def test_a_root_with_a_local_section_is_merged_without_it(
    lattice: Any, filled: str, tmp_path: Path, is_archive: bool
) -> None:
    home, other, file = tmp_path / "home", tmp_path / "other", tmp_path / "x.archive"
    with_local(home)
    lattice("key", "new", "-d", other)
    lattice("queue", "offer", "theirs", "one", "-d", other)
    if is_archive:
        assert lattice("disk", "export", "HEAD", file, "--with-local").code == 0
    source = file if is_archive else home
    ran = lattice("disk", "import", source, "--merge", "-d", other, "--json")
    assert ran.code == 0, ran.err
    assert ran.document["dropped"] == 0
    assert len(lattice("queue", "range", "t", "--owner", filled, "-d", other).out.split()) == 6
    assert lattice("disk", "check", "-d", other).code == 0
    with CellStore.open(other / "store", read_only=True) as store:
        assert get_in(store.root(), [LOCAL_KEY]) is None


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("command", ["disk", "etch"])
def test_what_is_exported_has_no_local_section_unless_it_is_asked_for(
    lattice: Any, tmp_path: Path, command: str
) -> None:
    home = tmp_path / "home"
    secret = with_local(home)
    with CellStore.open(home / "store", read_only=True) as store:
        whole, without = value_hash(store.root()), value_hash(replicable(store.root()))
    ref = ["HEAD"] if command == "disk" else []
    for options, root in (([], without), (["--with-local"], whole)):
        file = tmp_path / f"file{len(options)}"
        ran = lattice(command, "export", *ref, file, *options, "--json")
        assert ran.code == 0, ran.err
        assert bytes.fromhex(ran.document["root" if command == "disk" else "hash"]) == root
        assert (secret in file.read_bytes()) is bool(options)
    if command == "disk":
        done = lattice("disk", "import", tmp_path / "file0", "--pin", "x", "-d", tmp_path / "o")
        assert done.code == 0, done.err


@pytest.mark.usefixtures("filled")
def test_nothing_of_a_bad_file_is_visible(lattice: Any, tmp_path: Path) -> None:
    file, other = tmp_path / "x.archive", tmp_path / "other"
    lattice("disk", "export", "HEAD", file)
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    ran = lattice("disk", "import", file, "--pin", "x", "--merge", "-d", other)
    assert ran.code == 2
    assert "ends in the middle" in ran.line()
    assert lattice("pin", "list", "--json", "-d", other).document == []
    assert lattice("history", "--json", "-d", other).document == []
    assert lattice("disk", "import", tmp_path / "none", "--merge").code == 2
    assert list(tmp_path.glob("*.part")) == []


@pytest.mark.processes
def test_beside_a_running_node(lattice: Any, filled: str, tmp_path: Path) -> None:
    home, other, file = tmp_path / "home", tmp_path / "other", tmp_path / "x.archive"
    lattice("key", "new", "-d", other)
    lattice("queue", "offer", "theirs", "one", "-d", other)
    lattice("disk", "export", "HEAD", file, "-d", other)
    with running_node(home, has_key=False):
        before = lattice("history", "--json").document
        assert lattice("pin", "add", "mine", "HEAD~1").code == 0
        done = lattice("disk", "import", file, "--merge", "--pin", "got", "--json").document
        assert done["dropped"] == 0
        assert lattice("queue", "range", "theirs").out == "one\n"
        assert [one["name"] for one in lattice("pin", "list", "--json").document] == [
            "got",
            "mine",
        ]
        assert lattice("history", "--json").document[1:] == [
            {**row, "names": [n for n in row["names"] if n != "HEAD"] + extra}
            for row, extra in zip(before, ([], ["mine"], []), strict=True)
        ]
        assert lattice("disk", "export", "HEAD", file, "--force").code == 0
        assert (
            "neither an archive" in lattice("disk", "import", tmp_path / "none", "--merge").line()
        )
        assert lattice("pin", "remove", "mine").code == 0
        assert lattice("disk", "forget", "0s", "--json").document["forgotten"] == 3
        assert len(lattice("history", "--json").document) == 1
    assert lattice("disk", "check").code == 0
    assert filled in lattice("queue", "list", "--json").out
