"""The venue behind the fence: a restored or cloned folder repeats no job that has ended since."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from datalattice.actions import (
    GetJob,
    GetNodeHealth,
    InvokeOperation,
    JobRecord,
    ListJobIds,
    MessageJob,
)
from datalattice.apps.grid import Venue
from datalattice.cells import Map
from datalattice.client import ControlClient, Folder, open_store_reader, read_key_pairs, write_key
from datalattice.client.backups import back_up
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair
from datalattice.cursors import RootLattice
from datalattice.errors import Unavailable, Unfenced
from datalattice.lattice import MergeContext, did_of, root_lattice
from datalattice.service import FolderService, folder
from datalattice.testing.folders import running_node
from datalattice.testing.polling import LIMIT_S, until
from datalattice.testing.venue_kit import LedgerAdapter

KEY = KeyPair(b"v" * 32)
PATIENCE_S = LIMIT_S


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> LedgerAdapter:
    """Effects of all venues of the test, in the place of their adapters."""
    one = LedgerAdapter()
    monkeypatch.setattr(folder, "configured_adapters", lambda *_: lambda *_: [one])
    return one


@pytest.fixture
def peer(tmp_path: Path) -> Path:
    write_key(tmp_path / "peer" / "identity.key", KeyPair(b"p" * 32))
    return tmp_path / "peer"


@contextmanager
def venue(path: Path, *peers: str | None, **settings: Any) -> Iterator[ControlClient]:
    """Run the node of a folder with its venue."""
    service = FolderService(path, read_key_pairs(Folder(path)).identity, NodeConfig(venue=True))
    with (
        running_node(
            path, service=service, venue=True, peers=tuple(filter(None, peers)), **settings
        ) as found,
        ControlClient(found.control) as client,
    ):
        yield client


def begun(client: ControlClient) -> JobRecord:
    """Begin a job that waits for its caller, before its effect."""
    call = InvokeOperation(operation="v/ops/ledger/retry", input=Map.of({"ask": "go?"}))
    job = client.call(call, request_id=None)
    until(lambda: client.call(GetJob(id=job.id)).status == "INPUT_REQUIRED")
    return job


def has_job(path: Path, job: JobRecord, status: str) -> bool:
    """Return whether the node of a folder has a job of the venue with a status."""
    with open_store_reader(Folder(path)) as store:
        root = RootLattice(root_lattice(), store.root(), MergeContext())
        record = Venue.at(root, did_of(KEY.public_key)).job(job.id)
    return record is not None and record.get("status") == status


def backup(path: Path, target: Path) -> Path:
    back_up(Folder(path), target, with_keys=True, progress=lambda *_: None)
    return target


def test_a_restored_folder_keeps_the_end_of_jobs_that_its_peer_holds(
    tmp_path: Path, ledger: LedgerAdapter, peer: Path
) -> None:
    home, saved = tmp_path / "home", tmp_path / "saved"
    write_key(home / "identity.key", KEY)
    with running_node(peer) as other:
        with venue(home, other.address) as client:
            job = begun(client)
            backup(home, saved)
            client.call(MessageJob(id=job.id, message="go"))
            until(lambda: has_job(peer, job, "COMPLETE"))
            ended = client.call(GetJob(id=job.id))
        shutil.rmtree(home)
        shutil.copytree(saved, home)
        assert has_job(home, job, "INPUT_REQUIRED")
        with venue(home, other.address) as client:
            client.call(InvokeOperation(operation="v/ops/ledger/pure", input=Map.of({})))
            assert client.call(GetJob(id=job.id)) == ended
            assert len(ledger.effects) == 1


def test_a_restored_folder_whose_peer_is_away_runs_nothing_until_it_answers(
    tmp_path: Path, ledger: LedgerAdapter, peer: Path, port: int
) -> None:
    home, saved = tmp_path / "home", tmp_path / "saved"
    write_key(home / "identity.key", KEY)
    call = InvokeOperation(operation="v/ops/ledger/pure", input=Map.of({}))
    with running_node(peer, port=port) as other, venue(home, other.address) as client:
        job = begun(client)
        backup(home, saved)
        client.call(MessageJob(id=job.id, message="go"))
        until(lambda: has_job(peer, job, "COMPLETE"))
    with venue(saved, other.address, fence_moved_wait_ms=100) as client:
        with pytest.raises(Unfenced, match="copied, restored or moved"):
            client.call(call)
        # Reads are answered from what is there.
        assert client.call(GetJob(id=job.id)).status == "INPUT_REQUIRED"
        assert client.call(ListJobIds()).jobs == (job.id,)
        with running_node(peer, port=port):
            until(lambda: client.call(GetNodeHealth()).fenced)
            until(lambda: client.call(GetJob(id=job.id)).status == "COMPLETE")
            until(lambda: takes(client, call))
    assert len(ledger.effects) == 1


def takes(client: ControlClient, call: InvokeOperation) -> bool:
    try:
        client.call(call)
    except Unavailable:
        return False
    return True


def test_a_clone_beside_the_original_runs_nothing(
    tmp_path: Path, ledger: LedgerAdapter, peer: Path
) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    write_key(home / "identity.key", KEY)
    call = InvokeOperation(operation="v/ops/ledger/pure", input=Map.of({}))
    with running_node(peer) as other, venue(home, other.address) as client:
        job = begun(client)
        until(lambda: has_job(peer, job, "INPUT_REQUIRED"))
        backup(home, copy)
        with venue(copy, other.address) as clone:
            with pytest.raises(Unavailable, match="another node runs with the identity"):
                clone.call(call)
            assert "identity-cloned" in str(clone.call(GetNodeHealth()).reasons)
        runs = dict(ledger.runs)
        until(lambda: not takes(client, call))
        with pytest.raises(Unavailable, match="another node runs with the identity"):
            client.call(call)
        assert ledger.effects == []
        assert runs == {job.id: 1}
