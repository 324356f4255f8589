"""Commands `lattice disk stats`, `gc` and `sweep`: alone, and through the running node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from datalattice.cells import Map, missing
from datalattice.cli.units import duration_ms, duration_text
from datalattice.errors import UsageError
from datalattice.store import CellStore
from datalattice.store.kept import KEEP_NOTHING
from datalattice.testing.folders import running_node
from datalattice.testing.sweep_kit import make_sweep_list


def littered(tmp_path: Path, lattice: Any) -> Path:
    """Make a node's folder whose store has more garbage than life."""
    home = tmp_path / "home"
    lattice("key", "new")
    lattice("queue", "offer", "log", "a record")
    with CellStore.open(home / "store", retention=KEEP_NOTHING) as store:
        root = store.root()
        store.put(*[f"garbage {n} ".ljust(300, "x") for n in range(200)])
        store.commit(Map.of({"litter": "y" * 50_000}))
        store.commit(root)
        store.history.forget(1 << 52)
    return home


def test_stats_and_gc_without_a_node(tmp_path: Path, lattice: Any) -> None:
    home = littered(tmp_path, lattice)
    before = lattice("disk", "stats", "--live", "--grace", "0", "--json").document
    assert before["cells_dead"] > 200
    assert before["cells_live"] + before["cells_dead"] == before["cells"]
    assert before["collected_ms"] is None
    dry = lattice("disk", "gc", "--grace", "0", "--dry-run", "--json").document
    assert dry["is_dry"]
    assert lattice("disk", "stats", "--json").document["bytes"] == before["bytes"]
    done = lattice("disk", "gc", "--grace", "0", "--json").document
    assert done["dropped"] == dry["dropped"] == 1
    assert done["cells_dead"] == before["cells_dead"]
    assert done["bytes_after"] < done["bytes_before"] // 2
    after = lattice("disk", "stats").out
    assert "last gc" in after
    assert "never" not in after
    assert "segments dropped" in lattice("disk", "gc", "--grace", "0").out
    assert "clean" in lattice("disk", "check").out
    assert "a record" in lattice("queue", "range", "log").out
    with CellStore.open(home / "store") as store:
        assert missing(store.root()) == []


@pytest.mark.parametrize("is_littered", [True, False])
def test_the_figures_of_stats_a_dry_run_and_a_collection_agree(
    tmp_path: Path, lattice: Any, is_littered: bool
) -> None:
    if is_littered:
        home = littered(tmp_path, lattice)
    else:  # a few dead cells: no segment is worth dropping
        home = tmp_path / "home"
        lattice("key", "new")
        for number in range(4):
            assert lattice("queue", "offer", "log", f"record {number}".ljust(400, "x")).code == 0
        with CellStore.open(home / "store") as store:
            store.history.forget(1 << 52)
    stats = lattice("disk", "stats", "--live", "--grace", "0", "--json").document
    assert stats["collected_ms"] is None
    assert stats["cells_dead"] > 0
    dry = lattice("disk", "gc", "--grace", "0", "--dry-run", "--json").document
    done = lattice("disk", "gc", "--grace", "0", "--json").document
    assert stats["cells_dead"] == dry["cells_dead"] == done["cells_dead"]
    assert stats["cells_live"] == dry["cells_live"] == done["cells_live"]
    assert stats["bytes"] == dry["bytes_before"] == done["bytes_before"]
    assert stats["bytes_live"] == dry["bytes_live"] == done["bytes_live"]
    assert stats["bytes_dead"] == dry["bytes_dead"] == done["bytes_dead"] > 0
    assert dry["bytes_after"] == done["bytes_after"] == stats["bytes"] - stats["bytes_removable"]
    assert dry["cells_removed"] == done["cells_removed"]
    assert dry["dropped"] == done["dropped"]
    assert done["cells_removed"] == (done["cells_dead"] if is_littered else 0)
    after = lattice("disk", "stats", "--live", "--grace", "0", "--json").document
    assert after["collected_ms"] is not None
    assert after["cells_dead"] == after["dead_left"] == done["cells_dead"] - done["cells_removed"]
    assert after["bytes"] == done["bytes_after"]
    assert after["bytes_live"] == done["bytes_live"]
    assert after["bytes_dead"] == (0 if is_littered else done["bytes_dead"])
    assert after["bytes_removable"] == 0
    told = lattice("disk", "stats").out
    assert "never" not in told
    assert ("dead cells" in told) is not is_littered


def test_stats_counts_by_the_grace_of_a_collection(tmp_path: Path, lattice: Any) -> None:
    littered(tmp_path, lattice)
    assert lattice("disk", "stats", "--live", "--json").document["cells_dead"] == 0
    assert lattice("disk", "gc", "--dry-run", "--json").document["cells_dead"] == 0


def test_the_default_grace_keeps_what_is_young(tmp_path: Path, lattice: Any) -> None:
    littered(tmp_path, lattice)
    assert lattice("disk", "gc", "--json").document["dropped"] == 0


def test_gc_through_the_running_node(tmp_path: Path, lattice: Any) -> None:
    home = littered(tmp_path, lattice)
    with running_node(home):
        done = lattice("disk", "gc", "--grace", "0", "--json").document
        assert done["dropped"] == 1
        offered = lattice("queue", "offer", "log", "another record")
        assert offered.code == 0, offered
        assert "another record" in lattice("queue", "range", "log").out
        assert lattice("disk", "stats", "--json").document["collected_ms"] is not None
        assert "clean" in lattice("disk", "check").out


def test_sweep_without_a_node(tmp_path: Path, lattice: Any) -> None:
    home = littered(tmp_path, lattice)
    head = make_sweep_list(home / "store", tmp_path / "list")
    dry = lattice("disk", "sweep", str(tmp_path / "list"), "--dry-run", "--json").document
    assert dry["is_dry"]
    assert dry["dropped"] == 1
    assert (dry["cells_live"], dry["cells_dead"]) == (head.cells_live, head.cells_dead)
    assert "segments dropped" in lattice("disk", "sweep", str(tmp_path / "list")).out
    assert "clean" in lattice("disk", "check").out
    assert "a record" in lattice("queue", "range", "log").out
    again = lattice("disk", "sweep", str(tmp_path / "list"))
    assert again.code == 2
    assert "the list is stale: cells were removed" in again.line()


def test_sweep_refuses_what_is_no_list_of_this_store(tmp_path: Path, lattice: Any) -> None:
    littered(tmp_path, lattice)
    with CellStore.open(tmp_path / "other") as store:
        store.commit(Map.of({"a": 1}))
    make_sweep_list(tmp_path / "other", tmp_path / "foreign")
    ran = lattice("disk", "sweep", str(tmp_path / "foreign"))
    assert ran.code == 2
    assert "the list of another store" in ran.line()
    assert lattice("disk", "sweep", str(tmp_path / "none"), "--json").error["error"] == "usage"


def test_sweep_through_the_running_node(tmp_path: Path, lattice: Any) -> None:
    home = littered(tmp_path, lattice)
    make_sweep_list(home / "store", tmp_path / "list")
    with running_node(home):
        assert lattice("queue", "offer", "log", "since the mark").code == 0
        done = lattice("disk", "sweep", str(tmp_path / "list"), "--json").document
        assert done["dropped"] == 1
        assert "since the mark" in lattice("queue", "range", "log").out
        assert lattice("disk", "sweep", str(tmp_path / "list")).code == 2
        os.mkfifo(tmp_path / "pipe")  # the node must not wait for somebody who writes to it
        assert "a sweep list is a file" in lattice("disk", "sweep", str(tmp_path / "pipe")).line()
        assert "clean" in lattice("disk", "check").out


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("0", 0), ("30", 30_000), ("5ms", 5), ("10m", 600_000), ("2d", 172_800_000)],
)
def test_durations(text: str, wanted: int) -> None:
    assert duration_ms(text) == wanted


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (1_448, "1.45s"),
        (88_712, "88.7s"),
        (119_999, "120s"),
        (120_000, "2m"),
        (7_200_000, "2h"),
        (172_800_000, "2d"),
        (86_400_000 * 12_345, "12345d"),
    ],
)
def test_a_duration_is_printed_as_an_option_takes_it(span_ms: int, text: str) -> None:
    assert duration_text(span_ms) == text
    assert abs(duration_ms(text) - span_ms) <= span_ms / 200  # "three digits"


@pytest.mark.parametrize("text", ["", "m", "-1s", "1.h", "1 h", "1y", "1" * 10])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="10m"):
        duration_ms(text)
