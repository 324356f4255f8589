"""Actions on whose data a node takes, and on what it forgets."""

from __future__ import annotations

from typing import Annotated

from datalattice.actions.action import GET, PUT, ActionKind, ActionRequest, Route, action
from datalattice.actions.formats import CELL_FORMAT
from datalattice.cells import Value
from datalattice.protobuf import Field, Message


class OwnerDecision(Message, name="datalattice.v1.OwnerDecision"):
    """What was decided about an owner. refused: sections, "*" for all. limit: bytes."""

    owner: Annotated[str, Field(1)] = ""
    allowed: Annotated[bool, Field(2)] = False
    limit: Annotated[int | None, Field(3, "uint64")] = None
    refused: Annotated[tuple[str, ...], Field(4)] = ()
    since_ms: Annotated[int, Field(5, "int64")] = 0
    reason: Annotated[str, Field(6)] = ""


class OwnerUsage(Message, name="datalattice.v1.OwnerUsage"):
    """What an owner's data takes in a section. owner: "" for unsigned data of strangers."""

    section: Annotated[str, Field(1)] = ""
    owner: Annotated[str, Field(2)] = ""
    bytes: Annotated[int, Field(3, "uint64")] = 0
    cells: Annotated[int, Field(4, "uint64")] = 0
    exact: Annotated[bool, Field(5)] = False
    limited: Annotated[bool, Field(6)] = False


class HostingInfo(Message, name="datalattice.v1.HostingInfo"):
    """The policy as the settings have it, what was decided since, and what owners use."""

    policy: Annotated[Value, Field(1, codec=CELL_FORMAT)] = None
    decisions: Annotated[tuple[OwnerDecision, ...], Field(2)] = ()
    strangers_bytes: Annotated[int, Field(3, "uint64")] = 0
    over_quota: Annotated[tuple[str, ...], Field(4)] = ()
    usage: Annotated[tuple[OwnerUsage, ...], Field(5)] = ()


@action("hosting.get", ActionKind.QUERY, "r", "admin", GET("/hosting"))
class GetHosting(ActionRequest[HostingInfo], name="datalattice.v1.GetHostingRequest"):
    """Return whose data the node takes, and how much of it there is."""


# PUT: a decision replaces the one before, so to make it twice is to make it once.
@action("hosting.put", ActionKind.EFFECT, "a", "admin", PUT("/hosting/{owner}"))
class DecideHosting(ActionRequest[HostingInfo], name="datalattice.v1.DecideHostingRequest"):
    """Decide about an owner: "allow", "refuse", "limit" or "host".

    allow: without limits. refuse: nothing more. limit: up to `limit` bytes, or as for others. host:
    again, after it was refused or forgotten.
    """

    owner: Annotated[str, Field(1)] = ""
    rule: Annotated[str, Field(2)] = ""
    limit: Annotated[int | None, Field(3, "uint64")] = None
    reason: Annotated[str, Field(4)] = ""


class ForgottenOwner(Message, name="datalattice.v1.ForgottenOwner"):
    """What of an owner left the root, and which pins, leases and former roots still hold it."""

    owner: Annotated[str, Field(1)] = ""
    sections: Annotated[tuple[str, ...], Field(2)] = ()
    bytes: Annotated[int, Field(3, "uint64")] = 0
    pins: Annotated[tuple[str, ...], Field(4)] = ()
    leases: Annotated[int, Field(5, "uint32")] = 0
    former_roots: Annotated[int, Field(6, "uint32")] = 0


# A route of its own, since the answer has a body: `DELETE` answers 204 without one.
@action("owners.forget", ActionKind.EFFECT, "a", "admin", Route("DELETE", "/owners/{owner}"))
class ForgetOwner(ActionRequest[ForgottenOwner], name="datalattice.v1.ForgetOwnerRequest"):
    """Remove the data of an owner from this node, of one section or all, and take no more of it.

    own: also the data of a key that this node holds. "host" in `hosting.put` ends it.
    """

    owner: Annotated[str, Field(1)] = ""
    section: Annotated[str | None, Field(2)] = None
    own: Annotated[bool, Field(3)] = False
    reason: Annotated[str, Field(4)] = ""


class ForgottenRoots(Message, name="datalattice.v1.ForgottenRoots"):
    """How many former roots were forgotten."""

    count: Annotated[int, Field(1, "uint64")] = 0


@action("history.forget", ActionKind.EFFECT, "a", "admin", Route("DELETE", "/history"))
class ForgetRoots(ActionRequest[ForgottenRoots], name="datalattice.v1.ForgetRootsRequest"):
    """Forget the roots that were replaced before a time in Unix milliseconds.

    Their room is given back by the next collection; pins and the present root stay.
    """

    before_ms: Annotated[int, Field(1, "int64")] = 0
