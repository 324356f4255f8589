"""Configured: the adapters and the content storage of a node's settings.

`json` and `orchestrator` are always on, as are `grid` and `asset`, which the service adds. A host
in `venue.http.allow` switches `http` on, a function `python`, `venue.sql.enabled` `sql`, and a job
`spark`.

Source: docs/node.md "Configuration".
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from datalattice.apps.dlfs import Drive
from datalattice.apps.grid import (
    ContentBackend,
    ContentStaging,
    DriveBackend,
    FileBackend,
    MemoryBackend,
    MemoryStaging,
    Storage,
)
from datalattice.client import Node
from datalattice.client.settings import (
    FunctionConfig,
    NodeConfig,
    SparkJobConfig,
    VenuePythonConfig,
    VenueSparkConfig,
)
from datalattice.clock import Clock
from datalattice.crypto import KeyPair
from datalattice.errors import UsageError
from datalattice.pipeline import end_session, find_java, jobs, spark_session
from datalattice.service.venue import Adapter, RecoveryRule
from datalattice.service.venue.adapters.hosts import HostRules
from datalattice.service.venue.adapters.http import HttpAdapter
from datalattice.service.venue.adapters.json_values import JsonAdapter
from datalattice.service.venue.adapters.orchestrator import OrchestratorAdapter
from datalattice.service.venue.adapters.python import PythonAdapter, RegisteredFunction
from datalattice.service.venue.adapters.spark import SparkAdapter, SparkOffer
from datalattice.service.venue.adapters.sql import SqlAdapter
from datalattice.service.venue.adapters.tables import LatticeTables, MayDo
from datalattice.service.venue.adapters.trial import TrialAdapter
from datalattice.service.venue.adapters.venues import RemoteVenues, VenueRules

CONNECT_SCHEME: Final = "sc://"
"""The scheme of a Spark Connect server, which has Java itself: this machine needs none."""

_NOT_JSON: Final = frozenset({"clock", "key", "progress", "spark", "write_id"})
"""Arguments of jobs that the venue sets, or whose values are not JSON."""

AdapterMaker = Callable[[Node, MayDo], list[Adapter]]


def configured_adapters(config: NodeConfig, folder: Path) -> AdapterMaker:
    """Check the settings of the adapters; return the function that makes them for a node.

    folder: of the node. SQL calls the second argument of that function before it reads a table.
    Raises: UsageError: a package is missing, with the command that installs it, or a setting is
            invalid.
    """
    made: list[Adapter] = [JsonAdapter(), OrchestratorAdapter()]
    if config.venue_trial:
        made.append(TrialAdapter())
    if config.venue_http.allow:
        made.append(HttpAdapter(config.venue_http))
    if config.venue_python.functions:
        made.append(_python(config.venue_python, folder))
    if config.venue_spark.jobs:
        made.append(_spark(config.venue_spark, folder))
    # So that a missing package stops the node at its start and not the first query.
    if config.venue_sql.enabled:
        SqlAdapter.check_packages()

    def make(node: Node, may: MayDo) -> list[Adapter]:
        if not config.venue_sql.enabled:
            return made
        tables = LatticeTables(node, may)
        return [*made, SqlAdapter(tables, config.venue_sql)]

    return make


def configured_venues(
    config: NodeConfig, key_pair: KeyPair, clock: Clock | None = None
) -> RemoteVenues | None:
    """Return the other venues that jobs may call; None: there are none.

    key_pair: of this venue, to sign the calls.
    Raises: UsageError: a package is missing, with the command that installs it, or a URL is
            invalid.
    """
    grid = config.venue_grid
    if not grid.venues and not grid.allow:
        return None
    try:
        rules = VenueRules(
            grid.venues, HostRules(grid.allow, grid.block, grid.private), clock=clock
        )
    except UsageError as error:
        raise UsageError(f"venue.grid.venues: {error}") from error
    return RemoteVenues(key_pair, rules, clock=clock)


def _python(config: VenuePythonConfig, folder: Path) -> PythonAdapter:
    # "From the node's folder on, before those of the daemon" (docs/node.md "Configuration").
    path = [str(folder / one) for one in config.path]
    functions = [_function(name, one, path) for name, one in config.entries().items()]
    return PythonAdapter(functions, config, path)


def _function(name: str, config: FunctionConfig, path: list[str]) -> RegisteredFunction:
    function: Any = config.function
    if not config.isolated:
        # It runs in a thread of this process, which must find its modules.
        sys.path += [one for one in path if one not in sys.path]
        module, _, attribute = config.function.partition(":")
        try:
            function = import_module(module)
            for part in attribute.split("."):
                function = getattr(function, part)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"venue.python.functions.{name}: {error}") from error
    return RegisteredFunction(
        name,
        function,
        config.description,
        dict(config.input) or None,
        keyed=config.keyed,
        has_effects=config.effects,
        recover=RecoveryRule(config.recover) if config.recover else None,
    )


def _spark(config: VenueSparkConfig, folder: Path) -> SparkAdapter:
    try:
        import_module("pyspark")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"spark operations need {error.name}: pip install 'datalattice[spark]'"
        ) from error
    if not (config.master or "").startswith(CONNECT_SCHEME):
        find_java()
    session = partial(
        spark_session,
        "venue",
        memory=config.memory,
        config=dict(config.conf),
        master=config.master,
        package=config.package,
    )
    offers = [_offer(name, one, folder) for name, one in config.entries().items()]
    return SparkAdapter(offers, session, config.at_once, end_session)


def _offer(name: str, config: SparkJobConfig, folder: Path) -> SparkOffer:
    job = getattr(jobs, config.job)
    taken = inspect.signature(job).parameters
    known = [one for one in taken if one not in _NOT_JSON]
    fixed, where = dict(config.fixed), f"venue.spark.jobs.{name}"
    if "store" in known and taken["store"].default is inspect.Parameter.empty:
        # "`store`, where a job needs one, is the node's folder unless `fixed` says otherwise"
        # (docs/venue-operations.md "Jobs on Spark").
        fixed.setdefault("store", str(folder))
    for one in (*fixed, *config.open):
        if one not in known:
            raise UsageError(
                f"{where}: {config.job} has no argument {one!r}; it has: {', '.join(known)}"
            )
    # Here, so that a wrong setting stops the start of the node and not the first job.
    missing = [
        one
        for one in known
        if taken[one].default is inspect.Parameter.empty and one not in {*fixed, *config.open}
    ]
    if missing:
        raise UsageError(
            f"{where}: {config.job} needs {', '.join(missing)}: give it in `fixed` or in `open`"
        )
    # A job that takes a `write_id` writes its result once, however often it runs.
    once = "write_id" in taken
    try:
        return SparkOffer(name, job, config.description, fixed, config.open, once)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def configured_storage(
    config: NodeConfig,
    folder: Path,
    drive: Callable[[str], Drive],
    staging: Callable[[], ContentStaging] = MemoryStaging,
) -> Storage | None:
    """Return the open storage of the venue's contents; None: the lattice stores them.

    drive: returns a drive of the node. staging: holds a content for the drive while it arrives.
    Raises: UsageError: the folder or directory cannot be used.
    """
    # `venue.content_bytes_max` does not count: "in the lattice it is always this, since peers
    # refuse longer ones" (docs/node.md).
    if config.venue_storage == "lattice":
        return None
    backend: ContentBackend
    if config.venue_storage == "memory":
        backend = MemoryBackend()
    elif config.venue_storage == "file":
        place = folder / config.venue_path
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"venue.path: {place}: {error.strerror or error}") from error
        backend = FileBackend(str(place))
    else:
        made = drive(DRIVE)
        backend = DriveBackend(made, config.venue_path, make=True, staging=staging)
    storage = Storage(backend, config.venue_content_bytes_max)
    storage.initialise()
    return storage


DRIVE: Final = "venue"
"""The name of the drive of contents."""
