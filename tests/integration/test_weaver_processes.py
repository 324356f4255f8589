"""Weaver stores of one folder in several processes: killed, at once, damaged, lost."""

from __future__ import annotations

import contextlib
import importlib
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import datalattice
from datalattice.testing.processes import killing

pytestmark = [
    pytest.mark.once,
    pytest.mark.processes,
    pytest.mark.timeout(180),
]  # they start many processes

WRITER = """
import sys, datalattice
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with datalattice.open(path) as node:
    log, notes = node.store("log", kind="log"), node.store("notes", kind="kv")
    for number in range(count):
        log.append(f"{name} {number}")
        with notes.batch():
            notes[name] = str(number)
            notes[f"{name} {number % 10}"] = str(number)
        print(number, flush=True)
"""


def writer(
    folder: Path, name: str, count: int
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    return killing(
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder), name, str(count)],
            stdout=subprocess.PIPE,
            text=True,
        )
    )


def check(folder: Path, last: dict[str, int]) -> None:
    """Check that all that was acknowledged is there, and that log and state fit."""
    with datalattice.open(folder) as node:
        log, notes = node.store("log"), node.store("notes")
        entries = list(log)
        for name, number in last.items():
            own = [int(entry.split()[1]) for entry in entries if entry.startswith(f"{name} ")]
            assert own == list(range(len(own)))
            assert len(own) > number
            assert number <= int(notes[name]) <= number + 1
            assert notes[name] == notes[f"{name} {int(notes[name]) % 10}"]  # a batch is one
        for handle in (log, notes):
            status = handle.status()
            assert (status.applied, status.stall, status.forks, status.floating) == (
                status.intentions,
                None,
                0,
                0,
            )
            with handle.store.read() as view:
                assert view.fsck(3) == []


def test_writers_that_are_killed_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    dice = random.Random(1)
    last: dict[str, int] = {}
    for turn in range(4):
        name = f"writer{turn}"
        with writer(tmp_path, name, 10_000) as process:
            assert process.stdout is not None
            for _ in range(dice.randrange(1, 40)):
                last[name] = int(process.stdout.readline())
            process.kill()
            rest = process.stdout.read().split()
        if rest:
            last[name] = int(rest[-1])
        check(tmp_path, last)


def test_two_processes_write_to_one_store_at_once(tmp_path: Path) -> None:
    count = 60
    with writer(tmp_path, "one", count) as one, writer(tmp_path, "two", count) as two:
        one.communicate(timeout=50)
        two.communicate(timeout=50)
    assert (one.returncode, two.returncode) == (0, 0)
    check(tmp_path, {"one": count - 1, "two": count - 1})
    with datalattice.open(tmp_path) as node:
        assert sorted(node.stores()) == ["log", "notes"]  # made once, by the faster one
        assert len(node.store("log")) == 2 * count


READER = """
import sys, datalattice
from datalattice.errors import DataLatticeError
try:
    with datalattice.open(sys.argv[1]) as node:
        notes = node.store("notes")
        with notes.store.read() as view:
            print("faults" if view.fsck(3) else "sound", len(notes))
except DataLatticeError as error:
    print("error", error.code)
"""


@pytest.mark.parametrize("damage", ["beginning", "contents", "journal"])
def test_corruption_detected_on_reopen(tmp_path: Path, damage: str) -> None:
    """Opening fails, or the check says what is wrong: damage never passes as other data."""
    with datalattice.open(tmp_path) as node:
        notes = node.store("notes", kind="kv")
        for number in range(50):
            notes[f"key {number}"] = "value " * 2_500  # more than stays in the journal
    file = tmp_path / "weaver" / ("journal" if damage == "journal" else "data.mdb")
    data = bytearray(file.read_bytes())
    if damage == "beginning":
        data[:8_192] = random.Random(2).randbytes(8_192)  # both headers
    else:
        data = data.replace(b"value value", b"value vakue")  # in the signed intentions, too
    file.write_bytes(data)
    ran = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert ran.stdout.split()[0] == ("faults" if damage == "contents" else "error"), ran.stdout


def test_fresh_start_after_data_loss(tmp_path: Path) -> None:
    with datalattice.open(tmp_path) as node:
        node.store("notes", kind="kv")["k"] = "v"
    shutil.rmtree(tmp_path / "weaver")
    with datalattice.open(tmp_path) as node:
        assert node.stores() == []
        notes = node.store("notes", kind="kv")
        assert dict(notes) == {}
        assert notes.status().authors == 1


MACHINE = '''
from collections.abc import Callable
from typing import Annotated
from datalattice.protobuf import Field, Message
from datalattice.weaver import Machine, Proposal, Written, command, stream


class Bid(Message, name="test.auction.Bid"):
    amount: Annotated[int, Field(1, "uint32")] = 0


class Auction(Machine):
    kind = "test:auction"

    def apply(self, op, state, dag):
        state.put(op.hash, op.payload)
        return (Bid.decode(op.payload),)

    @command
    def bid(self, request: Bid, state, dag) -> Proposal[Written]:
        """Bid."""
        return Proposal(request.encode())

    @stream
    def bids(self, params: Bid) -> Callable[[Message], Bid | None]:
        """Bids above an amount."""
        return lambda event: event if event.amount > params.amount else None
'''


def test_events_of_a_machine_reach_subscribers_in_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "auction_machine.py").write_text(MACHINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    auction = importlib.import_module("auction_machine")
    program = (
        "import sys, datalattice; sys.path.insert(0, sys.argv[1]); "
        "from auction_machine import Auction\n"
        "with datalattice.open(sys.argv[1] + '/home') as node:\n"
        "    store = node.store('lot', kind=Auction)\n"
        "    for amount in range(100): store.bid(amount=amount)\n"
    )
    with datalattice.open(tmp_path / "home") as node:
        lot = node.store("lot", kind=auction.Auction)
        with lot.subscribe("bids", amount=10, timeout=40.0) as bids:
            command = [sys.executable, "-c", program, str(tmp_path)]
            with killing(subprocess.Popen(command, text=True)) as process:
                found = [next(bids).amount for _ in range(89)]
                lot.bid(amount=7_000)
                assert next(bids).amount == 7_000
                assert process.wait() == 0
            assert bids.skipped == 0
    assert found == list(range(11, 100))
