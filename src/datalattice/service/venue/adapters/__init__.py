"""Adapters of a venue: what runs the operations that every venue can offer."""

from datalattice.service.venue.adapters.hosts import HostRules
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
    MayRead,
    TableRows,
    TableSource,
)
from datalattice.service.venue.adapters.trial import TrialAdapter

__all__ = [
    "HostRules",
    "HttpAdapter",
    "JsonAdapter",
    "LatticeTables",
    "MayRead",
    "OrchestratorAdapter",
    "OutputCheck",
    "ProcessLimits",
    "PythonAdapter",
    "RegisteredFunction",
    "SparkAdapter",
    "SparkOffer",
    "SqlAdapter",
    "SqlLimits",
    "TableRows",
    "TableSource",
    "TrialAdapter",
    "dependencies",
    "evaluate",
    "merge_json",
    "ready_steps",
    "step_needs",
]
