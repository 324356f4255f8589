"""Adapters of a venue: they run the operations that every venue can offer."""

from datalattice.service.venue.adapters.assets import (
    AssetAdapter as AssetAdapter,
    AssetSource as AssetSource,
)
from datalattice.service.venue.adapters.configured import (
    AdapterMaker as AdapterMaker,
    configured_adapters as configured_adapters,
    configured_storage as configured_storage,
    configured_venues as configured_venues,
)
from datalattice.service.venue.adapters.grid import GridAdapter as GridAdapter, OwnJobs as OwnJobs
from datalattice.service.venue.adapters.hosts import (
    HostRules as HostRules,
    HostUnreached as HostUnreached,
)
from datalattice.service.venue.adapters.http import HttpAdapter as HttpAdapter
from datalattice.service.venue.adapters.json_values import (
    JsonAdapter as JsonAdapter,
    merge_json as merge_json,
)
from datalattice.service.venue.adapters.orchestrator import (
    OrchestratorAdapter as OrchestratorAdapter,
    OutputCheck as OutputCheck,
)
from datalattice.service.venue.adapters.plans import (
    dependencies as dependencies,
    evaluate as evaluate,
    ready_steps as ready_steps,
    step_needs as step_needs,
)
from datalattice.service.venue.adapters.python import (
    PythonAdapter as PythonAdapter,
    RegisteredFunction as RegisteredFunction,
)
from datalattice.service.venue.adapters.spark import (
    SparkAdapter as SparkAdapter,
    SparkOffer as SparkOffer,
)
from datalattice.service.venue.adapters.sql import SqlAdapter as SqlAdapter
from datalattice.service.venue.adapters.tables import (
    LatticeTables as LatticeTables,
    MayDo as MayDo,
    TableRows as TableRows,
    TableSource as TableSource,
)
from datalattice.service.venue.adapters.trial import TrialAdapter as TrialAdapter
from datalattice.service.venue.adapters.venues import (
    RemoteVenues as RemoteVenues,
    VenueCalls as VenueCalls,
    VenueDoor as VenueDoor,
    VenueRules as VenueRules,
)
