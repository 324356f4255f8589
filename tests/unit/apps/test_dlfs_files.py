"""File objects of a drive behave as those of the io module do."""

from __future__ import annotations

import io

import pytest

from datalattice.apps.dlfs import Drive
from datalattice.errors import AlreadyExists, NoSuchPath, UsageError


@pytest.fixture
def drive() -> Drive:
    made = Drive.create()
    made.write("/f", b"first\nsecond\n")
    return made


def test_reading(drive: Drive) -> None:
    with drive.open("/f") as file:
        assert file.readable()
        assert file.seekable()
        assert not file.writable()
        assert file.readline() == b"first\n"
        assert file.tell() == 6
        assert file.seek(-3, io.SEEK_END) == 10
        assert file.read() == b"nd\n"
        assert file.seek(100) == 100
        assert file.read() == b""
        assert file.seek(0) == 0
        assert list(file) == [b"first\n", b"second\n"]
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
    with pytest.raises(NoSuchPath):
        drive.open("/no")


def test_a_reader_keeps_what_it_opened(drive: Drive) -> None:
    with drive.open("/f") as file:
        drive.write("/f", b"other")
        assert file.read() == b"first\nsecond\n"


def test_writing(drive: Drive) -> None:
    with drive.open("/f", "wb") as file:
        assert drive.read("/f") == b""
        file.write(b"abc")
        file.flush()
        assert drive.read("/f") == b"abc"
        file.seek(5)
        file.write(memoryview(b"def"))
    assert drive.read("/f") == b"abc\0\0def"
    with drive.open("/f", "ab") as file:
        assert file.tell() == 8
        file.seek(0)
        file.write(b"!")
    assert drive.read("/f") == b"abc\0\0def!"
    with drive.open("/new", "ab") as file:
        pass
    with drive.open("/newer", "xb") as file:
        file.write(b"x")
    assert drive.read("/new") == b""
    with pytest.raises(AlreadyExists):
        drive.open("/new", "xb")


@pytest.mark.parametrize("mode", ["r+b", "rb+", "+rb"])
def test_both_directions(drive: Drive, mode: str) -> None:
    with drive.open("/f", mode) as file:
        assert file.read(5) == b"first"
        file.write(b"\r")
        file.seek(0)
        assert file.read() == b"first\rsecond\n"
        file.seek(3)
        file.truncate()
        assert file.truncate(4) == 4
    assert drive.read("/f") == b"fir\0"
    with drive.open("/f", "w+b") as file:
        file.write(b"again")
        file.seek(0)
        assert file.read() == b"again"


def test_unbuffered(drive: Drive) -> None:
    with drive.open("/f", "r+b", 0) as file:
        assert file.write(b"F") == 1
        assert drive.read("/f", 0, 5) == b"First"
        buffer = bytearray(4)
        assert file.readinto(buffer) == 4  # type: ignore[attr-defined]
        assert buffer == b"irst"
        assert file.seek(2, io.SEEK_CUR) == 7
        assert file.name == "/f"
    with pytest.raises(ValueError, match="closed"):
        file.seek(0)


def test_many_small_writes_are_few_updates(drive: Drive) -> None:
    seen = []
    original = drive.cursor.get
    with drive.open("/big", "wb") as file:
        for _ in range(3000):
            file.write(b"x" * 1000)
            seen.append(original())
    assert drive.stat("/big").size == 3_000_000
    assert len({id(value) for value in seen}) <= 5


@pytest.mark.parametrize("mode", ["", "t", "rw", "rtt", "rwb", "rbt", "b", "wbx", "r++"])
def test_other_modes_are_refused(drive: Drive, mode: str) -> None:
    with pytest.raises(UsageError, match="is not one of rb, wb, ab, xb"):
        drive.open("/f", mode)
    assert drive.read("/f") == b"first\nsecond\n"


def test_text_is_read_and_written(drive: Drive) -> None:
    with drive.open("/t", "w") as file:
        file.write("Ærø\nOslo\r\n")
    assert drive.read("/t") == "Ærø\nOslo\r\n".encode()  # line ends as given, on any machine
    with drive.open("/t", "r") as file:
        assert list(file) == ["Ærø\n", "Oslo\n"]
    with drive.open("/t", "rt", newline="") as file:
        assert list(file) == ["Ærø\n", "Oslo\r\n"]
    with drive.open("/t", "a+", encoding="latin-1") as file:
        file.write("ø")
    assert drive.read("/t").endswith(b"\r\n\xf8")
    with drive.open("/t", "r", errors="replace") as file:
        assert file.read().endswith("\N{REPLACEMENT CHARACTER}")
    with pytest.raises(AlreadyExists):
        drive.open("/t", "x")
    with drive.open("/f", "t+r") as file:
        assert file.readline() == "first\n"


def test_bad_arguments_are_refused(drive: Drive) -> None:
    with pytest.raises(UsageError, match="buffering"):
        drive.open("/f", "rb", 1)
    with pytest.raises(UsageError, match="buffering"):
        drive.open("/f", "r", 0)
    with pytest.raises(UsageError, match="need a text mode"):
        drive.open("/f", "rb", encoding="utf-8")
    with drive.open("/f", "rb", 0) as file:
        with pytest.raises(UsageError, match="position is negative"):
            file.seek(-1)
        with pytest.raises(UsageError, match="whence"):
            file.seek(0, 9)
        with pytest.raises(io.UnsupportedOperation, match="not opened for writing"):
            file.truncate(0)
