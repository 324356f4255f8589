"""Summary: what an operation does, as an s-expression, for people who read a log.

    (genesis "core:kvstore")    (system (peer-status e108f40d45c46d42 :active))
    (data (put "tea" "3"))      ()

Source: docs/weaver.md "History as a graph"; docs/design/weaver.md "S-expressions"
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from datalattice.errors import BadFormat
from datalattice.weaver.machine import Machine
from datalattice.weaver.sexpr import RAW_BYTES_SHOWN, SExpr, SymbolWord, pretty, sexpr_text
from datalattice.weaver.storeid import store_id_text
from datalattice.weaver.systemops import (
    HierarchyOp,
    InviteOp,
    PeerOp,
    PeerStrategy,
    SystemOp,
    UniversalOp,
)

KEY_BYTES_SHOWN: Final = 8  # as the reference shows them
"""Bytes of a key or hash that an expression shows."""


class Summary:
    """What an operation does; each text is made when it is read."""

    __slots__ = ("expression",)

    def __init__(self, expression: SExpr) -> None:
        self.expression = expression

    @property
    def text(self) -> str:
        """All of it, on one line."""
        return sexpr_text(self.expression)

    @property
    def short(self) -> str:
        """One line in which long bytes are cut."""
        return sexpr_text(self.expression, RAW_BYTES_SHOWN)

    @property
    def lines(self) -> list[str]:
        """All of it, over several lines."""
        return pretty(self.expression).split("\n")


def summarize(payload: bytes, hash: bytes, machine: Machine | None) -> Summary:
    """Return what a payload in its envelope does.

    machine: shows the data; None shows its bytes. An undecodable payload is shown as the first
    bytes of the operation's hash.
    """
    return Summary(_expression(payload, hash, machine))


def _expression(payload: bytes, hash: bytes, machine: Machine | None) -> SExpr:
    try:
        envelope = UniversalOp.decode(payload)
        if envelope.genesis is not None:
            return SymbolWord("genesis"), envelope.genesis.store_type
        if envelope.system is not None:
            return SymbolWord("system"), *_system(envelope.system)
        if envelope.app_data is not None:
            if machine is None:
                return SymbolWord("data"), envelope.app_data
            return SymbolWord("data"), *machine.summarize(envelope.app_data)
    except BadFormat:
        return hash[:4]  # history with a foreign machine must still be drawn
    return ()  # "empty payload ()": an acknowledgement


def _system(op: SystemOp) -> Iterator[SExpr]:
    if op.hierarchy is not None:
        yield from _hierarchy(op.hierarchy)
    elif op.peer is not None:
        yield from _peer(op.peer)
    elif op.strategy is not None and op.strategy.set is not None:
        yield SymbolWord("peer-strategy"), *_strategy(op.strategy.set.strategy or PeerStrategy())
    elif op.store is not None and op.store.set_name is not None:
        yield SymbolWord("store-name"), op.store.set_name.name
    elif op.invite is not None:
        yield from _invite(op.invite)
    elif op.batch is not None:
        for inner in op.batch.ops:
            yield from _system(inner)


def _hierarchy(op: HierarchyOp) -> Iterator[SExpr]:
    if op.add_child is not None:
        child = op.add_child
        yield (
            SymbolWord("child-add"),
            store_id_text(child.target_id),
            SymbolWord(":type"),
            child.store_type,
            SymbolWord(":name"),
            child.alias,
        )
    elif op.remove_child is not None:
        yield SymbolWord("child-remove"), store_id_text(op.remove_child.target_id)
    elif op.set_status is not None:
        id = store_id_text(op.set_status.target_id)
        yield SymbolWord("child-status"), id, _word(op.set_status.status)


def _peer(op: PeerOp) -> Iterator[SExpr]:
    key = op.pubkey[:KEY_BYTES_SHOWN]
    if op.set_status is not None:
        yield SymbolWord("peer-status"), key, _word(op.set_status.status)
    elif op.set_added_at is not None:
        yield SymbolWord("peer-added-at"), key, op.set_added_at.timestamp
    elif op.set_added_by is not None:
        yield SymbolWord("peer-added-by"), key, op.set_added_by.pubkey[:KEY_BYTES_SHOWN]
    elif op.set_name is not None:
        yield SymbolWord("peer-name"), key, op.set_name.name


def _strategy(strategy: PeerStrategy) -> Iterator[SExpr]:
    if strategy.inherited is not None:
        yield SymbolWord(":inherited")
    elif strategy.snapshot is not None:
        yield SymbolWord(":snapshot")
        yield store_id_text(strategy.snapshot)
    else:
        yield SymbolWord(":independent")


def _invite(op: InviteOp) -> Iterator[SExpr]:
    token = op.token_hash[:KEY_BYTES_SHOWN]
    if op.set_status is not None:
        yield SymbolWord("invite-status"), token, _word(op.set_status.status)
    elif op.set_invited_by is not None:
        yield SymbolWord("invite-invited-by"), token, op.set_invited_by.pubkey[:KEY_BYTES_SHOWN]
    elif op.set_claimed_by is not None:
        yield SymbolWord("invite-claimed-by"), token, op.set_claimed_by.pubkey[:KEY_BYTES_SHOWN]


def _word(status: int) -> SymbolWord:
    # An enum of a later version arrives as a number.
    return SymbolWord(f":{status.name.lower()}" if isinstance(status, IntEnum) else f":{status}")
