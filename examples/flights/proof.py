"""Proof: the demo's claims, checked against the plain file and in every node's own store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from datalattice.apps.queue import QUEUE_SECTION, Queue
from datalattice.cells import Index, Map, Signed, Value, branch_hashes
from datalattice.cli.render import ProgressBar
from datalattice.client import open_store_reader
from datalattice.store import CellStore
from flights.dataset import FLIGHTS, SITES, DataSet, plain_rows
from flights.figures import Figure, Figures, plain
from flights.sites import FIGURES_TOPIC, FLIGHTS_TOPIC, Cluster, Site, topics_of


@dataclass(frozen=True, slots=True)
class Check:
    """One claim and whether it holds."""

    claim: str
    holds: bool
    detail: str


def read_figures(root: Value, owner: bytes) -> dict[str, Figure]:
    """Return the latest figure of every key in the topic of an owner."""
    found: dict[str, Figure] = {}
    if root is None:
        return found
    for entry in topics_of(root, owner).partition(FIGURES_TOPIC, 0).entries():
        key, value = entry.key, entry.value
        if isinstance(key, str) and isinstance(value, str):
            # In the order of the queue, so the last figure of a key stays.
            found[key] = Figure.from_json(value)
    return found


def prove(
    cluster: Cluster, data: DataSet, hashes: Mapping[str, str], step: ProgressBar
) -> list[Check]:
    """Return every check; `step` advances once for each node and once for the figures.

    hashes: the root hash that each node announces.
    Raises: StoreError: a store cannot be read, or a cell in it does not fit its hash.
            BadSignature: a queue that is read at hq is forged.
    """
    expected = plain(plain_rows(data.text))
    counts: dict[str, int] = {}
    wrong: list[str] = []
    with open_store_reader(cluster.hq.folder) as store:
        root = store.root()
        for site in cluster.sites.values():
            queue = topics_of(root, site.public_key).partition(FLIGHTS_TOPIC, 0)
            counts[site.name] = queue.size()
            wrong += _differences(site, queue, data)
        figures = read_figures(root, cluster.hq.public_key)
    lines = f"{sum(counts.values()):,} lines compared"
    step.advance()
    return [
        _records(counts, expected.records, whole=data.whole),
        Check(
            "every record at hq is a line of the file, in time order",
            not wrong,
            wrong[0] if wrong else lines,
        ),
        _figures(figures, expected.figures),
        _roots(cluster.nodes, hashes),
        _signatures(cluster.nodes, step),
    ]


def _records(counts: Mapping[str, int], expected: Mapping[str, int], *, whole: bool) -> Check:
    wanted = {site: expected.get(site, 0) for site in SITES}
    holds = dict(counts) == wanted and (not whole or wanted == FLIGHTS)
    text = ", ".join(f"{site} {count:,}" for site, count in counts.items())
    if not holds:
        text += " instead of " + ", ".join(f"{site} {count:,}" for site, count in wanted.items())
    return Check(f"{sum(wanted.values()):,} records, by airport", holds, text)


def _differences(site: Site, queue: Queue, data: DataSet) -> list[str]:
    """Return the first difference between a site's queue and the file; empty without one."""
    flights = data.by_site[site.name]
    if queue.size() != len(flights):
        return [f"{site.name}: {queue.size():,} records for {len(flights):,} lines"]
    for number, (value, flight) in enumerate(zip(queue, flights, strict=True)):
        if value != flight.line:
            return [f"{site.name} record {number}: {value!r} is not {flight.line!r}"]
    return []


def _figures(figures: Figures, expected: Figures) -> Check:
    wrong = [
        key
        for key in sorted({*expected, *figures})
        if key not in expected or figures.get(key) != expected[key]
    ]
    detail = f"{len(expected)} figures compared"
    if wrong:
        key = wrong[0]
        detail = f"{len(wrong)} differ, first {key}: {figures.get(key)} is not {expected.get(key)}"
    return Check("every figure equals the plain CSV computation", not wrong, detail)


def _roots(nodes: Sequence[Site], hashes: Mapping[str, str]) -> Check:
    """Compare the root hashes that the nodes announce with those on their disks."""
    # A node announces what it has in memory; that it is durable is seen only on the disk.
    found = dict(hashes)
    for site in nodes:
        with open_store_reader(site.folder) as store:
            on_disk = store.root_hash()
        found[f"{site.name} on disk"] = "nothing" if on_disk is None else on_disk.hex()
    holds = len(set(found.values())) == 1 and set(hashes) == {site.name for site in nodes}
    detail = ", ".join(f"{name} {hash[:16]}" for name, hash in found.items())
    if holds:
        detail = next(iter(hashes.values()))
    return Check(f"{len(nodes)} nodes have one root hash, announced and on disk", holds, detail)


def _signatures(nodes: Sequence[Site], step: ProgressBar) -> Check:
    """Check, in each node's own store, every owner's signature and that no cell is missing."""
    owners = {site.public_key: site.name for site in nodes}
    count = 0
    bad: list[str] = []
    for site in nodes:
        with open_store_reader(site.folder) as store:
            root = store.root()
            section = root.get(QUEUE_SECTION) if isinstance(root, Index) else None
            signed = dict(section.entries()) if isinstance(section, Map) else {}
            for owner, cell in signed.items():
                # A valid signature of another owner under this key is a forgery as well.
                valid = isinstance(cell, Signed) and cell.public_key == owner and cell.verify()
                count += valid
                if not valid:
                    bad.append(f"{site.name}: the section of {_named(owners, owner)} is forged")
            strange = [owner for owner in signed if owner not in owners]
            lacking = [name for owner, name in owners.items() if owner not in signed]
            if strange:
                bad.append(f"{site.name}: a section of {_named(owners, strange[0])}, not a node")
            if lacking:
                bad.append(f"{site.name}: no section of {', '.join(lacking)}")
            gaps = _missing(store)
            if gaps:
                bad.append(f"{site.name}: {gaps} cells are missing")
        step.advance()
    detail = bad[0] if bad else f"{count} signatures valid, every cell matches its hash"
    return Check("every signature is the owner's, in every node", not bad and count > 0, detail)


def _named(owners: Mapping[bytes, str], owner: Value) -> str:
    if isinstance(owner, bytes):
        return owners.get(owner, owner.hex()[:16])
    return repr(owner)


def _missing(store: CellStore) -> int:
    """Return how many cells of the root are not in the store; each is compared with its hash."""
    root = store.root_hash()
    level = [] if root is None else [root]
    seen = set(level)
    gaps = 0
    while level:
        below: dict[bytes, None] = {}
        # `get_encodings` compares each cell with its hash.
        for encoding in store.get_encodings(level):
            if encoding is None:
                gaps += 1
            else:
                below.update(dict.fromkeys(branch_hashes(encoding)))
        # Level by level, so that neighbouring cells are read together.
        level = [hash for hash in below if hash not in seen]
        seen.update(level)
    return gaps
