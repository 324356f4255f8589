"""Decisions: what the operator of a node decides about owners and about forks.

The operator may allow, refuse, limit or host an owner, and have its data forgotten. A fork is
resolved by its id; until then its losing branch is kept as evidence beside the slot. These
functions work on a replica. A running node calls them in its lane (`operations`); a tool calls them
on the replica of a folder in which no node runs.

Source: docs/node.md "Hosting", "Forks"; docs/design/forks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from datalattice.actions import (
    AppendedSpan,
    DecideHosting,
    ForgetOwner,
    ForgottenOwner,
    HostingInfo,
    OwnerDecision,
    OwnerUsage,
    ResolvedFork,
    ResolveFork,
)
from datalattice.apps.queue import QUEUE_SECTION, LogBranch, Topics, append_branch
from datalattice.cells import Value, same, to_cell
from datalattice.client.settings import parse_owner, policy_document
from datalattice.clock import Clock
from datalattice.errors import Corruption, MissingData, NoSigningKey, UsageError
from datalattice.lattice import LOG_BRANCH
from datalattice.sync import (
    ForkRecord,
    Hosting,
    LatticeReplica,
    LogLoss,
    owner_text,
    section_name,
)

RULES: Final = ("allow", "refuse", "limit", "host")


def hosting_of(replica: LatticeReplica) -> Hosting:
    """Return the hosting of a replica that has one."""
    hosting = replica.hosting
    assert hosting is not None
    return hosting


def hosting_info(replica: LatticeReplica) -> HostingInfo:
    """Return the policy, the decisions, and what each owner uses."""
    hosting = hosting_of(replica)
    usage: list[OwnerUsage] = []
    for count in hosting.quotas.usage:
        owner = count.slot.owner
        usage.append(
            OwnerUsage(
                section=count.slot.section,
                owner="" if owner is None else owner_text(owner),
                bytes=count.size_bytes,
                cells=count.cells,
                exact=count.since == 0,
                # Own and allowed owners have no limit.
                limited=owner is None or not hosting.rules.is_free(owner),
            )
        )
    usage.sort(key=lambda one: (-one.bytes, one.section, one.owner))
    return HostingInfo(
        policy=to_cell(policy_document(hosting.rules.policy)),
        decisions=tuple(OwnerDecision(**asdict(one)) for one in hosting.rules.table.decisions),
        strangers_bytes=hosting.quotas.strangers_bytes,
        over_quota=tuple(hosting.quotas.short_of()),
        usage=tuple(usage),
    )


def decide_hosting(replica: LatticeReplica, request: DecideHosting) -> HostingInfo:
    """Decide about an owner; durable on return.

    Raises: UsageError: not a rule, not an owner, or the own key would be refused.
    """
    hosting, rule = hosting_of(replica), request.rule
    owner = parse_owner(request.owner)
    if rule not in RULES:
        raise UsageError(f"a rule is {', '.join(RULES[:-1])} or {RULES[-1]}, got {rule!r}")
    if rule == "allow":
        hosting.rules.table.allow(owner)
    elif rule == "host":
        hosting.rules.table.host(owner)
    elif rule == "limit":
        hosting.rules.table.set_limit(owner, request.limit)
    else:
        # "The data of a key that this node holds is forgotten with `--own` only."
        _check_foreign(hosting, owner, "`lattice forget OWNER --own` forgets its data")
        hosting.rules.table.refuse(owner, None, request.reason)
    hosting.quotas.decided()
    return hosting_info(replica)


def refuse_for_good(replica: LatticeReplica, request: ForgetOwner) -> ForgottenOwner:
    """Decide durably to forget the data of an owner; return what will be removed.

    The data leaves the root later, by `LatticeState.drop_refused`.
    Raises: UsageError: an unknown section, or the own key without `own`.
    """
    hosting = hosting_of(replica)
    owner = parse_owner(request.owner)
    names = hosting.rules.section_names
    section = None if request.section is None else request.section.removeprefix(":")
    if section is not None and section not in names:
        raise UsageError(f"no section {section!r} has owners; those are: {', '.join(names)}")
    if not request.own:
        _check_foreign(hosting, owner, "--own forgets its data all the same")

    def sections_of(root: Value) -> list[str]:
        found = [section_name(path) for path, _, _ in hosting.rules.slots_of(root, owner)]
        return [name for name in found if section in (None, name)]

    sections = sections_of(replica.root)
    used = [
        count.size_bytes
        for count in hosting.quotas.usage
        if count.slot.section in sections
        and count.slot.owner is not None
        and owner_text(count.slot.owner) == owner
    ]
    pins, leases, former_roots = _holders(replica, lambda root: bool(sections_of(root)))
    # Refused first, dropped later: otherwise a peer would bring the data back in between.
    hosting.rules.table.refuse(owner, section, request.reason)
    hosting.quotas.decided()
    return ForgottenOwner(
        owner=owner,
        sections=tuple(sections),
        bytes=sum(used),
        pins=pins,
        leases=leases,
        former_roots=former_roots,
    )


def _check_foreign(hosting: Hosting, owner: str, remedy: str) -> None:
    if hosting.rules.is_own_text(owner):
        raise UsageError(f"{owner} is an owner that this node writes for; {remedy}")


def _holders(
    replica: LatticeReplica, has: Callable[[Value], bool]
) -> tuple[tuple[str, ...], int, int]:
    """Return which pins, and how many leases and former roots, also keep an owner's cells."""
    store = replica.store

    def has_any(root_hash: bytes) -> bool:
        try:
            return has(store.load(root_hash))
        except (MissingData, Corruption):  # a damaged former root keeps nothing readable
            return False

    # The present root becomes a former root when the next one lacks the owner's data.
    former = {one.root_hash for one in store.history.entries()}
    return (
        tuple([pin.name for pin in store.pins.all() if has_any(pin.root_hash)]),
        sum(has_any(lease.root_hash) for lease in store.pins.leases()),
        sum(map(has_any, former)),
    )


# --- forks ----------------------------------------------------------------------------------------


WAYS: Final = ("append", "drop")

ID_DIGITS: Final = 64  # an id is 32 bytes in hex


def resolve_fork(replica: LatticeReplica, request: ResolveFork, clock: Clock) -> ResolvedFork:
    """Resolve a fork; return what was done. Durable on return.

    append: the records that the log lacks are appended to it, once; the evidence is removed.
    drop:   the evidence is removed, and is not taken again.
    Raises: UsageError: not an open fork, not a way, or nothing to append.
            NoSigningKey: this node has no key of the owner.
    """
    if request.how not in WAYS:
        raise UsageError(f"a fork is resolved by {' or '.join(WAYS)}, got {request.how!r}")
    record = replica.evidence.records.get(_id_of(request.id))
    if record is None:
        raise UsageError(
            f"no fork {request.id} is open here; `lattice forks list` lists the open ones"
        )
    appended: list[tuple[LogLoss, range]] = []
    if request.how == "drop":
        replica.state.drop_evidence([record.id])
    else:
        _check_appendable(replica, record)
        appended = [
            (log, _append(replica, record.owner, log, branch, clock))
            for log, branch in record.log_branches()
        ]
        replica.cursor.sync()
    return ResolvedFork(
        id=request.id,
        action=request.how,
        appended=tuple(
            AppendedSpan(
                topic=log.topic,
                partition=log.partition,
                offset=offsets.start if offsets else None,
                count=len(offsets),
            )
            for log, offsets in appended
        ),
        removed=record.id not in replica.evidence.records,
    )


def _id_of(text: str) -> bytes:
    try:
        id = bytes.fromhex(text)
    except ValueError:
        id = b""
    if 2 * len(id) != ID_DIGITS:
        raise UsageError(f"the id of a fork has {ID_DIGITS} hex digits, got {text!r}")
    return id


def _check_appendable(replica: LatticeReplica, record: ForkRecord) -> None:
    # "Databases and drives are joined by a node with the owner's key." Only a log loses records in
    # a merge.
    if record.branch != LOG_BRANCH or not same(record.path[0], QUEUE_SECTION):
        raise UsageError(
            "this fork left out no records of a log; a node with the owner's key joins its values"
        )
    if record.loser is None:
        raise UsageError("of this branch only the signature was kept, so nothing can be appended")
    # A record counts only if a key of the owner signed the log.
    if replica.cursor.context.signer(record.owner) is None:
        raise NoSigningKey(
            f"only a node with a key of {owner_text(record.owner)} can append to its log"
        )


def _append(
    replica: LatticeReplica, owner: Value, log: LogLoss, branch: LogBranch, clock: Clock
) -> range:
    queue = Topics.at(replica.cursor, owner).partition(log.topic, log.partition)
    made = range(0)

    def append(value: Value) -> Value:
        nonlocal made
        value, made = append_branch(value, branch, clock.now_ms())
        return value

    queue.cursor.update(append)
    return made
