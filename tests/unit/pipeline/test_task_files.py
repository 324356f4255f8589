"""Parcels: a file is read as it was written, or refused; memory is bounded whatever it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from datalattice.errors import Corruption, LimitExceeded
from datalattice.limits import HASH_BYTES
from datalattice.pipeline.exactly_once import task_files
from datalattice.pipeline.exactly_once.task_files import ParcelReader, ParcelWriter, parcel_items


def written(path: Path, *rows: list[bytes]) -> bytes:
    with ParcelWriter(path) as writer:
        for row in rows:
            writer.put_items(7, b"head", row)
        return writer.digest


def read(path: Path, digest: bytes) -> list[list[bytes]]:
    with ParcelReader(path) as reader:
        return [parcel_items(parcel) for _, parcel in reader.all(digest)]


def test_any_byte_that_changed_or_went_is_noticed(tmp_path: Path) -> None:
    rows = [[b"one", b""], [], [b"two"]]
    digest = written(tmp_path / "file", *rows)
    assert read(tmp_path / "file", digest) == rows
    data = (tmp_path / "file").read_bytes()
    changed = [
        *(data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :] for at in range(len(data))),
        *(data[:at] for at in range(len(data))),
        data + b"\0",
        data + data,
    ]
    for other in changed:
        (tmp_path / "file").write_bytes(other)
        with pytest.raises(Corruption, match="differs from what its task wrote"):
            read(tmp_path / "file", digest)


def test_a_parcel_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_files, "PARCEL_BYTES_MAX", 100)
    for size in (91, 92):  # beside a head of 4 bytes and one end
        digest = written(tmp_path / str(size), [bytes(size)])
        assert read(tmp_path / str(size), digest) == [[bytes(size)]]
    with pytest.raises(LimitExceeded, match="at most 100 bytes, got 101"):
        written(tmp_path / "93", [bytes(93)])


def test_a_damaged_size_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = written(tmp_path / "file", [bytes(500)])
    monkeypatch.setattr(task_files, "PARCEL_BYTES_MAX", 100)
    monkeypatch.setattr(ParcelReader, "_bytes", lambda _self, count, _at: ask(count))

    def ask(count: int) -> bytes:
        assert count <= 100 + HASH_BYTES
        return (tmp_path / "file").read_bytes()[:count]

    with pytest.raises(Corruption):
        read(tmp_path / "file", digest)
