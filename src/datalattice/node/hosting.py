"""Hosting: the operator's view of a node's hosting policy, and decisions while the node runs.

Everything here works on a replica; a running node does it in a turn of its lane, a tool on the
replica of a folder in which no node runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from datalattice.cells import Map, Value, to_cell
from datalattice.client.settings import parse_owner, policy_document
from datalattice.errors import Corruption, MissingData, UsageError
from datalattice.node.server import NodeServer
from datalattice.store import CellStore
from datalattice.sync import Hosting, LatticeReplica, owner_text, section_name

RULES: Final = ("allow", "refuse", "limit", "host")


def hosting_of(replica: LatticeReplica) -> Hosting:
    """Return the hosting of a replica that has one."""
    hosting = replica.hosting
    assert hosting is not None
    return hosting


def hosting_document(replica: LatticeReplica) -> dict[str, object]:
    """Return the policy, what was decided, and what owners use, for tools."""
    hosting = hosting_of(replica)
    rows: list[dict[str, object]] = []
    for count in hosting.usage:
        owner = count.slot.owner
        is_limited = owner is None or not (hosting.is_own(owner) or hosting.is_allowed(owner))
        rows.append(
            {
                "section": count.slot.section,
                "owner": "" if owner is None else owner_text(owner),
                "bytes": count.size_bytes,
                "cells": count.cells,
                "exact": count.since == 0,
                "limited": is_limited,
            }
        )
    rows.sort(key=lambda row: (-int(str(row["bytes"])), str(row["section"]), str(row["owner"])))
    return {
        "policy": policy_document(hosting.policy),
        "decisions": [asdict(one) for one in hosting.table.decisions],
        "strangers_bytes": hosting.strangers_bytes(),
        "over_quota": hosting.short_of(),
        "usage": rows,
    }


def decide(
    replica: LatticeReplica, rule: str, owner: str, *, limit: int | None = None, reason: str = ""
) -> None:
    """Change what is decided about an owner; durable on return.

    Raises: UsageError: no such rule, no owner, or one's own key that is to be refused.
    """
    hosting = hosting_of(replica)
    owner = parse_owner(owner)
    if rule not in RULES:
        raise UsageError(f"a rule is {', '.join(RULES[:-1])} or {RULES[-1]}, got {rule!r}")
    if rule == "allow":
        hosting.table.allow(owner)
    elif rule == "host":
        hosting.table.host(owner)
    elif rule == "limit":
        hosting.table.set_limit(owner, limit)
    else:
        _check_foreign(hosting, owner, "`lattice forget OWNER --own` forgets its data")
        hosting.table.refuse(owner, None, reason)
    hosting.decided()


def refuse_for_good(
    replica: LatticeReplica, owner: str, section: str | None, *, own: bool, reason: str
) -> dict[str, object]:
    """Decide that the data of an owner is forgotten, durably; return what will go, for tools.

    The root still has it: see `LatticeReplica.drop_refused`.
    Raises: UsageError: a section that there is none of, or one's own key without `own`.
    """
    hosting = hosting_of(replica)
    owner = parse_owner(owner)
    names = hosting.section_names
    section = None if section is None else section.removeprefix(":")
    if section is not None and section not in names:
        raise UsageError(f"no section {section!r} has owners; those are: {', '.join(names)}")
    if not own:
        _check_foreign(hosting, owner, "--own forgets its data all the same")

    def sections_of(root: Value) -> list[str]:
        found = [section_name(path) for path, _, _ in hosting.slots_of(root, owner)]
        return [name for name in found if section in (None, name)]

    sections = sections_of(replica.root)
    used = [
        count.size_bytes
        for count in hosting.usage
        if count.slot.section in sections
        and count.slot.owner is not None
        and owner_text(count.slot.owner) == owner
    ]
    document: dict[str, object] = {"owner": owner, "sections": sections, "bytes": sum(used)}
    document |= _holders(replica, lambda root: bool(sections_of(root)))
    hosting.table.refuse(owner, section, reason)
    hosting.decided()
    return document


def _check_foreign(hosting: Hosting, owner: str, remedy: str) -> None:
    """Check that no key of this node may sign for an owner.

    Raises: UsageError: one may.
    """
    if hosting.is_own_text(owner):
        raise UsageError(f"{owner} is an owner that this node writes for; {remedy}")


def _holders(replica: LatticeReplica, has: Callable[[Value], bool]) -> dict[str, object]:
    """Return what else keeps an owner's cells here: pins, leases and former roots that have it."""
    store = replica.store
    if not isinstance(store, CellStore):
        return {"pins": [], "leases": 0, "former_roots": 0}

    def has_any(root_hash: bytes) -> bool:
        try:
            return has(store.load(root_hash))
        except (MissingData, Corruption):
            return False

    # The present root is a former one when this is done.
    former = {one.root_hash for one in store.history.entries()}
    return {
        "pins": [pin.name for pin in store.pins.all() if has_any(pin.root_hash)],
        "leases": sum(has_any(lease.root_hash) for lease in store.leases.live()),
        "former_roots": sum(map(has_any, former)),
    }


# --- through a running node -----------------------------------------------------------------------


async def show(node: NodeServer) -> Value:
    """Return the answer to `hosting.show`."""
    return to_cell(await node.house.ask(hosting_document))


async def change(node: NodeServer, arguments: Map) -> Value:
    """Do what `hosting.decide` asks for; return the new table.

    Raises: UsageError: as `decide`.
    """
    rule, owner = _text(arguments, "rule"), _text(arguments, "owner")
    limit = arguments.get("limit")
    if limit is not None and (type(limit) is not int or limit < 0):
        raise UsageError(f"limit is a number of bytes, got {limit!r}")
    size = limit if type(limit) is int else None
    reason = str(arguments.get("reason") or "")
    await node.house.ask(lambda replica: decide(replica, rule, owner, limit=size, reason=reason))
    if rule in ("allow", "host"):
        node.look_for_more()
    return await show(node)


async def forget(node: NodeServer, arguments: Map) -> Value:
    """Do what `owner.forget` asks for; return what went.

    Raises: UsageError: as `refuse_for_good`.
    """
    owner, section = _text(arguments, "owner"), arguments.get("section")
    if section is not None and not isinstance(section, str):
        raise UsageError(f"section is a text, got {section!r}")
    own, reason = arguments.get("own") is True, str(arguments.get("reason") or "")
    document = await node.house.ask(
        lambda replica: refuse_for_good(replica, owner, section, own=own, reason=reason)
    )
    await node.house.forget()
    return to_cell(document)


def _text(arguments: Map, name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise UsageError(f"{name} is a text, got {value!r}")
    return value
