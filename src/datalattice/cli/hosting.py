"""Commands `lattice hosting`, `forget` and `host`: whose data a node takes, and how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from datalattice.cli.folder import DirOption, JsonOption, existing_folder
from datalattice.cli.garbage import collected
from datalattice.cli.render import print_lines, print_pairs, results, show, table
from datalattice.cli.running import on_replica, size_text

if TYPE_CHECKING:
    from datalattice.sync import LatticeReplica

app = typer.Typer(
    help="Whose data this node takes, and how much of it: show and change.",
    invoke_without_command=True,
)

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

OwnerArgument = Annotated[
    str, typer.Argument(help="A public key of 64 hex digits, or a DID.", metavar="OWNER")
]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is kept.")]


@app.callback()
def hosting(context: typer.Context, dir: DirOption = None, json: JsonOption = False) -> None:
    """Show the policy, what was decided about owners, and what they use.

    The policy is the table `[hosting]` of node.toml; decisions are kept with the store and take
    effect at once. Works through the running node, or without one.
    """
    if context.invoked_subcommand is None:
        from datalattice.node import hosting_document

        folder = existing_folder(dir)
        document = on_replica(folder, "hosting.show", {}, hosting_document)
        show(json, document, lambda: _print_hosting(document))


@app.command("allow")
def allow(owner: OwnerArgument, dir: DirOption = None, json: JsonOption = False) -> None:
    """Take the data of an owner without limits."""
    _decide(dir, json, "allow", owner)


@app.command("refuse")
def refuse(
    owner: OwnerArgument,
    reason: ReasonOption = "",
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Take nothing more of an owner; what is here leaves the root with `lattice forget`."""
    _decide(dir, json, "refuse", owner, reason=reason)


@app.command("limit")
def limit(
    owner: OwnerArgument,
    size: Annotated[
        str,
        typer.Argument(
            help='Bytes, or a size such as "64 MB"; "default": as for others.', metavar="SIZE"
        ),
    ],
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Let an owner have so much room here, over all sections."""
    from datalattice.client.settings import parse_size

    number = int(size) if size.isdecimal() else size
    _decide(dir, json, "limit", owner, limit=None if size == "default" else parse_size(number))


def host(owner: OwnerArgument, dir: DirOption = None, json: JsonOption = False) -> None:
    """Take the data of an owner again that was forgotten or refused; peers bring it back."""
    _decide(dir, json, "host", owner)


def forget(
    owner: OwnerArgument,
    section: Annotated[
        str | None, typer.Option("--section", help="Only this section, such as queue.")
    ] = None,
    own: Annotated[
        bool, typer.Option("--own", help="Also when it is this node's own key.")
    ] = False,
    now: Annotated[
        bool, typer.Option("--now", help="Collect garbage at once; else the next collection frees.")
    ] = False,
    reason: ReasonOption = "",
    dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Remove the data of an owner from this node, and take no more of it.

    Peers keep theirs. `lattice host OWNER` ends it, and the data comes back. Pins, leases and
    former roots that still hold it are named. Works through the running node, or without one.
    """
    from datalattice.node import refuse_for_good

    folder = existing_folder(dir)

    def alone(replica: LatticeReplica) -> dict[str, object]:
        document = refuse_for_good(replica, owner, section, own=own, reason=reason)
        replica.state.drop_refused()
        return document

    arguments = {"owner": owner, "section": section, "own": own, "reason": reason}
    document = on_replica(folder, "owner.forget", arguments, alone)
    if now:
        document["collected"] = collected(folder, quiet=json)
    show(json, document, lambda: _print_forgotten(document))


def _decide(dir: Any, json: bool, rule: str, owner: str, **more: Any) -> None:
    from datalattice.node import decide, hosting_document

    def alone(replica: LatticeReplica) -> dict[str, object]:
        decide(replica, rule, owner, **more)
        return hosting_document(replica)

    arguments = {"rule": rule, "owner": owner, **more}
    document = on_replica(existing_folder(dir), "hosting.decide", arguments, alone)
    show(json, document, lambda: _print_decisions(document))


def _print_hosting(document: dict[str, Any]) -> None:
    policy = dict(document["policy"])
    unsigned = policy.pop("unsigned")
    for name in ("allow", "refuse"):
        policy[name] = ", ".join(policy[name]) or "none"
    policy["sections"] = ", ".join(policy["sections"] or ()) or "all"
    pairs = {
        name: size_text(policy[name]) if name.endswith("_bytes") else policy[name]
        for name in SETTINGS
    }
    for section, rule in sorted(unsigned.items()):
        pairs[f"unsigned.{section}"] = f"{rule['from']}, {size_text(rule['strangers_bytes'])}"
    pairs["strangers use"] = size_text(document["strangers_bytes"])
    print_pairs(pairs)
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
        results().print(table(("section", "owner", "bytes", "cells", "limited"), rows))
    print_lines(f"over quota: {one}" for one in document["over_quota"])
    _print_decisions(document)


def _print_decisions(document: dict[str, Any]) -> None:
    print_lines(_decision_text(one) for one in document["decisions"])


def _decision_text(decision: dict[str, Any]) -> str:
    words = [decision["owner"]]
    if decision["allowed"]:
        words.append("allowed")
    if decision["limit"] is not None:
        words.append(f"up to {size_text(decision['limit'])}")
    if decision["refused"]:
        what = "everything" if "*" in decision["refused"] else ", ".join(decision["refused"])
        words.append(f"refused: {what}")
    if decision["reason"]:
        words.append(f"({decision['reason']})")
    return "  ".join(words)


def _print_forgotten(document: dict[str, Any]) -> None:
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
        pairs["given back"] = size_text(freed)
    print_pairs(pairs)
