"""Settings: the configuration of a node's folder, read by the node and by client programs."""

from datalattice.client.settings.config import (
    ADDRESS_CONNECTIONS_MAX,
    DEFAULT_PORT,
    PEER_BYTES_MAX,
    ConnectionBounds,
    DoorConfig,
    NodeConfig,
    partial_paths,
    split_listen,
)
from datalattice.client.settings.policyfile import parse_owner, parse_size, policy_document
from datalattice.client.settings.settings import (
    Settings,
    changed_settings,
    load_settings,
    settings_text,
)
from datalattice.client.settings.venueconfig import (
    FunctionConfig,
    SparkJobConfig,
    VenueGridConfig,
    VenueHttpConfig,
    VenuePythonConfig,
    VenueSparkConfig,
    VenueSqlConfig,
)

__all__ = [
    "ADDRESS_CONNECTIONS_MAX",
    "DEFAULT_PORT",
    "PEER_BYTES_MAX",
    "ConnectionBounds",
    "DoorConfig",
    "FunctionConfig",
    "NodeConfig",
    "Settings",
    "SparkJobConfig",
    "VenueGridConfig",
    "VenueHttpConfig",
    "VenuePythonConfig",
    "VenueSparkConfig",
    "VenueSqlConfig",
    "changed_settings",
    "load_settings",
    "parse_owner",
    "parse_size",
    "partial_paths",
    "policy_document",
    "settings_text",
    "split_listen",
]
