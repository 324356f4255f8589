"""Actions on hosting: whose data the node takes and how much, and forgetting data."""

from __future__ import annotations

from typing import Annotated

from datalattice.actions.action import GET, PUT, ActionKind, ActionRequest, Route, action
from datalattice.actions.formats import CELL_FORMAT
from datalattice.cells import Value
from datalattice.protobuf import Field, Message


class OwnerDecision(Message, name="datalattice.v1.OwnerDecision"):
    """A decision about an owner. refused: sections, "*" for all. limit: bytes, None: as others."""

    owner: Annotated[str, Field(1)] = ""
    allowed: Annotated[bool, Field(2)] = False
    limit: Annotated[int | None, Field(3, "uint64")] = None
    refused: Annotated[tuple[str, ...], Field(4)] = ()
    since_ms: Annotated[int, Field(5, "int64")] = 0
    reason: Annotated[str, Field(6)] = ""


class OwnerUsage(Message, name="datalattice.v1.OwnerUsage"):
    """The room that an owner's data takes in a section. owner: "" for unsigned data of strangers.

    exact: no bytes were added since the last full count. limited: a quota applies.
    """

    section: Annotated[str, Field(1)] = ""
    owner: Annotated[str, Field(2)] = ""
    bytes: Annotated[int, Field(3, "uint64")] = 0
    cells: Annotated[int, Field(4, "uint64")] = 0
    exact: Annotated[bool, Field(5)] = False
    limited: Annotated[bool, Field(6)] = False


class HostingInfo(Message, name="datalattice.v1.HostingInfo"):
    """The policy of the settings, the decisions made at run time, and the room that owners use."""

    policy: Annotated[Value, Field(1, codec=CELL_FORMAT)] = None
    decisions: Annotated[tuple[OwnerDecision, ...], Field(2)] = ()
    strangers_bytes: Annotated[int, Field(3, "uint64")] = 0
    over_quota: Annotated[tuple[str, ...], Field(4)] = ()
    usage: Annotated[tuple[OwnerUsage, ...], Field(5)] = ()


# For admins: it names owners, whose keys others need not learn here.
@action("hosting.get", ActionKind.QUERY, "r", "admin", GET("/hosting"))
class GetHosting(ActionRequest[HostingInfo], name="datalattice.v1.GetHostingRequest"):
    """Return whose data the node takes, and how much each owner uses."""


# EFFECT: a decision replaces the previous one, so a repeated one changes nothing.
@action("hosting.put", ActionKind.EFFECT, "a", "admin", PUT("/hosting/{owner}"))
class DecideHosting(ActionRequest[HostingInfo], name="datalattice.v1.DecideHostingRequest"):
    """Decide about an owner: "allow", "refuse", "limit" or "host".

    allow: take its data without limits. refuse: take no more. limit: take up to `limit` bytes; None
    for the limit of others. host: take its data again after "refuse" or `owners.forget`.
    """

    owner: Annotated[str, Field(1)] = ""
    rule: Annotated[str, Field(2)] = ""
    limit: Annotated[int | None, Field(3, "uint64")] = None
    reason: Annotated[str, Field(4)] = ""


class ForgottenOwner(Message, name="datalattice.v1.ForgottenOwner"):
    """The data of an owner that was removed, and what still holds it: pins, leases, former roots.

    sections, bytes: what left the root.
    """

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

    own: allow it for an owner whose key this node holds. `hosting.put` with "host" takes its data
    again.
    """

    owner: Annotated[str, Field(1)] = ""
    section: Annotated[str | None, Field(2)] = None
    own: Annotated[bool, Field(3)] = False
    reason: Annotated[str, Field(4)] = ""


class ForgottenRoots(Message, name="datalattice.v1.ForgottenRoots"):
    """The number of former roots that were forgotten."""

    count: Annotated[int, Field(1, "uint64")] = 0


# As `owners.forget`: the answer has a body. EFFECT: roots that are gone stay gone.
@action("history.forget", ActionKind.EFFECT, "a", "admin", Route("DELETE", "/history"))
class ForgetRoots(ActionRequest[ForgottenRoots], name="datalattice.v1.ForgetRootsRequest"):
    """Forget the roots that were replaced before a time in Unix milliseconds.

    The next collection of garbage frees their room; pins and the present root stay.
    """

    before_ms: Annotated[int, Field(1, "int64")] = 0
