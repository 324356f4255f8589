"""Metrics: the status of a node in the text format of Prometheus, version 0.0.4.

Every family has HELP and TYPE lines. The number of series for single peers is bounded. The counter
`connections-cut` of the observer is the family `datalattice_connections_cut_total`.

Source: docs/node.md "Operations"; Prometheus exposition formats.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from datalattice.lattice import LOG_BRANCH, OWNER_BRANCH
from datalattice.node.observe import BUCKETS_S, Histogram
from datalattice.node.status import ForkCounts, NodeStatus
from datalattice.version import VERSION

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

PEER_SERIES_MAX: Final = 100  # wanted peers with series of their own: bounds the label values

_PREFIX: Final = "datalattice_"

_TIMES_HELP: Final = {
    "publish": "Time of a publication of local writes until it is durable.",
    "frame": "Time to handle a frame of a peer, with the merge and the commit it may cause.",
}

_COUNTERS_HELP: Final = {
    "changes": "Commits of a changed value, local or merged.",
    "faults": "Internal errors of the node.",
    "unfenced-starts": "Starts after which writes were accepted without having asked a peer.",
    "identity-cloned": "Reports that another node runs with this node's identity.",
    "connections-closed": "Connections that ended.",
    "connections-cut": "Connections closed because they held too much memory of this node.",
    "connections-refused": "Inbound connections refused because there were too many.",
    "strangers-refused": "Inbound connections refused because strangers came too fast.",
    "banned-refused": "Inbound connections refused because of an earlier breach of the protocol.",
    "connections-evicted": "Inbound connections ended to make room for others.",
    "addresses-refused": "Inbound connections refused because of how many one address has.",
    "work-slowed": "Times that a peer was read later because its merges cost more than its share.",
    "too-costly": "Slots and sections left out because they cost more work than their size allows.",
    "unsound-cells": "Cells not stored because they do not fit the cells below them.",
    "unsound-wanted": "Times that a wanted peer sent too many unsound cells; it stays connected.",
    "closed-unsound": "Peers cut because they sent too many unsound cells.",
    "streams-refused": "Streams that peers opened for replicas that this node does not have.",
    "peers-slowed": "Times that a peer sent more than its share and was read later.",
    "bad-asset": "Asset records left out because their metadata does not match their id.",
    "bad-content": "Contents left out because they do not match their hash.",
    "bad-job": "Records left out because they are not valid jobs.",
    "bad-metadata": "Metadata left out because it does not match its id.",
    "bad-signature": "Entries left out because their signature is not valid.",
    "dropped": "Values that never became complete.",
    "entry-dropped": "Entries left out because they are of the wrong kind.",
    "ignored": "Messages that had no effect.",
    "malformed": "Payloads that are not a message.",
    "not-owner": "Entries left out because their signer is not the owner.",
    "pushes": "Messages that send a state or a difference to a peer.",
    "refused": "Answers and offers of peers that were illegal.",
    "timeout": "Requests that a peer did not answer in time.",
    "unasked": "Results without a request.",
    "undelivered": "Answers that lacked cells.",
    "unproved": "Peers that did not prove a key.",
    "value-refused": "Values of peers that were refused.",
    "write-superseded": "Writes that lost to later ones in merges.",
}

_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9_]")

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """The samples of one metric: (suffix of the name, labels, value)."""

    name: str
    kind: str
    help: str
    samples: tuple[tuple[str, Labels, float], ...]

    def lines(self) -> Iterator[str]:
        """Yield its lines."""
        text = self.help.replace("\\", "\\\\").replace("\n", "\\n")
        yield f"# HELP {self.name} {text}"
        yield f"# TYPE {self.name} {self.kind}"
        for suffix, labels, value in self.samples:
            shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
            yield f"{self.name}{suffix}{f'{{{shown}}}' if shown else ''} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


def exposition(status: NodeStatus) -> str:
    """Return the text that a Prometheus server reads."""
    # A name may appear only once on the page, so a counter with the name of a fixed family is left
    # out.
    fixed = [*_state(status), *_traffic(status), *_peers(status), *_process(status)]
    taken = {family.name for family in fixed}
    counted = [family for family in _counted(status) if family.name not in taken]
    families = [*fixed, *_timed(status), *counted]
    return "".join(f"{line}\n" for family in families for line in family.lines())


def _gauge(name: str, help: str, value: float) -> MetricFamily:
    return MetricFamily(_PREFIX + name, "gauge", help, (("", (), value),))


def _total(name: str, help: str, value: float) -> MetricFamily:
    return MetricFamily(f"{_PREFIX}{name}_total", "counter", help, (("", (), value),))


def _by_label(
    name: str, help: str, label: str, values: Iterable[tuple[str, float]]
) -> MetricFamily:
    samples = tuple(("", ((label, text),), value) for text, value in values)
    return MetricFamily(_PREFIX + name, "gauge", help, samples)


def _state(status: NodeStatus) -> Iterator[MetricFamily]:
    labels = (("version", VERSION), ("python", platform.python_version()))
    about = "The version that runs; the value is 1."
    yield MetricFamily(_PREFIX + "build_info", "gauge", about, (("", labels, 1),))
    yield _gauge("healthy", "1 when the node is healthy, 0 when degraded.", int(not status.reasons))
    if status.reasons:
        reasons = [(key, 1) for key in sorted(status.reasons)]
        yield _by_label("degraded", "1 for each reason to be degraded.", "reason", reasons)
    yield _gauge("root_age_seconds", "Time since the last change.", status.unchanged_s)
    lane = status.lane
    yield _gauge("missing_cells", "Cells that are wanted and not here.", lane.missing_count)
    yield _gauge("staged_bytes", "Cells that wait for missing ones.", lane.staged_bytes)
    yield _gauge("store_damage", "Damaged places of the store.", len(status.damage))
    if status.store_bytes is not None:
        yield _gauge("store_bytes", "Bytes of the store on disk.", status.store_bytes)
    yield from _forks(lane.forks)


def _forks(forks: ForkCounts) -> Iterator[MetricFamily]:
    open_now = tuple(
        ("", (("mine", str(mine).lower()), ("kind", kind)), forks.open.get((mine, kind), 0))
        for mine in (True, False)
        for kind in (OWNER_BRANCH, LOG_BRANCH)
    )
    yield MetricFamily(
        _PREFIX + "forks_open", "gauge", "Forks whose other branch is kept.", open_now
    )
    yield _total("forks_seen", "Received values that fork from the value here.", forks.seen)
    yield _total("forks_skipped", "Forks not examined: too many of one slot.", forks.skipped)
    yield _gauge("evidence_bytes", "Cells that only kept branches have.", forks.size_bytes)


def _traffic(status: NodeStatus) -> Iterator[MetricFamily]:
    traffic = status.traffic
    yield _total("received_bytes", "Bytes received from peers.", traffic.bytes_in)
    yield _total("sent_bytes", "Bytes sent to peers.", traffic.bytes_out)
    yield _total("received_frames", "Frames received from peers.", traffic.frames_in)
    yield _total("sent_frames", "Frames sent to peers.", traffic.frames_out)
    ways = (("in", status.inbound), ("out", status.outbound))
    yield _by_label("connections", "Open connections, by who made them.", "direction", ways)
    pending = sum(one.pending_count for one in status.lane.standings)
    yield _gauge("pending_requests", "Requests that peers have not answered.", pending)
    held = "Bytes that wait to be received, handled or sent, over all peers."
    yield _gauge("held_bytes", held, status.held_bytes)


def _peers(status: NodeStatus) -> Iterator[MetricFamily]:
    peers = status.peers
    connected = sum(one.info.connected for one in peers)
    yield _gauge("peers_connected", "Wanted peers that are connected.", connected)
    proved = sum(one.info.proved for one in peers)
    yield _gauge("peers_proved", "Wanted peers that are proved.", proved)
    yield _gauge("peers_wanted", "Peers that this node wants to be connected to.", len(peers))
    same_root = sum(bool(one.equal) for one in peers)
    yield _gauge("peers_equal", "Wanted peers with the same root.", same_root)
    # Two entries for one node may have the same address for a moment; Prometheus rejects a page
    # with a repeated label set.
    shown = {one.info.name: one for one in peers[:PEER_SERIES_MAX]}.items()
    if not shown:
        return
    linked = [(name, int(one.info.connected)) for name, one in shown]
    yield _by_label("peer_connected", "Whether a wanted peer is connected.", "peer", linked)
    equal = [(name, int(bool(one.equal))) for name, one in shown]
    yield _by_label("peer_equal", "Whether a wanted peer has the same root.", "peer", equal)
    failures = [(name, one.info.failures) for name, one in shown]
    yield _by_label("peer_failures", "Failed attempts since it was stable.", "peer", failures)


def _process(status: NodeStatus) -> Iterator[MetricFamily]:
    process = status.process
    memory = "Resident memory size in bytes."
    yield MetricFamily(
        "process_resident_memory_bytes", "gauge", memory, (("", (), process.memory_bytes),)
    )
    cpu = "Total user and system CPU time spent in seconds."
    yield MetricFamily("process_cpu_seconds_total", "counter", cpu, (("", (), process.cpu_s),))
    if process.descriptors is not None:
        files = "Number of open file descriptors."
        yield MetricFamily("process_open_fds", "gauge", files, (("", (), process.descriptors),))


def _timed(status: NodeStatus) -> Iterator[MetricFamily]:
    for name, times in sorted(status.times.items()):
        help = _TIMES_HELP.get(name, f"Time of {name}.")
        yield MetricFamily(f"{_PREFIX}{_name(name)}_seconds", "histogram", help, _samples(times))


def _samples(times: Histogram) -> tuple[tuple[str, Labels, float], ...]:
    # Prometheus: buckets are cumulative, the last has no bound.
    bounds = [*map(repr, BUCKETS_S), "+Inf"]
    sums = list(accumulate(list(times.counts)))  # of a copy: other threads go on counting
    buckets = [
        ("_bucket", (("le", bound),), count) for bound, count in zip(bounds, sums, strict=True)
    ]
    return (*buckets, ("_sum", (), times.sum_s), ("_count", (), sums[-1]))


def _counted(status: NodeStatus) -> Iterator[MetricFamily]:
    found: dict[str, tuple[str, int]] = {}
    # Two counters may differ in characters that a metric name cannot have: they are added.
    for name, value in status.counters.items():
        family = _name(name)
        found[family] = (name, value + found.get(family, ("", 0))[1])
    for family, (name, value) in sorted(found.items()):
        help = _COUNTERS_HELP.get(name, f"How often this was noted: {name}.")
        yield _total(family, help, value)


def _name(text: str) -> str:
    return _NOT_IN_NAMES.sub("_", text.lower())
