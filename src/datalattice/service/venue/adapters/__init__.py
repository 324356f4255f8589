"""Adapters of a venue: what runs the operations that every venue can offer."""

from datalattice.service.venue.adapters.assets import AssetAdapter, AssetSource
from datalattice.service.venue.adapters.configured import (
    AdapterMaker,
    configured_adapters,
    configured_storage,
    configured_venues,
)
from datalattice.service.venue.adapters.grid import GridAdapter, OwnJobs
from datalattice.service.venue.adapters.hosts import HostRules, HostUnreached, OutboundLimits
from datalattice.service.venue.adapters.http import HttpAdapter
from datalattice.service.venue.adapters.json_values import JsonAdapter, merge_json
from datalattice.service.venue.adapters.orchestrator import OrchestratorAdapter, OutputCheck
from datalattice.service.venue.adapters.plans import (
    dependencies,
    evaluate,
    ready_steps,
    step_needs,
)
from datalattice.service.venue.adapters.processes import ProcessLimits
from datalattice.service.venue.adapters.python import PythonAdapter, RegisteredFunction
from datalattice.service.venue.adapters.spark import SparkAdapter, SparkOffer
from datalattice.service.venue.adapters.sql import SqlAdapter, SqlLimits
from datalattice.service.venue.adapters.tables import (
    LatticeTables,
    MayDo,
    TableRows,
    TableSource,
)
from datalattice.service.venue.adapters.trial import TrialAdapter
from datalattice.service.venue.adapters.venues import (
    RemoteVenues,
    VenueCalls,
    VenueDoor,
    VenueRules,
)

__all__ = [
    "AdapterMaker",
    "AssetAdapter",
    "AssetSource",
    "GridAdapter",
    "HostRules",
    "HostUnreached",
    "HttpAdapter",
    "JsonAdapter",
    "LatticeTables",
    "MayDo",
    "OrchestratorAdapter",
    "OutboundLimits",
    "OutputCheck",
    "OwnJobs",
    "ProcessLimits",
    "PythonAdapter",
    "RegisteredFunction",
    "RemoteVenues",
    "SparkAdapter",
    "SparkOffer",
    "SqlAdapter",
    "SqlLimits",
    "TableRows",
    "TableSource",
    "TrialAdapter",
    "VenueCalls",
    "VenueDoor",
    "VenueRules",
    "configured_adapters",
    "configured_storage",
    "configured_venues",
    "dependencies",
    "evaluate",
    "merge_json",
    "ready_steps",
    "step_needs",
]
