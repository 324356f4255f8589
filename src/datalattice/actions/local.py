"""Local actions: steps of a write beside a running node, for the owner's own processes alone.

Fields called `packed` hold a value in the form of the node protocol: the encoding of the top cell,
then the cells that the node lacks, each behind its length.
"""

from __future__ import annotations

from typing import Annotated

from datalattice.actions.action import ActionKind, ActionRequest, action
from datalattice.actions.formats import CELL_FORMAT, KEY_FORMAT, STORE_ID_FORMAT
from datalattice.cells import Value
from datalattice.protobuf import Field, Message


class WrittenSlots(Message, name="datalattice.v1.WrittenSlots"):
    """Whether the whole request was done; False: nothing was."""

    done: Annotated[bool, Field(1)] = False


# EFFECT: cells are named by their hashes, so to store them again changes nothing.
@action("root.stage", ActionKind.EFFECT, "a", "admin", is_local=True)
class StageValues(ActionRequest[WrittenSlots], name="datalattice.v1.StageValuesRequest"):
    """Store cells that a swap will refer to: `packed` is a Vector of values.

    Not done: the store lacks cells below them.
    """

    packed: Annotated[bytes, Field(1)] = b""


# Local: the client signs the slots with keys of the folder, which callers of a door do not have.
# ONCE: a repeated swap would not find the slots as they were.
@action("root.swap", ActionKind.ONCE, "a", "admin", is_local=True)
class SwapSlots(ActionRequest[WrittenSlots], name="datalattice.v1.SwapSlotsRequest"):
    """Set slots of the root, all or none: `packed` is `[[path hash value] ...]`.

    hash: of the value that the slot must have. Not done: a slot has another, or cells are missing.
    """

    packed: Annotated[bytes, Field(1)] = b""


class AppendedRecords(Message, name="datalattice.v1.AppendedRecords"):
    """The offset of the first of the appended records, and their number."""

    first: Annotated[int, Field(1, "uint64")] = 0
    count: Annotated[int, Field(2, "uint64")] = 0


# The node assigns the offsets, so writers of one queue do not conflict.
@action("queue.append", ActionKind.ONCE, "a", "admin", is_local=True)
class AppendRecords(ActionRequest[AppendedRecords], name="datalattice.v1.AppendRecordsRequest"):
    """Append 1 to 10,000 records to a queue, whatever other writers append meanwhile.

    packed: `[values keys headers]`: a Vector of values, and for each of the other two nil or a
    Vector with one item for each value.
    """

    owner: Annotated[bytes, Field(1, codec=KEY_FORMAT)] = b""
    topic: Annotated[Value, Field(2, codec=CELL_FORMAT)] = None
    partition: Annotated[Value, Field(3, codec=CELL_FORMAT)] = None
    packed: Annotated[bytes, Field(4)] = b""


class PresentPeer(Message, name="datalattice.v1.PresentPeer"):
    """A connected peer of a store.

    dirty: messages may have been lost since the last complete comparison. lag: the number of
    intentions that the peer lacks. compared_s, agreed_s: seconds since the two were last compared,
    and last equal.
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
    """Return the state of the running node's connected peers of a store."""

    id: Annotated[bytes, Field(1, codec=STORE_ID_FORMAT)] = b""
