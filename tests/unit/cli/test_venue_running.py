"""Commands that run operations: beside a daemon with a venue, and without one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import Lattice

from datalattice.client import read_key_pairs
from datalattice.client.folder import Folder
from datalattice.client.settings import NodeConfig
from datalattice.service import FolderService
from datalattice.testing.folders import running_node

CONTENT = b"iris data\n"


@contextmanager
def daemon(home: Path, **settings: Any) -> Iterator[None]:
    """Run the folder's node with a venue, in a thread."""
    config = NodeConfig(venue=True, venue_trial=True, **settings)
    service = FolderService(home, read_key_pairs(Folder(home)).identity, config)
    with running_node(home, service=service):
        yield
    service.close()


@pytest.mark.usefixtures("owner")
def test_jobs_are_run_and_steered_through_the_running_node(
    lattice: Lattice, tmp_path: Path
) -> None:
    with daemon(tmp_path / "home"):
        rows = lattice("venue", "operations", "--json").document
        assert "v/ops/json/merge" in [row["path"] for row in rows]
        assert lattice("venue", "invoke", "v/ops/test/echo", "n=5", "name=tea", "--wait").out == (
            '{"n": 5, "name": "tea"}\n'
        )
        for given, stdin, output in (
            (['{"a": [1]}'], "", '{"a": [1]}\n'),
            (["-"], '{"b": null}', '{"b": null}\n'),
            (["plain"], "", "plain\n"),
            (["0"], "", "0\n"),
            ([], "", "{}\n"),
            (["null"], "", "null\n"),
        ):
            ran = lattice("venue", "invoke", "v/ops/test/echo", *given, "--wait", stdin=stdin)
            assert (ran.code, ran.out) == (0, output)
        failed = lattice("venue", "invoke", "v/ops/test/error", "message=no tea", "--wait")
        assert (failed.code, failed.out) == (1, "")
        assert "is FAILED: " in failed.line()
        assert "no tea" in failed.line()
        late = lattice(
            "venue", "invoke", "v/ops/test/never", "--wait", "--timeout", "0.05", "--json"
        )
        assert (late.code, late.document["status"]) == (1, "TIMEOUT")
        once = [
            lattice("venue", "invoke", "v/ops/test/echo", "--request-id", "r1").out for _ in "ab"
        ]
        assert once[0] == once[1]


@pytest.mark.usefixtures("owner")
def test_a_job_that_asks_gets_its_answer(lattice: Lattice, tmp_path: Path) -> None:
    with daemon(tmp_path / "home"):
        ran = lattice("venue", "invoke", "v/ops/test/ask", "message=which tea?", "--wait", "--json")
        assert (ran.code, ran.document["status"]) == (1, "INPUT_REQUIRED")
        assert "answer with `lattice venue message" in ran.err
        id = ran.document["id"]
        short = id[:14]  # the time that it was made
        assert lattice("venue", "pause", short).out == "PAUSED\n"
        assert "PAUSED already" in lattice("venue", "pause", short).line()
        assert lattice("venue", "resume", short).out == "STARTED\n"
        assert lattice("venue", "message", short, "green", "--json").document["id"] == id
        watched = lattice("venue", "job", short, "--watch", "--json").out.splitlines()
        assert json.loads(watched[-1])["output"] == "green"
        assert lattice("venue", "job", id, "--json").document["opName"] == "v/ops/test/ask"
        assert "COMPLETE" in lattice("venue", "job", short).out
        assert lattice("venue", "cancel", id).out == "COMPLETE\n"
        never = lattice("venue", "invoke", "v/ops/test/never").out.strip()
        assert never in lattice("venue", "jobs").out
        assert lattice("venue", "cancel", never).out == "CANCELLED\n"
        assert lattice("venue", "delete", never).out == f"{never}\n"
        assert lattice("venue", "job", never).code == 1


@pytest.mark.usefixtures("owner")
def test_without_a_node_the_venue_runs_in_the_command(lattice: Lattice, tmp_path: Path) -> None:
    merged = lattice("venue", "invoke", "v/ops/json/merge", 'values=[{"a":1},{"b":2}]', "--json")
    assert merged.document["output"] == {"result": {"a": 1, "b": 2}}
    id = merged.document["id"]
    shown = lattice("venue", "job", id[:20], "--json").document
    assert (shown["status"], shown["output"]) == ("COMPLETE", merged.document["output"])
    assert list(shown) == list(merged.document)  # in the order of the running node
    assert lattice("venue", "operations").out.count("v/ops/json/") == 4
    for command in (["pause"], ["resume"], ["cancel"], ["delete"], ["message", "hello"]):
        ran = lattice("venue", command[0], id, *command[1:])
        assert (ran.code, "`lattice venue start`" in ran.line()) == (75, True)
    # Settings of the folder are in force here, too.
    (tmp_path / "home" / "node.toml").write_text("[venue]\ntrial = true\n")
    assert lattice("venue", "invoke", "v/ops/test/echo", "tea").out == "tea\n"


@pytest.mark.usefixtures("owner")
def test_a_node_without_a_venue_says_how_there_is_one(lattice: Lattice, tmp_path: Path) -> None:
    home = tmp_path / "home"
    service = FolderService(home, read_key_pairs(Folder(home)).identity, NodeConfig())
    with running_node(home, service=service):
        ran = lattice("venue", "invoke", "v/ops/json/merge")
        assert "`lattice venue start`" in ran.line()
        assert ran.code != 0
    service.close()


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a=1", "b"], "an input is NAME=VALUE, each name once, got 'b'"),
        (["a=1", "a=2"], "each name once"),
        (["=1", "a=2"], "each name once"),
        (["{a"], "the input is not JSON"),
        (["-"], "standard input is empty"),
    ],
)
def test_wrong_inputs_are_one_line(lattice: Lattice, words: list[str], text: str) -> None:
    ran = lattice("venue", "invoke", "v/ops/json/merge", *words)
    assert (ran.code, text in ran.line()) == (2, True)


@pytest.mark.usefixtures("owner")
def test_wrong_jobs_are_one_line(lattice: Lattice) -> None:
    lattice("queue", "offer", "log", "x")
    for given, code in (("00", 1), ("", 1), ("xy" * 16, 2), ("00" * 16, 1)):
        ran = lattice("venue", "job", given)
        assert ran.code == code
        assert ran.line()
    ran = lattice("venue", "job", "00" * 16, "--watch")
    assert (ran.code, "`lattice venue start`" in ran.line()) == (75, True)


@pytest.mark.parametrize("kind", ["lattice", "file", "drive"])
def test_an_asset_is_verified_wherever_its_content_is(
    kind: str, lattice: Lattice, owner: str, tmp_path: Path
) -> None:
    assert owner
    home = tmp_path / "home"
    (home / "node.toml").write_text(f"[venue]\nstorage = '{kind}'\n")
    digest = hashlib.sha256(CONTENT).hexdigest()
    (tmp_path / "content").write_bytes(CONTENT)
    (tmp_path / "metadata").write_text(json.dumps({"content": {"sha256": digest}}))
    (tmp_path / "bare").write_text("{}")
    asset = lattice("venue", "register", tmp_path / "metadata").out.strip()
    bare = lattice("venue", "register", tmp_path / "bare").out.strip()
    assert lattice("venue", "verify", bare, "--json").document["content"] == "none"
    absent = lattice("venue", "verify", asset, "--json")
    assert (absent.code, absent.document["content"]) == (0, "absent")
    assert lattice("venue", "upload", asset, tmp_path / "content").code == 0
    assert lattice("venue", "verify", asset[:8]).out.splitlines() == [
        "metadata: its SHA-256 is the id",
        "content: 10 bytes with the declared SHA-256",
    ]
    assert lattice("venue", "download", asset).out == CONTENT.decode()
    assert (home / "content" / digest).exists() is (kind == "file")
    if kind == "file":
        (home / "content" / digest).write_bytes(b"other")
        ran = lattice("venue", "verify", asset, "--json")
        assert (ran.code, ran.document["content"]) == (1, "damaged")
        assert digest in ran.document["reason"]


@pytest.mark.usefixtures("owner")
def test_contents_in_memory_are_the_daemons(lattice: Lattice, tmp_path: Path) -> None:
    (tmp_path / "home" / "node.toml").write_text("[venue]\nstorage = 'memory'\n")
    (tmp_path / "content").write_bytes(CONTENT)
    digest = hashlib.sha256(CONTENT).hexdigest()
    (tmp_path / "metadata").write_text(json.dumps({"content": {"sha256": digest}}))
    with_content = ("venue", "register", tmp_path / "metadata", "--content", tmp_path / "content")
    assert "only a running daemon keeps contents" in lattice(*with_content).line()
    asset = lattice("venue", "register", tmp_path / "metadata").out.strip()
    ran = lattice("venue", "upload", asset, tmp_path / "content")
    assert (ran.code, "only a running daemon keeps contents" in ran.line()) == (2, True)
    assert lattice("venue", "assets", "--json").document[0]["content"] is False
    assert lattice("venue", "verify", asset, "--json").document["content"] == "absent"
