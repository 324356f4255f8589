"""Local actions: steps of a write beside a running node, for the owner's own processes alone.

Fields called `packed` hold a value in the node protocol's form: the top cell, and the cells that
the node does not have behind their lengths.
"""

from __future__ import annotations

from typing import Annotated

from datalattice.actions.action import ActionKind, ActionRequest, action
from datalattice.actions.formats import CELL_FORMAT, KEY_FORMAT, STORE_ID_FORMAT
from datalattice.cells import Value
from datalattice.protobuf import Field, Message


class WrittenSlots(Message, name="datalattice.v1.WrittenSlots"):
    """Whether it was done; if not, nothing was."""

    done: Annotated[bool, Field(1)] = False


@action("root.stage", ActionKind.EFFECT, "a", "admin", is_local=True)
class StageValues(ActionRequest[WrittenSlots], name="datalattice.v1.StageValuesRequest"):
    """Keep cells that a swap will refer to: `packed` is a Vector of values.

    Not done: cells below them are not here.
    """

    packed: Annotated[bytes, Field(1)] = b""


# Local: a swap is made from slots that its client signed with keys of the folder, so a door has no
# use for it. ONCE: a repeated swap would not find the slots as they were.
@action("root.swap", ActionKind.ONCE, "a", "admin", is_local=True)
class SwapSlots(ActionRequest[WrittenSlots], name="datalattice.v1.SwapSlotsRequest"):
    """Set slots of the root, all or none: `packed` is `[[path hash value] ...]`.

    Not done: a slot no longer has the value with that hash, or cells are missing.
    """

    packed: Annotated[bytes, Field(1)] = b""


class AppendedRecords(Message, name="datalattice.v1.AppendedRecords"):
    """Where records stand in their partition."""

    first: Annotated[int, Field(1, "uint64")] = 0
    count: Annotated[int, Field(2, "uint64")] = 0


# The node gives the offsets, so writers of one queue need no turn of their own.
@action("queue.append", ActionKind.ONCE, "a", "admin", is_local=True)
class AppendRecords(ActionRequest[AppendedRecords], name="datalattice.v1.AppendRecordsRequest"):
    """Append 1 to 10,000 records to a queue as it is at that moment: no other write is in the way.

    packed: `[values keys headers]`, each a Vector; the last two nil, or one for each value.
    """

    owner: Annotated[bytes, Field(1, codec=KEY_FORMAT)] = b""
    topic: Annotated[Value, Field(2, codec=CELL_FORMAT)] = None
    partition: Annotated[Value, Field(3, codec=CELL_FORMAT)] = None
    packed: Annotated[bytes, Field(4)] = b""


class PresentPeer(Message, name="datalattice.v1.PresentPeer"):
    """A connected peer of a store, and what is known of it.

    lag: intentions that it lacks. compared_s, agreed_s: seconds since the two were compared, and
    since they were equal.
    """

    key: Annotated[bytes, Field(1, codec=KEY_FORMAT)] = b""
    equal: Annotated[bool, Field(2)] = False
    dirty: Annotated[bool, Field(3)] = False
    lag: Annotated[int | None, Field(4, "int64")] = None
    compared_s: Annotated[float | None, Field(5)] = None
    agreed_s: Annotated[float | None, Field(6)] = None


class PresentPeers(Message, name="datalattice.v1.PresentPeers"):
    """The connected peers of a store, in the order of their keys."""

    peers: Annotated[tuple[PresentPeer, ...], Field(1)] = ()


@action("stores.presence", ActionKind.QUERY, "r", "stores", is_local=True)
class GetPresence(ActionRequest[PresentPeers], name="datalattice.v1.GetPresenceRequest"):
    """Return what the running node knows of the connected peers of a store."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
