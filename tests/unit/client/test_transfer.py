"""Files between a local folder and a drive: gaps stay gaps, and nothing is left half-way."""

from __future__ import annotations

import errno
import io
import random
from contextlib import closing
from pathlib import Path

import pytest

from datalattice.apps.dlfs import Drive
from datalattice.cells import Blob, blob_from, blob_overwrite, blob_ranges
from datalattice.client import Folder, write_key
from datalattice.client.drives.drives import DriveOf, Drives
from datalattice.client.drives.transfer import pieces_of, write_local
from datalattice.crypto import KeyPair

MIB = 1 << 20


@pytest.mark.parametrize(
    "places",
    [
        [],
        [(0, 1)],
        [(0, 4_096), (3 * MIB - 1, 2)],
        [(5 * MIB, 1)],
        [(16 * MIB, 1)],
        [(MIB, 2 * MIB), (20 * MIB + 7, 3 * MIB)],
        [(33 * MIB - 4_096, 4_096), (9, 1)],
    ],
)
def test_only_zeros_are_left_out(places: list[tuple[int, int]]) -> None:
    dice = random.Random(1)
    content = b""
    for position, size in places:
        content = blob_overwrite(content, position, dice.randbytes(size))  # type: ignore[assignment]
    ranges = list(blob_ranges(content))
    assert all(0 < stop - start <= MIB for start, stop in ranges)
    found = bytearray(len(content))
    for start, stop in ranges:
        assert not any(found[start:stop])
        found[start:stop] = bytes(content)[start:stop]
    assert bytes(found) == bytes(content)
    assert len(ranges) <= sum(size // MIB + 2 for _, size in places)


def test_a_huge_gap_is_a_gap_in_the_local_file(tmp_path: Path) -> None:
    drive = Drive.create()
    drive.write_at("/f", 5, b"begin")
    drive.write_at("/f", 1 << 36, b"end")
    told: list[int] = []
    assert write_local(drive.content("/f"), tmp_path / "f", 1_000, told.append)
    facts = (tmp_path / "f").stat()
    assert facts.st_size == sum(told) == (1 << 36) + 3
    assert facts.st_blocks * 512 < 8 * MIB
    with (tmp_path / "f").open("rb") as file:
        assert file.read(12) == b"\0\0\0\0\0begin\0\0"
        file.seek(-6, 2)
        assert file.read() == b"\0\0\0end"
    assert len(list(blob_ranges(drive.content("/f")))) < 4


def test_a_file_too_long_for_the_disk_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, mode: str) -> object:
        file = open(handle, mode)  # noqa: SIM115 - a descriptor
        file.close()
        return SmallFile(tmp_path / "spare")

    monkeypatch.setattr("datalattice.client.drives.transfer.os.fdopen", refuse)
    with pytest.raises(OSError, match=r"large: '.*f'$"):
        write_local(b"data", tmp_path / "f", 0)
    assert [one.name for one in tmp_path.iterdir()] == ["spare"]


class SmallFile(io.FileIO):
    """A file on a disk that takes no long ones."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "wb")

    def truncate(self, size: int | None = None) -> int:
        raise OSError(errno.EFBIG, "File too large")


def test_contents_are_fetched_byte_by_byte(tmp_path: Path) -> None:
    for size in (0, 1, 4_096, 4_097, MIB, MIB + 1, 17 * MIB + 5):
        data = random.Random(size).randbytes(size)
        content = blob_from([data])
        assert isinstance(content, (bytes, Blob))
        write_local(content, tmp_path / "f", 0)
        assert (tmp_path / "f").read_bytes() == data == b"".join(pieces_of(content))


def test_contents_of_many_files_are_not_kept_in_memory(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    write_key(folder.key_path, KeyPair(bytes(32)))
    dice = random.Random(1)
    data = [dice.randbytes(500_000) for _ in range(20)]
    with closing(Drives(folder)) as drives:
        with drives.writing() as writer:
            contents = [writer.content(one) for one in data]
            held = [one for one in contents if isinstance(one, Blob) and one._kids is not None]
            assert len(held) < 10
            assert [bytes(one) for one in contents] == data

            def change(drive_of: DriveOf) -> None:
                for number, content in enumerate(contents):
                    drive_of("d").write(f"/{number}", content)

            writer.edit(change)
        assert [drives.drive("d").read(f"/{number}") for number in range(20)] == data
