"""Client: a program's way to a folder or to the running node. It imports nothing of the server."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import datalattice.client.pickling  # noqa: F401 - handles of an open node can be pickled
from datalattice.client.addresses import (
    IROH as IROH,
    PLAIN_SCHEME as PLAIN_SCHEME,
    PORT_MAX as PORT_MAX,
    TLS as TLS,
    PeerAddress as PeerAddress,
    parse_address as parse_address,
    parse_key as parse_key,
    parse_ticket as parse_ticket,
    system_reason as system_reason,
)
from datalattice.client.control import (
    CALL_TIMEOUT_S as CALL_TIMEOUT_S,
    NO_KEY as NO_KEY,
    REQUEST_BYTES_MAX as REQUEST_BYTES_MAX,
    RUNNING_NAME as RUNNING_NAME,
    ControlAnswer as ControlAnswer,
    ControlClient as ControlClient,
    ControlRequest as ControlRequest,
    Progress as Progress,
    Running as Running,
    connect as connect,
    finish as finish,
    folder_id as folder_id,
    packed as packed,
    running as running,
)
from datalattice.client.edits import (
    OFFER_RECORDS_MAX as OFFER_RECORDS_MAX,
    Change as Change,
    Editor as Editor,
    EditTurn as EditTurn,
    NodeEditor as NodeEditor,
    RemoteEditor as RemoteEditor,
    ServingNode as ServingNode,
    try_change as try_change,
)
from datalattice.client.folder import (
    DEFAULT_FOLDER as DEFAULT_FOLDER,
    HOME_VARIABLE as HOME_VARIABLE,
    Folder as Folder,
    OwnKeys as OwnKeys,
    folder_of as folder_of,
    read_key as read_key,
    read_key_pairs as read_key_pairs,
    read_keys_or_none as read_keys_or_none,
    read_node_name as read_node_name,
    take_turn as take_turn,
    write_key as write_key,
    write_node_name as write_node_name,
)
from datalattice.client.garbage import collect as collect
from datalattice.client.identity import (
    begin_folder as begin_folder,
    keys_of as keys_of,
    renew_identity as renew_identity,
)
from datalattice.client.node import Node as Node, Past as Past, open as open
from datalattice.client.openfolder import OpenFolder as OpenFolder, edit as edit, editing as editing
from datalattice.client.opening import (
    ask_first as ask_first,
    node_or_store as node_or_store,
    offline as offline,
    open_store_reader as open_store_reader,
    reading as reading,
    replica_of as replica_of,
    root_named as root_named,
    waiting as waiting,
)
from datalattice.client.owners import (
    forget_name as forget_name,
    name_owner as name_owner,
    owner_of as owner_of,
    owners_in as owners_in,
    read_names as read_names,
    resolve_owner as resolve_owner,
    section_owners as section_owners,
)
from datalattice.client.paths import (
    canonical_path as canonical_path,
    count_of as count_of,
    kind_of as kind_of,
    parse_path_key as parse_path_key,
    value_at as value_at,
)
from datalattice.client.slots import (
    Slot as Slot,
    SlotMoved as SlotMoved,
    WantedSlot as WantedSlot,
    differing_slots as differing_slots,
    present_slots as present_slots,
    read_slots as read_slots,
    with_slots as with_slots,
)

if TYPE_CHECKING:
    from datalattice.client.asyncvenues import AsyncVenueClient as AsyncVenueClient
    from datalattice.client.calling import (
        AsyncClient as AsyncClient,
        Client as Client,
        body_pieces as body_pieces,
    )
    from datalattice.client.forks import FORK_ENTRIES_MAX as FORK_ENTRIES_MAX, Forks as Forks
    from datalattice.client.methods import (
        AsyncStoreMethods as AsyncStoreMethods,
        DescribedMessage as DescribedMessage,
        StoreMethod as StoreMethod,
        StoreMethods as StoreMethods,
    )
    from datalattice.client.rest import (
        INFO_HEADER as INFO_HEADER,
        REST_BASE as REST_BASE,
        RestClient as RestClient,
        problem_error as problem_error,
        written_request as written_request,
    )
    from datalattice.client.results import ResultStream as ResultStream
    from datalattice.client.retrying import (
        IDEMPOTENCY_KEY as IDEMPOTENCY_KEY,
        RetryPolicy as RetryPolicy,
    )
    from datalattice.client.upgrading import (
        check_format as check_format,
        guard_folder as guard_folder,
    )
    from datalattice.client.venues import (
        COMPLETE as COMPLETE,
        VenueClient as VenueClient,
        has_ended as has_ended,
        output_of as output_of,
    )
    from datalattice.client.weaverfolder import WeaverFolder as WeaverFolder

_LATER = {
    **dict.fromkeys(("AsyncClient", "Client", "body_pieces"), "calling"),
    **dict.fromkeys(("FORK_ENTRIES_MAX", "Forks"), "forks"),
    "INFO_HEADER": "rest",
    "ResultStream": "results",
    **dict.fromkeys(
        ("AsyncStoreMethods", "DescribedMessage", "StoreMethod", "StoreMethods"),
        "methods",
    ),
    **dict.fromkeys(("REST_BASE", "RestClient", "problem_error", "written_request"), "rest"),
    **dict.fromkeys(("IDEMPOTENCY_KEY", "RetryPolicy"), "retrying"),
    "AsyncVenueClient": "asyncvenues",
    **dict.fromkeys(("COMPLETE", "VenueClient", "has_ended", "output_of"), "venues"),
    "WeaverFolder": "weaverfolder",
    **dict.fromkeys(("check_format", "guard_folder"), "upgrading"),
}


def __getattr__(name: str) -> Any:
    # Imported on first use: most programs need none of these modules.
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
