"""Venue config: the settings of a venue's adapters, `[venue.grid]` to `[venue.spark]`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from datalattice.client.settings.policyfile import unknown_setting
from datalattice.errors import UsageError

T = TypeVar("T")

STORAGES: Final = ("lattice", "file", "memory", "drive")
"""Places where a venue can store contents."""

SPARK_JOBS: Final = ("audit", "compact", "export", "gc", "load", "merge")
"""Jobs of `datalattice.pipeline.jobs` that end with a report."""

RECOVER: Final = ("retry", "fail")
"""Rules for an interrupted job of a function."""

_REFERENCE: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_HOST: Final = re.compile(r"\*|(\*\.)?[a-z0-9_:.-]+")


def _check_positive(config: Any, *names: str) -> None:
    defaults = {one.name: one.default for one in dataclasses.fields(config)}
    for name in names:
        value, is_time = getattr(config, name), isinstance(defaults[name], float)
        # A limit of half a call would let nothing run; NaN would limit nothing. A bool is an int in
        # Python: `true` would be a limit of 1.
        if isinstance(value, bool) or not isinstance(value, (int, float) if is_time else int):
            kind = "a number of seconds" if is_time else "an integer"
            raise UsageError(f"{name} is {kind}, got {value!r}")
        if not value > 0:
            raise UsageError(f"{name} is greater than 0, got {value}")


def _check_hosts(allow: Sequence[str], block: Sequence[str]) -> None:
    for name, hosts in (("allow", allow), ("block", block)):
        if isinstance(hosts, str):  # read letter by letter, "*.example.com" would allow all hosts
            raise UsageError(f"{name} is a tuple of hosts, got the text {hosts!r}")
    for host in (*allow, *block):
        if not _HOST.fullmatch(host):
            raise UsageError(
                f"a host is a name in lower case, *.name or *, without a port, got {host!r}"
            )


@dataclass(frozen=True, slots=True)
class VenueHttpConfig:
    """The hosts that jobs may send requests to; if `allow` is empty there are no HTTP operations.

    allow: names in lower case, `*.name` for all below it, or `*`. block: refused even if allowed.
    private: whether private and loopback addresses are allowed. time_s: longest time of a request.
    body_bytes, answer_bytes: longest body of a request, and of an answer.
    """

    allow: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    private: bool = False
    time_s: float = 30.0
    body_bytes: int = 2 << 20
    answer_bytes: int = 2 << 20

    def __post_init__(self) -> None:
        _check_hosts(self.allow, self.block)
        _check_positive(self, "time_s", "body_bytes", "answer_bytes")


@dataclass(frozen=True, slots=True)
class VenueGridConfig:
    """The other venues that jobs may call; by default none.

    venues: URLs by name; a name may be the DID of the venue. allow, block, private: further hosts
    that may be called by URL or `did:web`, as in `VenueHttpConfig`. away_s: how long a venue that
    runs a job of ours may be unreachable before the job fails.
    """

    venues: Mapping[str, Any] = field(default_factory=dict)
    allow: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    private: bool = False
    away_s: float = 300.0

    def __post_init__(self) -> None:
        for name, url in self.venues.items():
            if not isinstance(url, str):
                raise UsageError(f"venues.{name} is a URL, got {url!r}")
        _check_hosts(self.allow, self.block)
        _check_positive(self, "away_s")


@dataclass(frozen=True, slots=True)
class FunctionConfig:
    """A function that callers may run as `python/<its name>`.

    function: `module:name`. isolated: whether each call runs in its own process, with the limits of
    `VenuePythonConfig`; otherwise in a thread of the daemon. keyed: whether it gets the effect key
    as a second argument. effects: whether it does anything outside the job. recover: `retry` or
    `fail` an interrupted job; "": `fail` if it has effects. input: the JSON Schema of its input.
    """

    function: str = ""
    description: str = ""
    isolated: bool = True
    keyed: bool = False
    effects: bool = True
    recover: str = ""
    input: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _REFERENCE.fullmatch(self.function):
            raise UsageError(f"function is module:name, got {self.function!r}")
        if self.recover and self.recover not in RECOVER:
            raise UsageError(f"recover is {' or '.join(RECOVER)}, got {self.recover!r}")


@dataclass(frozen=True, slots=True)
class VenuePythonConfig:
    """The functions that jobs may call, and the limits of a call in its own process.

    functions: `module:name` by the name of the operation, or a table with the fields of
    `FunctionConfig`. path: folders searched for modules first, relative to the node's folder.
    time_s: longest time of a call. cpu_s: processor time. memory_bytes: address space. file_bytes:
    length of each file. files: open files. at_once: simultaneous calls; further ones wait.
    """

    functions: Mapping[str, Any] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    time_s: float = 60.0
    cpu_s: int = 60
    memory_bytes: int = 1 << 30
    file_bytes: int = 64 << 20
    files: int = 64
    at_once: int = 8

    def __post_init__(self) -> None:
        _check_positive(self, "time_s", "cpu_s", "memory_bytes", "file_bytes", "files", "at_once")
        self.entries()

    def entries(self) -> dict[str, FunctionConfig]:
        """Return the functions by name. Raises: UsageError: one is malformed."""
        tables = {
            name: {"function": one} if isinstance(one, str) else one
            for name, one in self.functions.items()
        }
        return _entries(FunctionConfig, "functions", tables)


@dataclass(frozen=True, slots=True)
class VenueSqlConfig:
    """Whether jobs may query lattice data with SQL, and the limits of a query.

    time_s: longest time, with loading the tables. memory_bytes, threads: of DuckDB. rows: of the
    result. table_rows, table_bytes: of all tables together. at_once: simultaneous queries; further
    ones wait.
    """

    enabled: bool = False
    time_s: float = 30.0
    memory_bytes: int = 256 << 20
    threads: int = 1
    rows: int = 10_000
    table_rows: int = 1_000_000
    table_bytes: int = 64 << 20
    at_once: int = 4

    def __post_init__(self) -> None:
        names = [one.name for one in dataclasses.fields(self) if one.name != "enabled"]
        _check_positive(self, *names)


@dataclass(frozen=True, slots=True)
class SparkJobConfig:
    """A job that callers may run as `spark/<its name>`.

    job: one of `SPARK_JOBS`. fixed: the operator's arguments, among them all paths; without
    `store` it is the node's folder. open: the callers' arguments, with the JSON Schema of each.
    """

    job: str = ""
    description: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    open: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.job not in SPARK_JOBS:
            raise UsageError(f"job is one of {', '.join(SPARK_JOBS)}, got {self.job!r}")


@dataclass(frozen=True, slots=True)
class VenueSparkConfig:
    """The jobs that run on Spark; without jobs Spark is not started.

    jobs: by the name of the operation, a table with the fields of `SparkJobConfig`. master:
    `local[N]`, `spark://host:port` or `sc://host:port`; None: this machine, on all cores. memory:
    of each JVM, a number and k, m, g or t. conf: settings of Spark. package: archive of this
    package for the workers of a cluster. at_once: simultaneous jobs; further ones wait.
    """

    jobs: Mapping[str, Any] = field(default_factory=dict)
    master: str | None = None
    memory: str = "2g"
    conf: Mapping[str, Any] = field(default_factory=dict)
    package: str | None = None
    at_once: int = 2

    def __post_init__(self) -> None:
        _check_positive(self, "at_once")
        for name, value in self.conf.items():
            if not isinstance(value, str):
                raise UsageError(f"conf.{name} is a text, got {value!r}")
        self.entries()

    def entries(self) -> dict[str, SparkJobConfig]:
        """Return the jobs by name. Raises: UsageError: one is malformed."""
        return _entries(SparkJobConfig, "jobs", self.jobs)


def _entries(kind: type[T], where: str, tables: Mapping[str, Any]) -> dict[str, T]:
    """Return the entries of a table of tables, each checked."""
    found: dict[str, T] = {}
    for name, table in tables.items():
        what = f"{where}.{name}"
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{where}: a name is a lower-case letter and up to 63 of a-z 0-9 _ -, got {name!r}"
            )
        if not isinstance(table, dict):
            raise UsageError(f"{what} is a table, got {table!r}")
        known = {one.name: one for one in dataclasses.fields(kind)}  # type: ignore[arg-type]
        for part, value in table.items():
            if part not in known:
                raise unknown_setting(f"there is no setting {part!r} in {what}", part, known)
            wanted = _KINDS[str(known[part].type).partition("[")[0]]
            if type(value) is not wanted[0]:
                raise UsageError(f"{what}.{part} is {wanted[1]}, got {value!r}")
        try:
            found[name] = kind(**table)
        except UsageError as error:
            raise UsageError(f"{what}: {error}") from error
    return found


_KINDS: Final[Mapping[str, tuple[type, str]]] = {
    "str": (str, "a text"),
    "bool": (bool, "true or false"),
    "Mapping": (dict, "a table"),
}
"""The TOML type of each type of field, and its name in errors."""
