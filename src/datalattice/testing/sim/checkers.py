"""Checkers: rules that must hold in every simulation, each a small object that receives events.

A checker overrides the hooks it needs and calls `fail`. It watches the hosts of one kind of
replica. The rules for every kind are in `neutral_checkers`, those for lattices in
`lattice_checkers` and `trust`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NoReturn


class Violation(Exception):
    """A rule was broken. `rule` names it."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule
        self.text = text


class SimChecker:
    """Base of checkers. Every hook does nothing by default.

    A hook's `node` is the checked host: a `SimHost` of the kind that the checker is for.
    """

    rule = ""
    """Name of the rule; default: the name of the class in lower case."""

    def fail(self, text: str) -> NoReturn:
        """End the run.

        Raises: Violation: always.
        """
        raise Violation(self.rule or type(self).__name__.lower(), text)

    def on_begin(self, nodes: Sequence[Any]) -> None:
        """Note the hosts of the simulation; none is open yet."""

    def on_open(self, node: Any) -> None:
        """Check a host that has opened its replica, at the beginning or after a restart."""

    def on_restore(self, node: Any, nodes: Sequence[Any]) -> None:
        """Note that a node will open an old copy of its disk; `nodes` are all hosts."""

    def on_clone(self, node: Any) -> None:
        """Note that a copy of another node, with its key and disk, is about to open."""

    def on_ack(self, node: Any, names: Collection[bytes]) -> None:
        """Note that a host told its user that the parts with these names are durable."""

    def on_commit(self, node: Any) -> None:
        """Check a host that announces a new value."""

    def on_send(self, node: Any, peer: str, payload: bytes) -> None:
        """Check a message that a host sends to a peer."""

    def on_note(self, node: Any, kind: str, peer: str) -> None:
        """Note what a host has counted and logged about a peer."""

    def on_close(self, node: Any, peer: str, reason: str) -> None:
        """Note that a host closes a connection."""

    def on_turn(self, node: Any) -> None:
        """Check a host after each of its steps."""

    def at_rest(self, nodes: Sequence[Any]) -> None:
        """Check the running hosts at the end, before their last restart."""

    def at_end(self, nodes: Sequence[Any], *, settled: bool) -> None:
        """Check the end. `settled`: faults had stopped, so all nodes must be equal."""
