"""Client: a program's way to a folder or to the running node. It imports nothing of the server."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import datalattice.client.pickling  # noqa: F401 - handles of an open node can be pickled
from datalattice.client.addresses import (
    IROH,
    PLAIN,
    PORT_MAX,
    TLS,
    PeerAddress,
    parse_address,
    parse_key,
    parse_ticket,
    system_reason,
)
from datalattice.client.control import (
    CALL_TIMEOUT_S,
    NO_KEY,
    REQUEST_BYTES_MAX,
    RUNNING_NAME,
    ControlAnswer,
    ControlClient,
    ControlRequest,
    Progress,
    Running,
    connect,
    finish,
    folder_id,
    packed,
    running,
)
from datalattice.client.edits import (
    OFFER_RECORDS_MAX,
    Change,
    Editor,
    EditTurn,
    NodeEditor,
    RemoteEditor,
    ServingNode,
    take_turn,
)
from datalattice.client.folder import (
    DEFAULT_FOLDER,
    HOME_VARIABLE,
    Folder,
    OwnKeys,
    folder_of,
    read_key,
    read_keys,
    read_keys_or_none,
    read_node_name,
    write_key,
    write_node_name,
)
from datalattice.client.garbage import collect
from datalattice.client.identity import begin_folder, keys_of, renew_identity
from datalattice.client.node import Node, Past, open
from datalattice.client.openfolder import OpenFolder, edit, editing
from datalattice.client.opening import (
    ask_first,
    node_or_store,
    offline,
    open_reader,
    reading,
    replica_of,
    root_named,
    waiting,
)
from datalattice.client.owners import (
    forget_name,
    name_owner,
    owner_of,
    owners_in,
    read_names,
    resolve_owner,
    section_owners,
)
from datalattice.client.paths import (
    canonical_path,
    count_of,
    kind_of,
    parse_path_key,
    value_at,
)
from datalattice.client.slots import (
    Slot,
    SlotMoved,
    WantedSlot,
    differing,
    present_slots,
    read_slots,
    with_slots,
)

if TYPE_CHECKING:
    from datalattice.client.asyncvenues import AsyncVenueClient
    from datalattice.client.calling import AsyncClient, Client, body_pieces
    from datalattice.client.forks import FORK_ENTRIES_MAX, Forks
    from datalattice.client.methods import (
        AsyncStoreMethods,
        DescribedMessage,
        ResultStream,
        StoreMethod,
        StoreMethods,
    )
    from datalattice.client.rest import (
        INFO_HEADER,
        REST_BASE,
        RestClient,
        problem_error,
        written_request,
    )
    from datalattice.client.retrying import IDEMPOTENCY_KEY, RetryPolicy
    from datalattice.client.upgrading import check_format, guard_folder
    from datalattice.client.venues import VenueClient, has_ended, output_of
    from datalattice.client.weaverfolder import WeaverFolder

_LATER = {
    **dict.fromkeys(("AsyncClient", "Client", "body_pieces"), "calling"),
    **dict.fromkeys(("FORK_ENTRIES_MAX", "Forks"), "forks"),
    "INFO_HEADER": "rest",
    **dict.fromkeys(
        ("AsyncStoreMethods", "DescribedMessage", "ResultStream", "StoreMethod", "StoreMethods"),
        "methods",
    ),
    **dict.fromkeys(("REST_BASE", "RestClient", "problem_error", "written_request"), "rest"),
    **dict.fromkeys(("IDEMPOTENCY_KEY", "RetryPolicy"), "retrying"),
    "AsyncVenueClient": "asyncvenues",
    **dict.fromkeys(("VenueClient", "has_ended", "output_of"), "venues"),
    "WeaverFolder": "weaverfolder",
    **dict.fromkeys(("check_format", "guard_folder"), "upgrading"),
}


def __getattr__(name: str) -> Any:
    # Loaded when it is asked for: most programs use the lattices alone.
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


__all__ = [
    "CALL_TIMEOUT_S",
    "DEFAULT_FOLDER",
    "FORK_ENTRIES_MAX",
    "HOME_VARIABLE",
    "IDEMPOTENCY_KEY",
    "INFO_HEADER",
    "IROH",
    "NO_KEY",
    "OFFER_RECORDS_MAX",
    "PLAIN",
    "PORT_MAX",
    "REQUEST_BYTES_MAX",
    "REST_BASE",
    "RUNNING_NAME",
    "TLS",
    "AsyncClient",
    "AsyncStoreMethods",
    "AsyncVenueClient",
    "Change",
    "Client",
    "ControlAnswer",
    "ControlClient",
    "ControlRequest",
    "DescribedMessage",
    "EditTurn",
    "Editor",
    "Folder",
    "Forks",
    "Node",
    "NodeEditor",
    "OpenFolder",
    "OwnKeys",
    "Past",
    "PeerAddress",
    "Progress",
    "RemoteEditor",
    "RestClient",
    "ResultStream",
    "RetryPolicy",
    "Running",
    "ServingNode",
    "Slot",
    "SlotMoved",
    "StoreMethod",
    "StoreMethods",
    "VenueClient",
    "WantedSlot",
    "WeaverFolder",
    "ask_first",
    "begin_folder",
    "body_pieces",
    "canonical_path",
    "check_format",
    "collect",
    "connect",
    "count_of",
    "differing",
    "edit",
    "editing",
    "finish",
    "folder_id",
    "folder_of",
    "forget_name",
    "guard_folder",
    "has_ended",
    "keys_of",
    "kind_of",
    "name_owner",
    "node_or_store",
    "offline",
    "open",
    "open_reader",
    "output_of",
    "owner_of",
    "owners_in",
    "packed",
    "parse_address",
    "parse_key",
    "parse_path_key",
    "parse_ticket",
    "present_slots",
    "problem_error",
    "read_key",
    "read_keys",
    "read_keys_or_none",
    "read_names",
    "read_node_name",
    "read_slots",
    "reading",
    "renew_identity",
    "replica_of",
    "resolve_owner",
    "root_named",
    "running",
    "section_owners",
    "system_reason",
    "take_turn",
    "value_at",
    "waiting",
    "with_slots",
    "write_key",
    "write_node_name",
    "written_request",
]
