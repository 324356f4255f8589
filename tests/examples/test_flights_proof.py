"""The demo's proof: it holds for what is true, and says what is wrong of everything else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from datalattice.apps.queue import QUEUE_SECTION, Topics
from datalattice.cells import Index, Map, Signed, Value, decode_message, encode_message, value_hash
from datalattice.cli.render import Bars
from datalattice.client import read_key, read_key_pairs
from datalattice.cursors import RootLattice
from datalattice.errors import BadSignature, Corruption
from datalattice.lattice import root_lattice
from datalattice.store import CellStore
from flights.dataset import DataSet, plain_rows, read_flights
from flights.figures import Figure, plain
from flights.proof import Check, prove
from flights.sites import FIGURES_TOPIC, FLIGHTS_TOPIC, HQ, Cluster, Site

FLIGHTS = 400
RECORDS, LINES, FIGURES, ROOTS, SIGNATURES = range(5)


class Demo:
    """What a demo leaves in its folder, made without processes."""

    def __init__(self, folder: Path) -> None:
        self.data: DataSet = read_flights(limit=FLIGHTS)
        self.cluster = Cluster(folder)
        self.lines = {
            name: [flight.line for flight in flights] for name, flights in self.data.by_site.items()
        }
        self.figures: dict[str, Figure] = dict(plain(plain_rows(self.data.text)).figures)

    def root(self) -> Value:
        """Return what all four sign together."""
        joined: Value = None
        for site in self.cluster.nodes:
            keys = read_key_pairs(site.folder)
            cursor = RootLattice(root_lattice(), root_lattice().zero(), keys.context())
            topics = Topics.at(cursor, keys.owner.public_key)
            if site.name == HQ:
                figures = [figure.to_json() for figure in self.figures.values()]
                topics.partition(FIGURES_TOPIC, 0).offer_many(figures, keys=list(self.figures))
            else:
                topics.partition(FLIGHTS_TOPIC, 0).offer_many(self.lines[site.name])
            joined = root_lattice().merge(joined, cursor.get())
        return joined

    def check(self, root: Value, others: Mapping[str, Value] | None = None) -> list[Check]:
        """Put a root into the four stores, another one where named, and prove."""
        announced = {}
        for site in self.cluster.nodes:
            value = (others or {}).get(site.name, root)
            message = encode_message(value)  # each store gets cells of its own
            with CellStore.open(site.folder.store_path) as store:
                store.commit(decode_message(message))
            announced[site.name] = value_hash(value).hex()
        return self.prove(announced)

    def prove(self, announced: Mapping[str, str]) -> list[Check]:
        return prove(self.cluster, self.data, announced, Bars(None).add("checked"))


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    return Demo(tmp_path)


def failed(checks: list[Check]) -> list[int]:
    return [number for number, check in enumerate(checks) if not check.holds]


def section_of(root: Value) -> tuple[Index, Map]:
    assert isinstance(root, Index)
    section = root.get(QUEUE_SECTION)
    assert isinstance(section, Map)
    return root, section


def test_what_is_true_holds(demo: Demo) -> None:
    checks = demo.check(demo.root())
    assert failed(checks) == []
    assert checks[RECORDS].claim == "400 records, by airport"
    assert checks[LINES].detail == "400 lines compared"
    assert checks[SIGNATURES].detail.startswith("16 signatures valid")


def test_a_missing_record_is_found(demo: Demo) -> None:
    demo.lines["JFK"].pop()
    checks = demo.check(demo.root())
    assert failed(checks) == [RECORDS, LINES]
    assert "instead of" in checks[RECORDS].detail
    assert checks[LINES].detail.startswith("JFK: ")


def test_a_changed_record_is_found(demo: Demo) -> None:
    demo.lines["LGA"][3] = demo.lines["LGA"][3].replace("2013", "2014")
    checks = demo.check(demo.root())
    assert failed(checks) == [LINES]
    assert checks[LINES].detail.startswith("LGA record 3: ")


def test_records_out_of_time_order_are_found(demo: Demo) -> None:
    demo.lines["EWR"].reverse()
    assert failed(demo.check(demo.root())) == [LINES]


def test_a_year_that_is_not_the_whole_year_is_found(demo: Demo) -> None:
    data = demo.data
    demo.data = DataSet(data.columns, data.by_site, data.text, whole=True)
    assert failed(demo.check(demo.root())) == [RECORDS]


@pytest.mark.parametrize("key", ["carrier:UA", "hour:09"])
def test_a_wrong_figure_is_found(demo: Demo, key: str) -> None:
    demo.figures[key] += Figure(delay_minutes=1)
    checks = demo.check(demo.root())
    assert failed(checks) == [FIGURES]
    assert checks[FIGURES].detail.startswith(f"1 differ, first {key}: ")


def test_a_missing_and_an_invented_figure_are_found(demo: Demo) -> None:
    del demo.figures["carrier:UA"]
    demo.figures["carrier:ZZ"] = Figure(1, 1, 1, 1)
    checks = demo.check(demo.root())
    assert failed(checks) == [FIGURES]
    assert checks[FIGURES].detail.startswith("2 differ")


def test_a_forged_signature_is_found_in_whatever_node_it_is(demo: Demo) -> None:
    honest = demo.root()
    root, section = section_of(honest)
    owner = demo.cluster.sites["LGA"].public_key
    cell = section[owner]
    assert isinstance(cell, Signed)
    forged = root.put(QUEUE_SECTION, section.put(owner, Signed(owner, bytes(64), cell.value)))
    checks = demo.check(honest, {"EWR": forged})
    assert failed(checks) == [ROOTS, SIGNATURES]
    assert checks[SIGNATURES].detail == "EWR: the section of LGA is forged"
    with pytest.raises(BadSignature, match=f"is not what 0x{owner.hex()} signed"):
        demo.check(honest, {"hq": forged})  # where the queues are read, nothing of it is


def test_a_section_signed_by_another_is_found(demo: Demo) -> None:
    root, section = section_of(demo.root())
    owner = demo.cluster.sites["LGA"].public_key
    cell = section[owner]
    assert isinstance(cell, Signed)
    thief = read_key(demo.cluster.sites["JFK"].folder.key_path)
    stolen = section.put(owner, Signed.sign(thief, cell.value))
    with pytest.raises(BadSignature, match="may not sign for its owner"):
        demo.check(root.put(QUEUE_SECTION, stolen))


def test_a_stranger_and_an_absent_owner_are_found(demo: Demo, tmp_path: Path) -> None:
    root, section = section_of(demo.root())
    owner = demo.cluster.sites["LGA"].public_key
    stranger = Site("stranger", tmp_path / "stranger")
    signed = Signed.sign(read_key(stranger.folder.key_path), Map.of({}))
    checks = demo.check(root.put(QUEUE_SECTION, section.put(stranger.public_key, signed)))
    assert failed(checks) == [SIGNATURES]
    assert checks[SIGNATURES].detail.endswith("not a node")
    checks = demo.check(root.put(QUEUE_SECTION, section.remove(owner)))
    assert SIGNATURES in failed(checks)
    assert checks[SIGNATURES].detail == "EWR: no section of LGA"


def test_a_node_that_announces_another_root_is_found(demo: Demo) -> None:
    root = demo.root()
    demo.check(root)
    announced = {site.name: value_hash(root).hex() for site in demo.cluster.nodes}
    checks = demo.prove(announced | {"EWR": "00" * 32})
    assert failed(checks) == [ROOTS]
    assert "EWR 0000000000000000" in checks[ROOTS].detail
    del announced["EWR"]
    assert failed(demo.prove(announced)) == [ROOTS]


def test_a_changed_byte_on_a_disk_is_found(demo: Demo) -> None:
    demo.check(demo.root())
    announced = {site.name: value_hash(demo.root()).hex() for site in demo.cluster.nodes}
    segment = max((demo.cluster.sites["JFK"].folder.store_path / "segments").iterdir())
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    with pytest.raises(Corruption):
        demo.prove(announced)
