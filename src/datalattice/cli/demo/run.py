"""Run: the demo from beginning to end. Every step looks first at what an earlier run has done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from datalattice.cells import Map, Value, to_python
from datalattice.cli.access import open_reader
from datalattice.cli.demo.figures import fold, total_of
from datalattice.cli.demo.flights import CARRIER, DataSet, read_flights
from datalattice.cli.demo.place import Place
from datalattice.cli.demo.plot import save_plot
from datalattice.cli.demo.proof import Check, prove, read_figures
from datalattice.cli.demo.report import Report
from datalattice.cli.demo.sites import (
    COVERS,
    FIGURES_TOPIC,
    FLIGHTS_TOPIC,
    Cluster,
    Site,
    count_of,
    ingest,
)
from datalattice.cli.demo.stream import Groups, compute, forget, start_spark
from datalattice.cli.demo.usage import peak_memory_mib
from datalattice.cli.render import Bars, Step, print_lines, progress_bars
from datalattice.errors import DataLatticeError, Unavailable
from datalattice.node import NodeWriter
from datalattice.store import CellStore

CONVERGE_TIMEOUT_S: Final = 180.0
STEP_WIDTH: Final = 60


@dataclass(slots=True)
class _Journal:
    """Times the steps, and says what was done as it happens."""

    quiet: bool
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, words: str) -> Iterator[Bars]:
        began = time.monotonic()
        with progress_bars(quiet=self.quiet) as bars:
            yield bars
        spent = self.seconds[name] = time.monotonic() - began
        if not self.quiet:
            print_lines([f"{words:<{STEP_WIDTH}} {spent:6.1f} s"])


def run_demo(
    path: Path, *, fresh: bool, limit: int | None, cores: int | None, quiet: bool
) -> Report:
    """Run the demo in a folder and return what it did.

    Raises: UsageError: the folder, the data package, Spark or Java is not what is needed.
            DataLatticeError: a node or Spark failed.
    """
    began = time.monotonic()
    place, journal = Place(path), _Journal(quiet)
    with place.locked():
        place.prepare(fresh=fresh, limit=limit)
        with journal.step("read", "read the data set"):
            data = read_flights(limit=limit)
        with Cluster(place.path) as cluster:
            ingested = _ingest(cluster, data, journal)
            _replicate(cluster, data, journal)
            memory: dict[str, int] = {}
            spark_ran = _compute(cluster, data, place, cores, journal, memory)
            with journal.step("converge", "the figures reach the three sites"):
                hashes = cluster.wait_converged(CONVERGE_TIMEOUT_S)
            checks = _prove(cluster, data, hashes, journal)
            _note_memory(cluster, memory)
            with open_reader(cluster.hq.folder) as store:
                figures = read_figures(store.root(), cluster.hq.public_key)
            with journal.step("stop", "the nodes end in order"):
                cluster.stop()
        with journal.step("plot", "draw the plot"):
            save_plot(figures, place.plot)
        journal.seconds["total"] = time.monotonic() - began
        report = Report(
            folder=place.path,
            flights={site: len(flights) for site, flights in data.by_site.items()},
            owners={site.name: site.public_key.hex() for site in cluster.nodes},
            root_hashes=hashes,
            figures=figures,
            checks=checks,
            seconds=journal.seconds,
            ingested=ingested,
            spark_ran=spark_ran,
            peak_memory_mib=memory,
            plot=place.plot,
        )
        place.report.write_text(json.dumps(report.document(), indent=2) + "\n", "utf-8")
        return report


def _ingest(cluster: Cluster, data: DataSet, journal: _Journal) -> int:
    """Start the sites, cut off, and append what each of them lacks. Returns how many flights."""
    sites = list(cluster.sites.values())
    with journal.step("start", "three sites start, cut off from one another"):
        cluster.start(sites)
    begin = {site.name: site.count() for site in sites}
    done = sum(begin.values())
    words = f"the sites append {data.count - done:,} flights" + (
        f" ({done:,} were there)" if done else ""
    )
    with journal.step("ingest", words) as bars:
        steps = {
            site.name: bars.add(f"{site.name} appends", len(data.by_site[site.name]))
            for site in sites
        }

        def work(site: Site) -> int:
            count = 0
            step = steps[site.name]
            step.to(begin[site.name])
            for added in ingest(site, data.by_site[site.name], begin[site.name]):
                count += added
                step.advance(added)
            return count

        with ThreadPoolExecutor(len(sites)) as pool:
            return sum(pool.map(work, sites))


def _replicate(cluster: Cluster, data: DataSet, journal: _Journal) -> None:
    """Start hq, connect every site to it, and wait until all four have everything."""
    with journal.step("replicate", "hq is connected; all four converge") as bars:
        step = bars.add("flights at hq", data.count)
        cluster.start([cluster.hq])
        cluster.connect()
        with open_reader(cluster.hq.folder) as store:
            cluster.wait_converged(
                CONVERGE_TIMEOUT_S, lambda: _arrived(cluster, store, step) >= data.count
            )


def _arrived(cluster: Cluster, store: CellStore, step: Step) -> int:
    store.refresh()
    root = store.root()
    count = sum(count_of(root, site.public_key, FLIGHTS_TOPIC) for site in cluster.sites.values())
    step.to(count)
    return count


def _compute(
    cluster: Cluster,
    data: DataSet,
    place: Place,
    cores: int | None,
    journal: _Journal,
    memory: dict[str, int],
) -> bool:
    """Have Spark compute what the figures do not cover yet; return whether it ran."""
    ends = {site.public_key.hex(): len(data.by_site[name]) for name, site in cluster.sites.items()}
    with cluster.hq.client() as client:
        if _covered(client.call("queue.meta", topic=FIGURES_TOPIC)) == ends:
            with journal.step("spark", "Spark has nothing new to read since the last run"):
                return False
    with journal.step("spark", "Spark reads the queues at hq, figures go back signed") as bars:
        step = bars.add("flights in the figures", data.count)
        _stream(cluster.hq, data, place, cores, step, lambda: _note_memory(cluster, memory))
        with cluster.hq.client() as client:
            client.call("topic.set_meta", topic=FIGURES_TOPIC, key=COVERS, value=ends)
    return True


def _covered(meta: Value) -> Mapping[str, int] | None:
    found = to_python(meta.get(COVERS)) if isinstance(meta, Map) else None
    return found if isinstance(found, dict) else None


def _stream(
    hq: Site,
    data: DataSet,
    place: Place,
    cores: int | None,
    step: Step,
    before_end: Callable[[], None],
) -> None:
    spark = start_spark(cores)
    failures: list[DataLatticeError] = []

    def receive(_number: int, groups: Groups) -> None:
        try:
            step.to(_write_figures(hq, groups))
        except DataLatticeError as error:
            failures.append(error)  # Spark would wrap it beyond recognition
            raise

    try:
        for _ in range(2):
            compute(spark, hq.folder.store_path, place.checkpoint, data.columns, receive)
            if _written(hq) == data.count:
                break
            # The checkpoint says that all was read, but the figures are not there: begin again.
            forget(place.checkpoint)
        before_end()
    except Exception as error:
        if failures:
            raise failures[0] from error
        if isinstance(error, DataLatticeError):
            raise
        words = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unavailable(f"Spark failed: {words}") from error
    finally:
        spark.stop()


def _write_figures(hq: Site, groups: Groups) -> int:
    """Append the figures that changed to hq's topic; return how many flights they cover.

    A micro-batch that comes again after an interruption changes nothing, so it writes nothing.
    """
    figures = fold(groups)
    with open_reader(hq.folder) as store:
        known = read_figures(store.root(), hq.public_key)
    changed = {key: figure for key, figure in sorted(figures.items()) if known.get(key) != figure}
    if changed:
        with hq.client() as client:
            NodeWriter(client).offer_many(
                FIGURES_TOPIC, 0, [one.to_json() for one in changed.values()], list(changed)
            )
    return total_of(figures, CARRIER).flights


def _written(hq: Site) -> int:
    with open_reader(hq.folder) as store:
        return total_of(read_figures(store.root(), hq.public_key), CARRIER).flights


def _prove(
    cluster: Cluster, data: DataSet, hashes: Mapping[str, str], journal: _Journal
) -> list[Check]:
    with journal.step("prove", "every claim is checked against the file and the stores") as bars:
        nodes = len(cluster.nodes)
        return prove(cluster, data, hashes, bars.add("checked", nodes + 1))


def _note_memory(cluster: Cluster, memory: dict[str, int]) -> None:
    names = {site.pid: f"node {site.name}" for site in cluster.nodes if site.pid is not None}
    for name, peak in peak_memory_mib(names).items():
        memory[name] = max(memory.get(name, 0), peak)
