"""Settings: the configuration of a node's folder, read by the node and by client programs."""

from datalattice.client.settings.config import (
    ADDRESS_CONNECTIONS_MAX as ADDRESS_CONNECTIONS_MAX,
    DEFAULT_PORT as DEFAULT_PORT,
    PEER_BYTES_MAX as PEER_BYTES_MAX,
    ConnectionBounds as ConnectionBounds,
    DoorConfig as DoorConfig,
    NodeConfig as NodeConfig,
    partial_paths as partial_paths,
    split_listen as split_listen,
)
from datalattice.client.settings.policyfile import (
    parse_owner as parse_owner,
    parse_size as parse_size,
    policy_document as policy_document,
)
from datalattice.client.settings.settings import (
    Settings as Settings,
    changed_settings as changed_settings,
    load_settings as load_settings,
    settings_text as settings_text,
)
from datalattice.client.settings.venueconfig import (
    FunctionConfig as FunctionConfig,
    SparkJobConfig as SparkJobConfig,
    VenueGridConfig as VenueGridConfig,
    VenueHttpConfig as VenueHttpConfig,
    VenuePythonConfig as VenuePythonConfig,
    VenueSparkConfig as VenueSparkConfig,
    VenueSqlConfig as VenueSqlConfig,
)
