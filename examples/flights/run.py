"""Run: the demo from beginning to end. Every step skips the work that an earlier run has done."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from datalattice.apps.queue import LatticeMQ
from datalattice.cells import Map, Value, to_python
from datalattice.cli.render import Bars, ProgressBar, print_lines, progress_bars
from datalattice.client import edit, editing, open_store_reader, reading
from datalattice.errors import PeerUnavailable, Unavailable
from datalattice.store import CellStore
from flights.dataset import CARRIER, DataSet, read_flights
from flights.demofolder import DemoFolder
from flights.driver import compute, forget
from flights.figures import fold, total_of
from flights.memory import peak_memory_mib
from flights.plot import check_plot, save_plot
from flights.proof import Check, prove, read_figures
from flights.report import Report
from flights.sites import (
    COVERS,
    FIGURES_TOPIC,
    FLIGHTS_TOPIC,
    Cluster,
    Site,
    count_of,
    ingest,
    topics_of,
)
from flights.stream import Groups, Task, check_spark

CONVERGE_TIMEOUT_S: Final = 180.0
STEP_WIDTH: Final = 60


@dataclass(slots=True)
class _Journal:
    """Times the steps, and prints each when it is done."""

    quiet: bool
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, words: str) -> Iterator[Bars]:
        """Time a step that shows its own bars."""
        began = time.monotonic()
        with progress_bars(quiet=self.quiet) as bars:
            yield bars
        spent = self.seconds[name] = time.monotonic() - began
        self.say(f"{words:<{STEP_WIDTH}} {spent:6.1f} s")

    @contextmanager
    def wait(self, name: str, words: str) -> Iterator[None]:
        """Time a step without a count; a bar shows that it runs."""
        with self.step(name, words) as bars:
            step = bars.add(words, 1)
            yield
            step.advance()

    def say(self, line: str) -> None:
        if not self.quiet:
            print_lines([line])
            sys.stdout.flush()  # the reader of a pipe sees each step at once


def run_demo(
    path: Path, *, fresh: bool, limit: int | None, cores: int | None, quiet: bool
) -> Report:
    """Run the demo in a folder and return its report.

    Raises: UsageError: the folder is not a demo's, or the data package, Spark or Java is missing.
            DataLatticeError: a node or Spark failed.
    """
    began = time.monotonic()
    folder, journal = DemoFolder(path), _Journal(quiet)
    folder.check()
    with journal.wait("read", "read the data set"):
        check_plot()
        check_spark()
        data = read_flights(limit=limit)
    with folder.locked() as held:
        folder.prepare(fresh=fresh, limit=limit)
        with Cluster(folder.path, (held,)) as cluster:
            run = _Run(cluster, data, folder, cores, journal)
            ingested = run.ingest()
            run.replicate()
            spark_ran = run.compute()
            with journal.wait("converge", "the figures reach the three sites"):
                hashes = cluster.wait_converged(CONVERGE_TIMEOUT_S)
            checks = run.prove(hashes)
            run.note_memory()
            with open_store_reader(cluster.hq.folder) as store:
                figures = read_figures(store.root(), cluster.hq.public_key)
            with journal.wait("stop", "the nodes end in order"):
                cluster.stop()
        with journal.wait("plot", "draw the plot"):
            save_plot(figures, folder.plot)
        journal.seconds["total"] = time.monotonic() - began
        report = Report(
            folder=folder.path,
            flights={site: len(flights) for site, flights in data.by_site.items()},
            owners={site.name: site.public_key.hex() for site in cluster.nodes},
            apart=run.apart,
            root_hashes=hashes,
            figures=figures,
            checks=checks,
            seconds=journal.seconds,
            ingested=ingested,
            spark_ran=spark_ran,
            peak_memory_mib=run.memory,
            plot=folder.plot,
        )
        folder.report.write_text(json.dumps(report.document(), indent=2) + "\n", "utf-8")
        return report


@dataclass(slots=True)
class _Run:
    """One run: the steps between starting the first node and ending the last."""

    cluster: Cluster
    data: DataSet
    folder: DemoFolder
    cores: int | None
    journal: _Journal
    apart: Mapping[str, str] = field(default_factory=dict)
    """Root hashes of the sites before they were connected."""
    memory: dict[str, int] = field(default_factory=dict)

    def ingest(self) -> int:
        """Start the disconnected sites, append the flights that each lacks; return their number."""
        sites = list(self.cluster.sites.values())
        with self.journal.wait("start", "three sites start, cut off from one another"):
            self.cluster.start(sites)
        begin = {site.name: site.count() for site in sites}
        done = sum(begin.values())
        words = f"the sites append {self.data.count - done:,} flights" + (
            f" ({done:,} from an earlier run)" if done else ""
        )
        with self.journal.step("ingest", words) as bars:
            count = self._append(sites, begin, bars)
        # The claim that the sites were apart is checked while they still are.
        connected = [site.name for site in sites if site.connection_count()]
        if connected:
            raise Unavailable(
                f"{', '.join(connected)} must be disconnected; another node connected"
            )
        self.apart = {site.name: site.root_hash() for site in sites}
        if len(set(self.apart.values())) > 1:
            roots = ", ".join(f"{name} {hash[:12]}" for name, hash in self.apart.items())
            self.journal.say(f"  their root hashes, while apart: {roots}")
        return count

    def _append(self, sites: list[Site], begin: Mapping[str, int], bars: Bars) -> int:
        flights = self.data.by_site
        steps = {
            site.name: bars.add(f"{site.name} appends", len(flights[site.name])) for site in sites
        }
        ended = threading.Event()

        def work(site: Site) -> int:
            count = 0
            step = steps[site.name]
            step.to(begin[site.name])
            try:
                for added in ingest(site, flights[site.name], begin[site.name]):
                    count += added
                    step.advance(added)
                    if ended.is_set():
                        break
            except Unavailable as error:
                raise Unavailable(f"{site.name}: {error}; see {site.log_path}") from error
            return count

        with ThreadPoolExecutor(len(sites)) as pool:
            try:
                return sum(pool.map(work, sites))
            finally:
                ended.set()  # after Ctrl-C, or if one site failed, the others stop, too

    def replicate(self) -> None:
        """Start hq, connect every site to it, and wait until all four have everything."""
        with self.journal.step("replicate", "hq is connected; all four converge") as bars:
            step = bars.add("flights at hq", self.data.count)
            self.cluster.start([self.cluster.hq])
            self.cluster.connect()
            with open_store_reader(self.cluster.hq.folder) as store:
                self.cluster.wait_converged(
                    CONVERGE_TIMEOUT_S, lambda: self._arrived(store, step) >= self.data.count
                )

    def _arrived(self, store: CellStore, step: ProgressBar) -> int:
        store.refresh()
        root = store.root()
        sites = self.cluster.sites.values()
        count = sum(count_of(root, site.public_key, FLIGHTS_TOPIC) for site in sites)
        step.to(count)
        return count

    def compute(self) -> bool:
        """Let Spark compute the figures of new records; return whether it ran."""
        hq, flights = self.cluster.hq, self.data.by_site
        ends = {
            site.public_key.hex(): len(flights[name]) for name, site in self.cluster.sites.items()
        }
        with reading(hq.folder) as root:
            covered = _covered(topics_of(root, hq.public_key).topic(FIGURES_TOPIC).metadata())
        # The figures name the offsets that they cover, so this is known without starting Spark, and
        # also where the checkpoint was lost.
        if covered == ends:
            with self.journal.wait("spark", "Spark has nothing new to read since the last run"):
                return False
        words = "Spark reads the queues at hq, figures go back signed"
        with self.journal.step("spark", words) as bars:
            # The offsets are written after the figures: a run that is killed in between reads
            # nothing new, and writes them then.
            self._stream(bars)
            edit(
                hq.folder,
                lambda cursor, key_pair: (
                    LatticeMQ.at(cursor, key_pair.public_key)
                    .topic(FIGURES_TOPIC)
                    .set_meta(COVERS, ends)
                ),
            )
        return True

    def _stream(self, bars: Bars) -> None:
        resumed = self.folder.checkpoint.exists()
        starting = bars.add("Spark starts", 1)
        step = bars.add("flights in the figures", self.data.count)
        hq = self.cluster.hq
        task = Task(
            str(hq.folder.store_path),
            str(self.folder.checkpoint),
            list(self.data.columns),
            self.cores,
        )

        def receive(groups: Groups, driver: int) -> None:
            starting.to(1)
            step.to(_write_figures(hq, groups))
            self.note_memory({driver: "spark driver"})

        try:
            compute(task, self.folder.scratch, receive)
        # A node has ended: beginning again would not help.
        except PeerUnavailable:
            raise
        except Unavailable:
            # The checkpoint of a killed run may be unusable.
            if not resumed:
                raise
        if resumed and _written(hq) != self.data.count:
            # Or it counts records as read whose figures were never written: begin again.
            forget(self.folder.checkpoint)
            compute(task, self.folder.scratch, receive)

    def prove(self, hashes: Mapping[str, str]) -> list[Check]:
        """Check every claim."""
        words = "every claim is checked against the file and the stores"
        with self.journal.step("prove", words) as bars:
            step = bars.add("checked", len(self.cluster.nodes) + 1)
            return prove(self.cluster, self.data, hashes, step)

    def note_memory(self, others: Mapping[int, str] | None = None) -> None:
        """Note the greatest memory use of each process so far."""
        sites = self.cluster.nodes
        names = {site.pid: f"node {site.name}" for site in sites if site.pid is not None}
        names.update(others or {})
        for name, peak in peak_memory_mib(names).items():
            self.memory[name] = max(self.memory.get(name, 0), peak)


def _covered(meta: Value) -> Mapping[str, int] | None:
    found = to_python(meta.get(COVERS)) if isinstance(meta, Map) else None
    return found if isinstance(found, dict) else None


def _write_figures(hq: Site, groups: Groups) -> int:
    """Append the changed figures to hq's topic; return the number of flights they cover.

    A micro-batch that is repeated after an interruption changes nothing, so it writes nothing.
    """
    figures = fold(groups)
    with open_store_reader(hq.folder) as store:
        known = read_figures(store.root(), hq.public_key)
    changed = {key: figure for key, figure in sorted(figures.items()) if known.get(key) != figure}
    if changed:
        values = [figure.to_json() for figure in changed.values()]
        with editing(hq.folder) as editor:
            editor.offer_many(FIGURES_TOPIC, 0, values, list(changed))
    return total_of(figures, CARRIER).flights


def _written(hq: Site) -> int:
    with open_store_reader(hq.folder) as store:
        return total_of(read_figures(store.root(), hq.public_key), CARRIER).flights
