"""Secrets: what an operation names as secret is in no file of the folder and in no log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from datalattice.actions import GetJob, InvokeOperation, MessageJob
from datalattice.cells import Map
from datalattice.client import write_key
from datalattice.client.settings import NodeConfig
from datalattice.crypto import KeyPair, SeededEntropy
from datalattice.service import FolderService, folder
from datalattice.service.venue import GridJobs, JobBatch, PrivatePart, json_cell
from datalattice.service.venue.sealing import PartSealer
from datalattice.testing.venue_kit import LedgerAdapter, venue_root

KEY = KeyPair(bytes(range(32)))
DID, ID = "did:key:z6MkVenue", bytes(16)
PLAIN = "a plain text that is found"
PIN = "a secret that is nowhere"
PART = PrivatePart(json_cell({"pin": PIN}, "input"), is_secret=True).cell()


def sealer(key: KeyPair = KEY, did: str = DID) -> PartSealer:
    return PartSealer(key, did, SeededEntropy(1))


def test_a_sealed_part_opens_for_its_venue_and_its_entry_alone() -> None:
    sealed = sealer().sealed(ID, PART)
    text = sealed["sealed"]
    assert isinstance(text, bytes)
    assert PIN.encode() not in text
    assert sealer().opened(ID, sealed) == PART
    assert sealer().opened(b"x" * 16, sealed) is None
    assert sealer(did="did:key:z6MkOther").opened(ID, sealed) is None
    assert sealer(KeyPair(bytes(32))).opened(ID, sealed) is None
    for other in (text[:-1] + bytes([text[-1] ^ 1]), b"", b"short"):
        assert sealer().opened(ID, Map.of({"sealed": other})) is None


def test_the_same_part_is_never_sealed_alike() -> None:
    one = sealer()
    assert one.sealed(ID, PART) != one.sealed(ID, PART)


def test_a_part_without_secrets_stays_as_it_is() -> None:
    part = PrivatePart(json_cell({"pin": PIN}, "input")).cell()
    assert sealer().sealed(ID, part) is part
    assert sealer().opened(ID, part) is part


def test_a_part_that_does_not_open_is_none() -> None:
    root, did = venue_root(KEY), "did:web:venue.example"
    GridJobs(root, KEY, did).write(JobBatch(private={ID: PART}, schedule={ID: PART}))
    parts, schedule = GridJobs(root, KEY, did).private()
    assert (list(parts), list(schedule)) == ([ID], [ID])
    # The slot is the node's; the venue has another key now.
    assert GridJobs(root, KeyPair(bytes(32)), did).private() == ({}, {})


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FolderService]:
    monkeypatch.setattr(folder, "configured_adapters", lambda *_: lambda *_: [LedgerAdapter()])
    write_key(tmp_path / "identity.key", KEY)
    one = FolderService(tmp_path, KEY, NodeConfig(venue=True))
    yield one
    one.close()


def test_a_secret_is_in_no_file_and_no_log(
    service: FolderService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    # `plain` is there in both: what hides it is not the form of the files.
    input = Map.of({"pin": PIN, "ask": "go?"})
    call = InvokeOperation(operation="v/ops/ledger/secret", input=input)
    job = service.call(call, request_id="once")
    shown = InvokeOperation(operation="v/ops/ledger/secret", input=Map.of({"other": PLAIN}))
    service.call(shown)
    while service.call(GetJob(id=job.id, wait_ms=20)).status != "INPUT_REQUIRED":
        pass

    def files_with(text: str) -> list[str]:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return [path.name for path in files if text.encode() in path.read_bytes()]

    assert files_with(PLAIN)
    assert files_with(PIN) == []
    service.call(MessageJob(id=job.id, message=PIN))
    done = service.call(GetJob(id=job.id, wait_ms=60_000))
    assert done.status == "COMPLETE"
    assert done.input == Map.of({"pin": "HIDDEN", "ask": "go?"})
    assert PIN not in caplog.text
