"""Commands `lattice store pin`, `unpin`, `pins`, `export` and `import`, with and without a node."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from datalattice.node import Daemon, Node, NodeConfig, Running, connect
from datalattice.store import parse_time


@pytest.fixture
def filled(lattice: Any, owner: str) -> str:
    for number in range(3):
        assert lattice("queue", "offer", "t", f"a{number} ".ljust(300, "x")).code == 0
    return owner


@contextmanager
def running(home: Path) -> Iterator[None]:
    """Run the node of a folder in a thread."""
    ready = threading.Event()

    def told(_running: Running, _node: Node) -> None:
        ready.set()

    thread = threading.Thread(target=Daemon(home, NodeConfig(port=0), ready=told).run)
    thread.start()
    try:
        assert ready.wait(20)
        yield
    finally:
        client = connect(home)
        assert client is not None
        with client:
            client.call("node.stop")
        thread.join(20)


@pytest.mark.usefixtures("filled")
def test_pins_come_and_go(lattice: Any) -> None:
    roots = [row["hash"] for row in lattice("log", "--json").document]
    made = lattice(
        "store",
        "pin",
        "v1",
        "HEAD~1",
        "--owner",
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
    assert lattice("store", "pin", "now", "--expires", "2100-01-01").code == 0
    assert [one["name"] for one in lattice("store", "pins", "--json").document] == ["now", "v1"]
    assert "first" in lattice("store", "pins").out
    assert lattice("show", "v1", "--json").document["root"] == roots[1]
    assert "(v1)" in lattice("log").out
    assert "remove it first, or move it" in lattice("store", "pin", "v1").line()
    assert lattice("store", "pin", "v1", "--move").code == 0
    assert lattice("store", "unpin", "v1").code == 0
    assert "there is no pin 'v1'; there are: now" in lattice("store", "unpin", "v1").line()
    assert lattice("store", "unpin").code == lattice("store", "unpin", "x", "--all").code == 2
    for wrong in (["a b"], ["HEAD"], ["x", "nope"], ["x", "--expires", "1999-01-01"]):
        assert lattice("store", "pin", *wrong).code == 2
    assert lattice("store", "unpin", "--all").code == 0
    assert lattice("store", "pins", "--json").document == []


@pytest.mark.usefixtures("filled")
def test_former_roots_are_forgotten_on_demand(lattice: Any) -> None:
    rows = lattice("log", "--json").document
    assert lattice("store", "forget", "1d", "--json").document["forgotten"] == 0
    assert lattice("store", "forget", rows[1]["time"], "--json").document["forgotten"] == 1
    assert lattice("log", "--json").document == rows[:2]
    assert lattice("store", "forget", "soon").code == 2
    assert lattice("store", "forget", "0s", "--json").document["forgotten"] == 1


@pytest.mark.usefixtures("filled")
def test_a_damaged_file_of_pins_is_named_and_can_be_given_up(lattice: Any, tmp_path: Path) -> None:
    lattice("store", "pin", "v1")
    file = tmp_path / "home" / "store" / "pins"
    file.write_bytes(file.read_bytes().replace(b"v1", b"v2"))
    assert str(file) in lattice("store", "pins").line()
    assert lattice("store", "pins").code == 1
    assert lattice("queue", "offer", "t", "goes on").code == 0
    assert lattice("store", "unpin", "--all").code == 0
    assert lattice("store", "pins").code == 0


def test_export_and_import(lattice: Any, filled: str, tmp_path: Path) -> None:
    file, other = tmp_path / "x.archive", tmp_path / "other"
    out = lattice("store", "export", "HEAD~1", file, "--json").document
    assert (out["root"], out["bytes"]) == (
        lattice("log", "--json").document[1]["hash"],
        file.stat().st_size,
    )
    assert "--force replaces it" in lattice("store", "export", "HEAD", file).line()
    assert lattice("store", "export", "HEAD", file, "--force").code == 0
    assert "--pin NAME, --merge, or both" in lattice("store", "import", file).line()
    assert lattice("store", "import", file, "--pin", "").code == 2
    done = lattice("store", "import", file, "--pin", "got", "-d", other, "--json").document
    assert (done["pin"], done["root"]) == ("got", "")
    assert done["cells"] > out["cells"]
    assert lattice("show", "got", "-d", other).code == 0
    done = lattice("store", "import", file, "--merge", "-d", other, "--json").document
    assert done["root"] == done["imported"]
    assert len(lattice("queue", "range", "t", "--owner", filled, "-d", other).out.split()) == 6
    assert lattice("store", "check", "-d", other).code == 0


@pytest.mark.usefixtures("filled")
def test_nothing_of_a_bad_file_is_visible(lattice: Any, tmp_path: Path) -> None:
    file, other = tmp_path / "x.archive", tmp_path / "other"
    lattice("store", "export", "HEAD", file)
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    ran = lattice("store", "import", file, "--pin", "x", "--merge", "-d", other)
    assert ran.code == 1
    assert "ends in the middle" in ran.line()
    assert lattice("store", "pins", "--json", "-d", other).document == []
    assert lattice("log", "--json", "-d", other).document == []
    assert lattice("store", "import", tmp_path / "none", "--merge").code == 2
    assert list(tmp_path.glob("*.part")) == []


@pytest.mark.processes
def test_beside_a_running_node(lattice: Any, filled: str, tmp_path: Path) -> None:
    home, other, file = tmp_path / "home", tmp_path / "other", tmp_path / "x.archive"
    lattice("key", "new", "-d", other)
    lattice("queue", "offer", "theirs", "one", "-d", other)
    lattice("store", "export", "HEAD", file, "-d", other)
    with running(home):
        before = lattice("log", "--json").document
        assert lattice("store", "pin", "mine", "HEAD~1").code == 0
        done = lattice("store", "import", file, "--merge", "--pin", "got", "--json").document
        assert done["dropped"] == 0
        assert lattice("queue", "range", "theirs").out == "one\n"
        assert [one["name"] for one in lattice("store", "pins", "--json").document] == [
            "got",
            "mine",
        ]
        assert lattice("log", "--json").document[1:] == [
            {**row, "names": [n for n in row["names"] if n != "HEAD"] + extra}
            for row, extra in zip(before, ([], ["mine"], []), strict=True)
        ]
        assert lattice("store", "export", "HEAD", file, "--force").code == 0
        assert "no archive" in lattice("store", "import", tmp_path / "none", "--merge").line()
        assert lattice("store", "unpin", "mine").code == 0
        assert lattice("store", "forget", "0s", "--json").document["forgotten"] == 3
        assert len(lattice("log", "--json").document) == 1
    assert lattice("store", "check").code == 0
    assert filled in lattice("queue", "topics", "--json").out
