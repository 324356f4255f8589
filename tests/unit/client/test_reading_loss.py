"""A reader tells of acknowledged commits that it cannot read."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from datalattice.client import Folder, open_store_reader
from datalattice.errors import Corruption
from datalattice.store import CellStore


@pytest.mark.parametrize("is_cut", [True, False])
def test_what_is_read_of_a_damaged_log_is_said_to_lack_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_cut: bool
) -> None:
    folder = Folder(tmp_path / "first")
    for number in range(3):
        with CellStore.open(folder.store_path) as store:
            store.commit(f"value {number} " * 30)
    with caplog.at_level(logging.WARNING), open_store_reader(folder) as reader:
        assert reader.loss is None
        assert reader.load(reader.root_hash() or b"") == "value 2 " * 30
    assert caplog.messages == []
    folder = Folder(Path(shutil.copytree(folder.path, tmp_path / "copy")))
    (segment,) = (folder.store_path / "segments").iterdir()
    data = segment.read_bytes()
    last = data.rindex(b"DLPK")
    damaged = data[:last] if is_cut else data[: last + 150] + b"?" + data[last + 151 :]
    segment.write_bytes(damaged)
    with pytest.raises(Corruption, match="cannot be read any more"):
        open_store_reader(folder)  # it has the index made anew
    with open_store_reader(folder) as reader:
        assert reader.load(reader.root_hash() or b"") == "value 1 " * 30
        loss = reader.loss
        assert loss is not None
        assert (loss.first, loss.last) == (3, 3)
    (message,) = caplog.messages
    assert "pack 3 was acknowledged and cannot be read any more" in message
    assert message.endswith("readers here lack it")
