"""Commands `lattice hosting`, `forget` and `host`: whose data a node stores, and how much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from datalattice.actions import (
    DecideHosting,
    ForgetOwner,
    ForgottenOwner,
    GetHosting,
    whole_document,
)
from datalattice.cli.command import FOLDER, Call, command
from datalattice.cli.disk.garbage import collected
from datalattice.cli.render import CommandResult, Listing, pair_lines
from datalattice.cli.units import size_text
from datalattice.client import owners_in

if TYPE_CHECKING:
    from datalattice.sync import LatticeReplica

app = typer.Typer(help="Show and change whose data this node stores, and how much of it.")

SETTINGS: Final = (
    "sections",
    "owners",
    "allow",
    "refuse",
    "owner_bytes",
    "owner_cells",
    "strangers_bytes",
    "reserve_bytes",
)
"""The settings of the policy, in the order in which they are printed."""

# "An owner is a public key of 64 hex digits or a DID" (docs/node.md "Hosting"); short forms are for
# owners whose data is here.
OwnerArgument = Annotated[
    str,
    typer.Argument(
        help="A public key in hex, 4 or more of its first digits, a local name, or a DID.",
        metavar="OWNER",
    ),
]
KEY_DIGITS: Final = 64
"""Hex digits of a public key."""

ReasonOption = Annotated[str, typer.Option("--reason", help="The reason, stored with it.")]


@command(app, "show", FOLDER)
def hosting(call: Call) -> CommandResult:
    """Show the policy, the decisions about owners, and their usage.

    The policy is the table `[hosting]` of node.toml. Decisions are stored with the data and take
    effect at once. Works through the running node, or without one.
    """
    from datalattice.node import hosting_info

    document = whole_document(call.on_replica(GetHosting(), hosting_info))
    return CommandResult(document, _hosting_lines(document))


@command(app, "allow", FOLDER)
def allow(call: Call, owner: OwnerArgument) -> CommandResult:
    """Store the data of an owner without limits."""
    return _decide(call, "allow", owner)


@command(app, "refuse", FOLDER)
def refuse(call: Call, owner: OwnerArgument, reason: ReasonOption = "") -> CommandResult:
    """Accept no more data of an owner; `lattice forget` removes the present data from the root."""
    return _decide(call, "refuse", owner, reason=reason)


@command(app, "limit", FOLDER)
def limit(
    call: Call,
    owner: OwnerArgument,
    size: Annotated[
        str,
        typer.Argument(
            help='Bytes, or a size such as "64 MB"; "default": the limit of other owners.',
            metavar="SIZE",
        ),
    ],
) -> CommandResult:
    """Limit the space of an owner here, over all sections."""
    from datalattice.client.settings import parse_size

    number = int(size) if size.isdecimal() else size  # digits alone are bytes
    return _decide(call, "limit", owner, limit=None if size == "default" else parse_size(number))


@command(None, "host", FOLDER)
def host(call: Call, owner: OwnerArgument) -> CommandResult:
    """Store the data of a forgotten or refused owner again; peers bring it back."""
    return _decide(call, "host", owner)


@command(None, "forget", FOLDER)
def forget(
    call: Call,
    owner: OwnerArgument,
    section: Annotated[
        str | None, typer.Option("--section", help="Only this section, such as queue.")
    ] = None,
    own: Annotated[bool, typer.Option("--own", help="Allow this for the node's own key.")] = False,
    now: Annotated[
        bool, typer.Option("--now", help="Collect garbage now, not at the next collection.")
    ] = False,
    reason: ReasonOption = "",
) -> CommandResult:
    """Remove the data of an owner from this node, and accept no more of it.

    Peers keep their copies. `lattice host OWNER` reverses it, and the data comes back. Pins, leases
    and former roots that still have the data are listed. Works through the running node, or without
    one.
    """
    from datalattice.node import refuse_for_good  # imported here: most commands need no server

    request = ForgetOwner(owner=_owner_text(call, owner), section=section, own=own, reason=reason)

    def alone(replica: LatticeReplica) -> ForgottenOwner:
        gone = refuse_for_good(replica, request)
        # "commits a root without its data" (docs/node.md "Hosting")
        replica.state.drop_refused()
        return gone

    document = whole_document(call.on_replica(request, alone))
    # "The next collection frees the room; `--now` collects at once." (docs/node.md "Hosting")
    if now:
        document["collected"] = collected(call)
    return CommandResult(document, pair_lines(_forgotten(document)))


def _owner_text(call: Call, owner: str) -> str:
    """Return an owner in the form of requests: a key in hex, or an unchanged DID."""
    if owner.startswith("did:"):
        return owner
    # A full key needs no store, so that an owner can be refused before any of its data is here.
    known = owners_in(call.root()) if len(owner) < KEY_DIGITS else []
    return call.owner_named(owner, known).hex()


def _decide(call: Call, rule: str, owner: str, **more: Any) -> CommandResult:
    from datalattice.node import decide_hosting

    request = DecideHosting(owner=_owner_text(call, owner), rule=rule, **more)
    document = whole_document(call.on_replica(request, lambda one: decide_hosting(one, request)))
    return CommandResult(document, map(_decision_text, document["decisions"]))


def _hosting_lines(document: dict[str, Any]) -> Iterator[str | Listing]:
    policy = dict(document["policy"])
    unsigned = policy.pop("unsigned")
    for name in ("allow", "refuse"):  # an empty list reads as "none", not as a gap
        policy[name] = ", ".join(policy[name]) or "none"
    # Without a list, all sections are hosted.
    policy["sections"] = ", ".join(policy["sections"] or ()) or "all"
    pairs = {
        name: size_text(policy[name]) if name.endswith("_bytes") else policy[name]
        for name in SETTINGS
    }
    for section, rule in sorted(unsigned.items()):
        pairs[f"unsigned.{section}"] = f"{rule['from']}, {size_text(rule['strangers_bytes'])}"
    pairs["strangers use"] = size_text(document["strangers_bytes"])
    yield from pair_lines(pairs)
    if document["usage"]:
        rows = [
            (
                row["section"],
                row["owner"] or "(unsigned, of strangers)",
                size_text(row["bytes"]),
                row["cells"],
                "yes" if row["limited"] else "no",
            )
            for row in document["usage"]
        ]
        yield Listing(("section", "owner", "bytes", "cells", "limited"), rows)
    yield from (f"over quota: {one}" for one in document["over_quota"])
    yield from map(_decision_text, document["decisions"])


def _decision_text(decision: dict[str, Any]) -> str:
    words = [decision["owner"]]
    if decision["allowed"]:
        words.append("allowed")
    if decision["limit"] is not None:
        words.append(f"up to {size_text(decision['limit'])}")
    if decision["refused"]:
        # "*" stands for every section.
        what = "everything" if "*" in decision["refused"] else ", ".join(decision["refused"])
        words.append(f"refused: {what}")
    if decision["reason"]:
        words.append(f"({decision['reason']})")
    return "  ".join(words)


def _forgotten(document: dict[str, Any]) -> dict[str, object]:
    pairs: dict[str, object] = {
        "forgotten": document["owner"],
        "sections": ", ".join(document["sections"]) or "nothing was here",
    }
    if document["pins"]:
        pairs["still pinned"] = ", ".join(document["pins"])
    if document["leases"]:
        pairs["still leased"] = document["leases"]
    if document["former_roots"]:
        pairs["former roots"] = (
            f"{document['former_roots']} still have it; `lattice disk forget 0s` forgets them"
        )
    collected = document.get("collected")
    if collected is not None:
        freed = collected["bytes_before"] - collected["bytes_after"]
        pairs["freed"] = size_text(freed)
    return pairs
