"""Besiege a cluster: honest nodes write while strangers make all attacks at the same time.

    siege.py [--seconds 600] [--nodes 3] [--seed 1] [--attacks all] [--folder FOLDER]
             [--lag-s 2] [--times-peace 2] [--calm-s 20] [--refused 0.05]

Honest nodes are processes on loopback, behind TLS, each with a writer of its own; one of them
behaves like the reference node. The attackers (`siege_attackers.py`) sign malformed trees, bombs
and floods, equivocate, replay, forge and babble, and hold a thousand idle connections and all
connections for monitors.

Measured: the delay of a record to the other honest nodes, processor time of frames by attacker,
memory, answers to a quick monitor, health and counters, and whether honest data is equal in the
end. Prints a summary in JSON; exit code 1 when a bound is exceeded, which `failed` then names.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from siege_node import WRITE_S, keys_of

HERE: Final = Path(__file__).resolve().parent
LAG_P99_S: Final = 2.0
"""Longest delay of honest data to the other honest nodes, in 99 of 100 cases."""

TIMES_PEACE: Final = 2.0
"""Where the machine is busy, the bound is this many times the delay before the siege, if longer."""

PEACE_S: Final = 10.0
"""Time before the siege in which the delay is measured; a third of the siege at most."""

WARM_UP_S: Final = 2.0

ATTACKER_CPU_SHARE: Final = 0.25
"""Greatest share of a node's processor for one attacker: the account of a stranger."""

STRANGERS_CPU_SHARE: Final = 0.6
"""Greatest share for all attackers: half of the lane, and some for work outside the accounts."""

GROWTH_BYTES: Final = 96_000_000
"""Greatest memory of a node in the last third beyond 1.2 times that of the first."""

MONITOR_FAILURES: Final = 0.05
"""Greatest share of a quick monitor's requests that may be refused."""

CALM_S: Final = 20.0
"""Longest time after the siege until all honest nodes have equal data of all honest owners."""

FATAL: Final = ("fault", "writes", "damage", "missing", "disk")
"""Reasons of ill health that no attack may cause."""

EXPECTED: Final = {
    "sign_malformed": ("unsound-cells", "malformed", "closed-unsound"),
    "bomb_queues": ("too-costly", "work-slowed", "owner-forked", "queue-forked"),
    "bomb_drives": ("too-costly", "work-slowed", "owner-forked"),
    "flood_slots": ("quota-exceeded", "owner-forked"),
    "flood_contents": ("quota-exceeded",),
    "equivocate": ("owner-forked", "queue-forked"),
    "babble": ("malformed", "closed-malformed"),
    "forge": ("not-owner", "bad-signature"),
}
"""Reasons of which health must name at least one for the key of an attacker of each kind.

A replay has none: an honest node that was away sends the same.
"""

NEEDED: Final = {"bomb_drives": 300, "flood_contents": 100, "idle": 300}
"""Frames that some attacks have to send before they exceed a limit."""

COUNTED: Final = {
    "idle": ("connections-refused", "connections-evicted"),
    "slow_monitors": ("http-evicted",),
}
"""Counters of attackers that send no message, whom health does not name by key."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds by machine: see `LAG_P99_S`, `TIMES_PEACE`, `CALM_S`, `MONITOR_FAILURES`."""

    lag_s: float = LAG_P99_S
    times_peace: float = TIMES_PEACE
    calm_s: float = CALM_S
    refused: float = MONITOR_FAILURES


@dataclass(slots=True)
class HonestProcess:
    """One honest node: its process, and the lines that it printed."""

    number: int
    process: asyncio.subprocess.Process
    address: str = ""
    http: str = ""
    reports: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self) -> None:
        """Read its lines until it ends."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            report = json.loads(line)
            if "address" in report:
                self.address, self.http = report["address"], report.get("http", "")
                self.ready.set()
            elif "ended" in report:
                self.faults.append(report["ended"])
            else:
                self.reports.append(report)


class Siege:
    """One run."""

    def __init__(
        self, seconds: float, nodes: int, seed: str, attacks: str, folder: Path, bounds: Bounds
    ) -> None:
        self.bounds = bounds
        self.seconds = seconds
        self.attacks = attacks
        self.count = nodes
        self.seed = seed
        self.folder = folder
        self.nodes: list[HonestProcess] = []
        self.kinds: dict[str, str] = {}  # key in hex -> attacker
        self.sent: dict[str, Any] = {}
        self.monitor_s: list[float] = []
        self.monitor_failures = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._processes: list[asyncio.subprocess.Process] = []
        self.owners = [keys_of(number).public_key for number in range(nodes + 1)]

    def _watch(self, work: Any) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def run(self) -> dict[str, Any]:
        """Start the nodes, attack them, and return the summary."""
        try:
            await self._build()
            await asyncio.sleep(WARM_UP_S)
            self._peace_from = time.time()
            await asyncio.sleep(min(PEACE_S, self.seconds / 3))
            before, self._siege_from = time.monotonic(), time.time()
            attackers = await self._attack()
            self._watch(self._monitor())
            await asyncio.sleep(self.seconds)
            took_s = time.monotonic() - before
            assert attackers.stdin is not None
            attackers.stdin.close()
            calm_s = await self._calm()
            await attackers.wait()
            return self._summary(took_s, calm_s)
        finally:
            await self._end()

    async def _build(self) -> None:
        hexes = ",".join(owner.hex() for owner in self.owners)
        self.reference = await self._started(0, "siege_reference.py", hexes)
        for number in range(1, self.count + 1):
            peers = [node.address for node in self.nodes]
            if number == 1:
                peers.append(self.reference.address)
            folder = str(self.folder / f"node{number}")
            node = await self._started(number, "siege_node.py", folder, str(number), hexes, *peers)
            self.nodes.append(node)
        self._command("dial " + self.nodes[0].address.rpartition(":")[2])
        self._command("write")

    async def _started(self, number: int, script: str, *arguments: str) -> HonestProcess:
        """Start an honest process, and return once it has printed its address."""
        with (self.folder / f"node{number}.log").open("w") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(HERE / script),
                *arguments,
                stdin=asyncio.subprocess.PIPE if number == 0 else None,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=1 << 24,
            )
        self._processes.append(process)
        node = HonestProcess(number, process)
        self._watch(node.read())
        async with asyncio.timeout(60):
            await node.ready.wait()
        return node

    def _command(self, command: str) -> None:
        """Send the reference peer a command."""
        assert self.reference.process.stdin is not None
        self.reference.process.stdin.write(command.encode() + b"\n")

    async def _attack(self) -> asyncio.subprocess.Process:
        attackers = await asyncio.create_subprocess_exec(
            sys.executable,
            str(HERE / "siege_attackers.py"),
            self.seed,
            self.attacks,
            ",".join(node.http for node in self.nodes),
            *(node.address for node in self.nodes),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        self._processes.append(attackers)

        async def read() -> None:
            assert attackers.stdout is not None
            async for line in attackers.stdout:
                told = json.loads(line)
                if "key" in told:
                    self.kinds[told["key"]] = told["kind"]
                else:
                    self.sent = told

        self._watch(read())
        return attackers

    async def _monitor(self) -> None:
        """Ask one node after the other for its health, as a quick monitor does."""
        number = 0
        while True:
            host, _, port = self.nodes[number % self.count].http.rpartition(":")
            number += 1
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(10):
                    reader, writer = await asyncio.open_connection(host, int(port))
                    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    answer = await reader.read()
                    writer.close()
                if not answer.startswith(b"HTTP/1.1 "):
                    self.monitor_failures += 1
                self.monitor_s.append(time.monotonic() - began_s)
            except (OSError, TimeoutError):
                self.monitor_failures += 1
            await asyncio.sleep(0.5)

    async def _calm(self) -> float | None:
        """Return the seconds from the end of the siege until honest data is equal; None: never."""
        self._command("rest")
        for node in self.nodes:
            node.process.send_signal(signal.SIGUSR1)  # its writer rests
        began_s = time.monotonic()
        while time.monotonic() - began_s < self.bounds.calm_s:
            await asyncio.sleep(0.25)
            found = {node.reports[-1]["honest"] for node in self.nodes if node.reports}
            if len(found) == 1:
                return time.monotonic() - began_s
        return None

    async def _end(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                try:
                    async with asyncio.timeout(20):
                        await process.wait()
                except TimeoutError:
                    process.kill()
                    await process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- results ----------------------------------------------------------------------------------

    def _summary(self, took_s: float, calm_s: float | None) -> dict[str, Any]:
        peace = self._lags(self._peace_from, self._siege_from)
        lags = self._lags(self._siege_from, self._siege_from + took_s)
        for node in self.nodes:
            lines = "".join(json.dumps(one) + "\n" for one in node.reports)
            (self.folder / f"node{node.number}.reports").write_text(lines)
        cpu = self._cpu(took_s)
        counters: dict[str, int] = defaultdict(int)
        for node in self.nodes:
            for name, count in node.reports[-1]["counters"].items():
                counters[name] += count
        summary: dict[str, Any] = {
            "seconds": round(took_s, 1),
            "nodes": self.count,
            "lag_s": _spread(lags),
            "peace_lag_s": _spread(peace),
            "lag_s_of_writers": [
                _spread(self._lags(self._siege_from, self._siege_from + took_s, number))
                for number in range(self.count + 1)
            ],
            "records": len(lags),
            "written": sum(node.reports[-1]["written"] for node in self.nodes),
            "writer_errors": [node.reports[-1]["errors"] for node in self.nodes],
            "attacker_cpu_share": cpu,
            "node_cpu_share": [
                round(node.reports[-1]["cpu_s"] / max(took_s, 1e-9), 3) for node in self.nodes
            ],
            "rss_mb": [self._memory(node) for node in self.nodes],
            "monitor_s": _spread(sorted(self.monitor_s)),
            "monitor_failures": self.monitor_failures,
            "sent": self.sent,
            "counters": dict(sorted(counters.items())),
            "health": [node.reports[-1]["reasons"] for node in self.nodes],
            "noticed": self._noticed(),
            "calm_s": calm_s,
            "reference": {
                "values": self.reference.reports[-1]["values"],
                "incomplete": self.reference.reports[-1]["incomplete"],
                "behind_s": self._behind(),
            },
        }
        summary["failed"] = self._failed(summary)
        return summary

    def _lags(self, begin_s: float, end_s: float, writer: int | None = None) -> list[float]:
        """Return the delays, ascending, that were reported from `begin_s` to `end_s`.

        writer: of its records alone; None: of all.
        """
        reports = (one for node in self.nodes for one in node.reports)
        return sorted(
            lag
            for one in reports
            if begin_s <= one["time"] < end_s
            for number, lag in one["lags"]
            if writer in (None, number)
        )

    def _cpu(self, took_s: float) -> dict[str, float]:
        """Return the greatest share of a node's processor that frames of each attacker took."""
        shares: dict[str, float] = {}
        for node in self.nodes:
            by_kind: dict[str, float] = defaultdict(float)
            for key, seconds in node.reports[-1]["frames_s"].items():
                by_kind[self.kinds.get(key, "honest")] += seconds
            by_kind["all attackers"] = sum(by_kind.values()) - by_kind["honest"]
            for kind, seconds in by_kind.items():
                shares[kind] = max(shares.get(kind, 0.0), seconds / took_s)
        return {kind: round(share, 4) for kind, share in sorted(shares.items())}

    def _memory(self, node: HonestProcess) -> dict[str, float]:
        """Return the greatest memory in the first and in the last third of the reports."""
        sizes = [one["rss"] / 1e6 for one in node.reports]
        third = max(1, len(sizes) // 3)
        return {"begin": round(max(sizes[:third])), "end": round(max(sizes[-third:]))}

    def _behind(self) -> float | None:
        """Return by how many seconds the reference peer's newest records are behind the nodes'."""
        behind: list[int] = []
        for node in self.nodes:
            newest = self.reference.reports[-1]["newest"][self.owners[node.number].hex()]
            if newest is None:
                return None
            behind.append(node.reports[-1]["newest"] - newest)
        return round(max(behind) / 1e9, 2)

    def _failed(self, summary: dict[str, Any]) -> list[str]:
        failed = [f"node {node.number}: {fault}" for node in self.nodes for fault in node.faults]
        failed += [f"node {n.number} ended" for n in self.nodes if n.process.returncode is not None]
        lag = summary["lag_s"]["p99"]
        bounds = self.bounds
        most_s = max(bounds.lag_s, bounds.times_peace * (summary["peace_lag_s"]["p99"] or 0.0))
        if lag is None or lag > most_s:
            failed.append(f"lag p99 is {lag} s, at most {most_s}")
        expected = summary["seconds"] / WRITE_S * self.count * (self.count - 1) / 4
        if summary["records"] < expected:
            failed.append(
                f"{summary['records']} records were seen, at least {expected:.0f} expected"
            )
        for kind, share in summary["attacker_cpu_share"].items():
            most = STRANGERS_CPU_SHARE if kind == "all attackers" else ATTACKER_CPU_SHARE
            if kind != "honest" and share > most:
                failed.append(f"{kind} takes {share} of a processor, at most {most}")
        for number, sizes in enumerate(summary["rss_mb"], 1):
            if sizes["end"] > 1.2 * sizes["begin"] + GROWTH_BYTES / 1e6:
                failed.append(f"memory of node {number} grows: {sizes}")
        monitor = summary["monitor_s"]["p99"]
        asked = len(self.monitor_s) + self.monitor_failures
        refused = self.monitor_failures / max(asked, 1)
        if monitor is None or monitor > most_s or refused > bounds.refused:
            failed.append(
                f"a quick monitor waits {monitor} s, {self.monitor_failures} times in vain"
            )
        for number, reasons in enumerate(summary["health"], 1):
            failed += [
                f"health of node {number}: {reasons[key]}" for key in FATAL if key in reasons
            ]
        failed += self._unnoticed(summary)
        if summary["calm_s"] is None:
            failed.append(f"honest data is not equal {bounds.calm_s} s after the siege")
        if summary["reference"]["incomplete"]:
            failed.append("the reference peer was sent incomplete values")
        behind = summary["reference"]["behind_s"]
        if behind is None or behind > bounds.calm_s + most_s:  # it merges without an account
            failed.append(f"the reference peer is {behind} s behind")
        failed += [f"a writer met {errors}" for errors in summary["writer_errors"] if errors]
        return failed

    def _unnoticed(self, summary: dict[str, Any]) -> list[str]:
        """Return the attacks that no node reports, by key and reason or by a counter."""
        every = {**EXPECTED, **COUNTED}
        chosen = set(every) if self.attacks == "all" else set(self.attacks.split(","))
        sent = summary["sent"].get("frames", {})
        chosen = {kind for kind in chosen if sent.get(kind, 0) >= NEEDED.get(kind, 1)}
        failed = []
        for kind in sorted(chosen & set(EXPECTED)):
            said = set(summary["noticed"].get(kind, {}))
            if said.isdisjoint(EXPECTED[kind]):
                names = ", ".join(EXPECTED[kind])
                failed.append(f"health names no attacker of {kind} with one of {names}")
        for kind in sorted(chosen & set(COUNTED)):
            if not any(name in summary["counters"] for name in COUNTED[kind]):
                failed.append(f"nothing tells of {kind}: none of {', '.join(COUNTED[kind])}")
        return failed

    def _noticed(self) -> dict[str, dict[str, int]]:
        """Return the reasons that health gave for attackers, with counts, by their kind.

        Counts are the highest of one key: an attacker that was cut came back with another.
        """
        found: dict[str, dict[str, int]] = defaultdict(dict)
        for node in self.nodes:
            for one in node.reports:
                for key, kinds in one["noticed"].items():
                    said = found[self.kinds.get(key, "honest")]
                    for name, count in kinds.items():
                        said[name] = max(count, said.get(name, 0))
        return {kind: dict(sorted(said.items())) for kind, said in sorted(found.items())}


def _spread(values: list[float]) -> dict[str, float | None]:
    """Return median, 99th percentile and greatest of sorted values."""
    if not values:
        return {"p50": None, "p99": None, "max": None}
    last = len(values) - 1
    median, most = values[len(values) // 2], values[min(last, int(0.99 * len(values)))]
    return {"p50": round(median, 3), "p99": round(most, 3), "max": round(values[-1], 3)}


def main() -> int:
    """Run a siege; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--attacks", default="all", help="names with commas, or nothing")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--lag-s", type=float, default=LAG_P99_S)
    parser.add_argument("--times-peace", type=float, default=TIMES_PEACE)
    parser.add_argument("--calm-s", type=float, default=CALM_S)
    parser.add_argument("--refused", type=float, default=MONITOR_FAILURES)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        bounds = Bounds(options.lag_s, options.times_peace, options.calm_s, options.refused)
        siege = Siege(options.seconds, options.nodes, options.seed, options.attacks, folder, bounds)
        summary = asyncio.run(siege.run())
    sys.stdout.write(json.dumps(summary, indent=2) + "\n")
    return 1 if summary["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
