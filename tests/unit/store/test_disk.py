"""Files of the operating system whose long writes go on behind the caller."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datalattice.store import DiskFile, RealDisk, disk
from datalattice.testing.polling import LIMIT_S


class System:
    """The calls of the operating system: `gate` holds writes back, `failure` is raised by them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failure: OSError | None = None
        self.taken: int | None = None
        for name in ("pwrite", "fdatasync", "close"):
            patch.setattr(os, name, self._noted(name, getattr(os, name)))
        patch.setattr(disk, "_pwritev", self._noted("pwritev", os.pwritev))

    def _noted(self, name: str, call: Any) -> Any:
        def noted(*arguments: Any) -> Any:
            if name == "pwritev":
                assert self.gate.wait(LIMIT_S)
                if self.failure is not None:
                    raise self.failure
                if self.taken is not None:
                    file, parts, offset = arguments
                    return os.pwrite(file, b"".join(parts)[: self.taken], offset)
            self.calls.append(name)
            return call(*arguments)

        return noted


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    return System(monkeypatch)


@pytest.fixture
def file(tmp_path: Path, system: System) -> Iterator[DiskFile]:
    made = RealDisk().open(str(tmp_path / "file"), create=True)
    yield made
    system.gate.set()
    made.close()


def test_a_write_goes_on_behind_the_caller_and_every_other_call_waits(
    file: DiskFile, system: System
) -> None:
    parts = [bytes([number % 251]) * (number % 5) for number in range(3_000)]
    data = b"".join(parts)
    system.gate.clear()
    file.begin_write(1, parts)
    file.begin_write(1 + len(data), [b"end"])
    assert system.calls == []
    threading.Timer(0.01, system.gate.set).start()
    assert file.size() == 1 + len(data) + 3
    assert file.read(0, 10_000) == b"\0" + data + b"end"
    file.begin_write(0, [b"abc", b"def"])
    file.truncate(5)
    assert file.read(0, 9) == b"abcde", "cut after the write"
    file.begin_write(0, [b"1"])
    file.write(0, b"2")
    assert file.read(0, 2) == b"2b", "written after what was begun"


def test_a_sync_covers_what_was_begun_before(file: DiskFile, system: System) -> None:
    system.gate.clear()
    file.begin_write(0, [b"a"])
    threading.Timer(0.01, system.gate.set).start()
    file.sync()
    assert system.calls == ["pwritev", "fdatasync"]


@pytest.mark.parametrize("taken", [0, 1, 5, 6, 9])
def test_the_rest_of_a_write_that_took_fewer_bytes_follows(
    file: DiskFile, system: System, taken: int
) -> None:
    system.taken = taken
    file.begin_write(2, [b"ab", b"cd", b"ef", b"ghi"])
    assert file.read(2, 99) == b"abcdefghi"


def test_what_fails_behind_the_caller_is_raised_by_every_later_call(
    file: DiskFile, system: System
) -> None:
    system.failure = OSError(errno.ENOSPC, "full")
    file.begin_write(0, [b"a"])
    with pytest.raises(OSError, match="full"):
        file.size()
    system.failure = None
    file.begin_write(1, [b"b"])
    for call in (file.sync, file.sync, file.size, lambda: file.write(0, b"c")):
        with pytest.raises(OSError, match="full"):
            call()
    assert system.calls == [], "nothing follows a write that failed"


def test_a_file_is_closed_after_what_was_begun(file: DiskFile, system: System) -> None:
    system.gate.clear()
    file.begin_write(0, [b"a"])
    threading.Timer(0.01, system.gate.set).start()
    file.close()
    assert system.calls == ["pwritev", "close"]


def test_without_a_further_thread_the_caller_writes(
    file: DiskFile, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    system.gate.clear()
    file.begin_write(0, [b"ab"])

    def refused(_thread: threading.Thread) -> None:
        system.gate.set()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    file.begin_write(1, [b"c"])
    assert system.calls == ["pwritev", "pwritev"]
    assert file.read(0, 9) == b"ac", "after what was begun before"
