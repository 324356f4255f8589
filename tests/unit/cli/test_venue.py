"""Venue commands: what they write, what they print, what they refuse."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from datalattice.apps.grid import Venue, venue_document
from datalattice.cells import Keyword
from datalattice.cli.venue import commands
from datalattice.client import Folder, edit as client_edit
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.cursors import RootLattice
from datalattice.errors import LimitExceeded
from datalattice.lattice import MergeContext, did_of, root_lattice
from datalattice.store import CellStore

CONTENT = b"iris data\n"


@pytest.fixture
def asset(lattice: Any, owner: str, tmp_path: Path) -> str:
    """Return the id of a registered asset; its content lies in the file `content`."""
    assert owner
    (tmp_path / "content").write_bytes(CONTENT)
    digest = hashlib.sha256(CONTENT).hexdigest()
    metadata = json.dumps({"name": "iris", "content": {"sha256": digest}})
    (tmp_path / "metadata").write_text(metadata)
    ran = lattice("venue", "register", tmp_path / "metadata")
    assert ran.out.strip() == hashlib.sha256(metadata.encode()).hexdigest()
    return str(ran.out.strip())


def edit(tmp_path: Path, change: Any) -> Any:
    return client_edit(Folder(tmp_path / "home"), change)


def test_what_is_registered_is_listed_and_shown(
    lattice: Any, owner: str, asset: str, tmp_path: Path
) -> None:
    did = did_of(bytes.fromhex(owner))
    (row,) = lattice("venue", "assets", "--json").document
    assert row == {"asset": asset, "name": "iris", "content": False, "venue": did}
    assert asset in lattice("venue", "assets").out
    assert did in lattice("venue", "assets", "--all").out
    text = (tmp_path / "metadata").read_text()
    for name in (asset, asset[:8], f"{did}/a/{asset}"):
        assert lattice("venue", "show", name).out == text + "\n"
    assert lattice("venue", "show", asset, "--json").document == json.loads(text)
    (shown,) = lattice("venue", "show", "--json").document
    assert shown == {"venue": did, "assets": 1, "jobs": 0, "contents": 0}
    assert did in lattice("venue", "show").out
    again = lattice("venue", "register", tmp_path / "metadata", "--json").document
    assert again == {"asset": asset}


def test_content_goes_in_and_comes_out(lattice: Any, asset: str, tmp_path: Path) -> None:
    ran = lattice("venue", "download", asset)
    assert (ran.code, "has the content" in ran.line()) == (1, True)
    assert lattice("venue", "upload", asset, tmp_path / "metadata").code == 2
    done = lattice("venue", "upload", asset[:6], tmp_path / "content", "--json").document
    assert done == {"sha256": hashlib.sha256(CONTENT).hexdigest()}
    assert lattice("venue", "download", asset).out == CONTENT.decode()
    target = tmp_path / "out"
    assert lattice("venue", "download", asset, "--output", target).code == 0
    assert target.read_bytes() == CONTENT
    assert [path.name for path in tmp_path.glob(".out*")] == []
    assert lattice("venue", "assets", "--json").document[0]["content"] is True
    assert lattice("venue", "verify").out == "1 venue, all good\n"
    assert lattice("venue", "verify", "--json").document == {"venues": 1, "bad": []}


def test_content_can_come_with_its_asset(lattice: Any, asset: str, tmp_path: Path) -> None:
    metadata = tmp_path / "more"
    metadata.write_text((tmp_path / "metadata").read_text() + "\n")
    wrong = lattice("venue", "register", metadata, "--content", tmp_path / "metadata")
    assert (wrong.code, "its metadata declares" in wrong.line()) == (2, True)
    assert len(lattice("venue", "assets", "--json").document) == 1
    assert lattice("venue", "register", metadata, "-c", tmp_path / "content").code == 0
    rows = lattice("venue", "assets", "--json").document
    assert [row["content"] for row in rows] == [True, True]
    assert asset in {row["asset"] for row in rows}


def test_jobs_are_listed(lattice: Any, asset: str, tmp_path: Path) -> None:
    def change(cursor: RootLattice, key_pair: KeyPair) -> list[bytes]:
        venue = Venue.at(cursor, key_pair)
        jobs = [venue.create_job({"op": asset}) for _ in range(2)]
        venue.update_job(jobs[1], {"status": "COMPLETE", "output": 7})
        return jobs

    first, second = (job.hex() for job in edit(tmp_path, change))
    rows = lattice("venue", "jobs", "--json").document
    assert [(row["job"], row["status"]) for row in rows] == [
        (first, "PENDING"),
        (second, "COMPLETE"),
    ]
    assert rows[0]["op"] == asset
    listed = lattice("venue", "jobs", "-s", "complete").out
    assert second in listed
    assert first not in listed
    assert lattice("venue", "show", second, "--json").document["output"] == 7
    assert "COMPLETE" in lattice("venue", "show", second).out


def test_other_venues_are_read_by_their_did(lattice: Any, asset: str, tmp_path: Path) -> None:
    other = Venue.create(KeyPair.generate(SeededEntropy(5)))
    theirs = other.register('{"name":"theirs"}')
    bad = other.create_job()
    edit(tmp_path, lambda cursor, key_pair: Venue.at(cursor, key_pair).merge(other.grid))
    (row,) = lattice("venue", "assets", "--venue", other.did, "--json").document
    assert (row["asset"], row["name"]) == (theirs.hex(), "theirs")
    assert lattice("venue", "show", theirs.hex()).out == '{"name":"theirs"}\n'
    (job,) = lattice("venue", "jobs", "-v", other.did, "--json").document
    assert job["job"] == bad.hex()
    (tmp_path / "home" / "identity.key").unlink()
    several = lattice("venue", "assets")
    assert (several.code, several.line()) == (
        2,
        "2 venues are in the grid; name one with --venue",
    )
    assert asset in lattice("venue", "assets", "--all", "-v", other.did).out


def test_a_bad_entry_is_told_with_exit_code_1(lattice: Any, asset: str, tmp_path: Path) -> None:
    def change(cursor: RootLattice, _key_pair: KeyPair) -> None:
        cursor.assoc_in("tampered", Keyword("grid"), Keyword("meta"), bytes.fromhex(asset))

    edit(tmp_path, change)
    ran = lattice("venue", "verify")
    assert ran.code == 1
    assert ran.out.startswith("bad-metadata")
    assert asset in ran.out
    assert lattice("venue", "verify", "--json").document["bad"][0]["reason"] == "bad-metadata"


@pytest.mark.usefixtures("owner")
def test_wrong_calls_are_one_line(lattice: Any, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("[]")
    assert "is not a node's folder" in lattice("venue", "assets").line()
    for arguments in (
        ("register", tmp_path / "list"),
        ("register", tmp_path / "absent"),
        ("upload", "00", tmp_path / "list"),
        ("jobs", "-v", "venue"),
        ("show", "00"),
    ):
        ran = lattice("venue", *arguments)
        assert ran.code in {1, 2}
        assert ran.line()


def test_a_beginning_that_fits_several_ids_is_refused(
    lattice: Any, asset: str, tmp_path: Path
) -> None:
    def change(cursor: RootLattice, key_pair: KeyPair) -> list[bytes]:
        venue = Venue.at(cursor, key_pair)
        return [venue.register(json.dumps({"n": number})) for number in range(20)]

    ids = [one.hex() for one in edit(tmp_path, change)] + [asset]
    letter = next(one[0] for one in ids if sum(other[0] == one[0] for other in ids) > 1)
    ran = lattice("venue", "show", letter)
    assert (ran.code, "write more digits" in ran.line()) == (2, True)


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_files_are_read_up_to_the_limit(
    over: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "CONTENT_BYTES_MAX", 10)
    (tmp_path / "file").write_bytes(b"x" * (10 + over))
    if over > 0:
        with pytest.raises(LimitExceeded, match="more than the limit of 10 bytes"):
            commands._read(str(tmp_path / "file"), "it")
    else:
        assert len(commands._read(str(tmp_path / "file"), "it")) == 10 + over


def test_venues_of_the_web_are_verified_when_that_is_wanted(
    lattice: Any, asset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert asset
    keys = KeyPair.generate(SeededEntropy(3))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(venue_document(did, keys.public_key)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        did = f"did:web:127.0.0.1%3A{server.server_port}"
        with CellStore.open(tmp_path / "home" / "store") as store:
            cursor = RootLattice(root_lattice(), store.root(), MergeContext(key_pair=keys))
            Venue.at(cursor, did, key_pair=keys).register('{"a":1}')
            store.commit(cursor.get())
        assert "not-owner" in lattice("venue", "verify").out
        monkeypatch.setenv("LATTICE_NODE_DID_WEB", "loopback")
        assert lattice("venue", "verify").out == "2 venues, all good\n"
        server.shutdown()
